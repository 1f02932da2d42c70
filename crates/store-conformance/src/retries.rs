//! What is tried again: until when it waits, why its last try ended, and how many grants were no tries.

use std::sync::Arc;

use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use chrono::{DateTime, Utc};

use super::support::{World, grant, grant_to, now, put_back, start};
use attune_store::{ActiveRow, CommitError, PutBack, Store};

fn until() -> DateTime<Utc> {
    "2031-02-03T04:05:06.789Z".parse().unwrap()
}

fn failed() -> PutBack {
    PutBack {
        not_before: Some(until()),
        unbegun: 2,
        last_error: Some("no luck\0, \u{1f4a5}".to_owned()),
        keeps_slot: false,
    }
}

async fn row(store: &Arc<dyn Store>, id: ExecutionId) -> ActiveRow {
    let slice = store.scan_active(&[id.partition()], None, 100).await;
    let mut rows = slice.unwrap().rows.into_iter();
    rows.find(|row| row.id == id).unwrap()
}

/// Its time, its reason and its count come back: to a new owner, to the comparison and to clients; the
/// reason goes with it into the history.
pub async fn what_is_tried_again_waits_with_its_reason(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let id = world.insert_requested(&action).await;
    let fresh = row(&store, id).await;
    assert_eq!((fresh.unbegun, fresh.retried), (0, false));
    world.update(vec![put_back(id, 1, failed())]).await;
    let waits = row(&store, id).await;
    assert_eq!((waits.status, waits.attempt), (Status::Queued, Attempt(1)));
    assert_eq!((waits.unbegun, waits.retried), (2, true));
    assert_eq!(waits.not_before, Some(until()));
    let page = store.load_partition(PartitionId(0), None, 10).await;
    assert_eq!(page.unwrap().rows, [waits]);
    let record = world.record(id).await;
    assert_eq!(record.not_before, Some(until()));
    let error = record.last_error.unwrap();
    assert!(error.starts_with("no luck") && error.ends_with('\u{1f4a5}'));

    world.update(vec![grant(id, 2)]).await;
    let slots = store.load_slots(&[id]).await.unwrap();
    assert_eq!((slots[0].unbegun, slots[0].attempt), (2, Attempt(2)));
    // Without a word about it the reason stays; the time does not.
    let lost = PutBack {
        not_before: None,
        unbegun: 3,
        last_error: None,
        keeps_slot: false,
    };
    world.update(vec![put_back(id, 2, lost)]).await;
    let waits = row(&store, id).await;
    assert_eq!((waits.unbegun, waits.retried), (3, true));
    assert_eq!(waits.not_before, None);
    world.update(vec![grant(id, 3)]).await;
    world.end(&[id], Status::Succeeded).await;
    let record = world.record(id).await;
    assert_eq!(
        (record.status, record.attempt),
        (Status::Succeeded, Attempt(3))
    );
    assert_eq!(record.last_error, Some(error));
}

/// One round may put somebody back and give it the next slot.
pub async fn who_is_put_back_and_granted_at_once_keeps_its_reason(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let id = world.insert_requested(&action).await;
    let mut both = grant(id, 2);
    both.put_back = Some(PutBack {
        not_before: None,
        ..failed()
    });
    let committed = world.update(vec![both]).await;
    assert_eq!(committed.granted.len(), 1, "with its body");
    let row = row(&store, id).await;
    assert_eq!((row.status, row.attempt), (Status::Requested, Attempt(2)));
    assert_eq!((row.unbegun, row.retried), (2, true));
}

/// Written again it is the same; who does not own the partition writes nothing of it.
pub async fn a_repeated_or_fenced_retry_changes_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let [one, two] = [
        world.insert_requested(&action).await,
        world.insert_requested(&action).await,
    ];
    let mut batch = world.batch();
    batch.updates = vec![put_back(one, 1, failed()), put_back(two, 1, failed())];
    store.commit(&batch).await.unwrap();
    world.update(vec![grant(two, 2)]).await;
    store.commit(&batch).await.unwrap();
    let row_of_two = row(&store, two).await;
    assert_eq!(
        row_of_two.status,
        Status::Requested,
        "a later attempt stays"
    );
    assert_eq!(row(&store, one).await.not_before, Some(until()));

    let mut stale = world.batch();
    let other = PutBack {
        not_before: None,
        unbegun: 9,
        last_error: None,
        keeps_slot: false,
    };
    stale.updates = vec![put_back(one, 1, other)];
    stale.fences.iter_mut().for_each(|fence| fence.1.0 -= 1);
    let refused = store.commit(&stale).await.unwrap_err();
    assert!(matches!(refused, CommitError::Fenced(_)), "{refused:?}");
    assert_eq!(row(&store, one).await.unbegun, 2);
}

/// Who keeps its slot holds it, told with its time to new owners and to the comparison; it is with no worker,
/// and nothing starts, until the next try is granted, to whom it may be.
pub async fn who_keeps_its_slot_holds_it_for_its_next_try(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (worker, other) = (world.worker("w").await, world.worker("v").await);
    let id = world.insert_running(&action, worker).await;
    let mut kept = put_back(id, 1, failed());
    kept.status = None;
    kept.put_back = Some(PutBack {
        keeps_slot: true,
        ..failed()
    });
    // Written again it is the same.
    for _ in 0..2 {
        world.update(vec![kept.clone()]).await;
        let row = row(&store, id).await;
        assert_eq!((row.status, row.attempt), (Status::Requested, Attempt(1)));
        assert_eq!((row.worker, row.unbegun, row.retried), (None, 2, true));
        assert_eq!(
            (row.not_before, row.kept_until),
            (Some(until()), Some(until()))
        );
        let page = store.load_partition(PartitionId(0), None, 10).await;
        assert_eq!(page.unwrap().rows, [row]);
    }
    let slot = &store.load_slots(&[id]).await.unwrap()[0];
    assert_eq!((slot.kept_until, slot.worker), (Some(until()), None));
    assert_eq!((slot.running_for, slot.worker_over), (None, false));
    let record = world.record(id).await;
    assert_eq!((record.worker, record.started_at), (None, None));
    for attempt in [1, 2] {
        world.update(vec![start(id, attempt, now())]).await;
        assert_eq!(world.record(id).await, record, "attempt {attempt}");
    }
    let mut next = grant_to(id, 2, other);
    next.put_back = Some(PutBack {
        last_error: None,
        ..failed()
    });
    let committed = world.update(vec![next]).await;
    assert_eq!(committed.granted.len(), 1, "with its body");
    // What comes late of the attempt before changes nothing.
    world.update(vec![kept]).await;
    let row = row(&store, id).await;
    assert_eq!((row.status, row.attempt), (Status::Requested, Attempt(2)));
    assert_eq!((row.kept_until, row.retried), (None, true));
    assert_eq!(row.worker, Some(other));
    world.update(vec![start(id, 2, now())]).await;
    let record = world.record(id).await;
    assert_eq!(
        (record.status, record.worker),
        (Status::Running, Some(other))
    );
    world.end(&[id], Status::Succeeded).await;
    assert!(world.record(id).await.last_error.is_some());
}
