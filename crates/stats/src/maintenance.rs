//! The upkeep of the history: room for the days to come, and what is old goes.

use std::sync::Arc;
use std::time::Duration;

use attune_runtime::{Backoff, LogPace, error_chain, in_task};
use attune_store::{ExecutionStore, HistoryRetention};
use tokio_util::sync::CancellationToken;

use crate::counters::StatsCounters;

/// The first and the longest wait after a failure. The longest is short beside the days of room
/// that each round makes.
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_CAP: Duration = Duration::from_secs(60);

/// Maintains the history now and after every `interval`, until the stop.
pub(crate) async fn maintain<S>(
    store: Arc<S>,
    keep: HistoryRetention,
    interval: Duration,
    counters: Arc<StatsCounters>,
    stop: CancellationToken,
) where
    S: ExecutionStore + ?Sized + 'static,
{
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut log = LogPace::default();
    loop {
        let again = Arc::clone(&store);
        let wait = match in_task(async move { again.maintain_history(keep).await }).await {
            Ok(()) => {
                counters.maintained.add(1);
                backoff.reset();
                log.reset();
                interval
            }
            Err(error) => {
                if log.is_due() {
                    let (reason, tries) = (error_chain(&error), log.tries());
                    tracing::warn!(
                        reason,
                        tries,
                        "the history cannot be maintained; trying again"
                    );
                }
                backoff.next_delay().min(interval)
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
