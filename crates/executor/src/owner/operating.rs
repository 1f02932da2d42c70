//! Carries bulk operations out, beside everything else: which are open is read when a command says that
//! there is one, when a partition is taken, and once in a while, so that a lost command costs one pass.
//!
//! At most one page of one operation is decided in a round, whatever partition it is about: others wait
//! for a page, and never for an operation. While others have work, every second round has no page, one that has takes
//! no more than about twice as long, and most of the time that it took is left to them after it (`pace.rs`). What cannot be
//! read, and a worker that does not give back what it was granted ahead, hold up that operation alone, and are told.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Epoch, OperationId, PartitionId};

use super::pace::Pace;
use super::{Call, Owner, Purpose, Reply, Stage, Trouble};
use crate::partition::{Event, Page};
use crate::queue::Millis;
use crate::round::Commit;

/// When what could not be read is read again, in milliseconds.
const AFTER_FAILURE: Millis = 2_000;
/// For how long an operation whose pages the store refuses is left alone, in milliseconds.
const HELD_OFF: Millis = 30_000;
/// How often the store may refuse a page before its partition goes on without it.
pub(super) const REFUSALS: u32 = 3;

/// Which operations are open, as far as somebody has looked, and what is being read for them.
#[derive(Debug, Default)]
pub(super) struct Operating {
    /// When it is read next which are open; `None` while no partition is served and nobody asks.
    at: Option<Millis>,
    /// It is being read, for the partitions in these epochs.
    asking: Option<BTreeMap<PartitionId, Epoch>>,
    /// Somebody has said that there is one since it is being read.
    asked: bool,
    /// Some partition may have one that is open.
    is_any: bool,
    /// What the executions of a page say is being read.
    is_reading: bool,
    /// How many a page may have, for how long its round takes.
    pub(super) pace: Pace,
    /// How many are read at once; fewer after a failure, until one is left alone.
    at_once: Option<usize>,
    /// The partition whose page came last: others have their turn.
    last: Option<PartitionId>,
    /// Operations that are left alone until a time.
    held_off: BTreeMap<(PartitionId, OperationId), Millis>,
    /// Operations that wait until somebody comes back who stands ahead of a slot: since when.
    waiting: BTreeMap<(PartitionId, OperationId), Millis>,
    /// Operations whose pages the store refuses to write: since when, and what it said last.
    refused: BTreeMap<(PartitionId, OperationId), (Millis, String)>,
}

impl Operating {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let next = self.at.filter(|_| self.asking.is_none());
        let held_off = self.held_off.values().min().copied();
        let rest = self.pace.rests_until();
        next.into_iter().chain(held_off).chain(rest).min()
    }

    /// A command says that there is an operation.
    pub(super) fn ask(&mut self) {
        self.at = Some(Millis::MIN);
        self.asked = true;
    }

    fn hold_off(&mut self, partition: PartitionId, operation: OperationId, until: Millis) {
        self.held_off.insert((partition, operation), until);
    }

    /// A round is stored, and with it how far operations are.
    pub(super) fn written(&mut self, commit: &Commit) {
        for (partition, operation, _) in &commit.batch.progress {
            self.refused.remove(&(*partition, *operation));
        }
    }
}

impl Owner {
    /// A partition is served from now on.
    pub(super) fn adopt_operations(&mut self) {
        self.operating.waiting.clear();
        self.operating.ask();
    }

    pub(super) fn go_on_operating(&mut self, now: Millis) {
        if self.has_ended() {
            return;
        }
        let held_off = self.operating.held_off.len();
        self.operating.held_off.retain(|_, until| *until > now);
        if self.operating.held_off.len() < held_off {
            // What was left out of the last list may go on.
            self.operating.ask();
        }
        self.ask_for_operations(now);
        self.go_on_with_pages(now);
    }

    fn ask_for_operations(&mut self, now: Millis) {
        let operating = &self.operating;
        let is_due = operating.at.is_some_and(|at| at <= now) && operating.asking.is_none();
        // What is over is forgotten between two commits; under load one follows the other.
        if !is_due || self.rounds.under_way().is_some() {
            return;
        }
        let serving = self.places.iter();
        let serving = serving.filter(|(_, place)| matches!(place.stage, Stage::Serving(_)));
        let epochs: BTreeMap<PartitionId, Epoch> =
            serving.map(|(id, place)| (*id, place.epoch)).collect();
        self.operating.asked = false;
        self.operating.at = None;
        if epochs.is_empty() {
            return;
        }
        let partitions: Vec<PartitionId> = epochs.keys().copied().collect();
        for id in &partitions {
            // What is written again is not stored yet.
            let is_stored = !self.rewrites.contains_key(id);
            if let Some(partition) = self.partition_mut(*id).filter(|_| is_stored) {
                partition.forget_finished();
            }
        }
        self.operating.asking = Some(epochs);
        self.call(Purpose::Operations, Call::LoadOperations(partitions));
    }

    /// The store has answered which operations are open.
    pub(super) fn operations_read(&mut self, now: Millis, reply: Reply) {
        let epochs = self.operating.asking.take().unwrap_or_default();
        let interval = self.options.reconcile.interval;
        let Reply::Operations(parts) = reply else {
            self.operating.at = Some(now + AFTER_FAILURE);
            return;
        };
        self.operating.at = Some(if self.operating.asked {
            now
        } else {
            now + interval
        });
        let open: BTreeSet<_> = parts
            .iter()
            .map(|it| (it.partition, it.operation.id))
            .collect();
        self.operating.refused.retain(|of, _| {
            self.places.contains_key(&of.0) && (!epochs.contains_key(&of.0) || open.contains(of))
        });
        let mut new: BTreeMap<PartitionId, Vec<_>> = BTreeMap::new();
        for part in parts {
            let id = part.partition;
            let place = self.places.get(&id).map(|place| place.epoch);
            // In another epoch it may be further than it was read.
            let is_current = place.is_some() && place == epochs.get(&id).copied();
            let held_off = (id, part.operation.id);
            let is_current = is_current && !self.operating.held_off.contains_key(&held_off);
            let partition = self.partition(id).filter(|_| is_current);
            if partition.is_some_and(|it| !it.knows_operation(part.operation.id)) {
                new.entry(id).or_default().push(part);
            }
        }
        self.operating.is_any |= !new.is_empty();
        for (id, parts) in new {
            // Where nothing can be decided for long, the list before this one waits still.
            let is_earlier =
                |of: PartitionId, event: &Event| of == id && matches!(event, Event::Operations(_));
            self.pending.retain(|(of, event)| !is_earlier(*of, event));
            self.pending.push_back((id, Event::Operations(parts)));
        }
    }

    /// Has the next page decided, or what it must be told read.
    fn go_on_with_pages(&mut self, now: Millis) {
        let is_page = |event: &Event| matches!(event, Event::Operations(_) | Event::Page(..));
        let is_resting = self.operating.pace.is_resting(now);
        if !self.operating.is_any || self.operating.is_reading || is_resting {
            return;
        }
        if self
            .pending
            .iter()
            .any(|(id, event)| is_page(event) && self.is_open(*id))
        {
            return;
        }
        let open = self.places.keys().filter(|id| self.is_open(**id));
        let open = open.filter(|id| self.operations_in_turn(**id).next().is_some());
        let mut open: Vec<PartitionId> = open.copied().collect();
        if open.is_empty() {
            // Those whose partitions nothing can be decided about now come back with them.
            let mut all = self.places.keys().filter_map(|id| self.partition(*id));
            self.operating.is_any = all.any(|it| it.open_operations(|_| false).next().is_some())
                || self.pending.iter().any(|(_, event)| is_page(event));
            if self.operating.held_off.is_empty() {
                self.operating.pace.forget();
                self.failing
                    .over(Call::LoadOperationWords(Vec::new()).name());
            }
            return;
        }
        let last = self.operating.last;
        open.sort_unstable_by_key(|id| (Some(*id) <= last, *id));
        let mut pages = open.into_iter();
        let page = pages.find_map(|id| Some((id, self.next_page(now, id)?)));
        let Some((id, page)) = page else { return };
        self.operating.last = Some(id);
        if !page.needs_words || page.ids.is_empty() {
            self.pending.push_back((id, Event::Page(page, Vec::new())));
            return;
        }
        self.operating.is_reading = true;
        let call = Call::LoadOperationWords(page.ids.clone());
        let epoch = self.places.get(&id).map(|place| place.epoch);
        let of = (id, epoch.unwrap_or(Epoch(0)));
        self.call(Purpose::OperationWords(of, Box::new(page)), call);
    }

    /// The operations of a partition that may go on, by their turns.
    fn operations_in_turn(&self, id: PartitionId) -> impl Iterator<Item = OperationId> {
        let held_off = &self.operating.held_off;
        let partition = self.partition(id).into_iter();
        partition.flat_map(move |it| {
            it.open_operations(move |operation| held_off.contains_key(&(id, operation)))
        })
    }

    /// The next page of a partition: one that waits for somebody who stands ahead is passed by those after it.
    fn next_page(&mut self, now: Millis, id: PartitionId) -> Option<Page> {
        let in_turn: Vec<OperationId> = self.operations_in_turn(id).collect();
        in_turn.into_iter().find_map(|operation| {
            let rows = &mut self.operating.pace;
            let rows = rows.next_page(operation, self.options.operation_rows);
            let max = self.operating.at_once.unwrap_or(rows).min(rows).max(1);
            let held_off = &self.operating.held_off;
            let is_held_off = |operation| held_off.contains_key(&(id, operation));
            let page = self.partition(id)?.page(operation, max, is_held_off);
            let of = (id, operation);
            match page {
                Some(_) => drop(self.operating.waiting.remove(&of)),
                None => drop(self.operating.waiting.entry(of).or_insert(now)),
            }
            page
        })
    }

    /// The store has answered what the executions of a page say.
    pub(super) fn operation_words_read(
        &mut self,
        now: Millis,
        (id, epoch): (PartitionId, Epoch),
        page: Page,
        reply: Reply,
    ) {
        self.operating.is_reading = false;
        let words = match reply {
            Reply::Words(words) => words,
            _ => {
                // Those that fail together are asked for by halves, and one that is left alone is waited
                // for. Whoever reads its number in the log can end it.
                let many = page.ids.len();
                self.operating.at_once = Some((many / 2).max(1));
                if many == 1 {
                    let until = now + AFTER_FAILURE;
                    self.operating.hold_off(id, page.operation, until);
                }
                return;
            }
        };
        if let Some(at_once) = &mut self.operating.at_once {
            *at_once = at_once.saturating_mul(2);
        }
        if words.is_empty() {
            // Nothing of it is stored, or not yet.
            let until = now + 100;
            self.operating.hold_off(id, page.operation, until);
        }
        let is_current = self.places.get(&id).is_some_and(|it| it.epoch == epoch);
        if is_current && self.partition(id).is_some() {
            self.pending.push_back((id, Event::Page(page, words)));
        }
    }

    /// A page cannot be written: it is tried again in parts.
    pub(super) fn divide_pages(&mut self, commit: &Commit) {
        let most = self.options.operation_rows;
        for (_, operation, _) in &commit.batch.progress {
            self.operating.pace.refused(*operation, most);
        }
    }

    /// As [`divide_pages`](Self::divide_pages), and its partition goes on without it for a while.
    pub(super) fn hold_operations_off(&mut self, now: Millis, commit: &Commit, said: &str) {
        self.divide_pages(commit);
        for (partition, operation, _) in &commit.batch.progress {
            let until = now + HELD_OFF;
            self.operating.hold_off(*partition, *operation, until);
            let refused = self.operating.refused.entry((*partition, *operation));
            let (_, words) = refused.or_insert_with(|| (now, String::new()));
            said.clone_into(words);
        }
    }

    /// The partitions in which an operation waits for a worker that has not said whether it has begun what it was
    /// granted ahead; everything else is decided.
    pub fn waiting_operations(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let waiting = self.operating.waiting.iter();
        waiting.filter_map(move |((partition, operation), since)| {
            let (worker, action_ref) = self.partition(*partition)?.waits_for(*operation)?;
            let trouble = Trouble {
                for_ms: now - since,
                words: format!(
                    "operation {operation} waits for worker {worker}, which has not given back what it was \
                     granted ahead of {action_ref}"
                ),
            };
            Some((*partition, self.places.get(partition)?.epoch, trouble))
        })
    }

    /// The partitions in which an operation does not go on because the store refuses what it does there;
    /// everything else is decided.
    pub fn refused_operations(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let refused = self.operating.refused.iter();
        refused.filter_map(move |((partition, operation), (since, said))| {
            let trouble = Trouble {
                for_ms: now - since,
                words: format!("what operation {operation} does cannot be stored: {said}"),
            };
            Some((*partition, self.places.get(partition)?.epoch, trouble))
        })
    }
}
