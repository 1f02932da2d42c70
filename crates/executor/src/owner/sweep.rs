//! Compares memory with the store, beside the rounds and in slices: who holds a slot in one
//! statement that reads only holders, who waits a range of ids at a time.
//!
//! What is decided between the question and the comparison is left out of it; the next pass looks
//! at that. A pass that fails is skipped.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use attune_core::{Action, ActionId, Epoch, ExecutionId, PartitionId, WorkerId};

use super::{Call, Notice, Owner, Purpose, Reply};
use crate::counters::Counter;
use crate::partition::Event;
use crate::queue::Millis;
use crate::round::Draft;
use crate::stored::{StoredExecution, StoredSlot, WorkerEnd};

/// How long the lost workers are not looked at, at most, in milliseconds: a worker may have come
/// whose lease ends before any other.
const PATIENCE: Millis = 1_000;
/// How long after the end of the grace time it looks; a lease that is renewed at the last moment
/// is looked at once more instead of all the time.
const AFTER_GRACE: Millis = 20;

/// What was asked, and about which partitions in which epochs.
#[derive(Debug)]
pub(super) enum Asked {
    Slots(BTreeMap<PartitionId, Epoch>),
    Slice {
        partition: PartitionId,
        epoch: Epoch,
        after: Option<ExecutionId>,
    },
    Actions(PartitionId, BTreeSet<ActionId>),
    Workers,
}

/// What was read and not compared yet.
#[derive(Debug)]
enum Read {
    Slots(BTreeMap<PartitionId, Epoch>, Vec<StoredSlot>),
    Slice {
        partition: PartitionId,
        epoch: Epoch,
        after: Option<ExecutionId>,
        rows: Vec<StoredExecution>,
    },
}

/// The comparison, as far as it is.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    slots_at: Millis,
    slice_at: Millis,
    workers_at: Millis,
    /// The holders are being read, or were and are not compared yet.
    asking_slots: bool,
    /// Likewise a slice of those who wait.
    asking_slice: bool,
    asking_workers: bool,
    /// Where the next slice begins.
    cursor: Option<(PartitionId, Option<ExecutionId>)>,
    read: Vec<Read>,
    /// What was decided while something is read.
    changed: HashSet<ExecutionId>,
    /// Workers that are lost and were seen to be.
    lost: BTreeSet<WorkerId>,
    /// The actions that are not known of which the store has executions.
    unknown: BTreeMap<PartitionId, BTreeSet<ActionId>>,
}

impl Sweep {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let due = [
            (self.asking_slots, self.slots_at),
            (self.asking_slice, self.slice_at),
            (self.asking_workers, self.workers_at),
        ];
        let due = due.into_iter().filter(|(asking, _)| !asking);
        due.map(|(_, at)| at).min()
    }

    /// Whether no round may begin while something is read; none ever waits for that.
    pub(super) fn stops_rounds(&self) -> bool {
        cfg!(attune_plant = "stop-the-world") && (self.asking_slots || self.asking_slice)
    }

    /// Whether something was read that the next round compares.
    pub(super) fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// These executions change: what is being read may show them as they were or as they are.
    pub(super) fn note(&mut self, executions: impl Iterator<Item = ExecutionId>) {
        if self.asking_slots || self.asking_slice {
            self.changed.extend(executions);
        }
    }

    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.unknown.remove(&partition);
        if self.cursor.is_some_and(|(at, _)| at == partition) {
            self.cursor = Some((partition, None));
        }
    }
}

impl Owner {
    /// Asks for what is to be compared next.
    pub(super) fn go_on_sweeping(&mut self, now: Millis) {
        if self.has_ended() {
            return;
        }
        if !self.sweep.asking_workers && now >= self.sweep.workers_at {
            self.sweep.asking_workers = true;
            self.call(Purpose::Sweep(Asked::Workers), Call::WorkerEnds);
        }
        let idle = !self.sweep.asking_slots && !self.sweep.asking_slice;
        if idle {
            self.sweep.changed.clear();
        }
        let open: BTreeMap<PartitionId, Epoch> = self
            .places
            .iter()
            .filter(|(id, _)| self.is_open(**id))
            .map(|(id, place)| (*id, place.epoch))
            .collect();
        if let Some((id, unknown)) = self.sweep.unknown.pop_first() {
            let asked = Asked::Actions(id, unknown);
            self.call(Purpose::Sweep(asked), Call::LoadQueues(id));
        }
        if !self.sweep.asking_slots && now >= self.sweep.slots_at {
            self.sweep.slots_at = now + self.options.reconcile.interval;
            if !open.is_empty() {
                self.sweep.asking_slots = true;
                self.note_under_way();
                let call = Call::LoadSlots(open.keys().copied().collect());
                self.call(Purpose::Sweep(Asked::Slots(open.clone())), call);
            }
        }
        if !self.sweep.asking_slice && now >= self.sweep.slice_at {
            self.sweep.slice_at = now + (self.options.reconcile.interval / 10).max(1);
            self.ask_for_slice(&open);
        }
    }

    fn slice_rows(&self) -> u32 {
        // All at once, as if that cost nothing.
        if cfg!(attune_plant = "stop-the-world") {
            u32::MAX
        } else {
            self.options.slice_rows
        }
    }

    fn ask_for_slice(&mut self, open: &BTreeMap<PartitionId, Epoch>) {
        let (at, after) = self.sweep.cursor.unwrap_or((PartitionId(0), None));
        let here = open
            .get_key_value(&at)
            .map(|(id, epoch)| (*id, *epoch, after));
        let next = || {
            open.range(at..)
                .find(|(id, _)| **id > at)
                .or_else(|| open.iter().next())
        };
        let next = here.or_else(|| next().map(|(id, epoch)| (*id, *epoch, None)));
        let Some((partition, epoch, after)) = next else {
            return;
        };
        self.sweep.asking_slice = true;
        self.note_under_way();
        let asked = Asked::Slice {
            partition,
            epoch,
            after,
        };
        let call = Call::LoadRows {
            partition,
            after,
            limit: self.slice_rows(),
        };
        self.call(Purpose::Sweep(asked), call);
    }

    /// What is being written may or may not be seen by what is read from now on.
    fn note_under_way(&mut self) {
        if let Some(commit) = self.rounds.under_way() {
            let commit = Arc::clone(commit);
            self.sweep.note(commit.executions());
        }
    }

    /// The store has answered.
    pub(super) fn swept(&mut self, now: Millis, asked: Asked, reply: Reply) {
        match (asked, reply) {
            (Asked::Slots(epochs), Reply::Slots(slots)) => {
                self.sweep.read.push(Read::Slots(epochs, slots));
            }
            (
                Asked::Slice {
                    partition,
                    epoch,
                    after,
                },
                Reply::Rows(rows),
            ) => {
                let last = rows.last().map(|row| row.id);
                let whole = rows.len() < self.slice_rows() as usize;
                self.sweep.cursor = if whole {
                    Some((PartitionId(partition.0.saturating_add(1)), None))
                } else {
                    Some((partition, last))
                };
                self.sweep.read.push(Read::Slice {
                    partition,
                    epoch,
                    after,
                    rows,
                });
            }
            (Asked::Actions(partition, unknown), Reply::Queues { actions, .. }) => {
                self.learn_unknown(partition, unknown, actions);
            }
            (Asked::Workers, Reply::WorkerEnds(ends)) => {
                self.sweep.asking_workers = false;
                self.look_at_workers(now, &ends);
            }
            (asked, _) => self.skip(now, &asked),
        }
    }

    /// A pass failed: the next one will do.
    fn skip(&mut self, now: Millis, asked: &Asked) {
        match asked {
            Asked::Slots(_) => self.sweep.asking_slots = false,
            Asked::Slice { .. } => self.sweep.asking_slice = false,
            Asked::Workers => {
                self.sweep.asking_workers = false;
                self.sweep.workers_at = now + PATIENCE;
            }
            Asked::Actions(..) => {}
        }
    }

    /// A worker that is newly lost may hold slots: the comparison shall not wait for its time.
    fn look_at_workers(&mut self, now: Millis, ends: &[WorkerEnd]) {
        let grace = self.options.reconcile.worker_grace;
        let lost: BTreeSet<WorkerId> = ends
            .iter()
            .filter(|end| end.lost_for > grace)
            .map(|end| end.worker)
            .collect();
        if !lost.is_subset(&self.sweep.lost) {
            self.sweep.slots_at = now;
        }
        let next = ends.iter().filter(|end| !lost.contains(&end.worker));
        let next = next.map(|end| (end.remaining + grace - end.lost_for).max(0) + AFTER_GRACE);
        self.sweep.workers_at = now + next.min().unwrap_or(PATIENCE).min(PATIENCE);
        self.sweep.lost = lost;
    }

    fn learn_unknown(
        &mut self,
        id: PartitionId,
        mut missing: BTreeSet<ActionId>,
        actions: Vec<Action>,
    ) {
        let Some(partition) = self.partition(id) else {
            return;
        };
        missing.retain(|action_id| !partition.has_action(*action_id));
        let mut learnt = Vec::new();
        for action in actions {
            missing.remove(&action.id);
            if !partition.has_action(action.id) {
                learnt.push(action);
            }
        }
        for action in learnt {
            self.count(Counter::UnknownActionMended);
            self.say(Notice::ActionWasUnknown {
                action_ref: action.spec.action_ref.as_str().to_owned(),
            });
            self.pending.push_back((id, Event::ActionKnown(action)));
        }
        for action_id in missing {
            // Actions are never deleted, so somebody did it by hand. Nothing is thrown away.
            self.say(Notice::ActionMissing { action_id });
        }
    }

    /// Compares what was read, in the round that begins.
    pub(super) fn compare(&mut self, wall: Millis, open: &[PartitionId], draft: &mut Draft) {
        if self.sweep.read.is_empty() {
            return;
        }
        for read in std::mem::take(&mut self.sweep.read) {
            // What this round has decided so far was not there when the store was read.
            self.sweep.changed.extend(draft.executions());
            let changed = Arc::new(self.sweep.changed.clone());
            match read {
                Read::Slots(epochs, slots) => {
                    self.sweep.asking_slots = false;
                    let mut by_partition: BTreeMap<PartitionId, Vec<StoredSlot>> = BTreeMap::new();
                    for slot in slots {
                        by_partition
                            .entry(slot.id.partition())
                            .or_default()
                            .push(slot);
                    }
                    for (id, epoch) in epochs {
                        let slots = by_partition.remove(&id).unwrap_or_default();
                        self.miss_actions(id, slots.iter().map(|slot| slot.action_id));
                        let event = Event::Reconcile {
                            slots,
                            bounds: self.options.reconcile,
                            changed: Arc::clone(&changed),
                        };
                        self.compare_one(wall, open, (id, epoch), event, draft);
                    }
                }
                Read::Slice {
                    partition,
                    epoch,
                    after,
                    rows,
                } => {
                    self.sweep.asking_slice = false;
                    self.miss_actions(partition, rows.iter().map(|row| row.action_id));
                    let whole = rows.len() < self.slice_rows() as usize;
                    let last = rows.last().map(|row| row.id).filter(|_| !whole);
                    let event = Event::ReconcileWaiting {
                        after,
                        last,
                        rows,
                        changed: Arc::clone(&changed),
                    };
                    self.compare_one(wall, open, (partition, epoch), event, draft);
                }
            }
        }
    }

    fn compare_one(
        &mut self,
        wall: Millis,
        open: &[PartitionId],
        (id, epoch): (PartitionId, Epoch),
        event: Event,
        draft: &mut Draft,
    ) {
        if !open.contains(&id) {
            return;
        }
        if let Some(partition) = self.partition_mut(id)
            && partition.epoch() == epoch
        {
            draft.add(id, partition.step(wall, event));
        }
    }

    fn miss_actions(&mut self, id: PartitionId, actions: impl Iterator<Item = ActionId>) {
        let Some(partition) = self.partition(id) else {
            return;
        };
        let unknown: BTreeSet<ActionId> = actions
            .filter(|action_id| !partition.has_action(*action_id))
            .collect();
        if !unknown.is_empty() {
            self.sweep.unknown.entry(id).or_default().extend(unknown);
        }
    }
}
