//! The stats persister as a service: its options, its handle, its two loops.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Subscription, Topic};
use attune_record::Recorder;
use attune_runtime::{Meter, Progress};
use attune_store::{ExecutionStore, HistoryRetention, StatsStore};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::counters::StatsCounters;
use crate::error::StatsError;
use crate::maintenance::maintain;
use crate::persister::{PREFETCH, Persister};
use crate::stock::{LastLook, look};

/// Settings of a [`StatsPersister`].
#[derive(Debug, Clone)]
pub struct StatsOptions {
    /// Changes of a queue within this time share one write.
    pub min_interval: Duration,
    /// How long every write may fail before the persister says so.
    pub write_patience: Duration,
    /// The largest message that is read, in bytes.
    pub max_message_bytes: usize,
    /// How long what has ended is kept.
    pub retention: HistoryRetention,
    /// How often the history is maintained; also done at the start.
    pub maintenance_interval: Duration,
    /// Where it records what it has written, if that is wanted.
    pub recorder: Option<Recorder>,
    /// Stamped in every round of the persister's loop, each of which is a try at least.
    pub progress: Progress,
}

impl StatsOptions {
    /// A quarter of a second between writes, upkeep every hour, messages of 1 MiB.
    pub fn new(retention: HistoryRetention) -> Self {
        Self {
            min_interval: Duration::from_millis(250),
            write_patience: Duration::from_secs(20),
            max_message_bytes: 1024 * 1024,
            retention,
            maintenance_interval: Duration::from_secs(3600),
            recorder: None,
            progress: Progress::default(),
        }
    }

    /// Words that say what is impossible, if anything is.
    fn problem(&self) -> Option<&'static str> {
        if self.max_message_bytes == 0 {
            return Some("a stats persister that reads no message is of no use");
        }
        if self.maintenance_interval.is_zero() {
            return Some("between two rounds of upkeep there must be some time");
        }
        None
    }
}

/// Keeps the newest snapshot of every queue in the store; see the [crate](crate).
#[derive(Debug, Clone, Copy)]
pub struct StatsPersister;

impl StatsPersister {
    /// Subscribes, and works in a task of its own until `stop` is cancelled or the bus is
    /// closed. At the stop it writes once more what has arrived; if that fails, the snapshots
    /// come again to its successor. `store` is an `Arc<dyn Store>`, or less in tests.
    ///
    /// # Errors
    /// When the options are impossible or the subscription cannot be made.
    pub async fn start<S>(
        options: StatsOptions,
        bus: Arc<dyn Bus>,
        store: Arc<S>,
        stop: CancellationToken,
    ) -> Result<StatsHandle, StatsError>
    where
        S: StatsStore + ExecutionStore + ?Sized + 'static,
    {
        if let Some(problem) = options.problem() {
            return Err(StatsError::Options(problem.to_owned()));
        }
        let subscription = Subscription {
            topic: Topic::QueueStats,
            prefetch: PREFETCH,
        };
        let subscriber = bus.subscribe(subscription).await?;
        let counters = Arc::<StatsCounters>::default();
        let (trouble, troubles) = watch::channel(None);
        let persister = Persister::new(
            &options,
            bus,
            Arc::clone(&store),
            (Arc::clone(&counters), trouble),
            &subscriber,
        );
        let looked_at = Arc::clone(&store);
        let upkeep = maintain(
            store,
            options.retention,
            options.maintenance_interval,
            Arc::clone(&counters),
            stop.clone(),
        );
        let stock = LastLook::default();
        let looking = look(looked_at, stock.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let upkeep = async {
                tokio::join!(upkeep, looking);
                Ok(())
            };
            tokio::try_join!(persister.run(subscriber, stop), upkeep).map(|((), ())| ())
        });
        Ok(StatsHandle {
            counters,
            stock,
            troubles,
            task,
        })
    }
}

/// A running stats persister. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct StatsHandle {
    counters: Arc<StatsCounters>,
    stock: LastLook,
    troubles: watch::Receiver<Option<String>>,
    task: JoinHandle<Result<(), StatsError>>,
}

impl StatsHandle {
    /// What it has counted.
    pub fn counters(&self) -> Arc<StatsCounters> {
        Arc::clone(&self.counters)
    }

    /// Shows what it counts, and what there is that it looks after, among the metrics.
    pub fn export(&self, meter: &Meter) {
        self.counters.export(meter);
        self.stock.export(meter);
    }

    /// Why no figure can be written for a while, in words for an operator; `None` while all is
    /// well.
    pub fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.troubles.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// [`StatsError::BusClosed`] when that, and not the stop, is why.
    ///
    /// # Panics
    /// When a part of it panicked.
    pub async fn stopped(self) -> Result<(), StatsError> {
        match self.task.await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down; nobody is left to be told.
                Err(_) => Ok(()),
            },
        }
    }
}
