//! Tests of the decisions, against a plain model of the store: effects are folded into batches
//! as in production, and the model checks what every batch may and may not do.

use std::collections::BTreeMap;

use attune_core::{ActionSpec, OwnerId, Priority, RejectCode, Submission};
use attune_messages::v1::{AnswerOutcome, OnReject};
use attune_store::SlotRow;
use std::time::Duration;

use super::*;
use crate::draft::Draft;
use crate::event::ReconcileBounds;
use crate::queue_manager::QueueConfig;

const PARTITION: PartitionId = PartitionId(3);
const ACTION: ActionId = ActionId(7);

/// What the store would hold.
#[derive(Debug, Clone, Default)]
struct Stored {
    active: BTreeMap<ExecutionId, (Status, Attempt, Option<i64>)>,
    history: BTreeMap<ExecutionId, Status>,
    requests: Vec<KnownRequest>,
    totals: QueueTotals,
    dispatched: Vec<(ExecutionId, Attempt)>,
    answers: Vec<AnswerOutcome>,
    counts: Vec<Counter>,
}

struct World {
    core: PartitionCore,
    now: Millis,
    stored: Stored,
}

fn action(limit: Option<u32>) -> Action {
    let mut spec = ActionSpec::core_pack().remove(0);
    spec.policy.concurrency.limit = limit;
    spec.max_attempts = 2;
    Action {
        id: ACTION,
        partition: PARTITION,
        version: 1,
        spec,
    }
}

impl World {
    fn new(limit: Option<u32>, max_queue_length: u32) -> Self {
        let config = QueueConfig {
            max_queue_length,
            queue_timeout_seconds: 60,
        };
        let queues = ExecutionQueueManager::new(config);
        let mut core = PartitionCore::new(PARTITION, Epoch(1), queues);
        core.step(
            0,
            Event::Recover {
                actions: vec![action(limit)],
                totals: vec![],
            },
        );
        Self {
            core,
            now: 0,
            stored: Stored::default(),
        }
    }

    /// One round with these events, committed.
    fn round(&mut self, events: Vec<Event>) {
        let mut draft = Draft::default();
        let known = Event::Known(self.stored.requests.clone());
        for event in [known, Event::Tick].into_iter().chain(events) {
            draft.add(PARTITION, self.core.step(self.now, event));
        }
        self.commit(draft);
    }

    fn commit(&mut self, draft: Draft) {
        let round = draft.into_round(OwnerId::fresh());
        let batch = &round.batch;
        let stored = &mut self.stored;
        for new in &batch.inserts {
            let earlier = stored
                .active
                .insert(new.id, (new.status, new.attempt, new.grant_no));
            assert_eq!(earlier, None, "{} was stored before", new.id);
        }
        for new in batch
            .inserts
            .iter()
            .chain(batch.instant.iter().map(|(new, _)| new))
        {
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
        for update in &batch.updates {
            let row = stored
                .active
                .get_mut(&update.id)
                .expect("only stored rows are updated");
            assert!(update.attempt >= row.1);
            if let Some(status) = update.status {
                *row = (status, update.attempt, update.grant_no.or(row.2));
            }
        }
        for end in &batch.ends {
            let (status, ..) = stored.active.remove(&end.id).expect("only stored rows end");
            status.after(attune_move(end.outcome.status)).unwrap();
            assert_eq!(stored.history.insert(end.id, end.outcome.status), None);
        }
        let (tell, _) = round.into_tell();
        for dispatch in tell.dispatches.iter().chain(&tell.redispatches) {
            let (status, attempt, _) = stored.active[&dispatch.execution_id];
            assert!(
                status.holds_slot(),
                "only what is stored as granted is told"
            );
            assert_eq!(attempt, dispatch.attempt);
            stored.dispatched.push((dispatch.execution_id, attempt));
        }
        stored
            .answers
            .extend(tell.answers.into_iter().map(|(_, answer)| answer.outcome));
        stored.counts.extend(tell.counts);
        if tell.touched.contains(&ACTION) {
            stored.totals = self.core.totals(ACTION);
        }
        self.check_balance();
    }

    /// I7, on what is stored.
    fn check_balance(&self) {
        let totals = self.stored.totals;
        assert_eq!(
            totals.enqueued,
            totals.completed + totals.cancelled + totals.expired + self.stored.active.len() as u64,
            "{:?}",
            self.stored
        );
    }

    fn submit(&mut self, count: usize) -> Vec<ExecutionId> {
        self.submit_with(count, Priority::Normal)
    }

    fn submit_with(&mut self, count: usize, priority: Priority) -> Vec<ExecutionId> {
        let answered = self.stored.answers.len();
        let events = (0..count)
            .map(|_| submit_event(RequestId::fresh(), priority))
            .collect();
        self.round(events);
        self.accepted(answered)
    }

    fn accepted(&self, from: usize) -> Vec<ExecutionId> {
        self.stored.answers[from..]
            .iter()
            .filter_map(|answer| match answer {
                AnswerOutcome::Accepted(accepted) => accepted.execution_id,
                AnswerOutcome::Rejected(_) => None,
            })
            .collect()
    }

    fn complete(&mut self, id: ExecutionId, attempt: i32) {
        self.round(vec![completed(id, attempt)]);
    }

    fn last_answer(&self) -> &AnswerOutcome {
        self.stored.answers.last().unwrap()
    }

    fn count(&self, counter: Counter) -> usize {
        self.stored
            .counts
            .iter()
            .filter(|counted| **counted == counter)
            .count()
    }

    fn holders(&self) -> Vec<ExecutionId> {
        let active = self.stored.active.iter();
        active
            .filter(|(_, row)| row.0.holds_slot())
            .map(|(id, _)| *id)
            .collect()
    }

    /// A new owner in the next epoch, loaded from what is stored.
    fn take_over(self, limit: Option<u32>) -> Self {
        let epoch = Epoch(self.core.epoch().0 + 1);
        let queues = ExecutionQueueManager::new(self.core.queues.config());
        let mut core = PartitionCore::new(PARTITION, epoch, queues);
        let totals = vec![(ACTION, self.stored.totals)];
        core.step(
            self.now,
            Event::Recover {
                actions: vec![action(limit)],
                totals,
            },
        );
        let rows = self
            .stored
            .active
            .iter()
            .map(|(id, (status, attempt, _))| ActiveRow {
                id: *id,
                action_id: ACTION,
                priority: Priority::Normal,
                status: *status,
                attempt: *attempt,
                age: Duration::from_secs(1),
                not_before: None,
                cancel_requested: false,
            })
            .collect();
        let mut world = Self {
            core,
            now: self.now,
            stored: self.stored,
        };
        world.round(vec![Event::RecoverRows(rows), Event::Tick]);
        world
    }

    fn slot(&self, id: ExecutionId, lost_for: Duration) -> SlotRow {
        let (status, attempt, _) = self.stored.active[&id];
        SlotRow {
            id,
            action_id: ACTION,
            attempt,
            status,
            worker: None,
            worker_lost_for: lost_for,
            held_for: Duration::ZERO,
            cancel_requested: false,
        }
    }

    fn claim(&mut self, id: ExecutionId) {
        let row = self.stored.active.get_mut(&id).unwrap();
        row.0 = row.0.after(attune_core::Move::Claim).unwrap();
    }

    fn reconcile(&mut self, slots: Vec<SlotRow>) {
        let bounds = ReconcileBounds {
            worker_grace: 5000,
            republish_after: 30_000,
        };
        self.round(vec![Event::Reconcile { slots, bounds }]);
    }
}

fn attune_move(end: Status) -> attune_core::Move {
    attune_core::Move::End(end)
}

fn submit_event(request_id: RequestId, priority: Priority) -> Event {
    let submission = Submission {
        priority,
        ..Submission::new("core.noop")
    };
    let reply_to = Some(Arc::from("asker"));
    Event::Submit {
        request_id,
        submission,
        on_reject: OnReject::Answer,
        reply_to,
    }
}

fn completed(id: ExecutionId, attempt: i32) -> Event {
    Event::Completed(Box::new(completion(id, attempt)))
}

fn completion(id: ExecutionId, attempt: i32) -> Completion {
    let text = format!(
        r#"{{"execution_id":{id},"attempt":{attempt},"action_id":{ACTION},"status":"succeeded"}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Limit 2; A, B start; C, D, E wait at 0, 1, 2; each completion starts the next.
#[test]
fn five_executions_at_limit_two() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(5);
    let positions: Vec<Option<u64>> = world
        .stored
        .answers
        .iter()
        .map(|answer| match answer {
            AnswerOutcome::Accepted(accepted) => accepted.position,
            AnswerOutcome::Rejected(reject) => panic!("{reject}"),
        })
        .collect();
    assert_eq!(positions, [None, None, Some(0), Some(1), Some(2)]);
    for id in &ids {
        world.complete(*id, 1);
        assert!(world.holders().len() <= 2);
    }
    let started: Vec<ExecutionId> = world.stored.dispatched.iter().map(|(id, _)| *id).collect();
    assert_eq!(started, ids);
    assert_eq!(world.stored.history.len(), 5);
    assert_eq!(world.stored.totals.completed, 5);
}

#[test]
fn completions_and_submissions_of_one_round_keep_order_and_limit() {
    let mut world = World::new(Some(1), 100);
    let first = world.submit(1)[0];
    // The completion frees the slot in the round in which two more come: the first of them gets it.
    let answered = world.stored.answers.len();
    world.round(vec![
        submit_event(RequestId::fresh(), Priority::Normal),
        completed(first, 1),
        submit_event(RequestId::fresh(), Priority::Normal),
    ]);
    let ids = world.accepted(answered);
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.stored.active[&ids[1]].0, Status::Queued);
}

#[test]
fn duplicate_foreign_and_late_completions_change_nothing() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.complete(ids[1], 1);
    world.complete(ids[0], 2);
    world.complete(ExecutionId(1), 1);
    assert_eq!(world.count(Counter::StaleCompletion), 3);
    world.complete(ids[0], 1);
    world.complete(ids[0], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 4);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn a_repeated_request_gives_the_same_execution_and_a_different_body_a_conflict() {
    let mut world = World::new(Some(1), 100);
    let request = RequestId::fresh();
    let event = || submit_event(request, Priority::Normal);
    // Twice in one round, and again in a later one.
    world.round(vec![event(), event()]);
    world.round(vec![event()]);
    let ids = world.accepted(0);
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(world.stored.totals.enqueued, 1);
    world.round(vec![submit_event(request, Priority::High)]);
    let AnswerOutcome::Rejected(reject) = world.last_answer() else {
        panic!()
    };
    assert_eq!(reject.code, RejectCode::Conflict);
}

#[test]
fn what_is_refused_is_answered_or_recorded_but_never_lost() {
    let mut world = World::new(Some(1), 1);
    world.submit(2);
    let event = |on_reject, action_ref: &str| Event::Submit {
        request_id: RequestId::fresh(),
        submission: Submission::new(action_ref),
        on_reject,
        reply_to: Some(Arc::from("asker")),
    };
    world.round(vec![event(OnReject::Answer, "core.noop")]);
    let AnswerOutcome::Rejected(reject) = world.last_answer() else {
        panic!()
    };
    assert_eq!(reject.message, "Queue full (max length: 1)");
    assert_eq!(reject.retry_after_seconds, Some(1));
    assert!(world.stored.history.is_empty());

    world.round(vec![event(OnReject::Record, "core.noop")]);
    assert_eq!(
        world.stored.history.values().collect::<Vec<_>>(),
        [&Status::Rejected]
    );

    let effects = world.core.step(0, event(OnReject::Record, "no.such"));
    assert!(
        effects.iter().any(|effect| matches!(
            effect,
            Effect::DeadLetter { reject, .. } if reject.message.contains("no.such")
        )),
        "{effects:?}"
    );
    assert_eq!(world.stored.totals.enqueued, 2);
}

#[test]
fn cancelling_at_positions_2_5_and_8_leaves_the_order_of_the_others() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(11);
    let reply_to: Option<Arc<str>> = Some(Arc::from("asker"));
    for position in [2, 5, 8] {
        let execution_id = ids[position + 1];
        let (request_id, reply_to) = (RequestId::fresh(), reply_to.clone());
        world.round(vec![Event::Cancel {
            request_id,
            execution_id,
            reply_to,
        }]);
        assert_eq!(world.stored.history[&execution_id], Status::Cancelled);
    }
    let left: Vec<ExecutionId> = ids
        .iter()
        .copied()
        .filter(|id| !world.stored.history.contains_key(id))
        .collect();
    for id in &left {
        world.complete(*id, 1);
    }
    let started: Vec<ExecutionId> = world.stored.dispatched.iter().map(|(id, _)| *id).collect();
    assert_eq!(started, left);
    assert_eq!(world.stored.totals.cancelled, 3);
}

#[test]
fn cancelling_a_run_keeps_its_slot_until_the_worker_says_so() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let cancel = |execution_id| Event::Cancel {
        request_id: RequestId::fresh(),
        execution_id,
        reply_to: Some(Arc::from("asker")),
    };
    world.round(vec![cancel(ids[0])]);
    assert_eq!(world.holders(), [ids[0]]);
    let mut done = completion(ids[0], 1);
    done.status = Status::Cancelled;
    world.round(vec![Event::Completed(Box::new(done))]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    assert_eq!(world.holders(), [ids[1]]);
    world.round(vec![cancel(ids[0])]);
    let AnswerOutcome::Rejected(reject) = world.last_answer() else {
        panic!()
    };
    assert_eq!(reject.code, RejectCode::AlreadyEnded);
}

#[test]
fn waiting_too_long_expires_at_the_deadline_that_was_announced() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let deadline = world.core.next_deadline().unwrap();
    assert_eq!(deadline, 60_000);
    world.now = deadline - 1;
    world.round(vec![]);
    assert!(world.stored.history.is_empty());
    world.now = deadline;
    world.round(vec![]);
    assert_eq!(world.stored.history[&ids[1]], Status::Expired);
}

#[test]
fn a_raised_limit_grants_at_once_and_a_lowered_one_drains() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(5);
    world.round(vec![Event::ActionKnown(action(Some(3)))]);
    assert_eq!(world.holders(), ids[..3]);
    world.round(vec![Event::ActionKnown(action(Some(1)))]);
    world.complete(ids[0], 1);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[2]]);
    world.complete(ids[2], 1);
    assert_eq!(world.holders(), [ids[3]]);
}

#[test]
fn a_higher_priority_is_granted_first() {
    let mut world = World::new(Some(1), 100);
    let first = world.submit(1)[0];
    let low = world.submit_with(2, Priority::Low);
    let high = world.submit_with(2, Priority::High);
    let mut running = first;
    for expected in high.iter().chain(&low) {
        world.complete(running, 1);
        assert_eq!(world.holders(), [*expected]);
        running = *expected;
    }
}

#[test]
fn a_new_owner_continues_where_the_old_one_stopped() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(5);
    world.claim(ids[0]);
    let told = world.stored.dispatched.len();
    let mut world = world.take_over(Some(2));
    // What nobody had claimed is told again, in the same attempt; what runs is left alone.
    assert_eq!(world.stored.dispatched[told..], [(ids[1], Attempt(1))]);
    assert_eq!(world.holders(), ids[..2]);
    let later = world.submit(1)[0];
    assert!(later.seq() > ids[4].seq());
    for id in ids.iter().chain([&later]) {
        world.complete(*id, 1);
        assert!(world.holders().len() <= 2);
    }
    assert_eq!(world.stored.totals.enqueued, 6);
    assert_eq!(world.stored.totals.completed, 6);
    assert!(world.stored.active.is_empty());
}

#[test]
fn a_dead_workers_slot_comes_back_and_the_execution_keeps_its_place() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.claim(ids[0]);
    world.reconcile(vec![world.slot(ids[0], Duration::from_secs(5))]);
    assert_eq!(world.holders(), [ids[0]], "the grace is not over");
    world.reconcile(vec![world.slot(ids[0], Duration::from_millis(5001))]);
    assert_eq!(
        world.stored.active[&ids[0]],
        (Status::Requested, Attempt(2), Some(1 << 32 | 1))
    );
    world.complete(ids[0], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 1);
    // The attempts are used up with the second.
    world.claim(ids[0]);
    world.reconcile(vec![world.slot(ids[0], Duration::from_secs(60))]);
    assert_eq!(world.stored.history[&ids[0]], Status::Abandoned);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn the_reconciler_mends_both_directions() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    // The store knows no holder: memory lets go, and the next is granted.
    world.stored.active.remove(&ids[0]);
    world.stored.totals.enqueued -= 1;
    let queues = world.core.queues.clone();
    world.core.reconcile(
        0,
        &[],
        ReconcileBounds {
            worker_grace: 1,
            republish_after: 1,
        },
        &mut Vec::new(),
    );
    assert_eq!(queues.get_queue_stats(ACTION).unwrap().active_count, 1);
    assert!(
        queues
            .with_existing(ACTION, |queue| queue.holder(ids[1]).is_some())
            .unwrap()
    );

    // Memory knows no holder: it counts from now on.
    let mut world = World::new(Some(1), 100);
    let id = ExecutionId::new(PARTITION, Seq::new(Epoch(1), 9));
    world
        .stored
        .active
        .insert(id, (Status::Requested, Attempt(1), None));
    world.stored.totals.enqueued = 1;
    let row = world.slot(id, Duration::ZERO);
    let effects = world.core.step(
        0,
        Event::Reconcile {
            slots: vec![row],
            bounds: ReconcileBounds {
                worker_grace: 1,
                republish_after: 1,
            },
        },
    );
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Count(Counter::SlotMissingMended)))
    );
    assert_eq!(
        world
            .core
            .queues
            .get_queue_stats(ACTION)
            .unwrap()
            .active_count,
        1
    );
}
