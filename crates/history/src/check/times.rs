//! How long slots and partitions stay with those who are gone (I4).
//!
//! *Slots of dead workers.* A worker dies when it records that its lease is lost, or when somebody
//! saw the end of its process. The attempts that were granted to it, or that it has taken, are revoked
//! or ended within its lease, the grace and [`SLACK`]. This is judged only over such a time in which nothing else went
//! wrong: no fault was under way and the partition had one owner, who surely lived, all along. A
//! death in the midst of faults so counts from the first calm moment after it.
//!
//! *Partitions.* At the latest a lease and [`SLACK`] after the end of the last fault, every
//! partition has had an owner. Judged when an executor lived all that time and was not stopping,
//! and when there can have been no owner who was killed before any of its records was written.
//!
//! Both need the times that executors record at their start ([`Record::Bounds`]).
//!
//! [`Record::Bounds`]: attune_record::Record::Bounds

use attune_core::PartitionId;

use super::facts::{Facts, Key};
use super::processes::Tenure;
use super::{Judged, Promise, Violation, violation};

/// What may be added to the leases, in nanoseconds.
const SLACK: i64 = 5_000_000_000;

/// How long things took, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// From the death of a worker until each of its slots was free.
    pub(super) slots_freed: Vec<i64>,
    /// From the end of an owner until the next.
    pub(super) unowned: Vec<i64>,
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) -> Times {
    let faults = facts.processes.disturbances();
    let times = Times {
        slots_freed: judge_slots(facts, &faults, judged, broken),
        unowned: unowned(facts),
    };
    if let Some((_, healed)) = faults.last() {
        judge_partitions(facts, *healed, judged, broken);
    }
    times
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

fn judge_slots(
    facts: &Facts,
    faults: &[(i64, i64)],
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) -> Vec<i64> {
    let mut freed = Vec::new();
    let bound = facts.processes.limits.map(|limits| {
        let lease = limits.worker_ttl.saturating_add(limits.worker_grace);
        lease.saturating_add(SLACK)
    });
    for (charge, death) in facts.processes.orphans() {
        let released = facts.released.get(&charge.key).copied();
        if released.is_some_and(|t| t <= death) {
            continue;
        }
        freed.extend(released.map(|t| t - death));
        let tenure = facts.processes.tenure_of(charge.key);
        let Some((bound, tenure)) = bound.zip(tenure) else {
            continue;
        };
        let Some(due) = due(death, bound, tenure, faults) else {
            continue;
        };
        judged.deaths += 1;
        if released.is_none_or(|t| t > due) {
            let (id, attempt): Key = charge.key;
            let what = format!(
                "attempt {attempt} of execution {id} held its slot {:.1} s after its worker died",
                seconds(due - death)
            );
            broken.push(violation(Promise::I4, what, [charge.record]));
        }
    }
    freed
}

/// The end of the first time, so long and not before `from`, in which nothing went wrong.
pub(super) fn due(from: i64, bound: i64, tenure: Tenure, faults: &[(i64, i64)]) -> Option<i64> {
    let mut calm_since = from.max(tenure.began);
    let next = faults.partition_point(|(_, end)| *end < calm_since);
    for (begin, end) in &faults[next..] {
        let due = calm_since.saturating_add(bound);
        if *begin >= due || due > tenure.sure_until {
            break;
        }
        calm_since = calm_since.max(*end);
    }
    let due = calm_since.saturating_add(bound);
    (due <= tenure.sure_until).then_some(due)
}

/// How long partitions had no owner, where both ends of that are known.
fn unowned(facts: &Facts) -> Vec<i64> {
    let tenures = facts.processes.tenures();
    let gaps = tenures.values().flat_map(|tenures| tenures.windows(2));
    gaps.filter(|pair| follows(&pair[1], Some(&pair[0])))
        .filter_map(|pair| Some(pair[1].began - pair[0].over?))
        .filter(|gap| *gap > 0)
        .collect()
}

/// Whether nobody owned a partition between two times of owning it, or before the first.
fn follows(tenure: &Tenure, before: Option<&Tenure>) -> bool {
    tenure.epoch.0 == before.map_or(0, |before| before.epoch.0) + 1
}

fn judge_partitions(facts: &Facts, healed: i64, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let Some(limits) = facts.processes.limits else {
        return;
    };
    let due = healed
        .saturating_add(limits.lease_ttl)
        .saturating_add(SLACK);
    if !facts.processes.has_executor(healed, due) {
        return;
    }
    let tenures = facts.processes.tenures();
    for partition in 0..limits.partitions {
        let tenures = tenures.get(&PartitionId(partition));
        let tenures = tenures.map_or(&[][..], Vec::as_slice);
        let (before, after) = tenures.split_at(tenures.partition_point(|t| t.began <= due));
        let is_owned = before
            .iter()
            .any(|tenure| tenure.over.is_none_or(|over| over > healed));
        let is_known = match after.first() {
            Some(next) => follows(next, before.last()),
            None => facts.processes.loses_no_executor(healed, due),
        };
        judged.partitions += u64::from(is_owned || is_known);
        if !is_owned && is_known {
            let what = format!(
                "partition {partition} had no owner for {:.1} s after the last fault",
                seconds(due - healed)
            );
            broken.push(violation(Promise::I4, what, []));
        }
    }
}
