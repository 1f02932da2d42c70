//! Somebody whom the broker lets publish what workers publish says something in the names of others. Nothing may
//! come of it: the broker says who has sent a message, and the lease of a life says as whom it speaks.

use std::sync::Arc;

use attune_core::{RawValue, Status};
use attune_executor::owner::Reported;
use attune_executor::partition::Completion;

use crate::bus::{Body, Name, Party};
use crate::plan::{Fault, Plan, Planned};
use crate::rng::Rng;
use crate::world::{Ev, Word, World, completion};

/// What no program has said.
const FORGED: &str = "\"what nobody's program said\"";
/// The user of a relay, which says of each end who has reported it.
pub(crate) const RELAY: &str = "relay";

impl Plan {
    /// Whether the broker says who sends, and how often somebody forges: from a stream of chance of its own.
    pub(crate) fn add_forgeries(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0xf06e_f06e_f06e_f06e);
        let rng = &mut rng;
        if rng.chance(500) {
            return;
        }
        self.vouches = true;
        for _ in 0..rng.index(8) {
            let at = rng.between(200, self.heal_at);
            let id = self.faults.iter().map(|fault| fault.id + 1).max();
            let what = Fault::Forge;
            let id = id.unwrap_or(0);
            self.faults.push(Planned { at, id, what });
        }
        self.faults.sort_by_key(|fault| (fault.at, fault.id));
    }
}

impl World {
    /// As whom a worker speaks, where somebody vouches for that.
    pub(crate) fn user_of(&self, worker: usize) -> Option<Arc<str>> {
        let is_known = self.plan.vouches;
        is_known.then(|| Arc::from(format!("worker-{worker}")))
    }

    /// Somebody says of a run that goes on that it has ended, or never began.
    pub(crate) fn forge(&mut self) {
        let running = self.oracle.running();
        if running.is_empty() {
            return;
        }
        let (key, action, worker) = running[self.rng.index(running.len())];
        let own = self
            .workers
            .iter()
            .position(|it| it.life_id() == Some(worker));
        let other = self.rng.index(self.workers.len());
        let user = self.user_of(other).filter(|_| own != Some(other));
        let user = user.unwrap_or_else(|| Arc::from("nobody's worker"));
        if self.rng.chance(300) {
            for owner in 0..self.owners.len() {
                let party = Party::Owner(owner, self.owners[owner].life());
                let report = Reported {
                    user: Some(Arc::clone(&user)),
                    returned: vec![(key, Arc::from("forged"))],
                    ..Reported::nothing(worker)
                };
                self.soon(Ev::To(party, Word::Reported(report)));
            }
            return;
        }
        let ends = [Status::Succeeded, Status::Failed, Status::Cancelled];
        let status = self.rng.pick(&ends);
        let forged = Completion {
            user: Some(user),
            ..completion(key, action, (status, worker), FORGED)
        };
        let name = self.rng.pick(&[Name::Kept, Name::Completed]);
        self.soon(Ev::Arrive(name, Body::Completed(Arc::new(forged)), None));
    }
}

/// Whether an end is one that somebody forged.
pub(crate) fn is_forged(completion: &Completion) -> bool {
    let result = completion.outcome.result.as_deref();
    result.map(RawValue::get) == Some(FORGED)
}
