//! Lives of workers whose processes were killed: what comes in their place tells the store of them, and
//! what had begun there, unless their guards were killed too.

use std::collections::BTreeSet;

use attune_core::WorkerId;

use crate::oracle::Key;
use crate::plan::Time;
use crate::world::{Ev, StoreCall, StoreReply, Word, World};

/// Between two looks for lives that are to be told of.
const LOOKS_EVERY: Time = 500;
/// How many of a thousand guards outlive their workers.
const GUARDS: u32 = 800;

/// A life of a worker whose process is gone, with everything that it ran.
#[derive(Debug, Clone)]
pub(crate) struct Former {
    pub(crate) worker: WorkerId,
    /// What has begun in it, and perhaps others that were settled.
    pub(crate) begun: BTreeSet<Key>,
}

impl World {
    /// A process was killed, and so was everything that it ran.
    pub(crate) fn leave_former(&mut self, w: usize) {
        let outlived = self.rng.chance(GUARDS);
        let worker = &mut self.workers[w];
        let begun = std::mem::take(&mut worker.begun);
        if let Some(life) = worker.life_id().filter(|_| outlived) {
            worker.formers.push(Former {
                worker: life,
                begun,
            });
        }
    }

    /// Tells of those that the store has not been told of.
    pub(crate) fn tell_of_formers(&mut self, w: usize) {
        let formers = self.workers[w].formers.clone();
        if formers.is_empty() {
            return;
        }
        let party = self.worker_party(w);
        for former in formers {
            let number = self.workers[w].next_call();
            self.call(party, number, StoreCall::WorkerOver(former));
        }
        self.push(self.now + LOOKS_EVERY, Ev::To(party, Word::Formers));
    }

    /// The store has been told of one.
    pub(crate) fn former_is_told(&mut self, w: usize, reply: &StoreReply) {
        if let StoreReply::WorkerIsOver(worker) = reply {
            let formers = &mut self.workers[w].formers;
            let before = formers.len();
            formers.retain(|former| former.worker != *worker);
            self.seen.over += u64::from(formers.len() < before);
            self.say_hello(*worker);
        }
    }
}
