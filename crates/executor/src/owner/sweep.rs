//! Compares memory with the store, beside the rounds: whether who is believed to hold a slot does,
//! in one statement by their ids; everything that is stored, a range of ids at a time; and the
//! definitions of actions, some at a time.
//!
//! What is decided between the question and the comparison is left out of it; the next pass looks
//! at that. A pass that fails is skipped.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use attune_core::{Action, ActionId, Bug, Epoch, ExecutionId, PartitionId};

use super::look_ups::LookUps;
use super::{Call, Notice, Owner, Purpose, Reply, Stage};
use crate::counters::Counter;
use crate::partition::{Event, Partition};
use crate::queue::Millis;
use crate::round::Draft;
use crate::stored::{StoredExecution, StoredSlot};

/// What was asked, and about which partitions in which epochs.
#[derive(Debug)]
pub(super) enum Asked {
    Slots(BTreeMap<PartitionId, Epoch>),
    Slice {
        epochs: BTreeMap<PartitionId, Epoch>,
        after: Option<ExecutionId>,
    },
    Actions(PartitionId, BTreeSet<ActionId>),
    Definitions,
}

/// When what could not be read is read again, in milliseconds.
const AFTER_FAILURE: Millis = 2_000;
/// How many definitions of actions are compared at a time.
const DEFINITIONS: usize = 100;

/// What was read and not compared yet.
#[derive(Debug)]
enum Read {
    Slots(BTreeMap<PartitionId, Epoch>, Vec<StoredSlot>),
    Slice {
        epochs: BTreeMap<PartitionId, Epoch>,
        after: Option<ExecutionId>,
        last: Option<ExecutionId>,
        rows: Vec<StoredExecution>,
    },
}

/// The comparison, as far as it is.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    slots_at: Millis,
    slice_at: Millis,
    /// The holders are being read, or were and are not compared yet.
    asking_slots: bool,
    /// Likewise a slice of everything.
    asking_slice: bool,
    /// The next slice begins after this id.
    cursor: Option<ExecutionId>,
    /// When the pass through all slices began that is under way.
    pass_began: Millis,
    /// The definitions of some actions are being read.
    asking_definitions: bool,
    definitions_at: Millis,
    /// The next definitions are those after this action's.
    defined_to: Option<(PartitionId, String)>,
    /// When the pass through all definitions began that is under way.
    definitions_began: Millis,
    /// They are read one partition at a time: one of those asked for together cannot be read.
    one_by_one: bool,
    /// Some could not be read since the pass began.
    some_failed: bool,
    /// Actions that had changed, and are not learnt yet.
    learnt: Vec<Action>,
    read: Vec<Read>,
    /// What was decided while something is read.
    changed: HashSet<ExecutionId>,
    /// The actions that are not known of which the store has executions.
    unknown: BTreeMap<PartitionId, BTreeSet<ActionId>>,
}

impl Sweep {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let due = [
            (self.asking_slots, self.slots_at),
            (self.asking_slice, self.slice_at),
            (self.asking_definitions, self.definitions_at),
        ];
        let due = due.into_iter().filter(|(asking, _)| !asking);
        due.map(|(_, at)| at).min()
    }

    /// Whether no round may begin while something is read; none ever waits for that.
    pub(super) fn stops_rounds(&self) -> bool {
        Bug::StopTheWorld.is_planted() && (self.asking_slots || self.asking_slice)
    }

    /// Whether something was read that the next round compares.
    pub(super) fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// The partitions of actions that had changed, and are not learnt yet.
    pub(super) fn learnt(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.learnt.iter().map(|action| action.partition)
    }

    /// These executions change: what is being read may show them as they were or as they are.
    pub(super) fn note(&mut self, executions: impl Iterator<Item = ExecutionId>) {
        if self.asking_slots || self.asking_slice {
            self.changed.extend(executions);
        }
    }

    /// Compares the slots soon.
    pub(super) fn hurry(&mut self, now: Millis) {
        self.slots_at = now;
    }

    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.unknown.remove(&partition);
        self.learnt.retain(|action| action.partition != partition);
    }
}

impl Owner {
    /// Asks for what is to be compared next.
    pub(super) fn go_on_sweeping(&mut self, now: Millis) {
        if self.has_ended() {
            return;
        }
        let idle = !self.sweep.asking_slots && !self.sweep.asking_slice;
        if idle {
            self.sweep.changed.clear();
        }
        if let Some((id, unknown)) = self.sweep.unknown.pop_first() {
            let asked = Asked::Actions(id, unknown);
            let around = LookUps::around(self.clock.at(now));
            let call = Call::LoadQueues {
                partition: id,
                around,
            };
            self.call(Purpose::Sweep(asked), call);
        }
        if !self.sweep.asking_slots && now >= self.sweep.slots_at {
            self.sweep.slots_at = now + self.options.reconcile.interval;
            self.ask_for_slots();
        }
        if !self.sweep.asking_slice && now >= self.sweep.slice_at {
            self.ask_for_slice(now);
        }
        if !self.sweep.asking_definitions && now >= self.sweep.definitions_at {
            self.ask_for_definitions(now);
        }
    }

    /// Who is to be compared: the partitions that nothing holds up, in their epochs.
    fn comparable(&self) -> BTreeMap<PartitionId, Epoch> {
        let open = self.places.iter().filter(|(id, _)| self.is_open(**id));
        open.map(|(id, place)| (*id, place.epoch)).collect()
    }

    fn slice_rows(&self) -> u32 {
        // All at once, as if that cost nothing.
        if Bug::StopTheWorld.is_planted() {
            u32::MAX
        } else {
            self.options.slice_rows
        }
    }

    fn ask_for_slots(&mut self) {
        let epochs = self.comparable();
        let open = epochs.keys().filter_map(|id| self.partition(*id));
        let held: Vec<ExecutionId> = open.flat_map(Partition::held).collect();
        let is_empty = held.is_empty();
        let call = Call::LoadSlots(held);
        if is_empty {
            return self.failing.over(call.name());
        }
        self.sweep.asking_slots = true;
        self.note_under_way();
        self.call(Purpose::Sweep(Asked::Slots(epochs)), call);
    }

    fn ask_for_slice(&mut self, now: Millis) {
        let after = self.sweep.cursor;
        if after.is_none() {
            self.sweep.pass_began = now;
        }
        self.sweep.slice_at = now + (self.options.reconcile.interval / 10).max(1);
        let epochs = self.comparable();
        let call = Call::ScanRows {
            partitions: epochs.keys().copied().collect(),
            after,
            limit: self.slice_rows(),
        };
        if epochs.is_empty() {
            return self.failing.over(call.name());
        }
        self.sweep.asking_slice = true;
        self.note_under_way();
        self.call(Purpose::Sweep(Asked::Slice { epochs, after }), call);
    }

    /// Whoever changes an action stores it and then tells its owner, and may die in between.
    fn ask_for_definitions(&mut self, now: Millis) {
        if self.sweep.defined_to.is_none() {
            self.sweep.definitions_began = now;
            self.sweep.one_by_one = std::mem::take(&mut self.sweep.some_failed);
        }
        let interval = self.options.reconcile.interval;
        self.sweep.definitions_at = now + (interval / 10).max(1);
        let to = self.sweep.defined_to.take();
        let (id, after) = to.unwrap_or((PartitionId(0), String::new()));
        let mut next: Vec<(PartitionId, String)> = Vec::new();
        for (open, place) in self.places.range(id..) {
            let Stage::Serving(partition) = &place.stage else {
                continue;
            };
            let after = if *open == id { after.as_str() } else { "" };
            let room = DEFINITIONS - next.len();
            let refs = partition.refs_after(after).take(room);
            next.extend(refs.map(|action_ref| (*open, action_ref.to_owned())));
            if next.len() == DEFINITIONS || (self.sweep.one_by_one && !next.is_empty()) {
                self.sweep.defined_to = next.last().cloned();
                break;
            }
        }
        if self.sweep.defined_to.is_none() {
            let all = self.sweep.definitions_began + interval;
            self.sweep.definitions_at = self.sweep.definitions_at.max(all);
        }
        if next.is_empty() {
            return;
        }
        self.sweep.asking_definitions = true;
        let look_up = Call::LookUp {
            requests: Vec::new(),
            actions: next.into_iter().map(|(_, action_ref)| action_ref).collect(),
        };
        self.call(Purpose::Sweep(Asked::Definitions), look_up);
    }

    fn learn_changed(&mut self, actions: Vec<Action>) {
        for action in actions {
            let id = action.partition;
            let partition = self.partition(id);
            if partition.is_some_and(|partition| partition.is_behind(&action)) {
                self.count(Counter::ChangedActionMended);
                self.say(Notice::ActionHadChanged {
                    action_ref: action.spec.action_ref.as_str().to_owned(),
                });
                keep_newest(&mut self.sweep.learnt, action);
            }
        }
    }

    /// Adds what the definitions have shown to what the round that begins has looked up: what it grants
    /// goes by the newest alone.
    pub(super) fn add_learnt(&mut self, open: &[PartitionId], actions: &mut Vec<Action>) {
        for action in std::mem::take(&mut self.sweep.learnt) {
            if open.contains(&action.partition) {
                keep_newest(actions, action);
            } else {
                self.sweep.learnt.push(action);
            }
        }
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
            (Asked::Slots(epochs), Reply::Slots(mut slots)) => {
                self.workers.judge(now, &mut slots);
                self.sweep.read.push(Read::Slots(epochs, slots));
            }
            (Asked::Slice { epochs, after }, Reply::Slice { rows, last }) => {
                self.sweep.cursor = last;
                if last.is_none() {
                    // The whole table is compared once in an interval, however small it is.
                    let next = self.sweep.pass_began + self.options.reconcile.interval;
                    self.sweep.slice_at = self.sweep.slice_at.max(next);
                }
                self.sweep.read.push(Read::Slice {
                    epochs,
                    after,
                    last,
                    rows,
                });
            }
            (Asked::Actions(partition, unknown), Reply::Queues { actions, .. }) => {
                self.learn_unknown(partition, unknown, actions);
            }
            (Asked::Definitions, Reply::Known { actions, .. }) => {
                self.sweep.asking_definitions = false;
                self.learn_changed(actions);
            }
            (asked, _) => self.skip(now, &asked),
        }
    }

    /// A pass failed: the next one will do, which comes soon, because that it fails is told.
    fn skip(&mut self, now: Millis, asked: &Asked) {
        let soon = now + AFTER_FAILURE;
        match asked {
            Asked::Slots(_) => {
                self.sweep.asking_slots = false;
                self.sweep.slots_at = self.sweep.slots_at.min(soon);
            }
            Asked::Slice { .. } => {
                self.sweep.asking_slice = false;
                self.sweep.slice_at = self.sweep.slice_at.min(soon);
            }
            Asked::Actions(..) => {}
            Asked::Definitions => {
                self.sweep.asking_definitions = false;
                self.sweep.some_failed = true;
                self.sweep.one_by_one = true;
            }
        }
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
            self.pending
                .push_back((id, Event::ActionKnown(Box::new(action))));
        }
        for action_id in missing {
            // Actions are never deleted, so somebody did it by hand. Nothing is thrown away.
            self.say(Notice::ActionMissing { action_id });
        }
    }

    /// Compares what was read, in the round that begins.
    pub(super) fn compare(&mut self, now: Millis, open: &[PartitionId], draft: &mut Draft) {
        if self.sweep.read.is_empty() {
            return;
        }
        let wall = self.clock.at(now);
        for read in std::mem::take(&mut self.sweep.read) {
            // What this round has decided so far was not there when the store was read.
            self.sweep.changed.extend(draft.executions());
            let changed = Arc::new(self.sweep.changed.clone());
            match read {
                Read::Slots(epochs, slots) => {
                    self.sweep.asking_slots = false;
                    let mut by_partition = by_partition(slots, |slot| slot.id);
                    for (id, epoch) in epochs {
                        let slots = by_partition.remove(&id).unwrap_or_default();
                        self.miss_actions(id, slots.iter().map(|slot| slot.action_id));
                        let event = Event::Reconcile {
                            slots,
                            changed: Arc::clone(&changed),
                        };
                        self.compare_one(wall, open, (id, epoch), event, draft);
                    }
                }
                Read::Slice {
                    epochs,
                    after,
                    last,
                    rows,
                } => {
                    self.sweep.asking_slice = false;
                    let mut by_partition = by_partition(rows, |row| row.id);
                    for (id, epoch) in epochs {
                        let rows = by_partition.remove(&id).unwrap_or_default();
                        self.miss_actions(id, rows.iter().map(|row| row.action_id));
                        let event = Event::ReconcileRange {
                            after,
                            last,
                            rows,
                            changed: Arc::clone(&changed),
                        };
                        self.compare_one(wall, open, (id, epoch), event, draft);
                    }
                }
            }
        }
        // What is still being read was asked for before this was mended.
        self.sweep.note(draft.executions());
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

/// Adds an action, or puts it in the place of its earlier version.
fn keep_newest(actions: &mut Vec<Action>, action: Action) {
    match actions.iter_mut().find(|known| known.id == action.id) {
        Some(known) if known.version >= action.version => {}
        Some(known) => *known = action,
        None => actions.push(action),
    }
}

/// What was read, by the partition that its id names.
fn by_partition<T>(
    rows: Vec<T>,
    id_of: impl Fn(&T) -> ExecutionId,
) -> BTreeMap<PartitionId, Vec<T>> {
    let mut sorted: BTreeMap<PartitionId, Vec<T>> = BTreeMap::new();
    for row in rows {
        sorted.entry(id_of(&row).partition()).or_default().push(row);
    }
    sorted
}
