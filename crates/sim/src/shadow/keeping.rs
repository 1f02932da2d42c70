//! Who keeps its slot between two tries: it holds it all the time, and begins anew at its time.

use super::*;

impl Shadow {
    /// A try has ended, and its execution keeps its slot until then.
    pub(super) fn keep(&mut self, id: ExecutionId, until: Millis, out: &mut Vec<Violation>) {
        let held = self.rows.get_mut(&id);
        match held.filter(|seen| seen.holds && seen.kept.is_none()) {
            Some(seen) => seen.kept = Some(until),
            None => {
                let words = format!("{id} keeps a slot that it does not hold");
                out.push(Violation::of(Promise::I5, words));
            }
        }
    }

    /// Who has kept its slot is given its next attempt.
    pub(super) fn go_on(
        &mut self,
        now: Millis,
        id: ExecutionId,
        attempt: Attempt,
        out: &mut Vec<Violation>,
    ) {
        let action = self.rows.get(&id).map(|seen| seen.action);
        let Some((seen, action)) = self.rows.get_mut(&id).zip(action) else {
            return;
        };
        let until = seen.kept.take();
        if !seen.holds || attempt != seen.attempt.next() {
            let words = format!("{id} goes on with attempt {attempt} after {}", seen.attempt);
            out.push(Violation::of(Promise::I5, words));
        }
        if seen.asked || until.is_none_or(|until| until > now) {
            let words = format!(
                "{id} goes on at {now}, asked to end: {}, until {until:?}",
                seen.asked
            );
            out.push(Violation::of(Rule::Retry, words));
        }
        (seen.attempt, seen.goes_on) = (attempt, true);
        if self.hold_of(action).mode.is_some() {
            let words = format!("{id} goes on in {action}, which is held");
            out.push(Violation::of(Rule::Held, words));
        }
        if let Some((unknown, _)) = self.unknown(action).next() {
            let words = format!("{id} goes on while {unknown} is not grouped yet");
            out.push(Violation::of(Promise::I2, words));
        }
    }
}
