//! What is removed from the file, and when.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Outcome, Status};
use attune_store::{
    Batch, ExecutionFilter, ExecutionStore as _, HistoryRetention, PartitionStore as _,
    RecordRetention,
};
use attune_store_sqlite::SqliteStore;

use crate::support::{Owner, eventually};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// More than a few chunks of the upkeep.
const COUNT: u32 = 2_500;

/// A request that is still known leads to an execution that is still there; both go in the end,
/// however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executions_stay_as_long_as_their_requests() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let ended = owner.queued(COUNT);
    let (id, request) = (ended[7].id, ended[7].request_id);
    let instant = ended
        .into_iter()
        .map(|new| (new, Arc::new(Outcome::of(Status::Expired, None))));
    let batch = Batch {
        instant: instant.collect(),
        ..owner.batch()
    };
    store.commit(&batch).await.unwrap();

    let mut keep = HistoryRetention {
        history: Duration::ZERO,
        requests: DAY,
        records: RecordRetention::USUAL,
    };
    store.maintain_history(keep).await.unwrap();
    let known = store.look_up(&[request], &[]).await.unwrap().requests;
    assert_eq!(known.len(), 1);
    assert_eq!(
        (known[0].execution_id, known[0].status),
        (id, Status::Expired)
    );
    assert!(store.find_execution(id).await.unwrap().is_some());

    keep.requests = Duration::ZERO;
    eventually("nothing is left", async || {
        store.maintain_history(keep).await.unwrap();
        let page = store
            .list_executions(&ExecutionFilter::default(), None, 1)
            .await
            .unwrap();
        page.executions.is_empty()
    })
    .await;
    let known = store.look_up(&[request], &[]).await.unwrap().requests;
    assert_eq!(known, vec![]);
}

/// Nobody lives to see the end of such a retention, and it must not be taken for its opposite.
#[tokio::test]
async fn an_endless_retention_keeps_everything() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let new = owner.queued(1).remove(0);
    let (id, request) = (new.id, new.request_id);
    let batch = Batch {
        instant: vec![(new, Arc::new(Outcome::of(Status::Cancelled, None)))],
        ..owner.batch()
    };
    store.commit(&batch).await.unwrap();
    for endless in [Duration::MAX, DAY * 365 * 10_000] {
        let keep = HistoryRetention {
            history: endless,
            requests: endless,
            records: RecordRetention::USUAL,
        };
        store.maintain_history(keep).await.unwrap();
        assert!(store.find_execution(id).await.unwrap().is_some());
        let known = store.look_up(&[request], &[]).await.unwrap().requests;
        assert_eq!(known.len(), 1);
    }
}
