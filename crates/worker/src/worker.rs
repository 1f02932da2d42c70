//! Starting a worker, and holding on to it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use attune_bus::{Bus, BusError, Subscriber, Subscription};
use attune_dispatch::Entries;
use attune_record::Recorder;
use attune_runtime::{Backoff, LogPace};
use attune_store::WorkerStore;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::begun::note_of;
use crate::counters::WorkerCounters;
use crate::error::WorkerError;
use crate::former::tell_of_former;
use crate::guard::Guard;
use crate::lease::{Announce, Leases};
use crate::options::WorkerOptions;
use crate::outbox::Outbox;
use crate::reporter::Reporter;
use crate::runner::{Room, Runner};
use crate::runs::Runs;
use crate::service::{Pending, Phase, Service, Stuck, begin, say_hello};

/// A worker; see the [crate documentation](crate).
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// Subscribes a fresh worker, puts a lease on it, and lets it work until `shutdown` is
    /// cancelled. Returns when it is ready; waits for a store or a bus that cannot be reached
    /// for as long as it takes.
    ///
    /// With a recorder, the start and the end of every run are recorded.
    ///
    /// # Errors
    /// See [`WorkerError`].
    pub async fn start(
        options: WorkerOptions,
        bus: Arc<dyn Bus>,
        store: Arc<dyn WorkerStore>,
        recorder: Option<Recorder>,
        shutdown: CancellationToken,
    ) -> Result<WorkerHandle, WorkerError> {
        if let Some(problem) = options.problem() {
            return Err(WorkerError::Options(problem));
        }
        for lack in options.containment.lacks() {
            tracing::warn!(lack, "programs are not fully contained here");
        }
        let guard = Guard::start(options.guard.clone());
        let started =
            Self::start_guarded(options, bus, store, recorder, shutdown, Arc::clone(&guard)).await;
        if started.is_err() {
            guard.close().await;
        }
        started
    }

    async fn start_guarded(
        options: WorkerOptions,
        bus: Arc<dyn Bus>,
        store: Arc<dyn WorkerStore>,
        recorder: Option<Recorder>,
        shutdown: CancellationToken,
        guard: Arc<Guard>,
    ) -> Result<WorkerHandle, WorkerError> {
        let announce = || -> Announce {
            let (bus, pool) = (Arc::clone(&bus), options.pool.clone());
            Box::new(move |worker| say_hello(&bus, worker, &pool))
        };
        // What came before may be why it was started.
        let (state_dir, stop) = (options.state_dir.clone(), shutdown.child_token());
        let telling = tell_of_former(state_dir, Arc::clone(&store), announce(), stop);
        drop(tokio::spawn(telling));
        let leases = Leases::new(&options, store, Arc::clone(&guard), announce());
        let leases = Arc::new(leases);
        let begun = begin(&leases, &bus, &options.pool, &shutdown).await?;
        let (life, link) = begun.ok_or(WorkerError::Stopped)?;
        let counters = Arc::new(WorkerCounters {
            renewals: leases.renewals(),
            ..WorkerCounters::default()
        });
        counters.slots.set(options.slots);
        let outbox = Arc::new(Outbox::new(options.retell_after));
        let reporter = Reporter {
            bus: Arc::clone(&bus),
            outbox: Arc::clone(&outbox),
            counters: Arc::clone(&counters),
            max_message_bytes: options.max_message_bytes,
        };
        let begun = note_of(&options, &guard, &life);
        // Beside everything else: nobody waits for it.
        drop(tokio::spawn(Room::remove_left(
            options.work_dir.clone(),
            options.containment.account,
        )));
        let (troubles, shown) = watch::channel(None);
        let service = Service {
            bus,
            counters: Arc::clone(&counters),
            leases,
            shutdown: shutdown.child_token(),
            outbox,
            reporter: tokio::spawn(reporter.run()),
            runs: Runs::new(
                Runner::new(&options, Arc::clone(&guard), counters.keyless.clone()),
                recorder,
                options.spans.clone(),
            ),
            guard,
            began: Instant::now(),
            entries: Entries::new(options.slots),
            begun,
            link: Some(link),
            life: Some(life),
            phase: Phase::Serving,
            pending: Pending::default(),
            stuck: Stuck::default(),
            troubles,
            options,
        };
        Ok(WorkerHandle {
            task: tokio::spawn(service.run()),
            counters,
            troubles: shown,
        })
    }
}

/// A worker that was started. Awaiting it waits for its end: after `shutdown`, when its runs are
/// over or killed, what it had to say is settled, or the time for that is over, and its lease is
/// given back. Dropping it does not stop the worker.
#[derive(Debug)]
pub struct WorkerHandle {
    task: JoinHandle<Result<(), WorkerError>>,
    counters: Arc<WorkerCounters>,
    troubles: watch::Receiver<Option<String>>,
}

impl WorkerHandle {
    /// What it counts; it can be kept beyond the worker's end.
    pub fn counters(&self) -> Arc<WorkerCounters> {
        Arc::clone(&self.counters)
    }

    /// What keeps it from its work at the moment, in words: it can start no programs, its lease is
    /// not renewed, or what has ended is not settled.
    pub fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.troubles.clone()
    }
}

impl Future for WorkerHandle {
    type Output = Result<(), WorkerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task)
            .poll(context)
            .map(|ended| ended.unwrap_or_else(|fault| Err(WorkerError::Fault(fault.to_string()))))
    }
}

/// Subscribes; tries for as long as the bus cannot be reached.
pub(crate) async fn subscribe(
    bus: &Arc<dyn Bus>,
    subscription: Subscription,
    shutdown: &CancellationToken,
) -> Result<Subscriber, WorkerError> {
    let topic = &subscription.topic;
    let since = Instant::now();
    let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
    while !shutdown.is_cancelled() {
        match bus.subscribe(subscription.clone()).await {
            Ok(subscriber) => return Ok(subscriber),
            Err(error @ BusError::Unavailable(_)) => {
                if log.is_due() {
                    let waited_seconds = since.elapsed().as_secs();
                    tracing::warn!(waited_seconds, %error, %topic, "waiting for the bus");
                }
            }
            Err(source) => {
                return Err(WorkerError::Bus {
                    topic: topic.to_string(),
                    source,
                });
            }
        }
        if backoff.wait(shutdown).await.is_err() {
            break;
        }
    }
    Err(WorkerError::Stopped)
}
