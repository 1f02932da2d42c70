//! Worker leases: who is there, who goes away, and who is over.

use std::sync::Arc;
use std::time::Duration;

use attune_core::WorkerId;

use super::support::{LONG, SHORT, eventually, worker_lease};
use attune_store::{Store, StoreError, WorkerLease};

/// A watcher ends the lease of a worker that has not moved since it was observed, and only that;
/// from then on the worker cannot renew.
pub async fn a_worker_that_did_not_move_is_ended(store: Arc<dyn Store>) {
    let (still, moves) = (worker_lease("still", LONG), worker_lease("moves", LONG));
    for lease in [&still, &moves] {
        store.renew_worker(lease).await.unwrap();
    }
    let observed: Vec<_> = watched(&store).await;
    assert_eq!(observed.len(), 2);
    store.renew_worker(&moves).await.unwrap();
    let gone = WorkerId::fresh();
    let mut asked = observed.clone();
    asked.push((gone, 0));
    let mut over = store.end_workers(&asked).await.unwrap();
    over.sort_unstable();
    let mut expected = vec![still.worker, gone];
    expected.sort_unstable();
    assert_eq!(over, expected);
    assert_eq!(store.end_workers(&[]).await.unwrap(), vec![]);

    refused(&store, &still).await;
    // Asking again gives the same answer, although the row has another number by now.
    let again = store.end_workers(&[(still.worker, -1)]).await.unwrap();
    assert_eq!(again, vec![still.worker]);
    let left = watched(&store).await;
    let before = observed.iter().find(|(worker, _)| *worker == moves.worker);
    assert_eq!(left.len(), 1);
    assert!(left[0].1 > before.unwrap().1, "{left:?}");
    store.renew_worker(&moves).await.unwrap();
}

/// A worker that takes nothing more says so with its lease, to operators and to owners; what it says
/// is what it has said last, also after its end.
pub async fn a_worker_says_that_it_drains(store: Arc<dyn Store>) {
    let (mut goes, stays) = (worker_lease("goes", LONG), worker_lease("stays", LONG));
    let drains = async |expected: [bool; 2]| {
        let rows = store.workers().await.unwrap();
        let shown: Vec<_> = rows.iter().map(|row| row.draining).collect();
        assert_eq!(shown, expected);
        let ends = store.worker_ends().await.unwrap();
        let of = |lease: &WorkerLease| {
            let end = ends.iter().find(|end| end.worker == lease.worker);
            end.unwrap().draining
        };
        assert_eq!([of(&goes), of(&stays)], expected);
    };
    for lease in [&goes, &stays] {
        store.renew_worker(lease).await.unwrap();
    }
    drains([false, false]).await;
    let draining = WorkerLease {
        draining: true,
        ..goes.clone()
    };
    store.renew_worker(&draining).await.unwrap();
    drains([true, false]).await;
    store.retire_worker(goes.worker, None).await.unwrap();
    drains([true, false]).await;
    goes.draining = false;
    refused(&store, &goes).await;
}

/// One that comes up again may say so from the first renewal on.
pub async fn a_worker_may_drain_from_its_first_renewal_on(store: Arc<dyn Store>) {
    let mut lease = worker_lease("w", LONG);
    for draining in [true, false, true] {
        lease.draining = draining;
        store.renew_worker(&lease).await.unwrap();
        let rows = store.workers().await.unwrap();
        assert_eq!((rows.len(), rows[0].draining), (1, draining));
    }
}

/// A lease that only the store's clock takes for over can be renewed, because that clock may have
/// stepped. One that was ended stays ended: what its worker ran may be someone else's by now.
pub async fn an_expired_worker_comes_back_until_it_is_ended(store: Arc<dyn Store>) {
    let mut lease = worker_lease("w", SHORT);
    store.renew_worker(&lease).await.unwrap();
    expired(&store, lease.worker).await;
    lease.ttl = LONG;
    store.renew_worker(&lease).await.unwrap();
    end(&store, lease.worker).await;
    refused(&store, &lease).await;
    expired(&store, lease.worker).await;

    let retired = worker_lease("retired", LONG);
    store.renew_worker(&retired).await.unwrap();
    store.renew_worker(&retired).await.unwrap();
    store.retire_worker(retired.worker, None).await.unwrap();
    refused(&store, &retired).await;
    store.retire_worker(WorkerId::fresh(), None).await.unwrap();
}

/// Operators see every worker, with how long its lease still holds.
pub async fn workers_are_listed_by_name(store: Arc<dyn Store>) {
    assert_eq!(store.workers().await.unwrap(), vec![]);
    let mut b = worker_lease("b", LONG);
    let a = WorkerLease {
        pool: "gpu".to_owned(),
        ..worker_lease("a", LONG * 2)
    };
    store.renew_worker(&b).await.unwrap();
    store.renew_worker(&a).await.unwrap();
    b.slots = 9;
    store.renew_worker(&b).await.unwrap();
    let rows = store.workers().await.unwrap();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.worker, row.name.as_str(), row.pool.as_str(), row.slots))
        .collect();
    assert_eq!(
        seen,
        vec![(a.worker, "a", "gpu", 4), (b.worker, "b", "default", 9)]
    );
    assert!(rows[0].remaining > LONG && rows[0].remaining <= LONG * 2);
    assert!(rows[1].remaining > Duration::ZERO && rows[1].remaining <= LONG);
}

/// Owners know how long each lease is, and which ones were ended.
pub async fn the_ends_of_workers_are_known(store: Arc<dyn Store>) {
    assert_eq!(store.worker_ends().await.unwrap(), vec![]);
    let mut alive = worker_lease("alive", LONG);
    alive.pool = "gpu".to_owned();
    let late = worker_lease("late", SHORT);
    store.renew_worker(&alive).await.unwrap();
    store.renew_worker(&late).await.unwrap();
    expired(&store, late.worker).await;
    let mut ends = store.worker_ends().await.unwrap();
    ends.sort_by_key(|end| end.ttl);
    let seen: Vec<_> = ends
        .iter()
        .map(|end| (end.worker, end.ttl, end.pool.as_str()))
        .collect();
    let pool = late.pool.as_str();
    assert_eq!(
        seen,
        [(late.worker, SHORT, pool), (alive.worker, LONG, "gpu")]
    );
    assert!(ends.iter().all(|end| !end.ended), "{ends:?}");
    store.retire_worker(alive.worker, None).await.unwrap();
    let ends = store.worker_ends().await.unwrap();
    let retired = ends.iter().find(|end| end.worker == alive.worker);
    assert!(retired.is_some_and(|end| end.ended && end.ttl < LONG));
}

/// What a watcher does with a worker that it takes for dead.
async fn end(store: &Arc<dyn Store>, worker: WorkerId) {
    let observed = watched(store).await;
    let observed: Vec<_> = observed
        .into_iter()
        .filter(|(id, _)| *id == worker)
        .collect();
    assert_eq!(store.end_workers(&observed).await.unwrap(), [worker]);
}

/// What a watcher remembers of the workers whose leases nobody has ended.
async fn watched(store: &Arc<dyn Store>) -> Vec<(WorkerId, i64)> {
    let ends = store.worker_ends().await.unwrap();
    ends.iter()
        .filter(|end| !end.ended)
        .map(|end| (end.worker, end.renewals))
        .collect()
}

async fn expired(store: &Arc<dyn Store>, worker: WorkerId) {
    eventually("the worker's lease expires", || async {
        let rows = store.workers().await.unwrap();
        let row = rows.iter().find(|row| row.worker == worker)?;
        row.remaining.is_zero().then_some(())
    })
    .await;
}

async fn refused(store: &Arc<dyn Store>, lease: &WorkerLease) {
    let result = store.renew_worker(lease).await;
    assert!(matches!(result, Err(StoreError::Conflict(_))), "{result:?}");
}

/// A life that was registered with a key is renewed by its owner alone.
pub async fn a_life_is_of_who_registered_it(store: Arc<dyn Store>) {
    let mut lease = worker_lease("w", LONG);
    lease.principal = Some("ann".to_owned());
    assert_eq!(store.principal_of(lease.worker).await.unwrap(), None);
    store.renew_worker(&lease).await.unwrap();
    store.renew_worker(&lease).await.unwrap();
    for other in [None, Some("bob".to_owned())] {
        lease.principal = other;
        let refused = store.renew_worker(&lease).await;
        assert!(
            matches!(refused, Err(StoreError::Conflict(_))),
            "{refused:?}"
        );
    }
    let owner = store.principal_of(lease.worker).await.unwrap();
    assert_eq!(owner, Some(Some("ann".to_owned())));
    lease.worker = WorkerId::fresh();
    lease.principal = None;
    store.renew_worker(&lease).await.unwrap();
    assert_eq!(store.principal_of(lease.worker).await.unwrap(), Some(None));
}
