//! The executor as a service: makes its parts, starts them in order and stops them in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use attune_bus::{Bus, BusError, Subscriber, Subscription, Topic};
use attune_core::{OwnerId, PartitionId};
use attune_executor::owner::Trouble;
use attune_executor::partition::{ClusterBounds, ReconcileBounds, STEP_ITEMS};
use attune_executor::{Counter, Owner, OwnerOptions, QueueConfig, QueuesView};
use attune_record::Recorder;
use attune_routing::Senders;
use attune_runtime::{Gauge, Meter, Spans};
use attune_secrets::Keyring;
use attune_store::{PartitionStore, StoreError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::calls::{Calls, Measured};
use crate::convert::span;
use crate::counters::Counters;
use crate::driver::{Driver, boot_now};
use crate::feed::Feed;
use crate::figures::{ExecutorFigures, LeaseTime};
use crate::intake::{Watcher, firings_at_once, intake};
use crate::progress::ExecutorProgress;
use crate::publisher::Publisher;
use crate::queue_figures::{self, Names};
use crate::records::Records;
use crate::refusals::Refusals;

/// How many messages wait in the inbox between the subscriptions and the owner.
const INBOX_MESSAGES: usize = 256;
/// How many hints at partitions that were handed over are delivered at once.
const HINTS: u16 = 64;
/// How many reports of workers are delivered at once.
const REPORTS: u16 = 1_024;
/// How many bytes of messages one round takes.
const ROUND_BYTES: usize = 16 * 1024 * 1024;
/// How old the figures of a queue may become in which somebody waits or runs.
const STATS_REFRESH: Duration = Duration::from_secs(60);
/// How many executions are loaded at a time when a partition is taken over.
const PAGE_ROWS: u32 = 10_000;
/// How many executions are compared with the store at a time.
const SLICE_ROWS: u32 = 2_000;
/// How many executions one page of a bulk operation has.
const OPERATION_ROWS: usize = 1_000;

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
    /// How many executions of an action are granted to a worker ahead of their slots at most; 0 where none are.
    pub lane_length: usize,
    /// How many messages of one topic may be delivered and not yet settled.
    pub prefetch: u16,
    /// How often memory and store are compared.
    pub reconcile_interval: Duration,
    /// How long after its lease a worker counts as dead.
    pub worker_grace: Duration,
    /// How often the snapshot of a changing queue is published, at most.
    pub stats_interval: Duration,
    /// How large a message may be.
    pub max_message_bytes: usize,
    /// Who may say what to it.
    pub senders: Senders,
    /// What is secret is sealed with these.
    pub secrets: Keyring,
    /// Where it records what it decides, if anybody wants to check it.
    pub recorder: Option<Recorder>,
    /// What its loops stamp.
    pub progress: ExecutorProgress,
    /// Where the spans of what it grants go.
    pub spans: Spans,
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
    queues: QueuesView,
    counters: Arc<Counters>,
    measured: Measured,
    poisoned: Arc<AtomicU64>,
    served: watch::Receiver<usize>,
    trouble: watch::Receiver<Option<Trouble>>,
    waiting: watch::Receiver<Option<String>>,
    owner: OwnerId,
    task: JoinHandle<()>,
}

impl ExecutorHandle {
    /// Its queues, to be looked at.
    pub fn queues(&self) -> &QueuesView {
        &self.queues
    }

    /// What it has counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Shows what it counts, what it measures, and its queues, as they are at each look, among the metrics.
    pub fn export(&self, meter: &Meter) {
        for counter in Counter::ALL {
            let counters = self.counters();
            let read = move || counters.get(counter);
            attune_runtime::Counter::show(meter, counter.name(), counter.help(), read);
        }
        self.measured.figures.export(meter);
        queue_figures::export(&self.queues, Arc::clone(&self.measured.names), meter);
        let poisoned = Arc::clone(&self.poisoned);
        let help = "Messages that it could not use, which became dead letters.";
        attune_runtime::Counter::show(meter, "executor.poisoned.total", help, move || {
            poisoned.load(Ordering::Relaxed)
        });
        let served = self.served.clone();
        let help = "Partitions that it owns and serves.";
        Gauge::show(meter, "executor.partitions.owned", help, move || {
            Some(*served.borrow() as f64)
        });
        let (served, leases) = (self.served.clone(), Arc::clone(&self.measured.leases));
        let help = "How long the oldest lease of its partitions holds still, while it owns some.";
        Gauge::show(meter, "executor.lease.remaining_seconds", help, move || {
            let owns = *served.borrow() > 0;
            owns.then(|| leases.remaining(boot_now()) as f64 / 1_000.0)
        });
        let ttl = self.measured.leases.ttl() as f64 / 1_000.0;
        let help = "How long a lease holds after it was renewed.";
        Gauge::show(meter, "executor.lease.ttl_seconds", help, move || Some(ttl));
        let trouble = self.trouble.clone();
        let help = "For how long something has kept it from its work; 0 when nothing does.";
        Gauge::show(meter, "executor.trouble_seconds", help, move || {
            let trouble = trouble.borrow();
            Some(
                trouble
                    .as_ref()
                    .map_or(0.0, |it| it.for_ms as f64 / 1_000.0),
            )
        });
    }

    /// How many messages it could not use.
    pub fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// How many of its commits were refused because a partition had another owner.
    pub fn fenced(&self) -> u64 {
        self.counters.get(Counter::Fenced)
    }

    /// The id under which it owns partitions, fresh at every start.
    pub fn id(&self) -> OwnerId {
        self.owner
    }

    /// How many partitions it owns and serves, as it changes.
    pub fn owned(&self) -> watch::Receiver<usize> {
        self.served.clone()
    }

    /// What keeps it from doing its work, as it changes.
    pub fn trouble(&self) -> watch::Receiver<Option<Trouble>> {
        self.trouble.clone()
    }

    /// What keeps rule firings from the owners of their partitions, in words for an operator.
    pub fn waiting(&self) -> watch::Receiver<Option<String>> {
        self.waiting.clone()
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
    let id = OwnerId::fresh();
    let Subscribers {
        firings,
        hints,
        reports,
        hellos,
    } = declare(&options, id, bus.as_ref()).await?;
    let owner = Owner::new(owner_options(&options, id));
    let queues = owner.queues();
    let measured = Measured {
        figures: Arc::<ExecutorFigures>::default(),
        leases: Arc::new(LeaseTime::new(span(options.lease_ttl))),
        names: Arc::<Names>::default(),
    };
    let (counters, poisoned) = (Arc::<Counters>::default(), Arc::<AtomicU64>::default());
    let (control_tx, control) = mpsc::channel(INBOX_MESSAGES);
    let (commands_tx, commands) = mpsc::channel(INBOX_MESSAGES);
    let (served_tx, served) = watch::channel(0);
    let (trouble_tx, trouble) = watch::channel(None);
    let driver = Driver {
        owner,
        calls: Calls {
            store,
            owner: id,
            name: Arc::from(options.name.as_str()),
            ttl: span(options.lease_ttl),
            measured: measured.clone(),
            secrets: options.secrets.clone(),
        },
        feed: Feed {
            bus: Arc::clone(&bus),
            control: control_tx,
            commands: commands_tx,
            prefetch: options.prefetch,
            max_message_bytes: options.max_message_bytes,
            poisoned: Arc::clone(&poisoned),
            newer: Arc::default(),
            ends: Arc::default(),
            deliveries: Arc::default(),
            senders: options.senders.clone(),
            counters: Arc::clone(&counters),
        },
        publisher: Arc::new(Publisher::new(
            Arc::clone(&bus),
            options.max_message_bytes,
            options.progress.publisher.clone(),
            options.spans.clone(),
        )),
        records: Records::new(options.recorder.clone()),
        counters: Arc::clone(&counters),
        figures: Arc::clone(&measured.figures),
        control,
        commands,
        hints: Some(hints),
        reports: Some(reports),
        hellos: Some(hellos),
        served: served_tx,
        trouble: trouble_tx,
        refusals: watch::Sender::new(Refusals::new()),
        max_message_bytes: options.max_message_bytes,
        senders: options.senders.clone(),
        progress: options.progress.clone(),
    };
    let (waiting_tx, waiting) = watch::channel(None);
    let watcher = Watcher {
        poisoned: Arc::clone(&poisoned),
        trouble: waiting_tx,
        counters: Arc::clone(&counters),
    };
    let intake = intake(&options, bus, firings, watcher);
    let task = tokio::spawn(async move {
        let intake = tokio::spawn(intake.run(stop.clone()));
        let driver = tokio::spawn(driver.run(stop));
        tokio::join!(joined(intake), joined(driver));
    });
    Ok(ExecutorHandle {
        queues,
        counters,
        measured,
        poisoned,
        served,
        trouble,
        waiting,
        owner: id,
        task,
    })
}

/// Waits for a part of the executor; a panic of it is that of whoever waits, at once.
async fn joined<T>(part: JoinHandle<T>) {
    if let Err(error) = part.await
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// What every executor receives, whatever it owns.
struct Subscribers {
    firings: Subscriber,
    hints: Subscriber,
    reports: Subscriber,
    hellos: Subscriber,
}

/// Declares what every executor needs, and subscribes to what every executor receives.
async fn declare(
    options: &ExecutorOptions,
    id: OwnerId,
    bus: &dyn Bus,
) -> Result<Subscribers, BusError> {
    // Commands are kept from now on, whoever owns their partition when they come.
    for partition in (0..options.partitions).map(PartitionId) {
        bus.declare(&Topic::Control(partition)).await?;
        bus.declare(&Topic::ControlKept(partition)).await?;
        bus.declare(&Topic::Commands(partition)).await?;
        bus.declare(&Topic::Calls(partition)).await?;
    }
    bus.declare(&Topic::DeadLetters).await?;
    // Snapshots wait for the first stats persister, so that none of its figures are missing.
    bus.declare(&Topic::QueueStats).await?;
    // Without the right to answer it would decide, and nobody would hear of it.
    bus.declare(&Topic::Reply(String::new())).await?;
    let firings = Subscription {
        topic: Topic::Enforcements,
        prefetch: firings_at_once(options),
    };
    let own = |topic, prefetch| Subscription { topic, prefetch };
    Ok(Subscribers {
        firings: bus.subscribe(firings).await?,
        hints: bus.subscribe(own(Topic::HandedOver, HINTS)).await?,
        reports: bus.subscribe(own(Topic::Reports(id), REPORTS)).await?,
        hellos: bus.subscribe(own(Topic::Hello, HINTS)).await?,
    })
}

fn owner_options(options: &ExecutorOptions, id: OwnerId) -> OwnerOptions {
    OwnerOptions {
        id,
        cluster: ClusterBounds {
            partitions: options.partitions,
            max_message_bytes: options.max_message_bytes,
            lane_length: options.lane_length,
        },
        queue: options.queue,
        lease_ttl: span(options.lease_ttl),
        round_max_items: options.batch_max_items,
        step_items: STEP_ITEMS,
        round_max_bytes: ROUND_BYTES,
        stats_interval: span(options.stats_interval),
        stats_refresh: span(STATS_REFRESH),
        reconcile: ReconcileBounds {
            worker_grace: span(options.worker_grace),
            interval: span(options.reconcile_interval),
        },
        page_rows: PAGE_ROWS,
        slice_rows: SLICE_ROWS,
        operation_rows: OPERATION_ROWS,
        keep_log: options.recorder.is_some(),
        secrets: options.secrets.clone(),
    }
}
