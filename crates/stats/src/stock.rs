//! Looks now and then at what the upkeep looks after, for the metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_runtime::{Gauge, LogPace, Meter, error_chain, in_task};
use attune_store::{ExecutionStore, Stock};
use tokio_util::sync::CancellationToken;

/// How often.
const INTERVAL: Duration = Duration::from_secs(60);

/// What the last look has shown, if it has shown anything.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastLook(Arc<Mutex<Option<Stock>>>);

impl LastLook {
    fn set(&self, stock: Option<Stock>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stock;
    }

    /// Shows it among the metrics.
    pub(crate) fn export(&self, meter: &Meter) {
        let show = |name, help: &str, pick: fn(&Stock) -> Option<u64>| {
            let look = Arc::clone(&self.0);
            Gauge::show(meter, name, help, move || {
                let stock = look.lock().unwrap_or_else(PoisonError::into_inner);
                Some(pick(stock.as_ref()?)? as f64)
            });
        };
        let help = "Days after today that have a table of the history.";
        show("store.history.days_ahead", help, |stock| stock.days_ahead);
        let help = "Rows of the history and of the requests that no day has taken.";
        show("store.rows.of_no_day", help, |stock| Some(stock.of_no_day));
        let help = "Dead letters that were not put back.";
        show("dead_letters.waiting", help, |stock| Some(stock.letters));
    }
}

/// Looks until the stop.
pub(crate) async fn look<S>(store: Arc<S>, last: LastLook, stop: CancellationToken)
where
    S: ExecutionStore + ?Sized + 'static,
{
    let mut log = LogPace::default();
    loop {
        let again = Arc::clone(&store);
        match in_task(async move { again.stock().await }).await {
            Ok(stock) => {
                log.reset();
                last.set(Some(stock));
            }
            Err(error) => {
                last.set(None);
                if log.is_due() {
                    let reason = error_chain(&error);
                    tracing::warn!(
                        reason,
                        "what there is of history and dead letters cannot be counted"
                    );
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}
