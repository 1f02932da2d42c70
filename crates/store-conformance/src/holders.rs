//! Who holds the slots of an action, as operators ask.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Status, WorkerId};

use super::support::{SHORT, World, cancel, eventually, worker_lease};
use attune_store::Store;

/// Every holder is shown with its worker and how that one is; nothing that waits is shown.
pub async fn holders_are_shown_with_their_workers(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(1, "a").await;
    let other = world.action(1, "other").await;
    world.insert_queued(&action).await;
    world.insert_requested(&other).await;
    let requested = world.insert_requested(&action).await;
    let worker = world.worker("w-1").await;
    let running = world.insert_running(&action, worker).await;
    world.update(vec![cancel(running, 1)]).await;
    let lease = worker_lease("w-2", SHORT * 20);
    store.renew_worker(&lease).await.unwrap();
    let lost = world.insert_granted(&action, lease.worker).await;
    let forgotten = world.insert_granted(&action, WorkerId::fresh()).await;

    let found = eventually("the lease ends", || async {
        let found = store.slot_holders(action.id, None, 10).await.unwrap();
        let gone = found[2].worker.as_ref().unwrap();
        (!gone.lost_for.is_zero()).then_some(found.clone())
    })
    .await;
    let ids: Vec<_> = found.iter().map(|holder| holder.id).collect();
    assert_eq!(ids, [requested, running, lost, forgotten]);
    assert_eq!(found[0].status, Status::Requested);
    assert_eq!((found[0].worker.clone(), found[0].started_at), (None, None));
    assert!(found[0].requested_at.is_some() && found[0].held_for < Duration::from_secs(60));

    assert_eq!(found[1].status, Status::Running);
    assert!(found[1].cancel_requested && found[1].started_at.is_some());
    let alive = found[1].worker.as_ref().unwrap();
    assert_eq!((alive.id, alive.name.as_deref()), (worker, Some("w-1")));
    assert_eq!(alive.pool.as_deref(), Some("default"));
    assert!(alive.remaining > Duration::from_secs(60) && alive.lost_for.is_zero());
    assert!(
        alive
            .seen_ago
            .is_some_and(|ago| ago < Duration::from_secs(60))
    );

    let gone = found[2].worker.as_ref().unwrap();
    assert_eq!(gone.id, lease.worker);
    assert_eq!(found[2].status, Status::Requested);
    assert!(gone.remaining.is_zero());
    assert!(gone.seen_ago.is_some_and(|ago| ago >= gone.lost_for));
    // Without a row it is lost since it was granted something.
    let forgotten = found[3].worker.as_ref().unwrap();
    assert_eq!((forgotten.name.clone(), forgotten.seen_ago), (None, None));
    assert!(forgotten.remaining.is_zero());
    assert!(forgotten.lost_for.abs_diff(found[3].held_for) < Duration::from_secs(1));
    let shown = store.workers().await.unwrap();
    assert!(shown.iter().all(|worker| worker.seen_ago.is_some()));
}

/// Holders come by rising id, in pages.
pub async fn holders_come_in_pages(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(3, "a").await;
    let new = (0..5).map(|_| world.requested(&action)).collect();
    let ids = world.insert(new).await;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.slot_holders(action.id, after, 2).await.unwrap();
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        found.extend(page.iter().map(|holder| holder.id));
    }
    assert_eq!(found, ids);
}
