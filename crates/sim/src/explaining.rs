//! What owners say of why an execution does not run yet, against what is stored: nothing of it may be ahead
//! of the store, and who is named as a holder holds, or has held, that very slot.

use attune_core::explain::{Explanation, Lack, QueueState, Reason};
use attune_core::{Attempt, ExecutionId, RequestId};

use crate::bus::Body;
use crate::oracle::{Rule, Violation};
use crate::store::Store;
use crate::world::World;

impl World {
    /// Somebody asks why an execution does not run yet.
    pub(crate) fn explain(&mut self, id: ExecutionId) {
        *self.seen.faults.entry("explain").or_default() += 1;
        let request_id = RequestId(self.fresh());
        let body = |reply_to| Body::Explain(request_id, id, reply_to);
        self.add_ask(0, id.partition(), request_id, false, body);
    }
}

/// In which attempt an execution held a slot last, as it is stored.
fn stored(store: &Store, id: ExecutionId) -> Option<Attempt> {
    let active = store.active.get(&id).map(|row| row.attempt);
    active.or_else(|| Some(store.history.get(&id)?.attempt))
}

/// An owner says this of an execution.
pub(crate) fn judge(store: &Store, id: ExecutionId, said: &Explanation) -> Option<Violation> {
    let of = |words: String| Some(Violation::of(Rule::Explain, words));
    let is_stored = |id, attempt| stored(store, id).is_some_and(|stored| stored >= attempt);
    if !is_stored(id, said.attempt) {
        return of(format!(
            "{id} is said to be in attempt {}, which is not stored",
            said.attempt
        ));
    }
    let holds = said.state == QueueState::HoldsSlot;
    let keeps = matches!(said.waits_for.first(), Some(Reason::Backoff { .. }));
    let waits = !said.waits_for.is_empty();
    if (holds == waits && !(holds && keeps)) || (holds && said.attempt == Attempt(0)) {
        return of(format!("{id} waits and holds a slot, or neither: {said:?}"));
    }
    for lack in said.waits_for.iter().filter_map(lack) {
        let mut holders = lack.holders.iter();
        if let Some(early) = holders.find(|it| !is_stored(it.execution_id, it.attempt)) {
            return of(format!("{id} waits for {early:?}, which is not stored"));
        }
        let named: u64 = lack.holders.iter().map(|holder| holder.cost).sum();
        if named > lack.used || (lack.more_holders == 0 && named < lack.used) {
            return of(format!("the holders of {lack:?} do not take what is taken"));
        }
    }
    None
}

fn lack(reason: &Reason) -> Option<&Lack> {
    match reason {
        Reason::Limit(lack) | Reason::GroupLimit(lack) => Some(lack),
        _ => None,
    }
}
