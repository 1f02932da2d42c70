//! Judges from the runs of one action whether its promises were kept.
//!
//! What can be seen from outside is when each run started and ended; when the owner granted a
//! slot cannot be seen, and starts may overtake each other on the way from the grant to the
//! worker. The rules are therefore such that a queue which keeps I2 and I3 never breaks them,
//! however long its messages take, and that a start which cannot be explained by a queue that
//! keeps them is counted.
//!
//! *Limit.* At no start may more runs of the action be under way than its limit, that start
//! included. Each start at which there are more counts once.
//!
//! *Order.* Executions stand in the order of [`ExecutionId::seq`]. When slots are granted in
//! that order, then at the start of y every execution before y has been granted a slot, and
//! those that have not ended still hold it. y holds one as well. So y has broken the order if
//! more than `limit − 1` of those before it have not ended, and at least one of them has not
//! even started. The last condition tells overtaking from a limit that was exceeded in the
//! right order. For limit 1 this says exactly that executions start in the order of their seq.
//! Without a limit nobody waits, so there is no order to break. Priorities, delayed starts and
//! pauses change what is eligible when; the rule is for actions without them.
//!
//! *Attempts.* Each attempt is an interval of its own. For the limit each counts while it runs,
//! an attempt that should be dead as well. For the order, an execution between two attempts is
//! not in the way of others, because it may be in retry back-off; while one of its attempts
//! runs it is. Each start of a retry is judged like any other, at its execution's place.
//!
//! *A missing end* counts as still running, until the next attempt of the same execution starts,
//! if there is one: an attempt is only granted again when the one before is over. Whoever knows
//! better, for example when a worker was killed, sets the end before judging.
//!
//! *The same instant.* An end and a start at the same instant do not overlap, and of two starts
//! at the same instant neither is before the other: for the order, each counts as started and
//! not in the way of the other.

use attune_core::{Attempt, ExecutionId};

/// One run of an attempt of an execution. Times are nanoseconds of any one clock, such as
/// [`now_ns`](crate::now_ns).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// When it was accepted, if that is known: it cannot be handed a slot before. Of a retry it
    /// does not matter.
    pub accepted_ns: Option<i64>,
    /// When it started.
    pub start_ns: i64,
    /// When it ended; `None` when that is not known. An end before the start is taken as an end
    /// at the start.
    pub end_ns: Option<i64>,
}

impl Interval {
    /// The first attempt of an execution, accepted at an unknown time.
    pub fn new(execution_id: ExecutionId, start_ns: i64, end_ns: Option<i64>) -> Self {
        Self {
            execution_id,
            attempt: Attempt(1),
            accepted_ns: None,
            start_ns,
            end_ns,
        }
    }
}

/// What the runs of one action show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The most runs that were under way at once.
    pub max_concurrent_observed: u64,
    /// Starts at which more runs were under way than the limit allows.
    pub limit_violations: u64,
    /// Starts that broke the order.
    pub order_violations: u64,
    /// Starts of an attempt that had started before: a grant is begun by one worker, once.
    pub double_starts: u64,
    /// Runs without an end that no later attempt of their execution explains.
    pub unended: u64,
    /// How long freed slots took to be taken, in nanoseconds, in the order of the starts. With
    /// limit L, the start number k (from 0) needs the end number k − L. The hand-off is the
    /// time from that end, or from the acceptance if that was later, to the start. Starts that
    /// needed no end, or came before it, have none; nor have retries, which may have waited for
    /// their back-off.
    pub handoff_ns: Vec<i64>,
}

/// Judges the runs of one action under `limit`; `None` is unlimited. See the [module](self) for
/// the rules. The intervals may come in any order; all executions must be of one partition, as
/// those of one action are. Takes O(n log n).
pub fn judge_action(intervals: &[Interval], limit: Option<u32>) -> Verdict {
    let runs = settle_ends(intervals);
    let events = events(&runs);
    let mut verdict = Verdict {
        double_starts: double_starts(&runs),
        unended: runs.iter().filter(|run| run.end_ns.is_none()).count() as u64,
        ..Verdict::default()
    };
    judge_limit(&events, limit, &mut verdict);
    if let Some(limit) = limit {
        verdict.order_violations = judge_order(&runs, &events, limit);
        verdict.handoff_ns = handoffs(&runs, limit);
    }
    verdict
}

/// The intervals by execution, attempt and start, with their ends decided; what has none runs
/// for ever.
fn settle_ends(intervals: &[Interval]) -> Vec<Interval> {
    let mut runs = intervals.to_vec();
    // Within a partition, ids are in the order of seq.
    runs.sort_by_key(|run| (run.execution_id, run.attempt, run.start_ns));
    // Backwards: the attempt that was seen last, its first start, and that of the one after it.
    let mut seen: Option<(ExecutionId, Attempt, i64)> = None;
    let mut after: Option<i64> = None;
    for run in runs.iter_mut().rev() {
        match seen {
            Some((id, attempt, start)) if id == run.execution_id => {
                if attempt != run.attempt {
                    after = Some(start);
                }
            }
            _ => after = None,
        }
        seen = Some((run.execution_id, run.attempt, run.start_ns));
        run.end_ns = run.end_ns.or(after).map(|end| end.max(run.start_ns));
    }
    runs
}

fn double_starts(runs: &[Interval]) -> u64 {
    let same = |pair: &[Interval]| {
        (pair[0].execution_id, pair[0].attempt) == (pair[1].execution_id, pair[1].attempt)
    };
    runs.windows(2).filter(|pair| same(pair)).count() as u64
}

/// What happens at one instant, in this order: ends make room before starts take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    End,
    /// Starts and ends at once: it overlaps with what runs, but not with another start.
    Instant,
    Start,
}

/// When, what, and of which run.
type Event = (i64, What, usize);

fn events(runs: &[Interval]) -> Vec<Event> {
    let mut events = Vec::with_capacity(2 * runs.len());
    for (index, run) in runs.iter().enumerate() {
        match run.end_ns {
            Some(end) if end == run.start_ns => events.push((end, What::Instant, index)),
            end => {
                events.push((run.start_ns, What::Start, index));
                events.extend(end.map(|end| (end, What::End, index)));
            }
        }
    }
    events.sort_unstable();
    events
}

fn judge_limit(events: &[Event], limit: Option<u32>, verdict: &mut Verdict) {
    let limit = limit.map_or(u64::MAX, u64::from);
    let mut active = 0_u64;
    for (_, what, _) in events {
        let at_start = match what {
            What::End => {
                active -= 1;
                continue;
            }
            What::Instant => active + 1,
            What::Start => {
                active += 1;
                active
            }
        };
        verdict.max_concurrent_observed = verdict.max_concurrent_observed.max(at_start);
        verdict.limit_violations += u64::from(at_start > limit);
    }
}

/// Where an execution stands at one moment, as far as runs tell.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    started: bool,
    /// Attempts under way; more than one only if something went wrong.
    running: u32,
}

impl Standing {
    /// Whether it holds a slot or should have been given one.
    fn is_in_the_way(self) -> bool {
        !self.started || self.running > 0
    }
}

/// Every execution by its rank, with the counts that the rule asks for.
struct Order {
    standings: Vec<Standing>,
    in_the_way: Tally,
    unstarted: Tally,
}

impl Order {
    /// Nothing has started.
    fn of(count: usize) -> Self {
        Self {
            standings: vec![Standing::default(); count],
            in_the_way: Tally::of_ones(count),
            unstarted: Tally::of_ones(count),
        }
    }

    fn change(&mut self, rank: usize, change: impl FnOnce(&mut Standing)) {
        let before = self.standings[rank];
        change(&mut self.standings[rank]);
        let after = self.standings[rank];
        if before.is_in_the_way() != after.is_in_the_way() {
            self.in_the_way.set(rank, after.is_in_the_way());
        }
        if before.started != after.started {
            self.unstarted.set(rank, !after.started);
        }
    }

    /// Whether a start of the execution with this rank, now, breaks the order.
    fn is_broken_by(&self, rank: usize, limit: u32) -> bool {
        self.in_the_way.before(rank) >= u64::from(limit) && self.unstarted.before(rank) > 0
    }
}

fn judge_order(runs: &[Interval], events: &[Event], limit: u32) -> u64 {
    let ranks = ranks(runs);
    let mut order = Order::of(ranks.last().map_or(0, |last| last + 1));
    let mut violations = 0;
    for instant in events.chunk_by(|a, b| a.0 == b.0) {
        // Who starts at this very instant has started, but is not in the way yet: whether it got
        // its slot before or after another that starts now cannot be told.
        for &(_, what, run) in instant {
            order.change(ranks[run], |standing| match what {
                What::End => standing.running -= 1,
                What::Instant | What::Start => standing.started = true,
            });
        }
        for &(_, what, run) in instant {
            violations += u64::from(what != What::End && order.is_broken_by(ranks[run], limit));
        }
        for &(_, what, run) in instant {
            if what == What::Start {
                order.change(ranks[run], |standing| standing.running += 1);
            }
        }
    }
    violations
}

/// The place of each run's execution among the executions, from 0.
fn ranks(runs: &[Interval]) -> Vec<usize> {
    let mut rank = 0;
    let mut previous = None;
    let rank_of = |run: &Interval| {
        if previous
            .replace(run.execution_id)
            .is_some_and(|id| id != run.execution_id)
        {
            rank += 1;
        }
        rank
    };
    runs.iter().map(rank_of).collect()
}

fn handoffs(runs: &[Interval], limit: u32) -> Vec<i64> {
    let limit = limit as usize;
    if limit == 0 {
        return Vec::new();
    }
    let mut starts: Vec<&Interval> = runs.iter().collect();
    starts.sort_by_key(|run| (run.start_ns, run.execution_id));
    let mut ends: Vec<i64> = runs.iter().filter_map(|run| run.end_ns).collect();
    ends.sort_unstable();
    let waited = starts.iter().skip(limit).zip(ends);
    waited
        .filter(|(run, _)| run.attempt <= Attempt(1))
        .map(|(run, end)| run.start_ns - run.accepted_ns.map_or(end, |accepted| accepted.max(end)))
        .filter(|handoff| *handoff >= 0)
        .collect()
}

/// A row of ones and zeros that counts the ones before a place in O(log n) (a Fenwick tree).
struct Tally(Vec<u64>);

impl Tally {
    fn of_ones(count: usize) -> Self {
        // The node i, from 1, holds the sum of the i & -i places up to i.
        Self(
            (0..=count)
                .map(|node| (node & node.wrapping_neg()) as u64)
                .collect(),
        )
    }

    /// Changes a place to the other value.
    fn set(&mut self, place: usize, one: bool) {
        let mut node = place + 1;
        while let Some(sum) = self.0.get_mut(node) {
            *sum = if one { *sum + 1 } else { *sum - 1 };
            node += node & node.wrapping_neg();
        }
    }

    fn before(&self, place: usize) -> u64 {
        let mut node = place;
        let mut sum = 0;
        while node > 0 {
            sum += self.0[node];
            node -= node & node.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
