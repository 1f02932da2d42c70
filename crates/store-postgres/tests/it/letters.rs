//! Dead letters that pour in stay within their bounds between two upkeeps.

use attune_store::{
    Batch, DeadLetterRetention, DeadLetterStore as _, LETTER_OVERHEAD, NewDeadLetter,
    PartitionStore as _, Store as _,
};
use attune_store_postgres::{PostgresOptions, PostgresStore};
use uuid::Uuid;

use crate::support::{TestDb, eventually, on_fresh_db};

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

async fn kept(db: &TestDb) -> u64 {
    let sum = "SELECT coalesce(sum(octet_length(body) + 512), 0)::bigint FROM attune.dead_letter";
    db.count(sum).await.unsigned_abs()
}

/// By the collector, and by an owner's commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_letters_stays_within_its_bytes() {
    on_fresh_db(|db| async move {
        let letters = DeadLetterRetention {
            bytes: BYTES,
            ..DeadLetterRetention::USUAL
        };
        let options = PostgresOptions {
            letters,
            ..PostgresOptions::new(&db.url)
        };
        let store = PostgresStore::connect(options).await.unwrap();
        for _ in 0..40 {
            let (letters, bytes) = batch();
            let newest = letters[9].message_id;
            store.add_dead_letters(&letters).await.unwrap();
            assert!(kept(&db).await <= BYTES + bytes);
            let rows = store.list_dead_letters(&Default::default(), None, 10).await;
            assert!(rows.unwrap().iter().any(|row| row.message_id == newest));
        }
        assert!(kept(&db).await > BYTES / 2, "what has room stays");

        let owner = db.owner().await;
        for _ in 0..40 {
            let (letters, _) = batch();
            let round = Batch {
                letters,
                ..owner.batch()
            };
            store.commit(&round).await.unwrap();
        }
        let (_, bytes) = batch();
        eventually("what is too much goes", || async {
            (kept(&db).await <= BYTES + bytes).then_some(())
        })
        .await;
        store.close().await;
    })
    .await;
}
