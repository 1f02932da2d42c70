//! What is made ready before a load: its actions, and that nothing starts before it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use attune_bench::Scenario;
use attune_commands::CommandClient;
use attune_core::{PartitionId, PauseMode, PauseTarget, RequestId};
use attune_store::{Actor, PauseChange, PauseOutcome, Store};
use tokio::task::JoinSet;

/// How many actions are applied at once.
const TOGETHER: usize = 8;
/// What a phase of the start may take more for each action.
const EACH_ACTION: Duration = Duration::from_millis(10);
/// How long telling the owners that what was held may go may take.
const TELL: Duration = Duration::from_secs(30);

/// What a phase of the start may take that otherwise takes `base`.
pub(super) fn setting_up(base: Duration, scenario: &Scenario) -> Duration {
    base + EACH_ACTION.saturating_mul(u32::try_from(scenario.actions).unwrap_or(u32::MAX))
}

/// Applies the actions of a scenario, several at once.
pub(super) async fn apply(
    store: &Arc<dyn Store>,
    scenario: &Scenario,
    partitions: u16,
) -> anyhow::Result<()> {
    let (specs, next) = (Arc::new(scenario.specs()), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TOGETHER {
        let (store, specs, next) = (store.clone(), specs.clone(), next.clone());
        tasks.spawn(async move {
            while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
                store.apply_action(spec, partitions, "bench").await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(applied) = tasks.join_next().await {
        applied??;
    }
    Ok(())
}

/// Holds everything, before anybody owns a partition, where the scenario wants all of it to wait
/// before it starts.
pub(super) async fn hold(store: &dyn Store, scenario: &Scenario) -> anyhow::Result<()> {
    if scenario.held {
        change(store, Some(PauseMode::Pause)).await?;
    }
    Ok(())
}

/// Lets go what is held, and tells it to the owners of all partitions, who would else look for it
/// every few seconds; returns when each of them goes by it.
pub(super) async fn let_go(
    store: &dyn Store,
    client: &CommandClient,
    scenario: &Scenario,
    partitions: u16,
) -> anyhow::Result<()> {
    if !scenario.held {
        return Ok(());
    }
    change(store, None).await?;
    let all = (0..partitions).map(PartitionId);
    for told in client.pauses_changed(all, TELL).await {
        told.context("an owner was not told that its queues go")?;
    }
    Ok(())
}

async fn change(store: &dyn Store, mode: Option<PauseMode>) -> anyhow::Result<()> {
    let change = PauseChange {
        request_id: RequestId::fresh(),
        target: PauseTarget::All,
        mode,
        who: Actor::system("bench"),
        reason: None,
    };
    match store.change_pause(&change).await? {
        PauseOutcome::Stored { .. } => Ok(()),
        PauseOutcome::NoTarget | PauseOutcome::TooMany => bail!("the queues cannot be held"),
    }
}
