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
//! at the same instant neither is before the other.

use std::collections::HashMap;

use attune_core::{Attempt, ExecutionId};

/// One run of an attempt of an execution. Times are nanoseconds of any one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// When it was accepted, if that is known: it cannot be handed a slot before. Of a retry it
    /// does not matter.
    pub accepted_ns: Option<u64>,
    /// When it started.
    pub start_ns: u64,
    /// When it ended; `None` when that is not known. An end before the start is taken as an end
    /// at the start.
    pub end_ns: Option<u64>,
}

/// What the runs of one action show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The most runs that were under way at once.
    pub max_concurrent_observed: u32,
    /// Starts at which more runs were under way than the limit allows.
    pub limit_violations: u64,
    /// Starts that broke the order.
    pub order_violations: u64,
    /// Starts of an attempt that had started before: the claim must make that impossible.
    pub double_starts: u64,
    /// Runs without an end that no later attempt of their execution explains.
    pub unended: u64,
    /// How long freed slots took to be taken, in nanoseconds, in the order of the starts. With
    /// limit L, the start number k (from 0) needs the end number k − L. The hand-off is the
    /// time from that end, or from the acceptance if that was later, to the start. Starts that
    /// needed no end, or came before it, have none; nor have retries, which may have waited for
    /// their back-off.
    pub handoff_ns: Vec<u64>,
}

/// Judges the runs of one action under `limit`; `None` is unlimited. See the [module](self) for
/// the rules. The intervals may come in any order; all executions must be of one partition, as
/// those of one action are. Takes O(n log n).
pub fn judge_action(intervals: &[Interval], limit: Option<u32>) -> Verdict {
    let (runs, unended) = settle_ends(intervals);
    let events = events(&runs);
    let mut verdict = Verdict { unended, ..Verdict::default() };
    verdict.double_starts = double_starts(&runs);
    judge_limit(&events, limit, &mut verdict);
    if let Some(limit) = limit {
        verdict.order_violations = judge_order(&runs, &events, limit);
        verdict.handoff_ns = handoffs(&runs, limit);
    }
    verdict
}

/// An interval whose end is decided; without one it runs for ever.
#[derive(Debug, Clone, Copy)]
struct Run {
    interval: Interval,
    end_ns: Option<u64>,
}

/// Decides the ends, and counts those that stay open. The runs come in the order of their
/// executions and attempts.
fn settle_ends(intervals: &[Interval]) -> (Vec<Run>, u64) {
    let mut sorted = intervals.to_vec();
    sorted.sort_by_key(|run| (run.execution_id.seq(), run.attempt, run.start_ns));
    let mut runs = Vec::with_capacity(sorted.len());
    let mut unended = 0;
    // Backwards, so that the next attempt's first start is known.
    let mut next: Option<(Interval, u64)> = None;
    for interval in sorted.into_iter().rev() {
        let same = next.filter(|(later, _)| later.execution_id == interval.execution_id);
        let taken_over = same
            .filter(|(later, _)| later.attempt > interval.attempt)
            .map(|(_, start_ns)| start_ns);
        let end_ns = interval.end_ns.or(taken_over).map(|end| end.max(interval.start_ns));
        unended += u64::from(end_ns.is_none());
        runs.push(Run { interval, end_ns });
        next = Some((interval, interval.start_ns));
    }
    runs.reverse();
    (runs, unended)
}
