//! The queue of each action, replayed from what its owners decided.
//!
//! *I2.* After each grant, those that hold a slot take no more of the limit of the action, and those of
//! each group no more of the limit of a group, than the limits at that grant allow, unless it is one
//! alone; a lowered limit takes no slot away. Of whom it is not known what it demands, one is taken.
//! No attempt is granted while the execution holds one.
//!
//! *I3.* When a slot is granted, nobody waits who stands before the execution that gets it: by
//! (priority, id), by id alone, or with ageing by (time of acceptance + a step for each rank of its
//! priority, id); the rule is that of the grant. Times are compared between priorities where the owner that
//! grants has accepted both: what another one has written down is loaded by a clock that may differ. They
//! tell nothing where they contradict the ids, because then the clock was put right. Who waits is what was accepted without a delay and has never been granted, and
//! what was put back: an execution whose slot was taken back waits at its place again, at once.
//! Of an execution accepted in an earlier epoch it is known that it waits only if a later record
//! shows how it left the queue for the first time; else the record of that may be lost. So with
//! one that was put back: it waits when a grant of its next attempt is recorded. Who is tried again is
//! given no slot before its time, or, in a slot that it has kept, no next attempt, and waits at its place from a second after it on, by the time that
//! the grants say. Where executions are grouped, so is who waits in another group that has room for it; of
//! whom the group is not known nothing is said. Where slots are shared, who waits in another flow is a matter of
//! turns (I10, `shares`).
//!
//! *I4.* In the end nobody holds a slot; judged here only without the rows of the store.
//!
//! *I6.* At the end of a round that touched a queue there is no free slot while somebody waits
//! (as for I3): whatever freed the slot must have granted it in the same commit. A round that
//! granted as many as one step may goes on in the next, and so does one whose owner says so, because the
//! step did as much for other queues; `free_slots` sees one who says so for ever. Where executions are
//! grouped, there must be room for whoever waits first in a group, and for the dearest of those that do in
//! the limit of the action; while more wait than it is known of, for the dearest that ever came.
//!
//! *I7.* At the end of such a round the counts of the queue add up, they have risen by what the
//! round decided, and as many hold a slot as the records show.

mod ahead;
mod gone;
mod keeping;
mod length;
mod order;
mod room;
mod shares;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use attune_core::{
    ActionId, Attempt, Demand, Epoch, ExecutionId, Flow, GroupKey, OrderRule, Priority, Seq, Status,
};

use super::decision::{Bounds, Counts, What};
use super::facts::{Facts, Key};
use super::{Judged, Promise, Violation, violation};
use gone::Expected;
use length::Length;
use shares::Shares;

/// An owner that granted so many in one step goes on in the next round.
pub(super) const STEP: u32 = 1000;

/// How long after its time somebody waits at its place for sure, in milliseconds.
const DUE_SINCE: i64 = 1_000;

pub(super) fn judge(
    facts: &mut Facts,
    rows_known: bool,
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let shares = Shares::of(facts);
    for (action_id, mut decisions) in std::mem::take(&mut facts.decisions) {
        decisions.sort_unstable_by_key(|decision| (decision.epoch, decision.record));
        let mut replay = Replay::new(facts, &shares, action_id, broken);
        for decision in decisions {
            if replay.epoch != Some(decision.epoch) {
                replay.begin(decision.epoch);
            }
            replay.apply(decision.record, decision.what);
        }
        if !rows_known {
            replay.finish();
        }
        judged.retries += replay.put_back;
        judged.shares += replay.turns;
    }
}

/// A group, for whom starts are counted, and whose turn it is.
type Class = (GroupKey, GroupKey, Flow);

/// By what somebody stands in line: its priority, or nothing where it goes before all others.
type Lane = Option<Priority>;

/// Who waits, by lane.
type Lanes = BTreeMap<Lane, BTreeSet<ExecutionId>>;

/// The queue of one action, as far as the records tell.
struct Replay<'a> {
    facts: &'a Facts,
    shares: &'a Shares,
    action_id: ActionId,
    broken: &'a mut Vec<Violation>,
    epoch: Option<Epoch>,
    /// Who holds a slot, and the record of the grant.
    holders: HashMap<ExecutionId, (Attempt, u32)>,
    /// Who stands ahead of a slot, the number of its grant where that is known, and the record that says so.
    ahead: BTreeMap<ExecutionId, (Attempt, Option<i64>, u32)>,
    /// Who waits for sure, by group: in none where executions are not grouped, or it is not known how.
    waiting: BTreeMap<Option<Class>, Lanes>,
    /// What executions demand that were grouped anew.
    regrouped: HashMap<ExecutionId, Demand>,
    /// Where executions stand that were moved by operators.
    moved: HashMap<ExecutionId, Lane>,
    /// The rule by which executions demand different things.
    rule: Option<i64>,
    /// Who waits for its next try for sure: until when by the owner's time, and the record that says so.
    tried: BTreeMap<ExecutionId, (i64, u32)>,
    /// Who has held a slot and was put back.
    again: BTreeSet<ExecutionId>,
    /// Who holds a slot and waits for its next try: until when, and the record that says so.
    kept: HashMap<ExecutionId, (i64, u32)>,
    /// Who must be accepted next, because somebody has ended in its place.
    expected: Option<Expected>,
    /// Whether this owner's times of acceptance contradict the ids.
    is_contradictory: bool,
    /// The latest of them so far.
    latest: i64,
    /// The limits in force, once this epoch's records have named them.
    bounds: Option<Bounds>,
    /// How many may wait, and who came.
    length: Length,
    /// What freed a slot last.
    freed: Option<u32>,
    /// Grants in this round.
    granted: u32,
    /// Whether it was said already that nobody gets the free slot.
    is_stuck: bool,
    /// The counts at the end of the round before.
    counts: Option<(Counts, u32)>,
    /// What this round adds to them.
    added: Counts,
    /// How many were put back and granted again.
    put_back: u64,
    /// Whether somebody may wait of whom it is not known.
    is_unsure: bool,
    /// The most that anybody has demanded.
    most_demanded: u64,
    /// How many grants were held against the turns of others.
    turns: u64,
}

impl<'a> Replay<'a> {
    fn new(
        facts: &'a Facts,
        shares: &'a Shares,
        action_id: ActionId,
        broken: &'a mut Vec<Violation>,
    ) -> Self {
        Self {
            facts,
            shares,
            action_id,
            broken,
            epoch: None,
            holders: HashMap::new(),
            ahead: BTreeMap::new(),
            waiting: BTreeMap::new(),
            regrouped: HashMap::new(),
            moved: HashMap::new(),
            rule: None,
            tried: BTreeMap::new(),
            again: BTreeSet::new(),
            kept: HashMap::new(),
            expected: None,
            is_contradictory: false,
            latest: i64::MIN,
            bounds: None,
            length: Length::default(),
            freed: None,
            granted: 0,
            is_stuck: false,
            counts: None,
            added: Counts::default(),
            put_back: 0,
            is_unsure: false,
            most_demanded: 1,
            turns: 0,
        }
    }

    /// Another owner: it says who holds a slot.
    fn begin(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
        self.holders.clear();
        self.ahead.clear();
        self.kept.clear();
        let facts = self.facts;
        // The owner before may have moved some of them and died before it said so.
        let is_sure = !facts.operations.may_move;
        let leaves = |id| is_sure && facts.execution(id).is_some_and(|known| known.leaves);
        self.moved.clear();
        for waiting in self.waiting.values_mut().flat_map(BTreeMap::values_mut) {
            waiting.retain(|id| leaves(*id));
        }
        self.is_unsure = epoch != Epoch(1);
        self.is_contradictory = false;
        self.latest = i64::MIN;
        self.bounds = None;
        self.length = Length::default();
        self.freed = None;
        self.granted = 0;
        self.counts = None;
        self.added = Counts::default();
    }

    /// Where somebody stands, as far as that is known for sure.
    fn lane(&self, id: ExecutionId) -> Option<Lane> {
        if let Some(lane) = self.moved.get(&id) {
            return Some(*lane);
        }
        let is_own = Some(id.seq().epoch()) == self.epoch;
        let is_sure = is_own || !self.facts.operations.may_move;
        self.facts
            .execution(id)?
            .priority
            .filter(|_| is_sure)
            .map(Some)
    }

    fn break_promise(
        &mut self,
        promise: Promise,
        what: String,
        records: impl IntoIterator<Item = u32>,
    ) {
        self.broken.push(violation(promise, what, records));
    }

    fn apply(&mut self, record: u32, what: What) {
        match what {
            What::Accepted(id, status) => {
                self.judge_newcomer(id);
                self.accept(id, status);
            }
            What::Held((id, attempt), kept_until) => {
                self.leave(id);
                self.holders.insert(id, (attempt, record));
                if let Some(until) = kept_until {
                    self.kept.insert(id, (until, record));
                }
            }
            What::Ahead(key, granted) => self.stand_ahead(record, key, granted),
            What::HandedOn(key) => self.hand_on(record, key),
            What::Kept(key, until) => self.keep(record, key, until),
            What::Grouped(id, demand) => self.regroup(id, demand),
            What::Moved(id, lane) => {
                let waited = self.leave(id);
                self.moved.insert(id, lane);
                if waited {
                    self.wait(id);
                }
            }
            What::Granted(key, bounds, order, at) => {
                self.set_rule(bounds.demands);
                self.judge_time(record, key, at);
                if self.kept.contains_key(&key.0) {
                    self.go_on(record, key, bounds, at);
                } else {
                    self.grant(record, key, bounds, order);
                }
            }
            What::Ended(key, status, gone) => {
                if let Some(gone) = gone {
                    self.length.makes_room_for(gone.newcomer);
                    self.judge_gone(record, key, gone);
                }
                self.leave(key.0);
                self.release(record, key);
                match status {
                    Status::Cancelled => self.added.cancelled += 1,
                    Status::Expired => self.added.expired += 1,
                    Status::Rejected => {}
                    _ => self.added.completed += 1,
                }
            }
            What::Revoked(key, not_before) => {
                self.release(record, key);
                self.length.is_put_back();
                self.put_back(record, key, not_before);
            }
            What::Bounds(bounds, max_length) => {
                self.set_rule(bounds.demands);
                self.length.set(max_length);
                self.bounds = Some(bounds);
                self.freed = Some(record);
            }
            What::Totals {
                counts,
                held_up,
                goes_on,
            } => {
                self.judge_expected();
                self.judge_length(record, &counts, held_up || goes_on);
                self.end_round(record, *counts, held_up || goes_on);
            }
        }
    }

    fn accept(&mut self, id: ExecutionId, status: Status) {
        if status == Status::Rejected {
            return;
        }
        self.added.enqueued += 1;
        self.length.comes(id);
        let known = self.facts.execution(id);
        if let Some(demand) = known.and_then(|known| known.demand) {
            self.most_demanded = self.most_demanded.max(u64::from(demand.cost));
        }
        if let Some(at) = known.and_then(|known| known.at) {
            self.is_contradictory |= at < self.latest;
            self.latest = at.max(self.latest);
        }
        if known.is_some_and(|known| !known.delayed) {
            self.wait(id);
        } else {
            self.is_unsure = true;
        }
    }

    fn wait(&mut self, id: ExecutionId) {
        if let Some(lane) = self.lane(id) {
            let lanes = self.waiting.entry(self.group(id)).or_default();
            lanes.entry(lane).or_default().insert(id);
        }
    }

    /// What an execution demands by the rule in force, if that is known.
    fn demand(&self, id: ExecutionId) -> Option<Demand> {
        let first = || self.facts.execution(id).and_then(|known| known.demand);
        let demand = self.regrouped.get(&id).copied().or_else(first);
        demand.filter(|demand| Some(demand.rule) == self.rule)
    }

    fn group(&self, id: ExecutionId) -> Option<Class> {
        self.demand(id)
            .map(|demand| (demand.group, demand.rate, demand.flow))
    }

    /// Executions demand by this rule from now on.
    fn set_rule(&mut self, rule: Option<i64>) {
        if std::mem::replace(&mut self.rule, rule) != rule {
            let lanes = std::mem::take(&mut self.waiting).into_values();
            for id in lanes.flat_map(BTreeMap::into_values).flatten() {
                self.wait(id);
            }
        }
    }

    fn regroup(&mut self, id: ExecutionId, demand: Demand) {
        let waited = self.leave(id);
        self.most_demanded = self.most_demanded.max(u64::from(demand.cost));
        self.regrouped.insert(id, demand);
        if waited {
            self.wait(id);
        }
    }

    fn put_back(&mut self, record: u32, (id, attempt): Key, not_before: Option<i64>) {
        self.again.insert(id);
        self.is_unsure = true;
        if self.facts.grants.contains_key(&(id, attempt.next())) && self.lane(id).is_some() {
            self.put_back += 1;
            match not_before {
                Some(time) => drop(self.tried.insert(id, (time, record))),
                None => self.wait(id),
            }
        }
    }

    /// What is tried again is given its slot at its time, and from then on it waits at its place.
    fn judge_time(&mut self, record: u32, (id, _): Key, at: Option<i64>) {
        let (Some(at), false) = (at, self.tried.is_empty()) else {
            return;
        };
        if let Some((time, before)) = self.tried.remove(&id).filter(|(time, _)| at < *time) {
            let early = time - at;
            let what = format!("execution {id} was given a slot {early} ms before its next try");
            self.break_promise(Promise::I3, what, [before, record]);
        }
        // Others may be due that their owner has not come to in this step.
        let is_due = |time: i64| time + DUE_SINCE <= at;
        let due = self.tried.iter().filter(|(_, (time, _))| is_due(*time));
        let due: Vec<ExecutionId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.tried.remove(&id);
            self.wait(id);
        }
    }

    /// Says whether it waited.
    fn leave(&mut self, id: ExecutionId) -> bool {
        self.tried.remove(&id);
        self.length.leaves(id);
        let (group, lane) = (self.group(id), self.lane(id));
        let lanes = self.waiting.get_mut(&group);
        let lane = lanes.and_then(|lanes| lanes.get_mut(&lane?));
        lane.is_some_and(|lane| lane.remove(&id))
    }

    fn grant(&mut self, record: u32, (id, attempt): Key, bounds: Bounds, rule: OrderRule) {
        self.next_in_order(record, id, bounds, rule);
        self.judge_turn(record, (id, attempt), bounds, rule);
        self.nobody_is_ahead(record, id);
        self.hold(record, (id, attempt), bounds);
    }

    /// Somebody is granted: nobody stands before it.
    fn next_in_order(&mut self, record: u32, id: ExecutionId, bounds: Bounds, rule: OrderRule) {
        self.leave(id);
        self.granted += 1;
        self.bounds = Some(bounds);
        if let Some(first) = self.passed(bounds, rule, id) {
            let what = format!("execution {id} was given a slot while {first} was before it");
            let accepted = self.facts.execution(first).and_then(|known| known.accepted);
            self.break_promise(Promise::I3, what, accepted.into_iter().chain([record]));
        }
    }

    /// Somebody has a slot from now on: it was free.
    fn hold(&mut self, record: u32, (id, attempt): Key, bounds: Bounds) {
        if let Some((holding, before)) = self.holders.insert(id, (attempt, record)) {
            let what =
                format!("execution {id} was given a slot while its attempt {holding} held one");
            self.break_promise(Promise::I2, what, [before, record]);
        }
        // Who takes more than there is runs alone.
        let alone = self.demand(id).map_or(0, |demand| u64::from(demand.cost));
        let (used, used_of_group) = self.used(self.group(id));
        for (used, limit, of) in [
            (used, bounds.limit, ""),
            (used_of_group, bounds.group_limit, "one group of "),
        ] {
            let exceeded = |limit: &u32| used > u64::from(*limit) && used > alone;
            let Some(limit) = limit.filter(exceeded) else {
                continue;
            };
            let action = self.action_id;
            let what = format!("{used} slots of {of}action {action} at limit {limit}");
            let mut records: Vec<u32> = self.holders.values().map(|(_, record)| *record).collect();
            records.sort_unstable();
            // The latest are enough to see it.
            let skipped = records.len().saturating_sub(limit as usize + 1);
            self.break_promise(Promise::I2, what, records.into_iter().skip(skipped));
        }
    }

    fn release(&mut self, record: u32, (id, attempt): Key) {
        self.ahead.remove(&id);
        if self.holders.get(&id).is_some_and(|held| held.0 == attempt) {
            self.holders.remove(&id);
            self.kept.remove(&id);
            self.freed = Some(record);
        }
    }

    fn end_round(&mut self, record: u32, counts: Counts, held_up: bool) {
        self.judge_counts(record, counts);
        self.counts = Some((counts, record));
        self.added = Counts::default();
        let granted = std::mem::take(&mut self.granted);
        let bounds = self.bounds.filter(|_| !held_up && granted < STEP);
        let waiter = bounds.and_then(|bounds| {
            let ahead = self.lacks_a_slot(bounds);
            ahead.or_else(|| self.with_room(bounds, counts.waiting))
        });
        let was_stuck = std::mem::replace(&mut self.is_stuck, waiter.is_some());
        if let Some(id) = waiter
            && !was_stuck
        {
            let what = format!("a slot is free and execution {id} waits, but is not given it");
            let accepted = self.facts.execution(id).and_then(|known| known.accepted);
            let records = accepted.into_iter().chain(self.freed).chain([record]);
            self.break_promise(Promise::I6, what, records);
        }
    }

    fn judge_counts(&mut self, record: u32, now: Counts) {
        let gone = now.completed + now.cancelled + now.expired;
        if now.enqueued != gone + now.waiting + now.active {
            let what = format!(
                "action {}: {} entered, but {gone} left, {} wait and {} hold a slot",
                self.action_id, now.enqueued, now.waiting, now.active
            );
            return self.break_promise(Promise::I7, what, [record]);
        }
        if now.active != self.holders.len() as u64 {
            let what = format!(
                "action {} counts {} slots, but {} are held",
                self.action_id,
                now.active,
                self.holders.len()
            );
            return self.break_promise(Promise::I7, what, [record]);
        }
        let Some((before, previous)) = self.counts else {
            return;
        };
        let sum = |pick: fn(&Counts) -> u64| pick(&before) + pick(&self.added) == pick(&now);
        if !(sum(|counts| counts.enqueued)
            && sum(|counts| counts.completed)
            && sum(|counts| counts.cancelled)
            && sum(|counts| counts.expired))
        {
            let what = format!(
                "action {}: the counts did not change by what was decided",
                self.action_id
            );
            self.break_promise(Promise::I7, what, [previous, record]);
        }
    }

    fn finish(&mut self) {
        let mut held: Vec<_> = self.holders.iter().map(|(id, held)| (*id, *held)).collect();
        held.sort_unstable();
        for (id, (attempt, record)) in held {
            let what = format!("attempt {attempt} of execution {id} holds its slot for ever");
            self.break_promise(Promise::I4, what, [record]);
        }
    }
}
