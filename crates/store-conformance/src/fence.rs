//! The fence: who has lost a partition writes nothing, nowhere.

use std::sync::Arc;

use attune_core::{Epoch, Outcome, OwnerId, PartitionId, QueueTotals, Status};

use super::support::{
    LONG, PARTITIONS, SHORT, World, end, eventually, fenced, grant, partitions, worker_lease,
};
use attune_store::What;
use attune_store::{Batch, FENCE_ATTEMPTS, FENCE_JUMP, Store};

/// One lost partition holds the whole batch back, the parts of other partitions included.
pub async fn a_stale_epoch_writes_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let kept = world.action(0, "kept").await;
    let lost = world.action(1, "lost").await;
    let ids = world
        .insert(vec![world.queued(&kept), world.requested(&kept)])
        .await;
    let before = (world.record(ids[0]).await, world.record(ids[1]).await);
    world.lose(1).await;

    let instant = (
        world.queued(&kept),
        Arc::new(Outcome::of(Status::Cancelled, Some("gone".to_owned()))),
    );
    let batch = Batch {
        inserts: vec![world.queued(&kept), world.queued(&lost)],
        instant: vec![instant],
        updates: vec![grant(ids[0], 1)],
        ends: vec![end(ids[1], Status::Succeeded)],
        totals: vec![(kept.id, QueueTotals::default())],
        ..world.batch()
    };
    assert_eq!(fenced(store.commit(&batch).await), vec![1]);

    assert_eq!(world.active_ids().await, ids);
    let after = (world.record(ids[0]).await, world.record(ids[1]).await);
    assert_eq!(after, before);
    assert_eq!(store.load_totals(&partitions()).await.unwrap(), vec![]);
    let mut asked: Vec<_> = batch.inserts.iter().map(|new| new.request_id).collect();
    asked.push(batch.instant[0].0.request_id);
    let known = store.look_up(&asked, &[]).await.unwrap();
    assert_eq!(known.requests, vec![]);
    let instant = store.find_execution(batch.instant[0].0.id).await.unwrap();
    assert_eq!(instant, None);

    // What is left to the owner can still be written.
    let rest = Batch {
        fences: vec![world.held[0]],
        inserts: vec![batch.inserts[0].clone()],
        ..Batch::new(world.owner)
    };
    world.commit(&rest).await;
    assert_eq!(world.active_ids().await.len(), 3);
}

/// The owner learns of everything it has lost at once.
pub async fn every_missing_fence_is_named(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (second, epoch) = world.lose(1).await;
    world.lose(3).await;
    assert_eq!(fenced(store.commit(&world.batch()).await), vec![1, 3]);

    // The right epoch in the wrong hands, a future epoch, a partition that does not exist.
    let stranger = Batch {
        fences: vec![(PartitionId(1), epoch)],
        ..Batch::new(OwnerId::fresh())
    };
    assert_eq!(fenced(store.commit(&stranger).await), vec![1]);
    let odd = Batch {
        fences: vec![
            (PartitionId(1), Epoch(epoch.0 + 1)),
            (PartitionId(99), Epoch(1)),
        ],
        ..Batch::new(second)
    };
    assert_eq!(fenced(store.commit(&odd).await), vec![1, 99]);
}

/// The fence is the epoch, not the clock: as long as nobody took over, nobody else has written.
pub async fn an_expired_lease_that_nobody_took_still_writes(store: Arc<dyn Store>) {
    let world = World::with_leases(Arc::clone(&store), SHORT).await;
    let action = world.action(2, "late").await;
    eventually("the leases expire", || async {
        let leases = store.leases().await.unwrap();
        leases
            .iter()
            .all(|lease| lease.owner.is_none())
            .then_some(())
    })
    .await;
    let id = world.insert_queued(&action).await;
    assert_eq!(world.active_ids().await, vec![id]);
}

/// A batch that writes nothing still answers whether its fences hold.
pub async fn fences_are_checked_without_anything_to_write(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let committed = world.commit(&world.batch()).await;
    assert!(committed.granted.is_empty());
    assert_eq!(committed.ended, 0);
    world.commit(&Batch::new(world.owner)).await;
    world.lose(0).await;
    assert_eq!(fenced(store.commit(&world.batch()).await), vec![0]);
}

/// Whoever starts first says through which bus a cluster speaks, and all others hear of it.
pub async fn the_first_says_which_bus_it_is(store: Arc<dyn Store>) {
    assert_eq!(store.agree_on_bus("one").await.unwrap(), None);
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let one = Some("one".to_owned());
    assert_eq!(store.noted_bus().await.unwrap(), None);
    assert_eq!(store.agree_on_bus("one").await.unwrap(), one);
    assert_eq!(store.noted_bus().await.unwrap(), one);
    assert_eq!(store.agree_on_bus("other").await.unwrap(), one);
}

/// After a restore nobody who was there before writes or renews, and the ids go on far
/// from where they may have been.
pub async fn a_restore_fences_everybody_off(store: Arc<dyn Store>) {
    assert_eq!(store.partition_count().await.unwrap(), None);
    let world = World::new(Arc::clone(&store)).await;
    assert_eq!(store.partition_count().await.unwrap(), Some(PARTITIONS));
    let lease = worker_lease("w", LONG);
    store.renew_worker(&lease).await.unwrap();
    store
        .renew_executor(world.owner, "executor-1", LONG, false)
        .await
        .unwrap();
    let action = world.action(0, "waits").await;
    let waits = world.insert_queued(&action).await;
    let holds = world.insert_requested(&action).await;
    let attempt = async |id| world.record(id).await.attempt.0;
    let held = attempt(holds).await;
    store.restore_fence(&"ann".into(), 0).await.unwrap();
    // No attempt that was granted in the life that is lost is granted once more.
    assert_eq!(i64::from(attempt(waits).await), FENCE_ATTEMPTS);
    assert_eq!(attempt(holds).await, held);
    let page = store.load_partition(PartitionId(0), None, 10).await;
    let rows = page.unwrap().rows;
    let row = rows.iter().find(|row| row.id == waits).unwrap();
    assert_eq!(i64::from(row.unbegun), FENCE_ATTEMPTS, "no try is used up");

    let expected: Vec<u16> = (0..PARTITIONS).collect();
    assert_eq!(fenced(store.commit(&world.batch()).await), expected);
    let renewed = store.renew(world.owner, &world.held, LONG).await.unwrap();
    assert_eq!(renewed, []);
    assert!(store.renew_worker(&lease).await.is_err());
    assert_eq!(store.executors().await.unwrap(), []);
    let log = store.audit_log(None, 10).await.unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(
        (log[0].what.as_str(), log[0].who.as_str()),
        (What::RestoreFence.name(), "ann")
    );

    let taken = store
        .acquire(world.owner, "executor-1", &partitions(), LONG)
        .await
        .unwrap();
    assert_eq!(taken.len(), usize::from(PARTITIONS));
    assert!(
        taken.iter().all(|(_, epoch)| epoch.0 > FENCE_JUMP),
        "{taken:?}"
    );
    // Of a state that was restored twice before.
    store.restore_fence(&"ann".into(), 2).await.unwrap();
    assert_eq!(i64::from(attempt(waits).await), 4 * FENCE_ATTEMPTS);
    let taken = store
        .acquire(world.owner, "executor-1", &partitions(), LONG)
        .await
        .unwrap();
    assert!(
        taken.iter().all(|(_, epoch)| epoch.0 > 4 * FENCE_JUMP),
        "{taken:?}"
    );
}
