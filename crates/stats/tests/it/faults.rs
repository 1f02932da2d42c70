//! The store fails or refuses, and messages are no snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC};
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Subscriber, Topic};
use attune_messages::decode_batch;
use attune_messages::v1::QueueSnapshot;
use attune_stats::StatsOptions;
use attune_store::StoreError;

use crate::support::{
    FakeStore, Persisting, assert_all_acknowledged, options, publish, publish_raw, refused,
    snapshot, subscribe, unavailable, within,
};

/// Without an interval between writes.
fn quick() -> StatsOptions {
    StatsOptions {
        min_interval: Duration::ZERO,
        ..options()
    }
}

/// A dead letter: its body, and the reason among its headers.
async fn next_letter(letters: &mut Subscriber) -> Result<(Vec<u8>, String)> {
    let delivery = within("a dead letter", letters.next())
        .await?
        .context("the bus is open")?;
    let header = |name: &str| {
        let mut headers = delivery.headers.iter();
        headers
            .find_map(|(key, value)| (key == name).then(|| value.clone()))
            .with_context(|| format!("no header {name}"))
    };
    assert_eq!(header(DEAD_LETTER_TOPIC)?, "queue.stats");
    Ok((delivery.body.to_vec(), header(DEAD_LETTER_REASON)?))
}

#[tokio::test]
async fn an_outage_keeps_the_newest_until_the_store_is_back() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::new(|call, _| match call {
        0 => Err(unavailable()),
        1 => Err(StoreError::Schema(
            "the schema is being migrated".to_owned(),
        )),
        _ => Ok(()),
    });
    let persisting = Persisting::start(quick(), &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 1), snapshot(2, 1)]).await?;
    store.seen("a failure", |seen| seen.failed >= 1).await?;
    publish(&*bus, &[snapshot(1, 2)]).await?;
    let newest = BTreeMap::from([(1, 2), (2, 1)]);
    let seen = store
        .seen("the newest", |seen| seen.stored == newest)
        .await?;
    assert_eq!(seen.failed, 2);
    persisting.stop().await?;
    assert_all_acknowledged(&*bus).await
}

/// Whether the store is away or refuses: a persister that could write nothing for a while says so
/// until it can.
#[tokio::test]
async fn figures_that_cannot_be_written_for_a_while_are_told() -> Result<()> {
    const PATIENCE: Duration = Duration::from_millis(300);
    type Fault = fn() -> StoreError;
    let why: [(Fault, &str); 2] = [
        (
            unavailable,
            "the store cannot be reached: connection refused",
        ),
        (refused, "the store refused a statement: value out of range"),
    ];
    for (fault, words) in why {
        let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
        let store = FakeStore::new(move |_, _| Err(fault()));
        let patient = StatsOptions {
            write_patience: PATIENCE,
            ..quick()
        };
        let persisting = Persisting::start(patient, &bus, &store).await?;
        let mut troubles = persisting.handle.troubles();
        let began = Instant::now();
        publish(&*bus, &[snapshot(1, 1), snapshot(2, 1)]).await?;
        let told = troubles.wait_for(Option::is_some);
        let told = within("it is told", told).await??.clone();
        let expected = format!("the figures of queues cannot be written: {words}");
        assert_eq!(told, Some(expected));
        assert!(began.elapsed() >= PATIENCE, "a moment is nobody's business");
        store.mend();
        within("it is over", troubles.wait_for(Option::is_none)).await??;
        persisting.stop().await?;
    }
    Ok(())
}

/// As long as some are written, all is well.
#[tokio::test]
async fn a_row_that_is_refused_beside_others_is_no_trouble() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::new(|_, rows| {
        let bad = rows.iter().any(|row| row.stats.action_id.0 == 2);
        if bad { Err(refused()) } else { Ok(()) }
    });
    let impatient = StatsOptions {
        write_patience: Duration::ZERO,
        ..quick()
    };
    let persisting = Persisting::start(impatient, &bus, &store).await?;
    let troubles = persisting.handle.troubles();
    publish(&*bus, &[snapshot(1, 1), snapshot(2, 1)]).await?;
    let written = BTreeMap::from([(1, 1)]);
    store
        .seen("the other", |seen| seen.stored == written)
        .await?;
    persisting.stop().await?;
    assert!(!troubles.has_changed().unwrap_or_default());
    assert_eq!(*troubles.borrow(), None);
    Ok(())
}

#[tokio::test]
async fn a_stop_in_an_outage_leaves_everything_to_the_next() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::new(|_, _| Err(unavailable()));
    let first = Persisting::start(quick(), &bus, &store).await?;
    publish(&*bus, &[snapshot(1, 1)]).await?;
    publish(&*bus, &[snapshot(2, 1)]).await?;
    publish_raw(&*bus, b"nonsense".to_vec()).await?;
    store.seen("a failure", |seen| seen.failed >= 1).await?;
    first.stop().await?;
    assert!(store.now().stored.is_empty());

    store.mend();
    let second = Persisting::start(quick(), &bus, &store).await?;
    store
        .seen("both", |seen| {
            seen.stored == BTreeMap::from([(1, 1), (2, 1)])
        })
        .await?;
    second.stop().await?;
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn a_write_in_flight_is_never_dropped() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(quick(), &bus, &store).await?;
    store.close_gate();
    publish(&*bus, &[snapshot(1, 1)]).await?;
    store.seen("a write begins", |seen| seen.begun == 1).await?;
    publish(&*bus, &[snapshot(1, 2)]).await?;
    persisting.stop.cancel();
    let stopped = tokio::spawn(persisting.handle.stopped());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!stopped.is_finished(), "it waits for the write");
    store.open_gate();
    within("the persister stops", stopped).await???;
    assert_eq!(store.now().stored, BTreeMap::from([(1, 2)]));
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn what_is_no_snapshot_goes_to_the_dead_letters() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let mut letters = subscribe(&*bus, Topic::DeadLetters).await?;
    let persisting = Persisting::start(quick(), &bus, &store).await?;
    let mut huge = snapshot(2, 1);
    huge.stats.total_enqueued = u64::MAX;
    publish_raw(&*bus, b"nonsense".to_vec()).await?;
    publish(&*bus, &[snapshot(1, 1), huge.clone(), snapshot(3, 1)]).await?;
    publish_raw(&*bus, vec![b' '; 64 * 1024 + 1]).await?;

    let (body, reason) = next_letter(&mut letters).await?;
    assert!(
        body == b"nonsense" && reason.starts_with("not a message envelope"),
        "{reason}"
    );
    let (body, reason) = next_letter(&mut letters).await?;
    assert!(
        reason.starts_with("`total_enqueued` is 18446744073709551615"),
        "{reason}"
    );
    assert_eq!(decode_batch::<QueueSnapshot>(&body, body.len())?, [huge]);
    let (_, reason) = next_letter(&mut letters).await?;
    assert!(reason.contains("at most 65536 are allowed"), "{reason}");
    store
        .seen("the others", |seen| {
            seen.stored == BTreeMap::from([(1, 1), (3, 1)])
        })
        .await?;
    let counters = persisting.handle.counters();
    persisting.stop().await?;
    assert_eq!(
        (
            counters.received.get(),
            counters.written.get(),
            counters.poisoned.get()
        ),
        (5, 2, 3)
    );
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn a_row_that_the_store_refuses_does_not_keep_the_others_out() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::new(|_, rows| {
        let bad = rows
            .iter()
            .any(|row| [3, 8].contains(&row.stats.action_id.0));
        if bad { Err(refused()) } else { Ok(()) }
    });
    let mut letters = subscribe(&*bus, Topic::DeadLetters).await?;
    let persisting = Persisting::start(quick(), &bus, &store).await?;
    let all: Vec<_> = (1..=20).map(|action| snapshot(action, 1)).collect();
    publish(&*bus, &all).await?;
    for bad in [3, 8] {
        let (body, reason) = next_letter(&mut letters).await?;
        assert_eq!(reason, "the store refused a statement: value out of range");
        assert_eq!(
            decode_batch::<QueueSnapshot>(&body, body.len())?,
            [snapshot(bad, 1)]
        );
    }
    let good = (1..=20).filter(|action| ![3, 8].contains(action));
    assert!(store.now().stored.into_keys().eq(good));
    persisting.stop().await?;
    assert_all_acknowledged(&*bus).await
}

#[tokio::test]
async fn a_store_that_refuses_everything_is_to_blame_itself() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::new(|_, _| Err(refused()));
    let mut letters = subscribe(&*bus, Topic::DeadLetters).await?;
    let persisting = Persisting::start(quick(), &bus, &store).await?;
    let all: Vec<_> = (1..=100).map(|action| snapshot(action, 1)).collect();
    publish(&*bus, &all).await?;
    // One round asks for a few rows alone, not for each; then it is tried again as a whole.
    store.seen("two rounds", |seen| seen.failed > 25).await?;
    store.mend();
    // Also in the middle of a round, in which some were refused just before.
    store.seen("all", |seen| seen.stored.len() == 100).await?;
    assert!(letters.try_next().is_none());
    persisting.stop().await?;
    assert_all_acknowledged(&*bus).await
}
