//! Bulk operations against a model that looks through everything: random histories in which executions
//! come, run, are tried again and cancelled while operations go through them, commits are lost and the
//! partition changes hands.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    Action, ActionId, ActionSpec, Attempt, Epoch, ExecutionId, Operation, OperationFilter,
    OperationId, OperationKind, OperationProgress, OwnerId, PartOfOperation, Priority, QueueTotals,
    RequestId, Status, Submission,
};
use chrono::DateTime;
use proptest::prelude::*;

use super::super::test_world::{CLUSTER, PARTITION, WORKER, cancel, completed, roster, submitted};
use super::super::{Event, OnReject, Partition};
use super::*;
use crate::queue::{ExecutionQueueManager, QueueConfig};
use crate::round::Draft;
use crate::stored::{Sets, StoredExecution};

const ACTIONS: [&str; 3] = ["a.one", "a.two", "b.one"];

/// An execution as it is stored.
#[derive(Debug, Clone)]
struct Row {
    action: ActionId,
    priority: Priority,
    front: bool,
    status: Status,
    attempt: Attempt,
    not_before: Option<Millis>,
    cancel_requested: bool,
    user: String,
    labels: BTreeMap<String, String>,
    /// Until which number of commits it has not waited without a break.
    broken_at: u64,
}

/// What an operation did, by the facts and by the model.
#[derive(Debug, Default, Clone)]
struct Seen {
    /// Who waited and was meant when it began, and how many commits there were then.
    meant: Option<(u64, BTreeSet<ExecutionId>)>,
    touched: BTreeSet<ExecutionId>,
    done: u64,
}

#[derive(Debug, Clone, Default)]
struct Store {
    rows: BTreeMap<ExecutionId, Row>,
    ended: BTreeSet<ExecutionId>,
    totals: BTreeMap<ActionId, QueueTotals>,
    operations: BTreeMap<OperationId, (Operation, OperationProgress)>,
    seen: BTreeMap<OperationId, Seen>,
    commits: u64,
}

struct World {
    partition: Partition,
    store: Store,
    now: Millis,
}

fn action(index: usize) -> Action {
    let mut spec = ActionSpec::core_pack().remove(0);
    spec.action_ref = ACTIONS[index].parse().unwrap();
    spec.policy.concurrency.limit = Some(2);
    spec.max_attempts = Some(3);
    Action {
        id: ActionId(index as i64 + 1),
        partition: PARTITION,
        version: 1,
        spec,
    }
}

fn is_meant(operation: &Operation, id: ExecutionId, row: &Row) -> bool {
    let filter = &operation.filter;
    let action_ref = ACTIONS[row.action.0 as usize - 1];
    let holds = row.status != Status::Queued;
    (!holds || operation.kind.includes_running())
        && filter
            .action
            .as_ref()
            .is_none_or(|it| it.as_str() == action_ref)
        && filter
            .pack
            .as_ref()
            .is_none_or(|it| action_ref.starts_with(&format!("{it}.")))
        && filter.user.as_ref().is_none_or(|it| *it == row.user)
        && filter
            .labels
            .iter()
            .all(|(name, value)| row.labels.get(name) == Some(value))
        && filter.priority.is_none_or(|it| it == row.priority)
        && (filter.ids.is_empty() || filter.ids.contains(&id))
}

impl World {
    fn new() -> Self {
        let store = Store::default();
        Self {
            partition: loaded(Epoch(1), 0, &store),
            store,
            now: 0,
        }
    }

    /// One round with these events; it is lost where the store does not take it.
    fn round(&mut self, events: Vec<Event>, is_lost: bool) {
        let mut draft = Draft::default();
        for event in [Event::Tick].into_iter().chain(events) {
            let effects = self.partition.step(self.now, event);
            draft.add(PARTITION, effects);
        }
        if is_lost {
            return self.take_over();
        }
        let mut round = draft.into_round(OwnerId::fresh(), self.now);
        round.seal(&mut self.partition);
        self.store.commit(self.now, &round.commit);
    }

    fn take_over(&mut self) {
        let epoch = Epoch(self.partition.epoch().0 + 1);
        self.partition = loaded(epoch, self.now, &self.store);
        self.round(vec![Event::Operations(self.store.open())], false);
    }

    /// The next page of the first operation that is open, as its owner has it decided.
    fn page(&mut self, max: usize, unread: usize, is_lost: bool) {
        let Some(operation) = self.partition.open_operations(|_| false).next() else {
            return;
        };
        let page = self.partition.page(operation, max, |_| false).unwrap();
        let read = page.ids.len().saturating_sub(unread);
        let rows = page.ids.iter().take(read.max(1));
        let rows = rows.filter_map(|id| Some((*id, self.store.rows.get(id)?)));
        let words = rows.map(|(id, row)| StoredWords {
            id,
            requested_by: Some(row.user.clone()),
            group: None,
            labels: row.labels.clone(),
            parameters: Default::default(),
        });
        let words = words.filter(|_| page.needs_words).collect();
        self.round(vec![Event::Page(page, words)], is_lost);
    }

    fn finish(&mut self) {
        for _ in 0..1_000 {
            if self.partition.open_operations(|_| false).next().is_none() {
                break;
            }
            self.page(7, 0, false);
        }
        assert!(
            self.store.open().is_empty(),
            "every operation comes to its end"
        );
    }
}

fn loaded(epoch: Epoch, now: Millis, store: &Store) -> Partition {
    let queues = ExecutionQueueManager::new(QueueConfig::default());
    let mut partition = Partition::new(PARTITION, epoch, CLUSTER, queues, roster());
    partition.keep_log();
    let recover = Event::Recover {
        actions: (0..ACTIONS.len()).map(action).collect(),
        totals: store
            .totals
            .iter()
            .map(|(id, totals)| (*id, *totals))
            .collect(),
        sets: Sets::default(),
    };
    partition.step(now, recover);
    let rows = store.rows.iter().map(|(id, row)| StoredExecution {
        id: *id,
        action_id: row.action,
        priority: row.priority,
        status: row.status,
        attempt: row.attempt,
        grant_no: None,
        unbegun: 0,
        retried: row.attempt > Attempt(0) && row.not_before.is_some(),
        created: now - 1,
        not_before: row.not_before,
        cancel_requested: row.cancel_requested,
        front: row.front,
        demand: None,
        asker: None,
        kept_until: None,
        worker: row.status.holds_slot().then_some(WORKER),
    });
    partition.step(now, Event::RecoverRows(rows.collect()));
    partition
}

impl Store {
    fn open(&self) -> Vec<PartOfOperation> {
        let open = self.operations.values().filter(|(_, it)| !it.finished);
        open.map(|(operation, progress)| PartOfOperation {
            operation: operation.clone(),
            partition: PARTITION,
            progress: *progress,
        })
        .collect()
    }

    fn commit(&mut self, now: Millis, commit: &crate::round::Commit) {
        let batch = &commit.batch;
        self.commits += 1;
        let before = self.rows.clone();
        let facts = commit.decided.iter().flat_map(|decided| &decided.facts);
        for fact in facts {
            match fact {
                Fact::Operated {
                    operation,
                    progress,
                    done,
                    skipped,
                    ..
                } => {
                    self.judge_page(&before, *operation, *progress, (done, skipped));
                }
                Fact::Accepted {
                    execution_id,
                    priority,
                    not_before,
                    action_id,
                    ..
                } => {
                    let new = batch.inserts.iter().find(|new| new.id == *execution_id);
                    let submission = &new.unwrap().submission;
                    self.rows.insert(
                        *execution_id,
                        Row {
                            action: *action_id,
                            priority: *priority,
                            front: false,
                            status: Status::Queued,
                            attempt: Attempt(0),
                            not_before: *not_before,
                            cancel_requested: false,
                            user: submission.requested_by.clone().unwrap(),
                            labels: submission.labels.clone(),
                            broken_at: 0,
                        },
                    );
                }
                Fact::Moved(moved) => {
                    let row = self.rows.get_mut(&moved.id).unwrap();
                    assert_eq!(row.status, Status::Queued, "only who waits is moved");
                    (row.priority, row.front) = (moved.priority, moved.front);
                    row.broken_at = self.commits;
                    let is_written = batch.moves.contains(moved);
                    assert!(is_written || self.is_gone(batch, moved.id));
                }
                Fact::Granted {
                    execution_id,
                    attempt,
                    ..
                } => self.grant(now, *execution_id, *attempt),
                Fact::Revoked { execution_id, .. } => self.put_back(*execution_id, None),
                Fact::Retried {
                    execution_id,
                    not_before,
                    ..
                } => {
                    self.put_back(*execution_id, Some(*not_before));
                }
                Fact::Ended { execution_id, .. } => {
                    assert!(self.rows.remove(execution_id).is_some(), "it ends once");
                    self.ended.insert(*execution_id);
                }
                _ => {}
            }
        }
        for change in batch
            .changes
            .iter()
            .filter(|change| change.cancel_requested)
        {
            if let Some(row) = self.rows.get_mut(&change.id) {
                row.cancel_requested = true;
            }
        }
        for (_, operation, progress) in &batch.progress {
            let (_, stored) = self.operations.get_mut(operation).unwrap();
            assert!(stored.cursor <= progress.cursor && !stored.finished);
            assert!(stored.upto.is_none_or(|upto| Some(upto) == progress.upto));
            *stored = *progress;
        }
        self.totals
            .extend(batch.totals.iter().map(|(_, id, totals)| (*id, *totals)));
        for (action, totals) in &self.totals {
            let there = self
                .rows
                .values()
                .filter(|row| row.action == *action)
                .count();
            let gone = totals.completed + totals.cancelled + totals.expired;
            assert_eq!(totals.enqueued, gone + there as u64);
        }
    }

    fn is_gone(&self, batch: &crate::stored::Batch, id: ExecutionId) -> bool {
        batch.ends.iter().any(|end| end.id == id)
    }

    fn put_back(&mut self, id: ExecutionId, not_before: Option<Millis>) {
        let row = self.rows.get_mut(&id).unwrap();
        (row.status, row.not_before, row.cancel_requested) = (Status::Queued, not_before, false);
    }

    /// Nobody who surely waits stands before who is granted a slot.
    fn grant(&mut self, now: Millis, id: ExecutionId, attempt: Attempt) {
        let commits = self.commits;
        let row = self.rows.get_mut(&id).unwrap();
        assert_eq!(row.status, Status::Queued);
        (row.status, row.attempt, row.broken_at) = (Status::Requested, attempt, commits);
        row.not_before = None;
        let key = |id: ExecutionId, row: &Row| {
            let lane = if row.front { None } else { Some(row.priority) };
            (lane, id)
        };
        let own = (row.action, key(id, row));
        for (other, row) in &self.rows {
            let waits = row.status == Status::Queued && row.not_before.is_none_or(|at| at <= now);
            if waits && row.action == own.0 {
                assert!(key(*other, row) > own.1, "{id} passes {other}");
            }
        }
    }

    /// Each is touched at most once, was meant, and is counted; in the end all are that waited all the
    /// time.
    fn judge_page(
        &mut self,
        before: &BTreeMap<ExecutionId, Row>,
        id: OperationId,
        progress: OperationProgress,
        (done, skipped): (&[ExecutionId], &[ExecutionId]),
    ) {
        let (operation, _) = self.operations[&id].clone();
        let upto = progress.upto.unwrap();
        let seen = self.seen.entry(id).or_default();
        if seen.meant.is_none() {
            assert!(
                done.is_empty() && skipped.is_empty(),
                "it begins in a commit of its own"
            );
            let rows = self.rows.iter();
            let meant =
                rows.filter(|(id, row)| is_meant(&operation, **id, row) && id.seq() <= upto);
            seen.meant = Some((self.commits, meant.map(|(id, _)| *id).collect()));
        }
        for touched in done.iter().chain(skipped) {
            assert!(touched.seq() <= upto, "{touched} came later");
            assert!(seen.touched.insert(*touched), "{touched} is touched twice");
        }
        for done in done {
            let row = &before[done];
            assert!(
                is_meant(&operation, *done, row),
                "{done} is not meant: {row:?}"
            );
        }
        seen.done += done.len() as u64;
        assert_eq!(progress.done, seen.done);
        assert_eq!(progress.matched, seen.touched.len() as u64);
        assert_eq!(progress.matched, progress.done + progress.skipped);
        if progress.finished {
            let (began, meant) = seen.meant.as_ref().unwrap();
            let left = meant.iter().find(|id| {
                let row = self.rows.get(id);
                let stayed =
                    row.is_some_and(|it| it.status == Status::Queued && it.broken_at < *began);
                stayed && !seen.touched.contains(id)
            });
            assert_eq!(left, None, "{operation:?} has left somebody out");
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Submit(usize, Priority, bool, bool, bool),
    Complete(usize, bool),
    Cancel(usize),
    Pass(Millis),
    Begin(OperationKind, OperationFilter, bool),
    Page(usize, usize, bool),
    TakeOver,
}

fn priorities() -> impl Strategy<Value = Priority> {
    prop::sample::select(Priority::ALL.to_vec())
}

fn kinds() -> impl Strategy<Value = OperationKind> {
    prop_oneof![
        Just(OperationKind::Clear),
        any::<bool>().prop_map(|include_running| OperationKind::Cancel { include_running }),
        priorities().prop_map(|priority| OperationKind::Reprioritise { priority }),
        priorities().prop_map(|priority| OperationKind::Reprioritise { priority }),
        Just(OperationKind::MoveToFront),
    ]
}

fn filters() -> impl Strategy<Value = OperationFilter> {
    let part = (
        prop::option::weighted(0.4, 0..ACTIONS.len()),
        prop::option::weighted(0.2, prop::sample::select(vec!["a", "b", "none"])),
        prop::option::weighted(0.3, any::<bool>()),
        prop::option::weighted(0.3, any::<bool>()),
        prop::option::weighted(0.3, priorities()),
        prop::collection::btree_set(0_u32..40, 0..3),
    );
    part.prop_map(|(action, pack, user, label, priority, places)| {
        let ids = places
            .into_iter()
            .map(|n| ExecutionId::new(PARTITION, Seq::new(Epoch(1), n)));
        OperationFilter {
            action: action.map(|index| ACTIONS[index].parse().unwrap()),
            pack: pack.map(str::to_owned),
            user: user.map(|it| it.to_string()),
            labels: label
                .map(|it| ("x".to_owned(), it.to_string()))
                .into_iter()
                .collect(),
            priority,
            ids: if action.is_some() {
                BTreeSet::new()
            } else {
                ids.collect()
            },
            all: false,
        }
    })
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..ACTIONS.len(), priorities(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(action, priority, user, label, delayed)| Step::Submit(action, priority, user, label, delayed)),
        4 => (0_usize..6, any::<bool>()).prop_map(|(n, fails)| Step::Complete(n, fails)),
        1 => (0_usize..40).prop_map(Step::Cancel),
        1 => (1_i64..3_000).prop_map(Step::Pass),
        2 => (kinds(), filters(), any::<bool>()).prop_map(|(kind, filter, told)| Step::Begin(kind, filter, told)),
        8 => (1_usize..6, 0_usize..3, prop::bool::weighted(0.1)).prop_map(|(max, unread, lost)| Step::Page(max, unread, lost)),
        1 => Just(Step::TakeOver),
    ]
}

fn play(steps: Vec<Step>) {
    let mut world = World::new();
    for step in steps {
        match step {
            Step::Submit(action, priority, user, label, delayed) => {
                let mut submission = Submission::new(ACTIONS[action]);
                submission.priority = Some(priority);
                submission.requested_by = Some(user.to_string());
                submission.labels.insert("x".to_owned(), label.to_string());
                let due = DateTime::from_timestamp_millis(world.now + 2_000);
                submission.not_before = due.filter(|_| delayed);
                let event = submitted(RequestId::fresh(), submission, OnReject::Answer);
                world.round(vec![event], false);
            }
            Step::Complete(n, fails) => {
                let holders = world
                    .store
                    .rows
                    .iter()
                    .filter(|(_, row)| row.status.holds_slot());
                let holder = holders.map(|(id, row)| (*id, row.attempt)).nth(n);
                let Some((id, attempt)) = holder else {
                    continue;
                };
                let mut event = completed(id, attempt.0);
                if fails {
                    event = Event::Undispatchable {
                        execution_id: id,
                        attempt,
                        why: "no".to_owned(),
                    };
                }
                world.round(vec![event], false);
            }
            Step::Cancel(n) => {
                let id = world.store.rows.keys().nth(n).copied();
                world.round(id.map(cancel).into_iter().collect(), false);
            }
            Step::Pass(time) => {
                world.now += time;
                world.round(vec![], false);
            }
            Step::Begin(kind, filter, told) => {
                let id = OperationId(world.store.operations.len() as i64 + 1);
                let operation = Operation { id, kind, filter };
                world
                    .store
                    .operations
                    .insert(id, (operation, OperationProgress::default()));
                if told {
                    let open = world.store.open();
                    world.round(vec![Event::Operations(open)], false);
                }
            }
            Step::Page(max, unread, is_lost) => world.page(max, unread, is_lost),
            Step::TakeOver => world.take_over(),
        }
    }
    // Whoever missed the command looks once in a while.
    let open = world.store.open();
    world.round(vec![Event::Operations(open)], false);
    world.finish();
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn an_operation_is_done_once_to_each_that_waits_whatever_happens(
        steps in prop::collection::vec(steps(), 1..80),
    ) {
        play(steps);
    }
}

#[path = "operating_cases.rs"]
mod cases;
