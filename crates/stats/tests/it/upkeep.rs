//! The history is maintained at the start, after every interval, and in spite of failures.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use attune_bus::Bus;
use attune_bus::memory::MemoryBus;
use attune_stats::StatsOptions;

use crate::support::{FakeStore, Persisting, RETENTION, options, unavailable, within};

#[tokio::test]
async fn the_history_is_maintained_at_the_start_and_then_rests() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::working();
    let persisting = Persisting::start(options(), &bus, &store).await?;
    store.seen("upkeep", |seen| !seen.upkeep.is_empty()).await?;
    let counters = persisting.handle.counters();
    persisting.stop().await?;
    assert_eq!(store.now().upkeep, [RETENTION]);
    assert_eq!(counters.maintained.get(), 1);
    Ok(())
}

#[tokio::test]
async fn it_is_repeated_and_goes_on_after_a_failure() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::with_upkeep(
        |_, _| Ok(()),
        |round| {
            if round == 1 {
                Err(unavailable())
            } else {
                Ok(())
            }
        },
    );
    let often = StatsOptions {
        maintenance_interval: Duration::from_millis(5),
        ..options()
    };
    let persisting = Persisting::start(often, &bus, &store).await?;
    store
        .seen("four rounds", |seen| seen.upkeep.len() >= 4)
        .await?;
    let counters = persisting.handle.counters();
    persisting.stop().await?;
    let rounds = store.now().upkeep.len() as u64;
    assert_eq!(counters.maintained.get(), rounds - 1);
    Ok(())
}

#[tokio::test]
async fn a_panic_of_the_store_is_not_swallowed() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let store = FakeStore::with_upkeep(|_, _| Ok(()), |_| panic!("a fault of the store"));
    let persisting = Persisting::start(options(), &bus, &store).await?;
    let stopped = tokio::spawn(persisting.handle.stopped());
    let ended = within("it ends", stopped).await?;
    assert!(ended.is_err_and(|error| error.is_panic()));
    Ok(())
}
