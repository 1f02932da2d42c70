//! Snapshots reach the store: the newest of each action, and many in one write.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Topic};
use attune_core::ActionId;
use attune_record::{Record, Recorder, read_dir};
use attune_stats::{StatsError, StatsOptions, StatsPersister};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::support::{
    FakeStore, Persisting, assert_all_acknowledged, options, publish, snapshot, within,
};

#[tokio::test]
async fn a_change_is_written_at_once() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 1)]).await?;
    let seen = store
        .seen("a write", |seen| !seen.writes.is_empty())
        .await?;
    assert_eq!(seen.stored, BTreeMap::from([(1, 1)]));
    let counters = persisting.handle.counters();
    persisting.stop().await?;
    assert_eq!(
        (
            counters.received.get(),
            counters.written.get(),
            counters.writes.get()
        ),
        (1, 1, 1)
    );
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn what_is_written_is_recorded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let recording = StatsOptions {
        recorder: Some(Recorder::create(dir.path(), "stats")?),
        ..options()
    };
    let persisting = Persisting::start(recording, &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 4)]).await?;
    persisting.stop().await?;
    assert_eq!(store.now().stored, BTreeMap::from([(1, 4)]));
    let written: Vec<Record> = read_dir(dir.path())?.collect::<Result<_, _>>()?;
    let [Record::StatsWritten { t_ns, .. }] = written[..] else {
        panic!("{written:?}")
    };
    let expected = Record::StatsWritten {
        action_id: ActionId(1),
        version: 4,
        enqueued: 3,
        completed: 1,
        cancelled: 0,
        expired: 0,
        waiting: 1,
        active: 1,
        t_ns,
    };
    assert_eq!(written, [expected]);
    Ok(())
}

#[tokio::test]
async fn what_is_ready_shares_one_write_with_the_newest_of_each_action() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    bus.declare(&Topic::QueueStats).await?;
    for version in [3, 9, 5] {
        publish(&*bus, &[snapshot(1, version), snapshot(2, version + 1)]).await?;
        publish(&*bus, &[snapshot(3, version)]).await?;
    }
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    let seen = store
        .seen("a write", |seen| !seen.writes.is_empty())
        .await?;
    assert_eq!(seen.stored, BTreeMap::from([(1, 9), (2, 10), (3, 9)]));
    persisting.stop().await?;
    assert_eq!(store.now().writes, [3]);
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn changes_soon_after_a_write_share_the_next() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 1)]).await?;
    store
        .seen("the first write", |seen| seen.writes.len() == 1)
        .await?;
    for version in 2..=100 {
        publish(&*bus, &[snapshot(1, version), snapshot(2, version)]).await?;
    }
    let counters = persisting.handle.counters();
    within("all are received", async {
        while counters.received.get() < 199 {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    assert_eq!(store.now().writes, [1], "the interval is an hour");
    // The stop is a reason not to wait for its end.
    persisting.stop().await?;
    let seen = store.now();
    assert_eq!(
        (seen.writes, seen.stored),
        (vec![1, 2], BTreeMap::from([(1, 100), (2, 100)]))
    );
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn the_interval_ends_by_itself() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let quick = StatsOptions {
        min_interval: Duration::from_millis(20),
        ..options()
    };
    let persisting = Persisting::start(quick, &bus, &store).await?;
    for version in 1..=20 {
        publish(&*bus, &[snapshot(1, version)]).await?;
        store
            .seen("the version", |seen| seen.stored.get(&1) == Some(&version))
            .await?;
    }
    persisting.stop().await
}

#[tokio::test]
async fn a_full_prefetch_is_written_without_waiting() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 1)]).await?;
    store
        .seen("the first write", |seen| seen.writes.len() == 1)
        .await?;
    // Nothing is acknowledged before it is written: without a write, no more would come.
    for version in 2..=1000 {
        publish(&*bus, &[snapshot(version % 7 + 1, version)]).await?;
    }
    let written = |version: i64| {
        move |seen: &crate::support::Seen| seen.stored.values().any(|v| *v >= version)
    };
    store.seen("768 of 999 messages", written(769)).await?;
    persisting.stop().await?;
    let seen = store.now();
    assert!(
        seen.stored
            .values()
            .copied()
            .eq([994, 995, 996, 997, 998, 999, 1000]),
        "{seen:?}"
    );
    assert!(seen.writes.len() <= 6, "{seen:?}");
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn several_persisters_share() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let quick = StatsOptions {
        min_interval: Duration::ZERO,
        ..options()
    };
    let first = Persisting::start(quick.clone(), &bus, &store).await?;
    let second = Persisting::start(quick, &bus, &store).await?;
    for version in 1..=200 {
        publish(&*bus, &[snapshot(1, version)]).await?;
    }
    store
        .seen("the newest", |seen| seen.stored.get(&1) == Some(&200))
        .await?;
    let (a, b) = (first.handle.counters(), second.handle.counters());
    first.stop().await?;
    second.stop().await?;
    assert_eq!(a.received.get() + b.received.get(), 200);
    assert!(a.received.get() > 0 && b.received.get() > 0);
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn a_closed_bus_ends_it_with_an_error() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    bus.close().await;
    let ended = within("it ends", persisting.handle.stopped()).await?;
    assert!(matches!(ended, Err(StatsError::BusClosed)));
    let again = Persisting::start(options(), &bus, &store).await;
    assert!(again.is_err());
    Ok(())
}

#[tokio::test]
async fn impossible_options_are_refused() {
    for bad in [
        StatsOptions {
            max_message_bytes: 0,
            ..options()
        },
        StatsOptions {
            maintenance_interval: Duration::ZERO,
            ..options()
        },
    ] {
        let bus = Arc::new(MemoryBus::new());
        let stop = CancellationToken::new();
        let started = StatsPersister::start(bad, bus, FakeStore::working(), stop).await;
        assert!(matches!(started, Err(StatsError::Options(_))));
    }
}
