//! A batch is written whole or not at all, whoever stops in the middle of it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use attune_core::{Outcome, Status};
use attune_store::{
    Batch, CommitError, ExecutionStore as _, PartitionStore as _, Store as _, StoreError,
};
use attune_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::children::{self, Child};
use crate::support::{Owner, active, end, eventually, grant};

/// The last statements fail, the first ones have been run: nothing of them stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_row_leaves_nothing_of_its_batch() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let stored = owner.queued(2);
    let (granted, ended) = (stored[0].id, stored[1].id);
    let first = Batch {
        inserts: stored,
        ..owner.batch()
    };
    store.commit(&first).await.unwrap();

    // `running` is no way to end; the CHECK of the history refuses it.
    let mut bad_end = end(ended);
    Arc::make_mut(&mut bad_end.outcome).status = Status::Running;
    let good = Batch {
        inserts: owner.queued(20),
        instant: vec![(
            owner.queued(1).remove(0),
            Arc::new(Outcome::of(Status::Cancelled, None)),
        )],
        updates: vec![grant(granted)],
        ends: vec![end(ended)],
        totals: owner.totals(23),
        ..owner.batch()
    };
    let bad = Batch {
        ends: vec![bad_end],
        ..good.clone()
    };
    let refused = store.commit(&bad).await;
    assert!(
        matches!(refused, Err(CommitError::Store(StoreError::Statement(_)))),
        "{refused:?}"
    );
    assert_eq!(owner.active().await, 2);
    for id in [granted, ended] {
        let record = store.find_execution(id).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempt.0), (Status::Queued, 0));
    }
    let instant = store.find_execution(bad.instant[0].0.id).await.unwrap();
    assert_eq!(instant, None);
    let requests: Vec<_> = bad.inserts.iter().map(|new| new.request_id).collect();
    assert_eq!(
        store.look_up(&requests, &[]).await.unwrap().requests,
        vec![]
    );
    let partitions: Vec<_> = owner.held.iter().map(|(partition, _)| *partition).collect();
    assert_eq!(store.load_totals(&partitions).await.unwrap(), vec![]);

    // The connection is as good as before.
    let committed = store.commit(&good).await.unwrap();
    assert_eq!((committed.granted.len(), committed.ended), (1, 1));
    assert_eq!(owner.active().await, 21);
}

/// What somebody else has made unreadable stops no batch, and no batch is told to have failed that was written: an
/// owner would take what it granted for waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_cannot_be_read_is_no_failure_of_what_is_written() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let stored = owner.queued(200);
    let first = Batch {
        inserts: stored.clone(),
        ..owner.batch()
    };
    store.commit(&first).await.unwrap();
    let bad = stored[3].id;
    let foreign = SqliteConnectOptions::new().filename(store.path());
    let mut foreign = SqliteConnection::connect_with(&foreign).await.unwrap();
    sqlx::query("UPDATE execution_active SET parameters = '{' WHERE id = ?1")
        .bind(bad.0)
        .execute(&mut foreign)
        .await
        .unwrap();
    foreign.close().await.unwrap();

    let batch = Batch {
        updates: stored.iter().map(|new| grant(new.id)).collect(),
        ..owner.batch()
    };
    for again in [false, true] {
        let committed = store.commit(&batch).await.unwrap();
        let mut granted: Vec<_> = committed.granted.iter().map(|body| body.id).collect();
        granted.sort_unstable();
        let mut readable: Vec<_> = stored.iter().map(|new| new.id).collect();
        readable.retain(|id| *id != bad);
        readable.sort_unstable();
        assert_eq!(granted, readable, "again: {again}");
        for new in &stored {
            let record = store.find_execution(new.id).await.unwrap().unwrap();
            assert_eq!(record.status, Status::Requested);
        }
    }
    let unread = store.load_bodies(&[bad]).await;
    assert!(
        matches!(unread, Err(StoreError::Statement(_))),
        "{unread:?}"
    );
}

/// What an owner cannot write is refused before anything is.
#[tokio::test]
async fn an_update_to_another_status_is_refused() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let inserts = owner.queued(1);
    let mut update = grant(inserts[0].id);
    update.status = Some(Status::Running);
    let batch = Batch {
        inserts,
        updates: vec![update],
        ..owner.batch()
    };
    let refused = store.commit(&batch).await;
    assert!(
        matches!(refused, Err(CommitError::Store(StoreError::Conflict(_)))),
        "{refused:?}"
    );
    assert_eq!(owner.active().await, 0);
}

/// A caller that goes away leaves its batch to be finished and the connection usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_caller_leaves_its_work_to_be_finished() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    for polls in 0..40 {
        let batch = Batch {
            inserts: owner.queued(5),
            ..owner.batch()
        };
        let mut commit = Box::pin(store.commit(&batch));
        // Dropped after one poll, after two, … somewhere between the first statement and the end.
        for _ in 0..=polls % 8 {
            let polled = poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx))).await;
            if let Poll::Ready(done) = polled {
                done.unwrap();
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    eventually("every batch is written", async || {
        active(&store).await == 40 * 5
    })
    .await;
    let batch = Batch {
        inserts: owner.queued(1),
        ..owner.batch()
    };
    store.commit(&batch).await.unwrap();
    assert_eq!(owner.active().await, 201);
}

/// Killed in the middle of its batches, a process leaves whole batches, and all that were
/// acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_whole_batches() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attune.db");
    let mut child = Child::start(children::COMMITS_WITHOUT_END, &file);
    // Every line is one acknowledged batch.
    for line in 0..25 {
        assert_eq!(child.line(), format!("committed {line}"));
    }
    let acknowledged = child.kill();

    let store = SqliteStore::open(SqliteOptions::new(&file)).await.unwrap();
    store.check().await.unwrap();
    let found = active(&store).await;
    assert_eq!(found % children::BATCH, 0, "half a batch was left");
    assert!(found >= acknowledged * children::BATCH, "{found}");
    store.close().await;
}

/// Another program that holds the write lock makes the store unavailable for as long as it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_write_lock_is_waited_for_and_then_reported() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        busy_timeout: Duration::from_millis(20),
        ..SqliteOptions::new(folder.path().join("attune.db"))
    };
    let store = SqliteStore::open(options).await.unwrap();
    store.migrate().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let foreign = SqliteConnectOptions::new().filename(store.path());
    let mut foreign = SqliteConnection::connect_with(&foreign).await.unwrap();
    let lock = foreign.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let batch = Batch {
        inserts: owner.queued(3),
        ..owner.batch()
    };
    let refused = store.commit(&batch).await;
    assert!(
        matches!(refused, Err(CommitError::Store(StoreError::Refused(_)))),
        "{refused:?}"
    );
    assert_eq!(owner.active().await, 0, "readers do not wait");
    lock.rollback().await.unwrap();
    store.commit(&batch).await.unwrap();
    assert_eq!(owner.active().await, 3);
}
