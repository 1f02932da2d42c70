//! Owners that live and do nothing (I6).
//!
//! Work waits for an owner from the moment at which somebody else recorded that it is there: the
//! broker has confirmed a submission, or a listener has handed a completion over. An owner that
//! surely lives, in calm, has made some round at the latest [`IDLE`] after that, or the work did
//! not wait so long. Only work is judged that the owner, or one after it, did take later: what
//! nobody ever takes is for I1 and I4 to tell, and it may have been no work at all.
//!
//! Between two rounds an owner decides about as much as one round holds, so that this accuses
//! nobody who is only slow.

use attune_core::PartitionId;

use super::facts::Facts;
use super::times::due;
use super::{Judged, Promise, Violation, violation};

/// How long an owner may do nothing while work waits, in nanoseconds.
pub(super) const IDLE: i64 = 10_000_000_000;

/// Something that waits for an owner.
struct Work {
    partition: PartitionId,
    /// From when it surely was there.
    from: i64,
    /// Before which no owner can have taken it.
    since: i64,
    /// When an owner took it.
    taken: i64,
    what: String,
    record: u32,
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let faults = facts.processes.disturbances();
    let tenures = facts.processes.tenures();
    let mut works = submissions(facts);
    works.extend(completions(facts));
    works.sort_unstable_by_key(|work| (work.from, work.record));
    for work in works {
        let tenures = tenures.get(&work.partition).into_iter().flatten();
        // Of an earlier owner, the record that it has taken it may be lost.
        for tenure in tenures.filter(|tenure| tenure.began <= work.since) {
            let Some(due) = due(work.from, IDLE, *tenure, &faults) else {
                continue;
            };
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
}

fn submissions(facts: &Facts) -> Vec<Work> {
    let confirmed = facts.asked.confirmed.iter();
    let works = confirmed.filter_map(|(request_id, (from, record))| {
        let request = facts.requests.get(request_id)?;
        let (id, _) = request.execution?;
        Some(Work {
            partition: id.partition(),
            from: *from,
            since: request.invoked?.0,
            taken: facts.execution(id)?.accepted_ns?,
            what: format!("request {request_id}"),
            record: *record,
        })
    });
    works.collect()
}

fn completions(facts: &Facts) -> Vec<Work> {
    let forwarded = facts.witnesses.forwarded.iter();
    let works = forwarded.filter_map(|((id, attempt), forwarded)| {
        Some(Work {
            partition: id.partition(),
            from: forwarded.t_ns,
            since: forwarded.t_ns,
            taken: *facts.released.get(&(*id, *attempt))?,
            what: format!("the end of attempt {attempt} of execution {id}"),
            record: forwarded.record,
        })
    });
    works.collect()
}
