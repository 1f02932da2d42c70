//! A worker: leases, takes what it is granted, runs, reports. What it runs physically is the oracle's business;
//! a watchdog kills it when the lease can no longer be trusted, even while the worker itself
//! stands still.

mod leaving;
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attune_core::{ActionId, Status, WorkerId};
use attune_dispatch::{Entries, Granted, Outcome, Section};
use attune_executor::partition::Completion;

use self::leaving::Leaving;
use self::link::reported;
use crate::bus::{Body, Name, Party};
use crate::former::Former;
use crate::oracle::Key;
use crate::plan::{MARGIN, Plant, Time, WORKER_TTL, outcome};
use crate::trace::Note;
use crate::world::{Ev, StoreCall, StoreReply, Word, World, completion};

/// How often a worker looks whether it has something to report.
const REPORTS_EVERY: Time = 20;
/// After how long an end that is not settled is told again, and goes to where it outlives the broker.
const RETELL_AFTER: Time = 2_000;

#[derive(Debug, Clone, Copy)]
struct Life {
    id: WorkerId,
    trusted_until: Time,
}

/// What a worker is granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) action: ActionId,
    pub(crate) slots: Option<u32>,
}

impl Granted for Grant {
    fn key(&self) -> Key {
        self.key
    }

    fn action_id(&self) -> ActionId {
        self.action
    }

    fn slots(&self) -> Option<u32> {
        self.slots
    }
}

/// An end that is not settled.
#[derive(Debug, Clone, Copy)]
struct Ended {
    action: ActionId,
    status: Status,
    /// Since when it is kept, and when it was told last.
    since: Time,
    told: Time,
    /// On which connection it went to where it outlives the broker.
    lasts: Option<u64>,
}

impl Ended {
    fn new(action: ActionId, status: Status, now: Time) -> Self {
        Self {
            action,
            status,
            since: now,
            told: now,
            lasts: None,
        }
    }
}

/// One worker process.
pub(crate) struct Worker {
    process: u32,
    alive: bool,
    pub(crate) paused_until: Time,
    slots: usize,
    life: Option<Life>,
    /// The id under which a lease is being asked for.
    asking: Option<WorkerId>,
    sent: Time,
    lease_call: u64,
    calls: u64,
    /// The number of its connection: what was on its way through an earlier one is lost.
    link: u64,
    /// It has no queue: its connection was closed, and the next is not open yet.
    is_cut: bool,
    entries: Entries<Grant>,
    runs: BTreeMap<Key, ActionId>,
    /// What is written down as begun in this life.
    pub(crate) begun: BTreeSet<Key>,
    /// Lives before this one of which the store is to be told.
    pub(crate) formers: Vec<Former>,
    ended: BTreeMap<Key, Ended>,
    /// A look whether there is something to report is due.
    looks: bool,
    /// It stops in order.
    leaving: Option<Leaving>,
}

impl Worker {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            process: 0,
            alive: false,
            paused_until: 0,
            slots,
            life: None,
            asking: None,
            sent: 0,
            lease_call: 0,
            calls: 0,
            link: 0,
            is_cut: false,
            entries: Entries::new(slots),
            runs: BTreeMap::new(),
            begun: BTreeSet::new(),
            formers: Vec::new(),
            ended: BTreeMap::new(),
            looks: false,
            leaving: None,
        }
    }

    pub(crate) fn is_in(&self, process: u32) -> bool {
        self.alive && self.process == process
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    pub(crate) fn life(&self) -> u32 {
        self.process
    }

    /// The life in which something may begin or be reported now.
    pub(crate) fn living(&self, now: Time) -> Option<WorkerId> {
        self.life
            .filter(|life| self.alive && now < life.trusted_until)
            .map(|life| life.id)
    }

    /// Whether messages to this life find a queue.
    pub(crate) fn receives(&self, life: WorkerId) -> bool {
        self.alive && !self.is_cut && self.life.is_some_and(|own| own.id == life)
    }

    /// Whether it is the one that has or asks for the lease of a life.
    pub(crate) fn asks_for(&self, life: WorkerId) -> bool {
        self.asking == Some(life) || self.life.is_some_and(|own| own.id == life)
    }

    /// The life that it has, whether or not it is trusted.
    pub(crate) fn life_id(&self) -> Option<WorkerId> {
        self.life.map(|life| life.id)
    }

    /// Whether it takes nothing more.
    pub(crate) fn drains(&self) -> bool {
        self.leaving.is_some()
    }

    /// The number of a store call that is about to be made.
    pub(crate) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// The number of its connection.
    pub(crate) fn link(&self) -> u64 {
        self.link
    }
}

impl World {
    pub(crate) fn worker_party(&self, w: usize) -> Party {
        Party::Worker(w, self.workers[w].process)
    }

    /// A fresh process.
    pub(crate) fn start_worker(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        let (process, slots) = (worker.process + 1, worker.slots);
        let formers = std::mem::take(&mut worker.formers);
        *worker = Worker {
            process,
            alive: true,
            formers,
            ..Worker::new(slots)
        };
        let party = self.worker_party(w);
        self.note(Note::Started(party));
        self.soon(Ev::To(party, Word::Lease));
        self.soon(Ev::To(party, Word::Formers));
    }

    /// The process dies with everything it runs.
    pub(crate) fn crash_worker(&mut self, w: usize) {
        let party = self.worker_party(w);
        self.note(Note::Stopped(party));
        self.kill_runs(w);
        self.leave_former(w);
        self.workers[w].alive = false;
        self.close_all(party);
    }

    fn kill_runs(&mut self, w: usize) {
        let party = self.worker_party(w);
        let slots = self.workers[w].slots;
        self.workers[w].entries = Entries::new(slots);
        self.workers[w].ended.clear();
        for (key, _) in std::mem::take(&mut self.workers[w].runs) {
            self.oracle.stop(key);
            self.note(Note::RunKilled(party, key.0, key.1));
        }
    }

    pub(crate) fn tell_worker(&mut self, w: usize, word: Word) {
        match word {
            Word::Reply(number, reply) => {
                let worker = &mut self.workers[w];
                if number == worker.lease_call {
                    worker.lease_call = 0;
                    match worker.leaving {
                        Some(Leaving::Retires { .. }) => {
                            self.retire_answer(w, matches!(reply, StoreReply::WorkerRetired));
                        }
                        _ => self.lease_answer(w, &reply),
                    }
                } else {
                    self.former_is_told(w, &reply);
                }
            }
            Word::Lease => self.renew(w),
            Word::Formers => self.tell_of_formers(w),
            Word::Cut => self.cut_worker(w),
            Word::Stops(down) => self.leave(w, down),
            Word::Hangs => self.hang_up(w),
            Word::Listens(link) => self.reconnect_worker(w, link),
            Word::Sections(life, link, sections) => self.take_sections(w, life, link, &sections),
            Word::Reports => {
                self.workers[w].looks = false;
                self.send_reports(w);
            }
            Word::Retell => self.retell(w),
            Word::Report(key, action, id, status) => self.report(w, key, action, id, status),
            _ => {}
        }
        self.begin_runs(w);
        self.look_for_reports(w);
    }

    fn renew(&mut self, w: usize) {
        if matches!(self.workers[w].leaving, Some(Leaving::Retires { .. })) {
            return;
        }
        let party = self.worker_party(w);
        self.push(self.now + WORKER_TTL / 3, Ev::To(party, Word::Lease));
        let fresh = WorkerId(self.fresh());
        let worker = &mut self.workers[w];
        let id = worker
            .life
            .map(|life| life.id)
            .or(worker.asking)
            .unwrap_or(fresh);
        worker.asking = Some(id);
        worker.sent = self.now;
        let number = worker.next_call();
        worker.lease_call = number;
        self.call(party, number, StoreCall::RenewWorker(id));
    }

    fn lease_answer(&mut self, w: usize, reply: &StoreReply) {
        let now = self.now;
        let worker = &mut self.workers[w];
        let Some(id) = worker.asking.take() else {
            return;
        };
        let trusted_until = worker.sent + WORKER_TTL - MARGIN;
        match reply {
            StoreReply::WorkerRenewed(true) if now < trusted_until => {
                let is_new = worker.life.is_none();
                worker.life = Some(Life { id, trusted_until });
                self.push(trusted_until, Ev::LifeEnds(w, id));
                if is_new && !self.workers[w].is_cut {
                    self.say_hello(id);
                }
            }
            // The row may have been made: the same id is asked for again.
            StoreReply::Failed => worker.asking = Some(id),
            _ => {}
        }
    }

    /// Nothing of a life that is not trusted any more goes on.
    pub(crate) fn life_ends(&mut self, w: usize, id: WorkerId) {
        let over = self.workers[w]
            .life
            .is_some_and(|life| life.id == id && self.now >= life.trusted_until);
        if !over {
            return;
        }
        let party = self.worker_party(w);
        self.note(Note::LifeOver(party));
        self.entrust_ends(w, id);
        self.kill_runs(w);
        self.workers[w].begun.clear();
        self.workers[w].life = None;
        self.workers[w].asking = None;
        self.push(self.now, Ev::To(party, Word::Lease));
    }

    fn begin_run(&mut self, w: usize, key: Key, action: ActionId, id: WorkerId) {
        let party = self.worker_party(w);
        let shape = usize::try_from(action.0 - 1).ok();
        let shape = shape.and_then(|n| self.plan.actions.get(n));
        let (most, fails) = shape.map_or((10, None), |shape| (shape.run_ms, shape.fails));
        let ends = self.now + self.rng.between(1, most);
        let status = outcome(&mut self.rng, fails);
        if !self.has(Plant::MapAfterStart) {
            self.workers[w].begun.insert(key);
        }
        self.note(Note::Taken(key.0, key.1));
        self.note(Note::RunStarted(party, key.0, key.1));
        let store = &self.store;
        self.oracle.start(self.now, store, key, (action, id));
        self.workers[w].runs.insert(key, action);
        self.push(ends, Ev::RunEnds(w, key, id, status));
    }

    pub(crate) fn run_ends(&mut self, w: usize, key: Key, id: WorkerId, status: Status) {
        let worker = &mut self.workers[w];
        if !worker.alive || worker.life.is_none_or(|life| life.id != id) {
            return;
        }
        let Some(action) = worker.runs.remove(&key) else {
            return;
        };
        if self.has(Plant::MapAfterStart) {
            self.workers[w].begun.insert(key);
        }
        let party = self.worker_party(w);
        self.note(Note::RunEnded(party, key.0, key.1, status));
        self.oracle.stop(key);
        let at = self.now + self.rng.between(0, 3);
        self.push(at, Ev::To(party, Word::Report(key, action, id, status)));
    }

    /// Says how a run has ended, and says it again until it is settled.
    fn report(&mut self, w: usize, key: Key, action: ActionId, id: WorkerId, status: Status) {
        if self.workers[w].living(self.now) != Some(id)
            || self.workers[w].entries.end(key) == Outcome::Gone
        {
            return;
        }
        let ended = Ended::new(action, status, self.now);
        self.workers[w].ended.insert(key, ended);
        self.tell_end(w, key, ended, id);
    }

    /// While it is young it goes to where it ends with the broker, and so it does after it went to where
    /// it outlives it, once on each connection.
    fn tell_end(&mut self, w: usize, key: Key, ended: Ended, id: WorkerId) {
        let is_young = self.now - ended.since < RETELL_AFTER;
        if !is_young && ended.lasts != Some(self.workers[w].link) {
            return self.entrust_end(w, key, ended, id);
        }
        let completed = self.completed(w, key, ended, id);
        if !self.rng.chance(self.noise.lost) {
            self.publish_end(Name::Kept, completed);
        }
        if self.has(Plant::ForgetConfirmed) {
            self.workers[w].ended.remove(&key);
        }
    }

    /// Nobody keeps the ends any longer that are not settled.
    fn entrust_ends(&mut self, w: usize, id: WorkerId) {
        for (key, ended) in self.unsettled_ends(w) {
            if ended.lasts.is_none() {
                self.entrust_end(w, key, ended, id);
            }
        }
    }

    fn entrust_end(&mut self, w: usize, key: Key, ended: Ended, id: WorkerId) {
        let completed = self.completed(w, key, ended, id);
        let link = self.workers[w].link;
        if let Some(ended) = self.workers[w].ended.get_mut(&key) {
            ended.lasts = Some(link);
        }
        self.publish_end(Name::Completed, completed);
    }

    /// What is told of an end, now.
    fn completed(&mut self, w: usize, key: Key, ended: Ended, id: WorkerId) -> Arc<Completion> {
        let Ended { action, status, .. } = ended;
        let result = format!("\"what {} said of attempt {} of {}\"", id.0, key.1, key.0);
        let completed = Arc::new(Completion {
            user: self.user_of(w),
            ..completion(key, action, (status, id), &result)
        });
        self.reports.add(key, status, result);
        self.completions.push(Arc::clone(&completed));
        if let Some(ended) = self.workers[w].ended.get_mut(&key) {
            ended.told = self.now;
        }
        let party = self.worker_party(w);
        self.push(self.now + RETELL_AFTER, Ev::To(party, Word::Retell));
        completed
    }

    fn publish_end(&mut self, name: Name, completed: Arc<Completion>) {
        let body = Body::Completed(completed);
        if self.rng.chance(self.noise.late) {
            let at = self.now + self.rng.between(1_000, 7_000);
            self.push(at, Ev::Arrive(name, body, None));
        } else {
            self.publish(name, &body);
        }
    }

    fn unsettled_ends(&mut self, w: usize) -> Vec<(Key, Ended)> {
        let worker = &mut self.workers[w];
        let entries = &worker.entries;
        worker.ended.retain(|key, _| entries.is_unsettled(key));
        let ended = worker.ended.iter();
        ended.map(|(key, ended)| (*key, *ended)).collect()
    }

    /// Tells the ends again that are not settled, of those that were told long ago.
    fn retell(&mut self, w: usize) {
        let Some(id) = self.workers[w].living(self.now) else {
            return;
        };
        for (key, ended) in self.unsettled_ends(w) {
            if ended.told + RETELL_AFTER > self.now {
                continue;
            }
            self.seen.retold += 1;
            self.tell_end(w, key, ended, id);
        }
    }

    /// What owners say to a life of this worker.
    fn take_sections(&mut self, w: usize, life: WorkerId, link: u64, sections: &[Section<Grant>]) {
        if self.workers[w].living(self.now) != Some(life) || self.workers[w].link != link {
            return;
        }
        for section in sections {
            let taken = self.workers[w].entries.take(self.now, section.clone());
            if self.workers[w].drains() {
                self.workers[w].entries.give_back_all("its worker stops");
            }
            if !taken.taken {
                self.seen.duplicates_dropped += 1;
            }
            for key in taken.kill {
                self.kill_run(w, key);
            }
            for key in taken.cancel {
                let at = self.now + self.rng.between(0, 5);
                self.push(at, Ev::RunEnds(w, key, life, Status::Cancelled));
            }
            for grant in taken.cancelled {
                let ended = Ended::new(grant.action, Status::Cancelled, self.now);
                self.workers[w].ended.insert(grant.key, ended);
                self.tell_end(w, grant.key, ended, life);
            }
            for key in taken.again {
                let ended = self.workers[w].ended.get(&key).copied();
                // An owner that is behind asks for what it has received and not read.
                let is_due = |ended: &Ended| (self.now - ended.told) * 4 >= self.now - ended.since;
                if let Some(ended) = ended.filter(is_due) {
                    self.tell_end(w, key, ended, life);
                }
            }
        }
    }

    fn kill_run(&mut self, w: usize, key: Key) {
        if self.workers[w].runs.remove(&key).is_some() {
            self.oracle.stop(key);
            let party = self.worker_party(w);
            self.note(Note::RunKilled(party, key.0, key.1));
        }
    }

    /// Begins as many as there are free slots.
    fn begin_runs(&mut self, w: usize) {
        while let Some(id) = self.workers[w].living(self.now) {
            if self.workers[w].drains() {
                return;
            }
            let Some(grant) = self.workers[w].entries.begin_next(self.now) else {
                return;
            };
            self.begin_run(w, grant.key, grant.action, id);
        }
    }

    /// Sees to it that reports are sent while there may be any.
    fn look_for_reports(&mut self, w: usize) {
        let party = self.worker_party(w);
        let worker = &mut self.workers[w];
        if !worker.alive || worker.looks || !worker.entries.awaits() {
            return;
        }
        worker.looks = true;
        self.push(self.now + REPORTS_EVERY, Ev::To(party, Word::Reports));
    }

    fn send_reports(&mut self, w: usize) {
        let Some(id) = self.workers[w].living(self.now) else {
            return;
        };
        self.workers[w].entries.give_back_late(self.now, 0);
        let reports = self.workers[w].entries.reports(self.now);
        for report in reports {
            let to = self.owner_of(report.owner);
            let to = to.filter(|owner| self.owners[*owner].is_alive());
            if let Some(owner) = to.filter(|owner| self.has_bus(*owner))
                && !self.rng.chance(self.noise.lost)
            {
                let party = self.owner_party(owner);
                let user = self.user_of(w);
                self.soon(Ev::To(party, Word::Reported(reported(id, user, report))));
            }
        }
    }
}
