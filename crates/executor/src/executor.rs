//! The executor as a service: makes its parts, starts them in order and stops them in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use attune_bus::{Bus, BusError, Subscription, Topic};
use attune_core::{OwnerId, PartitionId};
use attune_record::Recorder;
use attune_store::{PartitionStore, StoreError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::counters::Counters;
use crate::dispatcher::Dispatcher;
use crate::event::ReconcileBounds;
use crate::inbox::Feed;
use crate::intake::Intake;
use crate::journal::{Journal, JournalOptions, State};
use crate::lost_workers::LostWorkers;
use crate::ownership::Ownership;
use crate::queue_manager::{ExecutionQueueManager, QueueConfig};

/// How many messages wait in the inbox between the subscriptions and the owner.
const INBOX_MESSAGES: usize = 1024;
/// How many rebuilt sets of partitions wait to be served.
const LOADED: usize = 16;
/// How many changes of what is owned wait for the owner: more than one per partition, so that
/// whoever keeps the leases never waits for it.
const LEASE_EVENTS: usize = 2 * PartitionId::MAX_COUNT as usize;
/// How many hints at partitions that were handed over are delivered at once.
const HINTS: u16 = 64;
/// How many committed rounds wait to be told.
const ROUNDS_IN_FLIGHT: usize = 8;

/// How an executor works.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Its name for people.
    pub name: String,
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// How long a lease holds without renewal.
    pub lease_ttl: Duration,
    /// Bounds of queues that have none of their own.
    pub queue: QueueConfig,
    /// How many items one round takes at most.
    pub batch_max_items: usize,
    /// How many executions one dispatch carries at most; half of a worker's slots or fewer.
    pub dispatch_max_pack: usize,
    /// How many messages of one topic may be delivered and not yet settled.
    pub prefetch: u16,
    /// How often memory and store are compared.
    pub reconcile_interval: Duration,
    /// After how long a slot that nobody claimed is dispatched again.
    pub republish_after: Duration,
    /// How long after its lease a worker counts as dead.
    pub worker_grace: Duration,
    /// How often the snapshot of a changing queue is published, at most.
    pub stats_interval: Duration,
    /// How large a message may be.
    pub max_message_bytes: usize,
    /// Where it records what it decides, if anybody wants to check it.
    pub recorder: Option<Recorder>,
}

/// An executor could not start.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The store refused or cannot be reached.
    #[error("the executor cannot use the store")]
    Store(#[from] StoreError),
    /// The bus refused or cannot be reached.
    #[error("the executor cannot use the bus")]
    Bus(#[from] BusError),
}

impl ExecutorError {
    /// Whether the same may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Bus(error) => matches!(error, BusError::Unavailable(_)),
        }
    }
}

/// A running executor.
#[derive(Debug)]
pub struct ExecutorHandle {
    queues: ExecutionQueueManager,
    counters: Arc<Counters>,
    poisoned: Arc<AtomicU64>,
    fenced: Arc<AtomicU64>,
    owned: watch::Receiver<usize>,
    owner: OwnerId,
    task: JoinHandle<()>,
}

impl ExecutorHandle {
    /// Its queues, to be looked at.
    pub fn queues(&self) -> &ExecutionQueueManager {
        &self.queues
    }

    /// What it has counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// How many messages it could not use.
    pub fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// How many of its commits were refused because a partition had another owner.
    pub fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    /// The id under which it owns partitions, fresh at every start.
    pub fn id(&self) -> OwnerId {
        self.owner
    }

    /// How many partitions it owns and serves, as it changes.
    pub fn owned(&self) -> watch::Receiver<usize> {
        self.owned.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Panics
    /// When a part of it panicked: the process must end then, so that its leases expire.
    pub async fn stopped(self) {
        if let Err(error) = self.task.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Starts an executor; it stops when `stop` is cancelled.
///
/// # Errors
/// [`ExecutorError`] when the store or the bus refuses what every executor needs.
pub async fn start(
    options: ExecutorOptions,
    store: Arc<dyn PartitionStore>,
    bus: Arc<dyn Bus>,
    stop: CancellationToken,
) -> Result<ExecutorHandle, ExecutorError> {
    store.ensure_partitions(options.partitions).await?;
    // Commands are kept from now on, whoever owns their partition when they come.
    for partition in (0..options.partitions).map(PartitionId) {
        bus.declare(&Topic::Control(partition)).await?;
        bus.declare(&Topic::Commands(partition)).await?;
    }
    bus.declare(&Topic::DeadLetters).await?;
    // Snapshots wait for the first stats persister, so that none of its figures are missing.
    bus.declare(&Topic::QueueStats).await?;
    let intake_subscription = Subscription {
        topic: Topic::Enforcements,
        prefetch: options.prefetch,
    };
    let intake_subscriber = bus.subscribe(intake_subscription).await?;
    let hints = bus
        .subscribe(Subscription {
            topic: Topic::HandedOver,
            prefetch: HINTS,
        })
        .await?;

    let queues = ExecutionQueueManager::new(options.queue);
    let (counters, poisoned, fenced) = (
        Arc::<Counters>::default(),
        Arc::<AtomicU64>::default(),
        Arc::<AtomicU64>::default(),
    );
    let (lease_events, leases) = mpsc::channel(LEASE_EVENTS);
    let (trusted_tx, trusted) = watch::channel(Instant::now());
    let (dropped_tx, dropped) = mpsc::channel(usize::from(PartitionId::MAX_COUNT));
    let (control_tx, control) = mpsc::channel(INBOX_MESSAGES);
    let (commands_tx, commands) = mpsc::channel(INBOX_MESSAGES);
    let (told, rounds) = mpsc::channel(ROUNDS_IN_FLIGHT);
    let (owned_count, owned) = watch::channel(0);
    let owner = OwnerId::fresh();
    let feed = |inbox| Feed {
        bus: Arc::clone(&bus),
        inbox,
        max_message_bytes: options.max_message_bytes,
        poisoned: Arc::clone(&poisoned),
    };
    let sweep = Arc::<Notify>::default();
    let journal = Journal {
        options: journal_options(&options, owner),
        store: Arc::clone(&store),
        bus: Arc::clone(&bus),
        queues: queues.clone(),
        counters: Arc::clone(&counters),
        fenced: Arc::clone(&fenced),
        leases,
        trusted,
        dropped: dropped_tx,
        control,
        commands,
        control_feed: feed(control_tx),
        command_feed: feed(commands_tx),
        loaded: mpsc::channel(LOADED),
        told,
        owned_count,
        sweep: Arc::clone(&sweep),
        recorder: options.recorder.clone(),
        state: State::new(),
    };
    let lost_workers = LostWorkers {
        store: Arc::clone(&store),
        owner,
        grace: options.worker_grace,
        served: owned.clone(),
        sweep,
    };
    let mut ownership = Ownership {
        store,
        bus: Arc::clone(&bus),
        owner,
        name: options.name.clone(),
        partitions: options.partitions,
        ttl: options.lease_ttl,
        max_message_bytes: options.max_message_bytes,
        events: lease_events,
        trusted: trusted_tx,
        dropped,
        hints: Some(hints),
        held: BTreeMap::new(),
    };
    let intake = Intake {
        bus: Arc::clone(&bus),
        partitions: options.partitions,
        max_message_bytes: options.max_message_bytes,
        poisoned: Arc::clone(&poisoned),
    };
    let dispatcher_stop = CancellationToken::new();
    let dispatcher = Dispatcher {
        bus,
        max_pack: options.dispatch_max_pack,
        rounds,
        stop: dispatcher_stop.clone(),
    };
    let task = tokio::spawn(async move {
        let journal_stop = CancellationToken::new();
        let intake = tokio::spawn(intake.run(intake_subscriber, stop.clone()));
        let mut leases = tokio::spawn(async move {
            ownership.keep(&stop).await;
            ownership.leave().await;
            ownership
        });
        let telling = tokio::spawn(dispatcher.run());
        let looking = tokio::spawn(lost_workers.watch(journal_stop.clone()));
        let mut deciding = tokio::spawn(journal.run(journal_stop.clone()));
        // Hand the partitions over while they are served; then stop in the order of the data:
        // decide, tell, then give up the leases that are left.
        let ownership = tokio::select! {
            left = &mut leases => left.unwrap_or_else(|error| resume(error)),
            // It ends before it is told to only by a panic, which goes on here.
            ended = &mut deciding => match ended {
                Err(error) => resume(error),
                Ok(()) => return,
            },
        };
        journal_stop.cancel();
        join(deciding).await;
        let patience = tokio::time::sleep(DRAIN);
        tokio::select! {
            () = join(telling) => {}
            () = patience => dispatcher_stop.cancel(),
        }
        join(intake).await;
        join(looking).await;
        ownership.finish().await;
    });
    Ok(ExecutorHandle {
        queues,
        counters,
        poisoned,
        fenced,
        owned,
        owner,
        task,
    })
}

/// How long a stopping executor waits for its last messages to be confirmed. What is not
/// confirmed by then is told again by the next owner.
const DRAIN: Duration = Duration::from_secs(10);

fn journal_options(options: &ExecutorOptions, owner: OwnerId) -> JournalOptions {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    JournalOptions {
        owner,
        partitions: options.partitions,
        max_items: options.batch_max_items,
        prefetch: options.prefetch,
        stats_interval: options.stats_interval,
        reconcile_interval: options.reconcile_interval,
        bounds: ReconcileBounds {
            worker_grace: millis(options.worker_grace),
            republish_after: millis(options.republish_after),
            interval: millis(options.reconcile_interval),
        },
    }
}

/// Waits for a part; a panic in it is a panic of the whole.
async fn join(part: JoinHandle<()>) {
    if let Err(error) = part.await
        && error.is_panic()
    {
        resume(error);
    }
}

/// Goes on with the panic of a part.
///
/// # Panics
/// Always; that is what it is for.
fn resume(error: JoinError) -> ! {
    std::panic::resume_unwind(error.into_panic())
}
