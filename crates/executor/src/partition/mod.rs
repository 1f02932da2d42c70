//! Every decision about the executions of one partition. Pure: state + event + `now` → effects;
//! no I/O, no clock, no random numbers, and the same history gives the same effects.
//!
//! A partition decides on what is *stored*: its owner commits the effects of a round before it
//! brings the next event, or throws the partition away. So memory and store never disagree by
//! more than what is being written, and nothing is told that is not committed.

mod askers;
mod counting;
mod definitions;
mod event;
mod explaining;
mod force_release;
mod grouping;
mod handing_on;
mod happening;
mod holders;
mod keeping;
mod log;
mod operating;
mod overflow;
mod pausing;
mod reconcile;
mod restoring;
mod retry;
mod room;
mod serve;
mod submit;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, Attempt, Behaviour, DemandRule, Epoch, ExecutionId, Marks, PartitionId,
    Pauses, PolicySet, QueueStats, QueueTotals, RequestId, WorkerId,
};
use attune_secrets::Keyring;

use crate::ById;
use crate::detector::Detector;
use crate::fact::Fact;
use crate::policy::{QuotaMeter, RunTimes};
use crate::queue::{ActionQueue, ExecutionQueueManager, Millis};
use crate::roster::SharedRoster;
use crate::stored::{Audit, KnownRequest, Sets, StoredExecution};

#[cfg(test)]
use attune_core::Status;

use askers::Askers;
use operating::Operations;
use restoring::{restore, unless_wrong};
use room::Room;
use workers::Lines;

pub use event::{
    Accepted, Answer, Completion, Effect, Event, ForceRelease, Grantee, Letter, OnReject,
    ReconcileBounds, Submit, Wait,
};
pub use operating::Page;

/// How many slots a partition grants in one step, and how many executions it expires or wakes, over all
/// of its queues, before it lets other events and partitions have their turn.
pub const STEP_ITEMS: usize = 1000;
/// The owner renews its epoch when fewer places than this are left in it.
const EPOCH_RESERVE: u32 = 1_000_000;
/// How many bytes a dispatch needs besides parameters and the action's definition.
const ENVELOPE_BYTES: usize = 4096;

/// What a partition must know of the cluster it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterBounds {
    /// How many partitions there are: what belongs to another one is sent back.
    pub partitions: u16,
    /// How many bytes a message may have: what could never be dispatched is not accepted.
    pub max_message_bytes: usize,
    /// How many executions of an action are granted to a worker ahead of their slots at most; 0 where none are.
    pub lane_length: usize,
}

/// The decisions about one partition, in one epoch.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    cluster: ClusterBounds,
    epoch: Epoch,
    /// When what is being decided happens.
    now: Millis,
    /// The next place in the order.
    next_place: u32,
    /// The next number of a grant.
    next_grant: u32,
    queues: ExecutionQueueManager,
    /// Its actions, with what they inherit.
    actions: ById<ActionId, Arc<Action>>,
    /// What those actions say themselves that inherit something.
    own: ById<ActionId, Box<Behaviour>>,
    /// How many bytes of a dispatch the definition of each action takes.
    definition_bytes: ById<ActionId, usize>,
    /// How executions of an action demand its limits; nothing of those whose executions demand the same.
    demands: ById<ActionId, DemandRule>,
    refs: BTreeMap<String, ActionId>,
    /// What the schemas of actions mark as secret; of those that mark something.
    marks: ById<ActionId, Marks>,
    /// What is marked and comes unsealed is sealed with these.
    secrets: Keyring,
    /// What the quotas of each action have counted, if it has any.
    quotas: ById<ActionId, Vec<QuotaMeter>>,
    /// The actions for which something was counted that is not stored.
    counting: BTreeSet<ActionId>,
    /// Which action every execution that waits or holds a slot belongs to.
    index: BTreeMap<ExecutionId, ActionId>,
    /// Of whose executions it is counted how many wait.
    askers: Askers,
    /// The actions whose executions may hold slots: all that do, and some that did.
    holding: BTreeSet<ActionId>,
    /// How long executions of an action hold their slots; of those of which any has ended since the partition
    /// was taken over.
    run_times: ById<ActionId, RunTimes>,
    /// The lives of workers.
    roster: SharedRoster,
    /// Who stands in line for them.
    lines: Lines,
    /// How many slots whoever is served may be granted, where it has its turn in a line.
    turns_left: Option<usize>,
    /// Queues that may rest because their workers lack a key.
    resting: BTreeSet<ActionId>,
    /// Who holds a slot of which no worker knows.
    orphans: Vec<(ActionId, ExecutionId)>,
    /// How many events of each life will say in this round that something has come back.
    expected: BTreeMap<WorkerId, usize>,
    /// What operators hold.
    pauses: Arc<Pauses>,
    /// The policy documents by which it decides.
    policies: Arc<PolicySet>,
    /// The version of them that is written down as the one by which it decides.
    goes_by: i64,
    /// What this round has accepted so far: the store does not know it yet.
    accepted: HashMap<RequestId, KnownRequest>,
    /// How many of each action newcomers have replaced in this round.
    replaced: BTreeMap<ActionId, usize>,
    /// When a queue has something to do by itself. A time may be too early, never too late.
    deadlines: BTreeSet<(Millis, ActionId)>,
    scheduled: ById<ActionId, Millis>,
    /// Queues that may have more to do than one step does.
    unserved: BTreeSet<ActionId>,
    /// Queues that stand still until it is known what executions demand that are there.
    regrouping: BTreeSet<ActionId>,
    /// Who is to end that keeps its slot without running; empty between two events.
    ending: Vec<(ActionId, ExecutionId, Attempt)>,
    /// Bulk operations that are known here; absent nearly always.
    operations: Option<Box<Operations>>,
    /// What a step may do, and what may still be done in this round.
    step_items: usize,
    /// How many may end in it because they have waited too long, and how many newcomers may replace.
    most_ends: usize,
    most_replaced: usize,
    room: Room,
    /// Whose queue used the room of a step up last: those after it go first at the next.
    turn: ActionId,
    /// What was decided, while somebody wants to check it.
    log: Option<Vec<Fact>>,
    /// How often the log was taken.
    logged: u64,
    detector: Detector,
    /// The last slots that operators took back, so that a command that is delivered twice is
    /// answered as it was the first time; and what is written down about each.
    released: VecDeque<(RequestId, Accepted, Audit)>,
}

impl Partition {
    /// A partition that knows nothing yet; [`Event::Recover`] comes first.
    pub fn new(
        id: PartitionId,
        epoch: Epoch,
        cluster: ClusterBounds,
        queues: ExecutionQueueManager,
        roster: SharedRoster,
    ) -> Self {
        Self {
            id,
            cluster,
            epoch,
            now: Millis::MIN,
            next_place: 0,
            next_grant: 0,
            queues,
            actions: ById::default(),
            own: ById::default(),
            definition_bytes: ById::default(),
            demands: ById::default(),
            refs: BTreeMap::new(),
            marks: ById::default(),
            secrets: Keyring::default(),
            quotas: ById::default(),
            counting: BTreeSet::new(),
            index: BTreeMap::new(),
            askers: Askers::default(),
            holding: BTreeSet::new(),
            run_times: ById::default(),
            roster,
            lines: Lines::default(),
            turns_left: None,
            resting: BTreeSet::new(),
            orphans: Vec::new(),
            expected: BTreeMap::new(),
            pauses: Arc::default(),
            policies: Arc::default(),
            goes_by: 0,
            accepted: HashMap::new(),
            replaced: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            scheduled: ById::default(),
            unserved: BTreeSet::new(),
            regrouping: BTreeSet::new(),
            ending: Vec::new(),
            operations: None,
            step_items: STEP_ITEMS,
            most_ends: STEP_ITEMS,
            most_replaced: STEP_ITEMS,
            room: Room::of(STEP_ITEMS, STEP_ITEMS),
            turn: ActionId(i64::MIN),
            log: None,
            logged: 0,
            detector: Detector::new(format!("owner of partition {id} in epoch {epoch}")),
            released: VecDeque::new(),
        }
    }

    /// Wakes, ends and grants at most `items` in a step.
    #[must_use]
    pub fn with_steps_of(mut self, items: usize) -> Self {
        self.step_items = items;
        self.room = Room::of(items, items);
        self
    }

    /// Seals what is secret with these keys.
    #[must_use]
    pub fn with_secrets(mut self, secrets: Keyring) -> Self {
        self.secrets = secrets;
        self
    }

    /// Does no more in the next steps than this: changes `items`, ends `expiries` of those that have waited
    /// too long, and has newcomers replace so many.
    pub(crate) fn bound_steps(&mut self, items: usize, expiries: usize, replaced: usize) {
        self.step_items = items;
        (self.most_ends, self.most_replaced) = (expiries, replaced);
    }

    /// Which partition it decides on.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The epoch in which it decides.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the action of this ref is known.
    pub fn knows_action(&self, action_ref: &str) -> bool {
        self.refs.contains_key(action_ref)
    }

    /// Whether this action is known.
    pub(crate) fn has_action(&self, action_id: ActionId) -> bool {
        self.actions.contains_key(&action_id)
    }

    /// The refs of its actions after this one, in their order.
    pub(crate) fn refs_after(&self, after: &str) -> impl Iterator<Item = &str> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.refs
            .range::<str, _>(range)
            .map(|(known, _)| known.as_str())
    }

    /// Whether it goes by an earlier definition of an action that it knows.
    pub(crate) fn is_behind(&self, action: &Action) -> bool {
        let known = self.actions.get(&action.id);
        known.is_some_and(|known| known.version < action.version)
    }

    /// Whether the places of this epoch are nearly used up, so that a new one is needed.
    pub fn is_exhausted(&self) -> bool {
        self.next_place.max(self.next_grant) > u32::MAX - EPOCH_RESERVE
    }

    /// When [`Event::Tick`] has something to do; the past when there is work right now.
    pub fn next_deadline(&self) -> Option<Millis> {
        if !self.unserved.is_empty() {
            return Some(Millis::MIN);
        }
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// The totals of a queue.
    pub fn totals(&self, action_id: ActionId) -> QueueTotals {
        self.queues
            .with_existing(action_id, |queue| queue.totals())
            .unwrap_or_default()
    }

    /// A queue as it is now.
    pub fn stats(&self, action_id: ActionId) -> Option<QueueStats> {
        self.queues.get_queue_stats(action_id)
    }

    /// The actions of which something was ever accepted.
    pub(crate) fn used_queues(&self) -> impl Iterator<Item = ActionId> + '_ {
        let is_used = |action_id: &ActionId| {
            let entered = self
                .queues
                .with_existing(*action_id, |queue| queue.totals().enqueued);
            entered.is_some_and(|many| many > 0)
        };
        self.actions.keys().copied().filter(is_used)
    }

    /// Whether the queue of an action is here.
    pub(crate) fn has_queue(&self, action_id: ActionId) -> bool {
        self.actions.contains_key(&action_id)
    }

    /// The attempt in which an execution holds a slot.
    pub fn holds(&self, execution_id: ExecutionId) -> Option<Attempt> {
        let action_id = self.index.get(&execution_id)?;
        let holder = self
            .queues
            .with_existing(*action_id, |queue| queue.holder(execution_id));
        holder.flatten().map(|holder| holder.attempt)
    }

    /// Moves its queues to another manager, where everybody can see them. Until it is ready a
    /// partition that is being rebuilt keeps them to itself.
    pub(crate) fn move_to(&mut self, queues: &ExecutionQueueManager) {
        for action_id in self.actions.keys() {
            self.queues.move_to(queues, *action_id);
        }
        self.queues = queues.clone();
    }

    /// Forgets every queue: somebody else owns the partition from now on, or it is loaded again.
    pub fn step_down(self) {
        for action_id in self.actions.keys() {
            self.queues.forget(*action_id);
        }
        self.roster.lock().forget_partition(self.id);
    }

    /// Decides what follows from an event.
    pub fn step(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.decide(now, event, &mut effects);
        effects
    }

    /// The same, added to `out`: most events have few effects, and a round has many events.
    pub(crate) fn decide(&mut self, now: Millis, event: Event, out: &mut Vec<Effect>) {
        let before = out.len();
        self.carry_out(now, event, out);
        self.follow_askers(&out[before..]);
    }

    fn carry_out(&mut self, now: Millis, event: Event, out: &mut Vec<Effect>) {
        self.room = self.room.for_event();
        self.now = now;
        match event {
            Event::Recover {
                actions,
                totals,
                sets,
            } => self.recover(now, actions, totals, sets),
            Event::RecoverMeters(rows) => self.recover_meters(now, rows),
            Event::RecoverRows(rows) => self.recover_rows(now, rows),
            Event::ActionKnown(action) => self.learn(now, *action, out),
            Event::Pauses(pauses) => self.set_pauses(now, pauses, out),
            Event::Policies(policies) => self.set_policies(now, policies, out),
            Event::Submit {
                submit,
                known,
                reply_to,
            } => self.submit(now, submit, known, reply_to, out),
            Event::Cancel {
                request_id,
                execution_id,
                reply_to,
            } => {
                let outcome = self.cancel(now, execution_id, out);
                submit::answer(reply_to, request_id, outcome, out);
            }
            Event::Explain {
                request_id,
                execution_id,
                reply_to,
            } => self.explain(now, request_id, execution_id, reply_to, out),
            Event::ForceRelease { command, reply_to } => {
                self.force_release(now, *command, reply_to, out);
            }
            Event::Completed(completion) => self.complete(now, completion, out),
            Event::Undispatchable {
                execution_id,
                attempt,
                why,
            } => self.give_up(now, execution_id, attempt, why, out),
            Event::LacksKeys { worker, grants } => self.note_keyless(now, worker, grants),
            Event::Returned { worker, grants } => {
                self.take_returned(now, worker, grants, true, out);
            }
            Event::Bounced { worker, grants } => {
                let why: Arc<str> = Arc::from("nobody received it");
                let grants = grants.into_iter();
                let grants = grants.map(|grant| (grant, Arc::clone(&why)));
                self.take_returned(now, worker, grants, false, out);
            }
            Event::Started { worker, runs } => self.note_started(worker, runs, out),
            Event::Room { pool } => self.serve_line(now, &pool, out),
            Event::ReconcileRange {
                after,
                last,
                rows,
                changed,
            } => self.reconcile_range(now, (after, last), &rows, &changed, out),
            Event::Reconcile { slots, changed } => self.reconcile(now, &slots, &changed, out),
            Event::Words(words) => self.assign(now, words, out),
            Event::Operations(parts) => self.begin_operations(now, parts, out),
            Event::Page(page, words) => self.operate(now, page, words, out),
            Event::Tick => self.tick(now, out),
        }
    }

    fn recover(
        &mut self,
        now: Millis,
        actions: Vec<Action>,
        totals: Vec<(ActionId, QueueTotals)>,
        sets: Sets,
    ) {
        let id = self.id;
        self.recover_pauses(sets.pauses);
        self.note(|| Fact::Acquired { partition: id });
        self.recover_policies(sets.policies);
        let totals: HashMap<ActionId, QueueTotals> = totals.into_iter().collect();
        for action in actions {
            let action = self.whole(action);
            let limits = self.limits_for(&action);
            let past = totals.get(&action.id).copied().unwrap_or_default();
            self.note_bounds(action.id, &limits);
            self.queues
                .put(action.id, ActionQueue::new(action.id, limits, past));
            let action = self.remember(action);
            self.hold(now, &action, &mut Vec::new());
        }
    }

    fn recover_rows(&mut self, now: Millis, rows: Vec<StoredExecution>) {
        for row in rows {
            let Some(action) = self.actions.get(&row.action_id).cloned() else {
                continue;
            };
            if row.is_granted() {
                self.holding.insert(action.id);
                self.note(|| Fact::Held {
                    execution_id: row.id,
                    action_id: action.id,
                    attempt: row.attempt,
                    kept_until: row.kept_until,
                    ahead: row.ahead().is_some(),
                });
            }
            self.index.insert(row.id, row.action_id);
            self.askers.restore(&row);
            self.queues
                .with_existing(row.action_id, |queue| restore(queue, now, &row));
            self.hold_stored(&row);
            self.unserved.insert(row.action_id);
            self.note_regrouping(row.action_id);
        }
    }

    /// Counts what is granted for the life of a worker that its row names.
    fn hold_stored(&mut self, row: &StoredExecution) {
        if !row.is_granted() || row.kept_until.is_some() {
            return;
        }
        let ahead = row.ahead().is_some();
        match row.worker {
            Some(worker) => self
                .roster
                .lock()
                .hold(worker, (row.id, row.attempt), ahead),
            None => self.orphans.push((row.action_id, row.id)),
        }
    }
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod askers_tests;
#[cfg(test)]
mod counting_tests;
#[cfg(test)]
mod explaining_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod operator_tests;
#[cfg(test)]
mod pausing_tests;
#[cfg(test)]
mod policies_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod reconcile_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod test_events;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
