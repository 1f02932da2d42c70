//! A plain model of the store for tests of the decisions: effects are folded into rounds as in
//! production, and the model checks what every round may and may not do.

#[path = "test_judge.rs"]
mod test_judge;

use std::collections::BTreeMap;

use attune_core::{ActionSpec, Asker, Move, OwnerId, Priority, Reject, WorkerId};
use attune_dispatch::{Key, Life};
use test_judge::judge;

pub(super) use super::test_events::*;
use super::*;
use crate::counters::Counter;
use crate::queue::QueueConfig;
use crate::round::{Draft, Tell};
use crate::stored::{PutBack, StoredSlot};

pub(super) const CLUSTER: ClusterBounds = ClusterBounds {
    partitions: 1,
    max_message_bytes: 1 << 20,
    // Tests of what is granted ahead of its slot say so.
    lane_length: 0,
};
pub(super) const PARTITION: PartitionId = PartitionId(0);
pub(super) const ACTION: ActionId = ActionId(7);
/// The life of a worker that has room for everybody, as far as nothing else is said.
pub(super) const WORKER: WorkerId = WorkerId(uuid::Uuid::from_u128(9));

/// What the store would hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) active: BTreeMap<ExecutionId, (Status, Attempt, Option<i64>)>,
    /// What was written last of those that were put back.
    pub(super) put_back: BTreeMap<ExecutionId, PutBack>,
    pub(super) history: BTreeMap<ExecutionId, Status>,
    pub(super) requests: Vec<KnownRequest>,
    pub(super) totals: QueueTotals,
    /// Which life of a worker may run those that hold a slot.
    pub(super) workers: BTreeMap<ExecutionId, WorkerId>,
    /// Who has asked for them, where that is counted.
    pub(super) askers: BTreeMap<ExecutionId, Asker>,
    /// Since when they run, where that is known.
    pub(super) started: BTreeMap<ExecutionId, Millis>,
    pub(super) dispatched: Vec<(ExecutionId, Attempt)>,
    /// What workers were told that is written down.
    pub(super) settled: Vec<(WorkerId, Key)>,
    /// What workers were told to give back.
    pub(super) recalled: Vec<(WorkerId, ActionId)>,
    /// What workers were told to end.
    pub(super) cancelled: Vec<(WorkerId, Key)>,
    pub(super) answers: Vec<Result<Accepted, Reject>>,
    pub(super) counts: BTreeMap<Counter, u64>,
    /// What was decided, in order.
    pub(super) facts: Vec<Fact>,
}

pub(super) struct World {
    pub(super) partition: Partition,
    pub(super) roster: SharedRoster,
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

/// A life of a worker of the pool of these tests.
pub(super) fn life(worker: WorkerId, slots: u32) -> Life {
    Life {
        worker,
        pool: action(None).spec.pool,
        slots,
        draining: false,
    }
}

/// [`WORKER`] alone, which never is full.
pub(super) fn roster() -> SharedRoster {
    let roster = SharedRoster::default();
    roster.lock().set([life(WORKER, u32::MAX)]);
    roster
}

fn recovered(
    roster: SharedRoster,
    epoch: Epoch,
    config: QueueConfig,
    limit: Option<u32>,
    totals: Vec<(ActionId, QueueTotals)>,
    sets: Sets,
) -> Partition {
    let queues = ExecutionQueueManager::new(config);
    let mut partition = Partition::new(PARTITION, epoch, CLUSTER, queues, roster);
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

impl Stored {
    /// A grant names its worker.
    fn assign(&mut self, id: ExecutionId, status: Status, worker: Option<WorkerId>) {
        assert!(worker.is_some() || !status.holds_slot(), "{id} is {status}");
        self.started.remove(&id);
        match worker {
            Some(worker) => self.workers.insert(id, worker),
            None => self.workers.remove(&id),
        };
    }

    /// As the store writes it: only of the attempt that is granted, and once.
    fn starts(&mut self, id: ExecutionId, attempt: Attempt, since: Millis) {
        let row = self.active.get_mut(&id).expect("only stored rows start");
        assert_eq!((row.0, row.1), (Status::Requested, attempt));
        row.0 = Status::Running;
        assert_eq!(self.started.insert(id, since), None);
    }
}

impl World {
    pub(super) fn new(limit: Option<u32>, max_queue_length: u32) -> Self {
        let config = QueueConfig {
            max_queue_length,
            queue_timeout_seconds: 60,
        };
        let roster = roster();
        Self {
            partition: recovered(
                roster.clone(),
                Epoch(1),
                config,
                limit,
                vec![],
                Sets::default(),
            ),
            roster,
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
            stored.assign(new.id, new.status, new.worker);
            stored.askers.extend(new.asker.map(|asker| (new.id, asker)));
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
                let status = row.0;
                stored.assign(change.id, status, change.worker);
            } else if change.grants_ahead() {
                assert_eq!(row.0, Status::Queued);
                assert!(change.grant_no > row.2);
                (row.1, row.2) = (change.attempt, change.grant_no);
                stored.assign(change.id, Status::Queued, change.worker);
            }
            if let Some(since) = change.started {
                stored.starts(change.id, change.attempt, since);
            }
            if let Some(put_back) = &change.put_back {
                let earlier = stored.put_back.insert(change.id, (**put_back).clone());
                let now = stored.put_back.get_mut(&change.id).unwrap();
                let error = earlier.and_then(|earlier| earlier.last_error);
                now.last_error = now.last_error.take().or(error);
                if now.keeps_slot {
                    let row = stored.active.get_mut(&change.id).unwrap();
                    assert!(row.0.holds_slot() && change.transition.is_none());
                    row.0 = Status::Requested;
                    stored.workers.remove(&change.id);
                    stored.started.remove(&change.id);
                }
            }
        }
        for end in &batch.ends {
            let (status, ..) = stored.active.remove(&end.id).expect("only stored rows end");
            // Its worker may have handed a slot on to it that the store does not know of.
            let is_granted = stored.workers.remove(&end.id).is_some();
            let from = if is_granted {
                Status::Requested
            } else {
                status
            };
            from.after(Move::End(end.outcome.status)).unwrap();
            assert_eq!(stored.history.insert(end.id, end.outcome.status), None);
            stored.started.remove(&end.id);
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
        for dispatch in &tell.dispatches {
            let (status, attempt, _) = stored.active[&dispatch.execution_id];
            assert!(status.holds_slot() || dispatch.slots.is_some());
            assert_eq!(attempt, dispatch.attempt);
            let worker = stored.workers.get(&dispatch.execution_id);
            assert_eq!(worker, Some(&dispatch.worker), "whom its row names");
            stored.dispatched.push((dispatch.execution_id, attempt));
        }
        stored.settled.extend(tell.settled);
        stored.recalled.extend(tell.recalls);
        stored.cancelled.extend(tell.cancels);
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

    /// Who stands ahead of a slot.
    pub(super) fn ahead(&self) -> Vec<ExecutionId> {
        let active = self.stored.active.iter();
        let waits = active.filter(|(_, row)| !row.0.holds_slot());
        let granted = waits.filter(|(id, _)| self.stored.workers.contains_key(id));
        granted.map(|(id, _)| *id).collect()
    }

    pub(super) fn attempt(&self, id: ExecutionId) -> i32 {
        self.stored.active[&id].1.0
    }

    /// Everything that is stored as waiting or holding a slot.
    pub(super) fn rows(&self) -> Vec<StoredExecution> {
        let active = self.stored.active.iter();
        active
            .map(|(id, (status, attempt, grant_no))| {
                let put_back = self.stored.put_back.get(id);
                StoredExecution {
                    front: false,
                    id: *id,
                    action_id: ACTION,
                    priority: Priority::Normal,
                    status: *status,
                    attempt: *attempt,
                    grant_no: *grant_no,
                    unbegun: put_back.map_or(0, |it| it.unbegun),
                    retried: put_back.is_some_and(|it| it.last_error.is_some()),
                    created: self.now - 1_000,
                    not_before: put_back.and_then(|it| it.not_before),
                    cancel_requested: false,
                    demand: None,
                    asker: self.stored.askers.get(id).copied(),
                    worker: self.stored.workers.get(id).copied(),
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
        self.roster.lock().forget_partition(PARTITION);
        let mut world = Self {
            partition: recovered(self.roster.clone(), epoch, config, limit, totals, sets),
            ..self
        };
        world.step(Event::RecoverRows(rows));
        world
    }

    pub(super) fn slot(&self, id: ExecutionId, worker_over: bool) -> StoredSlot {
        let (status, attempt, grant_no) = self.stored.active[&id];
        StoredSlot {
            front: false,
            id,
            action_id: ACTION,
            priority: Priority::Normal,
            created: self.now - 1_000,
            attempt,
            grant_no,
            unbegun: 0,
            status,
            worker: self.stored.workers.get(&id).copied(),
            worker_over,
            never_begun: false,
            requested_at: self.now,
            running_for: None,
            cancel_requested: false,
            demand: None,
            asker: None,
            kept_until: None,
        }
    }

    pub(super) fn slots(&self) -> Vec<StoredSlot> {
        let active = self.stored.active.iter();
        let granted =
            active.filter(|(id, row)| row.0.holds_slot() || self.stored.workers.contains_key(id));
        granted.map(|(id, _)| self.slot(*id, false)).collect()
    }

    /// Its worker says that it runs, and is written down as running.
    pub(super) fn start(&mut self, id: ExecutionId) {
        let (_, attempt, _) = self.stored.active[&id];
        let worker = self.stored.workers[&id];
        let runs = vec![((id, attempt), self.now)];
        self.round(vec![Event::Started { worker, runs }]);
        assert_eq!(self.stored.active[&id].0, Status::Running);
    }

    /// What lives of the pool there are from now on; whoever stands in line is served, as an owner does it.
    pub(super) fn lives(&mut self, lives: impl IntoIterator<Item = Life>) {
        self.roster.lock().set(lives);
        self.serve_line();
    }

    /// Serves those who stand in line for workers that have room.
    pub(super) fn serve_line(&mut self) {
        let pool: Arc<str> = Arc::from(action(None).spec.pool);
        let mut draft = Draft::default();
        while self.partition.may_grant() && self.is_anybody_ready() {
            let event = Event::Room {
                pool: Arc::clone(&pool),
            };
            draft.add(PARTITION, self.partition.step(self.now, event));
        }
        self.commit(draft);
    }

    fn is_anybody_ready(&self) -> bool {
        let pool = action(None).spec.pool;
        let waits = self.partition.waited_for().any(|of| of == pool);
        waits && self.roster.lock().has_room(&pool)
    }

    pub(super) fn reconcile(&mut self, slots: Vec<StoredSlot>) {
        self.round(vec![reconcile(slots)]);
    }
}
