//! A worker: leases, claims, runs, reports. What it runs physically is the oracle's business;
//! a watchdog kills it when the lease can no longer be trusted, even while the worker itself
//! stands still.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::store::Claim;
use attune_core::{ActionId, Status, WorkerId};

use crate::bus::{Body, Delivery, Name, Party};
use crate::oracle::Key;
use crate::plan::{MARGIN, Plant, Time, WORKER_TTL, outcome};
use crate::trace::Note;
use crate::world::{Ev, StoreCall, StoreReply, Word, World, completion};

/// How many messages a worker holds unacknowledged.
const PREFETCH: usize = 4;

#[derive(Debug, Clone, Copy)]
struct Life {
    id: WorkerId,
    trusted_until: Time,
}

/// A request that waits to be claimed: which, of which action, in which delivery.
type Wanted = (Key, ActionId, u64);

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
    claim_call: u64,
    calls: u64,
    subscription: u64,
    waiting: VecDeque<Wanted>,
    claiming: Option<(WorkerId, Vec<Wanted>)>,
    runs: BTreeMap<Key, ActionId>,
    claimed: BTreeSet<Key>,
    cancelled: BTreeSet<Key>,
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
            claim_call: 0,
            calls: 0,
            subscription: 0,
            waiting: VecDeque::new(),
            claiming: None,
            runs: BTreeMap::new(),
            claimed: BTreeSet::new(),
            cancelled: BTreeSet::new(),
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
    fn living(&self, now: Time) -> Option<WorkerId> {
        self.life
            .filter(|life| now < life.trusted_until)
            .map(|life| life.id)
    }
}

impl World {
    fn worker_party(&self, w: usize) -> Party {
        Party::Worker(w, self.workers[w].process)
    }

    /// A fresh process.
    pub(crate) fn start_worker(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        let (process, slots) = (worker.process + 1, worker.slots);
        *worker = Worker {
            process,
            alive: true,
            ..Worker::new(slots)
        };
        let party = self.worker_party(w);
        self.note(Note::Started(party));
        self.soon(Ev::To(party, Word::Lease));
    }

    /// The process dies with everything it runs.
    pub(crate) fn crash_worker(&mut self, w: usize) {
        let party = self.worker_party(w);
        self.note(Note::Stopped(party));
        self.kill_runs(w);
        self.workers[w].alive = false;
        self.close_all(party);
    }

    fn kill_runs(&mut self, w: usize) {
        let party = self.worker_party(w);
        for (key, _) in std::mem::take(&mut self.workers[w].runs) {
            self.oracle.stop(key);
            self.note(Note::RunKilled(party, key.0, key.1));
        }
    }

    pub(crate) fn tell_worker(&mut self, w: usize, word: Word) {
        match word {
            Word::Deliver(delivery) => self.request(w, &delivery),
            Word::Reply(number, reply) => {
                let worker = &mut self.workers[w];
                if number == worker.lease_call {
                    worker.lease_call = 0;
                    self.lease_answer(w, &reply);
                } else if number == worker.claim_call {
                    worker.claim_call = 0;
                    self.claim_answer(w, reply);
                }
            }
            Word::Lease => self.renew(w),
            Word::Cut => self.listen(w),
            Word::CancelRun(key) => self.cancel_run(w, key),
            Word::Report(key, action, id, status) => self.report(w, key, action, id, status),
            _ => {}
        }
        self.claim(w);
    }

    fn renew(&mut self, w: usize) {
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
        worker.calls += 1;
        worker.lease_call = worker.calls;
        let number = worker.calls;
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
                let is_first = worker.subscription == 0;
                worker.life = Some(Life { id, trusted_until });
                self.push(trusted_until, Ev::LifeEnds(w, id));
                if is_first {
                    self.listen(w);
                }
            }
            // The row may have been made: the same id is asked for again.
            StoreReply::Failed => worker.asking = Some(id),
            _ => {}
        }
    }

    fn listen(&mut self, w: usize) {
        let party = self.worker_party(w);
        self.close(self.workers[w].subscription);
        let name = Name::Requested(self.plan.pool_of(w));
        self.workers[w].subscription = self.bus.subscribe(name, party, PREFETCH);
        self.pump(name);
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
        self.kill_runs(w);
        self.workers[w].life = None;
        self.workers[w].asking = None;
        self.push(self.now, Ev::To(party, Word::Lease));
    }

    fn request(&mut self, w: usize, delivery: &Delivery) {
        let Body::Request(id, attempt, action) = delivery.body else {
            return;
        };
        let key = (id, attempt);
        if self.has(Plant::NoClaim) {
            self.push(self.now, Ev::Ack(delivery.subscription, delivery.place));
            if let Some(life) = self.workers[w].living(self.now) {
                self.begin_run(w, key, action, life);
            }
            return;
        }
        let worker = &mut self.workers[w];
        if worker.claimed.contains(&key) {
            self.seen.duplicates_dropped += 1;
            self.push(self.now, Ev::Ack(delivery.subscription, delivery.place));
        } else {
            worker.waiting.push_back((key, action, delivery.place));
        }
    }

    /// Claims as many as there are free slots, one call at a time.
    fn claim(&mut self, w: usize) {
        let party = self.worker_party(w);
        let now = self.now;
        let worker = &mut self.workers[w];
        let Some(id) = worker.living(now).filter(|_| worker.claiming.is_none()) else {
            return;
        };
        let free = worker.slots.saturating_sub(worker.runs.len());
        let count = free.min(worker.waiting.len());
        if count == 0 {
            return;
        }
        let wanted: Vec<Wanted> = worker.waiting.drain(..count).collect();
        let keys = wanted.iter().map(|(key, ..)| *key).collect();
        worker.claiming = Some((id, wanted));
        worker.calls += 1;
        worker.claim_call = worker.calls;
        let number = worker.calls;
        self.call(party, number, StoreCall::Claim(id, keys));
    }

    fn claim_answer(&mut self, w: usize, reply: StoreReply) {
        let now = self.now;
        let worker = &mut self.workers[w];
        let Some((id, wanted)) = worker.claiming.take() else {
            return;
        };
        let StoreReply::Claimed(won) = reply else {
            // Whether it was stored is unknown; the same worker may claim again, soon.
            for one in wanted.into_iter().rev() {
                worker.waiting.push_front(one);
            }
            return;
        };
        let living = worker.living(now) == Some(id);
        let subscription = worker.subscription;
        for (key, action, place) in wanted {
            let claim = won.iter().find(|c| (c.execution_id, c.attempt) == key);
            let worker = &mut self.workers[w];
            match claim {
                Some(Claim {
                    cancel_requested, ..
                }) => {
                    let fresh = worker.claimed.insert(key);
                    let cancelled = *cancel_requested || worker.cancelled.contains(&key);
                    if living && fresh && cancelled {
                        self.report(w, key, action, id, Status::Cancelled);
                    } else if living && fresh {
                        self.begin_run(w, key, action, id);
                    }
                }
                None if !living => {
                    worker.waiting.push_back((key, action, place));
                    continue;
                }
                None => self.seen.duplicates_dropped += 1,
            }
            self.soon(Ev::Ack(subscription, place));
        }
    }

    fn begin_run(&mut self, w: usize, key: Key, action: ActionId, id: WorkerId) {
        let party = self.worker_party(w);
        let shape = usize::try_from(action.0 - 1).ok();
        let shape = shape.and_then(|n| self.plan.actions.get(n));
        let (most, fails) = shape.map_or((10, None), |shape| (shape.run_ms, shape.fails));
        let ends = self.now + self.rng.between(1, most);
        let status = outcome(&mut self.rng, fails);
        self.note(Note::RunStarted(party, key.0, key.1));
        self.oracle.start(self.now, key, action, id);
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
        let party = self.worker_party(w);
        self.note(Note::RunEnded(party, key.0, key.1, status));
        self.oracle.stop(key);
        let at = self.now + self.rng.between(0, 3);
        self.push(at, Ev::To(party, Word::Report(key, action, id, status)));
    }

    fn report(&mut self, w: usize, key: Key, action: ActionId, id: WorkerId, status: Status) {
        if self.workers[w].living(self.now) != Some(id) {
            return;
        }
        let result = format!("\"what {} said of attempt {} of {}\"", id.0, key.1, key.0);
        let completed = Arc::new(completion(key, action, status, &result));
        self.reports.add(key, status, result);
        self.completions.push(Arc::clone(&completed));
        let name = Name::Control(key.0.partition().0);
        let body = Body::Completed(completed);
        if self.rng.chance(self.noise.late) {
            let at = self.now + self.rng.between(1_000, 7_000);
            self.push(at, Ev::Arrive(name, body, None));
        } else {
            self.publish(name, &body);
        }
    }

    fn cancel_run(&mut self, w: usize, key: Key) {
        let worker = &mut self.workers[w];
        worker.cancelled.insert(key);
        if worker.runs.contains_key(&key)
            && let Some(life) = worker.life
        {
            let at = self.now + self.rng.between(0, 5);
            self.push(at, Ev::RunEnds(w, key, life.id, Status::Cancelled));
        }
    }
}
