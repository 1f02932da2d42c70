//! What an owner has decided so far, kept as plain lists, and judged effect by effect.
//!
//! The core sorts, indexes and caches; this does not. It is built from the same rows, told the
//! same events, and looks through everything each time.

use std::collections::BTreeMap;

use attune_core::{ActionId, Attempt, ExecutionId, Priority, Promise, Seq, Status};
use attune_executor::{Effect, Event};
use attune_store::{ActiveRow, End, NewExecution, SlotRow, Update};

use crate::oracle::{Rule, Violation};

/// Milliseconds of an owner's wall clock.
pub(crate) type Millis = i64;

/// An execution as the decisions so far leave it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) action: ActionId,
    pub(crate) priority: Priority,
    pub(crate) holds: bool,
    pub(crate) attempt: Attempt,
    not_before: Option<Millis>,
    /// Since when it waits for a slot.
    since: Millis,
}

/// The decisions of one core.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pub(crate) rows: BTreeMap<ExecutionId, Seen>,
    /// The limit and the waiting time, in milliseconds, of each action as the owner knows them.
    pub(crate) bounds: BTreeMap<ActionId, (Option<u32>, Millis)>,
}

impl Seen {
    /// Whether its time to wait for its first slot runs.
    fn may_expire(&self, now: Millis) -> bool {
        let is_delayed = self.not_before.is_some_and(|time| time > now);
        !self.holds && self.attempt == Attempt(0) && !is_delayed
    }
}

fn order(id: ExecutionId, seen: &Seen) -> (Priority, Seq) {
    (seen.priority, id.seq())
}

impl Shadow {
    /// Takes in what a new owner has loaded.
    pub(crate) fn recover(&mut self, now: Millis, rows: &[ActiveRow]) {
        for row in rows {
            let age = Millis::try_from(row.age.as_millis()).unwrap_or(Millis::MAX);
            let not_before = row.not_before.map(|time| time.timestamp_millis());
            let seen = Seen {
                action: row.action_id,
                priority: row.priority,
                holds: row.status.holds_slot(),
                attempt: row.attempt,
                not_before,
                since: (now - age).max(not_before.unwrap_or(Millis::MIN)),
            };
            self.rows.insert(row.id, seen);
        }
    }

    /// Makes the holders those that are stored; true when they were not.
    pub(crate) fn mend(&mut self, slots: &[SlotRow]) -> bool {
        let stored = |id: &ExecutionId| slots.iter().find(|slot| slot.id == *id);
        let before = self.rows.len();
        self.rows.retain(|id, seen| {
            !seen.holds || stored(id).is_some_and(|s| s.attempt == seen.attempt)
        });
        let mut mended = self.rows.len() != before;
        for slot in slots {
            if self.rows.get(&slot.id).is_none_or(|seen| !seen.holds) {
                mended = true;
                let seen = Seen {
                    action: slot.action_id,
                    priority: Priority::Normal,
                    holds: true,
                    attempt: slot.attempt,
                    not_before: None,
                    since: 0,
                };
                self.rows.insert(slot.id, seen);
            }
        }
        mended
    }

    fn holders(&self, action: ActionId) -> usize {
        self.rows
            .values()
            .filter(|seen| seen.action == action && seen.holds)
            .count()
    }

    /// The first in order of those that could be given a slot.
    fn first_eligible(&self, now: Millis, action: ActionId) -> Option<ExecutionId> {
        let eligible = self.rows.iter().filter(|(_, seen)| {
            seen.action == action && !seen.holds && seen.not_before.is_none_or(|time| time <= now)
        });
        eligible
            .min_by_key(|(id, seen)| order(**id, seen))
            .map(|(id, _)| *id)
    }

    fn has_free_slot(&self, action: ActionId) -> bool {
        let limit = self.bounds.get(&action).and_then(|(limit, _)| *limit);
        limit.is_none_or(|limit| self.holders(action) < limit as usize)
    }

    /// Judges what follows from an event, in the order in which the core says it.
    pub(crate) fn judge(
        &mut self,
        now: Millis,
        completion: Option<(ExecutionId, Attempt)>,
        effects: &[Effect],
        out: &mut Vec<Violation>,
    ) {
        for effect in effects {
            match effect {
                Effect::Insert(new) => self.insert(now, new, out),
                Effect::Update(update) => self.update(now, update, out),
                Effect::End(end) => self.end(now, completion, end, out),
                _ => {}
            }
        }
    }

    fn insert(&mut self, now: Millis, new: &NewExecution, out: &mut Vec<Violation>) {
        let not_before = new
            .submission
            .not_before
            .map(|time| time.timestamp_millis());
        let seen = Seen {
            action: new.action_id,
            priority: new.submission.priority,
            holds: false,
            attempt: Attempt(0),
            not_before,
            since: now.max(not_before.unwrap_or(now)),
        };
        if self
            .rows
            .last_key_value()
            .is_some_and(|(last, _)| *last >= new.id)
        {
            out.push(Violation::of(
                Promise::I3,
                format!("{} is not the last in order", new.id),
            ));
        }
        self.rows.insert(new.id, seen);
        if new.status == Status::Requested {
            self.grant(now, new.id, new.attempt, out);
        }
    }

    fn grant(&mut self, now: Millis, id: ExecutionId, attempt: Attempt, out: &mut Vec<Violation>) {
        let Some(seen) = self.rows.get(&id).cloned() else {
            let words = format!("{id} is granted a slot and was not waiting");
            return out.push(Violation::of(Promise::I5, words));
        };
        if seen.holds || attempt != seen.attempt.next() {
            let words = format!("{id} is granted attempt {attempt} after {}", seen.attempt);
            out.push(Violation::of(Promise::I5, words));
        }
        if !self.has_free_slot(seen.action) {
            let words = format!("{id} is granted a slot of {} that is not free", seen.action);
            out.push(Violation::of(Promise::I2, words));
        }
        let first = self.first_eligible(now, seen.action);
        if first != Some(id) {
            let words = format!("{id} is granted a slot before {first:?}");
            out.push(Violation::of(Promise::I3, words));
        }
        if let Some(seen) = self.rows.get_mut(&id) {
            (seen.holds, seen.attempt) = (true, attempt);
        }
    }

    fn update(&mut self, now: Millis, update: &Update, out: &mut Vec<Violation>) {
        match update.status {
            Some(Status::Requested) => self.grant(now, update.id, update.attempt, out),
            Some(_) => {
                let held = self.rows.get_mut(&update.id).filter(|seen| seen.holds);
                match held {
                    Some(seen) => (seen.holds, seen.since) = (false, now),
                    None => out.push(Violation::of(
                        Promise::I5,
                        format!("{} loses a slot that it does not hold", update.id),
                    )),
                }
            }
            None => {}
        }
    }

    fn end(
        &mut self,
        now: Millis,
        completion: Option<(ExecutionId, Attempt)>,
        end: &End,
        out: &mut Vec<Violation>,
    ) {
        let (id, status) = (end.id, end.outcome.status);
        let Some(seen) = self.rows.remove(&id) else {
            let words = format!("{id} ends as {status} and had ended before");
            return out.push(Violation::of(Promise::I5, words));
        };
        let reported = completion == Some((id, seen.attempt)) && seen.holds;
        let by_run = matches!(
            status,
            Status::Succeeded | Status::Failed | Status::TimedOut
        );
        if by_run && !reported {
            let words = format!("{id} ends as {status}, and no run of its attempt said so");
            out.push(Violation::of(Promise::I5, words));
        }
        let waited = now - seen.since;
        let most = self.bounds.get(&seen.action).map_or(0, |(_, most)| *most);
        if status == Status::Expired && (waited < most || !seen.may_expire(now)) {
            let words = format!("{id} expires after {waited} ms of {most}");
            out.push(Violation::of(Rule::Expiry, words));
        }
    }

    /// What must be true whenever a round has done with an event: no free slot beside someone
    /// who may have it.
    pub(crate) fn settle(&self, now: Millis, out: &mut Vec<Violation>) {
        for action in self.bounds.keys() {
            if let Some(id) = self.first_eligible(now, *action)
                && self.has_free_slot(*action)
            {
                let words = format!("{id} waits although a slot of {action} is free");
                out.push(Violation::of(Promise::I6, words));
            }
        }
    }

    /// What must be true whenever time has passed: nobody has waited too long.
    pub(crate) fn pass(&self, now: Millis, out: &mut Vec<Violation>) {
        for (action, (_, most)) in &self.bounds {
            // One whose start was delayed may hold up the expiry of those behind it.
            let overdue = self.rows.iter().find(|(id, seen)| {
                seen.action == *action
                    && seen.may_expire(now)
                    && seen.since + most < now
                    && !self.rows.range(..*id).any(|(_, other)| {
                        (other.action, other.priority) == (seen.action, seen.priority)
                            && other.may_expire(now)
                            && other.since > seen.since
                    })
            });
            if let Some((id, seen)) = overdue {
                let words = format!("{id} waits {} ms of {most}", now - seen.since);
                out.push(Violation::of(Rule::Expiry, words));
            }
        }
    }
}

/// The run that an event reports the end of.
pub(crate) fn reported(event: &Event) -> Option<(ExecutionId, Attempt)> {
    match event {
        Event::Completed(completion) => Some((completion.execution_id, completion.attempt)),
        _ => None,
    }
}
