//! `attune restore-fence`: nothing of before a restore writes any more.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_config::Settings;
use attune_store::Store;

use crate::cli::RestoreFenceArguments;
use crate::patient_store;

/// How often it is looked whether those who were there renew their leases.
const LOOK: Duration = Duration::from_millis(500);

/// Fences off what was before, unless somebody is still there.
pub(crate) async fn restore_fence(
    settings: &Settings,
    arguments: &RestoreFenceArguments,
) -> anyhow::Result<ExitCode> {
    let store = patient_store(settings, "restore-fence", &arguments.patience).await?;
    store
        .check()
        .await
        .context("the schema does not fit; run `attune migrate` first")?;
    if !arguments.force {
        nobody_is_there(store.as_ref()).await?;
    }
    store
        .restore_fence(attune_cli::who(&arguments.who))
        .await
        .context("the fence could not be set")?;
    store.close().await;
    println!("what was before is fenced off; the daemons can be started");
    Ok(ExitCode::SUCCESS)
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
