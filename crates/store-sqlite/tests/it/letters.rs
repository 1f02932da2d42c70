//! Dead letters that pour in stay within their bounds between two upkeeps.

use attune_store::{
    Batch, DeadLetterFilter, DeadLetterRetention, DeadLetterStore as _, LETTER_OVERHEAD,
    NewDeadLetter, PartitionStore as _, Store as _,
};
use attune_store_sqlite::{SqliteOptions, SqliteStore};
use uuid::Uuid;

use crate::support::{Owner, eventually};

const BYTES: u64 = 256 * 1024;

/// Ten letters, and what they count.
fn batch() -> (Vec<NewDeadLetter>, u64) {
    let letters = (0..10).map(|_| NewDeadLetter {
        message_id: Uuid::now_v7(),
        reason: "there is no such action".to_owned(),
        source: "partition.03.commands".to_owned(),
        body: vec![b'x'; 1_024],
        bytes: 1_024,
        sender: None,
    });
    (letters.collect(), 10 * (1_024 + LETTER_OVERHEAD))
}

async fn kept(store: &SqliteStore) -> u64 {
    let all = DeadLetterFilter::default();
    let letters = store.list_dead_letters(&all, None, 1_000).await.unwrap();
    letters.iter().map(|row| row.bytes + LETTER_OVERHEAD).sum()
}

/// By the collector, and by an owner's commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_letters_stays_within_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let letters = DeadLetterRetention {
        bytes: BYTES,
        ..DeadLetterRetention::USUAL
    };
    let options = SqliteOptions {
        letters,
        ..SqliteOptions::new(folder.path().join("attune.db"))
    };
    let store = SqliteStore::open(options).await.unwrap();
    store.migrate().await.unwrap();
    for _ in 0..40 {
        let (letters, bytes) = batch();
        store.add_dead_letters(&letters).await.unwrap();
        assert!(kept(&store).await <= BYTES + bytes);
    }
    assert!(kept(&store).await > BYTES / 2, "what has room stays");

    let owner = Owner::of(&store).await;
    for _ in 0..40 {
        let (letters, _) = batch();
        let round = Batch {
            letters,
            ..owner.batch()
        };
        store.commit(&round).await.unwrap();
    }
    let (_, bytes) = batch();
    eventually("what is too much goes", async || {
        kept(&store).await <= BYTES + bytes
    })
    .await;
    store.close().await;
}
