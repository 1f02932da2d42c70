//! A store that does what a test says, and owners that publish snapshots.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use attune_bus::{Bus, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{ActionId, ExecutionId, QueueStats};
use attune_messages::encode;
use attune_messages::v1::QueueSnapshot;
use attune_stats::{StatsHandle, StatsOptions, StatsPersister};
use attune_store::{
    Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, ExecutionStore, HistoryRetention,
    RecordRetention, SlotHolder, Standing, StatsCursor, StatsPage, StatsRow, StatsStore, Stock,
    StoreError, StoredStats,
};
use chrono::Utc;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Long enough that only a fault reaches it.
const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const RETENTION: HistoryRetention = HistoryRetention {
    history: Duration::from_secs(7 * 24 * 3600),
    requests: Duration::from_secs(24 * 3600),
    records: RecordRetention::USUAL,
};

/// Writes are an hour apart unless a test says otherwise, so that a write has a reason other
/// than the time that a slow machine took.
pub(crate) fn options() -> StatsOptions {
    StatsOptions {
        min_interval: HOUR,
        maintenance_interval: HOUR,
        max_message_bytes: 64 * 1024,
        ..StatsOptions::new(RETENTION)
    }
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(DEADLINE, future)
        .await
        .with_context(|| format!("not within {DEADLINE:?}: {what}"))
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable("connection refused".into())
}

pub(crate) fn refused() -> StoreError {
    StoreError::Statement("value out of range".into())
}

/// What a [`FakeStore`] was asked, and what it holds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    /// Versions by action, as they are stored.
    pub(crate) stored: BTreeMap<i64, i64>,
    /// Writes that succeeded: how many rows each had.
    pub(crate) writes: Vec<usize>,
    /// Writes that were begun.
    pub(crate) begun: usize,
    /// Writes that failed.
    pub(crate) failed: usize,
    /// Rounds of upkeep, failed ones too.
    pub(crate) upkeep: Vec<HistoryRetention>,
}

type Fate = dyn Fn(usize, &[StatsRow]) -> Result<(), StoreError> + Send + Sync;
type UpkeepFate = dyn Fn(usize) -> Result<(), StoreError> + Send + Sync;

/// Keeps snapshots as a store does, in memory.
pub(crate) struct FakeStore {
    /// The fate of the nth write, counted from 0.
    fate: Mutex<Arc<Fate>>,
    upkeep_fate: Box<UpkeepFate>,
    /// A write takes a permit before it goes on.
    gate: Semaphore,
    seen: watch::Sender<Seen>,
}

impl FakeStore {
    pub(crate) fn new(
        fate: impl Fn(usize, &[StatsRow]) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_upkeep(fate, |_| Ok(()))
    }

    pub(crate) fn with_upkeep(
        fate: impl Fn(usize, &[StatsRow]) -> Result<(), StoreError> + Send + Sync + 'static,
        upkeep: impl Fn(usize) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            fate: Mutex::new(Arc::new(fate)),
            upkeep_fate: Box::new(upkeep),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            seen: watch::channel(Seen::default()).0,
        })
    }

    pub(crate) fn working() -> Arc<Self> {
        Self::new(|_, _| Ok(()))
    }

    /// From now on every write succeeds.
    pub(crate) fn mend(&self) {
        *self.fate.lock().unwrap() = Arc::new(|_, _| Ok(()));
    }

    /// Holds back every write that begins from now on.
    pub(crate) fn close_gate(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(1000);
    }

    /// What was seen, as soon as it fits.
    pub(crate) async fn seen(&self, what: &str, fits: impl FnMut(&Seen) -> bool) -> Result<Seen> {
        let mut seen = self.seen.subscribe();
        let seen = within(what, seen.wait_for(fits)).await?;
        Ok(seen?.clone())
    }

    pub(crate) fn now(&self) -> Seen {
        self.seen.borrow().clone()
    }
}

#[async_trait]
impl StatsStore for FakeStore {
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError> {
        let number = self.seen.borrow().begun;
        self.seen.send_modify(|seen| seen.begun += 1);
        self.gate.acquire().await.unwrap().forget();
        let fate = Arc::clone(&*self.fate.lock().unwrap());
        let outcome = fate(number, rows);
        self.seen.send_modify(|seen| {
            if outcome.is_err() {
                seen.failed += 1;
                return;
            }
            seen.writes.push(rows.len());
            for row in rows {
                let stored = seen
                    .stored
                    .entry(row.stats.action_id.0)
                    .or_insert(row.version);
                *stored = row.version.max(*stored);
            }
        });
        outcome
    }

    async fn find_by_action(&self, _: ActionId) -> Result<Option<StoredStats>, StoreError> {
        Err(unavailable())
    }

    async fn list_queue_stats(
        &self,
        _after: Option<StatsCursor>,
        _limit: u32,
    ) -> Result<StatsPage, StoreError> {
        Err(unavailable())
    }
}

#[async_trait]
impl ExecutionStore for FakeStore {
    async fn find_execution(&self, _: ExecutionId) -> Result<Option<ExecutionRecord>, StoreError> {
        Err(unavailable())
    }

    async fn find_standing(&self, _: ExecutionId) -> Result<Option<Standing>, StoreError> {
        Err(unavailable())
    }

    async fn find_parameters(&self, _: ExecutionId) -> Result<Option<String>, StoreError> {
        Err(unavailable())
    }

    async fn list_executions(
        &self,
        _: &ExecutionFilter,
        _: Option<Cursor>,
        _: u32,
    ) -> Result<ExecutionPage, StoreError> {
        Err(unavailable())
    }

    async fn slot_holders(
        &self,
        _: ActionId,
        _: Option<ExecutionId>,
        _: u32,
    ) -> Result<Vec<SlotHolder>, StoreError> {
        Err(unavailable())
    }

    async fn maintain_history(&self, keep: HistoryRetention) -> Result<(), StoreError> {
        let number = self.seen.borrow().upkeep.len();
        self.seen.send_modify(|seen| seen.upkeep.push(keep));
        (self.upkeep_fate)(number)
    }

    async fn stock(&self) -> Result<Stock, StoreError> {
        Ok(Stock {
            days_ahead: Some(7),
            of_no_day: 2,
            letters: 3,
        })
    }
}

/// A running persister and the order to stop.
pub(crate) struct Persisting {
    pub(crate) handle: StatsHandle,
    pub(crate) stop: CancellationToken,
}

impl Persisting {
    pub(crate) async fn start(
        options: StatsOptions,
        bus: &Arc<dyn Bus>,
        store: &Arc<FakeStore>,
    ) -> Result<Self> {
        let stop = CancellationToken::new();
        let (bus, store) = (Arc::clone(bus), Arc::clone(store));
        let handle = StatsPersister::start(options, bus, store, stop.clone()).await?;
        Ok(Self { handle, stop })
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        within("the persister stops", self.handle.stopped()).await??;
        Ok(())
    }
}

pub(crate) fn snapshot(action: i64, version: i64) -> QueueSnapshot {
    let stats = QueueStats {
        action_id: ActionId(action),
        queue_length: 1,
        active_count: 1,
        max_concurrent: Some(2),
        oldest_enqueued_at: None,
        total_enqueued: 3,
        total_completed: 1,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    QueueSnapshot { version, stats }
}

/// Publishes a message of snapshots, as an owner does.
pub(crate) async fn publish(bus: &dyn Bus, snapshots: &[QueueSnapshot]) -> Result<()> {
    let id = Uuid::now_v7();
    publish_raw(bus, encode(id, Utc::now(), snapshots)).await
}

/// Publishes any bytes where snapshots belong.
pub(crate) async fn publish_raw(bus: &dyn Bus, body: Vec<u8>) -> Result<()> {
    let message = Outgoing::new(Topic::QueueStats, Uuid::now_v7(), body);
    Ok(bus.publish(vec![message]).await?)
}

pub(crate) async fn subscribe(bus: &dyn Bus, topic: Topic) -> Result<Subscriber> {
    let prefetch = 1000;
    Ok(bus.subscribe(Subscription { topic, prefetch }).await?)
}

/// Asserts that everything that was published is acknowledged: whoever subscribes next receives
/// nothing, not even what comes again.
pub(crate) async fn assert_all_acknowledged(bus: &dyn Bus) -> Result<()> {
    let mut next = subscribe(bus, Topic::QueueStats).await?;
    assert!(next.try_next().is_none(), "something was not acknowledged");
    Ok(())
}
