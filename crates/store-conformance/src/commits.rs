//! The commit: inserts, grants, revocations, marks and totals, each written as often as wanted.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{
    Attempt, ExecutionId, Outcome, PartitionId, Priority, QueueTotals, RequestId, Status,
    Submission,
};
use chrono::{DateTime, Utc};

use super::support::{
    World, cancel, end, grant, grant_to, now, partitions, raw, ref_in, revoke, spec, start,
    worker_lease,
};
use attune_store::{Batch, MAX_BODIES_BYTES, Store};

/// A new owner loads what waits by rising id, in pages, for exactly its partitions.
pub async fn inserts_load_in_order_and_in_pages(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    let other = world.action(3, "other").await;
    let not_before: DateTime<Utc> = "2031-02-03T04:05:06.123456Z".parse().unwrap();
    let mut inserts: Vec<_> = (0..7)
        .map(|n| world.queued(if n % 2 == 0 { &one } else { &two }))
        .collect();
    Arc::make_mut(&mut inserts[3].submission).priority = Some(Priority::Critical);
    Arc::make_mut(&mut inserts[4].submission).not_before = Some(not_before);
    inserts.push(world.requested(&two));
    inserts.push(world.queued(&other));
    // The store keeps the order of the ids, whatever the order in the batch.
    inserts.reverse();
    let mut expected = world.insert(inserts).await;
    expected.reverse();
    expected.pop();

    let mine = [PartitionId(2), PartitionId(1)];
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let slice = store.scan_active(&mine, after, 3).await.unwrap();
        assert!(slice.rows.len() <= 3);
        rows.extend(slice.rows);
        after = slice.last;
        if after.is_none() {
            break;
        }
    }
    let found: Vec<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(found, expected);
    assert_eq!(rows[3].priority, Priority::Critical);
    assert_eq!(rows[4].not_before, Some(not_before));
    for (n, row) in rows.iter().enumerate() {
        let action = if n == 7 || n % 2 == 1 { &two } else { &one };
        assert_eq!(row.action_id, action.id);
        let expected = if n == 7 {
            (Status::Requested, Attempt(1))
        } else {
            (Status::Queued, Attempt(0))
        };
        assert_eq!((row.status, row.attempt), expected);
        let age = chrono::Utc::now() - row.created;
        assert!(age.num_seconds() < 60 && !row.cancel_requested);
    }
}

/// The owner keeps no bodies of what waits: a grant brings them.
pub async fn a_grant_returns_the_body(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let mut submission = Submission::new(action.spec.action_ref.as_str());
    submission.parameters = raw(r#"{"b": 1.0, "a": [1e2, 12345678901234567890, null]}"#);
    submission.timeout_seconds = Some(7);
    let ids = world
        .insert(vec![
            world.queued_with(&action, submission.clone()),
            world.queued(&action),
            world.queued(&action),
        ])
        .await;

    let committed = world
        .update(vec![grant(ids[1], 1), grant(ids[0], 1), cancel(ids[2], 0)])
        .await;
    let mut granted = committed.granted;
    granted.sort_unstable_by_key(|body| body.id);
    assert_eq!(granted.len(), 2, "only grants return bodies: {granted:?}");
    assert_eq!((granted[0].id, granted[1].id), (ids[0], ids[1]));
    let body: serde_json::Value = serde_json::from_str(granted[0].parameters.get()).unwrap();
    let sent: serde_json::Value = serde_json::from_str(submission.parameters.get()).unwrap();
    assert_eq!(body, sent);
    assert_eq!(granted[0].timeout_seconds, Some(7));
    assert_eq!(granted[1].parameters.get(), "{}");
    assert_eq!(granted[1].timeout_seconds, None);

    let record = world.record(ids[0]).await;
    assert_eq!(
        (record.status, record.attempt),
        (Status::Requested, Attempt(1))
    );
    assert_eq!(record.grant_no, Some(100));
    assert!(record.requested_at.is_some_and(|at| at >= record.created));
    assert_eq!(world.record(ids[2]).await.status, Status::Queued);
}

/// A commit whose answer was lost is written again, and nothing happens twice.
pub async fn a_repeated_batch_changes_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let old = world
        .insert(vec![
            world.queued(&action),
            world.queued(&action),
            world.requested(&action),
            world.requested(&action),
        ])
        .await;
    let totals = QueueTotals {
        enqueued: 7,
        completed: 1,
        cancelled: 1,
        expired: 0,
    };
    let batch = Batch {
        inserts: vec![world.queued(&action), world.requested(&action)],
        instant: vec![(
            world.queued(&action),
            Arc::new(Outcome::of(Status::Cancelled, None)),
        )],
        updates: vec![grant(old[0], 1), cancel(old[1], 0), revoke(old[2], 1)],
        ends: vec![end(old[3], Status::Succeeded)],
        totals: vec![(action.id, totals)],
        ..world.batch()
    };
    let first = world.commit(&batch).await;
    assert_eq!((first.granted.len(), first.ended), (1, 1));

    let new = batch.inserts.iter().map(|new| new.id);
    let everything: Vec<ExecutionId> = old
        .iter()
        .copied()
        .chain(new)
        .chain([batch.instant[0].0.id])
        .collect();
    let mut before = Vec::new();
    for id in &everything {
        before.push(world.record(*id).await);
    }
    for _ in 0..2 {
        let again = world.commit(&batch).await;
        assert_eq!((again.granted.len(), again.ended), (1, 0));
        assert_eq!(again.granted[0].id, old[0]);
        for (id, before) in everything.iter().zip(&before) {
            assert_eq!(&world.record(*id).await, before);
        }
    }
    assert_eq!(world.active_ids().await.len(), 5);
    let kept = store.load_totals(&partitions()).await.unwrap();
    assert_eq!(kept, vec![(action.id, totals)]);
    let page = store
        .list_executions(&attune_store::ExecutionFilter::default(), None, 50)
        .await
        .unwrap();
    assert_eq!(page.executions.len(), 7, "nothing is stored twice");
}

/// A worker may have started what it was granted before the grant is written again: the start stands.
pub async fn a_repeated_grant_leaves_a_start_alone(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let queued = world.insert_queued(&action).await;
    let worker = world.worker("w").await;
    let batch = Batch {
        inserts: vec![world.granted(&action, worker)],
        updates: vec![grant_to(queued, 1, worker)],
        ..world.batch()
    };
    world.commit(&batch).await;
    let both = [queued, batch.inserts[0].id];
    let starts = both.iter().map(|id| start(*id, 1, now())).collect();
    world.update(starts).await;
    let before = (world.record(both[0]).await, world.record(both[1]).await);
    assert_eq!(before.0.status, Status::Running);

    let again = world.commit(&batch).await;
    assert_eq!(again.granted.len(), 1, "the body is still returned");
    let after = (world.record(both[0]).await, world.record(both[1]).await);
    assert_eq!(after, before);
}

/// Nobody has a slot that was taken back; the next grant is a new attempt, and may go to another worker.
pub async fn a_slot_taken_back_can_be_granted_again(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (lost, fresh) = (world.worker("lost").await, world.worker("fresh").await);
    let ids = [
        world.insert_running(&action, lost).await,
        world.insert_granted(&action, lost).await,
    ];

    let committed = world
        .update(vec![revoke(ids[0], 1), revoke(ids[1], 1)])
        .await;
    assert!(committed.granted.is_empty());
    for id in &ids {
        let record = world.record(*id).await;
        assert_eq!((record.status, record.worker), (Status::Queued, None));
        assert_eq!(record.started_at, None);
        world.update(vec![start(*id, 1, now())]).await;
        assert_eq!(world.record(*id).await, record, "said too late");
    }

    let granted = world.update(vec![grant_to(ids[0], 2, fresh)]).await.granted;
    assert_eq!(granted.len(), 1);
    world.update(vec![start(ids[0], 1, now())]).await;
    let record = world.record(ids[0]).await;
    assert_eq!((record.attempt, record.worker), (Attempt(2), Some(fresh)));
    assert_eq!(record.status, Status::Requested);
    world.update(vec![start(ids[0], 2, now())]).await;
    let record = world.record(ids[0]).await;
    assert_eq!((record.attempt, record.worker), (Attempt(2), Some(fresh)));
    assert_eq!(record.status, Status::Running);
}

/// An update that comes late finds a row with a higher attempt and leaves it alone.
pub async fn an_update_never_lowers_the_attempt(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let id = world.insert_requested(&action).await;
    world.update(vec![revoke(id, 1)]).await;
    world.update(vec![grant(id, 2)]).await;
    let before = world.record(id).await;
    for late in [
        grant(id, 1),
        revoke(id, 1),
        cancel(id, 1),
        start(id, 1, now()),
    ] {
        world.update(vec![late]).await;
        assert_eq!(world.record(id).await, before);
    }
    // What has ended or never was is not brought to life.
    world.end(&[id], Status::Failed).await;
    let gone = world.queued(&action).id;
    world.update(vec![grant(id, 3), grant(gone, 1)]).await;
    assert_eq!(world.record(id).await.status, Status::Failed);
    assert_eq!(store.find_execution(gone).await.unwrap(), None);
}

/// The mark that an execution shall be ended changes nothing else, whatever state it is in.
pub async fn a_cancellation_keeps_the_status(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let queued = world.insert_queued(&action).await;
    let requested = world.insert_requested(&action).await;
    let worker = world.worker("w").await;
    let running = world.insert_running(&action, worker).await;
    for (id, attempt) in [(queued, 0), (requested, 1), (running, 1)] {
        let before = world.record(id).await;
        world.update(vec![cancel(id, attempt)]).await;
        let after = world.record(id).await;
        assert!(after.cancel_requested && !before.cancel_requested);
        let expected = attune_store::ExecutionRecord {
            cancel_requested: true,
            ..before
        };
        assert_eq!(after, expected);
    }
    let slice = store.scan_active(&partitions(), None, 10).await.unwrap();
    assert!(slice.rows.iter().all(|row| row.cancel_requested));
}

/// Totals are written as they are, not added up, so that writing them twice is harmless.
pub async fn totals_are_absolute(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(0, "one").await, world.action(1, "two").await);
    let totals = |enqueued| QueueTotals {
        enqueued,
        completed: enqueued / 2,
        cancelled: 1,
        expired: 2,
    };
    for (first, second) in [(10, 20), (30, 15)] {
        let written = vec![(two.id, totals(second)), (one.id, totals(first))];
        world
            .commit(&Batch {
                totals: written,
                ..world.batch()
            })
            .await;
    }
    let mut all = store.load_totals(&partitions()).await.unwrap();
    all.sort_unstable_by_key(|(action, _)| *action);
    assert_eq!(all, vec![(one.id, totals(30)), (two.id, totals(15))]);
    let mine = store.load_totals(&[PartitionId(1)]).await.unwrap();
    assert_eq!(mine, vec![(two.id, totals(15))]);
}

/// Nothing of a batch is cut off, however large it is.
pub async fn a_large_batch_is_written_whole(store: Arc<dyn Store>) {
    const COUNT: usize = 3_000;
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let inserts = (0..COUNT).map(|_| world.queued(&action)).collect();
    let mut ids = world.insert(inserts).await;
    let slice = store.scan_active(&partitions(), None, 5_000).await;
    assert_eq!(slice.unwrap().rows.len(), COUNT);

    // In no order at all: sorting is the adapter's business.
    ids.sort_unstable_by_key(|id| (id.0 * 7919) % 104_729);
    let granted = world.update(ids.iter().map(|id| grant(*id, 1)).collect());
    assert_eq!(granted.await.granted.len(), COUNT);
    assert_eq!(
        world.end(&ids, Status::Succeeded).await.ended,
        u64::try_from(COUNT).unwrap()
    );
    assert_eq!(world.active_ids().await, vec![]);
}

/// One answer brings so many bytes of bodies and no more; what it leaves out can be loaded, in the
/// order of the ids, the first however large it is.
pub async fn many_large_bodies_come_in_several_answers(store: Arc<dyn Store>) {
    const EACH: usize = 3 << 20;
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let mut ids = Vec::new();
    for letter in ["a", "b", "c", "d"] {
        let mut new = world.queued(&action);
        let large = letter.repeat(EACH);
        Arc::make_mut(&mut new.submission).parameters = raw(&format!("{{\"large\":\"{large}\"}}"));
        ids.extend(world.insert(vec![new]).await);
    }
    let granted = world.update(ids.iter().map(|id| grant(*id, 1)).collect());
    let granted = granted.await.granted;
    assert_eq!(granted.len(), MAX_BODIES_BYTES / EACH);
    let mut left = ids.clone();
    left.retain(|id| granted.iter().all(|body| body.id != *id));

    let mut loaded = Vec::new();
    let mut asked = ids.clone();
    while !asked.is_empty() {
        let bodies = store.load_bodies(&asked).await.unwrap();
        let bytes: usize = bodies.iter().map(|body| body.parameters.get().len()).sum();
        assert!(bytes <= MAX_BODIES_BYTES);
        let last = bodies.last().unwrap().id;
        loaded.extend(bodies.iter().map(|body| body.id));
        asked.retain(|id| *id > last);
    }
    assert_eq!(loaded, ids, "each once, in order");
    assert_eq!(left.len(), 2);
}

/// Every port takes empty lists.
pub async fn nothing_asked_is_nothing_done(store: Arc<dyn Store>) {
    store.ensure_partitions(1).await.unwrap();
    let owner = attune_core::OwnerId::fresh();
    let taken = store.acquire(owner, "o", &[], Duration::from_secs(1)).await;
    assert_eq!(taken.unwrap(), vec![]);
    let renewed = store.renew(owner, &[], Duration::from_secs(1)).await;
    assert_eq!(renewed.unwrap(), vec![]);
    store.give_up(owner, &[], None).await.unwrap();
    let slice = store.scan_active(&[], None, 9).await.unwrap();
    assert!(slice.rows.is_empty() && slice.last.is_none());
    assert_eq!(store.load_totals(&[]).await.unwrap(), vec![]);
    assert_eq!(store.load_actions(&[]).await.unwrap(), vec![]);
    assert_eq!(store.load_slots(&[]).await.unwrap(), vec![]);
    assert!(store.load_bodies(&[]).await.unwrap().is_empty());
    let found = store.look_up(&[], &[]).await.unwrap();
    assert!(found.requests.is_empty() && found.actions.is_empty());
    let committed = store.commit(&Batch::new(owner)).await.unwrap();
    assert!(committed.granted.is_empty() && committed.ended == 0);
    let lease = worker_lease("w", Duration::from_secs(60));
    store.renew_worker(&lease).await.unwrap();
    store.upsert_queue_stats(&[]).await.unwrap();

    // And nothing is found where nothing is.
    let id = ExecutionId(1);
    assert_eq!(store.find_execution(id).await.unwrap(), None);
    assert!(store.load_bodies(&[id]).await.unwrap().is_empty());
    let unknown = ["no.such".to_owned(), "NOT A REF".to_owned()];
    let found = store
        .look_up(&[RequestId::fresh()], &unknown)
        .await
        .unwrap();
    assert!(found.requests.is_empty() && found.actions.is_empty());
    let action = spec(&ref_in(0, "none"));
    assert_eq!(store.find_action(&action.action_ref).await.unwrap(), None);
    let page = store.load_partition(PartitionId(0), None, 9).await.unwrap();
    assert!(page.rows.is_empty() && page.next.is_none());
    assert_eq!(store.load_slots(&[id]).await.unwrap(), vec![]);
}
