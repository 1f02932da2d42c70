//! The file: who may use it, and what is in it when it is opened again.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use attune_core::{OwnerId, WorkerId};
use attune_store::{
    Batch, PartitionStore as _, Store as _, StoreError, WorkerLease, WorkerStore as _,
};
use attune_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::children::{self, Child};
use crate::support::{Owner, active};

fn conflict(result: Result<SqliteStore, StoreError>) -> String {
    match result {
        Err(StoreError::Conflict(message)) => message,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let mut child = Child::start(children::HOLDS_THE_FILE, &options.path);
    assert_eq!(child.line(), "open");

    let message = conflict(SqliteStore::open(options.clone()).await);
    assert!(
        message.contains(options.path.to_str().unwrap()),
        "{message}"
    );
    assert!(
        message.contains(&format!("process {}", child.id())),
        "{message}"
    );
    child.kill();
    let store = SqliteStore::open(options).await.unwrap();
    store.check().await.unwrap();
}

#[tokio::test]
async fn the_lock_ends_with_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let first = SqliteStore::open(options.clone()).await.unwrap();
    conflict(SqliteStore::open(options.clone()).await);
    first.close().await;
    // Closed is closed: what comes later is told so, and the file belongs to the next one.
    let second = SqliteStore::open(options).await.unwrap();
    second.migrate().await.unwrap();
    for refused in [first.migrate().await, first.check().await] {
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
    }
    first.close().await;
    second.check().await.unwrap();
}

#[tokio::test]
async fn a_place_that_does_not_exist_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("attune.db");
    let message = conflict(SqliteStore::open(SqliteOptions::new(&path)).await);
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let text = "these are my notes, and not a database; ".repeat(50);
    std::fs::write(&path, &text).unwrap();
    let message = conflict(SqliteStore::open(SqliteOptions::new(&path)).await);
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_link_does_not_lead_past_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("attune.db"), folder.path().join("link"));
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let message = conflict(SqliteStore::open(SqliteOptions::new(&link)).await);
    assert!(message.contains(link.to_str().unwrap()), "{message}");
    store.close().await;
}

#[tokio::test]
async fn nobody_else_can_read_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("attune.db")))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    let expected = [
        "attune.db",
        "attune.db-shm",
        "attune.db-wal",
        "attune.db.lock",
    ];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let store = SqliteStore::open(options.clone()).await.unwrap();
    store.migrate().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let batch = Batch {
        inserts: owner.queued(7),
        ..owner.batch()
    };
    store.commit(&batch).await.unwrap();
    store.close().await;

    let store = SqliteStore::open(options).await.unwrap();
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    assert_eq!(active(&store).await, 7);
    // Who had the leases is gone, and their epochs go on from where they were.
    let leases = store.leases().await.unwrap();
    assert!(leases.iter().all(|lease| lease.holder.is_none()));
    let fences = owner.batch().fences;
    assert!(fences.iter().all(|(_, epoch)| *epoch == leases[0].epoch));
}

#[tokio::test]
async fn a_temporary_store_goes_away() {
    let store = SqliteStore::temporary().await.unwrap();
    let path = store.path().to_owned();
    assert!(path.exists());
    store.close().await;
    drop(store);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_schema_that_does_not_fit_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let store = SqliteStore::open(options.clone()).await.unwrap();
    assert!(schema(store.check().await).contains("attune migrate"));
    store.migrate().await.unwrap();
    let (one, two) = tokio::join!(store.migrate(), store.migrate());
    one.and(two).unwrap();
    store.check().await.unwrap();
    store.close().await;

    let raw = SqliteConnectOptions::new().filename(&options.path);
    let mut raw = SqliteConnection::connect_with(&raw).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9000, 'later', true, x'00', 0)",
    )
    .execute(&mut raw)
    .await
    .unwrap();
    raw.close().await.unwrap();

    let store = SqliteStore::open(options.clone()).await.unwrap();
    assert!(schema(store.check().await).contains("9000"));
    assert!(schema(store.migrate().await).contains("9000"));
    // One that only adds to the schema lets this program go on.
    let mut raw =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(store.path()))
            .await
            .unwrap();
    sqlx::query("UPDATE _sqlx_migrations SET description = 'additive_later' WHERE version = 9000")
        .execute(&mut raw)
        .await
        .unwrap();
    store.check().await.unwrap();
    store.migrate().await.unwrap();
}

/// The process was killed with everything, and is started hours later.
#[tokio::test]
async fn what_is_said_late_of_an_end_counts_from_then() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let store = SqliteStore::open(options).await.unwrap();
    store.migrate().await.unwrap();
    let lease = WorkerLease {
        worker: WorkerId::fresh(),
        name: "old".to_owned(),
        pool: "p".to_owned(),
        slots: 1,
        draining: false,
        ttl: Duration::from_secs(60),
        broker_user: None,
        principal: None,
    };
    store.renew_worker(&lease).await.unwrap();
    let mut raw =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(store.path()))
            .await
            .unwrap();
    sqlx::query("UPDATE worker_lease SET ended = 1, expires_at = '2026-01-02T03:04:05.000000Z'")
        .execute(&mut raw)
        .await
        .unwrap();
    assert_eq!(store.worker_ends().await.unwrap(), vec![]);
    assert!(store.worker_over(lease.worker, Some(&[])).await.unwrap());
    let ends = store.worker_ends().await.unwrap();
    let shown = ends.iter().map(|end| (end.worker, end.begun.clone()));
    assert_eq!(shown.collect::<Vec<_>>(), [(lease.worker, Some(vec![]))]);
}

fn schema(result: Result<(), StoreError>) -> String {
    match result {
        Err(error @ StoreError::Schema(_)) => error.to_string(),
        other => panic!("expected the schema to be refused, got {other:?}"),
    }
}

/// The lock of the file proves that no other owner is there: the partitions of a killed process are free as
/// soon as the file is opened again, however long its leases were. Its workers' leases end by themselves.
#[tokio::test]
async fn what_a_killed_process_held_is_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("attune.db"));
    let mut child = Child::start(children::COMMITS_WITHOUT_END, &options.path);
    child.line();
    child.kill();

    let store = SqliteStore::open(options).await.unwrap();
    store.migrate().await.unwrap();
    let leases = store.leases().await.unwrap();
    assert!(leases.iter().all(|lease| lease.holder.is_none()));
    let before: Vec<_> = leases.iter().map(|lease| lease.epoch).collect();
    let partitions: Vec<_> = leases.iter().map(|lease| lease.partition).collect();
    let ttl = std::time::Duration::from_secs(60);
    let taken = store
        .acquire(OwnerId::fresh(), "next", &partitions, ttl)
        .await
        .unwrap();
    assert_eq!(taken.len(), partitions.len());
    assert!(
        taken
            .iter()
            .zip(&before)
            .all(|((_, epoch), before)| epoch > before)
    );
    assert_eq!(store.executors().await.unwrap(), vec![]);
    let ends = store.worker_ends().await.unwrap();
    assert_eq!(ends.len(), 1);
    // A worker that comes over HTTP is another process, which goes on.
    assert!(!ends[0].ended, "{ends:?}");
    // What this process holds stays when the schema is looked at again.
    store.migrate().await.unwrap();
    let held = store.leases().await.unwrap();
    assert!(held.iter().all(|lease| lease.owner.is_some()));
}
