//! What is removed from the file, and when.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Outcome, RequestId, Status};
use attune_store::{
    Actor, AuditStore as _, Batch, ExecutionFilter, ExecutionStore as _, HistoryRetention,
    NewAudit, PartitionStore as _, RecordRetention, What, check_chain,
};
use attune_store_sqlite::SqliteStore;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};

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

/// One entry of the audit log from a moment when the clock was ahead does not keep those behind it for as long, nor
/// does it stay when they go: the chain has one end.
#[tokio::test]
async fn an_entry_of_tomorrow_goes_with_those_behind_it() {
    let store = SqliteStore::temporary().await.unwrap();
    let file = SqliteConnectOptions::new().filename(store.path());
    let mut foreign = SqliteConnection::connect_with(&file).await.unwrap();
    // The last of tomorrow has nothing old behind it.
    for (number, days) in [-500, 300, -450, 300, -1].into_iter().enumerate() {
        sqlx::query(
            "INSERT INTO audit_log (at, who, what, target, request_id)
             VALUES (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?1 || ' days'), 'ann', 'w', 't', ?2)",
        )
        .bind(days)
        .bind(format!("0194f6f0-0000-7000-8000-00000000000{number}"))
        .execute(&mut foreign)
        .await
        .unwrap();
    }
    foreign.close().await.unwrap();
    // Who writes the next entry makes links of all.
    let next = NewAudit {
        request_id: RequestId::fresh(),
        who: Actor::at_console("ann"),
        what: What::KeyCreate,
        target: "t".to_owned(),
        reason: None,
        before: None,
        after: None,
    };
    store.note_audit(&next).await.unwrap();
    assert_eq!(check_chain(&store, None).await.unwrap().entries, 6);
    let keep = HistoryRetention {
        history: DAY,
        requests: DAY,
        records: RecordRetention::USUAL,
    };
    store.maintain_history(keep).await.unwrap();
    let chain = check_chain(&store, None).await.unwrap();
    assert_eq!(
        (chain.entries, chain.first, chain.broken),
        (3, Some(4), None)
    );
}
