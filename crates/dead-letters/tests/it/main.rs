//! Letters on their way from the in-process bus to SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC};
use attune_bus::{Bus as _, MemoryBus, Outgoing, Subscription, Topic, dead_letter};
use attune_dead_letters::{Collector, CollectorHandle, CollectorOptions, put_back};
use attune_store::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, NewDeadLetter, Requeue,
    StoreError,
};
use attune_store_sqlite::SqliteStore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Long enough that only a fault reaches it.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(DEADLINE, future)
        .await
        .with_context(|| format!("not within {DEADLINE:?}: {what}"))
}

/// SQLite, which can be made to refuse.
struct TestStore {
    inner: SqliteStore,
    refuses: AtomicBool,
    tries: AtomicUsize,
}

impl TestStore {
    async fn open() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            inner: SqliteStore::temporary().await?,
            refuses: AtomicBool::new(false),
            tries: AtomicUsize::new(0),
        }))
    }

    async fn letters(&self) -> Result<Vec<DeadLetter>> {
        let filter = DeadLetterFilter::default();
        Ok(self.inner.list_dead_letters(&filter, None, 1_000).await?)
    }
}

#[async_trait]
impl DeadLetterStore for TestStore {
    async fn add_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<(), StoreError> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        if self.refuses.load(Ordering::SeqCst) {
            return Err(StoreError::Statement("as the test wants".into()));
        }
        self.inner.add_dead_letters(letters).await
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.list_dead_letters(filter, before, limit).await
    }

    async fn find_dead_letter(&self, id: i64) -> Result<Option<(DeadLetter, Vec<u8>)>, StoreError> {
        self.inner.find_dead_letter(id).await
    }

    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        self.inner.begin_requeue(requeue).await
    }

    async fn mark_requeued(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        self.inner.mark_requeued(requeue).await
    }

    async fn prune_dead_letters(&self, keep: DeadLetterRetention) -> Result<u64, StoreError> {
        self.inner.prune_dead_letters(keep).await
    }
}

struct Rig {
    bus: Arc<MemoryBus>,
    store: Arc<TestStore>,
    stop: CancellationToken,
}

impl Rig {
    async fn new() -> Result<Self> {
        Ok(Self {
            bus: Arc::new(MemoryBus::new()),
            store: TestStore::open().await?,
            stop: CancellationToken::new(),
        })
    }

    async fn start(&self, options: CollectorOptions) -> Result<CollectorHandle> {
        let (bus, store) = (self.bus.clone(), self.store.clone());
        Ok(Collector::start(options, bus, store, self.stop.clone()).await?)
    }

    async fn publish(&self, number: u128, body: &[u8]) -> Result<()> {
        let mut letter = Outgoing::new(Topic::DeadLetters, Uuid::from_u128(number), body.to_vec());
        letter.headers = vec![
            (DEAD_LETTER_REASON.to_owned(), format!("reason {number}")),
            (
                DEAD_LETTER_TOPIC.to_owned(),
                "enforcement.created".to_owned(),
            ),
        ];
        Ok(self.bus.publish(vec![letter]).await?)
    }

    /// Waits until the bus has nothing that is not acknowledged.
    async fn drained(&self) -> Result<()> {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        within("the dead letters are acknowledged", async {
            while self.bus.unsettled(&Topic::DeadLetters) > 0 {
                look.tick().await;
            }
        })
        .await
    }

    async fn stop(&self, handle: CollectorHandle) -> Result<()> {
        self.stop.cancel();
        Ok(within("it stops", handle.stopped()).await??)
    }
}

fn options() -> CollectorOptions {
    CollectorOptions {
        secrets: attune_secrets::Keyring::default(),
        max_message_bytes: 100_000,
    }
}

fn message(action: &str) -> Vec<u8> {
    let id = Uuid::from_u128(77);
    format!(
        r#"{{"message_id":"{id}","message_type":"enforcement.created","version":1,"timestamp":"2026-01-02T03:04:05Z","payload":{{"action_ref":"{action}"}}}}"#
    )
    .into_bytes()
}

#[tokio::test]
async fn letters_reach_the_store_once_and_are_acknowledged() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish(1, &message("a.b")).await?;
    rig.publish(2, &vec![0xff; 9_000]).await?;
    // The same letter again, before and after it was written.
    rig.publish(1, &message("a.b")).await?;
    let handle = rig.start(options()).await?;
    rig.drained().await?;
    rig.publish(2, &vec![0xff; 9_000]).await?;
    rig.drained().await?;
    let mut letters = rig.store.letters().await?;
    letters.sort_by(|one, other| one.reason.cmp(&other.reason));
    let [whole, garbage] = &letters[..] else {
        anyhow::bail!("{letters:?}")
    };
    ensure!(whole.reason == "reason 1" && whole.source == "enforcement.created");
    ensure!(!whole.truncated && garbage.truncated && garbage.bytes == 9_000);
    let counters = handle.counters();
    ensure!((counters.received.get(), counters.kept.get()) == (4, 4));

    // It goes back as it came, to where it came from.
    let found = rig.store.inner.find_dead_letter(whole.id).await?;
    let (letter, body) = found.context("it is there")?;
    let Ok(again) = put_back(&letter, body) else {
        anyhow::bail!("{letter:?}")
    };
    ensure!(again.topic == Topic::Enforcements && again.body == message("a.b"));
    rig.stop(handle).await
}

/// As every service does it: what a subscriber cannot use ends in the store, reason and all.
#[tokio::test]
async fn what_a_service_buries_is_kept() -> Result<()> {
    let rig = Rig::new().await?;
    let handle = rig.start(options()).await?;
    let topic = Topic::Completed;
    let mut subscriber = rig
        .bus
        .subscribe(Subscription {
            topic: topic.clone(),
            prefetch: 1,
        })
        .await?;
    let bad = Outgoing::new(topic.clone(), Uuid::now_v7(), "nonsense");
    rig.bus.publish(vec![bad]).await?;
    let delivery = within("a delivery", subscriber.next()).await?;
    let delivery = delivery.context("the bus is open")?;
    let settler = subscriber.settler();
    dead_letter(&*rig.bus, &settler, &topic, &delivery, "not\0 usable").await?;
    rig.drained().await?;
    let letters = rig.store.letters().await?;
    ensure!(letters.len() == 1 && letters[0].source == "execution.completed");
    ensure!(letters[0].reason == "not\u{fffd} usable", "{letters:?}");
    rig.stop(handle).await
}

#[tokio::test]
async fn while_the_store_refuses_nothing_is_acknowledged_or_lost() -> Result<()> {
    let rig = Rig::new().await?;
    rig.store.refuses.store(true, Ordering::SeqCst);
    let handle = rig.start(options()).await?;
    for number in 0..100 {
        rig.publish(number, &message("a.b")).await?;
    }
    let mut troubles = handle.troubles();
    let said = troubles.wait_for(|said| {
        said.as_ref()
            .is_some_and(|said| said.contains("as the test wants"))
    });
    within("it says so", said).await??;
    let mut look = tokio::time::interval(Duration::from_millis(5));
    within("it tries again", async {
        while rig.store.tries.load(Ordering::SeqCst) < 3 {
            look.tick().await;
        }
    })
    .await?;
    ensure!(rig.bus.unsettled(&Topic::DeadLetters) == 100);
    // Another one takes over where the first had to stop.
    rig.stop(handle).await?;
    ensure!(rig.bus.unsettled(&Topic::DeadLetters) == 100);
    rig.store.refuses.store(false, Ordering::SeqCst);
    let next = Rig {
        stop: CancellationToken::new(),
        ..rig
    };
    let handle = next.start(options()).await?;
    next.drained().await?;
    ensure!(next.store.letters().await?.len() == 100);
    ensure!(handle.troubles().borrow().is_none());
    next.stop(handle).await
}

#[tokio::test]
async fn a_closed_bus_ends_it_with_an_error() -> Result<()> {
    let rig = Rig::new().await?;
    let handle = rig.start(options()).await?;
    rig.bus.close().await;
    ensure!(within("it ends", handle.stopped()).await?.is_err());
    Ok(())
}
