//! What a batch has stored is what its owner decided, and counts as it should.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{PartitionId, Promise, QueueTotals, Status};
use attune_executor::stored::Batch;

use super::{Oracle, Rule, WRONG_BY};
use crate::plan::Time;
use crate::shadow::{Shadow, longest_wait};
use crate::store::Store;

impl Oracle {
    /// Whatever its owner takes for the time: who has expired has waited for as long, give or take
    /// what an owner may be wrong by.
    pub(super) fn judge_expired(
        &mut self,
        now: Time,
        batch: &Batch,
        shadows: &BTreeMap<PartitionId, &Shadow>,
    ) {
        for end in &batch.ends {
            if end.outcome.status != Status::Expired {
                continue;
            }
            let waited = self.waits_since.get(&end.id).map(|since| now - since);
            // Timeouts are an action's, and the shortest that could be meant is enough here.
            let shadow = shadows.get(&end.id.partition());
            let bounds = shadow.map(|shadow| shadow.bounds.values());
            let least = bounds.and_then(|bounds| bounds.map(longest_wait).min());
            if let (Some(waited), Some(least)) = (waited, least)
                && waited + WRONG_BY < least
            {
                let words = format!("{} expires after {waited} ms of {least}", end.id);
                self.say(now, Rule::Expiry, words);
            }
        }
    }

    /// What is stored is what was decided, but for claims.
    pub(super) fn judge_stored(
        &mut self,
        now: Time,
        store: &Store,
        partition: PartitionId,
        shadow: &Shadow,
    ) {
        let mine = store
            .active
            .iter()
            .filter(|(id, _)| id.partition() == partition);
        let stored = mine.map(|(id, row)| {
            let standing = (row.priority, row.front);
            let holds = row.status.holds_slot();
            (
                *id,
                (holds, !holds && row.worker.is_some()),
                row.attempt,
                standing,
            )
        });
        let decided = shadow.rows.iter().map(|(id, seen)| {
            let standing = (seen.priority, seen.front);
            (*id, (seen.holds, seen.ahead), seen.attempt, standing)
        });
        if !stored.clone().eq(decided.clone()) {
            let stored: BTreeSet<_> = stored.collect();
            let decided: BTreeSet<_> = decided.collect();
            let words = format!(
                "stored only: {:?}; decided only: {:?}",
                stored.difference(&decided).collect::<Vec<_>>(),
                decided.difference(&stored).collect::<Vec<_>>(),
            );
            self.say(now, Rule::Stored, words);
        }
    }

    pub(super) fn judge_totals(&mut self, now: Time, store: &Store, shadow: &Shadow) {
        for action in shadow.bounds.keys() {
            let totals = store.totals.get(action).copied().unwrap_or_default();
            let QueueTotals {
                enqueued,
                completed,
                cancelled,
                expired,
            } = totals;
            let rows = store.active.values();
            let there = rows.filter(|row| row.action == *action).count() as u64;
            if enqueued != completed + cancelled + expired + there {
                let words = format!("action {action}: {totals:?} and {there} there");
                self.say(now, Promise::I7, words);
            }
        }
    }
}
