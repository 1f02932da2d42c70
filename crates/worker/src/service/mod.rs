//! The loop of a worker: receive, claim, run, report.
//!
//! One task owns all of its state; what takes time (claims, runs, publishing, renewing) happens
//! in tasks of their own and comes back as an [`Event`]. [`Service::step`] takes one event and
//! does what follows from it, without waiting for anything.

mod claims;
mod drain;
mod stuck;
mod wait;

use std::sync::Arc;

use attune_bus::{Bus, Delivery, DeliveryTag, Shelf, Subscriber, Topic, dead_letter};
use attune_messages::v1::{ExecutionCancel, ExecutionRequested};
use attune_messages::{DecodeError, decode};
use attune_runtime::{Backoff, Failing, LogPace};
use attune_store::{Claim, StoreError, WorkerStore};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::counters::WorkerCounters;
use crate::error::WorkerError;
use crate::guard::Guard;
use crate::inbox::Inbox;
use crate::lease::{Leases, Life};
use crate::options::WorkerOptions;
use crate::outbox::Outbox;
use crate::runs::{Finished, Runs};
use claims::Claiming;
pub(crate) use stuck::Stuck;
use wait::{answered, finished, next, over, registered, until};

/// Everything that the loop owns.
pub(crate) struct Service {
    pub(crate) options: WorkerOptions,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) store: Arc<dyn WorkerStore>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) guard: Arc<Guard>,
    /// The caller's wish to stop, or our own.
    pub(crate) shutdown: CancellationToken,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) reporter: JoinHandle<()>,
    /// Asks what became of what was reported; ends with the service.
    pub(crate) _reminder: AbortOnDropHandle<()>,
    pub(crate) runs: Runs,
    pub(crate) inbox: Inbox,
    pub(crate) requested: Option<Subscriber>,
    /// Where dispatches go that only a newer worker can read.
    pub(crate) shelf: Shelf,
    pub(crate) cancels: Option<Subscriber>,
    /// The life under which claims are made; none while a fresh one is being registered.
    pub(crate) life: Option<Arc<Life>>,
    pub(crate) phase: Phase,
    pub(crate) pending: Pending,
    pub(crate) stuck: Stuck,
    /// What keeps it from its work, for people.
    pub(crate) troubles: watch::Sender<Option<String>>,
}

/// What is under way elsewhere, and when to look again.
#[derive(Default)]
pub(crate) struct Pending {
    claim: Option<Claiming>,
    registration: Option<JoinHandle<Option<Arc<Life>>>>,
    /// After a claim failed: not before.
    retry_at: Option<Instant>,
    retry: Backoff,
    retry_log: LogPace,
    /// Whether any claim succeeds.
    claiming: Failing,
    /// How many are claimed at once after the store refused a claim.
    at_most: Option<usize>,
    /// Of executions that the store refuses to have claimed.
    aside_log: LogPace,
    /// Of dispatches that only a newer worker can read.
    newer_log: LogPace,
    /// Of messages that cannot be used.
    poison_log: LogPace,
    /// When everything of a life that is over must be gone.
    alarm_at: Option<Instant>,
    /// Ended by us; its lease is still kept.
    killed: Option<Arc<Life>>,
    /// When to look at what time alone changes.
    look_at: Option<Instant>,
    /// The bus was closed below us.
    bus_closed: bool,
}

/// How far the worker is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// Takes what comes.
    Serving,
    /// Takes nothing more; what runs may go on until then.
    Draining(Instant),
    /// What ran was killed and must be gone by then.
    Killing(Instant),
}

/// What the loop reacts to.
enum Event {
    Shutdown,
    /// The time of the phase is over.
    Deadline,
    LifeOver,
    Registered(Option<Arc<Life>>),
    /// What a lost life left behind is due to be gone.
    Alarm,
    Finished(Finished),
    Claimed(Claiming, Result<Vec<Claim>, StoreError>),
    Cancel(Option<Delivery>),
    Requested(Option<Delivery>),
    /// A failed claim may be tried again.
    Retry,
    /// Completions were confirmed: there may be room to claim.
    Room,
    /// A run could not be started, by no fault of its own.
    CannotStart,
    CanStart(Backoff),
    Subscribed(Result<Subscriber, WorkerError>),
    /// Time has passed.
    Look,
}

impl Phase {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Serving => None,
            Self::Draining(until) | Self::Killing(until) => Some(until),
        }
    }
}

impl Service {
    /// Runs until it is asked to stop and what it ran is over.
    pub(crate) async fn run(mut self) -> Result<(), WorkerError> {
        while self.step().await {}
        self.finish().await
    }

    /// Starts a claim where one is due, takes the next event and does what follows from it.
    /// `false` when nothing is left to do.
    async fn step(&mut self) -> bool {
        self.subscribe_again();
        self.start_claim();
        self.tell_trouble();
        self.options.progress.rest();
        let event = self.event().await;
        self.options.progress.stamp();
        match event {
            Event::Shutdown => self.begin_to_drain(),
            Event::Deadline => return self.phase_is_over(),
            Event::LifeOver => self.life_is_over(),
            Event::Registered(life) => self.life = life,
            Event::Alarm => self.alarm(),
            Event::Finished(finished) => self.finished(finished),
            Event::Claimed(claiming, answer) => self.claimed(claiming, answer),
            Event::Cancel(delivery) => self.cancelled(delivery),
            Event::Requested(delivery) => self.requested(delivery),
            Event::Retry => self.pending.retry_at = None,
            Event::Room => {}
            Event::CannotStart => self.cannot_start(),
            Event::CanStart(backoff) => self.can_start(backoff),
            Event::Subscribed(subscribed) => self.subscribed(subscribed),
            Event::Look => self.look(),
        }
        self.counters.busy.set(self.runs.len());
        matches!(self.phase, Phase::Serving)
            || !self.runs.is_empty()
            || self.pending.claim.is_some()
    }

    /// The next event. Urgent things first: deliveries come last because everything else frees
    /// slots or ends runs. Every branch can be dropped without losing anything.
    async fn event(&mut self) -> Event {
        let serving = matches!(self.phase, Phase::Serving);
        let blocked = serving && self.inbox.is_waiting() && !self.outbox.has_room();
        let (pending, stuck) = (&mut self.pending, &mut self.stuck);
        let (is_stuck, gate) = (stuck.is_stuck(), self.runs.gate());
        let look_at = pending.look_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = self.shutdown.cancelled(), if serving => Event::Shutdown,
            () = over(self.life.as_deref()) => Event::LifeOver,
            () = until(self.phase.deadline()) => Event::Deadline,
            () = until(pending.alarm_at) => Event::Alarm,
            life = registered(&mut pending.registration) => Event::Registered(life),
            Some(finished) = self.runs.next(), if !self.runs.is_empty() => Event::Finished(finished),
            () = gate.closed(), if !is_stuck => Event::CannotStart,
            backoff = finished(&mut stuck.looking) => Event::CanStart(backoff),
            subscribed = finished(&mut stuck.subscribing) => Event::Subscribed(subscribed),
            (claiming, answer) = answered(&mut pending.claim) => Event::Claimed(claiming, answer),
            delivery = next(&mut self.cancels) => Event::Cancel(delivery),
            () = until(pending.retry_at) => Event::Retry,
            () = self.outbox.emptied(), if blocked => Event::Room,
            () = until(Some(look_at)) => Event::Look,
            delivery = next(&mut self.requested) => Event::Requested(delivery),
        }
    }

    fn finished(&mut self, finished: Finished) {
        if finished.is_given_back() {
            self.give_back(&finished.run);
        }
        match finished.into_completion() {
            Some(completion) => self.outbox.push(completion),
            None => self.counters.abandoned.add(1),
        }
    }

    fn requested(&mut self, delivery: Option<Delivery>) {
        let Some(delivery) = delivery else {
            return self.bus_is_closed();
        };
        self.accept(delivery);
        // All that is there already can be claimed together.
        while let Some(delivery) = self.requested.as_mut().and_then(Subscriber::try_next) {
            self.accept(delivery);
        }
    }

    fn accept(&mut self, delivery: Delivery) {
        match decode::<ExecutionRequested>(&delivery.body, self.options.max_message_bytes) {
            Ok((_, requests)) => {
                let runs = &self.runs;
                let arrival = self
                    .inbox
                    .accept(delivery.tag, requests, |key| runs.contains(key));
                self.counters.duplicates.add(arrival.duplicates);
                if arrival.done {
                    self.acknowledge(vec![delivery.tag]);
                }
            }
            Err(error) if error.is_newer() => {
                if self.pending.newer_log.is_due() {
                    let times = self.pending.newer_log.tries();
                    tracing::warn!(%error, times, "a dispatch waits for a newer worker");
                }
                self.shelf.try_put_back(delivery);
            }
            Err(error) => {
                let topic = Topic::Requested(self.options.pool.clone());
                self.refuse(topic, delivery, &error);
            }
        }
    }

    fn cancelled(&mut self, delivery: Option<Delivery>) {
        let Some(delivery) = delivery else {
            return self.bus_is_closed();
        };
        match decode::<ExecutionCancel>(&delivery.body, self.options.max_message_bytes) {
            Ok((_, cancels)) => {
                for cancel in cancels {
                    let key = (cancel.execution_id, cancel.attempt);
                    self.inbox.cancel(key);
                    self.runs.cancel(&key);
                }
                self.settle_cancel(&delivery);
            }
            Err(error) if error.is_newer() => {
                // Everybody has a copy, and its owner says it again while the attempt runs: by and
                // by to a newer worker. Here it can be of no use, and it is no garbage either.
                tracing::warn!(%error, "a cancel of a newer version is left to newer workers");
                self.settle_cancel(&delivery);
            }
            Err(error) => self.refuse(Topic::Cancel, delivery, &error),
        }
    }

    fn settle_cancel(&self, delivery: &Delivery) {
        if let Some(cancels) = &self.cancels {
            settle_later(cancels, vec![delivery.tag]);
        }
    }

    fn acknowledge(&self, done: Vec<DeliveryTag>) {
        if let Some(requested) = self.requested.as_ref().filter(|_| !done.is_empty()) {
            settle_later(requested, done);
        }
    }

    /// Puts a message that cannot be used among the dead letters, in a task of its own that
    /// tries until it can or the worker stops.
    fn refuse(&mut self, topic: Topic, delivery: Delivery, error: &DecodeError) {
        self.counters.dead_letters.add(1);
        let reason = error.to_string();
        if self.pending.poison_log.is_due() {
            let times = self.pending.poison_log.tries();
            tracing::warn!(%topic, reason, times, "a message goes to the dead letters");
        }
        let subscriber = if topic == Topic::Cancel {
            self.cancels.as_ref()
        } else {
            self.requested.as_ref()
        };
        let Some(settler) = subscriber.map(Subscriber::settler) else {
            return;
        };
        let (bus, shutdown) = (Arc::clone(&self.bus), self.shutdown.clone());
        tokio::spawn(async move {
            let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
            while let Err(error) =
                dead_letter(bus.as_ref(), &settler, &topic, &delivery, &reason).await
            {
                if log.is_due() {
                    let tries = log.tries();
                    tracing::warn!(%topic, %error, tries, "the dead letters cannot be reached");
                }
                if backoff.wait(&shutdown).await.is_err() {
                    return;
                }
            }
        });
    }

    /// The lease is lost. What runs under it is being killed already; a fresh life begins at
    /// once, with the slots that are free.
    fn life_is_over(&mut self) {
        self.counters.lease_lost.add(1);
        if let Some(life) = self.life.take() {
            self.runs.record_lost(life.worker());
        }
        let grace = self.options.lease_margin() + self.options.lease_grace;
        self.pending.alarm_at = Some(Instant::now() + grace);
        if matches!(self.phase, Phase::Serving) {
            let leases = Arc::clone(&self.leases);
            let registration = leases.register_again(self.shutdown.clone());
            self.pending.registration = Some(tokio::spawn(registration));
        }
    }

    /// From here on the slots of a lost life are given to others.
    fn alarm(&mut self) {
        self.pending.alarm_at = None;
        let overdue_count = self.runs.overdue();
        if overdue_count > 0 {
            tracing::error!(
                overdue_count,
                "runs of a lost lease could not be killed in time; they may overlap with their \
                 next attempts"
            );
        }
    }
}

/// Acknowledges in a task of its own: a slow broker must not keep the loop from killing.
fn settle_later(subscriber: &Subscriber, tags: Vec<DeliveryTag>) {
    let settler = subscriber.settler();
    tokio::spawn(async move { settler.ack(&tags).await });
}
