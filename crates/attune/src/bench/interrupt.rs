//! The order to end the benchmark early, and phases that end by themselves.

use std::time::Duration;

use anyhow::{Context as _, bail};
use attune_runtime::Shutdown;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The benchmark was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the benchmark was stopped")
    }
}

impl std::error::Error for Interrupted {}

/// Ctrl-C or SIGTERM. It never ends the process by itself: what the benchmark has started and
/// made must be ended and removed first.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt {
    /// Cancelled by the first signal: stop, and clean up.
    pub(super) stop: Shutdown,
    /// Cancelled by the second: do not wait for anything that can be killed.
    pub(super) hurry: CancellationToken,
}

impl Interrupt {
    /// Listens for signals.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let signals = || {
            Ok((
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ))
        };
        let (mut ctrl_c, mut terminate) = signals()
            .map_err(|error: std::io::Error| error)
            .context("signals")?;
        let listener = interrupt.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = ctrl_c.recv() => {}
                    _ = terminate.recv() => {}
                }
                if listener.stop.is_cancelled() {
                    listener.hurry.cancel();
                } else {
                    eprintln!("attune: stopping and cleaning up; once more: without patience");
                    listener.stop.cancel();
                }
            }
        });
        Ok(interrupt)
    }

    /// Awaits one phase of the benchmark: at most `limit`, and not longer than `failure`, which
    /// resolves when the system under load has broken down. `what` says what is awaited.
    ///
    /// The work is dropped when it is not awaited to its end; calls of ports allow that.
    pub(super) async fn phase<T>(
        &self,
        what: &str,
        limit: Duration,
        failure: impl Future<Output = anyhow::Error>,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Interrupted.into()),
            outcome = tokio::time::timeout(limit, work) => match outcome {
                Ok(outcome) => outcome.with_context(|| format!("awaiting {what}")),
                Err(_) => bail!("awaited {what} for {} s in vain", limit.as_secs()),
            },
            error = failure => Err(error.context(format!("while awaiting {what}"))),
        }
    }
}

/// For phases in which nothing runs yet that could break down.
pub(super) async fn nothing_fails() -> anyhow::Error {
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    async fn never() -> anyhow::Result<()> {
        std::future::pending().await
    }

    #[tokio::test]
    async fn a_phase_ends_by_whatever_comes_first() {
        let interrupt = Interrupt::default();
        let done = interrupt.phase("work", LONG, nothing_fails(), async { Ok(7) });
        assert_eq!(done.await.unwrap(), 7);

        let failing = async { anyhow::anyhow!("worker-1 ended") };
        let error = interrupt
            .phase("the end", LONG, failing, never())
            .await
            .unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "while awaiting the end: worker-1 ended"
        );

        let short = Duration::from_millis(1);
        let error = interrupt
            .phase("answers", short, nothing_fails(), never())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "awaited answers for 0 s in vain");

        interrupt.stop.cancel();
        let error = interrupt
            .phase("work", LONG, nothing_fails(), never())
            .await
            .unwrap_err();
        assert!(error.is::<Interrupted>());
    }
}
