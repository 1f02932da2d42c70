//! Every decision about the executions of one partition. Pure: state + event + `now` → effects;
//! no I/O, no clock, no random numbers, and the same history gives the same effects.
//!
//! The core decides on what is *stored*: the shell commits the effects of a round before it
//! brings the next event, or throws the core away. So memory and store never disagree by more
//! than what is being written, and nothing is told that is not committed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use attune_core::{
    Action, ActionId, Attempt, Epoch, ExecutionId, OnWorkerLost, PartitionId, QueueStats,
    QueueTotals, RequestId, Seq, Status,
};
use attune_messages::v1::{Accepted, Completion};
use attune_record::Record;
use attune_store::{ActiveRow, End, KnownRequest, Outcome, Update};

use crate::action_queue::{ActionQueue, Holder, Millis};
use crate::detector::Detector;
use crate::event::{Counter, Dispatch, Effect, Event};
use crate::policy_enforcer::limits_of;
use crate::queue_manager::ExecutionQueueManager;
use crate::requests::answer;

/// How many slots one step grants, and how many executions it expires, before it lets other
/// events have their turn.
const MAX_PER_STEP: usize = 1000;
/// The owner renews its epoch when fewer places than this are left in it.
const EPOCH_RESERVE: u32 = 1_000_000;

/// The decisions about one partition, in one epoch.
#[derive(Debug)]
pub struct PartitionCore {
    pub(crate) partition: PartitionId,
    /// How many partitions the cluster has: what belongs to another one is sent back.
    pub(crate) partition_count: u16,
    pub(crate) epoch: Epoch,
    /// The next place in the order.
    pub(crate) next_place: u32,
    /// The next number of a grant.
    next_grant: u32,
    pub(crate) queues: ExecutionQueueManager,
    pub(crate) actions: HashMap<ActionId, Arc<Action>>,
    pub(crate) refs: HashMap<String, ActionId>,
    /// The requests of this round that were accepted before, or earlier in it.
    pub(crate) known: HashMap<RequestId, KnownRequest>,
    /// When a queue has something to do by itself. A time may be too early, never too late.
    deadlines: BinaryHeap<Reverse<(Millis, ActionId)>>,
    scheduled: HashMap<ActionId, Millis>,
    /// Queues that may have more to grant than one step does.
    hungry: BTreeSet<ActionId>,
    /// What was decided, while somebody wants to record it.
    pub(crate) log: Option<Vec<Record>>,
    /// Queues whose waiting executions were mended, until their slots are compared too.
    pub(crate) mended: BTreeSet<ActionId>,
    pub(crate) detector: Detector,
    /// The last slots that operators took back, so that a command that is delivered twice is
    /// answered as it was the first time.
    pub(crate) released: VecDeque<(RequestId, Accepted)>,
}

impl PartitionCore {
    /// A core that knows nothing yet; [`Event::Recover`] comes first.
    pub fn new(
        partition: PartitionId,
        partition_count: u16,
        epoch: Epoch,
        queues: ExecutionQueueManager,
    ) -> Self {
        Self {
            partition,
            partition_count,
            epoch,
            next_place: 0,
            next_grant: 0,
            queues,
            actions: HashMap::new(),
            refs: HashMap::new(),
            known: HashMap::new(),
            deadlines: BinaryHeap::new(),
            scheduled: HashMap::new(),
            hungry: BTreeSet::new(),
            log: None,
            mended: BTreeSet::new(),
            detector: Detector::new(format!("owner of partition {partition} in epoch {epoch}")),
            released: VecDeque::new(),
        }
    }

    /// The partition it decides on.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The epoch in which it decides.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the action of this ref is known.
    pub fn knows_action(&self, action_ref: &str) -> bool {
        self.refs.contains_key(action_ref)
    }

    /// Whether the places of this epoch are nearly used up, so that a new one is needed.
    pub fn is_exhausted(&self) -> bool {
        self.next_place.max(self.next_grant) > u32::MAX - EPOCH_RESERVE
    }

    /// When [`Event::Tick`] has something to do; the past when there is work right now.
    pub fn next_deadline(&self) -> Option<Millis> {
        if !self.hungry.is_empty() {
            return Some(0);
        }
        self.deadlines.peek().map(|Reverse((time, _))| *time)
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

    /// Moves its queues to another manager, where everybody can see them. Until it is ready a
    /// core that is being rebuilt keeps them to itself.
    pub(crate) fn move_to(&mut self, queues: &ExecutionQueueManager) {
        for action_id in self.actions.keys() {
            self.queues.move_to(queues, *action_id);
        }
        self.queues = queues.clone();
    }

    /// Forgets every queue: another executor owns the partition from now on.
    pub fn step_down(self) {
        for action_id in self.actions.keys() {
            self.queues.forget(*action_id);
        }
    }

    /// Decides what follows from an event.
    pub fn step(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let out = &mut effects;
        match event {
            Event::Recover { actions, totals } => self.recover(actions, totals),
            Event::RecoverRows(rows) => self.recover_rows(now, rows, out),
            Event::Known(known) => {
                self.known = known
                    .into_iter()
                    .map(|known| (known.request_id, known))
                    .collect();
            }
            Event::ActionKnown(action) => self.learn(now, action, out),
            Event::Submit {
                request_id,
                submission,
                on_reject,
                reply_to,
            } => {
                self.submit(now, request_id, submission, on_reject, reply_to, out);
            }
            Event::Cancel {
                request_id,
                execution_id,
                reply_to,
            } => {
                let outcome = self.cancel(now, execution_id, out);
                answer(reply_to, request_id, outcome, out);
            }
            Event::ForceRelease { command, reply_to } => {
                self.force_release(now, command, reply_to, out);
            }
            Event::Completed(completion) => self.complete(now, *completion, out),
            Event::ReconcileWaiting { actions, rows } => {
                self.reconcile_waiting(now, &actions, &rows, out);
            }
            Event::Reconcile { slots, bounds } => self.reconcile(now, &slots, bounds, out),
            Event::Tick => self.tick(now, out),
        }
        effects
    }

    fn recover(&mut self, actions: Vec<Action>, totals: Vec<(ActionId, QueueTotals)>) {
        self.log_acquired();
        let totals: HashMap<ActionId, QueueTotals> = totals.into_iter().collect();
        for action in actions {
            let limits = limits_of(&action.spec, self.queues.config());
            let past = totals.get(&action.id).copied().unwrap_or_default();
            self.queues
                .put(action.id, ActionQueue::new(action.id, limits, past));
            self.remember(action);
        }
    }

    fn remember(&mut self, action: Action) -> Arc<Action> {
        let action = Arc::new(action);
        self.refs
            .insert(action.spec.action_ref.as_str().to_owned(), action.id);
        self.actions.insert(action.id, Arc::clone(&action));
        action
    }

    fn recover_rows(&mut self, now: Millis, rows: Vec<ActiveRow>, out: &mut Vec<Effect>) {
        for row in rows {
            let Some(action) = self.actions.get(&row.action_id).cloned() else {
                continue;
            };
            if row.status.holds_slot() {
                self.log_held(action.id, row.id, row.attempt);
            }
            self.queues
                .with_existing(row.action_id, |queue| queue.restore(now, &row));
            if row.status == Status::Requested {
                // The dispatch may have been lost between the commit and the message.
                let attempt = row.attempt;
                out.push(Effect::Redispatch(Dispatch {
                    execution_id: row.id,
                    attempt,
                    action,
                }));
            }
            self.hungry.insert(row.action_id);
        }
    }

    fn learn(&mut self, now: Millis, action: Action, out: &mut Vec<Effect>) {
        let limits = limits_of(&action.spec, self.queues.config());
        self.log_limit(action.id, limits.max_concurrent);
        let action = self.remember(action);
        self.detector.changed(action.id);
        self.queues
            .with_queue(action.id, || limits, |queue| queue.set_limits(limits));
        // A raised limit wakes waiters now, not when the next slot comes free.
        self.serve(now, action.id, out);
    }

    fn complete(&mut self, now: Millis, completion: Completion, out: &mut Vec<Effect>) {
        let Completion {
            execution_id,
            attempt,
            status,
            ..
        } = completion;
        let cancelled = status == Status::Cancelled;
        // The execution and its attempt say which slot it is; the action is only where to look
        // first, so that a worker that reports a wrong one does not keep a slot for ever.
        let finish = |action_id: &ActionId| {
            self.queues.with_existing(*action_id, |queue| {
                queue.finish(execution_id, attempt, cancelled)
            }) == Some(true)
        };
        let released = Some(completion.action_id)
            .filter(|_| status.is_reportable())
            .filter(&finish)
            .or_else(|| {
                let reportable = status.is_reportable();
                self.actions
                    .keys()
                    .copied()
                    .filter(|_| reportable)
                    .find(&finish)
            });
        let Some(action_id) = released else {
            // Unknown, finished or another attempt: it changes nothing, however often it comes.
            self.log_stale(execution_id, attempt);
            out.push(Effect::Count(Counter::StaleCompletion));
            return;
        };
        self.log_ended(action_id, execution_id, attempt, status);
        let outcome = Outcome {
            status,
            result: completion.result,
            error: completion.error,
            exit_code: completion.exit_code,
            stdout: completion.stdout,
            stderr: completion.stderr,
        };
        out.push(Effect::End(Box::new(End {
            id: execution_id,
            outcome,
        })));
        out.push(Effect::Count(if cancelled {
            Counter::Cancelled
        } else {
            Counter::Completed
        }));
        self.serve(now, action_id, out);
    }

    /// Ends an execution that holds a slot, by the owner's own decision.
    pub(crate) fn end_holder(
        &mut self,
        action_id: ActionId,
        execution_id: ExecutionId,
        attempt: Attempt,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let cancelled = outcome.status == Status::Cancelled;
        let ended = self.queues.with_existing(action_id, |queue| {
            queue.finish(execution_id, attempt, cancelled)
        });
        if ended == Some(true) {
            self.log_ended(action_id, execution_id, attempt, outcome.status);
            out.push(Effect::End(Box::new(End {
                id: execution_id,
                outcome,
            })));
            out.push(Effect::Count(if cancelled {
                Counter::Cancelled
            } else {
                Counter::Abandoned
            }));
        }
    }

    /// Takes the slot back from an attempt that will not give it back by itself, as the action's
    /// policy says, and tells where the execution stands then. `why` is for people.
    pub(crate) fn take_back(
        &mut self,
        action: &Action,
        execution_id: ExecutionId,
        holder: Holder,
        why: &str,
        out: &mut Vec<Effect>,
    ) -> Status {
        let attempt = holder.attempt;
        let used_up = u32::try_from(attempt.0).unwrap_or(u32::MAX) >= action.spec.max_attempts;
        let (status, words) = if holder.cancel_requested {
            (Status::Cancelled, format!("cancelled; {why}"))
        } else if used_up || action.spec.on_worker_lost == OnWorkerLost::Fail {
            (Status::Abandoned, format!("{why} in attempt {attempt}"))
        } else {
            let revoke = |queue: &mut ActionQueue| queue.revoke(execution_id, attempt);
            if self.queues.with_existing(action.id, revoke) == Some(true) {
                self.log_revoked(action.id, execution_id, attempt);
                out.push(Effect::Update(Update {
                    id: execution_id,
                    status: Some(Status::Queued),
                    attempt,
                    grant_no: None,
                    cancel_requested: false,
                }));
                out.push(Effect::Count(Counter::Revoked));
            }
            return Status::Queued;
        };
        let outcome = Outcome::of(status, Some(words));
        self.end_holder(action.id, execution_id, attempt, outcome, out);
        status
    }

    fn tick(&mut self, now: Millis, out: &mut Vec<Effect>) {
        let mut due = std::mem::take(&mut self.hungry);
        while let Some(Reverse((time, action_id))) = self.deadlines.peek().copied() {
            if time > now {
                break;
            }
            self.deadlines.pop();
            if self.scheduled.get(&action_id) == Some(&time) {
                self.scheduled.remove(&action_id);
            }
            due.insert(action_id);
        }
        for action_id in due {
            self.serve(now, action_id, out);
        }
    }

    /// Does for a queue what can be done now: wakes delayed executions, ends those that waited
    /// too long, grants free slots.
    pub(crate) fn serve(&mut self, now: Millis, action_id: ActionId, out: &mut Vec<Effect>) {
        let Some(action) = self.actions.get(&action_id).cloned() else {
            return;
        };
        let queues = self.queues.clone();
        let grants = queues.with_existing(action_id, |queue| {
            queue.wake_delayed(now);
            let timeout = queue.limits().timeout_seconds;
            let next = || {
                // Before every grant and after the last: who was granted may have stood before
                // others whose time was over already.
                for expired in queue.expire(now, MAX_PER_STEP) {
                    let id = expired.execution_id;
                    self.log_ended(action_id, id, expired.attempt, Status::Expired);
                    let words = format!("waited longer than {timeout} s for a slot");
                    let outcome = Outcome::of(Status::Expired, Some(words));
                    out.push(Effect::End(Box::new(End { id, outcome })));
                    out.push(Effect::Count(Counter::Expired));
                }
                let granted = queue.grant_next()?;
                self.detector.granted(now, &action, queue, granted, out);
                Some(granted)
            };
            std::iter::from_fn(next)
                .take(MAX_PER_STEP)
                .collect::<Vec<_>>()
        });
        let grants = grants.unwrap_or_default();
        if grants.len() == MAX_PER_STEP {
            self.hungry.insert(action_id);
        }
        for granted in grants {
            let grant_no = self.number_grant();
            let dispatch = Dispatch {
                execution_id: granted.execution_id,
                attempt: granted.attempt,
                action: Arc::clone(&action),
            };
            self.log_granted(&dispatch, grant_no);
            out.push(Effect::Update(Update {
                id: dispatch.execution_id,
                status: Some(Status::Requested),
                attempt: dispatch.attempt,
                grant_no: Some(grant_no),
                cancel_requested: false,
            }));
            out.push(Effect::Count(Counter::Granted));
            out.push(Effect::Dispatch(dispatch));
        }
        out.push(Effect::Touched(action_id));
        self.schedule(action_id);
    }

    pub(crate) fn number_grant(&mut self) -> i64 {
        let number = Seq::new(self.epoch, self.next_grant).0;
        self.next_grant += 1;
        number
    }

    /// Sees to it that a tick comes no later than the queue's next deadline.
    pub(crate) fn schedule(&mut self, action_id: ActionId) {
        let Some(time) = self
            .queues
            .with_existing(action_id, |queue| queue.next_deadline())
            .flatten()
        else {
            return;
        };
        if self
            .scheduled
            .get(&action_id)
            .is_none_or(|scheduled| *scheduled > time)
        {
            self.scheduled.insert(action_id, time);
            self.deadlines.push(Reverse((time, action_id)));
        }
    }
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod operator_tests;
#[cfg(test)]
#[path = "partition_core_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "partition_core_world.rs"]
mod world;
