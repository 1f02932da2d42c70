//! Watches the leases of the workers, and ends those that are over.
//!
//! A worker renews by a clock of its own and kills what it runs before its lease is over by that
//! clock. So whoever watches the lease for as long, and a grace, without seeing it move knows that
//! nothing runs under it any more, whatever the store's clock says. It then ends the lease in the
//! store as it was seen; a renewal that comes first wins. Only from then on slots are taken back.
//!
//! Where it is stored that the process of a worker is gone with everything that it ran, nobody waits
//! for that. What never began is known where it was stored with the end, as it is of a worker that stops in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attune_core::{Bug, WorkerId};

use attune_dispatch::{Account, Key, Life};

use super::watch::Watch;
use super::{Call, Owner, Purpose, Reply, Stage};
use crate::queue::Millis;
use crate::stored::{StoredSlot, WorkerEnd};

/// How often the workers are looked at, in milliseconds. What is known of a lease begins with the
/// first look after its last renewal.
const PERIOD: Millis = 500;
/// How long after the end of the grace time it looks; a lease that is renewed at the last moment
/// is looked at once more instead of all the time.
const AFTER_GRACE: Millis = 20;

/// How long what a worker has said may be on its way after the end of its process, in milliseconds.
const SAID: Millis = 1_000;

/// How many lives may say that they have come before a look shows them; of more the renewals tell.
const MAX_GREETED: usize = 1_024;

/// Which grants of a worker have begun; `None` when nobody knows.
type Begun = Option<Arc<BTreeSet<Key>>>;

/// What was seen of the workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    asked: Option<Millis>,
    /// Leases are being ended: one call at a time, however long the store takes.
    is_ending: bool,
    at: Millis,
    /// Somebody has come since the look that is under way was asked for.
    comes_again: bool,
    /// Whose renewals go on; the end of a process is a move as well.
    watch: Watch<WorkerId, (i64, bool)>,
    /// The renewals of each, as they were seen last.
    renewals: BTreeMap<WorkerId, i64>,
    /// Those whose leases are over, for as long as the grace takes, and what has begun there.
    lost: BTreeMap<WorkerId, Begun>,
    /// Who has said that it is there, until a look shows it.
    greeted: BTreeSet<WorkerId>,
    /// Those who hold a slot, are over and were in no look, and since when that is known: they have
    /// come and gone since the last look, or their rows are no longer shown.
    unseen: BTreeMap<WorkerId, Millis>,
}

impl Workers {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.asked.is_none().then_some(self.at)
    }

    /// The next look comes at once.
    pub(super) fn hurry(&mut self, now: Millis) {
        self.at = self.at.min(now);
        // One that is under way may not show who has come.
        self.comes_again = self.asked.is_some();
    }

    /// Leaves those slots alone whose workers have ended a moment ago: what they have said may be
    /// on its way.
    pub(super) fn judge(&mut self, now: Millis, slots: &mut [StoredSlot]) {
        let before = std::mem::take(&mut self.unseen);
        for slot in slots.iter_mut().filter(|slot| slot.worker_over) {
            let Some(worker) = slot.worker else {
                slot.worker_over = false;
                continue;
            };
            if self.watch.still_for(&worker).is_none() {
                let since = before.get(&worker).copied().unwrap_or(now);
                self.unseen.insert(worker, since);
            }
            let lost = self.lost.get(&worker);
            slot.worker_over = lost.is_some() || self.is_gone(worker);
            let begun = lost.and_then(Option::as_ref);
            slot.never_begun = begun.is_some_and(|begun| !begun.contains(&(slot.id, slot.attempt)));
        }
    }

    /// Whether a look shows nothing of a worker that was asked for after its lease was known to be
    /// over: nobody has anything to say for it any more.
    fn is_gone(&self, worker: WorkerId) -> bool {
        let looked_at = self.watch.looked_at();
        let since = self.unseen.get(&worker);
        self.watch.still_for(&worker).is_none()
            && since.is_some_and(|since| looked_at.is_some_and(|at| at > *since))
    }
}

impl Owner {
    /// Asks how the leases of the workers stand, when it is time.
    pub(super) fn go_on_watching(&mut self, now: Millis) {
        if self.workers.asked.is_none() && now >= self.workers.at && !self.has_ended() {
            self.workers.asked = Some(now);
            self.workers.at = now + PERIOD;
            self.call(Purpose::Workers, Call::WorkerEnds);
        }
    }

    /// The store has said how they stand.
    pub(super) fn watched(&mut self, now: Millis, reply: Reply) {
        match reply {
            Reply::WorkerEnds(ends) => {
                if let Some(asked) = self.workers.asked.take() {
                    self.look_at_workers((asked, now), &ends);
                }
            }
            _ => self.workers.asked = None,
        }
    }

    /// The store has ended some leases, or has not.
    pub(super) fn ended_workers(&mut self, now: Millis, reply: Reply) {
        self.workers.is_ending = false;
        if let Reply::EndedWorkers(over) = reply {
            for worker in over {
                self.workers.lost.entry(worker).or_default();
            }
            self.sweep.hurry(now);
        }
    }

    /// Lives have said that they are there: from now on messages reach them.
    pub(super) fn greeted(&mut self, now: Millis, workers: &[WorkerId]) {
        for worker in workers {
            self.links.greets(*worker);
            if self.workers.greeted.len() < MAX_GREETED {
                self.workers.greeted.insert(*worker);
            }
        }
        self.workers.hurry(now);
    }

    fn look_at_workers(&mut self, (asked, now): (Millis, Millis), ends: &[WorkerEnd]) {
        let grace = self.options.reconcile.worker_grace;
        let watch = &mut self.workers.watch;
        let counters = ends
            .iter()
            .map(|end| (end.worker, (end.renewals, end.gone), 0));
        watch.look((asked, now), 2 * PERIOD, counters);
        let left = |end: &WorkerEnd| {
            let holds = match end.gone {
                true => SAID,
                false if Bug::OverEarly.is_planted() => (end.ttl + grace) / 4,
                false => end.ttl + grace,
            };
            holds - watch.still_for(&end.worker).unwrap_or(0)
        };
        let (over, alive): (Vec<&WorkerEnd>, Vec<&WorkerEnd>) =
            ends.iter().partition(|end| left(end) <= 0);
        let next = alive.iter().map(|end| left(end) + AFTER_GRACE).min();
        let next = next.map_or(self.workers.at, |wait| now + wait);
        self.workers.at = self.workers.at.min(next);

        let account = |end: &WorkerEnd| Account {
            pool: Arc::from(&*end.pool),
            user: end.user.as_deref().map(Arc::from),
        };
        let accounts = ends.iter().map(|end| (end.worker, account(end)));
        self.roster.lock().set_accounts(accounts);
        let lives = alive.iter().filter(|end| !end.ended);
        let lives = lives.map(|end| Life {
            worker: end.worker,
            pool: end.pool.clone(),
            slots: end.slots,
            draining: end.draining,
        });
        self.note_lives(ends, lives.collect());
        if std::mem::take(&mut self.workers.comes_again) {
            self.workers.at = now;
        } else {
            self.workers.greeted.clear();
        }

        let ended = over.iter().filter(|end| end.ended);
        let lost: BTreeMap<WorkerId, Begun> =
            ended.map(|end| (end.worker, end.begun.clone())).collect();
        let mut unseen = self.workers.unseen.keys();
        let has_gone = unseen.any(|worker| self.workers.is_gone(*worker));
        // They may hold slots: the comparison shall not wait for its time.
        let mut now_lost = lost.keys();
        if has_gone || !now_lost.all(|worker| self.workers.lost.contains_key(worker)) {
            self.sweep.hurry(now);
        }
        self.workers.lost = lost;
        let silent = over.iter().filter(|end| !end.ended);
        let silent: Vec<(WorkerId, i64)> = silent.map(|end| (end.worker, end.renewals)).collect();
        let is_empty = silent.is_empty();
        let call = Call::EndWorkers(silent);
        if is_empty {
            self.failing.over(call.name());
        } else if !self.workers.is_ending {
            self.workers.is_ending = true;
            self.call(Purpose::EndWorkers, call);
        }
    }

    /// Only who lives is granted anything. Whoever comes beside others, and who renews or says that it is there while
    /// messages to it came back, is asked whether they reach it: leases of which nobody receives anything cost nobody
    /// an attempt.
    fn note_lives(&mut self, ends: &[WorkerEnd], lives: Vec<Life>) {
        let renewals = ends.iter().map(|end| (end.worker, end.renewals));
        let renewals: BTreeMap<WorkerId, i64> = renewals.collect();
        let known = &self.workers.renewals;
        let greeted = &mut self.workers.greeted;
        let moves = |(worker, number): &(&WorkerId, &i64)| {
            greeted.remove(worker) || known.get(worker) != Some(number)
        };
        let moved = renewals.iter().filter(moves);
        let moved: Vec<WorkerId> = moved.map(|(worker, _)| *worker).collect();
        self.workers.renewals = renewals;
        let has_come = |life: &Life| !self.roster.lock().knows(life.worker);
        let has_anybody_come = lives.iter().any(has_come);
        self.roster.lock().set(lives);
        if has_anybody_come {
            for place in self.places.values_mut() {
                if let Stage::Serving(partition) = &mut place.stage {
                    partition.rest_no_more();
                }
            }
        }
        let here = self.places.keys().copied().find(|id| self.is_open(*id));
        for worker in moved {
            self.links.is_heard(worker);
            if let Some(here) = here.filter(|_| self.roster.lock().is_in_doubt(worker)) {
                self.links.knock(here, worker);
            }
        }
        let roster = self.roster.clone();
        let lives = |worker| roster.lock().knows(worker) || roster.lock().held(worker) > 0;
        for (id, untold) in self.links.retain(lives) {
            self.told(id, untold);
        }
    }
}
