//! Opens the store for commands that end by themselves.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_config::{Settings, Wiring};
use attune_runtime::Shutdown;
use attune_store::Store;

use crate::cli::MigrateArguments;
use crate::{parts, tell};

/// The exit code of a command that a signal has told to end before it was done, as shells give it.
const TOLD_TO_END: u8 = 143;
/// How long is waited in silence where no log says what for.
const SILENCE: Duration = Duration::from_secs(2);

/// How long the store may take to answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    give_up_after: Duration,
    /// Whether the command has no log, which would say what is waited for.
    has_no_log: bool,
}

impl Patience {
    /// Of a command with a log, as its options say.
    pub(crate) fn of(arguments: &MigrateArguments) -> Self {
        Self {
            give_up_after: Duration::from_secs(arguments.give_up_after),
            has_no_log: false,
        }
    }

    /// Of a command without a log and without that option.
    pub(crate) fn without_log(give_up_after: Duration) -> Self {
        Self {
            give_up_after,
            has_no_log: true,
        }
    }

    fn given_up(self) -> String {
        let option = match self.has_no_log {
            true => "",
            false => " (--give-up-after)",
        };
        format!("gave up after {} s{option}", self.give_up_after.as_secs())
    }
}

/// Opens the store, waiting no longer than it says, and does `work` with it, until a signal says to end:
/// what the store does then is not cut off here, but by the end of the process, and the store takes it
/// back.
pub(crate) async fn with_store<Work>(
    settings: &Settings,
    role: &str,
    patience: Patience,
    work: impl FnOnce(Arc<dyn Store>) -> Work,
) -> anyhow::Result<ExitCode>
where
    Work: Future<Output = anyhow::Result<()>>,
{
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals()?;
    let opening = parts::store(settings, role, &shutdown);
    let mut opening = pin!(said_after(SILENCE, opening, || {
        if patience.has_no_log {
            tell(&anyhow!(waited_for(settings, patience)));
        }
    }));
    let opened = tokio::select! {
        biased;
        opened = &mut opening => opened,
        () = tokio::time::sleep(patience.give_up_after) => {
            // Between two tries, so that none is cut off.
            shutdown.cancel();
            let given_up = || patience.given_up();
            return opening.await.map(|_| ExitCode::FAILURE).with_context(given_up);
        }
    };
    let done = match opened {
        Ok(store) => tokio::select! {
            biased;
            done = work(store) => Some(done),
            () = shutdown.cancelled() => None,
        },
        Err(_) if shutdown.is_cancelled() => None,
        Err(error) => Some(Err(error)),
    };
    let Some(done) = done else {
        tell(&anyhow!("told to end before it was done"));
        return Ok(ExitCode::from(TOLD_TO_END));
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What does not answer, and where its place is set.
fn waited_for(settings: &Settings, patience: Patience) -> String {
    let place = match settings.wiring {
        Wiring::Embedded => format!("{} (data_dir)", parts::database_file(settings).display()),
        Wiring::PostgresRabbitmq => {
            let endpoint = settings.database.url.endpoint();
            format!("PostgreSQL at {endpoint} (database.url)")
        }
    };
    let seconds = patience.give_up_after.as_secs();
    format!("{place} does not answer yet; waiting for it, {seconds} s at most")
}

/// Does something, and calls `say` when it takes longer than that.
async fn said_after<T>(silence: Duration, doing: impl Future<Output = T>, say: impl FnOnce()) -> T {
    let mut doing = pin!(doing);
    tokio::select! {
        biased;
        done = &mut doing => return done,
        () = tokio::time::sleep(silence) => say(),
    }
    doing.await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use attune_config::Loader;
    use tokio::sync::oneshot;
    use tokio::time::{Instant, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_said_once_and_in_time() {
        let said = Cell::new(None);
        let since = Instant::now();
        let say = || said.set(Some(since.elapsed()));
        let (end, ended) = oneshot::channel();
        let waits = async {
            ended.await.ok();
            7
        };
        let waiting = said_after(SILENCE, waits, say);
        let ending = async {
            advance(Duration::from_millis(1900)).await;
            assert_eq!(said.get(), None);
            advance(Duration::from_millis(200)).await;
            tokio::task::yield_now().await;
            assert!(said.get().is_some());
            end.send(()).ok();
        };
        assert_eq!(tokio::join!(waiting, ending).0, 7);
        said.set(None);
        assert_eq!(said_after(SILENCE, async { 8 }, say).await, 8);
        assert_eq!(said.get(), None);
    }

    #[test]
    fn it_is_said_which_server_and_which_setting_without_the_password() {
        let words = |flags: &[(&str, &str)]| {
            let loaded = Loader::new().flags(flags.iter().copied()).load().unwrap();
            let patience = Patience::without_log(Duration::from_secs(60));
            waited_for(&loaded.settings, patience)
        };
        let url = "postgres://u:hunter2@db:6432/attune";
        assert_eq!(
            words(&[("database.url", url)]),
            "PostgreSQL at db:6432 (database.url) does not answer yet; waiting for it, 60 s at most"
        );
        let said = words(&[("wiring", "embedded"), ("data_dir", "/srv/a")]);
        assert!(
            said.starts_with("/srv/a/attune.db (data_dir) does not"),
            "{said}"
        );
    }

    #[test]
    fn who_has_no_such_option_is_not_told_of_it() {
        let own = Patience::without_log(Duration::from_secs(60));
        assert_eq!(own.given_up(), "gave up after 60 s");
        let of = Patience::of(&MigrateArguments { give_up_after: 5 });
        assert_eq!(of.given_up(), "gave up after 5 s (--give-up-after)");
    }
}
