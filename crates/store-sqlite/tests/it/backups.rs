//! A copy of the file while somebody works on it.

use std::os::unix::fs::PermissionsExt as _;

use attune_store::{Batch, ExecutionStore as _, PartitionStore as _, Store as _, StoreError};
use attune_store_sqlite::{SqliteOptions, SqliteStore, back_up};

use crate::support::Owner;

/// It has everything that was stored by then, belongs to its owner alone, and is never written over another file.
#[tokio::test]
async fn a_copy_is_whole_and_nobody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attune.db");
    let store = SqliteStore::open(SqliteOptions::new(&file)).await.unwrap();
    store.migrate().await.unwrap();
    let mut owner = Owner::of(&store).await;
    let batch = Batch {
        inserts: owner.queued(3),
        ..owner.batch()
    };
    store.commit(&batch).await.unwrap();

    let copy = folder.path().join("copy.db");
    let bytes = back_up(&SqliteOptions::new(&file), &copy).await.unwrap();
    let about = std::fs::metadata(&copy).unwrap();
    assert_eq!(about.len(), bytes);
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let again = back_up(&SqliteOptions::new(&file), &copy).await;
    let again = again.unwrap_err().to_string();
    assert!(again.contains("there is something already"), "{again}");
    let later = Batch {
        inserts: owner.queued(1),
        ..owner.batch()
    };
    store.commit(&later).await.unwrap();
    store.close().await;

    // Also while nobody has it.
    let second = folder.path().join("second.db");
    back_up(&SqliteOptions::new(&file), &second).await.unwrap();
    for (copy, has_later) in [(&copy, false), (&second, true)] {
        let copied = SqliteStore::open(SqliteOptions::new(copy)).await.unwrap();
        copied.check().await.unwrap();
        for new in &batch.inserts {
            assert!(copied.find_execution(new.id).await.unwrap().is_some());
        }
        let found = copied.find_execution(later.inserts[0].id).await.unwrap();
        assert_eq!(found.is_some(), has_later);
        copied.close().await;
    }
    let names = std::fs::read_dir(folder.path()).unwrap();
    let partial = names
        .map(|entry| entry.unwrap().file_name())
        .find(|name| name.to_string_lossy().ends_with(".partial"));
    assert_eq!(partial, None);

    // SQLite would take it for the end of a transaction that was broken off, and remove it.
    for end in ["-journal", "-wal", "-shm", ".lock"] {
        let beside = folder.path().join(format!("attune.db{end}"));
        let refused = back_up(&SqliteOptions::new(&file), &beside).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{end}");
    }
    let missing = folder.path().join("missing.db");
    let nothing = back_up(
        &SqliteOptions::new(&missing),
        &folder.path().join("third.db"),
    )
    .await;
    assert!(nothing.is_err());
    assert!(!folder.path().join("third.db.partial").exists());
}
