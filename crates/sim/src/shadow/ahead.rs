//! Who is granted to a worker ahead of its slot: it waits still, and is the worker's alone.

use attune_core::WorkerId;

use super::*;

impl Shadow {
    /// Somebody is granted ahead of its slot.
    pub(super) fn grant_ahead(
        &mut self,
        now: Millis,
        id: ExecutionId,
        (attempt, grant_no, worker): (Attempt, i64, WorkerId),
        out: &mut Vec<Violation>,
    ) {
        let Some(seen) = self.rows.get(&id).cloned() else {
            let words = format!("{id} is granted ahead and was not waiting");
            return out.push(Violation::of(Promise::I5, words));
        };
        if seen.holds || seen.ahead || attempt != seen.attempt.next() {
            let words = format!(
                "{id} is granted attempt {attempt} ahead after {}",
                seen.attempt
            );
            out.push(Violation::of(Promise::I5, words));
        }
        self.may_be_next(now, id, &seen, out);
        // Handing a slot on keeps the limit only where one worker has them all.
        let rows = self.rows.values();
        let granted =
            rows.filter(|other| other.action == seen.action && (other.holds || other.ahead));
        let elsewhere = granted.filter(|other| other.worker != Some(worker)).count();
        let held = self.used(seen.action, None);
        if elsewhere > 0 || Some(held) != self.limit(seen.action).map(u64::from) {
            let words = format!(
                "{id} is granted ahead to {worker:?}, of {held} slots, {elsewhere} of them elsewhere"
            );
            out.push(Violation::of(Promise::I2, words));
        }
        let before = self.rows.iter().filter(|(_, other)| {
            let is_granted = other.holds || other.ahead;
            is_granted && other.action == seen.action && other.worker == Some(worker)
        });
        let before = before.map(|(id, other)| (*id, other.attempt)).collect();
        self.behind.insert((id, attempt), before);
        if let Some(seen) = self.rows.get_mut(&id) {
            (seen.ahead, seen.grant_no) = (true, grant_no);
            (seen.attempt, seen.worker) = (attempt, Some(worker));
        }
    }

    /// Somebody has the slot for which it stood ahead.
    pub(super) fn hand_on(&mut self, id: ExecutionId, attempt: Attempt, out: &mut Vec<Violation>) {
        let Some(seen) = self.rows.get(&id).filter(|seen| seen.ahead).cloned() else {
            let words = format!("{id} is handed a slot and did not stand ahead of one");
            return out.push(Violation::of(Promise::I5, words));
        };
        if attempt != seen.attempt {
            let words =
                format!("{id} has its slot in attempt {attempt}, and stood ahead as {seen:?}");
            out.push(Violation::of(Promise::I5, words));
        }
        if !self.has_room(&seen, false) {
            let words = format!("{id} is given a slot of {} that is not free", seen.action);
            out.push(Violation::of(Promise::I2, words));
        }
        let mut others = self.rows.iter();
        let first = others.find(|(_, other)| {
            other.action == seen.action && other.ahead && other.grant_no < seen.grant_no
        });
        if let Some((first, _)) = first {
            let words = format!("{id} is handed a slot before {first}");
            out.push(Violation::of(Promise::I3, words));
        }
        if let Some(seen) = self.rows.get_mut(&id) {
            (seen.holds, seen.ahead) = (true, false);
        }
    }

    /// Somebody who stands ahead while a slot is free, when a round is over.
    pub(super) fn lacks_a_slot(&self, action: ActionId) -> Option<ExecutionId> {
        // Who demands what is not known yet.
        if !self.is_grouped(action) {
            return None;
        }
        let ahead = self.rows.iter();
        let mut ahead = ahead.filter(|(_, seen)| seen.action == action && seen.ahead);
        // One of them is the first.
        let has_room = |seen: &Seen| self.has_room(seen, false) && self.has_room(seen, true);
        let (id, first) = ahead.next()?;
        (has_room(first) && ahead.all(|(_, seen)| has_room(seen))).then_some(*id)
    }
}
