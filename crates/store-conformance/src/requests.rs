//! Request ids: repeating a request gives the same execution.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{RequestGap, RequestId, Status};

use super::support::{World, now, start};
use attune_store::{Batch, HistoryRetention, KnownRequest, RecordRetention, Store};

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// A request is answered from the moment it is accepted, through its end and after it.
pub async fn a_request_is_known_through_its_life(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let new = world.requested(&action);
    let (id, request) = (new.id, new.request_id);
    let mut expected = KnownRequest {
        request_id: request,
        execution_id: id,
        digest: new.digest,
        status: Status::Requested,
    };
    assert_eq!(known(&store, request).await, None);
    world.insert(vec![new, world.queued(&action)]).await;
    assert_eq!(known(&store, request).await, Some(expected.clone()));

    world.update(vec![start(id, 1, now())]).await;
    expected.status = Status::Running;
    assert_eq!(known(&store, request).await, Some(expected.clone()));
    world.end(&[id], Status::TimedOut).await;
    expected.status = Status::TimedOut;
    assert_eq!(known(&store, request).await, Some(expected));
}

/// When two executions were made of one request, the first keeps it.
pub async fn a_request_keeps_its_first_execution(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let first = world.queued(&action);
    let request = first.request_id;
    let mut second = world.queued(&action);
    second.request_id = request;
    second.digest = first.digest.wrapping_add(1);
    let (id, digest) = (first.id, first.digest);
    world.insert(vec![first]).await;
    world.insert(vec![second]).await;
    let found = known(&store, request).await.unwrap();
    assert_eq!((found.execution_id, found.digest), (id, digest));
    assert_eq!(world.active_ids().await.len(), 2, "neither is lost");
}

/// The ids next to one are told in the order of their numbers, whether their executions wait or have ended.
pub async fn a_gap_lies_between_stored_requests(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let id = |number: u128| RequestId(uuid::Uuid::from_u128(number));
    let gap = |above: Option<u128>, below: Option<u128>| RequestGap {
        above: above.map(id),
        below: below.map(id),
    };
    let around = async |number| store.request_gap(id(number)).await.unwrap();
    assert_eq!(around(1 << 100).await, gap(None, None));
    // They begin with digits and with letters: an adapter that keeps text has to order both.
    let stored = [0x0fu128 << 120, 0x10 << 120, 0x9a << 120, 0xa9 << 120];
    let mut all = Vec::new();
    for number in stored {
        let mut new = world.queued(&action);
        new.request_id = id(number);
        all.push(new);
    }
    let ended = all[1].id;
    world.insert(all).await;
    world.end(&[ended], Status::Cancelled).await;
    for (asked, expected) in [
        (0, gap(None, Some(stored[0]))),
        (stored[0], gap(None, Some(stored[0]))),
        (stored[0] + 1, gap(Some(stored[0]), Some(stored[1]))),
        (stored[2], gap(Some(stored[1]), Some(stored[2]))),
        (stored[3], gap(Some(stored[2]), Some(stored[3]))),
        (stored[3] + 1, gap(Some(stored[3]), None)),
        (u128::MAX, gap(Some(stored[3]), None)),
    ] {
        assert_eq!(around(asked).await, expected, "{asked:x}");
    }
}

/// Request ids are kept for as long as asked. When they go is up to the adapter; what they led to
/// stays, and answers for as long as they do.
pub async fn requests_are_kept_as_long_as_asked(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (new, ended) = (world.queued(&action), world.queued(&action));
    let (id, request) = (new.id, new.request_id);
    let (ended_id, ended_request) = (ended.id, ended.request_id);
    world.insert(vec![new, ended]).await;
    world
        .commit(&Batch {
            ends: vec![super::support::end(ended_id, Status::Cancelled)],
            ..world.batch()
        })
        .await;

    let mut keep = HistoryRetention {
        history: MONTH,
        requests: Duration::from_secs(24 * 3600),
        records: RecordRetention::USUAL,
    };
    store.maintain_history(keep).await.unwrap();
    assert!(known(&store, request).await.is_some());
    assert!(known(&store, ended_request).await.is_some());
    keep.requests = Duration::ZERO;
    store.maintain_history(keep).await.unwrap();
    let left = known(&store, request).await;
    assert!(left.is_none_or(|known| known.execution_id == id));
    assert_eq!(world.active_ids().await, vec![id]);
    assert_eq!(world.record(ended_id).await.status, Status::Cancelled);
}

async fn known(store: &Arc<dyn Store>, request: RequestId) -> Option<KnownRequest> {
    let asked = [RequestId::fresh(), request];
    let mut found = store.look_up(&asked, &[]).await.unwrap().requests;
    assert!(found.len() <= 1, "only what was asked: {found:?}");
    found.pop()
}
