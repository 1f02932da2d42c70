//! The reconciler's pass over the store: reads what memory is compared with.
//!
//! A pass takes two statements, whatever waits: who holds a slot, and how many wait for each
//! action. Only where numbers or holders differ the waiting executions themselves are read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use attune_core::{ActionId, PartitionId};
use attune_store::{ActiveRow, SlotRow};
use tokio_util::sync::CancellationToken;

use crate::draft::Draft;
use crate::event::{Counter, Event};
use crate::journal::{Journal, persist, unix_millis};

/// How many executions one page holds when the waiting are read.
const PAGE: u32 = 20_000;

impl Journal {
    /// Compares memory with the store while nothing is being decided.
    pub(crate) async fn reconcile(&mut self, stop: &CancellationToken) {
        self.state.reconcile_at = Instant::now() + self.options.reconcile_interval;
        let partitions: Vec<PartitionId> = self.state.owned.keys().copied().collect();
        if partitions.is_empty() {
            return;
        }
        let Some(slots) = persist(stop, || self.store.load_slots(&partitions)).await else {
            return;
        };
        let Some(waiting) = persist(stop, || self.store.count_waiting(&partitions)).await else {
            return;
        };
        let waiting: HashMap<ActionId, u64> = waiting.into_iter().collect();
        let mut draft = Draft::default();
        let named = slots.iter().map(|row| row.action_id);
        let named = named.chain(waiting.keys().copied()).collect();
        if !self.learn_unknown(named, &mut draft, stop).await {
            return;
        }
        let Some(mut rows) = self.load_differing(&waiting, &slots, stop).await else {
            return;
        };
        // If this process stood still, what was read is what the next owners have done: nothing
        // that differs from it is a mistake.
        let trusted = Instant::now() < *self.trusted.borrow();
        while let Ok(event) = self.leases.try_recv() {
            self.follow(event, stop);
        }
        if !trusted {
            return;
        }
        let mut by_partition: BTreeMap<PartitionId, Vec<SlotRow>> = BTreeMap::new();
        for slot in slots {
            let partition = slot.id.partition();
            by_partition.entry(partition).or_default().push(slot);
        }
        let (now, bounds) = (unix_millis(), self.options.bounds);
        for (partition, owned) in &mut self.state.owned {
            if let Some((actions, rows)) = rows.remove(partition) {
                let event = Event::ReconcileWaiting { actions, rows };
                draft.add(*partition, owned.core.step(now, event));
            }
            let slots = by_partition.remove(partition).unwrap_or_default();
            let event = Event::Reconcile { slots, bounds };
            draft.add(*partition, owned.core.step(now, event));
        }
        self.write(draft).await;
    }

    /// Reads the actions of which the store has executions and memory has never heard; false
    /// when told to stop.
    async fn learn_unknown(
        &mut self,
        named: HashSet<ActionId>,
        draft: &mut Draft,
        stop: &CancellationToken,
    ) -> bool {
        let owned = &self.state.owned;
        let mut unknown: HashSet<ActionId> = named
            .into_iter()
            .filter(|id| !owned.values().any(|owned| owned.core.stats(*id).is_some()))
            .collect();
        if unknown.is_empty() {
            return true;
        }
        let partitions: Vec<PartitionId> = owned.keys().copied().collect();
        let actions = persist(stop, || self.store.load_actions(&partitions)).await;
        let Some(actions) = actions else { return false };
        let now = unix_millis();
        for action in actions {
            if !unknown.remove(&action.id) {
                continue;
            }
            tracing::error!(
                "action.ref" = %action.spec.action_ref,
                "the store has executions of an action that this owner had not heard of; it is read now"
            );
            self.counters.add(Counter::UnknownActionMended);
            if let Some(owned) = self.state.owned.get_mut(&action.partition) {
                let partition = action.partition;
                draft.add(partition, owned.core.step(now, Event::ActionKnown(action)));
            }
        }
        for action_id in unknown {
            // Actions are never deleted, so somebody did it by hand. Nothing is thrown away.
            tracing::error!(
                action.id = %action_id,
                "the store has executions of an action that does not exist; they stay as they are until the action is there again"
            );
        }
        true
    }

    /// The waiting executions of those actions in which memory and store differ, by partition,
    /// with the actions; `None` when told to stop.
    async fn load_differing(
        &self,
        waiting: &HashMap<ActionId, u64>,
        slots: &[SlotRow],
        stop: &CancellationToken,
    ) -> Option<BTreeMap<PartitionId, (Vec<ActionId>, Vec<ActiveRow>)>> {
        let mut found = BTreeMap::new();
        for (partition, owned) in &self.state.owned {
            let actions = owned.core.differing(waiting, slots);
            if actions.is_empty() {
                continue;
            }
            let (ids, mut after, mut rows) = ([*partition], None, Vec::new());
            loop {
                let load = || self.store.load_active(&ids, after, PAGE);
                let page = persist(stop, load).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                rows.extend(
                    page.into_iter()
                        .filter(|row| !row.status.holds_slot() && actions.contains(&row.action_id)),
                );
            }
            found.insert(*partition, (actions, rows));
        }
        Some(found)
    }
}
