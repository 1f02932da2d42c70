//! Owners that live and do nothing, or leave something lie (I6).
//!
//! Work waits for an owner from the moment at which somebody else recorded that it is there: the
//! broker has confirmed a submission, or a listener has handed a completion over. An owner that
//! surely lives, in calm, has made some round at the latest [`IDLE`] after that, or the work did
//! not wait so long. Only work is judged that the owner, or one after it, did take later: what
//! nobody ever takes is for I1 and I4 to tell, and it may have been no work at all.
//!
//! Between two rounds an owner decides about as much as one round holds, so that this accuses
//! nobody who is only slow.
//!
//! An owner that makes rounds has not let work lie for [`PATIENCE`] before it takes it, unless
//! somebody is behind: what was there earlier was still being taken, here or in another partition.
//! Calm is asked for more strictly here: all of the time right before the work is taken, and no
//! daemon began, stopped or died in it, because work passes through routers and listeners on its
//! way. So what a fault has sent a second time is judged from that fault on. What was asked for
//! more than once, or refused in between, is not judged: the first may have been answered.

use std::collections::HashMap;

use attune_core::PartitionId;

use super::facts::Facts;
use super::processes::Tenure;
use super::times::due;
use super::{Judged, Promise, Violation, violation};

/// How long an owner may do nothing while work waits, in nanoseconds.
pub(super) const IDLE: i64 = 10_000_000_000;
/// How long work may wait for an owner that is not behind, and a free slot for somebody to have
/// it. Longer than anything that a healthy system waits for: leases, heartbeats, pauses between
/// two tries.
pub(super) const PATIENCE: i64 = 30_000_000_000;

/// Something that waits for an owner.
struct Work {
    partition: PartitionId,
    /// From when it surely was there.
    from: i64,
    /// Before which no owner can have taken it.
    since: i64,
    /// When an owner took it.
    taken: i64,
    /// Whether it was handed over once only, as far as is known.
    is_single: bool,
    what: String,
    record: u32,
}

/// When an owner took things of a kind, and from when they were there; in order.
type Taken = HashMap<PartitionId, Vec<(i64, i64)>>;

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    judge_kind(facts, submissions(facts), judged, broken);
    judge_kind(facts, completions(facts), judged, broken);
}

fn judge_kind(
    facts: &Facts,
    (mut works, mut all): (Vec<Work>, Taken),
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let faults = facts.processes.disturbances();
    let troubles = facts.processes.troubles();
    let tenures = facts.processes.tenures();
    works.sort_unstable_by_key(|work| (work.from, work.record));
    all.values_mut().for_each(|taken| taken.sort_unstable());
    for work in works {
        let tenures = tenures.get(&work.partition).map_or(&[][..], Vec::as_slice);
        // Of an earlier owner, the record that it has taken it may be lost.
        for tenure in tenures.iter().filter(|tenure| tenure.began <= work.since) {
            if let Some(due) = due(work.from, IDLE, *tenure, &faults) {
                judged.rounds += 1;
                let rounds = facts.processes.rounds(work.partition, tenure.epoch);
                let is_idle = !rounds.iter().any(|t| (due - IDLE..=due).contains(t));
                if work.taken > due && is_idle {
                    let what = format!(
                        "the owner of partition {} made no round for {} s while {} waited for it",
                        work.partition,
                        IDLE / 1_000_000_000,
                        work.what
                    );
                    broken.push(violation(Promise::I6, what, [work.record]));
                }
            }
        }
        judge_patience(&work, tenures, (&troubles, &all), judged, broken);
    }
}

/// Judges work by the time that it lay before it was taken.
fn judge_patience(
    work: &Work,
    tenures: &[Tenure],
    (troubles, all): (&[(i64, i64)], &Taken),
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let begun = tenures.partition_point(|tenure| tenure.began <= work.taken);
    let Some(tenure) = begun.checked_sub(1).and_then(|it| tenures.get(it)) else {
        return;
    };
    if !work.is_single {
        return;
    }
    let is_judged = due(work.from, PATIENCE, *tenure, troubles).is_some();
    judged.waits += u64::from(is_judged);
    let begun = troubles.partition_point(|(begin, _)| *begin < work.taken);
    let last = begun.checked_sub(1).and_then(|it| troubles.get(it));
    let calm_since = last.map_or(i64::MIN, |(_, end)| *end);
    let due = work.from.max(tenure.began).max(calm_since) + PATIENCE;
    // Those of all partitions pass through one router: it may be the one that is behind.
    let somebody_is = || all.values().any(|taken| is_behind(taken, work.from, due));
    if work.taken > due && !somebody_is() {
        let what = format!(
            "the owner of partition {} left {} lie for {} s of calm, though it was not behind",
            work.partition,
            work.what,
            PATIENCE / 1_000_000_000,
        );
        broken.push(violation(Promise::I6, what, [work.record]));
    }
}

/// Whether, shortly before `due`, an owner took what was there before `from`.
fn is_behind(taken: &[(i64, i64)], from: i64, due: i64) -> bool {
    let place = |t| taken.partition_point(|(at, _)| *at <= t);
    let lately = &taken[place(due - IDLE)..place(due)];
    lately.iter().any(|(_, was_there)| *was_there < from)
}

fn submissions(facts: &Facts) -> (Vec<Work>, Taken) {
    let (mut works, mut all) = (Vec::new(), Taken::new());
    for (request_id, request) in &facts.requests {
        let (Some((invoked, _)), Some((id, _))) = (request.invoked, request.execution) else {
            continue;
        };
        let Some(taken) = facts.execution(id).and_then(|known| known.accepted_ns) else {
            continue;
        };
        let partition = id.partition();
        all.entry(partition).or_default().push((taken, invoked));
        if let Some((from, record)) = facts.asked.confirmed.get(request_id) {
            works.push(Work {
                partition,
                from: *from,
                since: invoked,
                taken,
                is_single: request.invokes == 1 && request.fails + request.refusals == 0,
                what: format!("request {request_id}"),
                record: *record,
            });
        }
    }
    (works, all)
}

fn completions(facts: &Facts) -> (Vec<Work>, Taken) {
    let (mut works, mut all) = (Vec::new(), Taken::new());
    for ((id, attempt), forwarded) in &facts.witnesses.forwarded {
        let Some(taken) = facts.released.get(&(*id, *attempt)).copied() else {
            continue;
        };
        let (partition, from) = (id.partition(), forwarded.t_ns);
        all.entry(partition).or_default().push((taken, from));
        works.push(Work {
            partition,
            from,
            since: from,
            taken,
            is_single: true,
            what: format!("the end of attempt {attempt} of execution {id}"),
            record: forwarded.record,
        });
    }
    (works, all)
}
