//! Who is given a slot: it is free, and nobody stands before whoever gets it.

use attune_core::WorkerId;

use super::*;

impl Shadow {
    /// Somebody is given a slot.
    pub(super) fn grant(
        &mut self,
        now: Millis,
        id: ExecutionId,
        (attempt, worker): (Attempt, WorkerId),
        out: &mut Vec<Violation>,
    ) {
        let Some(seen) = self.rows.get(&id).cloned() else {
            let words = format!("{id} is granted a slot and was not waiting");
            return out.push(Violation::of(Promise::I5, words));
        };
        if seen.kept.is_some() {
            self.go_on(now, id, attempt, out);
            if let Some(seen) = self.rows.get_mut(&id) {
                seen.worker = Some(worker);
            }
            return;
        }
        if seen.holds || attempt != seen.attempt.next() {
            let words = format!("{id} is granted attempt {attempt} after {}", seen.attempt);
            out.push(Violation::of(Promise::I5, words));
        }
        for (in_group, of) in [(false, "of"), (true, "of its group of")] {
            if !self.has_room(&seen, in_group) {
                let words = format!(
                    "{id} is granted a slot {of} {} that is not free",
                    seen.action
                );
                out.push(Violation::of(Promise::I2, words));
            }
        }
        let ahead = self
            .rows
            .iter()
            .find(|(_, other)| other.action == seen.action && other.ahead);
        if let Some((ahead, _)) = ahead {
            let words = format!("{id} is granted a slot, and {ahead} stands ahead of it");
            out.push(Violation::of(Promise::I3, words));
        }
        self.may_be_next(now, id, &seen, out);
        if let Some(seen) = self.rows.get_mut(&id) {
            (seen.holds, seen.attempt) = (true, attempt);
            (seen.goes_on, seen.worker) = (false, Some(worker));
        }
    }

    /// Judges that somebody is granted now, and before all others, whether a slot is free or not.
    pub(super) fn may_be_next(
        &self,
        now: Millis,
        id: ExecutionId,
        seen: &Seen,
        out: &mut Vec<Violation>,
    ) {
        if self.hold_of(seen.action).mode.is_some() {
            let words = format!("{id} is granted a slot of {}, which is held", seen.action);
            out.push(Violation::of(Rule::Held, words));
        }
        if let Some((unknown, _)) = self.unknown(seen.action).next() {
            let words = format!("{id} is granted a slot while {unknown} is not grouped yet");
            out.push(Violation::of(Promise::I2, words));
        }
        if seen.not_before.is_some_and(|time| time > now) {
            let words = format!("{id} is granted a slot before its time");
            out.push(Violation::of(Promise::I3, words));
        }
        let rule = self.bounds.get(&seen.action).map(|limits| limits.order);
        let rule = rule.unwrap_or_default();
        let grouping = self.grouping(seen.action);
        let group = grouping.group(seen.words);
        let waiting: Vec<_> = self.eligible(now, seen.action).collect();
        // Who is in another group that has no room for its first lacks what this one does not ask for.
        let is_keyed = self.has_keyed_rate(seen.action);
        let passed = waiting.iter().find(|other| {
            let its = grouping.group(other.1.words);
            // Whose starts are counted for another may have used up its rate, and then it is not for its
            // group to say who is first.
            let is_comparable = match is_keyed {
                // Of others the turn decides.
                _ if !self.is_same_line(other.1, seen) => false,
                true => its == group && other.1.words.user() == seen.words.user(),
                false => its == group || self.group_has_room(rule, &waiting, its),
            };
            is_before(rule, **other, (id, seen)) && is_comparable
        });
        if let Some((first, _)) = passed {
            let words = format!("{id} is granted a slot before {first} by {rule:?}");
            out.push(Violation::of(Promise::I3, words));
        }
        self.judge_turn(rule, &waiting, (id, seen), out);
    }
}
