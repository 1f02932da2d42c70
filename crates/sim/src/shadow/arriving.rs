//! What newcomers lead to: who ends in their place, who is asked to end, and who is refused.

use attune_core::policy::{OnFull, OnLimit};
use attune_core::{RejectCode, WaitBound};

use super::*;

/// Who leaves, or is asked to, for somebody who is accepted next.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Whoever waited and has ended.
    pub(super) gone: Vec<(ExecutionId, Seen, EndCode)>,
    /// Whoever holds a slot and is asked to end.
    pub(super) asked: Vec<ExecutionId>,
}

impl Leaving {
    /// Nobody ends for somebody who does not come.
    pub(super) fn must_be_over(self, out: &mut Vec<Violation>) {
        for (id, _, code) in self.gone {
            let words = format!("{id} ends as {code:?}, and nobody has come in its place");
            out.push(Violation::of(Promise::I1, words));
        }
        for id in self.asked {
            let words = format!("{id} is asked to end, and nobody has come in its place");
            out.push(Violation::of(Promise::I1, words));
        }
    }
}

impl Shadow {
    /// An owner goes by another rule: nobody's group is known, though it may be the one before the last.
    /// Whose each execution is follows from no rule, and stays known as long as anything does.
    pub(super) fn forget_demands(&mut self, action: ActionId, keeps_users: bool) {
        let rows = self.rows.values_mut();
        for seen in rows.filter(|seen| seen.action == action) {
            let earlier = seen.demand.filter(|_| keeps_users);
            seen.demand = earlier.map(|demand| Demand { rule: 0, ..demand });
        }
    }

    /// Somebody is accepted.
    pub(super) fn insert(
        &mut self,
        now: Millis,
        (id, action, priority): (ExecutionId, ActionId, Priority),
        not_before: Option<Millis>,
        words: Words,
        out: &mut Vec<Violation>,
    ) {
        let seen = Seen {
            action,
            priority,
            front: false,
            holds: false,
            ahead: false,
            grant_no: 0,
            worker: None,
            attempt: Attempt(0),
            not_before,
            since: now.max(not_before.unwrap_or(now)),
            accepted: Accepted::Here(now),
            words,
            demand: None,
            asker: None,
            asked: false,
            kept: None,
            goes_on: false,
        };
        let last = self.rows.last_key_value();
        if last.is_some_and(|(last, _)| *last >= id) {
            let words = format!("{id} is not the last in order");
            out.push(Violation::of(Promise::I3, words));
        }
        self.rows.insert(id, seen);
    }

    /// Takes note of somebody who ends because another one comes.
    pub(super) fn leave(
        &self,
        id: ExecutionId,
        code: EndCode,
        out: &mut Vec<Violation>,
    ) -> Option<(ExecutionId, Seen, EndCode)> {
        let seen = self.rows.get(&id)?.clone();
        if seen.holds {
            let words = format!("{id} ends as {code:?} and holds a slot");
            out.push(Violation::of(Promise::I1, words));
        }
        Some((id, seen, code))
    }

    /// Whether executions of an action are in one group.
    fn is_rival(&self, one: &Seen, other: &Seen) -> bool {
        let grouping = self.grouping(one.action);
        one.action == other.action && grouping.group(one.words) == grouping.group(other.words)
    }

    /// Judges whom a newcomer sends away, and that it may come.
    pub(super) fn arrived(
        &self,
        now: Millis,
        id: ExecutionId,
        leaving: Leaving,
        facts: &[Fact],
        out: &mut Vec<Violation>,
    ) {
        let Some(newcomer) = self.rows.get(&id) else {
            return;
        };
        let Some(limits) = self.bounds.get(&newcomer.action) else {
            return;
        };
        let mut say = |promise: Promise, words: String| out.push(Violation::of(promise, words));
        let is_due = newcomer.not_before.is_none_or(|time| time <= now);
        // Whoever leaves for it was there when the owner looked for room.
        let gone_unknown = leaving
            .gone
            .iter()
            .any(|(_, seen, _)| self.is_unknown(seen));
        let is_known = self.is_grouped(newcomer.action) && !gone_unknown;
        let starts = facts
            .iter()
            .any(|fact| matches!(fact, Fact::Granted { execution_id, .. } if *execution_id == id));
        for (gone, seen, code) in &leaving.gone {
            let is_right = match code {
                EndCode::Dropped => limits.on_full() == OnFull::DropOldest,
                _ => limits.on_limit().replaces() && is_due && self.is_rival(seen, newcomer),
            };
            // Who waits for a time that it asked for is nobody's rival, and no place is taken from it.
            let is_early =
                seen.attempt == Attempt(0) && seen.not_before.is_some_and(|time| time > now);
            if !is_right || is_early {
                say(
                    Promise::I1,
                    format!("{gone} ends as {code:?} for {id}, which it may not: {seen:?}"),
                );
            }
        }
        self.judge_dropped(now, (id, newcomer), &leaving, &mut say);
        let others = || {
            let of_action = self.rows.iter();
            of_action.filter(|(other, seen)| **other != id && seen.action == newcomer.action)
        };
        let must_replace = match limits.on_limit() {
            OnLimit::CancelRunning => is_due,
            OnLimit::ReplaceWaiting => is_due && !starts,
            OnLimit::Wait | OnLimit::Reject => false,
        };
        let left = others().find(|(_, seen)| {
            let is_delayed = seen.attempt == Attempt(0) && seen.not_before.is_some();
            !seen.holds && !seen.ahead && !is_delayed && self.is_rival(seen, newcomer)
        });
        if let Some((left, _)) = left.filter(|_| must_replace && is_known) {
            say(
                Promise::I1,
                format!("{left} waits still, though {id} takes its place"),
            );
        }
        self.judge_asked((id, newcomer), is_due && is_known, &leaving.asked, &mut say);
        let user = newcomer.words.user;
        let same = others().filter(|(_, seen)| {
            seen.words.user == user && seen.demand.is_some_and(|demand| demand.user.is_some())
        });
        let has = same.count();
        if let Some(limit) = limits.per_user().filter(|_| user.is_some())
            && has >= limit as usize
        {
            say(
                Promise::I2,
                format!("{id} is accepted though its user has {has} of {limit}"),
            );
        }
        if let Some(bound) = newcomer
            .words
            .wait_bound
            .filter(|_| newcomer.asker.is_some())
        {
            // Whoever is granted ahead of a slot is left out: it counts until it is told that it has one.
            let waiting = self
                .of_asker(bound)
                .filter(|(other, seen)| **other != id && !seen.ahead);
            let has = waiting.count();
            if has >= bound.max_waiting as usize {
                say(
                    Promise::I2,
                    format!(
                        "{id} is accepted though {has} of its asker wait, of {}",
                        bound.max_waiting
                    ),
                );
            }
        }
        let is_held =
            self.hold_of(newcomer.action).mode.is_some() || self.closed.contains(&newcomer.action);
        let fits = self.has_room(newcomer, true) && self.has_room(newcomer, false);
        if limits.on_limit() == OnLimit::Reject && is_due && is_known && !is_held && !fits {
            say(
                Promise::I2,
                format!("{id} is accepted though a limit is reached"),
            );
        }
    }

    /// Who waits that was asked for by the same.
    fn of_asker(&self, bound: WaitBound) -> impl Iterator<Item = (&ExecutionId, &Seen)> {
        let of = move |seen: &Seen| seen.asker == Some(bound.asker) && !seen.holds;
        self.rows.iter().filter(move |(_, seen)| of(seen))
    }

    /// Whoever is dropped has waited longest of the lowest priority, and the queue is full.
    fn judge_dropped(
        &self,
        now: Millis,
        (id, newcomer): (ExecutionId, &Seen),
        leaving: &Leaving,
        say: &mut impl FnMut(Promise, String),
    ) {
        let dropped = leaving.gone.iter();
        let mut dropped = dropped.filter(|(_, _, code)| *code == EndCode::Dropped);
        let Some((gone, seen, _)) = dropped.next() else {
            return;
        };
        if let Some((second, ..)) = dropped.next() {
            say(
                Promise::I1,
                format!("{gone} and {second} are both dropped for {id}"),
            );
        }
        let limits = self.bounds.get(&newcomer.action);
        let is_fifo = limits.is_some_and(|limits| limits.order == OrderRule::Fifo);
        let is_above = seen.front || (!is_fifo && seen.priority < newcomer.priority);
        if seen.attempt > Attempt(0) || is_above {
            say(Promise::I3, format!("{gone} is dropped for {id}: {seen:?}"));
        }
        let waiting = self.rows.values();
        let waiting = waiting.filter(|seen| seen.action == newcomer.action && !seen.holds);
        // The newcomer is among them, in the place of who is gone.
        let waiting = waiting.count();
        if limits.is_some_and(|limits| waiting < limits.max_length as usize) {
            say(
                Promise::I1,
                format!("{gone} is dropped for {id} while {waiting} wait"),
            );
        }
        // Who came with a delay stands at its place, and has waited since its time. Who was moved before all
        // others is left alone.
        let other = self.rows.iter().find(|(other, it)| {
            let may_go = **other != id
                && it.action == seen.action
                && it.may_expire(now)
                && it.not_before.is_none()
                && !it.front;
            let is_older = **other < *gone && it.since <= seen.since;
            may_go
                && match is_fifo || it.priority == seen.priority {
                    true => is_older,
                    false => it.priority > seen.priority,
                }
        });
        if let Some((other, it)) = other {
            say(
                Promise::I3,
                format!("{gone} is dropped for {id}, before {other}: {seen:?}, {it:?}"),
            );
        }
    }

    /// The oldest of the group are asked to end, as many as it takes and no more.
    fn judge_asked(
        &self,
        (id, newcomer): (ExecutionId, &Seen),
        may_ask: bool,
        asked: &[ExecutionId],
        say: &mut impl FnMut(Promise, String),
    ) {
        // Of an action that ends whoever runs for a newcomer nobody is granted ahead: who is left from before comes
        // back, and until then takes room or not.
        let mut rows = self.rows.values();
        if rows.any(|seen| seen.ahead && seen.action == newcomer.action) {
            return;
        }
        let limits = self.bounds.get(&newcomer.action);
        let wants = limits.is_some_and(|limits| limits.on_limit() == OnLimit::CancelRunning);
        let may_ask = may_ask && wants && self.hold_of(newcomer.action).mode.is_none();
        if let Some(first) = asked.first().filter(|_| !may_ask) {
            return say(Promise::I1, format!("{first} is asked to end for {id}"));
        }
        let fits_without = |still: &[ExecutionId]| {
            let mut without = Self {
                rows: self.rows.clone(),
                bounds: self.bounds.clone(),
                ..Self::default()
            };
            without.rows.retain(|other, seen| {
                let goes = seen.holds && seen.asked && self.is_rival(seen, newcomer);
                !goes || still.contains(other)
            });
            without.has_room(newcomer, true) && without.has_room(newcomer, false)
        };
        if let Some(last) = asked.last()
            && fits_without(std::slice::from_ref(last))
        {
            say(
                Promise::I1,
                format!("{last} is asked to end for {id}, which has room without"),
            );
        }
        let stay = self.rows.iter().find(|(_, seen)| {
            (seen.holds || seen.ahead) && !seen.asked && self.is_rival(seen, newcomer)
        });
        let Some((stays, _)) = stay.filter(|_| may_ask) else {
            return;
        };
        if asked.iter().any(|asked| asked > stays) {
            say(
                Promise::I3,
                format!("{asked:?} are asked to end for {id}, and {stays}, which is older, is not"),
            );
        }
        // A closed pool gives no slots, so that nobody is asked for that.
        if !self.closed.contains(&newcomer.action) && !fits_without(&[]) {
            say(
                Promise::I1,
                format!("{stays} is not asked to end, though {id} has no room"),
            );
        }
    }

    /// Whether a limit is reached for somebody new, once all who wait for a slot have theirs: they came
    /// before, even where free slots are still to be given to them.
    fn is_limit_reached(&self, now: Millis, action: ActionId, words: Words) -> bool {
        let grouping = self.grouping(action);
        let own = grouping.group(words);
        let is_reached = |limit: Option<u32>, of: Option<Group>| {
            let ahead = self.rows.values();
            let ahead = ahead.filter(|seen| seen.action == action && seen.ahead);
            let waiting = self.eligible(now, action).map(|(_, seen)| seen);
            let waiting = waiting.chain(ahead).map(|seen| seen.words);
            let waiting = waiting.filter(|it| of.is_none_or(|group| grouping.group(*it) == group));
            let waiting: u64 = waiting.map(|it| grouping.cost(it)).sum();
            let all = self.used(action, of) + waiting + grouping.cost(words);
            limit.is_some_and(|limit| all > u64::from(limit))
        };
        let limits = self.bounds.get(&action);
        is_reached(self.limit(action), None)
            || is_reached(limits.and_then(|it| it.group_limit()), Some(own))
    }

    /// Judges a refusal.
    pub(super) fn refused(
        &self,
        now: Millis,
        action: ActionId,
        words: Words,
        code: RejectCode,
        out: &mut Vec<Violation>,
    ) {
        let Some(limits) = self.bounds.get(&action) else {
            return;
        };
        let of_action = || self.rows.values().filter(|seen| seen.action == action);
        let waiting = of_action().filter(|seen| !seen.holds).count();
        let is_right = match code {
            RejectCode::QueueFull => waiting >= limits.max_length as usize,
            RejectCode::LimitReached => {
                let is_held = self.hold_of(action).mode.is_some();
                limits.on_limit() == OnLimit::Reject
                    && !is_held
                    && self.is_limit_reached(now, action, words)
            }
            RejectCode::UserLimitReached => {
                let same = of_action().filter(|seen| seen.words.user == words.user);
                let has = same.count();
                let is_full =
                    |bound: WaitBound| self.of_asker(bound).count() >= bound.max_waiting as usize;
                (words.user.is_some()
                    && limits.per_user().is_some_and(|limit| has >= limit as usize))
                    || words.wait_bound.is_some_and(is_full)
            }
            _ => true,
        };
        if !is_right {
            let words = format!("{words:?} of {action} is refused as {code:?}, {waiting} wait");
            out.push(Violation::of(Promise::I1, words));
        }
    }
}
