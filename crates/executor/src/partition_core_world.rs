//! A plain model of the store for tests of the decisions: effects are folded into batches as in
//! production, and the model checks what every batch may and may not do.

use std::collections::BTreeMap;

use attune_core::Promise;
use attune_core::{ActionSpec, OwnerId, Priority, Submission};
use attune_history::{FinalLine, check};
use attune_messages::v1::{AnswerOutcome, OnReject};
use attune_store::SlotRow;
use std::time::Duration;

use super::*;
use crate::draft::Draft;
use crate::event::ReconcileBounds;
use crate::queue_manager::QueueConfig;

pub(super) const COUNT: u16 = 1;
pub(super) const PARTITION: PartitionId = PartitionId(0);
pub(super) const ACTION: ActionId = ActionId(7);

/// What the store would hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) active: BTreeMap<ExecutionId, (Status, Attempt, Option<i64>)>,
    pub(super) history: BTreeMap<ExecutionId, Status>,
    pub(super) requests: Vec<KnownRequest>,
    pub(super) totals: QueueTotals,
    pub(super) dispatched: Vec<(ExecutionId, Attempt)>,
    pub(super) answers: Vec<AnswerOutcome>,
    pub(super) counts: Vec<Counter>,
    /// What an executor would have recorded.
    pub(super) records: Vec<Record>,
}

pub(super) struct World {
    pub(super) core: PartitionCore,
    pub(super) now: Millis,
    pub(super) stored: Stored,
    /// A promise is broken on purpose, so its records must not be judged.
    pub(super) tampered: bool,
}

pub(super) fn action(limit: Option<u32>) -> Action {
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
    pub(super) fn new(limit: Option<u32>, max_queue_length: u32) -> Self {
        let config = QueueConfig {
            max_queue_length,
            queue_timeout_seconds: 60,
        };
        let queues = ExecutionQueueManager::new(config);
        let mut core = PartitionCore::new(PARTITION, COUNT, Epoch(1), queues);
        core.keep_log();
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
            tampered: false,
        }
    }

    /// One round with these events, committed.
    pub(super) fn round(&mut self, events: Vec<Event>) {
        let mut draft = Draft::default();
        let known = Event::Known(self.stored.requests.clone());
        for event in [known, Event::Tick].into_iter().chain(events) {
            draft.add(PARTITION, self.core.step(self.now, event));
        }
        self.commit(draft);
    }

    pub(super) fn commit(&mut self, draft: Draft) {
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
            self.core.log_totals(ACTION);
        }
        let log = self.core.take_log().into_iter();
        stored
            .records
            .extend(log.map(|record| record.committed(0, 0)));
        self.check_balance();
        self.check_records();
    }

    /// What was recorded accuses nobody, except of what is not over yet.
    fn check_records(&self) {
        if self.tampered {
            return;
        }
        let mut findings = check(&self.stored.records, None::<Vec<FinalLine>>);
        let unfinished = [Promise::I1, Promise::I4];
        findings
            .violations
            .retain(|broken| !unfinished.contains(&broken.promise));
        assert_eq!(findings.violations, [], "{:#?}", self.stored.records);
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
        self.stored.answers[from..]
            .iter()
            .filter_map(|answer| match answer {
                AnswerOutcome::Accepted(accepted) => accepted.execution_id,
                AnswerOutcome::Rejected(_) => None,
            })
            .collect()
    }

    pub(super) fn complete(&mut self, id: ExecutionId, attempt: i32) {
        self.round(vec![completed(id, attempt)]);
    }

    pub(super) fn last_answer(&self) -> &AnswerOutcome {
        self.stored.answers.last().unwrap()
    }

    pub(super) fn count(&self, counter: Counter) -> usize {
        self.stored
            .counts
            .iter()
            .filter(|counted| **counted == counter)
            .count()
    }

    pub(super) fn holders(&self) -> Vec<ExecutionId> {
        let active = self.stored.active.iter();
        active
            .filter(|(_, row)| row.0.holds_slot())
            .map(|(id, _)| *id)
            .collect()
    }

    /// A new owner in the next epoch, loaded from what is stored.
    pub(super) fn take_over(self, limit: Option<u32>) -> Self {
        let epoch = Epoch(self.core.epoch().0 + 1);
        let queues = ExecutionQueueManager::new(self.core.queues.config());
        let mut core = PartitionCore::new(PARTITION, COUNT, epoch, queues);
        core.keep_log();
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
            tampered: self.tampered,
        };
        world.round(vec![Event::RecoverRows(rows), Event::Tick]);
        world
    }

    pub(super) fn slot(&self, id: ExecutionId, lost_for: Duration) -> SlotRow {
        let (status, attempt, _) = self.stored.active[&id];
        SlotRow {
            id,
            action_id: ACTION,
            priority: Priority::Normal,
            attempt,
            status,
            worker: None,
            worker_lost_for: lost_for,
            age: Duration::ZERO,
            held_for: Duration::ZERO,
            running_for: None,
            cancel_requested: false,
        }
    }

    pub(super) fn claim(&mut self, id: ExecutionId) {
        let row = self.stored.active.get_mut(&id).unwrap();
        row.0 = row.0.after(attune_core::Move::Claim).unwrap();
    }

    pub(super) fn reconcile(&mut self, slots: Vec<SlotRow>) {
        let bounds = ReconcileBounds {
            worker_grace: 5000,
            republish_after: 30_000,
            interval: 10_000,
        };
        self.round(vec![Event::Reconcile { slots, bounds }]);
    }
}

pub(super) fn attune_move(end: Status) -> attune_core::Move {
    attune_core::Move::End(end)
}

pub(super) fn submit_event(request_id: RequestId, priority: Priority) -> Event {
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

pub(super) fn completed(id: ExecutionId, attempt: i32) -> Event {
    Event::Completed(Box::new(completion(id, attempt)))
}

pub(super) fn completion(id: ExecutionId, attempt: i32) -> Completion {
    let text = format!(
        r#"{{"execution_id":{id},"attempt":{attempt},"action_id":{ACTION},"status":"succeeded"}}"#
    );
    serde_json::from_str(&text).unwrap()
}
