//! What keeps somebody from a slot, said by what gives the slots; and the queue as it looks from its place,
//! for an estimate. However long a queue is, only so much of it is looked at.

use std::collections::HashMap;

use attune_core::explain::{
    Explanation, Lack, LimitHolder, MAX_HOLDERS, NoEstimate, OrderKey, QueueState, Reason,
};
use attune_core::{ExecutionId, GroupKey, OrderRule, Priority};
use chrono::{DateTime, Utc};

use super::action_queue::ActionQueue;
use super::ahead::place;
use super::entry::{Holder, Millis, Waiting};
use super::load::Load;
use crate::policy::estimate::{self, Held, Overtakers, Scene, Waiter};
use crate::policy::{Group, Groups, Member, RunTimes, Share, Turn, key_in};

/// How many places of a queue, holders and members of a group are looked at one by one at most.
const LOOKED_AT: usize = 4096;
/// The same of those who stand before somebody, where executions demand different things: each is weighed.
const WEIGHED: usize = 1024;

/// Who waits, and where.
struct Place {
    priority: Priority,
    waiting: Waiting,
    position: u64,
}

pub(super) fn time(millis: Millis) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or_default()
}

impl ActionQueue {
    /// What keeps an execution from a slot; `None` when it is not in this queue. `pool` is where it would
    /// run, `times` are those of what has ended in this queue.
    pub(crate) fn explain(
        &self,
        now: Millis,
        id: ExecutionId,
        pool: &str,
        times: Option<&RunTimes>,
    ) -> Option<Explanation> {
        let (load, seq) = (self.load.as_deref()?, id.seq());
        if let Some(holder) = load.active.get(id) {
            if holder.is_ahead() {
                return Some(self.explain_ahead(now, load, (id, holder), times));
            }
            let (attempt, priority) = (holder.attempt, holder.priority);
            let mut said = explained(now, QueueState::HoldsSlot, attempt, priority);
            if let Some(until) = self.kept_until(id) {
                said.waits_for = self.stops(load, pool);
                let rate = load.groups.as_ref().map_or(GroupKey::default(), |groups| {
                    groups.rate_of(holder.share.group)
                });
                let opens = self.rate_opens(rate).filter(|_| until <= now);
                let backoff = (until > now).then(|| Reason::Backoff { until: time(until) });
                said.waits_for.extend(backoff);
                let opens = opens.map(|opens| Reason::Rate {
                    until: time(opens),
                    ahead: self.kept_before(load, rate, (until, id)),
                });
                said.waits_for.extend(opens);
                if said.waits_for.is_empty() {
                    said.waits_for.push(Reason::NextRound);
                }
                said.next_time = Some(time(until));
            }
            said.waits_for.extend(self.waits_for_its_key(id));
            return Some(said);
        }
        if let Some((priority, waiting, until)) = load.delayed.find(seq) {
            let mut said = explained(now, QueueState::Delayed, waiting.attempt, priority);
            let until = time(until);
            said.waits_for.push(match waiting.attempt.0 {
                0 => Reason::Delayed { until },
                _ => Reason::Backoff { until },
            });
            said.waits_for.extend(self.held_by());
            said.next_time = Some(until);
            said.no_estimate = Some(NoEstimate::Delayed);
            return Some(said);
        }
        let (priority, waiting) = load.order.find(seq)?;
        let rule = self.limits.order;
        let (position, is_about) = load.order.about_before(rule, (priority, &waiting));
        let position = position + load.ahead_before(&self.limits, priority, &waiting) as u64;
        let place = Place {
            priority,
            waiting,
            position,
        };
        let mut said = explained(now, QueueState::Waiting, waiting.attempt, priority);
        said.position = Some(position);
        said.is_about = is_about;
        said.order_key = Some(OrderKey {
            key: key_in(rule, waiting.lane(priority), waiting.enqueued_at),
            seq,
        });
        said.waits_for = self.reasons(load, &place, pool);
        said.expires_at = self.expires_at(&waiting).map(time);
        match self.estimate(now, load, &place, &said.waits_for, times) {
            Ok(estimate) => said.estimate = estimate,
            Err(why) => said.no_estimate = Some(why),
        }
        Some(said)
    }

    /// The same of somebody who stands ahead of a slot: it waits for those before it alone.
    fn explain_ahead(
        &self,
        now: Millis,
        load: &Load,
        (id, holder): (ExecutionId, &Holder),
        times: Option<&RunTimes>,
    ) -> Explanation {
        let position = self.ahead_before(id);
        let mut said = explained(now, QueueState::Waiting, holder.attempt, holder.priority);
        said.position = Some(position);
        let (key, seq) = place(&self.limits, holder);
        said.order_key = Some(OrderKey { key, seq });
        let place = Place {
            priority: holder.priority,
            waiting: holder.waiting(id),
            position,
        };
        // Executions may demand different things since it was granted.
        said.waits_for = regrouping(load).into_iter().collect();
        said.waits_for.extend(self.lacks(load, &place));
        if said.waits_for.is_empty() {
            said.waits_for.push(Reason::NextRound);
        }
        match self.estimate(now, load, &place, &said.waits_for, times) {
            Ok(estimate) => said.estimate = estimate,
            Err(why) => said.no_estimate = Some(why),
        }
        said
    }

    fn held_by(&self) -> Option<Reason> {
        let mode = self.held().mode?;
        Some(Reason::Paused { mode })
    }

    /// What stops the whole queue, whoever waits in it and whoever keeps a slot between two tries.
    fn stops(&self, load: &Load, pool: &str) -> Vec<Reason> {
        let mut stops: Vec<Reason> = self.held_by().into_iter().collect();
        if self.is_pool_closed() {
            let pool = pool.to_owned();
            stops.push(Reason::PoolClosed { pool });
        }
        stops.extend(regrouping(load));
        stops
    }

    /// All that keeps somebody from a slot who waits for one.
    fn reasons(&self, load: &Load, place: &Place, pool: &str) -> Vec<Reason> {
        let key = self.waits_for_key(place.waiting.execution_id).into_iter();
        let mut reasons: Vec<Reason> = key.chain(self.stops(load, pool)).collect();
        reasons.extend(self.lacks(load, place));
        let rate = load.groups.as_ref().map_or(GroupKey::default(), |groups| {
            groups.rate_of(place.waiting.share.group)
        });
        reasons.extend(self.rate_opens(rate).map(|opens| Reason::Rate {
            until: time(opens),
            ahead: self.ahead_in_rate(load, rate, place, opens),
        }));
        if reasons.is_empty() {
            reasons.push(Reason::NextRound);
        }
        reasons
    }

    /// How many go before somebody for the same rate, which has room again then: who waits, and who keeps its slot
    /// until its next try and is due by then.
    fn ahead_in_rate(&self, load: &Load, rate: GroupKey, place: &Place, opens: Millis) -> u64 {
        let waiting = match &load.groups {
            Some(groups) => {
                let group = place.waiting.share.group;
                groups.before_for_rate(&self.limits, group, &member(place), LOOKED_AT)
            }
            None => place.position,
        };
        waiting + self.kept_before(load, rate, (opens, ExecutionId(i64::MAX)))
    }

    /// How many keep their slots and begin their next try before somebody, when the same rate has room.
    fn kept_before(&self, load: &Load, rate: GroupKey, place: (Millis, ExecutionId)) -> u64 {
        let due = load.kept.iter().flat_map(|kept| kept.due_before(place));
        let of_rate = due.take(LOOKED_AT).filter(|id| {
            let holder = load.active.get(*id);
            let rate_of = |groups: &Groups| holder.map(|it| groups.rate_of(it.share.group));
            load.groups
                .as_ref()
                .is_none_or(|it| rate_of(it) == Some(rate))
        });
        of_rate.count() as u64
    }

    /// The limits in which somebody lacks room.
    fn lacks(&self, load: &Load, place: &Place) -> Vec<Reason> {
        match &load.groups {
            None => self.lacks_of_all(load, place).into_iter().collect(),
            Some(groups) if groups.unknown().is_empty() => self.lacks_in(load, groups, place),
            // Who is in which group is not known of all.
            Some(_) => Vec::new(),
        }
    }

    /// What somebody lacks where all demand the same.
    fn lacks_of_all(&self, load: &Load, place: &Place) -> Option<Reason> {
        let capacity = self.limits.max_concurrent?;
        let used = load.slots() as u64;
        if used + place.position < u64::from(capacity) {
            return None;
        }
        let lack = lack(load, None, capacity, used, (1, place.position));
        Some(Reason::Limit(lack))
    }

    /// What somebody lacks where executions demand different things: of its group, and of the action.
    fn lacks_in(&self, load: &Load, groups: &Groups, place: &Place) -> Vec<Reason> {
        let (limits, waiting) = (&self.limits, &place.waiting);
        let share = waiting.share;
        let me = member(place);
        let is_shared = limits.fairness().is_some();
        let (ahead, taken_ahead) = groups.before_in(limits, share.group, &me, LOOKED_AT);
        let (used, used_of_group) = groups.used(share.group);
        let cost = share.cost.into();
        let mut reasons = Vec::new();
        if let Some(capacity) = limits.group_limit()
            && (groups.waits_to_be_named(share.group)
                || !groups.has_room_in(limits, share, taken_ahead))
        {
            let group = Some(share.group);
            // Whose turn it is of the group has what is left of it, and may wait for the action.
            let named = groups.named_before(share.group);
            let mut lack = lack(load, group, capacity, used_of_group, (cost, ahead + named));
            lack.is_shared = is_shared && named == 0;
            reasons.push(Reason::GroupLimit(lack));
            let turn = groups.beside_first_in(share.group, me.lane);
            reasons.extend(turn.map(|turn| turn_of(waiting, &turn, true)));
        }
        if is_shared {
            reasons.extend(self.lacks_of_a_turn(load, groups, (waiting, &me), taken_ahead));
            return reasons;
        }
        let (others, before) = groups.ready_before(limits, share.group, &me, LOOKED_AT);
        let (own, own_before) = groups.fitting_before_in(limits, share.group, &me, LOOKED_AT);
        if let Some(capacity) = limits.max_concurrent
            && !groups.has_room_beside(limits, share.cost, own_before + before)
        {
            let lack = lack(load, None, capacity, used, (cost, others + own));
            reasons.push(Reason::Limit(lack));
        }
        reasons
    }

    /// What somebody lacks of the limit of the action where slots are shared: how many go before it is not
    /// known, so those of its own flow are counted alone.
    fn lacks_of_a_turn(
        &self,
        load: &Load,
        groups: &Groups,
        (waiting, me): (&Waiting, &Member),
        taken_ahead: u64,
    ) -> Vec<Reason> {
        let (limits, share) = (&self.limits, waiting.share);
        let mut reasons = Vec::new();
        let (used, _) = groups.used(share.group);
        let (own, _) = groups.fitting_before_in(limits, share.group, me, LOOKED_AT);
        let earlier = groups.in_earlier_lanes(limits, share.group, me, LOOKED_AT);
        let turn = groups.beside_first(share.group, me.lane);
        let is_full = !groups.has_room_beside(limits, share.cost, taken_ahead);
        // Whoever has the turn of an earlier lane may be too dear for the room that there is.
        let (others, before) = match turn.is_none() && !is_full {
            true => groups.ready_before(limits, share.group, me, LOOKED_AT),
            false => (0, 0),
        };
        let is_behind = !groups.has_room_beside(limits, share.cost, taken_ahead + before);
        if let Some(capacity) = limits.max_concurrent
            && is_behind
        {
            let cost = share.cost.into();
            let ahead = own + others.max(earlier);
            let mut lack = lack(load, None, capacity, used, (cost, ahead));
            lack.is_shared = others == 0;
            reasons.push(Reason::Limit(lack));
        }
        reasons.extend(turn.map(|turn| turn_of(waiting, &turn, false)));
        reasons
    }

    /// When somebody who waits is given a slot; `Ok(None)` where nothing keeps it.
    fn estimate(
        &self,
        now: Millis,
        load: &Load,
        place: &Place,
        reasons: &[Reason],
        times: Option<&RunTimes>,
    ) -> Result<Option<attune_core::explain::Estimate>, NoEstimate> {
        for reason in reasons {
            match reason {
                Reason::Key { .. } => return Err(NoEstimate::Key),
                Reason::Paused { .. } => return Err(NoEstimate::Paused),
                Reason::PoolClosed { .. } => return Err(NoEstimate::PoolClosed),
                Reason::Regrouping { .. } => return Err(NoEstimate::Regrouping),
                Reason::Rate { .. } => return Err(NoEstimate::Rate),
                Reason::NextRound => return Ok(None),
                _ => {}
            }
        }
        if self.limits.fairness().is_some() {
            return Err(NoEstimate::Turns);
        }
        let needed = estimate::NEEDED;
        let samples = times.map_or(0, RunTimes::samples);
        let Some(times) = times.filter(|_| samples >= needed) else {
            return Err(NoEstimate::FewSamples { samples, needed });
        };
        let mut scene = match &load.groups {
            None => self.scene(now, load, place),
            Some(_) => self.scene_in_groups(now, load, place),
        };
        scene.overtakers = self.overtakers(now, load, place, times);
        let wait = estimate::wait(&scene, times).ok_or(NoEstimate::Overtaken)?;
        let after = |millis: f64| time(now.saturating_add(millis.round() as Millis));
        Ok(Some(attune_core::explain::Estimate {
            starts_at: after(wait.median),
            earliest: after(wait.earliest),
            latest: after(wait.latest),
            basis: times.basis(now),
        }))
    }

    /// The queue as it looks from a place, where all demand the same.
    fn scene(&self, now: Millis, load: &Load, place: &Place) -> Scene {
        let holders = load.active.values().filter(|holder| !holder.is_ahead());
        let holders = holders.take(estimate::PLAYED_HOLDERS + 1);
        let played = place.position.min(estimate::PLAYED as u64 - 1);
        let waiter = Waiter { cost: 1, group: 0 };
        let due = self.due(now, load, place);
        Scene {
            limit: self.limits.max_concurrent.map(u64::from),
            group_limit: None,
            groups: 1,
            holders: holders.map(|holder| held(now, holder, 0)).collect(),
            line: (0..=played).map(|_| waiter).collect(),
            beyond: (place.position - played) as f64,
            due: due.map(|(at, _)| (at, waiter)).collect(),
            overtakers: Vec::new(),
        }
    }

    /// The same, where executions demand different things.
    fn scene_in_groups(&self, now: Millis, load: &Load, place: &Place) -> Scene {
        let rule = self.limits.order;
        let before = load
            .order
            .first_before(rule, (place.priority, &place.waiting), WEIGHED);
        let beyond = place.position.saturating_sub(before.len() as u64);
        // Those of one group share its limit, for whomever their starts count.
        let groups = load.groups.as_ref();
        let mut numbers: HashMap<Option<GroupKey>, usize> = HashMap::new();
        let mut number = |group: Group| {
            let key = groups.and_then(|groups| groups.key_of(group));
            let next = numbers.len();
            *numbers.entry(key).or_insert(next)
        };
        let line = before.iter().chain([&place.waiting]);
        let line = line.map(|waiting| Waiter {
            cost: waiting.share.cost.into(),
            group: number(waiting.share.group),
        });
        let line = line.collect();
        let due = self.due(now, load, place).map(|(at, share)| {
            let (cost, group) = (share.cost.into(), number(share.group));
            (at, Waiter { cost, group })
        });
        let due = due.collect();
        let holders = load.active.values().take(LOOKED_AT);
        let holders = holders.map(|holder| held(now, holder, number(holder.share.group)));
        let holders = holders.collect();
        Scene {
            limit: self.limits.max_concurrent.map(u64::from),
            group_limit: self.limits.group_limit().map(u64::from),
            groups: numbers.len(),
            holders,
            line,
            beyond: beyond as f64,
            due,
            overtakers: Vec::new(),
        }
    }

    /// Who waits for its time and goes before somebody from then on, as those do who are tried again: in how many
    /// milliseconds, and what it takes. Of those whose time comes first.
    fn due(&self, now: Millis, load: &Load, place: &Place) -> impl Iterator<Item = (f64, Share)> {
        let rule = self.limits.order;
        let key = move |priority: Priority, waiting: &Waiting| {
            let key = key_in(rule, waiting.lane(priority), waiting.enqueued_at);
            (key, waiting.seq)
        };
        let own = key(place.priority, &place.waiting);
        let first = load.delayed.by_time().take(WEIGHED);
        let before = first.filter(move |(_, priority, waiting)| key(*priority, waiting) < own);
        before.map(move |(time, _, waiting)| ((time - now).max(0) as f64, waiting.share))
    }

    /// Who comes later and goes before somebody, as far as what has ended shows.
    fn overtakers(
        &self,
        now: Millis,
        load: &Load,
        place: &Place,
        times: &RunTimes,
    ) -> Vec<Overtakers> {
        if place.waiting.front {
            return Vec::new();
        }
        let rule = self.limits.order;
        let higher = Priority::ALL.into_iter();
        let higher = higher.take_while(|priority| *priority < place.priority);
        let key = rule.key(place.priority, place.waiting.enqueued_at);
        let overtakers = higher.filter_map(|priority| {
            let until = match rule {
                OrderRule::Priority => None,
                OrderRule::Fifo => return None,
                OrderRule::Ageing { .. } => Some((key - rule.key(priority, now)) as f64),
            };
            let holders = load.active.values().take(LOOKED_AT);
            let holders = holders.filter(|holder| holder.priority == priority);
            let newest = holders.map(|holder| holder.enqueued_at).max();
            let newest = newest.max(load.order.newest(priority));
            let rate = times.rate(now, priority, newest);
            (rate > 0.0 && until.is_none_or(|until| until > 0.0))
                .then_some(Overtakers { rate, until })
        });
        overtakers.collect()
    }
}

/// What all wait for until it is known who is in which group.
fn regrouping(load: &Load) -> Option<Reason> {
    let unknown = load.groups.as_ref()?.unknown().len() as u64;
    (unknown > 0).then_some(Reason::Regrouping { unknown })
}

/// Somebody as it stands in its group.
fn member(place: &Place) -> Member {
    let waiting = &place.waiting;
    Member {
        lane: waiting.lane(place.priority),
        seq: waiting.seq,
        cost: waiting.share.cost,
        enqueued_at: waiting.enqueued_at,
    }
}

/// Whose turn it is, for somebody whose turn it is not.
fn turn_of(waiting: &Waiting, turn: &Turn, in_group: bool) -> Reason {
    let partition = waiting.execution_id.partition();
    Reason::Turn {
        holds: turn.own.slots,
        weight: turn.own.weight.into(),
        next_holds: turn.next.slots,
        next_weight: turn.next.weight.into(),
        next: Some(ExecutionId::new(partition, turn.seq)),
        in_group,
    }
}

fn explained(
    now: Millis,
    state: QueueState,
    attempt: attune_core::Attempt,
    priority: Priority,
) -> Explanation {
    Explanation {
        state,
        attempt,
        priority,
        at: time(now),
        waits_for: Vec::new(),
        next_time: None,
        expires_at: None,
        position: None,
        is_about: false,
        order_key: None,
        estimate: None,
        no_estimate: None,
        policy_version: None,
    }
}

fn held(now: Millis, holder: &Holder, group: usize) -> Held {
    Held {
        age: holder.held_since.map(|since| now - since),
        cost: holder.share.cost.into(),
        group,
    }
}

/// A limit that has no room: of the action, or of a group.
fn lack(
    load: &Load,
    group: Option<Group>,
    capacity: u32,
    used: u64,
    (cost, ahead): (u64, u64),
) -> Lack {
    let holders = load.active.iter().take(LOOKED_AT);
    let is_of = |holder: &Holder| match (group, &load.groups) {
        (Some(group), Some(groups)) => groups.share_limit(holder.share.group, group),
        _ => true,
    };
    let is_of = |holder: &Holder| !holder.is_ahead() && is_of(holder);
    let mut holders = holders.filter(|(_, holder)| is_of(holder));
    let named = holders.by_ref().take(MAX_HOLDERS);
    let named: Vec<LimitHolder> = named
        .map(|(id, holder)| LimitHolder {
            execution_id: id,
            attempt: holder.attempt,
            cost: holder.share.cost.into(),
            since: holder.held_since.map(time),
            kept_until: load.kept.as_ref().and_then(|kept| kept.until(id)).map(time),
        })
        .collect();
    let more_holders = match group {
        Some(_) => holders.count() as u64,
        None => (load.slots() - named.len()) as u64,
    };
    Lack {
        capacity: capacity.into(),
        used,
        cost,
        ahead,
        holders: named,
        more_holders,
        is_shared: false,
    }
}

#[cfg(test)]
#[path = "explaining_tests.rs"]
mod tests;
