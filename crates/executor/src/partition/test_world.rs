//! A plain model of the store for tests of the decisions: effects are folded into rounds as in
//! production, and the model checks what every round may and may not do.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use attune_core::{ActionSpec, Move, Outcome, OwnerId, Priority, Reject, Submission};

use super::*;
use crate::counters::Counter;
use crate::queue::QueueConfig;
use crate::round::{Draft, Tell};
use crate::stored::{PutBack, StoredSlot};
use attune_core::Seq;

pub(super) const CLUSTER: ClusterBounds = ClusterBounds {
    partitions: 1,
    max_message_bytes: 1 << 20,
};
pub(super) const PARTITION: PartitionId = PartitionId(0);
pub(super) const ACTION: ActionId = ActionId(7);
const BOUNDS: ReconcileBounds = ReconcileBounds {
    worker_grace: 5_000,
    republish_after: 30_000,
    interval: 10_000,
};

/// What the store would hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) active: BTreeMap<ExecutionId, (Status, Attempt, Option<i64>)>,
    /// What was written last of those that were put back.
    pub(super) put_back: BTreeMap<ExecutionId, PutBack>,
    pub(super) history: BTreeMap<ExecutionId, Status>,
    pub(super) requests: Vec<KnownRequest>,
    pub(super) totals: QueueTotals,
    pub(super) dispatched: Vec<(ExecutionId, Attempt)>,
    pub(super) answers: Vec<Result<Accepted, Reject>>,
    pub(super) counts: BTreeMap<Counter, u64>,
    /// What was decided, in order.
    pub(super) facts: Vec<Fact>,
}

pub(super) struct World {
    pub(super) partition: Partition,
    pub(super) now: Millis,
    pub(super) stored: Stored,
    /// A promise is broken on purpose, so what is decided must not be judged.
    pub(super) tampered: bool,
}

pub(super) fn action(limit: Option<u32>) -> Action {
    let mut spec = ActionSpec::core_pack().remove(0);
    spec.policy.concurrency.limit = limit;
    spec.max_attempts = Some(2);
    Action {
        id: ACTION,
        partition: PARTITION,
        version: 1,
        spec,
    }
}

fn recovered(
    epoch: Epoch,
    config: QueueConfig,
    limit: Option<u32>,
    totals: Vec<(ActionId, QueueTotals)>,
    sets: Sets,
) -> Partition {
    let queues = ExecutionQueueManager::new(config);
    let mut partition = Partition::new(PARTITION, epoch, CLUSTER, queues);
    partition.keep_log();
    let actions = vec![action(limit)];
    partition.step(
        0,
        Event::Recover {
            actions,
            totals,
            sets,
        },
    );
    partition
}

impl World {
    pub(super) fn new(limit: Option<u32>, max_queue_length: u32) -> Self {
        let config = QueueConfig {
            max_queue_length,
            queue_timeout_seconds: 60,
        };
        Self {
            partition: recovered(Epoch(1), config, limit, vec![], Sets::default()),
            now: 0,
            stored: Stored::default(),
            tampered: false,
        }
    }

    /// One round with these events, committed.
    pub(super) fn round(&mut self, events: Vec<Event>) {
        let mut draft = Draft::default();
        for event in [Event::Tick].into_iter().chain(events) {
            let event = self.looked_up(event);
            draft.add(PARTITION, self.partition.step(self.now, event));
        }
        self.commit(draft);
    }

    /// One round with this event alone, committed; gives its effects.
    pub(super) fn step(&mut self, event: Event) -> Vec<Effect> {
        let event = self.looked_up(event);
        let effects = self.partition.step(self.now, event);
        let mut draft = Draft::default();
        draft.add(PARTITION, effects.clone());
        self.commit(draft);
        effects
    }

    /// The event with what the store knows of its request.
    fn looked_up(&self, mut event: Event) -> Event {
        if let Event::Submit { submit, known, .. } = &mut event {
            let mut requests = self.stored.requests.iter();
            *known = requests
                .find(|known| known.request_id == submit.request_id)
                .copied();
        }
        event
    }

    pub(super) fn commit(&mut self, draft: Draft) {
        let mut round = draft.into_round(OwnerId::fresh(), self.now);
        round.seal(&mut self.partition);
        let batch = &round.commit.batch;
        if !round.tells.is_empty() {
            assert_eq!(batch.fences, [(PARTITION, self.partition.epoch())]);
        }
        let stored = &mut self.stored;
        for new in &batch.inserts {
            let row = (new.status, new.attempt, new.grant_no);
            let earlier = stored.active.insert(new.id, row);
            assert_eq!(earlier, None, "{} was stored before", new.id);
        }
        let instant = batch.instant.iter().map(|(new, _)| new);
        for new in batch.inserts.iter().chain(instant) {
            stored.requests.push(KnownRequest {
                request_id: new.request_id,
                execution_id: new.id,
                digest: new.digest,
                status: new.status,
            });
        }
        for (new, outcome) in &batch.instant {
            assert_eq!(stored.history.insert(new.id, outcome.status), None);
        }
        for change in &batch.changes {
            let row = stored.active.get_mut(&change.id);
            let row = row.expect("only stored rows are changed");
            assert!(change.attempt >= row.1);
            if let Some(transition) = change.transition {
                *row = (transition.to(), change.attempt, change.grant_no.or(row.2));
            }
            if let Some(put_back) = &change.put_back {
                let earlier = stored.put_back.insert(change.id, (**put_back).clone());
                let now = stored.put_back.get_mut(&change.id).unwrap();
                let error = earlier.and_then(|earlier| earlier.last_error);
                now.last_error = now.last_error.take().or(error);
                if now.keeps_slot {
                    assert!(row.0.holds_slot() && change.transition.is_none());
                    row.0 = Status::Requested;
                }
            }
        }
        for end in &batch.ends {
            let (status, ..) = stored.active.remove(&end.id).expect("only stored rows end");
            status.after(Move::End(end.outcome.status)).unwrap();
            assert_eq!(stored.history.insert(end.id, end.outcome.status), None);
        }
        for (partition, action_id, totals) in &batch.totals {
            assert_eq!((*partition, *action_id), (PARTITION, ACTION));
            stored.totals = *totals;
        }
        for decided in &round.commit.decided {
            assert_eq!(decided.epoch, self.partition.epoch());
            stored.facts.extend(decided.facts.iter().cloned());
        }
        let tell = round.tells.remove(&PARTITION).unwrap_or_default();
        self.told(tell);
        self.check_balance();
        if !self.tampered {
            judge(&self.stored.facts);
        }
    }

    fn told(&mut self, tell: Tell) {
        let stored = &mut self.stored;
        for dispatch in tell.dispatches.iter().chain(&tell.redispatches) {
            let (status, attempt, _) = stored.active[&dispatch.execution_id];
            assert!(
                status.holds_slot(),
                "only what is stored as granted is told"
            );
            assert_eq!(attempt, dispatch.attempt);
            stored.dispatched.push((dispatch.execution_id, attempt));
        }
        let answers = tell.answers.into_iter();
        stored
            .answers
            .extend(answers.map(|(_, answer)| answer.outcome));
        for (counter, times) in tell.counts {
            *stored.counts.entry(counter).or_default() += times;
        }
    }

    /// I7, on what is stored.
    pub(super) fn check_balance(&self) {
        let totals = self.stored.totals;
        assert_eq!(
            totals.enqueued,
            totals.completed + totals.cancelled + totals.expired + self.stored.active.len() as u64,
            "{:?}",
            self.stored
        );
    }

    pub(super) fn submit(&mut self, count: usize) -> Vec<ExecutionId> {
        self.submit_with(count, Priority::Normal)
    }

    pub(super) fn submit_with(&mut self, count: usize, priority: Priority) -> Vec<ExecutionId> {
        let answered = self.stored.answers.len();
        let events = (0..count)
            .map(|_| submit_event(RequestId::fresh(), priority))
            .collect();
        self.round(events);
        self.accepted(answered)
    }

    pub(super) fn accepted(&self, from: usize) -> Vec<ExecutionId> {
        let answers = self.stored.answers[from..].iter();
        let accepted = answers.filter_map(|answer| answer.as_ref().ok());
        accepted
            .filter_map(|accepted| accepted.execution_id)
            .collect()
    }

    pub(super) fn complete(&mut self, id: ExecutionId, attempt: i32) {
        self.round(vec![completed(id, attempt)]);
    }

    pub(super) fn last_answer(&self) -> &Result<Accepted, Reject> {
        self.stored.answers.last().unwrap()
    }

    /// Why what was asked last was refused.
    pub(super) fn refused(&self) -> Option<&Reject> {
        self.last_answer().as_ref().err()
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.stored
            .counts
            .get(&counter)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn holders(&self) -> Vec<ExecutionId> {
        let active = self.stored.active.iter();
        active
            .filter(|(_, row)| row.0.holds_slot())
            .map(|(id, _)| *id)
            .collect()
    }

    /// Everything that is stored as waiting or holding a slot.
    pub(super) fn rows(&self) -> Vec<StoredExecution> {
        let active = self.stored.active.iter();
        active
            .map(|(id, (status, attempt, _))| {
                let put_back = self.stored.put_back.get(id);
                StoredExecution {
                    front: false,
                    id: *id,
                    action_id: ACTION,
                    priority: Priority::Normal,
                    status: *status,
                    attempt: *attempt,
                    unbegun: put_back.map_or(0, |it| it.unbegun),
                    retried: put_back.is_some_and(|it| it.last_error.is_some()),
                    created: self.now - 1_000,
                    not_before: put_back.and_then(|it| it.not_before),
                    cancel_requested: false,
                    demand: None,
                    kept_until: put_back
                        .filter(|it| it.keeps_slot)
                        .and_then(|it| it.not_before),
                }
            })
            .collect()
    }

    /// A new owner in the next epoch, loaded from what is stored.
    pub(super) fn take_over(self, limit: Option<u32>) -> Self {
        let mut world = self.load(limit);
        world.round(vec![]);
        world
    }

    /// The same, before it has served anybody.
    pub(super) fn load(self, limit: Option<u32>) -> Self {
        let rows = self.rows();
        self.load_rows(limit, rows)
    }

    pub(super) fn load_rows(self, limit: Option<u32>, rows: Vec<StoredExecution>) -> Self {
        let epoch = Epoch(self.partition.epoch().0 + 1);
        let totals = vec![(ACTION, self.stored.totals)];
        let config = self.partition.queues.config();
        let sets = Sets {
            pauses: Arc::clone(&self.partition.pauses),
            policies: Arc::clone(&self.partition.policies),
        };
        let mut world = Self {
            partition: recovered(epoch, config, limit, totals, sets),
            ..self
        };
        world.step(Event::RecoverRows(rows));
        world
    }

    pub(super) fn slot(&self, id: ExecutionId, worker_over: bool) -> StoredSlot {
        let (status, attempt, _) = self.stored.active[&id];
        StoredSlot {
            front: false,
            id,
            action_id: ACTION,
            priority: Priority::Normal,
            created: self.now - 1_000,
            attempt,
            unbegun: 0,
            status,
            worker: None,
            worker_over,
            requested_at: self.now,
            running_for: None,
            cancel_requested: false,
            demand: None,
            kept_until: None,
        }
    }

    pub(super) fn slots(&self) -> Vec<StoredSlot> {
        let holders = self.holders();
        holders.iter().map(|id| self.slot(*id, false)).collect()
    }

    pub(super) fn claim(&mut self, id: ExecutionId) {
        let row = self.stored.active.get_mut(&id).unwrap();
        row.0 = row.0.after(Move::Claim).unwrap();
    }

    pub(super) fn reconcile(&mut self, slots: Vec<StoredSlot>) {
        self.round(vec![reconcile(slots)]);
    }
}

/// What was decided breaks no promise: no grant beyond the limit or out of order, no attempt
/// twice, no end twice, and totals that are those of what was decided.
fn judge(facts: &[Fact]) {
    let mut priorities: BTreeMap<ExecutionId, Priority> = BTreeMap::new();
    let mut waiting: BTreeSet<(Priority, Seq, ExecutionId)> = BTreeSet::new();
    // Their turn comes with their time, which is not among the facts.
    let mut delayed: HashSet<ExecutionId> = HashSet::new();
    let mut holders: BTreeMap<ExecutionId, Attempt> = BTreeMap::new();
    let mut attempts: BTreeMap<ExecutionId, Attempt> = BTreeMap::new();
    let (mut requests, mut ended) = (HashSet::new(), HashSet::new());
    let (mut last_grant, mut paused, mut kept) = (None, false, BTreeSet::new());
    for fact in facts {
        match fact.clone() {
            Fact::Acquired { .. } => {
                holders.clear();
                kept.clear();
                paused = false;
            }
            Fact::Paused { hold, .. } => paused = hold.mode.is_some(),
            Fact::Held {
                execution_id,
                attempt,
                kept_until,
                ..
            } => {
                assert_eq!(holders.insert(execution_id, attempt), None);
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
                ..
            } => {
                assert!(!paused, "{id} is granted a slot of a paused queue");
                assert!(last_grant.replace(grant_no) < Some(grant_no));
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
                assert_eq!(holders.insert(id, attempt), None);
                assert!(limit.is_none_or(|limit| holders.len() <= limit as usize));
            }
            Fact::Revoked {
                execution_id: id,
                attempt,
                until,
                ..
            } => {
                assert_eq!(holders.remove(&id), Some(attempt));
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
                kept.remove(&id);
                delayed.remove(&id);
                waiting.retain(|(.., other)| *other != id);
            }
            Fact::Totals { stats, .. } => {
                let waits = waiting.len() + delayed.len();
                assert_eq!(stats.queue_length, waits as u64);
                assert_eq!(stats.active_count, holders.len() as u64);
            }
            _ => {}
        }
    }
}

/// What the comparison of the slots is told, when nothing changed meanwhile.
pub(super) fn reconcile(slots: Vec<StoredSlot>) -> Event {
    Event::Reconcile {
        stamp: slots
            .iter()
            .map(|slot| slot.requested_at)
            .max()
            .unwrap_or(0),
        slots,
        bounds: BOUNDS,
        changed: Arc::default(),
    }
}

pub(super) fn submit_event(request_id: RequestId, priority: Priority) -> Event {
    let submission = Submission {
        priority: Some(priority),
        ..Submission::new("core.noop")
    };
    submitted(request_id, submission, OnReject::Answer)
}

pub(super) fn submitted(
    request_id: RequestId,
    submission: Submission,
    on_reject: OnReject,
) -> Event {
    Event::Submit {
        submit: Submit::new(request_id, submission, on_reject),
        known: None,
        reply_to: Some(Arc::from("asker")),
    }
}

pub(super) fn cancel(execution_id: ExecutionId) -> Event {
    Event::Cancel {
        request_id: RequestId::fresh(),
        execution_id,
        reply_to: Some(Arc::from("asker")),
    }
}

pub(super) fn completed(id: ExecutionId, attempt: i32) -> Event {
    Event::Completed(completion(id, attempt))
}

pub(super) fn completion(id: ExecutionId, attempt: i32) -> Completion {
    Completion {
        execution_id: id,
        attempt: Attempt(attempt),
        action_id: ACTION,
        outcome: Arc::new(Outcome::succeeded(None)),
    }
}
