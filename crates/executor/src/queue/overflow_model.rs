//! Random histories of every `on_limit`, `on_full` and order, against a model that looks through
//! everything each time.

use std::collections::BTreeMap;

use attune_core::{ActionId, Flow, GroupKey, OrderRule, QueueTotals};
use proptest::prelude::*;

use super::tests::{RULE, id, limits, waiting};
use super::*;
use crate::policy::{Extra, QueueLimits, Rate, RateBound, Share};

/// What happens to a queue.
#[derive(Debug, Clone)]
enum Op {
    Arrive {
        rank: u8,
        group: u8,
        cost: u16,
        user: Option<u8>,
        wait: Option<Millis>,
    },
    Finish(usize),
    PutBack(usize, Option<Millis>),
    Cancel(usize),
    Move(usize, u8, bool),
    Wake(Millis),
    Policy(Extra),
    Limit(u32),
    Stop(bool),
    Restore,
}

/// Starts are counted for each key, or not at all: that is part of the rule by which executions demand.
fn extra(is_counted: bool) -> impl Strategy<Value = Extra> {
    let on_limit = prop_oneof![
        Just(OnLimit::Wait),
        Just(OnLimit::Reject),
        Just(OnLimit::CancelRunning),
        Just(OnLimit::ReplaceWaiting)
    ];
    let on_full = prop_oneof![Just(OnFull::Reject), Just(OnFull::DropOldest)];
    let limit = || prop::option::of(1..4_u32);
    // So many start for each key that it binds nobody; classes are told apart by it all the same.
    let rate = move |demands: bool| {
        (demands && is_counted).then_some(RateBound {
            rate: Rate {
                max: 1_000_000,
                window: 1_000,
            },
            mark: 9,
            rejects: false,
        })
    };
    (any::<bool>(), on_limit, on_full, limit(), limit()).prop_map(
        move |(demands, on_limit, on_full, group_limit, per_user)| Extra {
            demands: demands.then_some(RULE),
            rate: rate(demands),
            group_limit: group_limit.filter(|_| demands),
            per_user: per_user.filter(|_| demands),
            on_limit,
            // A policy with both is refused.
            on_full: match on_limit.replaces() {
                true => OnFull::Reject,
                false => on_full,
            },
            ..Extra::default()
        },
    )
}

fn ops(is_counted: bool) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (0..5_u8, 0..3_u8, 1..3_u16, prop::option::of(0..3_u8), prop::option::weighted(0.2, 1..100_i64))
            .prop_map(|(rank, group, cost, user, wait)| Op::Arrive { rank, group, cost, user, wait }),
        4 => (0..9_usize).prop_map(Op::Finish),
        2 => (0..9_usize, prop::option::of(1..100_i64)).prop_map(|(n, wait)| Op::PutBack(n, wait)),
        1 => (0..9_usize).prop_map(Op::Cancel),
        2 => (0..9_usize, 0..5_u8, any::<bool>())
            .prop_map(|(n, rank, front)| Op::Move(n, rank, front)),
        3 => (1..60_i64).prop_map(Op::Wake),
        2 => extra(is_counted).prop_map(Op::Policy),
        1 => (1..4_u32).prop_map(Op::Limit),
        1 => any::<bool>().prop_map(Op::Stop),
        1 => Just(Op::Restore),
    ];
    prop::collection::vec(op, 1..100)
}

#[derive(Debug, Clone, Copy)]
struct Known {
    priority: Priority,
    demand: Demand,
    enqueued_at: Millis,
    eligible_at: Millis,
    attempt: Attempt,
    delayed: bool,
    front: bool,
    holds: bool,
    asked: bool,
    not_before: Option<Millis>,
}

impl Known {
    fn waits(&self) -> bool {
        !self.holds && self.not_before.is_none()
    }
}

/// The queue as a plain list.
struct Model {
    known: BTreeMap<i64, Known>,
    limits: QueueLimits,
    stopped: bool,
    now: Millis,
    /// Whether starts are counted for each user.
    is_counted: bool,
}

/// What a newcomer leads to.
#[derive(Debug, PartialEq)]
struct Expected {
    gone: Vec<(i64, EndCode)>,
    asked: Vec<i64>,
}

impl Model {
    fn is_grouped(&self) -> bool {
        self.limits.demands().is_some()
    }

    /// For whom starts are counted, where they are.
    fn rate_of(&self, user: Option<u8>) -> GroupKey {
        match self.is_counted {
            true => GroupKey([1 + user.unwrap_or(9); 16]),
            false => GroupKey::default(),
        }
    }

    fn cost(&self, known: &Known) -> u64 {
        match self.is_grouped() {
            true => u64::from(known.demand.cost),
            false => 1,
        }
    }

    fn same(&self, one: &Known, other: &Known) -> bool {
        !self.is_grouped() || one.demand.group == other.demand.group
    }

    /// Whether there is room for somebody beside those who hold a slot and are not left out.
    fn fits(&self, who: &Known, without: impl Fn(i64) -> bool) -> bool {
        let held = self
            .known
            .iter()
            .filter(|(n, it)| it.holds && !without(**n));
        let held: Vec<&Known> = held.map(|(_, it)| it).collect();
        let used = |of: &dyn Fn(&Known) -> bool| -> u64 {
            let same = held.iter().filter(|it| of(it));
            same.map(|it| self.cost(it)).sum()
        };
        let fits = |used: u64, limit: Option<u32>| {
            limit.is_none_or(|limit| {
                let limit = u64::from(limit);
                used + self.cost(who).min(limit) <= limit
            })
        };
        fits(used(&|_| true), self.limits.max_concurrent)
            && fits(used(&|it| self.same(it, who)), self.limits.group_limit())
    }

    /// The first in order who is first in its group and has room there, if it has room in the limit of all.
    fn next(&self) -> Option<i64> {
        if self.stopped {
            return None;
        }
        let mut waiting: Vec<_> = self.known.iter().filter(|(_, it)| it.waits()).collect();
        let key = |it: &Known| match it.front {
            true => i64::MIN,
            false => self.limits.order.key(it.priority, it.enqueued_at),
        };
        waiting.sort_by_key(|(n, it)| (key(it), **n));
        let first_of = |who: &Known| waiting.iter().find(|(_, it)| self.same(it, who)).unwrap().0;
        let of_group = |who: &Known| {
            let mut plain = self.limits.clone();
            plain.max_concurrent = None;
            let model = Self {
                known: self.known.clone(),
                limits: plain,
                ..*self
            };
            model.fits(who, |_| false)
        };
        let (n, first) = waiting
            .iter()
            .find(|(n, it)| first_of(it) == *n && of_group(it))?;
        self.fits(first, |_| false).then_some(**n)
    }

    /// Who comes, and what follows. `n` is its number.
    fn arrive(&self, n: i64, who: &Known) -> Result<Expected, &'static str> {
        let is_due = who.not_before.is_none();
        // It starts if it is next once it is there.
        let mut with = Self {
            known: self.known.clone(),
            limits: self.limits.clone(),
            ..*self
        };
        with.known.insert(n, *who);
        let has_room = self.next().is_none() && with.next() == Some(n);
        // Who is due and asleep may stand before it.
        let is_asleep = |it: &Known| it.not_before.is_some_and(|time| time <= self.now);
        let is_asked = self.limits.overflows();
        let may_be_passed = is_asked && self.known.values().any(is_asleep);
        let starts = is_due && has_room && !may_be_passed;
        if self.limits.on_limit() == OnLimit::Reject && is_due && !has_room && !self.stopped {
            return Err("limit");
        }
        let replaces = match self.limits.on_limit() {
            OnLimit::CancelRunning => is_due,
            OnLimit::ReplaceWaiting => is_due && !starts,
            _ => false,
        };
        let rival = |it: &Known| {
            let delayed = it.attempt == Attempt(0) && it.not_before.is_some();
            replaces && !it.holds && !delayed && self.same(it, who)
        };
        let rivals = self.known.iter().filter(|(_, it)| rival(it));
        let mut gone: Vec<_> = rivals.map(|(n, _)| (*n, EndCode::Replaced)).collect();
        let waits = self.known.values().filter(|it| !it.holds).count() - gone.len();
        if !starts && waits >= self.limits.max_length as usize {
            let fifo = self.limits.order == OrderRule::Fifo;
            let old = self.known.iter().filter(|(_, it)| {
                it.waits()
                    && it.attempt == Attempt(0)
                    && !it.front
                    && (fifo || it.priority >= who.priority)
                    && self.limits.on_full() == OnFull::DropOldest
            });
            let rank = |it: &Known| if fifo { 0 } else { 9 - it.priority.rank() };
            let oldest = old.min_by_key(|(n, it)| (rank(it), it.eligible_at, **n));
            gone.push((*oldest.ok_or("full")?.0, EndCode::Dropped));
        }
        if let (Some(limit), Some(user)) = (self.limits.per_user(), who.demand.user) {
            let left = self.known.iter().filter(|(n, it)| {
                it.demand.user == Some(user) && !gone.iter().any(|(gone, _)| gone == *n)
            });
            if left.count() >= limit as usize {
                return Err("user");
            }
        }
        let mut asked = Vec::new();
        if self.limits.on_limit() == OnLimit::CancelRunning && is_due && !self.stopped {
            let mut ending: Vec<i64> = self
                .known
                .iter()
                .filter(|(_, it)| it.holds && it.asked && self.same(it, who))
                .map(|(n, _)| *n)
                .collect();
            for (n, it) in &self.known {
                if self.fits(who, |n| ending.contains(&n)) {
                    break;
                }
                if it.holds && !it.asked && self.same(it, who) {
                    ending.push(*n);
                    asked.push(*n);
                }
            }
        }
        Ok(Expected { gone, asked })
    }
}

fn serve(queue: &mut ActionQueue, model: &mut Model) -> Result<(), TestCaseError> {
    loop {
        let expected = model.next();
        let granted = queue.grant_next(model.now).granted();
        let granted = granted.map(|granted| granted.execution_id.seq().0);
        prop_assert_eq!(granted, expected);
        let Some(n) = expected else { break };
        let known = model.known.get_mut(&n).unwrap();
        (known.holds, known.attempt) = (true, known.attempt.next());
    }
    let waits = model.known.values().filter(|known| !known.holds).count();
    prop_assert_eq!(queue.len(), waits);
    prop_assert_eq!(queue.active_count(), model.known.len() - waits);
    Ok(())
}

/// The same queue, as a takeover makes it from what is stored.
fn again(model: &Model) -> ActionQueue {
    let mut queue = ActionQueue::new(ActionId(1), model.limits.clone(), QueueTotals::default());
    queue.set_pool_closed(model.stopped);
    for (n, known) in &model.known {
        let demand = Some(&known.demand).filter(|_| model.is_grouped());
        if known.holds {
            let holder = crate::queue::Holder {
                attempt: known.attempt,
                unbegun: 0,
                priority: known.priority,
                seq: Seq(*n),
                enqueued_at: known.enqueued_at,
                eligible_at: known.eligible_at,
                cancel_requested: known.asked,
                held_since: None,
                front: known.front,
                share: Share::default(),
                worker: None,
                started: false,
                ahead: None,
            };
            queue.restore_holder(id(*n), holder, demand);
        } else {
            let waiting = Waiting {
                enqueued_at: known.enqueued_at,
                eligible_at: known.eligible_at,
                attempt: known.attempt,
                delayed: known.delayed,
                front: known.front,
                ..waiting(*n, 0)
            };
            queue.restore_waiting(known.priority, waiting, demand, known.not_before);
        }
    }
    queue
}

fn order() -> impl Strategy<Value = OrderRule> {
    prop_oneof![
        Just(OrderRule::Priority),
        Just(OrderRule::Fifo),
        (1..200_u32).prop_map(|step| OrderRule::Ageing { step })
    ]
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn every_newcomer_leads_to_what_a_plain_list_says(
        (is_counted, first, order, ops) in any::<bool>().prop_flat_map(|is_counted| {
            (Just(is_counted), extra(is_counted), order(), ops(is_counted))
        })
    ) {
        let mut model = Model {
            known: BTreeMap::new(),
            limits: QueueLimits { order, ..limits(first) },
            stopped: false,
            now: 0,
            is_counted,
        };
        let mut queue = ActionQueue::new(ActionId(1), model.limits.clone(), QueueTotals::default());
        let holders = |model: &Model| -> Vec<i64> {
            model.known.iter().filter(|(_, it)| it.holds).map(|(n, _)| *n).collect()
        };
        let mut n = 0;
        for op in ops {
            model.now += 1;
            match op {
                Op::Arrive { rank, group, cost, user, wait } => {
                    n += 1;
                    let known = Known {
                        priority: Priority::ALL[usize::from(rank)],
                        demand: Demand {
                            rule: RULE,
                            group: GroupKey([group; 16]),
                            cost,
                            user: user.map(|user| GroupKey([user; 16])),
                            rate: model.rate_of(user),
                            flow: Flow::default(),
                        },
                        enqueued_at: model.now,
                        eligible_at: model.now,
                        attempt: Attempt(0),
                        delayed: wait.is_some(),
                        front: false,
                        holds: false,
                        asked: false,
                        not_before: wait.map(|wait| model.now + wait),
                    };
                    let expected = model.arrive(n, &known);
                    let who = Newcomer {
                        priority: known.priority,
                        waiting: Waiting { delayed: known.delayed, ..waiting(n, model.now) },
                        demand: Some(&known.demand).filter(|_| model.is_grouped()),
                        not_before: known.not_before,
                        most_replaced: 1_000,
                    };
                    let arrived = queue.arrive(&who).map_err(|refused| match refused {
                        Refused::Full(_) => "full",
                        Refused::Limit { .. } | Refused::GroupLimit { .. } => "limit",
                        Refused::User { .. } => "user",
                    });
                    let arrived = arrived.map(|arrival| Expected {
                        gone: arrival.gone.iter().map(|(it, code)| (it.seq.0, *code)).collect(),
                        asked: arrival.asked.iter().map(|(id, _)| id.seq().0).collect(),
                    });
                    prop_assert_eq!(&arrived, &expected);
                    if let Ok(expected) = expected {
                        for (gone, _) in expected.gone {
                            model.known.remove(&gone);
                        }
                        for asked in expected.asked {
                            model.known.get_mut(&asked).unwrap().asked = true;
                        }
                        model.known.insert(n, known);
                    }
                }
                Op::Finish(which) => {
                    let holding = holders(&model);
                    if let Some(n) = holding.get(which % holding.len().max(1)) {
                        let known = model.known.remove(n).unwrap();
                        prop_assert!(queue.finish(id(*n), known.attempt, false));
                    }
                }
                Op::PutBack(which, wait) => {
                    let holding = holders(&model);
                    if let Some(n) = holding.get(which % holding.len().max(1))
                        && !model.known[n].asked
                    {
                        let time = wait.map(|wait| model.now + wait);
                        let known = model.known.get_mut(n).unwrap();
                        prop_assert!(queue.put_back(id(*n), known.attempt, true, time));
                        (known.holds, known.not_before) = (false, time);
                    }
                }
                Op::Cancel(which) => {
                    let waits: Vec<i64> = model.known.iter().filter(|(_, it)| !it.holds)
                        .map(|(n, _)| *n).collect();
                    if let Some(n) = waits.get(which % waits.len().max(1)) {
                        prop_assert!(queue.cancel_waiting(Seq(*n)).is_some());
                        model.known.remove(n);
                    }
                }
                Op::Move(which, rank, front) => {
                    let waits: Vec<i64> = model.known.iter().filter(|(_, it)| !it.holds)
                        .map(|(n, _)| *n).collect();
                    if let Some(n) = waits.get(which % waits.len().max(1)) {
                        let priority = Priority::ALL[usize::from(rank)];
                        prop_assert!(queue.move_waiting(Seq(*n), priority, front));
                        let known = model.known.get_mut(n).unwrap();
                        (known.priority, known.front) = (priority, front);
                    }
                }
                Op::Wake(time) => {
                    model.now += time;
                    queue.wake_delayed(model.now, usize::MAX);
                    for known in model.known.values_mut() {
                        if known.not_before.is_some_and(|time| time <= model.now) {
                            let time = known.not_before.take().unwrap_or(0);
                            known.eligible_at = known.enqueued_at.max(time);
                        }
                    }
                }
                Op::Policy(extra) => {
                    let regrouped = extra.demands != model.limits.demands();
                    model.limits = QueueLimits { order, max_concurrent: model.limits.max_concurrent, ..limits(extra) };
                    queue.set_limits(model.limits.clone());
                    if regrouped && model.is_grouped() {
                        // Nobody goes, and nobody is asked, before it is known who is of which group.
                        let unknown: Vec<ExecutionId> = queue.unknown().collect();
                        prop_assert_eq!(unknown.len(), model.known.len());
                        for id in unknown {
                            prop_assert!(queue.assign(id, &model.known[&id.seq().0].demand));
                        }
                    }
                }
                Op::Limit(limit) => {
                    model.limits.max_concurrent = Some(limit);
                    queue.set_limits(model.limits.clone());
                }
                Op::Stop(stop) => {
                    model.stopped = stop;
                    queue.set_pool_closed(stop);
                }
                Op::Restore => queue = again(&model),
            }
            serve(&mut queue, &mut model)?;
        }
    }
}
