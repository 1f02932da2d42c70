//! Who keeps its slot between two tries: it holds it like any other, and begins anew when its time has come.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Attempt, Bug, ExecutionId, GroupKey};

use super::action_queue::ActionQueue;
use super::entry::Millis;

/// An attempt that begins in the slot of the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextTry {
    pub(crate) execution_id: ExecutionId,
    pub(crate) attempt: Attempt,
    /// How many grants of its execution never began.
    pub(crate) unbegun: u16,
    /// Until when it was to wait.
    pub(crate) until: Millis,
}

/// Who holds a slot and waits for its next try, by the time from which on it may begin.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// When each is looked at next: at its time, or when its rate opens.
    by_time: BTreeSet<(Millis, ExecutionId)>,
    /// Its time, and when it is looked at next.
    times: BTreeMap<ExecutionId, (Millis, Millis)>,
}

impl Kept {
    fn insert(&mut self, id: ExecutionId, until: Millis) {
        self.remove(id);
        self.by_time.insert((until, id));
        self.times.insert(id, (until, until));
    }

    /// Forgets somebody; until when it was to wait.
    pub(super) fn remove(&mut self, id: ExecutionId) -> Option<Millis> {
        let (until, next) = self.times.remove(&id)?;
        self.by_time.remove(&(next, id));
        Some(until)
    }

    /// Until when somebody is to wait, if it does.
    pub(super) fn until(&self, id: ExecutionId) -> Option<Millis> {
        self.times.get(&id).map(|(until, _)| *until)
    }

    /// Whose time comes before a place among them.
    pub(super) fn due_before(
        &self,
        place: (Millis, ExecutionId),
    ) -> impl Iterator<Item = ExecutionId> + '_ {
        let times = self.times.iter();
        let due = times.filter(move |(id, (until, _))| (*until, **id) < place);
        due.map(|(id, _)| *id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Looks at somebody no earlier than this.
    fn put_off(&mut self, id: ExecutionId, next: Millis) {
        if let Some((_, time)) = self.times.get_mut(&id) {
            self.by_time.remove(&(*time, id));
            *time = next;
            self.by_time.insert((next, id));
        }
    }

    /// Looks at everybody at its own time again.
    pub(super) fn settle(&mut self) {
        self.by_time.clear();
        for (id, (until, next)) in &mut self.times {
            *next = *until;
            self.by_time.insert((*until, *id));
        }
    }

    fn first(&self) -> Option<(Millis, ExecutionId)> {
        self.by_time.first().copied()
    }
}

impl ActionQueue {
    /// The try of this attempt has ended, or has never `begun`, and the execution keeps its slot until it is
    /// tried again, from `until` on; false, and nothing happens, when the attempt holds no slot.
    pub(crate) fn keep(
        &mut self,
        execution_id: ExecutionId,
        attempt: Attempt,
        begun: bool,
        until: Millis,
    ) -> bool {
        if Bug::HoldSlotLetsGo.is_planted() {
            return self.put_back(execution_id, attempt, begun, Some(until));
        }
        if !self.holds(execution_id, attempt) {
            return false;
        }
        let (_, load) = self.parts();
        if let Some(holder) = load.active.get_mut(execution_id) {
            holder.unbegun = holder.unbegun.saturating_add(u16::from(!begun));
            (holder.worker, holder.started) = (None, false);
        }
        load.kept
            .get_or_insert_default()
            .insert(execution_id, until);
        true
    }

    /// Until when somebody keeps its slot without running.
    pub(crate) fn kept_until(&self, execution_id: ExecutionId) -> Option<Millis> {
        self.load.as_ref()?.kept.as_ref()?.until(execution_id)
    }

    /// Gives the next attempt to the first of those that keep their slots whose time has come and whose
    /// rate is open; `None` where there is nobody, or nothing starts in this queue at the moment. Whose
    /// rate is not open is looked at again when it is: at most `max` of them at once.
    pub(crate) fn next_try(&mut self, now: Millis, max: usize) -> Option<NextTry> {
        for _ in 0..max {
            let execution_id = self.first_kept(now)?;
            let holder = self.holder(execution_id)?;
            let groups = self.load.as_ref().and_then(|load| load.groups.as_ref());
            let key = groups.map_or(GroupKey::default(), |groups| {
                groups.rate_of(holder.share.group)
            });
            let opens = self.rate_opens(key);
            let kept = self.load.as_mut()?.kept.as_mut()?;
            if let Some(time) = opens {
                kept.put_off(execution_id, time.max(now + 1));
                continue;
            }
            let until = kept.remove(execution_id)?;
            let attempt = holder.attempt.next();
            self.begin_anew(execution_id, attempt, key);
            return Some(NextTry {
                execution_id,
                attempt,
                unbegun: holder.unbegun,
                until,
            });
        }
        None
    }

    /// Who is due of those that keep their slots, where somebody may start.
    pub(crate) fn first_kept(&self, now: Millis) -> Option<ExecutionId> {
        let (time, execution_id) = self.load.as_ref()?.kept.as_ref()?.first()?;
        (time <= now && !self.starts_nothing()).then_some(execution_id)
    }

    /// Whether nothing starts, whatever time it is.
    fn starts_nothing(&self) -> bool {
        self.is_stopped() || self.unknown().next().is_some()
    }

    fn begin_anew(&mut self, execution_id: ExecutionId, attempt: Attempt, key: GroupKey) {
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return;
        };
        load.kept.take_if(|kept| kept.is_empty());
        let Some(holder) = load.active.get_mut(execution_id) else {
            return;
        };
        holder.attempt = attempt;
        let group = holder.share.group;
        if let Some(meters) = &mut self.meters {
            meters.start(limits, key);
            if let Some(groups) = &mut load.groups
                && meters.rate_until(limits, key).is_some()
            {
                groups.use_up(key);
                groups.has_started(group);
            }
        }
    }

    /// When [`next_try`](Self::next_try) has something to do.
    pub(super) fn deadline_of_kept(&self) -> Option<Millis> {
        let (time, _) = self.load.as_ref()?.kept.as_ref()?.first()?;
        (!self.starts_nothing() && !Bug::KeptForgotten.is_planted()).then_some(time)
    }
}
