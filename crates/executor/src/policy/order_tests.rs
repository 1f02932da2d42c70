//! The order against a plain sorted list: whatever comes and goes, in whatever order.

use proptest::prelude::*;

use super::super::key_in;
use super::*;

const TIMEOUT: Millis = 1_000;

/// Who waits, in no particular order.
type Model = Vec<(Priority, Waiting)>;

#[derive(Debug, Clone)]
enum Op {
    /// So many come, in the order of their places, each a little later than the last.
    Come {
        rank: u8,
        count: usize,
        later: Millis,
    },
    /// One comes whose place is before others: a retry, or a delayed start whose time has come.
    ComeLate {
        rank: u8,
        before: usize,
        retry: bool,
        since: Millis,
    },
    /// One that stands anywhere goes.
    Remove(usize),
    /// All but every so manyth go, from the end on: what is left are gaps.
    Thin(usize),
    /// One that went comes back to its place.
    Return(usize),
    /// The first goes.
    Pop,
    /// Time passes, and whoever has waited too long goes.
    Expire(Millis),
    /// Somebody stands elsewhere, or before all others.
    Move(usize, u8, bool),
    /// The order is by this rule from now on.
    Rule(OrderRule),
}

fn rule() -> impl Strategy<Value = OrderRule> {
    prop_oneof![
        Just(OrderRule::Priority),
        Just(OrderRule::Fifo),
        (1..600_u32).prop_map(|step| OrderRule::Ageing { step }),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let rank = 0..5_u8;
    let op = prop_oneof![
        6 => (rank.clone(), 1..40_usize, 0..20_i64)
            .prop_map(|(rank, count, later)| Op::Come { rank, count, later }),
        3 => (rank, 0..60_usize, any::<bool>(), 0..2_000_i64)
            .prop_map(|(rank, before, retry, since)| Op::ComeLate { rank, before, retry, since }),
        3 => (0..200_usize).prop_map(Op::Remove),
        1 => (2..9_usize).prop_map(Op::Thin),
        2 => (0..200_usize).prop_map(Op::Return),
        4 => Just(Op::Pop),
        1 => (0..600_i64).prop_map(Op::Expire),
        2 => (0..20_usize, 0..5_u8, any::<bool>()).prop_map(|(at, rank, front)| Op::Move(at, rank, front)),
        1 => rule().prop_map(Op::Rule),
    ];
    prop::collection::vec(op, 1..60)
}

fn waiting(n: i64, enqueued_at: Millis, attempt: i32) -> Waiting {
    Waiting {
        front: false,
        execution_id: ExecutionId(n + 1_000_000),
        seq: Seq(n),
        enqueued_at,
        eligible_at: enqueued_at,
        attempt: Attempt(attempt),
        unbegun: 0,
        delayed: n % 3 == 0,
        share: Share::default(),
    }
}

/// Sorted by a rule, and by place.
fn sort(rule: OrderRule, model: &mut Model) {
    model.sort_unstable_by_key(|(priority, waiting)| {
        let key = key_in(rule, waiting.lane(*priority), waiting.enqueued_at);
        (key, waiting.seq)
    });
}

/// Every question has the answer of the list.
fn check(rule: OrderRule, order: &Order, model: &Model) -> Result<(), TestCaseError> {
    let mut model = model.clone();
    sort(rule, &mut model);
    prop_assert_eq!(
        (order.len(), order.is_empty()),
        (model.len(), model.is_empty())
    );
    for (rank, (_, waiting)) in model.iter().enumerate() {
        prop_assert_eq!(order.rank(rule, waiting.seq), Some(rank as u64));
        prop_assert!(order.contains(waiting.seq));
    }
    let mut heads = model.clone();
    sort(OrderRule::Priority, &mut heads);
    heads.dedup_by_key(|(priority, waiting)| waiting.lane(*priority));
    prop_assert_eq!(order.heads().collect::<Vec<_>>(), heads.clone());
    let mut all: Vec<Waiting> = order.iter().collect();
    all.sort_unstable_by_key(|waiting| waiting.seq);
    let mut expected: Vec<Waiting> = model.iter().map(|(_, waiting)| *waiting).collect();
    expected.sort_unstable_by_key(|waiting| waiting.seq);
    prop_assert_eq!(all, expected);
    let newest = model.iter().map(|(_, waiting)| waiting.enqueued_at);
    let newest = newest.max().unwrap_or_default();
    for priority in Priority::ALL {
        let its = rule.key(priority, newest);
        let before = model.iter().filter(|(other, waiting)| {
            key_in(rule, waiting.lane(*other), waiting.enqueued_at) <= its
        });
        prop_assert_eq!(
            order.before_newest(rule, priority, newest),
            before.count() as u64
        );
    }
    let first = |of: &dyn Fn(&Waiting) -> bool| {
        let some = model
            .iter()
            .map(|(_, waiting)| waiting)
            .filter(|waiting| of(waiting));
        some.map(|waiting| waiting.eligible_at).min()
    };
    let expires = first(&|waiting| waiting.attempt == Attempt(0));
    prop_assert_eq!(order.first_to_expire(), expires);
    // Of those that have held a slot only who stands first is looked at.
    let heads = heads.iter().map(|(_, head)| head.eligible_at);
    prop_assert_eq!(order.oldest(), heads.chain(expires).min());
    Ok(())
}

/// Whoever has waited too long goes, and nobody else.
fn expire(order: &mut Order, model: &mut Model, now: Millis) -> Result<(), TestCaseError> {
    while let Some((_, gone)) = order.pop_expired(now, TIMEOUT) {
        prop_assert!(gone.eligible_at + TIMEOUT <= now && gone.attempt == Attempt(0));
        let at = model.iter().position(|(_, waiting)| *waiting == gone);
        prop_assert!(at.is_some(), "{:?} does not wait", gone);
        model.swap_remove(at.unwrap());
    }
    let left = model
        .iter()
        .filter(|(_, waiting)| waiting.attempt == Attempt(0));
    let late = left.filter(|(_, waiting)| waiting.eligible_at + TIMEOUT <= now);
    prop_assert_eq!(late.count(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn the_order_is_that_of_a_sorted_list(first in rule(), ops in ops()) {
        let (mut order, mut model, mut rule) = (Order::default(), Model::new(), first);
        let mut gone: Model = Vec::new();
        // Every second place is free, for whoever comes late.
        let (mut now, mut next) = (0, 0);
        // When each place was given away.
        let mut times = BTreeMap::from([(0, 0)]);
        for op in ops {
            match op {
                Op::Come { rank, count, later } => {
                    for _ in 0..count {
                        (now, next) = (now + later, next + 2);
                        times.insert(next, now);
                        let entry = (Priority::from_rank(rank).unwrap(), waiting(next, now, 0));
                        order.insert(entry.0, entry.1);
                        model.push(entry);
                    }
                }
                Op::ComeLate { rank, before, retry, since } => {
                    let seq = next - 2 * i64::try_from(before).unwrap() - 1;
                    let known = model.iter().chain(&gone);
                    if seq > 0 && known.clone().all(|(_, waiting)| waiting.seq != Seq(seq)) {
                        let accepted_at = times[&(seq - 1)];
                        let mut waiting = waiting(seq, accepted_at, i32::from(retry));
                        waiting.eligible_at = now - since;
                        let priority = Priority::from_rank(rank).unwrap();
                        order.insert(priority, waiting);
                        model.push((priority, waiting));
                    }
                }
                Op::Remove(at) => {
                    if at < model.len() {
                        let entry = model.swap_remove(at);
                        prop_assert_eq!(order.remove(entry.1.seq), Some(entry));
                        prop_assert_eq!(order.remove(entry.1.seq), None);
                        prop_assert_eq!(order.rank(rule, entry.1.seq), None);
                        prop_assert!(!order.contains(entry.1.seq));
                        gone.push(entry);
                    }
                }
                Op::Thin(every) => {
                    sort(rule, &mut model);
                    for at in (0..model.len()).rev().filter(|at| at % every != 0) {
                        let entry = model.remove(at);
                        prop_assert_eq!(order.remove(entry.1.seq), Some(entry));
                        gone.push(entry);
                    }
                }
                Op::Return(at) => {
                    if at < gone.len() {
                        let (priority, mut waiting) = gone.swap_remove(at);
                        waiting.attempt = waiting.attempt.next();
                        order.insert(priority, waiting);
                        model.push((priority, waiting));
                    }
                }
                Op::Pop => {
                    sort(rule, &mut model);
                    let first = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(order.pop_first(rule), first);
                    gone.extend(first);
                }
                Op::Expire(later) => {
                    now += later;
                    expire(&mut order, &mut model, now)?;
                }
                Op::Move(at, rank, front) => {
                    if at < model.len() {
                        let (_, mut waiting) = model.swap_remove(at);
                        order.remove(waiting.seq);
                        waiting.front = front;
                        let priority = Priority::from_rank(rank).unwrap();
                        order.insert(priority, waiting);
                        model.push((priority, waiting));
                        let standing = order.find(waiting.seq);
                        prop_assert_eq!(standing, Some((priority, waiting)));
                    }
                }
                Op::Rule(other) => rule = other,
            }
            check(rule, &order, &model)?;
        }
        sort(rule, &mut model);
        let mut rest = model.into_iter();
        while let Some(first) = order.pop_first(rule) {
            prop_assert_eq!(Some(first), rest.next());
        }
        prop_assert!(rest.next().is_none() && order.is_empty());
    }

    /// Owners whose clocks differed have written contradicting times down. Whatever they are, within a
    /// priority the order is by place, and nobody stands before somebody whose key is smaller.
    #[test]
    fn times_that_contradict_the_places_follow_them(
        step in 1..600_u32, times in prop::collection::vec((0..5_u8, 0..2_000_i64), 1..60), from in 0..60_usize
    ) {
        let rule = OrderRule::Ageing { step };
        let mut order = Order::default();
        // As they are loaded: by the time that is written down.
        let mut rows: Vec<_> = times.into_iter().enumerate().collect();
        rows.sort_by_key(|(n, (_, time))| (*time, *n));
        for (n, (rank, time)) in rows.iter().cycle().skip(from).take(rows.len()) {
            let place = i64::try_from(*n).unwrap();
            order.insert(Priority::from_rank(*rank).unwrap(), waiting(place, *time, 0));
        }
        let popped: Vec<_> = std::iter::from_fn(|| order.pop_first(rule)).collect();
        prop_assert_eq!(popped.len(), rows.len());
        let key = |entry: &(Priority, Waiting)| (rule.key(entry.0, entry.1.enqueued_at), entry.1.seq);
        prop_assert!(popped.is_sorted_by_key(key));
        for priority in Priority::ALL {
            let lane = popped.iter().filter(|(other, _)| *other == priority);
            prop_assert!(lane.is_sorted_by_key(|(_, waiting)| waiting.seq));
        }
    }
}

/// A row that is mostly gaps is packed, and nobody notices.
#[test]
fn the_gaps_of_a_row_do_not_pile_up() {
    let mut order = Order::default();
    for n in 0..10_000 {
        order.insert(Priority::Normal, waiting(n, n, 0));
    }
    let places = |order: &Order| order.lanes.iter().map(|lane| lane.row.len()).sum::<usize>();
    for n in (0..10_000).filter(|n| n % 100 != 0) {
        assert_eq!(
            order.remove(Seq(n)),
            Some((Priority::Normal, waiting(n, n, 0)))
        );
        let gaps = places(&order) - order.len();
        assert!(
            gaps <= 64.max(order.len() + 1),
            "{gaps} gaps beside {}",
            order.len()
        );
    }
    assert_eq!(order.len(), 100);
    for rank in 0..100 {
        let found = order.rank(OrderRule::Priority, Seq(100 * rank));
        assert_eq!(found, Some(rank.unsigned_abs()));
    }
    let left: Vec<i64> = std::iter::from_fn(|| order.pop_first(OrderRule::Priority))
        .map(|(_, waiting)| waiting.seq.0)
        .collect();
    assert_eq!(left, (0..100).map(|n| 100 * n).collect::<Vec<_>>());
    assert_eq!(places(&order), 0);
}
