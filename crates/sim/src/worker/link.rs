//! The connection of a worker.

use std::sync::Arc;

use attune_core::WorkerId;
use attune_dispatch::Report;
use attune_executor::owner::Reported;

use crate::plan::Time;
use crate::world::{Ev, Word, World};

/// How long a worker has no connection at most.
const CUT: Time = 400;

impl World {
    /// The broker has closed its connection: what was on its way is lost, and for a while nobody receives
    /// what is told it.
    pub(crate) fn cut_worker(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        worker.link += 1;
        worker.is_cut = true;
        let listens = Word::Listens(worker.link);
        let (at, party) = (self.now + self.rng.between(0, CUT), self.worker_party(w));
        self.push(at, Ev::To(party, listens));
    }

    pub(super) fn reconnect_worker(&mut self, w: usize, link: u64) {
        let worker = &mut self.workers[w];
        if worker.link != link {
            return;
        }
        worker.is_cut = false;
        worker.entries.link_is_new();
        if let Some(id) = self.workers[w].living(self.now) {
            for (key, ended) in self.unsettled_ends(w) {
                self.tell_end(w, key, ended, id);
            }
            self.say_hello(id);
        }
    }

    pub(crate) fn say_hello(&mut self, worker: WorkerId) {
        for owner in 0..self.owners.len() {
            if self.owners[owner].is_alive() && !self.rng.chance(self.noise.lost) {
                let party = self.owner_party(owner);
                self.soon(Ev::To(party, Word::Hello(worker)));
            }
        }
    }
}

/// What a worker says to an owner, as it arrives there.
pub(super) fn reported(worker: WorkerId, user: Option<Arc<str>>, report: Report) -> Reported {
    let returned = report.returned.into_iter();
    let returned = returned.map(|it| (it.key, Arc::from(it.why.words)));
    let started = report.started.into_iter();
    Reported {
        user,
        elsewhere: report.elsewhere,
        returned: returned.collect(),
        started: started.map(|it| (it.key, it.age)).collect(),
        resync: report.resync,
        ..Reported::nothing(worker)
    }
}
