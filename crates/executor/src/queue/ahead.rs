//! Executions that are granted ahead of their slots (ADR 50).
//!
//! Where one worker has all slots of an action in use, the next of the action are granted to it before any slot is
//! free: it hands each slot on by itself when a run has ended. They are granted, and hold no slot until the owner
//! knows of it; nobody is granted a slot past them. How many stand ahead follows how many end in one round: few where
//! rounds are short beside the runs, more where the worker would run dry between two of them.

use std::collections::VecDeque;

use attune_core::{ExecutionId, Priority, Seq, WorkerId};

use super::action_queue::ActionQueue;
use super::entry::{Granted, Holder, Millis, Waiting};
use super::load::Load;
use crate::policy::{QueueLimits, key_in};

/// How many slots an action has at most whose worker is granted more than it has slots.
const MOST_SLOTS: usize = 64;
/// How many stand ahead at first.
const FIRST: usize = 8;
/// For how many milliseconds of work executions are granted ahead at most: so long may one wait that is called
/// back, or that belongs before them.
const MOST_WORK: f32 = 100.0;
/// Runs that take longer, in milliseconds, are not granted ahead: the way of a grant is nothing beside them.
const LONG_RUN: f32 = 500.0;
/// Runs that take longer, in milliseconds, are spread over the workers that there are: their work may be more than
/// one host has hands for, and is more than the way of a grant.
const GATHERED_RUN: f32 = 10.0;
/// So many ends show how long runs take.
const ENOUGH_ENDS: u32 = 4;
/// What the newest end counts.
const NEWEST: f32 = 1.0 / 16.0;

/// Who stands ahead of a slot, and how many may.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead {
    /// In the order of their grants.
    line: VecDeque<ExecutionId>,
    /// How many slots their worker hands on, as it was told; 0 where an earlier owner told it.
    slots: usize,
    /// How many there may be, where the worker never ran dry with so many.
    length: usize,
    /// How long runs take, in milliseconds: the mean of the last.
    run: f32,
    ends: u32,
    /// How many have ended at this time.
    latest: (Millis, usize),
    /// How many tries one of them will have begun at most, since the line was empty.
    tries: u32,
    /// They were called back: nobody joins them.
    is_recalled: bool,
    /// Some were lost with their worker, and nobody knows which had begun: nobody is granted ahead until one has
    /// ended.
    is_barred: bool,
}

impl Ahead {
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Takes somebody out.
    pub(super) fn remove(&mut self, id: ExecutionId) {
        if let Some(at) = self.line.iter().position(|other| *other == id) {
            self.line.remove(at);
        }
        if self.line.is_empty() {
            (self.is_recalled, self.tries) = (false, 0);
        }
    }

    /// Notes that a run has ended that took so long.
    fn note(&mut self, now: Millis, ran: Millis, slots: usize) {
        let ran = ran.max(0) as f32;
        self.ends = self.ends.saturating_add(1);
        self.is_barred = false;
        let weight = NEWEST.max(1.0 / self.ends as f32);
        self.run += weight * (ran - self.run);
        if self.latest.0 != now {
            self.latest = (now, 0);
        }
        self.latest.1 += 1;
        // Half of a line in one round: with a little less of it the worker would have had nothing to begin.
        let first = FIRST.max(slots);
        if self.length == 0 {
            self.length = first;
        } else if 2 * self.latest.1 >= self.length {
            self.length = self.length.saturating_mul(2).min(usize::from(u16::MAX));
            self.latest.1 = 0;
        }
    }

    /// How many may stand ahead.
    fn most(&self, slots: usize, most: usize) -> usize {
        if self.is_recalled || self.is_barred || self.ends < ENOUGH_ENDS || self.run > LONG_RUN {
            return 0;
        }
        let work = MOST_WORK * slots as f32 / self.run.max(0.1);
        self.length.min((work as usize).max(slots)).min(most)
    }
}

/// Where somebody stands who is granted.
pub(super) fn place(limits: &QueueLimits, holder: &Holder) -> (i64, Seq) {
    let lane = (!holder.front).then_some(holder.priority);
    let key = key_in(limits.order, lane, holder.enqueued_at);
    (key, holder.seq)
}

impl Load {
    /// How many of those who stand ahead begin before somebody who waits.
    pub(super) fn ahead_before(
        &self,
        limits: &QueueLimits,
        priority: Priority,
        waiting: &Waiting,
    ) -> usize {
        let Some(ahead) = self.ahead.as_ref().filter(|ahead| ahead.len() > 0) else {
            return 0;
        };
        let its = place(limits, &holder_of(priority, waiting));
        let is_before = |id: &ExecutionId| {
            let holder = self.active.get(*id);
            holder.is_some_and(|holder| place(limits, holder) < its)
        };
        // They were granted in order: nearly always all are, or none.
        match ahead.line.back().is_some_and(is_before) {
            true => ahead.len(),
            false => ahead.line.iter().take_while(|id| is_before(id)).count(),
        }
    }
}

impl ActionQueue {
    /// When the first of those was accepted.
    pub(super) fn oldest_ahead(&self) -> Option<Millis> {
        let load = self.load.as_deref()?;
        let line = load.ahead.iter().flat_map(|ahead| &ahead.line);
        let holders = line.filter_map(|id| load.active.get(*id));
        holders.map(|holder| holder.enqueued_at).min()
    }

    /// How many of those who stand ahead begin before this one.
    pub(super) fn ahead_before(&self, id: ExecutionId) -> u64 {
        let ahead = self.load.as_ref().and_then(|load| load.ahead.as_ref());
        let before = ahead.map(|ahead| ahead.line.iter().take_while(|other| **other != id));
        before.map_or(0, |before| before.count() as u64)
    }

    /// Notes how long a run took, where its action may be granted ahead.
    pub(crate) fn note_end(&mut self, now: Millis, ran: Millis) {
        let Some(slots) = self.lane_slots() else {
            return;
        };
        // Where nobody waits nothing is granted ahead.
        if let Some(load) = self
            .load
            .as_mut()
            .filter(|load| load.ahead.is_some() || !load.order.is_empty())
        {
            let ahead = load.ahead.get_or_insert_default();
            ahead.note(now, ran, slots);
        }
    }

    /// How many slots it has, where it is so plain that executions may be granted ahead.
    fn lane_slots(&self) -> Option<usize> {
        let slots = self.limits.max_concurrent? as usize;
        let is_plain = self.limits.extra.is_none() && self.meters.is_none();
        (is_plain && slots <= MOST_SLOTS && slots > 0).then_some(slots)
    }

    /// Where slots had better be, all of them, and how many there are: at the worker that has most. `None` where
    /// nobody is to be granted ahead; `most` is how many may be.
    pub(crate) fn gathers_at(&self, most: usize) -> Option<(WorkerId, u32)> {
        let slots = self.lane_slots().filter(|slots| *slots > 1)?;
        let load = self.load.as_deref()?;
        let ahead = load.ahead.as_ref()?;
        if ahead.most(slots, most) == 0 || ahead.run > GATHERED_RUN {
            return None;
        }
        let mut counts: Vec<(usize, WorkerId)> = Vec::new();
        for worker in load.active.values().filter_map(|holder| holder.worker) {
            match counts.iter_mut().find(|(_, of)| *of == worker) {
                Some((count, _)) => *count += 1,
                None => counts.push((1, worker)),
            }
        }
        // Where some have as many, another one for each action: or all actions would gather at one of them.
        let lot = |worker: WorkerId| {
            let (_, low) = worker.0.as_u64_pair();
            // Knuth's multiplicative hash of both: which product is larger differs from action to action.
            let of_action = self.action_id.0.unsigned_abs().wrapping_add(1);
            low.wrapping_mul(of_action.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        };
        let most = counts
            .into_iter()
            .max_by_key(|(count, worker)| (*count, lot(*worker)));
        Some((most?.1, slots as u32))
    }

    /// The worker that has all of its slots, and with how many it may be granted executions ahead: `None` where
    /// that is nobody, where enough stand ahead, or where none waits. `most` is how many may stand ahead.
    pub(crate) fn sequencer(&self, most: usize) -> Option<(WorkerId, u32)> {
        let slots = self.lane_slots()?;
        let load = self.load.as_deref()?;
        let ahead = load.ahead.as_ref()?;
        let may = !self.is_stopped() && load.kept.is_none() && !load.order.is_empty();
        if !may || load.slots() != slots || ahead.len() >= ahead.most(slots, most) {
            return None;
        }
        if let Some(last) = ahead.line.back() {
            // All others are with it, too: else nobody would stand ahead.
            let worker = load.active.get(*last)?.worker?;
            return Some((worker, slots as u32));
        }
        let mut workers = load.active.values().map(|holder| holder.worker);
        let worker = workers.next()??;
        let is_its = workers.all(|other| other == Some(worker));
        is_its.then_some((worker, slots as u32))
    }

    /// How many tries of the first in order will have begun with its next.
    pub(crate) fn next_tries(&self) -> Option<u32> {
        let first = self.load.as_deref()?.order.first(self.limits.order);
        first.map(|(priority, waiting)| holder_of(priority, &waiting).tries())
    }

    /// Grants the first in order to a worker that has all slots, ahead of one.
    pub(crate) fn grant_ahead(
        &mut self,
        now: Millis,
        worker: WorkerId,
        grant_no: i64,
    ) -> Option<Granted> {
        let (limits, load) = (&self.limits, self.load.as_deref_mut()?);
        let (priority, waiting) = load.order.pop_first(limits.order)?;
        let attempt = waiting.next_attempt();
        let holder = Holder {
            worker: Some(worker),
            ahead: Some(grant_no),
            held_since: Some(now),
            ..holder_of(priority, &waiting)
        };
        load.active.insert(waiting.execution_id, holder);
        let ahead = load.ahead.get_or_insert_default();
        ahead.line.push_back(waiting.execution_id);
        ahead.tries = ahead.tries.max(holder.tries());
        ahead.slots = limits.max_concurrent.unwrap_or(0) as usize;
        Some(Granted {
            execution_id: waiting.execution_id,
            attempt,
            delayed: waiting.delayed,
            priority,
            eligible_at: waiting.eligible_at,
        })
    }

    /// Gives a free slot to the first of those who stand ahead.
    pub(crate) fn hand_on(&mut self, now: Millis) -> Option<(ExecutionId, Holder)> {
        let limits = &self.limits;
        let load = self.load.as_deref_mut()?;
        let id = *load.ahead.as_ref()?.line.front()?;
        let share = load.active.get(id)?.share;
        // Executions may demand different things since it was granted.
        let has_room = match &load.groups {
            None => {
                let limit = limits.max_concurrent;
                limit.is_none_or(|limit| load.slots() < limit as usize)
            }
            Some(groups) => {
                groups.unknown().is_empty()
                    && groups.has_room(limits, share.cost)
                    && groups.has_room_in(limits, share, 0)
            }
        };
        if !has_room {
            return None;
        }
        if let Some(groups) = &mut load.groups {
            groups.take(limits, share);
        }
        load.ahead.as_mut()?.remove(id);
        let holder = load.active.get_mut(id)?;
        (holder.ahead, holder.held_since) = (None, Some(now));
        Some((id, *holder))
    }

    /// Calls those back who stand ahead, where they must come back: operators hold the queue, its bounds are others,
    /// or whoever waits first belongs before one of them; or for what comes to all of them (`is_wanted`). The
    /// worker that is to be told, once.
    pub(crate) fn recall(&mut self, is_wanted: bool) -> Option<WorkerId> {
        let load = self.load.as_deref()?;
        let ahead = load.ahead.as_ref().filter(|ahead| !ahead.is_recalled)?;
        let worker = load.active.get(*ahead.line.front()?)?.worker;
        let has_its_slots = self.lane_slots() == Some(ahead.slots);
        if !is_wanted && !self.is_held() && has_its_slots && !self.is_overtaken(load) {
            return None;
        }
        let ahead = self.load.as_deref_mut()?.ahead.as_mut()?;
        ahead.is_recalled = true;
        // Where that happens again and again a long line comes back more often than it is of use.
        ahead.length = (ahead.length / 2).max(1);
        worker
    }

    /// The worker at which those who stand ahead are.
    pub(crate) fn lane_worker(&self) -> Option<WorkerId> {
        let load = self.load.as_deref()?;
        load.active.get(*load.ahead.as_ref()?.line.front()?)?.worker
    }

    /// The same, where they were called back, or are to be because there are no longer as many slots.
    pub(crate) fn outdated_lane(&self) -> Option<WorkerId> {
        let ahead = self.load.as_deref()?.ahead.as_ref()?;
        let has_its_slots = self.lane_slots() == Some(ahead.slots);
        self.lane_worker()
            .filter(|_| ahead.is_recalled || !has_its_slots)
    }

    /// How many tries somebody who stands ahead will have begun with this one, at least 1.
    pub(crate) fn tries_ahead(&self) -> u32 {
        let ahead = self.load.as_deref().and_then(|load| load.ahead.as_ref());
        ahead.map_or(1, |ahead| ahead.tries.max(1))
    }

    /// Whether anybody stands ahead.
    pub(crate) fn has_lane(&self) -> bool {
        self.load
            .as_ref()
            .is_some_and(|load| load.ahead_count() > 0)
    }

    /// The worker from which those who stand ahead were called back, and that has not answered.
    pub(crate) fn recalled_from(&self) -> Option<WorkerId> {
        let load = self.load.as_deref()?;
        let ahead = load.ahead.as_ref().filter(|ahead| ahead.is_recalled)?;
        load.active.get(*ahead.line.front()?)?.worker
    }

    /// Whether whoever waits first belongs before one who stands ahead.
    fn is_overtaken(&self, load: &Load) -> bool {
        let first = load.order.first(self.limits.order);
        first.is_some_and(|(priority, waiting)| {
            load.ahead_before(&self.limits, priority, &waiting) < load.ahead_count()
        })
    }

    /// Some that were granted are lost with their worker, and nobody knows which of those ahead had begun.
    pub(crate) fn bar_lane(&mut self) {
        if let Some(ahead) = self
            .load
            .as_deref_mut()
            .and_then(|load| load.ahead.as_mut())
        {
            ahead.is_barred = true;
        }
    }

    /// Gives somebody its place in the line who is stored as granted ahead, and counts as granted: among the others
    /// by their grants, for so their worker begins them, whatever order the action has had since.
    pub(super) fn restore_ahead(&mut self, id: ExecutionId) {
        let Some(load) = self.load.as_deref_mut() else {
            return;
        };
        let grant_no = |id: &ExecutionId| load.active.get(*id).and_then(|holder| holder.ahead);
        let its = grant_no(&id);
        let ahead = load.ahead.take().unwrap_or_default();
        let mut line = ahead.line;
        let index = line.partition_point(|other| grant_no(other) < its);
        line.insert(index, id);
        let tries = load.active.get(id).map_or(0, Holder::tries);
        load.ahead = Some(Box::new(Ahead {
            line,
            tries: ahead.tries.max(tries),
            ..Ahead::default()
        }));
    }
}

/// Whoever waited, as it is granted.
pub(super) fn holder_of(priority: Priority, waiting: &Waiting) -> Holder {
    Holder {
        attempt: waiting.next_attempt(),
        unbegun: waiting.unbegun,
        priority,
        seq: waiting.seq,
        enqueued_at: waiting.enqueued_at,
        eligible_at: waiting.eligible_at,
        held_since: None,
        cancel_requested: false,
        front: waiting.front,
        share: waiting.share,
        worker: None,
        started: false,
        ahead: None,
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
