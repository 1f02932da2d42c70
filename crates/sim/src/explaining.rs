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
    // Who holds a slot waits only where it keeps it until its next try: for its time, its rate or what stops
    // the whole queue, never for a slot.
    let keeps = holds && said.next_time.is_some();
    let waits = !said.waits_for.is_empty();
    if (waits != (keeps || !holds)) || (holds && said.attempt == Attempt(0)) {
        return of(format!("{id} waits and holds a slot, or neither: {said:?}"));
    }
    if keeps && said.waits_for.iter().any(is_of_a_slot) {
        return of(format!("{id} keeps its slot and waits for one: {said:?}"));
    }
    let row = store.active.get(&id);
    if keeps && row.is_some_and(|row| row.attempt == said.attempt && row.kept_until.is_none()) {
        return of(format!(
            "{id} is said to keep its slot, which is not stored: {said:?}"
        ));
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

/// Whether only those wait for this who have no slot.
fn is_of_a_slot(reason: &Reason) -> bool {
    !matches!(
        reason,
        Reason::Backoff { .. }
            | Reason::Rate { .. }
            | Reason::Paused { .. }
            | Reason::PoolClosed { .. }
            | Reason::Regrouping { .. }
            | Reason::Key { .. }
            | Reason::NextRound
    )
}

fn lack(reason: &Reason) -> Option<&Lack> {
    match reason {
        Reason::Limit(lack) | Reason::GroupLimit(lack) => Some(lack),
        _ => None,
    }
}
