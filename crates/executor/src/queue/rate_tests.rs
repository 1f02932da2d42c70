//! How often executions start, of all together and of each key, beside groups and costs: against a model
//! that looks through all starts and all who wait each time.

use std::collections::BTreeMap;

use attune_core::{
    ActionId, Attempt, Demand, ExecutionId, Flow, GroupKey, OrderRule, PartitionId, Priority,
    QueueTotals, Seq,
};
use proptest::prelude::*;

use super::*;
use crate::policy::{Extra, QueueLimits, Rate, RateBound, Share, StartLimit};

const RULE: i64 = 5;
/// Later than every wait of these tests.
const BEGIN: Millis = 1_000_000;

fn id(n: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(n))
}

#[derive(Debug, Clone, Copy)]
struct Known {
    priority: Priority,
    group: u8,
    user: u8,
    cost: u16,
    attempt: Attempt,
    holds: bool,
    /// Until when it keeps its slot between two tries.
    kept: Option<Millis>,
}

/// What has an effect on a rate.
#[derive(Debug, Clone)]
enum Op {
    Enter {
        priority: Priority,
        group: u8,
        user: u8,
        cost: u16,
    },
    Finish(usize),
    PutBack(usize),
    Keep(usize, Millis),
    Cancel(usize),
    Pass(Millis),
    PassUntilDue,
    Rate(u32, Millis),
    Interval(Option<Millis>),
    Limit(Option<u32>),
    Takeover,
}

fn op() -> impl Strategy<Value = Op> {
    let priority = prop::sample::select(vec![Priority::High, Priority::Normal, Priority::Low]);
    prop_oneof![
        8 => (priority, 0..3u8, 0..3u8, 1..3u16)
            .prop_map(|(priority, group, user, cost)| Op::Enter { priority, group, user, cost }),
        4 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::PutBack),
        2 => (any::<usize>(), 1..600 as Millis).prop_map(|(nth, wait)| Op::Keep(nth, wait)),
        1 => any::<usize>().prop_map(Op::Cancel),
        2 => (0..400 as Millis).prop_map(Op::Pass),
        3 => Just(Op::PassUntilDue),
        1 => (1..4u32, 100..1_000 as Millis).prop_map(|(max, window)| Op::Rate(max, window)),
        1 => prop::option::of(1..200 as Millis).prop_map(Op::Interval),
        1 => prop::option::of(1..4u32).prop_map(Op::Limit),
        1 => Just(Op::Takeover),
    ]
}

/// Whether executions are grouped, and their starts counted for each user.
#[derive(Debug, Clone, Copy)]
struct Shape {
    grouped: bool,
    keyed: bool,
}

struct Model {
    shape: Shape,
    known: BTreeMap<i64, Known>,
    limits: QueueLimits,
    /// When each start was, and of which user.
    starts: Vec<(Millis, u8)>,
    now: Millis,
    stored: BTreeMap<(StartLimit, GroupKey), Vec<u8>>,
}

impl Model {
    fn demand(&self, known: &Known) -> Demand {
        let key = |is: bool, of: u8| GroupKey([if is { of + 1 } else { 0 }; 16]);
        Demand {
            rule: RULE,
            group: key(self.shape.grouped, known.group),
            cost: known.cost,
            user: None,
            rate: key(self.shape.keyed, known.user),
            flow: Flow::default(),
        }
    }

    /// How many starts count at a time.
    fn started(&self, at: Millis, window: Millis, user: Option<u8>) -> usize {
        let since = at - window;
        let starts = self.starts.iter();
        let starts = starts.filter(|(time, of)| *time > since && user.is_none_or(|it| it == *of));
        starts.count()
    }

    fn is_rate_open(&self, at: Millis, user: u8) -> bool {
        self.limits.rate().is_none_or(|RateBound { rate, .. }| {
            let user = self.shape.keyed.then_some(user);
            self.started(at, rate.window, user) < rate.max as usize
        })
    }

    fn used(&self, group: Option<u8>) -> u64 {
        let holders = self.known.values().filter(|known| known.holds);
        let of_group = holders.filter(|it| group.is_none_or(|group| it.group == group));
        of_group.map(|it| u64::from(it.cost)).sum()
    }

    fn fits(&self, known: &Known, group: Option<u8>, limit: Option<u32>) -> bool {
        let used = self.used(group);
        limit.is_none_or(|limit| {
            used + u64::from(known.cost).min(u64::from(limit)) <= u64::from(limit)
        })
    }

    /// Who would start at a time.
    fn next(&self, at: Millis) -> Option<i64> {
        let paced = self.limits.interval();
        if paced.is_some_and(|it| self.started(at, it.window, None) >= 1) {
            return None;
        }
        let key = |n: &i64| (self.known[n].priority, *n);
        let waiting = self.known.iter().filter(|(_, known)| !known.holds);
        let open: Vec<i64> = waiting
            .filter(|(_, known)| self.is_rate_open(at, known.user))
            .map(|(n, _)| *n)
            .collect();
        let firsts = open.iter().filter(|n| {
            let group = self.known[n].group;
            let same = |other: &&i64| !self.shape.grouped || self.known[other].group == group;
            let first = open.iter().filter(same).min_by_key(|other| key(other));
            let group = Some(group).filter(|_| self.shape.grouped);
            let limit = self.limits.group_limit();
            first == Some(n) && (group.is_none() || self.fits(&self.known[n], group, limit))
        });
        // Without groups a class is all of one user, and the first of all goes first.
        let first = firsts.min_by_key(|n| key(n)).copied()?;
        let limit = self.limits.max_concurrent;
        self.fits(&self.known[&first], None, limit).then_some(first)
    }

    /// Those that keep their slots and would begin anew at a time.
    fn next_tries(&self, at: Millis) -> Vec<i64> {
        let paced = self.limits.interval();
        if paced.is_some_and(|it| self.started(at, it.window, None) >= 1) {
            return Vec::new();
        }
        let due = |known: &Known| known.kept.is_some_and(|until| until <= at);
        let due = self.known.iter().filter(|(_, known)| due(known));
        due.filter(|(_, known)| self.is_rate_open(at, known.user))
            .map(|(n, _)| *n)
            .collect()
    }

    /// The first time from now on at which somebody starts because time passes.
    fn due(&self) -> Option<Millis> {
        let windows = [
            self.limits.rate().map(|rate| rate.rate.window),
            self.limits.interval().map(|it| it.window),
        ];
        let starts = self.starts.iter();
        let times = starts.flat_map(|(time, _)| windows.iter().flatten().map(move |it| time + it));
        let kept = self.known.values().filter_map(|known| known.kept);
        let mut times: Vec<Millis> = times.chain(kept).filter(|it| *it > self.now).collect();
        times.sort_unstable();
        let starts = |at: &Millis| self.next(*at).is_some() || !self.next_tries(*at).is_empty();
        times.into_iter().find(starts)
    }
}

fn waiting(n: i64, known: &Known, now: Millis) -> Waiting {
    Waiting {
        execution_id: id(n),
        seq: Seq(n),
        enqueued_at: now,
        eligible_at: now,
        attempt: known.attempt,
        unbegun: 0,
        delayed: false,
        front: false,
        share: Share::default(),
    }
}

/// Grants all that the model grants, and nobody else; then the round is stored.
fn serve(queue: &mut ActionQueue, model: &mut Model) -> Result<(), TestCaseError> {
    queue.pass(model.now);
    loop {
        let expected = model.next_tries(model.now);
        let Some(next) = queue.next_try(model.now, 1_000) else {
            prop_assert!(expected.is_empty(), "{:?} are due", expected);
            break;
        };
        let n = next.execution_id.seq().0;
        prop_assert!(expected.contains(&n), "{} is not due of {:?}", n, expected);
        let known = model.known.get_mut(&n).unwrap();
        prop_assert_eq!(Some(next.until), known.kept.take());
        known.attempt = known.attempt.next();
        prop_assert_eq!(next.attempt, known.attempt);
        model.starts.push((model.now, known.user));
    }
    loop {
        let expected = model.next(model.now);
        let granted = queue.grant_next(model.now).granted();
        prop_assert_eq!(granted.map(|it| it.execution_id.seq().0), expected);
        let Some(n) = expected else { break };
        let known = model.known.get_mut(&n).unwrap();
        (known.holds, known.attempt) = (true, known.attempt.next());
        model.starts.push((model.now, known.user));
    }
    for counted in queue.counted(model.now) {
        model
            .stored
            .insert((counted.limit, counted.key), counted.state);
    }
    queue.settle_counted(model.now);
    if let Some(due) = model.due() {
        let deadline = queue.next_deadline();
        prop_assert!(
            deadline.is_some_and(|time| model.now < time && time <= due),
            "{:?} comes too late for {}",
            deadline,
            due
        );
    }
    Ok(())
}

/// The queue as somebody finds it who takes its partition over.
fn again(model: &Model) -> ActionQueue {
    let limits = model.limits.clone();
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    for ((limit, key), state) in &model.stored {
        queue.restore_counted(model.now, (*limit, *key), (state, 0));
    }
    for (n, known) in &model.known {
        let demand = model.demand(known);
        if known.holds {
            let holder = Holder {
                attempt: known.attempt,
                unbegun: 0,
                priority: known.priority,
                seq: Seq(*n),
                enqueued_at: BEGIN,
                eligible_at: BEGIN,
                cancel_requested: false,
                held_since: None,
                front: false,
                share: Share::default(),
                worker: None,
                started: false,
                ahead: None,
            };
            queue.restore_holder(id(*n), holder, Some(&demand));
            if let Some(until) = known.kept {
                assert!(queue.keep(id(*n), known.attempt, true, until));
            }
        } else {
            let waiting = waiting(*n, known, BEGIN);
            queue.restore_waiting(known.priority, waiting, Some(&demand), None);
        }
    }
    queue
}

fn pick(model: &Model, holds: bool, nth: usize) -> Option<i64> {
    let of = model.known.iter().filter(|(_, known)| known.holds == holds);
    let of: Vec<i64> = of.map(|(n, _)| *n).collect();
    (!of.is_empty()).then(|| of[nth % of.len()])
}

/// Under a longer window some of what started before may be forgotten, so time passes until none of it
/// counts.
fn apply(queue: &mut ActionQueue, model: &mut Model, n: i64, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Enter {
            priority,
            group,
            user,
            cost,
        } => {
            let known = Known {
                priority,
                group,
                user,
                cost,
                attempt: Attempt(0),
                holds: false,
                kept: None,
            };
            let demand = model.demand(&known);
            let entered = queue.enter(priority, waiting(n, &known, model.now), Some(&demand));
            prop_assert!(entered.is_ok());
            model.known.insert(n, known);
        }
        Op::Finish(nth) => {
            if let Some(n) = pick(model, true, nth) {
                let known = model.known.remove(&n).unwrap();
                prop_assert!(queue.finish(id(n), known.attempt, false));
            }
        }
        Op::PutBack(nth) => {
            if let Some(n) = pick(model, true, nth) {
                let known = model.known.get_mut(&n).unwrap();
                (known.holds, known.kept) = (false, None);
                prop_assert!(queue.put_back(id(n), known.attempt, true, None));
            }
        }
        Op::Keep(nth, wait) => {
            if let Some(n) = pick(model, true, nth) {
                let known = model.known.get_mut(&n).unwrap();
                let until = model.now + wait;
                known.kept = Some(until);
                prop_assert!(queue.keep(id(n), known.attempt, true, until));
                prop_assert!(!queue.keep(id(n), known.attempt.next(), true, until));
            }
        }
        Op::Cancel(nth) => {
            if let Some(n) = pick(model, false, nth) {
                model.known.remove(&n);
                prop_assert!(queue.cancel_waiting(Seq(n)).is_some());
            }
        }
        Op::Pass(time) => model.now += time,
        Op::PassUntilDue => model.now = model.due().unwrap_or(model.now),
        Op::Rate(max, window) => {
            let mut extra = model.limits.extra.take().unwrap_or_default();
            if let Some(rate) = &mut extra.rate {
                if window > rate.rate.window {
                    model.now += window;
                }
                rate.rate = Rate { max, window };
            }
            model.limits.extra = extra.boxed();
            queue.set_limits(model.limits.clone());
        }
        Op::Interval(interval) => {
            let mut extra = model.limits.extra.take().unwrap_or_default();
            let window = |rate: Rate| rate.window;
            let earlier = extra.interval.map_or(0, window);
            extra.interval = interval.map(|window| Rate { max: 1, window });
            if interval.is_some_and(|window| window > earlier) {
                model.now += interval.unwrap_or(0).max(earlier);
            }
            model.limits.extra = extra.boxed();
            queue.set_limits(model.limits.clone());
        }
        Op::Limit(limit) => {
            model.limits.max_concurrent = limit;
            queue.set_limits(model.limits.clone());
        }
        Op::Takeover => *queue = again(model),
    }
    serve(queue, model)
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn who_starts_when_is_what_a_look_through_everything_finds(
        (grouped, keyed) in any::<(bool, bool)>(),
        (max, window) in (1..4u32, 100..1_000 as Millis),
        ops in prop::collection::vec(op(), 1..50),
    ) {
        let limits = QueueLimits {
            max_concurrent: Some(4),
            max_length: 1_000,
            timeout_seconds: 3_600,
            order: OrderRule::Priority,
            extra: Extra {
                demands: Some(RULE),
                group_limit: grouped.then_some(2),
                rate: Some(RateBound {
                    rate: Rate { max, window },
                    mark: if keyed { 9 } else { 0 },
                    rejects: false,
                }),
                ..Extra::default()
            }
            .boxed(),
        };
        let mut queue = ActionQueue::new(ActionId(1), limits.clone(), QueueTotals::default());
        let mut model = Model {
            shape: Shape { grouped, keyed },
            known: BTreeMap::new(),
            limits,
            starts: Vec::new(),
            now: BEGIN,
            stored: BTreeMap::new(),
        };
        for (n, op) in (1..).zip(ops) {
            apply(&mut queue, &mut model, n, op)?;
        }
        let all: Vec<i64> = model.known.keys().copied().collect();
        for n in all {
            let known = model.known.remove(&n).unwrap();
            if known.holds {
                prop_assert!(queue.finish(id(n), known.attempt, false));
            } else {
                prop_assert!(queue.cancel_waiting(Seq(n)).is_some());
            }
        }
        prop_assert!(queue.is_idle());
        let over = queue.next_deadline();
        queue.pass(over.unwrap_or(model.now));
        prop_assert!(queue.meters.is_none(), "what is over is forgotten");
        prop_assert_eq!(queue.next_deadline(), None);
    }
}

#[test]
fn a_key_that_has_used_up_its_rate_holds_up_nobody_else() {
    let limits = QueueLimits {
        max_concurrent: None,
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Priority,
        extra: Extra {
            demands: Some(RULE),
            rate: Some(RateBound {
                rate: Rate {
                    max: 1,
                    window: 1_000,
                },
                mark: 9,
                rejects: true,
            }),
            ..Extra::default()
        }
        .boxed(),
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let demand = |user: u8| Demand {
        rule: RULE,
        group: GroupKey::default(),
        cost: 1,
        user: None,
        rate: GroupKey([user; 16]),
        flow: Flow::default(),
    };
    let known = Known {
        priority: Priority::Normal,
        group: 0,
        user: 0,
        cost: 1,
        attempt: Attempt(0),
        holds: false,
        kept: None,
    };
    for (n, user) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        let entered = queue.enter(
            known.priority,
            waiting(n, &known, BEGIN),
            Some(&demand(user)),
        );
        entered.unwrap();
    }
    queue.pass(BEGIN);
    let granted = std::iter::from_fn(|| queue.grant_next(BEGIN).granted());
    let granted: Vec<i64> = granted.map(|it| it.execution_id.seq().0).collect();
    assert_eq!(granted, [1, 4]);
    let until = BEGIN + 1_000;
    assert_eq!(queue.blocked(), Some(Blocked::Rate { until }));
    assert_eq!(queue.next_deadline(), Some(until));
    assert_eq!(queue.refused_for(BEGIN + 1, Some(&demand(1))), Some(999));
    assert_eq!(queue.refused_for(BEGIN + 1, Some(&demand(3))), None);
    queue.settle_counted(BEGIN + 10);
    queue.pass(until);
    assert_eq!(
        queue.grant_next(BEGIN).granted(),
        None,
        "stored later than decided"
    );
    queue.pass(until + 10);
    assert!(queue.grant_next(BEGIN).granted().is_some());
}
