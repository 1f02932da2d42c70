//! Bulk operations: stored once, carried on under the fence, counted exactly.

use std::sync::Arc;

use attune_core::{
    ActionRef, Epoch, ExecutionId, OperationFilter, OperationId, OperationKind, OperationProgress,
    PartOfOperation, PartitionId, Priority, RequestId, Status, Submission,
};
use attune_store::What;
use attune_store::{
    Batch, CommitError, MAX_OPEN_OPERATIONS, MovedExecution, NewExecution, NewOperation,
    OperationRecord, Store,
};

use serde_json::value::RawValue;

use super::support::{World, grant};

const CANCEL: OperationKind = OperationKind::Cancel {
    include_running: false,
};

fn new(kind: OperationKind, filter: OperationFilter, partitions: &[u16]) -> NewOperation {
    NewOperation {
        request_id: RequestId::fresh(),
        kind,
        filter,
        who: "ann".into(),
        reason: Some("the host moves, \u{1f4a5}".to_owned()),
        partitions: partitions.iter().copied().map(PartitionId).collect(),
    }
}

fn all() -> OperationFilter {
    OperationFilter {
        all: true,
        ..OperationFilter::default()
    }
}

async fn open(store: &Arc<dyn Store>, partitions: &[u16]) -> Vec<PartOfOperation> {
    let partitions: Vec<_> = partitions.iter().copied().map(PartitionId).collect();
    store.open_operations(&partitions).await.unwrap()
}

async fn begin(store: &Arc<dyn Store>, new: &NewOperation) -> OperationRecord {
    store.begin_operation(new).await.unwrap().unwrap()
}

async fn found(store: &Arc<dyn Store>, id: OperationId) -> OperationRecord {
    store.find_operation(id).await.unwrap().unwrap()
}

/// Asked for again under the same request id it is the same, with one entry of the audit log; every kind
/// and every filter comes back as it was.
pub async fn an_operation_is_stored_once_and_comes_back(store: Arc<dyn Store>) {
    let action: ActionRef = "core.echo".parse().unwrap();
    let filter = OperationFilter {
        action: Some(action),
        user: Some("ann".to_owned()),
        labels: [("a".to_owned(), "b\"c".to_owned())].into(),
        priority: Some(Priority::Low),
        ids: [ExecutionId(77), ExecutionId(78)].into(),
        ..OperationFilter::default()
    };
    let kinds = [
        (OperationKind::Clear, all()),
        (
            OperationKind::Cancel {
                include_running: true,
            },
            filter.clone(),
        ),
        (
            OperationKind::Reprioritise {
                priority: Priority::High,
            },
            filter,
        ),
        (OperationKind::MoveToFront, all()),
    ];
    let mut ids = Vec::new();
    for (kind, filter) in kinds {
        let asked = new(kind, filter, &[1, 3]);
        let stored = begin(&store, &asked).await;
        assert_eq!(stored.what, Ok((kind, asked.filter.clone())));
        assert_eq!((stored.partitions, stored.finished), (2, 0));
        assert_eq!(
            (stored.who.as_str(), &stored.reason),
            ("ann", &asked.reason)
        );
        let again = begin(&store, &asked).await;
        assert_eq!(again, stored);
        assert_eq!(found(&store, stored.id).await, stored);
        ids.push(stored.id);
    }
    assert!(ids.is_sorted());
    let newest = store.list_operations(None, 3).await.unwrap();
    let newest: Vec<_> = newest.iter().map(|record| record.id).collect();
    assert_eq!(newest, [ids[3], ids[2], ids[1]]);
    let older = store.list_operations(Some(ids[1]), 10).await.unwrap();
    assert_eq!(older.len(), 1);
    assert_eq!(
        store.find_operation(OperationId(i64::MAX)).await.unwrap(),
        None
    );
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.len(), 4);
    assert!(
        log.iter()
            .all(|entry| entry.what == What::Operation.name() && entry.who == "ann")
    );
    // One that nobody can be meant by is over at once.
    let nobody = begin(&store, &new(CANCEL, all(), &[])).await;
    assert!(nobody.is_finished());
}

/// As many are open at once as may be; one that is known, and one when another is over, are another matter.
pub async fn no_more_operations_are_open_than_may_be(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let first = new(CANCEL, all(), &[1]);
    let stored = begin(&store, &first).await;
    for _ in 1..MAX_OPEN_OPERATIONS {
        begin(&store, &new(CANCEL, all(), &[1, 2])).await;
    }
    let late = new(CANCEL, all(), &[3]);
    assert_eq!(store.begin_operation(&late).await.unwrap(), None);
    let log = store.audit_log(None, 1).await.unwrap();
    assert!(log.iter().all(|entry| entry.request_id != late.request_id));
    assert_eq!(begin(&store, &first).await, stored, "it is known");
    let progress = OperationProgress {
        upto: Some(attune_core::Seq(1)),
        cursor: Some(attune_core::Seq(1)),
        finished: true,
        ..OperationProgress::default()
    };
    let batch = Batch {
        progress: vec![(PartitionId(1), stored.id, progress)],
        ..world.batch()
    };
    world.commit(&batch).await;
    assert!(!begin(&store, &late).await.is_finished());
}

/// Progress is what the last commit says, in the partitions of their owners, and is written only where
/// the fence holds; a batch that is written twice counts once.
pub async fn progress_is_written_under_the_fence_as_it_is(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(1, "a").await;
    let id = world.insert(vec![world.queued(&action)]).await[0];
    let operation = begin(&store, &new(CANCEL, all(), &[1, 2])).await;
    let other = begin(&store, &new(CANCEL, all(), &[2])).await;
    let parts = open(&store, &[0, 1, 2]).await;
    let shown: Vec<_> = parts
        .iter()
        .map(|part| (part.partition.0, part.operation.id))
        .collect();
    assert_eq!(shown, [(1, operation.id), (2, operation.id), (2, other.id)]);
    assert!(
        parts
            .iter()
            .all(|part| part.progress == OperationProgress::default())
    );

    let progress = OperationProgress {
        upto: Some(id.seq()),
        cursor: Some(id.seq()),
        matched: 5,
        done: 3,
        skipped: 2,
        finished: false,
    };
    let batch = Batch {
        progress: vec![(PartitionId(1), operation.id, progress)],
        ..world.batch()
    };
    assert!(!batch.is_empty());
    world.commit(&batch).await;
    world.commit(&batch).await;
    let parts = open(&store, &[1]).await;
    assert_eq!(parts[0].progress, progress);
    let now = found(&store, operation.id).await;
    assert_eq!((now.matched, now.done, now.skipped), (5, 3, 2));
    assert_eq!((now.partitions, now.finished), (2, 0));

    let mut stale = Batch {
        progress: vec![(PartitionId(1), operation.id, OperationProgress::default())],
        ..world.batch()
    };
    for (_, epoch) in &mut stale.fences {
        *epoch = Epoch(epoch.0 - 1);
    }
    let refused = store.commit(&stale).await;
    assert!(
        matches!(refused, Err(CommitError::Fenced(_))),
        "{refused:?}"
    );
    assert_eq!(open(&store, &[1]).await[0].progress, progress);

    let over = OperationProgress {
        finished: true,
        ..progress
    };
    let batch = Batch {
        progress: vec![
            (PartitionId(1), operation.id, over),
            (PartitionId(2), operation.id, over),
        ],
        ..world.batch()
    };
    world.commit(&batch).await;
    let parts = open(&store, &[1, 2]).await;
    assert_eq!(parts.len(), 1);
    assert_eq!(parts[0].operation.id, other.id);
    let now = found(&store, operation.id).await;
    assert!(now.is_finished());
    assert_eq!((now.matched, now.done, now.skipped), (10, 6, 4));
}

/// Who was moved comes back so: to a new owner, to the comparison, and among the slots; also where the
/// same batch grants or ends it.
pub async fn who_is_moved_stands_there_for_whoever_loads_it(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let ids = world
        .insert((0..4).map(|_| world.queued(&action)).collect())
        .await;
    let moved = |id, front| MovedExecution {
        id,
        priority: Priority::High,
        front,
    };
    let grant = grant(ids[2], 1);
    let batch = Batch {
        moves: vec![
            moved(ids[1], false),
            moved(ids[2], true),
            moved(ids[0], true),
        ],
        updates: vec![grant],
        ..world.batch()
    };
    assert!(!batch.is_empty());
    world.commit(&batch).await;
    world.commit(&batch).await;
    let page = store
        .load_partition(PartitionId(0), None, 10)
        .await
        .unwrap();
    let slice = store
        .scan_active(&[PartitionId(0)], None, 10)
        .await
        .unwrap();
    for rows in [page.rows, slice.rows] {
        let mut standing: Vec<_> = rows
            .iter()
            .map(|row| (row.id, row.priority, row.front))
            .collect();
        standing.sort_unstable();
        assert_eq!(
            standing,
            [
                (ids[0], Priority::High, true),
                (ids[1], Priority::High, false),
                (ids[2], Priority::High, true),
                (ids[3], Priority::Normal, false),
            ]
        );
    }
    let slots = store.load_slots(&ids).await.unwrap();
    assert_eq!(slots.len(), 1);
    assert_eq!(
        (slots[0].id, slots[0].priority, slots[0].front),
        (ids[2], Priority::High, true)
    );
    world.end(&[ids[0]], Status::Cancelled).await;
    let ended = store.find_execution(ids[0]).await.unwrap().unwrap();
    assert_eq!(
        (ended.status, ended.priority),
        (Status::Cancelled, Priority::High)
    );
}

/// What is counted beforehand is what an operation would be about, by each part of a filter and by all
/// together.
pub async fn what_would_be_meant_is_counted(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(0, "one").await, world.action(1, "two").await);
    let said = |action: &attune_core::Action, user: &str, label: Option<&str>, priority| {
        let mut submission = Submission::new(action.spec.action_ref.as_str());
        submission.requested_by = Some(user.to_owned());
        submission.priority = Some(priority);
        let label = label.map(|label| ("x".to_owned(), label.to_owned()));
        submission.labels = label.into_iter().collect();
        world.queued_with(action, submission)
    };
    let rows: Vec<NewExecution> = vec![
        said(&one, "ann", Some("1"), Priority::Low),
        said(&one, "bob", Some("2"), Priority::Low),
        said(&two, "ann", None, Priority::High),
        said(&two, "ann", Some("1"), Priority::Normal),
    ];
    let mut ids = world.insert(rows).await;
    ids.push(world.insert_requested(&one).await);
    let base = OperationFilter::default;
    let action = Some(one.spec.action_ref.clone());
    let pack = Some(one.spec.action_ref.pack().to_owned());
    let cases = [
        (all(), 4, 5),
        (OperationFilter { action, ..base() }, 2, 3),
        (OperationFilter { pack, ..base() }, 4, 5),
        (
            OperationFilter {
                pack: Some("no".to_owned()),
                ..base()
            },
            0,
            0,
        ),
        (
            OperationFilter {
                user: Some("ann".to_owned()),
                ..base()
            },
            3,
            3,
        ),
        (
            OperationFilter {
                labels: [("x".to_owned(), "1".to_owned())].into(),
                ..base()
            },
            2,
            2,
        ),
        (
            OperationFilter {
                priority: Some(Priority::Low),
                ..base()
            },
            2,
            2,
        ),
        (
            OperationFilter {
                ids: [ids[0], ids[4]].into(),
                ..base()
            },
            1,
            2,
        ),
        (
            OperationFilter {
                user: Some("ann".to_owned()),
                labels: [("x".to_owned(), "1".to_owned())].into(),
                priority: Some(Priority::Normal),
                ..base()
            },
            1,
            1,
        ),
    ];
    for (filter, waiting, with_running) in cases {
        let running = OperationKind::Cancel {
            include_running: true,
        };
        assert_eq!(
            store.count_meant(CANCEL, &filter).await.unwrap(),
            waiting,
            "{filter}"
        );
        assert_eq!(
            store.count_meant(running, &filter).await.unwrap(),
            with_running,
            "{filter}"
        );
    }
    let depth = store.depth().await.unwrap();
    let waiting = [
        (Priority::High, 1),
        (Priority::Normal, 1),
        (Priority::Low, 2),
    ];
    assert_eq!((depth.waiting, depth.active), (waiting.to_vec(), 1));
}

/// What an operation must be told of its executions is read of all of them, however much they are given.
pub async fn what_operations_go_by_is_read_without_what_is_large(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let large = || {
        let mut submission = Submission::new(action.spec.action_ref.as_str());
        submission.requested_by = Some("ann".to_owned());
        submission.labels = [("x".to_owned(), "b\"c".to_owned())].into();
        let text = format!("\"{}\"", "p".repeat(3 << 20));
        submission.parameters = RawValue::from_string(format!("{{\"p\":{text}}}")).unwrap();
        world.queued_with(&action, submission)
    };
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.extend(world.insert(vec![large()]).await);
    }
    ids.push(world.insert_requested(&action).await);
    let gone = world.insert(vec![world.queued(&action)]).await[0];
    world.end(&[gone], Status::Cancelled).await;
    let asked: Vec<_> = ids.iter().rev().copied().chain([gone]).collect();
    let labels = store.load_labels(&asked).await.unwrap();
    let found: Vec<_> = labels.iter().map(|it| it.id).collect();
    assert_eq!(found, ids);
    let said = labels[..4].iter().all(|it| {
        it.requested_by.as_deref() == Some("ann")
            && it.labels.get("x").map(String::as_str) == Some("b\"c")
    });
    assert!(said, "{labels:?}");
    assert!(labels[4].labels.is_empty());
}
