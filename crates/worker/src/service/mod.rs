//! The loop of a worker: take what is granted, run it, report.
//!
//! One task owns all of its state; what takes time (runs, publishing, renewing) happens in tasks
//! of their own and comes back as an [`Event`]. [`Service::step`] takes one event and does what
//! follows from it, without waiting for anything.

mod drain;
mod link;
mod reports;
mod stuck;
mod wait;

use std::sync::Arc;

use attune_bus::Bus;
use attune_dispatch::{Entries, Outcome};
use attune_runtime::{Backoff, LogPace};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::begun::{BegunMap, note_of};
use crate::counters::WorkerCounters;
use crate::error::WorkerError;
use crate::guard::Guard;
use crate::lease::{Leases, Life};
use crate::options::WorkerOptions;
use crate::outbox::Outbox;
use crate::runs::{Finished, Runs};
pub(crate) use link::{Held, Link, begin, say_hello};
pub(crate) use stuck::Stuck;
use wait::{Heard, finished, heard, over, until};

/// Everything that the loop owns.
pub(crate) struct Service {
    pub(crate) options: WorkerOptions,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) guard: Arc<Guard>,
    /// The caller's wish to stop, or our own.
    pub(crate) shutdown: CancellationToken,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) reporter: JoinHandle<()>,
    pub(crate) runs: Runs,
    /// From when on the milliseconds of the entries count.
    pub(crate) began: Instant,
    /// What the life holds, until it is settled.
    pub(crate) entries: Entries<Held>,
    /// What the life has begun, for whoever comes after it, if that is written down.
    pub(crate) begun: Option<BegunMap>,
    /// Where the life hears from owners; it ends with the life, or with the bus.
    pub(crate) link: Option<Link>,
    /// The life to which is granted; none while a fresh one is being registered.
    pub(crate) life: Option<Arc<Life>>,
    pub(crate) phase: Phase,
    pub(crate) pending: Pending,
    pub(crate) stuck: Stuck,
    /// What keeps it from its work, for people.
    pub(crate) troubles: watch::Sender<Option<String>>,
}

/// A fresh life and its link; none when the worker stops.
type BegunAnew = Result<Option<(Arc<Life>, Link)>, WorkerError>;

/// What is under way elsewhere, and when to look again.
#[derive(Default)]
pub(crate) struct Pending {
    registration: Option<JoinHandle<BegunAnew>>,
    /// Publishes reports.
    reporting: Option<JoinHandle<()>>,
    /// When to look whether reports are due.
    tick_at: Option<Instant>,
    /// It is time to report what is due.
    has_ticked: bool,
    /// What is held has changed: a report may be due before long.
    has_changed: bool,
    /// Since when nothing is begun because what has ended is not settled.
    full_since: Option<Instant>,
    /// Of messages that cannot be used.
    unread_log: LogPace,
    /// Of completions that must be told again.
    retold_log: LogPace,
    /// When everything of a life that is over must be gone.
    alarm_at: Option<Instant>,
    /// Until then a worker that stops hears owners, whatever is left to do.
    linger_until: Option<Instant>,
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
    /// Nothing runs any more; what is left is to be settled by then.
    Settling(Instant),
}

/// What the loop reacts to.
enum Event {
    Shutdown,
    /// The time of the phase is over.
    Deadline,
    LifeOver,
    Registered(BegunAnew),
    /// What a lost life left behind is due to be gone.
    Alarm,
    Finished(Finished),
    Heard(Heard),
    /// Reports were published, or are lost.
    Reported,
    /// Reports may be due.
    Tick,
    /// Completions were settled: there may be room to begin something.
    Room,
    /// A run could not be started, by no fault of its own.
    CannotStart,
    CanStart(Backoff),
    /// Owners have had the time to hear that the worker stops.
    Lingered,
    /// Time has passed.
    Look,
}

impl Phase {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Serving => None,
            Self::Draining(until) | Self::Killing(until) | Self::Settling(until) => Some(until),
        }
    }
}

impl Service {
    /// Runs until it is asked to stop and what it ran is over.
    pub(crate) async fn run(mut self) -> Result<(), WorkerError> {
        while self.step().await {}
        self.finish().await
    }

    /// Begins and reports what is due, takes the next event and does what follows from it. `false`
    /// when nothing is left to do.
    async fn step(&mut self) -> bool {
        self.take_or_leave();
        self.begin();
        self.report();
        self.tell_trouble();
        self.count();
        self.options.progress.rest();
        let event = self.event().await;
        self.options.progress.stamp();
        match event {
            Event::Shutdown => self.begin_to_drain(),
            Event::Deadline => {
                if !self.phase_is_over() {
                    return false;
                }
            }
            Event::LifeOver => self.life_is_over(),
            Event::Registered(registered) => self.registered(registered),
            Event::Alarm => self.alarm(),
            Event::Finished(finished) => self.finished(finished),
            Event::Heard(Heard::Renewed) => self.link_is_new(),
            Event::Heard(Heard::Message(delivery)) => self.received(delivery),
            Event::Reported | Event::Room => {}
            Event::Tick => self.ticked(),
            Event::Lingered => self.pending.linger_until = None,
            Event::CannotStart => self.cannot_start(),
            Event::CanStart(backoff) => self.can_start(backoff),
            Event::Look => self.look(),
        }
        self.goes_on()
    }

    /// The next event. Urgent things first: messages come last because everything else frees slots
    /// or ends runs. Every branch can be dropped without losing anything.
    async fn event(&mut self) -> Event {
        let serving = matches!(self.phase, Phase::Serving);
        let is_full = self.pending.full_since.is_some();
        let (pending, stuck) = (&mut self.pending, &mut self.stuck);
        let (is_stuck, gate) = (stuck.is_stuck(), self.runs.gate());
        let look_at = pending.look_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = self.shutdown.cancelled(), if serving => Event::Shutdown,
            () = over(self.life.as_deref()) => Event::LifeOver,
            () = until(self.phase.deadline()) => Event::Deadline,
            () = until(pending.alarm_at) => Event::Alarm,
            registered = finished(&mut pending.registration) => Event::Registered(registered),
            Some(finished) = self.runs.next(), if !self.runs.is_empty() => Event::Finished(finished),
            () = gate.closed(), if !is_stuck => Event::CannotStart,
            backoff = finished(&mut stuck.looking) => Event::CanStart(backoff),
            () = finished(&mut pending.reporting) => Event::Reported,
            () = self.outbox.emptied(), if is_full => Event::Room,
            () = until(pending.linger_until) => Event::Lingered,
            () = until(Some(look_at)) => Event::Look,
            () = until(pending.tick_at) => Event::Tick,
            heard = heard(&mut self.link) => Event::Heard(heard),
        }
    }

    fn finished(&mut self, finished: Finished) {
        self.pending.has_changed = true;
        let key = finished.run.key;
        if let Some(why) = finished.given_back() {
            return self.entries.give_up(key, why);
        }
        match finished.into_completion() {
            // What is gone held no slot any more: its owner has decided what becomes of it.
            Some(completion) if self.entries.end(key) == Outcome::Kept => {
                self.counters.count_end(&completion.0);
                self.outbox.push(completion);
            }
            _ => self.counters.abandoned.add(1),
        }
    }

    fn count(&self) {
        self.counters.busy.set(self.runs.len());
        self.counters.waiting.set(self.entries.waiting());
        self.counters.kept.set(self.outbox.unsettled());
    }

    /// The lease is lost. What runs under it is being killed already, and everything else that it
    /// held is forgotten; a fresh life begins at once, with the slots that are free.
    fn life_is_over(&mut self) {
        self.counters.lease_lost.add(1);
        if let Some(life) = self.life.take() {
            self.runs.record_lost(life.worker());
        }
        self.link = None;
        self.begun = None;
        self.entries = Entries::new(self.options.slots);
        self.outbox.let_go();
        let grace = self.options.lease_margin() + self.options.lease_grace;
        self.pending.alarm_at = Some(Instant::now() + grace);
        if matches!(self.phase, Phase::Serving) {
            let (leases, bus) = (Arc::clone(&self.leases), Arc::clone(&self.bus));
            let (pool, shutdown) = (self.options.pool.clone(), self.shutdown.clone());
            let registration = link::begin_anew(leases, bus, pool, shutdown);
            self.pending.registration = Some(tokio::spawn(registration));
        }
    }

    fn registered(&mut self, registered: BegunAnew) {
        match registered {
            Ok(Some((life, link))) => {
                // Whether it takes anything may have changed since its row was written.
                life.hurry();
                self.begun = note_of(&self.options, &self.guard, &life);
                (self.life, self.link) = (Some(life), Some(link));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "the worker cannot subscribe again; it stops");
                self.bus_is_closed();
            }
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
