//! Whether things go on: a free slot and somebody who may have it come together soon, nobody
//! stands still over a piece of work while others wait, and a refusal costs no new epoch.
//!
//! All of it is seen from outside: a slot is free when the broker has the end of its run, whether
//! or not an owner has looked. An owner that makes no rounds is accused here.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionId, DemandRule, Epoch, ExecutionId, OwnerId, PartitionId, Status};
use attune_executor::owner::{Call, Reply};
use attune_executor::stored::Batch;

use crate::clocks::Clocks;
use crate::groups::{Group, Grouping, Words};
use crate::idle::Idle;
use crate::oracle::{Key, Rule, Violation};
use crate::plan::{Op, Time};
use crate::world::{Ev, StoreCall, WALL, World};

/// How long a free slot may wait for somebody who may have it when nothing is wrong.
pub(crate) const BOUND: Time = 5_000;
/// How long after something was wrong it still excuses: owners wait this long at most before they
/// try again.
const AFTERWARDS: Time = 2_500;
/// How often an owner may take a partition from itself without a reason: what it lets go and what
/// it is told may cross. A loop does it far more often.
const RACES: u64 = 3;
/// How often it is looked at.
const LOOK_EVERY: Time = 500;
/// How long an owner may be busy with one thing while others wait, in milliseconds.
const PAUSE: Time = 30;
/// How many rows and how many slots an owner compares in a millisecond.
const ROWS: usize = 10;
const SLOTS: usize = 40;

/// What is remembered of it.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Since when each action has a free slot and somebody who may have it, without an excuse.
    since: BTreeMap<ActionId, Time>,
    /// Since when the owner of each action goes by another limit than the stored one, without an excuse.
    behind: BTreeMap<ActionId, Time>,
    /// Which ends of each action its owner had not taken at the last look, and which of all in its partition.
    backlogs: BTreeMap<ActionId, [BTreeSet<Key>; 2]>,
    /// Runs whose ends the broker has.
    ended: BTreeSet<Key>,
    /// Until then whatever does not go on has an excuse.
    excused_until: Time,
    /// For how long each owner is busy with what it is doing, while that is too long.
    busy: BTreeMap<usize, Time>,
    /// How often an owner did not learn what came of a call that changes something, or the time.
    unknown: BTreeMap<OwnerId, u64>,
    /// Who waits beside room.
    pub(crate) idle: Idle,
    /// Who is ahead of the time.
    pub(crate) clocks: Clocks,
    /// How often an owner has taken a partition from itself.
    taken_again: BTreeMap<(OwnerId, PartitionId), u64>,
}

impl Flow {
    /// The broker has the end of a run.
    pub(crate) fn ended(&mut self, key: Key) {
        self.ended.insert(key);
    }

    /// Something is wrong until then.
    pub(crate) fn excuse(&mut self, until: Time) {
        self.excused_until = self.excused_until.max(until + AFTERWARDS);
    }

    /// A store call came to nothing, or nobody knows what came of it.
    pub(crate) fn failed(&mut self, call: &StoreCall, refused: bool) {
        let owner = match call {
            // One that the store does not take with a page of an operation is given up as well.
            StoreCall::Commit(written) if !refused || !written.commit.batch.progress.is_empty() => {
                written.commit.batch.owner
            }
            StoreCall::Owner(owner, call) if matches!(**call, Call::Acquire(_)) => *owner,
            _ => return,
        };
        *self.unknown.entry(owner).or_default() += 1;
    }

    /// An owner has learnt that it went by the wrong time, or its leases may have been others' for a
    /// while: it loads everything again.
    pub(crate) fn may_load_again(&mut self, owner: OwnerId) {
        *self.unknown.entry(owner).or_default() += 1;
    }

    /// A store call is on its way. What is being given up may be taken again before it is free.
    pub(crate) fn sent(&mut self, call: &StoreCall) {
        if let StoreCall::Owner(owner, call) = call
            && matches!(**call, Call::GiveUp(..))
        {
            *self.unknown.entry(*owner).or_default() += 1;
        }
    }
}

impl World {
    pub(crate) fn watch_flow(&mut self) {
        self.push(self.now + LOOK_EVERY, Ev::Watch);
        self.watch_ways();
        let excused = self.is_anything_wrong();
        self.note_room();
        self.watch_clocks(excused);
        for number in 0..self.store.actions.len() {
            let action = self.store.actions[number].id;
            self.watch_limit(number, excused);
            let partition = self.store.actions[number].partition;
            let is_unread = self.lasting.is_unread(partition, self.now);
            self.watch_policies(partition, excused || is_unread || !self.is_served(number));
            let is_calm = !excused && !self.is_held(number) && self.is_served(number);
            self.watch_idle(number, is_calm);
            let waiting = self.could_be_granted(number).filter(|_| !excused);
            let waiting = waiting.filter(|_| !self.is_held(number));
            let Some(id) = waiting.filter(|_| self.is_served(number)) else {
                self.flow.since.remove(&action);
                continue;
            };
            if self.takes_ends(number) {
                self.flow.since.remove(&action);
            }
            let since = *self.flow.since.entry(action).or_insert(self.now);
            if self.now - since > BOUND {
                let words = format!(
                    "{id} waits although a slot of {action} is free and nothing is wrong since {since} ms"
                );
                self.oracle
                    .blame(self.now, Violation::of(Rule::Progress, words));
            }
        }
    }

    /// A limit, an order and a pause that are stored hold soon, whether or not their owner was told of them.
    fn watch_limit(&mut self, number: usize, excused: bool) {
        let action = &self.store.actions[number];
        let policy = &action.spec.policy;
        let rule = DemandRule::of(&action.spec).map(|rule| rule.mark());
        let limits = (
            policy.concurrency.limit,
            policy.concurrency.group_limit,
            rule,
        );
        let held = self.store.pauses.hold_of(&action.spec.action_ref).mode;
        let (id, stored) = (action.id, (limits, policy.order(), held));
        let lease = &self.store.leases[usize::from(action.partition.0)];
        let shadow = self.shadows.get(&(action.partition, Epoch(lease.epoch)));
        let held_to = shadow.and_then(|shadow| shadow.bounds.get(&id));
        let mode = shadow.and_then(|shadow| shadow.hold_of(id).mode);
        let differs = held_to.is_some_and(|to| {
            let limits = (to.max_concurrent, to.group_limit(), to.demands());
            (limits, to.order, mode) != stored
        });
        let is_unread = self.lasting.is_unread(action.partition, self.now);
        if excused || is_unread || !differs || !self.is_served(number) {
            self.flow.behind.remove(&id);
            return;
        }
        let since = *self.flow.behind.entry(id).or_insert(self.now);
        if self.now - since > BOUND {
            let words = format!("the policy {stored:?} of {id} does not hold since {since} ms");
            self.oracle
                .blame(self.now, Violation::of(Rule::Progress, words));
        }
    }

    /// It was read what somebody of this action demands, because they are told apart otherwise than when it was
    /// accepted: a queue that stands still until that is known of all goes on with it.
    pub(crate) fn grouped(&mut self, action: ActionId) {
        self.flow.since.remove(&action);
    }

    /// These were granted: things go on.
    pub(crate) fn granted_now(&mut self, batch: &Batch) {
        let changed = batch.changes.iter();
        let changed = changed.filter(|change| change.grant_no.is_some());
        let inserted = batch.inserts.iter();
        let inserted = inserted.filter(|new| new.status == Status::Requested);
        let ids = changed.map(|it| it.id).chain(inserted.map(|it| it.id));
        for id in ids {
            if let Some(row) = self.store.active.get(&id) {
                self.flow.since.remove(&row.action);
                self.flow.idle.went_on(row.action);
            }
        }
    }

    fn is_anything_wrong(&self) -> bool {
        let now = self.now;
        now < self.flow.excused_until
            || now < self.store_down_until
            || now < self.refuse_until
            || self.lasting.reads_fail(now)
    }

    /// Whether an owner serves the partition of an action, and its pool has a worker with room.
    fn is_served(&self, number: usize) -> bool {
        let partition = self.plan.partition_of(number);
        let lease = &self.store.leases[usize::from(partition.0)];
        let owner = lease.owner.filter(|_| lease.is_live(self.now));
        let owner = owner.and_then(|id| self.owner_of(id));
        let owner = owner.filter(|owner| self.could_have_bus(*owner, partition));
        // It lets the partition go, and cannot say so: its lease has to run out.
        let owner = owner.filter(|owner| !self.lasting.without_store(*owner, self.now));
        let owner = owner.map(|owner| &self.owners[owner]);
        // Who cannot know the time starts what is delayed late rather than early.
        owner.is_some_and(|owner| owner.is_alive() && !self.lasting.is_in_doubt(owner.id()))
            && self.shadows.contains_key(&(partition, Epoch(lease.epoch)))
            && self
                .lasting
                .is_open(self.plan.actions[number].pool, self.now)
    }

    /// Whether messages reach this owner, or should reach another one by now: the time for that
    /// begins when there is another one who could serve.
    fn could_have_bus(&self, owner: usize, partition: PartitionId) -> bool {
        self.lasting.without_bus(owner, self.now).is_none() || self.should_have_gone(partition)
    }

    /// Whether ends of an action were taken since the last look, or others that may lie before those of the action:
    /// that is work that goes on, also where as many have come meanwhile.
    fn takes_ends(&mut self, number: usize) -> bool {
        let stored = &self.store.actions[number];
        let (action, partition) = (stored.id, stored.partition);
        let of_action = self.backlog(|_, of| of == action);
        let of_partition = self.backlog(|id, _| id.partition() == partition);
        let waits = !of_action.is_empty();
        let now = [of_action, of_partition];
        let before = self.flow.backlogs.insert(action, now).unwrap_or_default();
        let now = &self.flow.backlogs[&action];
        !before[0].is_subset(&now[0]) || waits && !before[1].is_subset(&now[1])
    }

    /// The runs of these that hold a slot although the broker has their ends.
    fn backlog(&self, of: impl Fn(ExecutionId, ActionId) -> bool) -> BTreeSet<Key> {
        let rows = self.store.active.iter();
        let rows = rows.filter(|(id, row)| of(**id, row.action) && row.status.holds_slot());
        let keys = rows.map(|(id, row)| (*id, row.attempt));
        keys.filter(|key| self.flow.ended.contains(key)).collect()
    }

    /// Whether anybody changes by what an action is grouped, or how many of a user may wait, for which its executions
    /// are told apart by their users.
    fn is_regrouped(&self, number: usize) -> bool {
        let mut ops = self.plan.ops.iter();
        ops.any(|op| {
            matches!(op.what, Op::Group { action, .. } | Op::Overflow { action, .. } if action == number)
        })
    }

    /// Who keeps its slot although the time of its next try has come.
    fn overdue(&self, action: ActionId) -> Option<ExecutionId> {
        let rows = self.store.active.iter();
        let mut kept = rows.filter(|(_, row)| row.action == action && row.status.holds_slot());
        let is_due = |time: Time| time <= WALL + self.now;
        let overdue = kept.find(|(_, row)| row.kept_until.is_some_and(is_due));
        overdue.map(|(id, _)| *id)
    }

    /// Somebody who could be given a slot of an action, as it looks from outside: all who wait in its
    /// group have room there, and all who wait in that of the action.
    fn could_be_granted(&self, number: usize) -> Option<ExecutionId> {
        let stored = &self.store.actions[number];
        if self
            .rates
            .may_be_used_up(stored.id, &stored.spec.policy, self.now)
        {
            return None;
        }
        let rows = self.store.active.iter();
        let rows = rows.filter(|(_, row)| row.action == stored.id);
        let held: Vec<_> = rows
            .clone()
            .filter(|(id, row)| {
                let has_ended = self.flow.ended.contains(&(**id, row.attempt));
                row.status.holds_slot() && (row.kept_until.is_some() || !has_ended)
            })
            .map(|(_, row)| Words::of(row.request))
            .collect();
        let eligible = rows.filter(|(_, row)| {
            let starts = row.not_before.is_none_or(|time| time <= WALL + self.now);
            !row.status.holds_slot() && starts
        });
        let eligible: Vec<_> = eligible
            .map(|(id, row)| (*id, Words::of(row.request)))
            .collect();
        let rule = DemandRule::of(&stored.spec);
        let grouping = Grouping::of(rule.map(|rule| rule.mark()));
        // What reads fail for one partition alone keeps its queues from being grouped anew, and from hearing that
        // they are grouped no more.
        let is_grouped = grouping != Grouping::default() || self.is_regrouped(number);
        if is_grouped && self.lasting.is_unread(stored.partition, self.now) {
            return None;
        }
        if let Some(id) = self.overdue(stored.id) {
            return Some(id);
        }
        let fit = |limit: u32, group: Option<Group>| {
            let is_in = |words: &Words| group.is_none_or(|group| grouping.group(*words) == group);
            let cost = |words: &Words| grouping.cost(*words);
            let used: u64 = held.iter().filter(|words| is_in(words)).map(cost).sum();
            let waiting = eligible.iter().map(|(_, words)| words);
            let dearest = waiting.filter(|words| is_in(words)).map(cost).max();
            used + dearest.unwrap_or(1) <= u64::from(limit)
        };
        if !fit(self.oracle.said.least(stored.id), None) {
            return None;
        }
        let group_limit = stored.spec.policy.concurrency.group_limit;
        let mut free = eligible.iter().filter(|(_, words)| {
            let group = grouping.group(*words);
            group_limit.is_none_or(|limit| fit(limit, Some(group)))
        });
        free.next().map(|(id, _)| *id)
    }

    // ---- one thing at a time ----

    /// How long an owner is busy with what it has read.
    pub(crate) fn charge(&mut self, o: usize, reply: &Reply) {
        let cost = match reply {
            Reply::Rows { rows, .. } | Reply::Slice { rows, .. } => rows.len() / ROWS,
            Reply::Slots(slots) => slots.len() / SLOTS,
            _ => 0,
        };
        let cost = Time::try_from(cost).unwrap_or(0);
        if cost == 0 {
            return;
        }
        let owner = &mut self.owners[o];
        owner.paused_until = owner.paused_until.max(self.now + cost);
        if cost > PAUSE {
            self.flow.busy.insert(o, cost);
        }
    }

    /// An owner that was busy looks up: who could have been given a slot meanwhile?
    pub(crate) fn judge_pause(&mut self, o: usize) {
        let Some(cost) = self.flow.busy.remove(&o) else {
            return;
        };
        let id = self.owners[o].id();
        for number in 0..self.store.actions.len() {
            let partition = self.plan.partition_of(number);
            let lease = &self.store.leases[usize::from(partition.0)];
            if lease.owner != Some(id) || !self.is_served(number) {
                continue;
            }
            let waiting = self.could_be_granted(number);
            if let Some(waiting) = waiting.filter(|_| !self.is_held(number)) {
                let words = format!(
                    "an owner did one thing for {cost} ms, while {waiting} could have had a slot"
                );
                self.oracle
                    .blame(self.now, Violation::of(Rule::Pause, words));
            }
        }
    }

    // ---- new epochs ----

    /// An owner asks for partitions. One that it holds already is asked for because it does not
    /// know what came of an earlier call; a call that was refused is no such reason.
    pub(crate) fn judge_acquiring(&mut self, owner: OwnerId, wanted: &[PartitionId]) {
        for partition in wanted {
            let lease = &self.store.leases[usize::from(partition.0)];
            if lease.owner != Some(owner) || !lease.is_live(self.now) {
                continue;
            }
            let taken = self.flow.taken_again.entry((owner, *partition));
            let taken = taken.or_default();
            *taken += 1;
            let reasons = self.flow.unknown.get(&owner).copied().unwrap_or(0);
            if *taken > reasons + RACES {
                let words = format!(
                    "an owner takes partition {partition} from itself, for the {taken}. time, and \
                     {reasons} calls had an unknown outcome or showed the wrong time"
                );
                self.oracle
                    .blame(self.now, Violation::of(Rule::Restraint, words));
            }
        }
    }
}
