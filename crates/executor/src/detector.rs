//! Looks for violations of order and limit, and believes nothing that grants slots.
//!
//! The rules, at each grant:
//!
//! - **Limit.** After the grant those that hold a slot take no more of the limit of the action, and of
//!   the limit of the group, than the policy, as it is now, allows. (Slots that were granted under a
//!   higher limit drain; nothing is granted meanwhile. Who takes more than there is runs alone.)
//! - **Order, forwards.** Nobody waits and is eligible who stands before the granted one by the rule of
//!   the action: by priority, by age, or by both; and then by place. Where executions are grouped, nobody
//!   of the same group: others may lack room in theirs.
//! - **Order, backwards.** Within an epoch the places of first grants rise, per action and
//!   priority, where they are not grouped. Exempt is what became eligible later than it was accepted (a
//!   delayed start), and every attempt but the first: a retry keeps its early place and rightly comes late.
//!
//! Beside the reconciler, on what the store shows, which memory may not know:
//!
//! - No more slots are held than the limit allows, unless the number has only fallen since the
//!   limit was lowered or the partition taken over.
//! - At limit 1, of two executions that were granted in order the later one started later.
//!
//! Every violation is counted and logged; one entry per action, kind and minute goes into the
//! audit log, from where it shows in the queue's health.

use std::collections::{BTreeMap, HashMap};

use attune_core::{Action, ActionId, Attempt, DemandRule, ExecutionId, Priority, QueueStats, Seq};

use crate::ById;
use crate::counters::Counter;
use crate::notice::Notice;
use crate::partition::Effect;
use crate::policy::key_in;
use crate::queue::{ActionQueue, Granted, Holder, Millis};
use crate::stored::{Audit, StoredSlot};

/// How often a violation of one kind is written into the audit log, per action.
const REPORT_EVERY: Millis = 60_000;
/// Times of the store are seen as ages, on a clock of our own that may step a little.
const CLOCK_TOLERANCE: Millis = 2_000;

/// What was seen of one action in this epoch.
#[derive(Debug, Default)]
struct Seen {
    /// The latest place that was granted first, by priority.
    last: BTreeMap<Priority, Seq>,
    /// How many held a slot when they were last counted in the store; more is only right within
    /// the limit. Unknown after a take-over and a change of the action.
    stored: Option<usize>,
    /// The latest first grant in order, whose start is to be compared.
    in_order: Option<(ExecutionId, Priority)>,
    /// The start that was seen last, at limit 1.
    started: Option<(ExecutionId, Priority, Millis)>,
    reported: HashMap<Broken, Millis>,
}

/// Which promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// An execution was given a slot, or started, before an earlier one.
    Order,
    /// More executions held a slot than the limit allows.
    Limit,
}

impl Broken {
    fn counter(self) -> Counter {
        match self {
            Self::Order => Counter::OrderViolation,
            Self::Limit => Counter::LimitViolation,
        }
    }
}

/// A violation, and what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise was broken.
    pub broken: Broken,
    /// How, for people.
    pub words: String,
    /// By whom: the owner and its epoch.
    pub owner: String,
    /// The action.
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// The executions involved.
    pub executions: Vec<ExecutionId>,
    /// The attempt that was granted or seen last.
    pub attempt: Attempt,
    /// When it was found, in milliseconds since 1970.
    pub found_at: Millis,
    /// The queue at that moment.
    pub stats: QueueStats,
}

/// What breaks a promise, before it is known where.
struct Found {
    broken: Broken,
    words: String,
    executions: Vec<ExecutionId>,
}

/// Watches the grants of one partition in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// Who answers for what is found, for the audit log.
    owner: String,
    actions: ById<ActionId, Seen>,
}

impl Detector {
    pub(crate) fn new(owner: String) -> Self {
        Self {
            owner,
            actions: ById::default(),
        }
    }

    /// Looks at a queue that has just granted a slot.
    pub(crate) fn granted(
        &mut self,
        now: Millis,
        action: &Action,
        queue: &ActionQueue,
        granted: Granted,
        out: &mut Vec<Effect>,
    ) {
        let id = granted.execution_id;
        let Some(holder) = queue.holder(id) else {
            return;
        };
        let seq = id.seq();
        let mut found = over_limits(action, queue, &holder);
        let seen = self.actions.entry(action.id).or_default();
        let is_grouped = queue.limits().demands().is_some();
        let order = |words: String, other: Option<ExecutionId>| {
            let executions = std::iter::once(id).chain(other).collect();
            Found {
                broken: Broken::Order,
                words,
                executions,
            }
        };
        let rule = action.spec.policy.order();
        let key = |lane, accepted_at, seq| (key_in(rule, lane, accepted_at), seq);
        let its_lane = (!holder.front).then_some(holder.priority);
        let its = key(its_lane, holder.enqueued_at, seq);
        let stands_before =
            |(lane, at, seq): &(Option<Priority>, Millis, Seq)| key(*lane, *at, *seq) < its;
        let passed = if is_grouped {
            let head = queue.head_beside(&holder);
            let head = head.map(|head| (head.lane, head.enqueued_at, head.seq));
            head.filter(stands_before)
        } else {
            let heads = queue.heads();
            let mut heads = heads.map(|(priority, head)| {
                let lane = head.lane(priority);
                (lane, head.enqueued_at, head.execution_id.seq())
            });
            heads.find(stands_before)
        };
        if let Some((lane, _, seq)) = passed {
            let lane = lane.map_or("front", Priority::as_str);
            let waits = ExecutionId::new(id.partition(), seq);
            let words =
                format!("execution {id} was granted while {waits} ({lane}) waits before it");
            found.push(order(words, Some(waits)));
        }
        let first = granted.attempt == Attempt(1) && !granted.delayed && !is_grouped;
        seen.in_order = first.then_some((id, holder.priority));
        if first {
            let last = seen.last.entry(holder.priority).or_insert(seq);
            if *last > seq {
                let words =
                    format!("execution {id} was granted after a later one, at place {last}");
                found.push(order(words, None));
            }
            *last = seq.max(*last);
        }
        for found in found {
            self.report(now, action, found, granted.attempt, &queue.stats(), out);
        }
    }

    /// Looks at a queue that has just handed a slot on. That it was granted in order was looked at when it was.
    pub(crate) fn handed_on(
        &mut self,
        now: Millis,
        action: &Action,
        queue: &ActionQueue,
        id: ExecutionId,
        out: &mut Vec<Effect>,
    ) {
        let Some(holder) = queue.holder(id) else {
            return;
        };
        for found in over_limits(action, queue, &holder) {
            self.report(now, action, found, holder.attempt, &queue.stats(), out);
        }
    }

    /// The action has changed, and its limit perhaps with it.
    pub(crate) fn changed(&mut self, action_id: ActionId) {
        if let Some(seen) = self.actions.get_mut(&action_id) {
            (seen.stored, seen.started) = (None, None);
        }
    }

    /// Looks at the slots of an action as the store has them; nothing is being decided meanwhile.
    pub(crate) fn stored(
        &mut self,
        now: Millis,
        action: &Action,
        rows: &[&StoredSlot],
        stats: QueueStats,
        out: &mut Vec<Effect>,
    ) {
        let Some(limit) = action.spec.policy.concurrency.limit else {
            return;
        };
        let seen = self.actions.entry(action.id).or_default();
        let demands = DemandRule::of(&action.spec).map(|rule| rule.mark());
        let cost = |row: &&StoredSlot| {
            // What another rule has said, or an executor of an earlier release, counts as the least.
            let demand = row.demand.filter(|demand| Some(demand.rule) == demands);
            demand.map_or(1, |demand| usize::from(demand.cost))
        };
        let count = rows.iter().map(cost).sum();
        let earlier = seen.stored.replace(count);
        let alone = rows.len() == 1;
        let mut found = Vec::new();
        if count > limit as usize && !alone && earlier.is_some_and(|earlier| count > earlier) {
            let words = format!("the store shows {count} slots as held, and the limit is {limit}");
            let executions = rows.iter().map(|row| row.id).take(20).collect();
            found.push(Found {
                broken: Broken::Limit,
                words,
                executions,
            });
        }
        if limit == 1
            && let [row] = rows
            && let Some(started) = started_at(now, row)
            && let Some((id, priority)) = seen.in_order.filter(|(id, _)| *id == row.id)
        {
            let earlier = seen.started.replace((id, priority, started));
            if let Some((before, same, at)) = earlier
                && same == priority
                && before.seq() < id.seq()
                && started + CLOCK_TOLERANCE < at
            {
                let words = format!(
                    "execution {id} started {} ms before {before}, which was granted earlier",
                    at - started
                );
                found.push(Found {
                    broken: Broken::Order,
                    words,
                    executions: vec![id, before],
                });
            }
        }
        let attempt = rows.last().map_or(Attempt(0), |row| row.attempt);
        for found in found {
            self.report(now, action, found, attempt, &stats, out);
        }
    }

    fn report(
        &mut self,
        now: Millis,
        action: &Action,
        found: Found,
        attempt: Attempt,
        stats: &QueueStats,
        out: &mut Vec<Effect>,
    ) {
        let Found {
            broken,
            words,
            executions,
        } = found;
        let violation = Box::new(Violation {
            broken,
            words,
            owner: self.owner.clone(),
            action_id: action.id,
            action_ref: action.spec.action_ref.as_str().to_owned(),
            executions,
            attempt,
            found_at: now,
            stats: stats.clone(),
        });
        out.push(Effect::Count(broken.counter()));
        out.push(Effect::Notice(Notice::Violation(violation.clone())));
        let reported = &mut self.actions.entry(action.id).or_default().reported;
        if reported
            .get(&broken)
            .is_none_or(|last| now - last >= REPORT_EVERY)
        {
            reported.insert(broken, now);
            out.push(Effect::Audit(Audit::Violation(violation)));
        }
    }
}

/// Which limits those that hold a slot take too much of, one of whom has just been given it.
fn over_limits(action: &Action, queue: &ActionQueue, holder: &Holder) -> Vec<Found> {
    let mut found = Vec::new();
    let is_grouped = queue.limits().demands().is_some();
    let limit = action.spec.policy.concurrency.limit;
    let (used, used_of_group) = match is_grouped {
        false => (queue.active_count() as u64, 0),
        true => queue.used(holder),
    };
    let alone = u64::from(holder.share.cost);
    let group_limit = action.spec.policy.concurrency.group_limit;
    for (used, limit, whose) in [
        (used, limit, "the limit"),
        (used_of_group, group_limit, "the limit of their group"),
    ] {
        let Some(limit) = limit.filter(|limit| used > u64::from(*limit) && used > alone) else {
            continue;
        };
        let holders = queue.holders().filter(|(_, holder)| !holder.is_ahead());
        let holders = holders.map(|(id, _)| id).take(20).collect();
        let words = if is_grouped {
            format!("those that hold a slot take {used} after a grant, and {whose} is {limit}")
        } else {
            format!("{used} hold a slot after a grant, and {whose} is {limit}")
        };
        found.push(Found {
            broken: Broken::Limit,
            words,
            executions: holders,
        });
    }
    found
}

/// When an execution started, on the clock of this process.
fn started_at(now: Millis, row: &StoredSlot) -> Option<Millis> {
    let age = row.running_for.filter(|_| row.attempt == Attempt(1))?;
    Some(now.saturating_sub(age))
}
