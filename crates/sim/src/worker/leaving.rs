//! A worker that stops in order: it gives back what waits, lets run what may end in time, and says with the end of its
//! lease what had begun and was not settled.

use std::collections::BTreeSet;

use attune_core::WorkerId;

use crate::oracle::Key;
use crate::plan::{Plant, Time};
use crate::trace::Note;
use crate::world::{Ev, StoreCall, Word, World};

/// How long a worker that stops waits at most for what runs and for what is not settled.
const PATIENCE: Time = 2_500;
/// How often it tries to end its lease, which else runs out by itself.
const TRIES: u32 = 3;

/// What a worker that stops still has to do.
#[derive(Debug, Clone)]
pub(super) enum Leaving {
    /// It gives everything back, and is to stay away for so long afterwards.
    Waits { down: Time },
    /// It runs nothing and hears nothing any more, and tries so often to end its lease.
    Retires {
        down: Time,
        worker: WorkerId,
        begun: BTreeSet<Key>,
        tries: u32,
    },
}

impl World {
    /// The worker takes nothing more.
    pub(super) fn leave(&mut self, w: usize, down: Time) {
        let worker = &mut self.workers[w];
        if worker.leaving.is_some() {
            return;
        }
        worker.leaving = Some(Leaving::Waits { down });
        worker.entries.give_back_all("its worker stops");
        let party = self.worker_party(w);
        let patience = self.rng.between(100, PATIENCE);
        self.push(self.now + patience, Ev::To(party, Word::Hangs));
        // Its lease says so as soon as it can.
        self.soon(Ev::To(party, Word::Lease));
    }

    /// It waits no longer: what runs is killed, the queue closed, and the lease ended with what has begun.
    pub(super) fn hang_up(&mut self, w: usize) {
        let Some(Leaving::Waits { down }) = self.workers[w].leaving else {
            return;
        };
        let Some(id) = self.workers[w].living(self.now) else {
            return self.is_gone(w, down);
        };
        let begun: BTreeSet<Key> = match self.has(Plant::RetireUnbegun) {
            true => BTreeSet::new(),
            false => self.workers[w].entries.begun().collect(),
        };
        self.entrust_ends(w, id);
        self.kill_runs(w);
        let worker = &mut self.workers[w];
        (worker.life, worker.asking) = (None, None);
        worker.leaving = Some(Leaving::Retires {
            down,
            worker: id,
            begun,
            tries: TRIES,
        });
        self.retire(w);
    }

    /// Ends the lease, or gives up.
    fn retire(&mut self, w: usize) {
        let party = self.worker_party(w);
        let worker = &mut self.workers[w];
        let number = worker.next_call();
        let Some(Leaving::Retires {
            down,
            worker: life,
            begun,
            tries,
        }) = &mut worker.leaving
        else {
            return;
        };
        if *tries == 0 {
            let down = *down;
            return self.is_gone(w, down);
        }
        *tries -= 1;
        let call = StoreCall::RetireWorker(*life, begun.clone());
        worker.lease_call = number;
        self.call(party, number, call);
    }

    /// The store has answered a worker that ends its lease; `ended` is false where nobody knows.
    pub(super) fn retire_answer(&mut self, w: usize, ended: bool) {
        if let Some(Leaving::Retires { down, .. }) = self.workers[w].leaving {
            match ended {
                true => {
                    self.seen.retired += 1;
                    self.is_gone(w, down);
                }
                false => self.retire(w),
            }
        }
    }

    /// The process has ended.
    fn is_gone(&mut self, w: usize, down: Time) {
        let party = self.worker_party(w);
        self.note(Note::Stopped(party));
        self.kill_runs(w);
        self.workers[w].alive = false;
        self.close_all(party);
        self.push(self.now + down, Ev::Restart(party));
    }
}
