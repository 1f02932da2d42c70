//! Claims and worker leases: exactly one worker runs an attempt.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, WorkerId};

use super::support::{LONG, SHORT, World, cancel, eventually, worker_lease};
use attune_store::{Claim, Store, StoreError, WorkerLease};

const FIRST: Attempt = Attempt(1);

/// Two workers that ask for the same executions share them, and nobody gets one twice.
pub async fn a_claim_is_won_once(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let inserts = (0..60).map(|_| world.requested(&action)).collect();
    let mut ids = world.insert(inserts).await;
    ids.sort_unstable();
    let workers = [world.worker("one").await, world.worker("two").await];
    // Each asks in packs of seven, from opposite ends.
    let racers: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (store, worker) = (Arc::clone(&store), *worker);
            let mut wanted: Vec<_> = ids.iter().map(|id| (*id, FIRST)).collect();
            if worker == workers[1] {
                wanted.reverse();
            }
            tokio::spawn(async move {
                let mut won = Vec::new();
                for pack in wanted.chunks(7) {
                    won.extend(store.claim(worker, pack).await.unwrap());
                }
                won
            })
        })
        .collect();
    let mut all: Vec<ExecutionId> = Vec::new();
    for (racer, worker) in racers.into_iter().zip(workers) {
        for claim in racer.await.unwrap() {
            assert_eq!((claim.attempt, claim.cancel_requested), (FIRST, false));
            let record = world.record(claim.execution_id).await;
            assert_eq!(record.worker, Some(worker));
            assert!(record.started_at >= record.requested_at);
            all.push(claim.execution_id);
        }
    }
    all.sort_unstable();
    assert_eq!(all, ids);
}

/// Only an execution that holds a slot in just that attempt can be claimed.
pub async fn a_claim_needs_the_attempt_and_the_slot(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let requested = world.insert_requested(&action).await;
    let queued = world.insert_queued(&action).await;
    let unknown = world.queued(&action).id;
    let worker = world.worker("w").await;
    let wrong = [
        (requested, Attempt(0)),
        (requested, Attempt(2)),
        (queued, Attempt(0)),
        (queued, FIRST),
        (unknown, FIRST),
    ];
    let before = (world.record(requested).await, world.record(queued).await);
    assert_eq!(store.claim(worker, &wrong).await.unwrap(), vec![]);
    let after = (world.record(requested).await, world.record(queued).await);
    assert_eq!(after, before);
    let mixed = [(queued, FIRST), (requested, FIRST), (unknown, FIRST)];
    assert_eq!(
        store.claim(worker, &mixed).await.unwrap(),
        vec![won(requested)]
    );
}

/// A claim whose answer was lost is asked again by the same worker, and by nobody else.
pub async fn a_repeated_claim_is_returned_again(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (old, new) = (
        world.insert_requested(&action).await,
        world.insert_requested(&action).await,
    );
    let (mine, other) = (world.worker("mine").await, world.worker("other").await);
    let first = store.claim(mine, &[(old, FIRST)]).await.unwrap();
    assert_eq!(first, vec![won(old)]);
    let before = world.record(old).await;

    let mut again = store
        .claim(mine, &[(new, FIRST), (old, FIRST)])
        .await
        .unwrap();
    again.sort_unstable();
    assert_eq!(again, vec![won(old), won(new)]);
    assert_eq!(world.record(old).await, before);
    let stranger = store.claim(other, &[(old, FIRST), (new, FIRST)]).await;
    assert_eq!(stranger.unwrap(), vec![]);
    assert_eq!(world.record(old).await.worker, Some(mine));
}

/// A worker that is unknown, ended or retired gets nothing, not even what it had. The store's clock
/// alone ends no lease.
pub async fn a_worker_without_a_live_lease_claims_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let wanted = [(world.insert_requested(&action).await, FIRST)];
    is_over(store.claim(WorkerId::fresh(), &wanted).await);

    let late = worker_lease("late", SHORT);
    store.renew_worker(&late).await.unwrap();
    expired(&store, late.worker).await;
    assert_eq!(store.claim(late.worker, &wanted).await.unwrap().len(), 1);
    end(&store, late.worker).await;
    is_over(store.claim(late.worker, &wanted).await);

    let wanted = [(world.insert_requested(&action).await, FIRST)];
    let retired = world.worker("retired").await;
    assert_eq!(store.claim(retired, &wanted).await.unwrap().len(), 1);
    store.retire_worker(retired).await.unwrap();
    is_over(store.claim(retired, &wanted).await);
    // One whose lease holds is told apart: it has only come too late.
    let other = world.worker("other").await;
    assert_eq!(store.claim(other, &wanted).await.unwrap(), vec![]);
}

/// A cancellation that came before the claim reaches the worker with it.
pub async fn a_cancelled_execution_is_claimed_with_its_mark(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let id = world.insert_requested(&action).await;
    world.update(vec![cancel(id, 1)]).await;
    let worker = world.worker("w").await;
    let claims = store.claim(worker, &[(id, FIRST)]).await.unwrap();
    let expected = Claim {
        cancel_requested: true,
        ..won(id)
    };
    assert_eq!(claims, vec![expected]);
    assert!(world.record(id).await.cancel_requested);
}

/// A watcher ends the lease of a worker that has not moved since it was observed, and only that;
/// from then on the worker neither renews nor claims.
pub async fn a_worker_that_did_not_move_is_ended(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let wanted = [(world.insert_requested(&action).await, FIRST)];
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
    is_over(store.claim(still.worker, &wanted).await);
    assert_eq!(store.claim(moves.worker, &wanted).await.unwrap().len(), 1);
    // Asking again gives the same answer, although the row has another number by now.
    let again = store.end_workers(&[(still.worker, -1)]).await.unwrap();
    assert_eq!(again, vec![still.worker]);
    let left = watched(&store).await;
    let before = observed.iter().find(|(worker, _)| *worker == moves.worker);
    assert_eq!(left.len(), 1);
    assert!(left[0].1 > before.unwrap().1, "{left:?}");
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
    store.retire_worker(retired.worker).await.unwrap();
    refused(&store, &retired).await;
    store.retire_worker(WorkerId::fresh()).await.unwrap();
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
    store.retire_worker(alive.worker).await.unwrap();
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

fn is_over(claims: Result<Vec<Claim>, StoreError>) {
    assert!(matches!(claims, Err(StoreError::Conflict(_))), "{claims:?}");
}

fn won(execution_id: ExecutionId) -> Claim {
    Claim {
        execution_id,
        attempt: FIRST,
        cancel_requested: false,
    }
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
