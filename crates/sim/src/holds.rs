//! What operators hold, and whether owners go by it. What is in force is taken from what operators were
//! told, never from owners: a hold is in force from the moment that all partitions concerned have said
//! so until somebody asks to resume it.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionRef, PartitionId, PauseMode, PauseTarget, Pauses, RequestId, Status};
use attune_executor::stored::{Batch, Change, Transition};

use crate::bus::Body;
use crate::oracle::{Rule, Violation};
use crate::owner::QUEUE_TIMEOUT_SECONDS;
use crate::store::Store;
use crate::world::{WALL, World};

/// One hold that somebody has asked for.
#[derive(Debug)]
struct Asked {
    mode: PauseMode,
    version: i64,
    /// The partitions that have not said that they go by it.
    missing: BTreeSet<PartitionId>,
}

/// A hold that was in force and was asked to be resumed.
#[derive(Debug)]
struct Resumed {
    at: i64,
    /// Where it was not in force.
    missing: BTreeSet<PartitionId>,
}

/// By how much an owner's idea of the time may differ from another's, and take what one of them wrote
/// down for a little earlier or later.
const CLOCKS_DIFFER: i64 = 1_000;

/// What operators were told.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    asked: BTreeMap<PauseTarget, Asked>,
    /// The last of each.
    resumed: BTreeMap<PauseTarget, Resumed>,
    /// Until when an owner's clock stood still, and for how long.
    stood: Vec<(i64, i64)>,
}

impl Holds {
    /// The clock of an owner stands still until then: when it learns meanwhile of what was resumed, it
    /// counts from when its clock stopped.
    pub(crate) fn clock_stands(&mut self, until: i64, span: i64) {
        self.stood.push((until, span));
    }

    /// By how much an owner may be wrong about when something was resumed.
    fn doubt(&self, since: i64) -> i64 {
        let stood = self.stood.iter().filter(|(until, _)| *until >= since);
        CLOCKS_DIFFER + stood.map(|(_, span)| span).sum::<i64>()
    }

    /// Somebody is about to store this.
    fn asked(
        &mut self,
        now: i64,
        target: &PauseTarget,
        mode: Option<PauseMode>,
        version: i64,
        missing: BTreeSet<PartitionId>,
    ) {
        let Some(mode) = mode else {
            if let Some(asked) = self.asked.remove(target) {
                let missing = asked.missing;
                let resumed = Resumed { at: now, missing };
                self.resumed.insert(target.clone(), resumed);
            }
            return;
        };
        let asked = Asked {
            mode,
            version,
            missing,
        };
        self.asked.insert(target.clone(), asked);
    }

    /// A partition has said that it goes by this version.
    pub(crate) fn told(&mut self, version: i64, partition: PartitionId) {
        for asked in self.asked.values_mut() {
            if asked.version == version {
                asked.missing.remove(&partition);
            }
        }
    }

    /// How an action is surely held; its partition is enough.
    fn in_force(&self, action_ref: &ActionRef, partition: PartitionId) -> Option<PauseMode> {
        let holds = self.asked.iter();
        let holds = holds.filter(|(target, asked)| {
            target.covers(action_ref) && !asked.missing.contains(&partition)
        });
        holds.map(|(_, asked)| asked.mode).max()
    }

    /// When an action was surely resumed last.
    fn resumed_at(&self, action_ref: &ActionRef, partition: PartitionId) -> Option<i64> {
        let resumed = self.resumed.iter().filter(|(target, resumed)| {
            target.covers(action_ref) && !resumed.missing.contains(&partition)
        });
        resumed.map(|(_, resumed)| resumed.at).max()
    }

    /// A batch was written: nothing of what is held was granted or has expired, nothing of what was
    /// resumed has expired before it has waited again for as long as it may, and what is drained has
    /// taken nothing. `now` is the right time.
    pub(crate) fn judge(&self, now: i64, store: &Store, batch: &Batch) -> Vec<Violation> {
        if self.asked.is_empty() && self.resumed.is_empty() {
            return Vec::new();
        }
        let mode_of = |action_id| {
            let mut actions = store.actions.iter();
            let action = actions.find(|action| action.id == action_id)?;
            self.in_force(&action.spec.action_ref, action.partition)
        };
        let mut found = Vec::new();
        // With a grant, or ahead of the slot before it.
        let gives = |change: &&Change| {
            let to = change.transition.map(Transition::to);
            change.grant_no.is_some() || (change.worker.is_some() && to == Some(Status::Requested))
        };
        let granted = batch.changes.iter().filter(gives);
        let granted = granted.filter_map(|it| Some((it.id, store.active.get(&it.id)?.action)));
        let new = batch.inserts.iter();
        let at_once = new.clone().filter(|it| it.status == Status::Requested);
        for (id, action) in granted.chain(at_once.map(|it| (it.id, it.action_id))) {
            if let Some(mode) = mode_of(action) {
                let words = format!("{id} is granted a slot of {action}, which is held: {mode}");
                found.push(Violation::of(Rule::Held, words));
            }
        }
        for new in new.filter(|new| mode_of(new.action_id) == Some(PauseMode::Drain)) {
            let words = format!(
                "{} is accepted by {}, which is drained",
                new.id, new.action_id
            );
            found.push(Violation::of(Rule::Held, words));
        }
        let expired = batch.ends.iter();
        let expired = expired.filter(|end| end.outcome.status == Status::Expired);
        for id in expired.map(|end| end.id) {
            let ended = store.history.get(&id);
            let mut actions = store.actions.iter();
            let action = ended.and_then(|ended| actions.find(|it| it.id == ended.action));
            let Some(action) = action else { continue };
            let (action_ref, partition) = (&action.spec.action_ref, action.partition);
            if let Some(mode) = self.in_force(action_ref, partition) {
                let words = format!("{id} expires in {action_ref}, which is held: {mode}");
                found.push(Violation::of(Rule::Held, words));
            }
            let timeout = action.spec.policy.queue.timeout_seconds;
            let timeout = 1_000 * i64::from(timeout.unwrap_or(QUEUE_TIMEOUT_SECONDS));
            // The owner goes by its own time, which may be behind the right one or before it.
            let since = self.resumed_at(action_ref, partition);
            let waited = since.map(|since| (now.max(batch.at) - since, self.doubt(since)));
            if let Some((waited, _)) = waited.filter(|(waited, doubt)| waited + doubt < timeout) {
                let words = format!(
                    "{id} expires {waited} ms after {action_ref} was resumed, where one may wait {timeout}"
                );
                found.push(Violation::of(Rule::Held, words));
            }
        }
        found
    }
}

impl World {
    /// Somebody holds or resumes something, and tells the owners of what it covers.
    pub(crate) fn change_pause(&mut self, target: &PauseTarget, mode: Option<PauseMode>) {
        // By the right clock, as everything here that waits is judged.
        let now = WALL + self.now;
        let pauses = &mut self.store.pauses;
        pauses.version += 1;
        let before = pauses.held.remove(target);
        if let Some(mode) = mode {
            pauses.held.insert(target.clone(), mode);
            pauses.resumed.remove(target);
        } else if before.is_some() {
            pauses.resumed.insert(target.clone(), now);
        }
        let version = pauses.version;
        let partitions: BTreeSet<PartitionId> = self
            .store
            .actions
            .iter()
            .filter(|action| target.covers(&action.spec.action_ref))
            .map(|action| action.partition)
            .collect();
        self.holds
            .asked(now, target, mode, version, partitions.clone());
        let name = match mode {
            Some(PauseMode::Pause) => "pause",
            Some(PauseMode::Drain) => "drain",
            None => "resume",
        };
        *self.seen.faults.entry(name).or_default() += 1;
        for partition in partitions {
            // Some die before they have told all of them.
            if (self.now + i64::from(partition.0)) % 5 == 0 {
                *self.seen.faults.entry("untold-pause").or_default() += 1;
                continue;
            }
            let request_id = RequestId(self.fresh());
            let body = |reply_to| Body::Pauses(request_id, reply_to);
            self.add_ask(0, partition, request_id, false, body);
            if let Some(ask) = self.asks.last_mut() {
                ask.pause = Some((version, partition));
            }
        }
    }

    /// Everything goes on.
    pub(crate) fn resume_all(&mut self) {
        let held: Vec<PauseTarget> = self.store.pauses.held.keys().cloned().collect();
        for target in held {
            self.change_pause(&target, None);
        }
    }

    /// Whether operators want nothing of an action to start, whoever knows of it.
    pub(crate) fn is_held(&self, number: usize) -> bool {
        let action_ref = &self.store.actions[number].spec.action_ref;
        self.store.pauses.hold_of(action_ref).mode.is_some()
    }
}

/// The set as it is stored, when it is newer.
pub(crate) fn newer(pauses: &Pauses, than: i64) -> Option<std::sync::Arc<Pauses>> {
    (pauses.version > than).then(|| std::sync::Arc::new(pauses.clone()))
}
