//! Judges a run from outside: what is stored, what is told, what physically runs.

mod ahead;
mod stored;

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    ActionId, Attempt, ExecutionId, PartitionId, Promise, QueueStats, QueueTotals, RequestId,
    Status, WorkerId,
};
use attune_executor::stored::Batch;

use crate::bus::is_call;
use crate::plan::Time;
use crate::said::Said;
use crate::shadow::Shadow;
use crate::store::{Odd, Store};
use crate::world::WALL;

/// By how much the time of an owner may be wrong: by as long as its first look at the store's
/// clock took, which may have stood still with it.
pub(crate) const WRONG_BY: Time = 30_000;

/// What figures tell of all that ever entered a queue.
pub(crate) fn totals_of(stats: &QueueStats) -> QueueTotals {
    QueueTotals {
        enqueued: stats.total_enqueued,
        completed: stats.total_completed,
        cancelled: stats.total_cancelled,
        expired: stats.total_expired,
    }
}

/// What must not be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// One of the promises.
    Promise(Promise),
    /// No attempt starts twice, and no execution runs twice at once.
    DoubleStart,
    /// Nothing is told before it is committed.
    ToldEarly,
    /// What is stored is what was decided.
    Stored,
    /// Who waits for a slot expires when the queue's time is over, and not before.
    Expiry,
    /// A result is what the program of that attempt said.
    Result,
    /// A free slot and somebody who may have it come together soon.
    Progress,
    /// No owner is busy with one thing for long while others wait.
    Pause,
    /// What the store refuses costs no new epoch.
    Restraint,
    /// The time of an owner is the store's, and steps of no clock change it.
    Clock,
    /// What an operator does is in the audit log.
    Audit,
    /// Who is tried again is that as often and as late as its action says, and nobody else ends before.
    Retry,
    /// What operators hold is held.
    Held,
    /// What is said of why an execution does not run yet is so.
    Explain,
    /// Soon after the last change the figures that were published of a queue are those that it has.
    Shown,
}

impl From<Promise> for Rule {
    fn from(promise: Promise) -> Self {
        Self::Promise(promise)
    }
}

impl Rule {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let promises = Promise::ALL.into_iter().map(Self::Promise);
        promises.chain([
            Self::DoubleStart,
            Self::ToldEarly,
            Self::Stored,
            Self::Expiry,
            Self::Result,
            Self::Progress,
            Self::Pause,
            Self::Restraint,
            Self::Clock,
            Self::Audit,
            Self::Retry,
            Self::Held,
            Self::Explain,
            Self::Shown,
        ])
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Promise(promise) => promise.name(),
            Self::DoubleStart => "double_start",
            Self::ToldEarly => "told_early",
            Self::Stored => "stored",
            Self::Expiry => "expiry",
            Self::Result => "result",
            Self::Progress => "progress",
            Self::Pause => "pause",
            Self::Restraint => "restraint",
            Self::Clock => "clock",
            Self::Audit => "audit",
            Self::Retry => "retry",
            Self::Held => "held",
            Self::Explain => "explain",
            Self::Shown => "shown",
        }
    }
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub rule: Rule,
    /// How.
    pub words: String,
    /// When.
    pub at: Time,
}

impl Violation {
    pub(crate) fn of(rule: impl Into<Rule>, words: String) -> Self {
        Self {
            rule: rule.into(),
            words,
            at: 0,
        }
    }
}

/// An attempt of an execution.
pub(crate) type Key = (ExecutionId, Attempt);

/// What the oracle remembers.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// What clients have said.
    pub(crate) said: Said,
    /// The first violation of each rule.
    pub(crate) violations: BTreeMap<Rule, Violation>,
    /// User code that runs right now: its action and its worker.
    running: BTreeMap<Key, (ActionId, WorkerId)>,
    /// Attempts whose user code has ever run.
    started: BTreeSet<Key>,
    /// The limit under which each attempt was granted.
    granted: BTreeMap<Key, Option<u32>>,
    /// To which life of a worker each attempt was granted.
    granted_to: BTreeMap<Key, WorkerId>,
    /// Behind whom executions stand that were granted ahead, of those that had not begun then.
    behind: BTreeMap<Key, Vec<Key>>,
    /// Attempts whose slots an operator asks back.
    asked_back: BTreeSet<Key>,
    /// Those of them that lost it: what still runs of them counts no more.
    let_go: BTreeSet<Key>,
    /// When each was accepted, or could start, by the right time.
    waits_since: BTreeMap<ExecutionId, Time>,
    /// The place, in its queue, of the last submission that was stored, by partition.
    last_place: BTreeMap<(PartitionId, bool), u64>,
    /// Requests that were refused; they may be accepted when they come again.
    refused: BTreeSet<RequestId>,
    /// What clients were told about their requests.
    told: BTreeMap<RequestId, ExecutionId>,
    /// The newest figures that were published of each queue, and their version.
    shown: BTreeMap<ActionId, (i64, QueueStats)>,
}

impl Oracle {
    /// Notes that a rule was broken.
    pub(crate) fn blame(&mut self, at: Time, violation: Violation) {
        let found = Violation { at, ..violation };
        self.violations.entry(found.rule).or_insert(found);
    }

    fn say(&mut self, at: Time, rule: impl Into<Rule>, words: String) {
        self.blame(at, Violation::of(rule, words));
    }

    /// An operator asks for the slot of an attempt.
    pub(crate) fn ask_back(&mut self, key: Key) {
        self.asked_back.insert(key);
    }

    /// Sees which of those attempts have lost their slots.
    fn let_go(&mut self, store: &Store) {
        let holds = |key: &&Key| {
            let row = store.active.get(&key.0);
            row.is_some_and(|row| row.attempt == key.1 && row.status.holds_slot())
        };
        let lost = self.asked_back.iter().filter(|key| !holds(key));
        self.let_go.extend(lost);
    }

    /// A request is being refused for good reasons.
    pub(crate) fn refuse(&mut self, request: RequestId) {
        self.refused.insert(request);
    }

    /// An owner decides to accept an execution that may start at `due`, by the right wall clock.
    pub(crate) fn accept(&mut self, now: Time, id: ExecutionId, due: Option<Time>) {
        let since = due.map_or(now, |due| now.max(due - WALL));
        self.waits_since.entry(id).or_insert(since);
    }

    /// User code starts.
    pub(crate) fn start(
        &mut self,
        now: Time,
        store: &Store,
        key: Key,
        (action, worker): (ActionId, WorkerId),
    ) {
        self.judge_behind(now, store, key);
        if !self.started.insert(key) {
            self.say(
                now,
                Rule::DoubleStart,
                format!("{key:?} starts a second time"),
            );
        }
        // What was taken from a worker by force may begin there before it hears of that.
        let let_go = &self.let_go;
        let mut counts = self.running.keys().filter(|key| !let_go.contains(key));
        if !let_go.contains(&key) && counts.any(|(id, _)| *id == key.0) {
            self.say(
                now,
                Rule::DoubleStart,
                format!("{key:?} starts beside itself"),
            );
        }
        if !self.granted.contains_key(&key) {
            self.say(
                now,
                Rule::ToldEarly,
                format!("{key:?} starts and was never granted"),
            );
        }
        if self.granted_to.get(&key).is_some_and(|to| *to != worker) {
            let words = format!("{key:?} starts at {worker:?}, and was granted to another life");
            self.say(now, Rule::DoubleStart, words);
        }
        self.running.insert(key, (action, worker));
        let of_action = self
            .running
            .iter()
            .filter(|(key, (other, _))| *other == action && !self.let_go.contains(key));
        let limits = of_action
            .clone()
            .map(|(key, _)| self.granted.get(key).copied().flatten());
        let count = of_action.count();
        // Each was granted under the limit of its time; the highest of them is what may be seen.
        let most = limits.map(|limit| limit.unwrap_or(u32::MAX)).max();
        if most.is_some_and(|most| count > most as usize) {
            let words = format!(
                "{count} runs of action {action} at once: {:?}",
                self.running
            );
            self.say(now, Promise::I2, words);
        }
    }

    /// A batch counts attempts as never begun; `store` is as it was before it.
    pub(crate) fn judge_unbegun(&mut self, now: Time, store: &Store, batch: &Batch) {
        let begun = batch.changes.iter().filter_map(|change| {
            let (row, put_back) = (store.active.get(&change.id)?, change.put_back.as_ref()?);
            let key = (change.id, row.attempt);
            let is_said = put_back.unbegun > row.unbegun;
            (is_said && self.started.contains(&key)).then_some(key)
        });
        if let Some(key) = begun.collect::<Vec<_>>().first() {
            let words = format!("{key:?} has begun, and is given back as one that never did");
            self.say(now, Rule::DoubleStart, words);
        }
    }

    /// What runs now: of which action, and where.
    pub(crate) fn running(&self) -> Vec<(Key, ActionId, WorkerId)> {
        let running = self.running.iter();
        running
            .map(|(key, (action, worker))| (*key, *action, *worker))
            .collect()
    }

    /// User code has ended or was killed; false when it did not run.
    pub(crate) fn stop(&mut self, key: Key) -> bool {
        self.running.remove(&key).is_some()
    }

    /// Whether user code runs nowhere, and that nothing waits or runs is shown.
    pub(crate) fn is_quiet(&self, store: &Store) -> bool {
        self.running.is_empty() && self.stale(store).next().is_none()
    }

    /// Figures of a queue were published.
    pub(crate) fn show(&mut self, version: i64, stats: &QueueStats) {
        let shown = self.shown.entry(stats.action_id);
        let shown = shown.or_insert_with(|| (version, stats.clone()));
        if shown.0 < version {
            *shown = (version, stats.clone());
        }
    }

    /// The queues of which other figures are shown than are stored, when nothing waits or runs.
    fn stale<'a>(&'a self, store: &'a Store) -> impl Iterator<Item = ActionId> + 'a {
        let used = store
            .totals
            .iter()
            .filter(|(_, totals)| totals.enqueued > 0);
        let stale = used.filter(|(action_id, totals)| {
            let shown = self.shown.get(*action_id).map(|(_, stats)| {
                let present = stats.queue_length + stats.active_count;
                (totals_of(stats), present)
            });
            shown != Some((**totals, 0))
        });
        stale.map(|(action_id, _)| *action_id)
    }

    /// A batch was written. `shadows` holds what its owner decided, by partition; `places` where
    /// the submissions that it stores for the first time stood in their queues.
    pub(crate) fn committed(
        &mut self,
        now: Time,
        store: &Store,
        batch: &Batch,
        odd: &Odd,
        shadows: &BTreeMap<PartitionId, &Shadow>,
        places: &[(ExecutionId, RequestId, u64)],
    ) {
        self.let_go(store);
        for id in &odd.ended_twice {
            self.say(
                now,
                Promise::I5,
                format!("{id} is stored or ended a second time"),
            );
        }
        for request in &odd.accepted_twice {
            self.say(
                now,
                Promise::I5,
                format!("{request} leads to a second execution"),
            );
        }
        for (id, request, place) in places {
            let queue = (id.partition(), is_call(*place));
            let last = self.last_place.entry(queue).or_insert(0);
            if *place < *last && !self.refused.contains(request) {
                let words = format!(
                    "{id} came at place {place}, before others that are stored already, up to {last}"
                );
                self.say(now, Promise::I3, words);
            } else {
                *last = (*last).max(*place);
            }
        }
        self.judge_expired(now, batch, shadows);
        for (partition, shadow) in shadows {
            self.judge_stored(now, store, *partition, shadow);
            self.judge_totals(now, store, shadow);
        }
        self.granted_ahead(store, batch, shadows);
        let updates = batch
            .changes
            .iter()
            .filter(|change| change.worker.is_some() && !change.grants_ahead());
        let inserts = batch
            .inserts
            .iter()
            .filter(|new| new.status == Status::Requested);
        let granted: Vec<Key> = updates
            .map(|update| (update.id, update.attempt))
            .chain(inserts.map(|new| (new.id, new.attempt)))
            .collect();
        for key in granted {
            let Some(row) = store.active.get(&key.0) else {
                continue;
            };
            self.granted_to
                .extend(row.worker.map(|worker| (key, worker)));
            let shadow = shadows.get(&key.0.partition());
            let limit = shadow.and_then(|shadow| shadow.limit(row.action));
            if let Some(shadow) = shadow {
                self.note_behind(shadow, key);
            }
            let seen = shadow.and_then(|shadow| shadow.rows.get(&key.0));
            if seen.is_some_and(|seen| seen.goes_on) {
                // In the slot that it had: a limit that was lowered since takes none away.
                let earlier = (key.0, Attempt(key.1.0 - 1));
                let earlier = self.granted.get(&earlier).copied().flatten();
                let limit = limit.map(|limit| limit.max(earlier.unwrap_or(u32::MAX)));
                self.granted.insert(key, limit);
                continue;
            }
            self.note_granted(key, limit);
            let rows = store.active.values();
            let held = rows
                .filter(|other| other.action == row.action && other.status.holds_slot())
                .count();
            if limit.is_some_and(|limit| held > limit as usize)
                || held > self.said.most(row.action) as usize
            {
                let words = format!("{held} slots of action {} are held: {key:?}", row.action);
                self.say(now, Promise::I2, words);
            }
        }
    }

    /// Under which limit an attempt was granted: whoever stood ahead of its slot may begin under that of then.
    fn note_granted(&mut self, key: Key, limit: Option<u32>) {
        let most = |one: Option<u32>, other: Option<u32>| Some(one?.max(other?));
        let known = self.granted.entry(key).or_insert(limit);
        *known = most(*known, limit);
    }

    /// A batch grants ahead of slots.
    fn granted_ahead(
        &mut self,
        store: &Store,
        batch: &Batch,
        shadows: &BTreeMap<PartitionId, &Shadow>,
    ) {
        let changed = batch.changes.iter().filter(|change| change.grants_ahead());
        let changed = changed.map(|change| (change.id, change.attempt));
        let new = batch.inserts.iter().filter(|new| new.worker.is_some());
        let new = new.map(|new| (new.id, new.attempt));
        for key in changed.chain(new) {
            let Some(row) = store.active.get(&key.0) else {
                continue;
            };
            self.granted_to
                .extend(row.worker.map(|worker| (key, worker)));
            let shadow = shadows.get(&key.0.partition());
            let limit = shadow.and_then(|shadow| shadow.limit(row.action));
            self.note_granted(key, limit);
            if let Some(shadow) = shadow {
                self.note_behind(shadow, key);
            }
        }
    }

    /// An owner tells the workers to run an attempt.
    pub(crate) fn dispatched(&mut self, now: Time, store: &Store, (id, attempt): Key) {
        let stored = store
            .active
            .get(&id)
            .is_some_and(|row| row.attempt >= attempt);
        if !stored && !store.history.contains_key(&id) {
            let words = format!("attempt {attempt} of {id} is dispatched and not stored");
            self.say(now, Rule::ToldEarly, words);
        }
    }

    /// An owner tells a client which execution its request has led to.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        store: &Store,
        request: RequestId,
        id: ExecutionId,
    ) {
        if !store.active.contains_key(&id) && !store.history.contains_key(&id) {
            let words = format!("{request} is answered with {id}, which is not stored");
            self.say(now, Rule::ToldEarly, words);
        }
        if store.is_rejected(id) {
            let words = format!("{request} is told to be accepted, and {id} records its refusal");
            self.say(now, Promise::I1, words);
        }
        let first = *self.told.entry(request).or_insert(id);
        if first != id {
            let words = format!("{request} is answered with {first} and with {id}");
            self.say(now, Promise::I5, words);
        }
    }

    /// Everything was healed long ago: what has not ended never will. `confirmed` holds the
    /// requests whose messages the broker has taken for good, `unanswered` who still asks.
    pub(crate) fn end(
        &mut self,
        now: Time,
        store: &Store,
        confirmed: &BTreeSet<RequestId>,
        unanswered: &[RequestId],
    ) {
        for (id, row) in &store.active {
            let promise = if row.status.holds_slot() {
                Promise::I4
            } else {
                Promise::I6
            };
            self.say(now, promise, format!("{id} is still {}", row.status));
        }
        for (request, id) in self.told.clone() {
            if !store.history.contains_key(&id) && !store.active.contains_key(&id) {
                self.say(
                    now,
                    Promise::I1,
                    format!("{request} was told {id}, which is gone"),
                );
            }
        }
        let stale: Vec<ActionId> = match store.active.is_empty() {
            true => self.stale(store).collect(),
            false => Vec::new(),
        };
        if !stale.is_empty() {
            let shown: Vec<_> = stale.iter().map(|it| self.shown.get(it)).collect();
            self.say(
                now,
                Rule::Shown,
                format!("of {stale:?} these are shown: {shown:?}"),
            );
        }
        for request in confirmed {
            if !store.requests.contains_key(request) {
                let words = format!("{request} was taken by the broker and is not stored");
                self.say(now, Promise::I1, words);
            }
        }
        for request in unanswered {
            self.say(now, Promise::I1, format!("{request} was never answered"));
        }
    }
}
