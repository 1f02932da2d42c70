//! What the reconciler and the dispatcher load.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, PartitionId, Priority, Status, Submission};

use super::support::{
    SHORT, World, cancel, end, eventually, grant, partitions, raw, revoke, worker_lease,
};
use crate::{ActiveRow, Batch, Outcome, SlotRow, Store};

/// Every held slot is loaded with who holds it, and nothing that waits is.
pub async fn slots_are_loaded_with_their_holders(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    world.insert_queued(&one).await;
    let mut urgent = world.requested(&one);
    urgent.submission.priority = Priority::High;
    let requested = world.insert(vec![urgent]).await[0];
    let running = world.insert_requested(&two).await;
    let worker = world.worker("w").await;
    store.claim(worker, &[(running, Attempt(1))]).await.unwrap();
    world.update(vec![cancel(running, 1)]).await;

    let mut slots = store.load_slots(&partitions()).await.unwrap();
    slots.sort_unstable_by_key(|slot| slot.id);
    let held: Vec<_> = slots.iter().map(|slot| slot.held_for).collect();
    let expected = vec![
        SlotRow {
            id: requested,
            action_id: one.id,
            priority: Priority::High,
            attempt: Attempt(1),
            status: Status::Requested,
            worker: None,
            worker_lost_for: Duration::ZERO,
            age: slots[0].age,
            held_for: held[0],
            running_for: None,
            cancel_requested: false,
        },
        SlotRow {
            id: running,
            action_id: two.id,
            priority: Priority::Normal,
            attempt: Attempt(1),
            status: Status::Running,
            worker: Some(worker),
            worker_lost_for: Duration::ZERO,
            age: slots[1].age,
            held_for: held[1],
            running_for: slots[1].running_for,
            cancel_requested: true,
        },
    ];
    assert_eq!(slots, expected);
    assert!(held.iter().all(|held| *held < Duration::from_secs(60)));
    // Both got their slot as they were accepted.
    assert!(slots.iter().all(|slot| slot.age >= slot.held_for));
    assert!(slots[1].running_for.is_some_and(|time| time <= held[1]));
    let mine = store.load_slots(&[PartitionId(2)]).await.unwrap();
    assert_eq!(mine.len(), 1);
    assert_eq!(mine[0].id, running);
}

/// After every kind of write, the slots are those of the executions that hold one, and a partition
/// loads the same alone as among others; a batch that is written again changes nothing.
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
    let instant = vec![(world.requested(&one), Outcome::of(Status::Expired, None))];
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
    let slots = store.load_slots(&partitions()).await.unwrap();
    let mut slots: Vec<_> = slots.iter().map(|slot| slot.id).collect();
    slots.sort_unstable();
    let all = store.load_active(&partitions(), None, 1_000).await.unwrap();
    let holders = all.iter().filter(|row| row.status.holds_slot());
    let holders: Vec<_> = holders.map(|row| row.id).collect();
    assert_eq!(slots, holders);
    // In pages of two, one partition after another.
    let ids = |rows: &[ActiveRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    for place in partitions() {
        let mut alone = Vec::new();
        loop {
            let page = store.load_active(&[place], alone.last().copied(), 2).await;
            let page = ids(&page.unwrap());
            if page.is_empty() {
                break;
            }
            alone.extend(page);
        }
        let mut among = ids(&all);
        among.retain(|id| id.partition() == place);
        assert_eq!(alone, among);
    }
    slots
}

/// From the end of its lease on, a worker counts as lost, and for longer and longer.
pub async fn a_lost_worker_is_seen(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (late, retired) = (
        world.insert_requested(&action).await,
        world.insert_requested(&action).await,
    );
    let gone = world.worker("gone").await;
    store.claim(gone, &[(retired, Attempt(1))]).await.unwrap();
    assert_eq!(lost_for(&store, retired).await, Duration::ZERO);
    store.retire_worker(gone).await.unwrap();

    let lease = worker_lease("late", SHORT * 20);
    store.renew_worker(&lease).await.unwrap();
    let won = store.claim(lease.worker, &[(late, Attempt(1))]).await;
    assert_eq!(won.unwrap().len(), 1);

    for id in [retired, late] {
        let first = eventually("the worker is lost", || async {
            let lost = lost_for(&store, id).await;
            (!lost.is_zero()).then_some(lost)
        })
        .await;
        eventually("it is lost for longer", || async {
            (lost_for(&store, id).await > first).then_some(())
        })
        .await;
    }
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

/// Waiting executions are counted by action, and nothing that holds a slot is.
pub async fn waiting_executions_are_counted(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (one, two) = (world.action(1, "one").await, world.action(2, "two").await);
    for _ in 0..3 {
        world.insert_queued(&one).await;
    }
    world.insert_requested(&one).await;
    world.insert_requested(&two).await;
    let counts = store.count_waiting(&partitions()).await.unwrap();
    assert_eq!(counts, [(one.id, 3)]);
    world.insert_queued(&two).await;
    let counts = store.count_waiting(&[PartitionId(2)]).await.unwrap();
    assert_eq!(counts, [(two.id, 1)]);
}

async fn lost_for(store: &Arc<dyn Store>, id: ExecutionId) -> Duration {
    let slots = store.load_slots(&partitions()).await.unwrap();
    let slot = slots.iter().find(|slot| slot.id == id).unwrap();
    assert_eq!(slot.status, Status::Running);
    slot.worker_lost_for
}
