//! Judges what was decided by what it says itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use attune_core::{Attempt, ExecutionId, Priority, Seq, Status};

use crate::fact::Fact;

/// What was decided breaks no promise: no grant beyond the limit or out of order, no attempt
/// twice, no end twice, and totals that are those of what was decided.
pub(super) fn judge(facts: &[Fact]) {
    let mut priorities: BTreeMap<ExecutionId, Priority> = BTreeMap::new();
    let mut waiting: BTreeSet<(Priority, Seq, ExecutionId)> = BTreeSet::new();
    // Their turn comes with their time, which is not among the facts.
    let mut delayed: HashSet<ExecutionId> = HashSet::new();
    let mut holders: BTreeMap<ExecutionId, Attempt> = BTreeMap::new();
    let mut limit_now = None;
    // Who is granted to a worker ahead of its slot.
    let mut ahead: BTreeMap<ExecutionId, Attempt> = BTreeMap::new();
    let mut attempts: BTreeMap<ExecutionId, Attempt> = BTreeMap::new();
    let (mut requests, mut ended) = (HashSet::new(), HashSet::new());
    let (mut last_grant, mut paused, mut kept) = (None, false, BTreeSet::new());
    for fact in facts {
        match fact.clone() {
            Fact::Acquired { .. } => {
                holders.clear();
                ahead.clear();
                kept.clear();
                paused = false;
            }
            Fact::Bounds { limits, .. } => limit_now = limits.max_concurrent,
            Fact::Paused { hold, .. } => paused = hold.mode.is_some(),
            Fact::Held {
                execution_id,
                attempt,
                kept_until,
                ahead: is_ahead,
                ..
            } => {
                let granted = if is_ahead { &mut ahead } else { &mut holders };
                assert_eq!(granted.insert(execution_id, attempt), None);
                kept.extend(kept_until.map(|_| execution_id));
            }
            Fact::Accepted {
                execution_id: id,
                priority,
                request_id,
                status,
                not_before,
                ..
            } => {
                assert!(requests.insert(request_id), "{request_id} was known");
                priorities.insert(id, priority);
                if not_before.is_some() {
                    delayed.insert(id);
                } else if status == Status::Queued {
                    waiting.insert((priority, id.seq(), id));
                }
            }
            Fact::Granted {
                execution_id: id,
                attempt,
                grant_no,
                limit,
                ahead: is_ahead,
                ..
            } => {
                assert!(last_grant.replace(grant_no) < Some(grant_no));
                assert!(
                    is_ahead || ahead.is_empty(),
                    "{id} passes those who stand ahead"
                );
                assert!(!paused, "{id} is granted a slot of a paused queue");
                let earlier = attempts.insert(id, attempt);
                assert_eq!(attempt, earlier.unwrap_or(Attempt(0)).next());
                assert!(!ended.contains(&id), "{id} was granted after its end");
                if kept.remove(&id) {
                    assert_eq!(holders.insert(id, attempt), earlier, "in its slot");
                    continue;
                }
                if !delayed.remove(&id) {
                    let first = waiting.pop_first().map(|(.., first)| first);
                    assert_eq!(first, Some(id), "in order");
                }
                if is_ahead {
                    assert_eq!(ahead.insert(id, attempt), None);
                    continue;
                }
                assert_eq!(holders.insert(id, attempt), None);
                assert!(limit.is_none_or(|limit| holders.len() <= limit as usize));
            }
            Fact::HandedOn {
                execution_id: id,
                attempt,
                ..
            } => {
                assert_eq!(ahead.remove(&id), Some(attempt));
                assert_eq!(holders.insert(id, attempt), None);
                assert!(limit_now.is_none_or(|limit| holders.len() <= limit as usize));
            }
            Fact::Revoked {
                execution_id: id,
                attempt,
                until,
                ..
            } => {
                let granted = ahead.remove(&id).or_else(|| holders.remove(&id));
                assert_eq!(granted, Some(attempt));
                assert_eq!(kept.remove(&id), until.is_some());
                if until.is_some() {
                    delayed.insert(id);
                } else {
                    waiting.insert((priorities[&id], id.seq(), id));
                }
            }
            Fact::KeptOn {
                execution_id: id,
                attempt,
                ..
            }
            | Fact::Retried {
                execution_id: id,
                attempt,
                keeps_slot: true,
                ..
            } => {
                assert_eq!(holders.get(&id), Some(&attempt));
                assert!(kept.insert(id), "its try ends once");
            }
            Fact::Retried {
                execution_id: id,
                attempt,
                ..
            } => {
                assert_eq!(holders.remove(&id), Some(attempt));
                delayed.insert(id);
            }
            Fact::Ended {
                execution_id: id, ..
            } => {
                assert!(ended.insert(id), "{id} ended twice");
                holders.remove(&id);
                ahead.remove(&id);
                kept.remove(&id);
                delayed.remove(&id);
                waiting.retain(|(.., other)| *other != id);
            }
            Fact::Totals { stats, .. } => {
                let waits = waiting.len() + delayed.len() + ahead.len();
                assert_eq!(stats.queue_length, waits as u64);
                assert_eq!(stats.active_count, holders.len() as u64);
            }
            _ => {}
        }
    }
}
