//! The executor as a role.

use std::time::Duration;

use anyhow::Context as _;
use attune_config::Settings;
use attune_executor::owner::Trouble;
use attune_executor::{QueueConfig, QueuesView};
use attune_executor_service::{ExecutorError, ExecutorOptions, ExecutorProgress};
use attune_runtime::{Health, Metrics, Shutdown, retry_until_ready, systemd};
use tokio::sync::watch;

use super::{Own, bounds, clamp, show_troubles, spawn};
use crate::parts::{Parts, senders, settle};

/// What keeps an executor from its work for longer than this makes the process not ready, in
/// milliseconds.
pub(super) const TROUBLE: i64 = 20_000;

/// A loop of an executor that makes no round for longer than this stands still.
const STANDSTILL: Duration = Duration::from_secs(30);

/// What can be seen of an executor from outside.
pub(crate) struct ExecutorView {
    pub(crate) queues: QueuesView,
    pub(crate) owned: watch::Receiver<usize>,
}

pub(super) async fn start_executor(
    settings: &Settings,
    parts: &Parts,
    (health, metrics): (&Health, &Metrics),
    ((stop, ended), recorder): Own,
    shutdown: &Shutdown,
) -> anyhow::Result<ExecutorView> {
    let executor = &settings.executor;
    if let Some(recorder) = &recorder {
        recorder.record(bounds(settings));
    }
    let options = ExecutorOptions {
        name: executor.name_or_host(),
        partitions: settings.cluster.partitions,
        lease_ttl: executor.lease.ttl(),
        queue: QueueConfig {
            max_queue_length: clamp(executor.queue.max_queue_length),
            queue_timeout_seconds: clamp(executor.queue.queue_timeout_seconds),
        },
        batch_max_items: executor.batch.max_items,
        lane_length: executor.lanes.max_ahead,
        prefetch: executor.intake.prefetch,
        reconcile_interval: executor.reconcile.interval(),
        worker_grace: settings.worker.lease.grace(),
        stats_interval: settings.stats.publish_interval(),
        max_message_bytes: settings.broker.max_message_bytes,
        senders: senders(settings, "executor")?,
        secrets: crate::secrets::keyring(settings)?,
        recorder,
        progress: progress(settings, health),
        spans: metrics.spans().clone(),
    };
    let starting = retry_until_ready("what the executor needs", shutdown, || async {
        let (store, bus) = (parts.store.clone(), parts.bus.clone());
        let started =
            attune_executor_service::start(options.clone(), store, bus, stop.clone()).await;
        settle(started, ExecutorError::is_transient)
    });
    let handle = starting.await??;
    if executor.queue.enable_metrics {
        handle.export(&metrics.meter("executor"));
    }
    let view = ExecutorView {
        queues: handle.queues().clone(),
        owned: handle.owned(),
    };
    let mut owned = handle.owned();
    shutdown.spawn_finite("executor.status", async move {
        while owned.changed().await.is_ok() {
            systemd::status(&format!("{} partitions owned", *owned.borrow_and_update()));
        }
    });
    let (name, words) = ("executor.decisions", lasting);
    show_troubles(health, name, handle.trouble(), words, shutdown);
    let (name, words) = ("executor.firings", Option::clone);
    show_troubles(health, name, handle.waiting(), words, shutdown);
    spawn(shutdown, "executor", handle.stopped(), ended);
    Ok(view)
}

/// The stamps of its loops. A publication may rightly take as long as the broker may.
fn progress(settings: &Settings, health: &Health) -> ExecutorProgress {
    let publishing = STANDSTILL + settings.broker.publish_timeout();
    ExecutorProgress {
        owner: health.progress("executor.owner", STANDSTILL),
        publisher: health.progress("executor.publisher", publishing),
        settling: health.progress("executor.settling", STANDSTILL),
    }
}

/// What is worth telling of what keeps an executor from its work.
pub(super) fn lasting(trouble: &Option<Trouble>) -> Option<String> {
    let lasting = trouble.as_ref();
    let lasting = lasting.filter(|trouble| trouble.for_ms > TROUBLE)?;
    Some(lasting.words.clone())
}

/// Waits until every partition is owned by the executor of this process.
pub(crate) async fn all_owned(view: &ExecutorView, partitions: u16) -> anyhow::Result<()> {
    let mut owned = view.owned.clone();
    let all = owned.wait_for(|owned| *owned == usize::from(partitions));
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .context("the executor did not take its partitions within 60 s")?
        .context("the executor has stopped")?;
    Ok(())
}
