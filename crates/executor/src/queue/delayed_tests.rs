//! Tests of who waits for its time: an example, then random histories against a sorted list.

use proptest::prelude::*;

use super::*;

fn waiting(n: i64) -> Waiting {
    Waiting {
        front: false,
        execution_id: ExecutionId(n),
        seq: Seq(n),
        enqueued_at: n,
        eligible_at: n,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: true,
        share: Share::default(),
    }
}

/// As it comes out again when its time is this.
fn waited(n: i64, time: Millis) -> Waiting {
    Waiting {
        eligible_at: n.max(time),
        ..waiting(n)
    }
}

/// The two looks at who waits agree with a list by time, then by place.
fn check(delayed: &Delayed, expected: &[(Millis, i64)]) {
    assert_eq!(
        delayed.next(),
        expected.iter().map(|(time, _)| *time).min(),
        "when the first is eligible"
    );
    let mut all: Vec<i64> = delayed.iter().map(|it| it.execution_id.0).collect();
    all.sort_unstable();
    let mut places: Vec<i64> = expected.iter().map(|(_, n)| *n).collect();
    places.sort_unstable();
    assert_eq!(all, places);
    assert_eq!(delayed.len(), expected.len());
    let by_time: Vec<(Millis, i64)> = delayed.by_time.iter().map(|(t, seq)| (*t, seq.0)).collect();
    assert_eq!(by_time, expected, "by time, then by place");
    let gaps = delayed.row.iter().filter(|place| place.is_gone()).count();
    assert_eq!(delayed.gaps, gaps);
    assert_eq!(
        delayed.row.len() - gaps + delayed.late.len(),
        expected.len()
    );
    assert!(gaps <= FEW_GAPS || gaps * 4 <= delayed.row.len());
}

#[test]
fn who_is_delayed_is_found_by_time_and_by_place() {
    let mut delayed = Delayed::default();
    check(&delayed, &[]);
    for (time, n) in [(50, 4), (30, 7), (50, 2), (40, 9)] {
        delayed.insert(Priority::Normal, waiting(n), time);
    }
    check(&delayed, &[(30, 7), (40, 9), (50, 2), (50, 4)]);
    assert_eq!(delayed.remove(Seq(7)), Some(waited(7, 30)));
    assert_eq!(delayed.remove(Seq(7)), None, "it is gone");
    assert!(!delayed.contains(Seq(7)) && delayed.contains(Seq(9)));
    assert_eq!(delayed.remove(Seq(1)), None, "it never was there");
    check(&delayed, &[(40, 9), (50, 2), (50, 4)]);
    assert_eq!(delayed.pop_due(39), None);
    assert_eq!(delayed.pop_due(50), Some((Priority::Normal, waited(9, 40))));
    assert_eq!(delayed.pop_due(50), Some((Priority::Normal, waited(2, 50))));
    check(&delayed, &[(50, 4)]);
    assert_eq!(delayed.remove(Seq(4)), Some(waited(4, 50)));
    check(&delayed, &[]);
    assert_eq!(delayed.pop_due(Millis::MAX), None);
}

#[test]
fn whoever_was_accepted_ahead_waits_since_then() {
    let mut delayed = Delayed::default();
    let ahead = Waiting {
        eligible_at: 70,
        ..waiting(4)
    };
    delayed.insert(Priority::Normal, ahead, 50);
    delayed.insert(Priority::Normal, waiting(5), 50);
    assert_eq!(delayed.find(Seq(4)), Some((Priority::Normal, ahead, 50)));
    assert!(delayed.iter().any(|it| it == ahead));
    assert_eq!(delayed.pop_due(50), Some((Priority::Normal, ahead)));
    // Nobody else waits since then, also at the same place.
    assert_eq!(delayed.pop_due(50), Some((Priority::Normal, waited(5, 50))));
    delayed.insert(Priority::Normal, waiting(4), 50);
    assert_eq!(delayed.remove(Seq(4)), Some(waited(4, 50)));
}

#[derive(Debug, Clone)]
enum Op {
    /// The next place, or one that comes late, with a time.
    Insert { late: bool, time: Millis },
    /// One that is there, or never was.
    Remove(usize),
    /// All whose time has come, so many at most.
    Wake(Millis, usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (prop::bool::weighted(0.1), 0..1_000_i64)
            .prop_map(|(late, time)| Op::Insert { late, time }),
        3 => (0..400_usize).prop_map(Op::Remove),
        1 => (0..1_000_i64, 0..20_usize).prop_map(|(time, max)| Op::Wake(time, max)),
    ];
    prop::collection::vec(op, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, goes and wakes, in whatever order: it is a list sorted by time and place.
    #[test]
    fn a_naive_list_says_the_same(ops in ops()) {
        let mut delayed = Delayed::default();
        let mut list: Vec<(Millis, i64)> = Vec::new();
        let (mut next, mut back) = (1_000, 999);
        for op in ops {
            match op {
                Op::Insert { late, time } => {
                    let place = if late { &mut back } else { &mut next };
                    let n = *place;
                    *place += if late { -1 } else { 1 };
                    delayed.insert(Priority::Low, waiting(n), time);
                    list.push((time, n));
                    list.sort_unstable();
                }
                Op::Remove(k) => {
                    let found = (k < list.len()).then(|| list.remove(k));
                    let (time, n) = found.unwrap_or((0, 0));
                    let expected = found.map(|_| waited(n, time));
                    prop_assert_eq!(delayed.remove(Seq(n)), expected);
                    prop_assert!(!delayed.contains(Seq(n)));
                }
                Op::Wake(now, max) => {
                    for _ in 0..max {
                        let due = list.first().filter(|(time, _)| *time <= now).copied();
                        let expected = due.map(|(time, n)| (Priority::Low, waited(n, time)));
                        prop_assert_eq!(delayed.pop_due(now), expected);
                        list.drain(..usize::from(due.is_some()));
                    }
                }
            }
            for (_, n) in &list {
                prop_assert!(delayed.contains(Seq(*n)));
            }
            check(&delayed, &list);
        }
    }
}
