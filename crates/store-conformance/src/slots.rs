//! What the reconciler and the dispatcher load.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{
    Attempt, ExecutionId, Outcome, PartitionId, Priority, Status, Submission, WorkerId,
};

use super::support::{
    SHORT, World, cancel, end, eventually, grant, partitions, raw, revoke, worker_lease,
};
use attune_store::{ActiveRow, Batch, SlotRow, Store};
use chrono::{DateTime, Utc};

/// Every held slot is loaded with who holds it, and nothing that waits is.
pub async fn slots_are_loaded_with_their_holders(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    let waiting = world.insert_queued(&one).await;
    let mut urgent = world.requested(&one);
    Arc::make_mut(&mut urgent.submission).priority = Some(Priority::High);
    let worker = world.worker("w").await;
    urgent.worker = Some(worker);
    let requested = world.insert(vec![urgent]).await[0];
    let running = world.insert_running(&two, worker).await;
    world.update(vec![cancel(running, 1)]).await;

    let asked = [requested, waiting, running];
    let mut slots = store.load_slots(&asked).await.unwrap();
    slots.sort_unstable_by_key(|slot| slot.id);
    let expected = vec![
        SlotRow {
            front: false,
            id: requested,
            action_id: one.id,
            priority: Priority::High,
            attempt: Attempt(1),
            grant_no: Some(1),
            unbegun: 0,
            status: Status::Requested,
            worker: Some(worker),
            worker_over: false,
            created: slots[0].created,
            requested_at: Some(slots[0].created),
            running_for: None,
            cancel_requested: false,
            demand: None,
            asker: None,
            kept_until: None,
        },
        SlotRow {
            front: false,
            id: running,
            action_id: two.id,
            priority: Priority::Normal,
            attempt: Attempt(1),
            grant_no: Some(1),
            unbegun: 0,
            status: Status::Running,
            worker: Some(worker),
            worker_over: false,
            created: slots[1].created,
            requested_at: Some(slots[1].created),
            running_for: slots[1].running_for,
            cancel_requested: true,
            demand: None,
            asker: None,
            kept_until: None,
        },
    ];
    // Both got their slot as they were accepted.
    assert_eq!(slots, expected);
    let running_for = slots[1].running_for.unwrap();
    assert!(running_for < Duration::from_secs(60), "{running_for:?}");
    let mine = store.load_slots(&[running]).await.unwrap();
    assert_eq!(mine.len(), 1);
    assert_eq!(mine[0].id, running);
}

/// After every kind of write, the slots are those of the executions that hold one; a batch that is
/// written again changes nothing.
pub async fn slots_follow_every_change(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    let inserts = vec![
        world.queued(&one),
        world.queued(&one),
        world.requested(&one),
        world.requested(&two),
        world.requested(&two),
        world.queued(&two),
    ];
    let ids: Vec<_> = inserts.iter().map(|new| new.id).collect();
    let instant = vec![(
        world.requested(&one),
        Arc::new(Outcome::of(Status::Expired, None)),
    )];
    let base = world.batch();
    let batches = [
        Batch {
            inserts,
            instant,
            ..base.clone()
        },
        // A grant, a grant of a later attempt to one that holds a slot, and marks.
        Batch {
            updates: vec![
                grant(ids[0], 1),
                grant(ids[2], 2),
                cancel(ids[3], 1),
                cancel(ids[5], 0),
            ],
            ..base.clone()
        },
        // A slot taken back, an update that comes too late, and the end of one that waits.
        Batch {
            updates: vec![revoke(ids[2], 2), revoke(ids[0], 0)],
            ends: vec![end(ids[1], Status::Cancelled)],
            ..base.clone()
        },
        // Its next grant, and the end of a slot.
        Batch {
            updates: vec![grant(ids[2], 3)],
            ends: vec![end(ids[4], Status::Succeeded)],
            ..base.clone()
        },
    ];
    let expected = [
        vec![ids[2], ids[3], ids[4]],
        vec![ids[0], ids[2], ids[3], ids[4]],
        vec![ids[0], ids[3], ids[4]],
        vec![ids[0], ids[2], ids[3]],
    ];
    for (batch, mut expected) in batches.iter().zip(expected) {
        expected.sort_unstable();
        for _ in 0..2 {
            world.commit(batch).await;
            assert_eq!(slots_of_active(&store).await, expected);
        }
    }
}

/// The ids of the slots, which are those of the active executions that hold one.
async fn slots_of_active(store: &Arc<dyn Store>) -> Vec<ExecutionId> {
    let all = store.scan_active(&partitions(), None, 1_000).await.unwrap();
    let ids: Vec<_> = all.rows.iter().map(|row| row.id).collect();
    let slots = store.load_slots(&ids).await.unwrap();
    let mut slots: Vec<_> = slots.iter().map(|slot| slot.id).collect();
    slots.sort_unstable();
    let holders = all.rows.iter().filter(|row| row.status.holds_slot());
    let holders: Vec<_> = holders.map(|row| row.id).collect();
    assert_eq!(slots, holders);
    slots
}

/// From the end of its lease on, a worker is over, and the store's clock ends no lease.
pub async fn a_lost_worker_is_seen(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let gone = world.worker("gone").await;
    let retired = world.insert_running(&action, gone).await;
    assert!(!is_over(&store, retired).await);
    store.retire_worker(gone, None).await.unwrap();
    assert!(is_over(&store, retired).await);

    let lease = worker_lease("late", SHORT);
    store.renew_worker(&lease).await.unwrap();
    // Whether it has begun does not matter.
    let late = world.insert_granted(&action, lease.worker).await;
    let running = world.insert_running(&action, lease.worker).await;
    eventually("its time is over by the store's clock", || async {
        let rows = store.workers().await.unwrap();
        let row = rows.into_iter().find(|row| row.worker == lease.worker);
        row.is_some_and(|row| row.remaining.is_zero()).then_some(())
    })
    .await;
    for id in [late, running] {
        assert!(!is_over(&store, id).await);
    }
    let ended = store.end_workers(&[(lease.worker, 0)]).await.unwrap();
    assert_eq!(ended, [lease.worker]);
    for id in [late, running] {
        assert!(is_over(&store, id).await);
    }
    // One without a row is over as well, and where there is no worker none is.
    let unknown = world.insert_granted(&action, WorkerId::fresh()).await;
    assert!(is_over(&store, unknown).await);
    let nobody = world.insert_requested(&action).await;
    assert!(!is_over(&store, nobody).await);
}

/// Bodies are loaded for what may be dispatched again, and only for that.
pub async fn bodies_are_loaded_while_active(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let mut submission = Submission::new(action.spec.action_ref.as_str());
    submission.parameters = raw(r#"{"n":1}"#);
    submission.timeout_seconds = Some(9);
    let kept = world.queued_with(&action, submission);
    let ended = world.requested(&action);
    let (kept, ended) = (kept.id, world.insert(vec![kept, ended]).await[1]);
    world.end(&[ended], Status::Succeeded).await;

    let unknown = world.queued(&action).id;
    let bodies = store.load_bodies(&[ended, kept, unknown]).await.unwrap();
    assert_eq!(bodies.len(), 1);
    assert_eq!(bodies[0].id, kept);
    assert_eq!(bodies[0].parameters.get(), r#"{"n":1}"#);
    assert_eq!(bodies[0].timeout_seconds, Some(9));
}

/// The pages of a partition hold all that it has active, once, and of each action the oldest first,
/// wherever they are cut.
pub async fn pages_of_a_partition_follow_one_another(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let actions = [
        world.action(1, "one").await,
        world.action(1, "two").await,
        world.action(1, "three").await,
        world.action(1, "idle").await,
    ];
    let other = world.action(2, "other").await;
    // In batches, so that rows of one action were accepted at different times.
    for batch in 0..3 {
        let mut inserts: Vec<_> = (0..7)
            .map(|n| world.queued(&actions[(n + batch) % 3]))
            .collect();
        inserts.push(world.requested(&actions[batch]));
        inserts.push(world.queued(&other));
        world.insert(inserts).await;
    }
    let all = store.scan_active(&[PartitionId(1)], None, 1_000).await;
    let all = by_id(all.unwrap().rows);
    assert_eq!(all.len(), 24);
    for limit in [1, 2, 5, 8, 24, 25] {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = store.load_partition(PartitionId(1), after, limit).await;
            let page = page.unwrap();
            assert!(page.rows.len() <= limit as usize);
            rows.extend(page.rows);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for action in &actions {
            let its = rows.iter().filter(|row| row.action_id == action.id);
            assert!(its.is_sorted_by_key(|row| row.id), "in pages of {limit}");
        }
        assert_eq!(by_id(rows), all, "in pages of {limit}");
    }
    let none = store
        .load_partition(PartitionId(3), None, 10)
        .await
        .unwrap();
    assert!(none.rows.is_empty() && none.next.is_none());
}

/// By rising id.
fn by_id(mut rows: Vec<ActiveRow>) -> Vec<ActiveRow> {
    rows.sort_unstable_by_key(|row| row.id);
    rows
}

/// Whatever the store's clock shows, who is accepted or given a slot is so from the time on at
/// which its owner decided that.
pub async fn what_is_decided_has_the_time_of_its_owner(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(1, "a").await;
    let now = store.now().await.unwrap().timestamp_millis();
    let [accepted, granted] = [-7_200_000, 7_200_000]
        .map(|ahead| DateTime::<Utc>::from_timestamp_millis(now + ahead).unwrap());
    let (waits, instant) = (world.queued(&action), world.queued(&action));
    let holds = world.requested(&action);
    let expired = (
        instant.clone(),
        Arc::new(Outcome::of(Status::Expired, None)),
    );
    world
        .commit(&Batch {
            at: accepted,
            inserts: vec![waits.clone(), holds.clone()],
            instant: vec![expired],
            ..world.batch()
        })
        .await;
    world
        .commit(&Batch {
            at: granted,
            updates: vec![grant(waits.id, 1)],
            ..world.batch()
        })
        .await;
    let slice = store.scan_active(&[PartitionId(1)], None, 9).await.unwrap();
    let mut page = store.load_partition(PartitionId(1), None, 9).await.unwrap();
    page.rows.sort_unstable_by_key(|row| row.id);
    assert_eq!(page.rows, slice.rows);
    assert!(page.rows.iter().all(|row| row.created == accepted));
    let mut slots = store.load_slots(&[waits.id, holds.id]).await.unwrap();
    slots.sort_unstable_by_key(|slot| slot.id != waits.id);
    let times = slots.iter().map(|slot| (slot.created, slot.requested_at));
    let expected = [(accepted, Some(granted)), (accepted, Some(accepted))];
    assert_eq!(times.collect::<Vec<_>>(), expected);
    let ended = store.find_execution(instant.id).await.unwrap().unwrap();
    assert_eq!(ended.created, accepted);
}

/// Whoever sees the end of a worker's process, and a worker that ends its lease, says what had begun there. What is
/// not granted to the worker any more is not kept, and what was said first stands.
pub async fn what_a_worker_had_begun_is_known(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (gone, other) = (world.worker("gone").await, world.worker("other").await);
    let first = Attempt(1);
    let begun = (world.insert_running(&action, gone).await, first);
    let never_begun = (world.insert_running(&action, gone).await, first);
    let elsewhere = (world.insert_running(&action, other).await, first);
    let over = async |worker| {
        let ends = store.worker_ends().await.unwrap();
        let end = ends.into_iter().find(|end| end.worker == worker).unwrap();
        (end.ended, end.gone, end.begun)
    };
    assert_eq!(over(gone).await, (false, false, None));
    let said = [
        begun,
        (begun.0, Attempt(2)),
        elsewhere,
        (ExecutionId(1 << 50), first),
    ];
    assert!(store.worker_over(gone, Some(&said)).await.unwrap());
    let known = |begun| (true, true, begun);
    assert_eq!(over(gone).await, known(Some(vec![begun])));
    assert!(is_over(&store, never_begun.0).await && !is_over(&store, elsewhere.0).await);

    assert!(store.worker_over(gone, None).await.unwrap());
    assert!(store.worker_over(gone, Some(&[never_begun])).await.unwrap());
    assert_eq!(over(gone).await, known(Some(vec![begun])));

    store.retire_worker(gone, Some(&[])).await.unwrap();
    assert_eq!(over(gone).await, known(Some(vec![begun])));
    let retired = world.worker("retired").await;
    let has_begun = (world.insert_running(&action, retired).await, first);
    world.insert_running(&action, retired).await;
    let said = [elsewhere, has_begun];
    store.retire_worker(retired, Some(&said)).await.unwrap();
    let stands = Some(vec![has_begun]);
    assert_eq!(over(retired).await, (true, false, stands.clone()));
    store.retire_worker(retired, None).await.unwrap();
    assert_eq!(over(retired).await, (true, false, stands.clone()));
    assert!(store.worker_over(retired, None).await.unwrap());
    assert_eq!(over(retired).await, known(stands));

    store.retire_worker(other, None).await.unwrap();
    assert_eq!(over(other).await, (true, false, None));
    assert!(store.worker_over(other, None).await.unwrap());
    assert_eq!(over(other).await, known(None));
    let idle = world.worker("idle").await;
    assert!(store.worker_over(idle, Some(&[])).await.unwrap());
    assert_eq!(over(idle).await, known(Some(vec![])));
    assert!(!store.worker_over(WorkerId::fresh(), None).await.unwrap());
}

/// A slice counts what lies in its range, whomever it belongs to, and says how far it has come.
pub async fn a_slice_is_as_long_as_asked(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    let mut inserts: Vec<_> = (0..5).map(|_| world.queued(&two)).collect();
    inserts.push(world.queued(&one));
    let mut ids = world.insert(inserts).await;
    ids.sort_unstable();
    for mine in [vec![PartitionId(1)], vec![], partitions()] {
        let (mut found, mut after) = (Vec::new(), None);
        for end in [1, 3, 5] {
            let slice = store.scan_active(&mine, after, 2).await.unwrap();
            assert_eq!(slice.last, Some(ids[end]));
            found.extend(slice.rows.iter().map(|row| row.id));
            after = slice.last;
        }
        let end = store.scan_active(&mine, after, 2).await.unwrap();
        assert!(end.rows.is_empty() && end.last.is_none());
        let expected = ids.iter().filter(|id| mine.contains(&id.partition()));
        assert_eq!(found, expected.copied().collect::<Vec<_>>());
    }
}

async fn is_over(store: &Arc<dyn Store>, id: ExecutionId) -> bool {
    let slots = store.load_slots(&[id]).await.unwrap();
    let slot = slots.iter().find(|slot| slot.id == id).unwrap();
    slot.worker_over
}
