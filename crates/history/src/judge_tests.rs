use std::collections::BTreeSet;

use attune_core::{Epoch, PartitionId, Seq};
use proptest::prelude::{Strategy, any, prop, prop_assert_eq, proptest};

use super::*;

fn id(n: u32) -> ExecutionId {
    ExecutionId::new(PartitionId(5), Seq::new(Epoch(3), n))
}

/// The first attempt of the `n`th execution.
fn run(n: u32, start_ns: i64, end_ns: i64) -> Interval {
    Interval::new(id(n), start_ns, Some(end_ns))
}

/// Limit violations, order violations.
fn violations(intervals: &[Interval], limit: u32) -> (u64, u64) {
    let verdict = judge_action(intervals, Some(limit));
    (verdict.limit_violations, verdict.order_violations)
}

#[test]
fn nothing_is_in_order() {
    assert_eq!(judge_action(&[], Some(1)), Verdict::default());
}

#[test]
fn one_after_the_other_keeps_limit_1() {
    // The second starts in the instant in which the first ends; the fourth takes no time.
    let good = [
        run(0, 0, 10),
        run(1, 10, 20),
        run(2, 21, 30),
        run(3, 33, 33),
        run(4, 33, 40),
    ];
    let verdict = judge_action(&good, Some(1));
    let expected = Verdict {
        max_concurrent_observed: 1,
        handoff_ns: vec![0, 1, 3, 0],
        ..Verdict::default()
    };
    assert_eq!(verdict, expected);
}

#[test]
fn an_overlap_breaks_the_limit_and_not_the_order() {
    let overlap = [run(0, 0, 10), run(1, 9, 20), run(2, 20, 30)];
    assert_eq!(violations(&overlap, 1), (1, 0));
    let verdict = judge_action(&overlap, Some(1));
    assert_eq!(verdict.max_concurrent_observed, 2);
    // The second started before the end it should have waited for.
    assert_eq!(verdict.handoff_ns, [0]);
    // Each start above the limit counts.
    let crowd: Vec<_> = (0..5).map(|n| run(n, i64::from(n), 100)).collect();
    assert_eq!(violations(&crowd, 2), (3, 0));
    assert_eq!(violations(&crowd, 5), (0, 0));
}

#[test]
fn a_swapped_order_at_limit_1_is_found() {
    let swapped = [
        run(0, 0, 10),
        run(2, 10, 20),
        run(1, 20, 30),
        run(3, 30, 40),
    ];
    assert_eq!(violations(&swapped, 1), (0, 1));
    // Everything in the wrong order: each but the first of all overtakes.
    let backwards: Vec<_> = (0..5)
        .map(|n| run(4 - n, i64::from(n), i64::from(n) + 1))
        .collect();
    assert_eq!(violations(&backwards, 1), (0, 4));
}

#[test]
fn starts_that_pass_each_other_within_the_limit_are_no_overtaking() {
    // At limit 3 the first three have slots at once, and may start in any order.
    let passing = [run(2, 0, 50), run(1, 1, 40), run(0, 2, 30), run(3, 31, 60)];
    assert_eq!(violations(&passing, 3), (0, 0));
    // Number 3 had a slot from the moment at which 0 ended; 4 got its slot later.
    let late = [
        run(0, 0, 10),
        run(1, 0, 30),
        run(2, 0, 12),
        run(4, 13, 20),
        run(3, 14, 20),
    ];
    assert_eq!(violations(&late, 3), (0, 0));
}

#[test]
fn what_starts_at_the_same_instant_is_not_before() {
    // 2 takes no time, and 0 is handed its slot at once: whichever order they are looked at in,
    // 1, which was granted before them and starts later, was not overtaken.
    let handed = [
        retry(0, 1, 0, Some(5)),
        retry(0, 2, 20, Some(30)),
        run(2, 20, 20),
        run(1, 21, 25),
    ];
    assert_eq!(violations(&handed, 2), (0, 0));
}

#[test]
fn overtaking_at_limit_3_is_found() {
    // When 4 starts, 1 and 2 run and 3 has not started: three before it, while it holds a slot.
    let overtaken = [
        run(0, 0, 10),
        run(1, 0, 30),
        run(2, 0, 30),
        run(4, 11, 20),
        run(3, 21, 40),
    ];
    assert_eq!(violations(&overtaken, 3), (0, 1));
    assert_eq!(
        violations(&overtaken, 4),
        (0, 0),
        "with one more slot it may be so"
    );
}

#[test]
fn without_a_limit_there_is_nothing_to_break() {
    let wild = [
        run(3, 0, 100),
        run(0, 1, 100),
        run(2, 2, 100),
        run(1, 3, 100),
    ];
    let verdict = judge_action(&wild, None);
    let expected = Verdict {
        max_concurrent_observed: 4,
        ..Verdict::default()
    };
    assert_eq!(verdict, expected);
}

#[test]
fn a_run_without_an_end_still_runs() {
    let open = Interval {
        end_ns: None,
        ..run(0, 0, 0)
    };
    let verdict = judge_action(&[open, run(1, 1000, 1001)], Some(1));
    assert_eq!((verdict.unended, verdict.limit_violations), (1, 1));
    assert_eq!(
        (verdict.max_concurrent_observed, verdict.order_violations),
        (2, 0)
    );
    // It is in the way of those after it, once one of those before them has not started.
    let verdict = judge_action(&[open, run(2, 10, 20), run(1, 30, 40)], Some(2));
    assert_eq!((verdict.limit_violations, verdict.order_violations), (0, 1));
}

#[test]
fn an_end_before_its_start_is_one_at_the_start() {
    let odd = [run(0, 10, 5), run(1, 10, 12)];
    assert_eq!(violations(&odd, 1), (0, 0));
    assert_eq!(judge_action(&odd, Some(1)).max_concurrent_observed, 1);
}

fn retry(n: u32, attempt: i32, start_ns: i64, end_ns: Option<i64>) -> Interval {
    Interval {
        attempt: Attempt(attempt),
        start_ns,
        end_ns,
        ..run(n, 0, 0)
    }
}

#[test]
fn an_execution_between_its_attempts_may_be_overtaken() {
    // 0 is in back-off from 10 to 30; 1 runs meanwhile.
    let backed_off = [
        retry(0, 1, 0, Some(10)),
        run(1, 11, 20),
        retry(0, 2, 30, Some(40)),
        run(2, 40, 50),
    ];
    let verdict = judge_action(&backed_off, Some(1));
    assert_eq!((verdict.limit_violations, verdict.order_violations), (0, 0));
    // The retry waited for its back-off, not for a slot.
    assert_eq!(verdict.handoff_ns, [1, 0]);

    // While its second attempt runs, it is in the way: 2 overtakes 1.
    let in_the_way = [
        retry(0, 1, 0, Some(10)),
        retry(0, 2, 20, Some(90)),
        run(2, 30, 40),
        run(1, 50, 60),
    ];
    assert_eq!(violations(&in_the_way, 2), (0, 1));

    // A retry that starts although one before it waits has overtaken it.
    let early = [
        retry(1, 1, 0, Some(5)),
        retry(1, 2, 10, Some(20)),
        run(0, 20, 30),
    ];
    assert_eq!(violations(&early, 1), (0, 2));
}

#[test]
fn an_attempt_without_an_end_is_over_when_the_next_starts() {
    let killed = [
        retry(0, 1, 0, None),
        retry(0, 2, 20, Some(30)),
        run(1, 30, 40),
    ];
    let verdict = judge_action(&killed, Some(1));
    assert_eq!((verdict.unended, verdict.limit_violations), (0, 0));
    // Until then it counts as running.
    assert_eq!(
        violations(
            &[
                retry(0, 1, 0, None),
                run(1, 10, 15),
                retry(0, 2, 20, Some(30))
            ],
            1
        ),
        (1, 0)
    );
    // One that is known to have gone on overlaps with its successor.
    assert_eq!(
        violations(&[retry(0, 1, 0, Some(25)), retry(0, 2, 20, Some(30))], 1),
        (1, 0)
    );
}

#[test]
fn an_attempt_that_starts_twice_is_counted() {
    let twice = [
        run(0, 0, 10),
        run(0, 20, 30),
        retry(0, 2, 40, Some(50)),
        run(1, 60, 70),
    ];
    let verdict = judge_action(&twice, Some(1));
    assert_eq!((verdict.double_starts, verdict.order_violations), (1, 0));
}

#[test]
fn a_handoff_counts_from_the_acceptance_when_that_was_later() {
    let accepted = |run: Interval, at| Interval {
        accepted_ns: Some(at),
        ..run
    };
    let runs = [
        run(0, 0, 10),
        run(1, 0, 20),
        accepted(run(2, 15, 30), 1),
        accepted(run(3, 26, 40), 25),
        // Started before its client was told: no hand-off can be measured.
        accepted(run(4, 31, 40), 33),
    ];
    assert_eq!(judge_action(&runs, Some(2)).handoff_ns, [5, 1]);
}

#[test]
fn a_large_history_is_judged_in_good_time() {
    // Limit 10: number n runs from n to n + 10. One of them is pushed back by a place.
    let count = 200_000;
    let mut runs: Vec<_> = (0..count)
        .map(|n| run(n, i64::from(n), i64::from(n) + 10))
        .rev()
        .collect();
    let good = judge_action(&runs, Some(10));
    assert_eq!((good.limit_violations, good.order_violations), (0, 0));
    assert_eq!(good.handoff_ns.len(), count as usize - 10);
    assert!(good.handoff_ns.iter().all(|handoff| *handoff == 0));
    for run in runs.iter_mut().filter(|run| run.execution_id == id(1000)) {
        (run.start_ns, run.end_ns) = (1001, Some(1011));
    }
    for run in runs.iter_mut().filter(|run| run.execution_id == id(1001)) {
        (run.start_ns, run.end_ns) = (1000, Some(1010));
    }
    assert_eq!(violations(&runs, 10), (0, 1));
}

/// The rules word by word, in O(n²).
fn judged_slowly(intervals: &[Interval], limit: u32) -> (u64, u64) {
    let end = |run: &Interval| run.end_ns.map_or(i64::MAX, |end| end.max(run.start_ns));
    let (mut limits, mut orders) = (0, 0);
    for (index, y) in intervals.iter().enumerate() {
        let t = y.start_ns;
        // Starts of one instant come one after the other, those that take no time first.
        let place = |index: usize, run: &Interval| (end(run) > run.start_ns, index);
        let under_way = intervals.iter().enumerate().filter(|(other, x)| {
            let earlier =
                x.start_ns < t || (x.start_ns == t && place(*other, x) <= place(index, y));
            *other == index || (earlier && end(x) > t)
        });
        limits += u64::from(under_way.count() > limit as usize);
        let earlier: BTreeSet<_> = intervals
            .iter()
            .map(|x| x.execution_id)
            .filter(|x| x.seq() < y.execution_id.seq())
            .collect();
        let has_started = |x: &ExecutionId| {
            intervals
                .iter()
                .any(|run| run.execution_id == *x && run.start_ns <= t)
        };
        let runs_now = |x: &ExecutionId| {
            let of_x = intervals.iter().filter(|run| run.execution_id == *x);
            of_x.clone().any(|run| run.start_ns < t && end(run) > t)
        };
        let unstarted = earlier.iter().filter(|x| !has_started(x)).count();
        let running = earlier.iter().filter(|x| runs_now(x)).count();
        orders += u64::from(unstarted > 0 && unstarted + running > limit as usize - 1);
    }
    (limits, orders)
}

/// Any intervals at all, with ids, times and ends that often meet.
fn anything() -> impl Strategy<Value = Vec<Interval>> {
    let one = (
        0_u32..12,
        0_i64..40,
        prop::option::weighted(0.95, 0_i64..12),
    );
    prop::collection::vec(one, 0..30).prop_map(|runs| {
        let mut attempts = std::collections::HashMap::new();
        let one = |(n, start, length): (u32, i64, Option<i64>)| {
            let attempt = attempts.entry(n).or_insert(0);
            *attempt += 1;
            // How an open end is closed is tested by itself; some runs outlast all others.
            let end_ns = Some(start + length.unwrap_or(1000));
            Interval {
                attempt: Attempt(*attempt),
                start_ns: start,
                end_ns,
                ..run(n, 0, 0)
            }
        };
        runs.into_iter().map(one).collect()
    })
}

/// One execution as the model of a queue sees it.
#[derive(Debug, Clone)]
struct Job {
    arrival: i64,
    /// Of each attempt: from the grant to the start, from the start to the end, from the end to
    /// the moment at which the owner knows, and how long it then backs off.
    attempts: Vec<[i64; 4]>,
}

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let times = [0_i64..8, 0_i64..20, 0_i64..4, 0_i64..30];
    let job = (0_i64..60, prop::collection::vec(times, 1..=3))
        .prop_map(|(arrival, attempts)| Job { arrival, attempts });
    prop::collection::vec(job, 1..60).prop_map(|mut jobs| {
        // The order of acceptance is the order of seq.
        jobs.sort_by_key(|job| job.arrival);
        jobs
    })
}

/// A queue that keeps its promises: at every moment it gives free slots to the eligible in the
/// order of their place, and takes a slot back only when the run is over.
fn histories_of_a_good_queue(jobs: &[Job], limit: usize) -> Vec<Interval> {
    let mut intervals = Vec::new();
    // (from when it is eligible, number, attempt) and (when its slot is free again).
    let mut waiting: Vec<(i64, usize, usize)> = jobs
        .iter()
        .enumerate()
        .map(|(number, job)| (job.arrival, number, 0))
        .collect();
    let mut slots: Vec<i64> = Vec::new();
    let mut now = 0;
    while !waiting.is_empty() {
        slots.retain(|free| *free > now);
        let eligible = waiting.iter().filter(|(from, ..)| *from <= now);
        let first = eligible.min_by_key(|(_, number, _)| *number).copied();
        let Some((from, number, attempt)) = first.filter(|_| slots.len() < limit) else {
            now += 1;
            continue;
        };
        waiting.retain(|entry| *entry != (from, number, attempt));
        let [delay, length, notice, back_off] = jobs[number].attempts[attempt];
        let (start_ns, end_ns) = (now + delay, now + delay + length);
        slots.push(end_ns + notice);
        intervals.push(Interval {
            execution_id: id(number as u32),
            attempt: Attempt(attempt as i32 + 1),
            accepted_ns: Some(jobs[number].arrival),
            start_ns,
            end_ns: Some(end_ns),
        });
        if attempt + 1 < jobs[number].attempts.len() {
            waiting.push((end_ns + notice + back_off, number, attempt + 1));
        }
    }
    intervals
}

proptest! {
    #[test]
    fn the_fast_judge_agrees_with_the_rules_word_by_word(
        intervals in anything(),
        limit in 1_u32..6,
    ) {
        prop_assert_eq!(violations(&intervals, limit), judged_slowly(&intervals, limit));
    }

    #[test]
    fn a_good_queue_is_never_accused(jobs in jobs(), limit in 1_u32..6, shuffle in any::<u64>()) {
        let mut intervals = histories_of_a_good_queue(&jobs, limit as usize);
        let count: usize = jobs.iter().map(|job| job.attempts.len()).sum();
        prop_assert_eq!(intervals.len(), count);
        // The order in which they are handed in has no meaning.
        let middle = (shuffle % intervals.len() as u64) as usize;
        intervals.rotate_left(middle);
        let verdict = judge_action(&intervals, Some(limit));
        prop_assert_eq!((verdict.limit_violations, verdict.order_violations), (0, 0));
        prop_assert_eq!((verdict.double_starts, verdict.unended), (0, 0));
    }

    #[test]
    fn a_queue_with_one_slot_too_many_is_caught(jobs in jobs(), limit in 1_u32..5) {
        let intervals = histories_of_a_good_queue(&jobs, limit as usize + 1);
        let verdict = judge_action(&intervals, Some(limit));
        let observed = verdict.max_concurrent_observed;
        prop_assert_eq!(verdict.limit_violations > 0, observed > u64::from(limit));
    }
}
