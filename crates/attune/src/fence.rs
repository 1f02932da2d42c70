//! `attune restore-fence`: nothing of before a restore writes any more.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_config::{Settings, Wiring, redact_urls};
use attune_store::{Actor, Store};

use crate::cli::RestoreFenceArguments;
use crate::opening::{Patience, with_store};
use crate::{parts, say};

/// How often it is looked whether those who were there renew their leases.
const LOOK: Duration = Duration::from_millis(500);

/// Fences off what was before, unless somebody is still there. `program` is how the caller named
/// the program and its settings.
pub(crate) async fn restore_fence(
    settings: &Settings,
    program: &str,
    arguments: &RestoreFenceArguments,
) -> anyhow::Result<ExitCode> {
    let place = place(settings)?;
    with_store(
        settings,
        "restore-fence",
        Patience::of(&arguments.patience),
        async |store| {
            store.check().await.with_context(|| {
                format!("the schema in {place} does not fit; run `{program} migrate` first")
            })?;
            if !arguments.force {
                nobody_is_there(store.as_ref()).await?;
            }
            store
                .restore_fence(&Actor::at_console(attune_cli::who(&arguments.who)), arguments.again)
                .await
                .context("the fence could not be set")?;
            store.close().await;
            say(&format!(
                "what was before is fenced off in {place}; the daemons can be started"
            ));
            if arguments.again == 0 {
                say(
                    "if this very backup was restored before: fence it off with `--again TIMES` too, or ids and \
                     attempts are given out that were given out then",
                );
            }
            Ok(())
        },
    )
    .await
}

/// What is fenced, without a password. A file that is not there is not made: nothing was restored
/// in that place, so another one is meant.
pub(crate) fn place(settings: &Settings) -> anyhow::Result<String> {
    if settings.wiring == Wiring::PostgresRabbitmq {
        return Ok(settings.database.url.redacted());
    }
    let file = parts::database_file(settings);
    let file = std::path::absolute(&file).unwrap_or(file);
    let shown = file.display();
    let has_something = match std::fs::metadata(&file) {
        Ok(found) => found.is_file() && found.len() > 0,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("{shown} cannot be looked at")),
    };
    ensure!(
        has_something,
        "there is no database at {shown}; nothing was done. Name the folder that has the right \
         attune.db in it with `--set data_dir=FOLDER`"
    );
    Ok(shown.to_string())
}

/// The program as it was called, with the settings that the caller gave it: for another command on
/// the same database.
pub(crate) fn program(config: Option<&Path>, set: &[(String, String)]) -> String {
    let mut called = String::from("attune");
    if let Some(file) = config {
        called += " --config ";
        called += &quoted(&file.display().to_string());
    }
    for (key, value) in set {
        called += " --set ";
        called += &quoted(&redact_urls(&format!("{key}={value}")));
    }
    called
}

/// One word of a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Who is there, and how long its lease still holds.
type There = BTreeMap<String, Duration>;

/// Waits until no lease holds any more. A backup of a moment ago has leases in it that nobody
/// renews: these end. Whoever renews one is alive, and would lose what it runs.
async fn nobody_is_there(store: &dyn Store) -> anyhow::Result<()> {
    let mut before = there(store).await?;
    if let Some(longest) = before.values().max() {
        let names: Vec<&str> = before.keys().map(String::as_str).collect();
        eprintln!(
            "attune: waiting for up to {} s until the leases of {} are over, or somebody renews one",
            longest.as_secs() + 1,
            names.join(", ")
        );
    }
    while !before.is_empty() {
        tokio::time::sleep(LOOK).await;
        let now = there(store).await?;
        for (name, left) in &now {
            ensure!(
                before.get(name).is_some_and(|earlier| left <= earlier),
                "{name} is running: stop every daemon first. `--force` fences it off all the same, \
                 and kills what it runs; nothing was done"
            );
        }
        before = now;
    }
    Ok(())
}

async fn there(store: &dyn Store) -> anyhow::Result<There> {
    let executors = store.executors().await?;
    let executors = executors.into_iter().map(|it| {
        let name = format!("executor {} ({})", it.name, it.executor);
        (name, it.remaining)
    });
    let workers = store.workers().await?;
    let workers = workers
        .into_iter()
        .map(|it| (format!("worker {} ({})", it.name, it.worker), it.remaining));
    let all = executors.chain(workers);
    Ok(all.filter(|(_, left)| !left.is_zero()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named_as_it_was_called() {
        assert_eq!(program(None, &[]), "attune");
        let set = [
            ("wiring", "embedded"),
            ("data_dir", "/srv/it's here"),
            ("database.url", "postgres://ann:hunter2@db/attune"),
        ];
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(
            program(Some(Path::new("/etc/attune/attune.yaml")), &set),
            [
                "attune --config /etc/attune/attune.yaml --set wiring=embedded",
                r" --set 'data_dir=/srv/it'\''s here'",
                " --set 'database.url=postgres://ann:***@db/attune'",
            ]
            .concat()
        );
    }
}
