//! The roles that bring what others have said to where it is kept: the completion listener, and
//! the keeper of statistics and dead letters.

use std::time::Duration;

use attune_bus::BusError;
use attune_completion_listener::{CompletionListener, ListenerError, ListenerOptions};
use attune_config::Settings;
use attune_dead_letters::{Collector, CollectorError, CollectorOptions};
use attune_runtime::{Health, Metrics, Shutdown, retry_until_ready};
use attune_stats::{StatsError, StatsOptions, StatsPersister};
use attune_store::{HistoryRetention, RecordRetention};
use tokio_util::sync::CancellationToken;

use super::{Own, ROUND_BOUND, show_troubles, spawn};
use crate::parts::{Parts, senders, settle};

/// How long a request id is remembered.
const REQUEST_RETENTION: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn start_listener(
    settings: &Settings,
    parts: &Parts,
    (health, metrics): (&Health, &Metrics),
    ((stop, ended), recorder): Own,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let options = ListenerOptions {
        partitions: settings.cluster.partitions,
        prefetch: settings.completion_listener.prefetch,
        max_batch: settings.completion_listener.max_batch,
        max_message_bytes: settings.broker.max_message_bytes,
        senders: senders(settings, "completion-listener")?,
        recorder,
    };
    let starting = retry_until_ready("the completions", shutdown, || async {
        let bus = parts.bus.clone();
        let started = CompletionListener::start(options.clone(), bus, stop.clone()).await;
        settle(started, |error| {
            matches!(error, ListenerError::Subscribe(BusError::Unavailable(_)))
        })
    });
    let handle = starting.await??;
    handle
        .counters()
        .export(&metrics.meter("completion-listener"));
    let (name, words) = ("completions", Option::clone);
    show_troubles(health, name, handle.troubles(), words, shutdown);
    spawn(shutdown, "completion-listener", handle.stopped(), ended);
    Ok(())
}

pub(super) async fn start_stats(
    settings: &Settings,
    parts: &Parts,
    (health, metrics): (&Health, &Metrics),
    ((stop, ended), recorder): Own,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut options = StatsOptions::new(HistoryRetention {
        history: settings.history.retention(),
        requests: REQUEST_RETENTION,
        records: RecordRetention {
            stats: settings.stats.retention(),
            audit: settings.audit.retention(),
            ..RecordRetention::USUAL
        },
    });
    options.min_interval = settings.stats.publish_interval();
    options.max_message_bytes = settings.broker.max_message_bytes;
    options.recorder = recorder;
    options.progress = health.progress("stats.loop", ROUND_BOUND);
    let starting = retry_until_ready("the snapshots", shutdown, || async {
        let (bus, store) = (parts.bus.clone(), parts.store.clone());
        let started = StatsPersister::start(options.clone(), bus, store, stop.clone()).await;
        settle(started, |error| {
            matches!(error, StatsError::Subscribe(BusError::Unavailable(_)))
        })
    });
    let handle = starting.await??;
    handle.export(&metrics.meter("stats"));
    let (name, words) = ("stats.writes", Option::clone);
    show_troubles(health, name, handle.troubles(), words, shutdown);
    start_collector(settings, parts, (health, metrics), stop, shutdown).await?;
    spawn(shutdown, "stats", handle.stopped(), ended);
    Ok(())
}

/// Moves dead letters into the store; a part of the role `stats`, of which there is always one.
async fn start_collector(
    settings: &Settings,
    parts: &Parts,
    (health, metrics): (&Health, &Metrics),
    stop: CancellationToken,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let options = CollectorOptions {
        max_message_bytes: settings.broker.max_message_bytes,
        secrets: crate::secrets::keyring(settings)?,
    };
    let starting = retry_until_ready("the dead letters", shutdown, || async {
        let (bus, store) = (parts.bus.clone(), parts.store.clone());
        let started = Collector::start(options.clone(), bus, store, stop.clone()).await;
        settle(started, |error| {
            matches!(error, CollectorError::Subscribe(BusError::Unavailable(_)))
        })
    });
    let handle = starting.await??;
    handle.export(&metrics.meter("dead-letters"));
    let (name, words) = ("dead letters", Option::clone);
    show_troubles(health, name, handle.troubles(), words, shutdown);
    shutdown.spawn("dead-letters", handle.stopped());
    Ok(())
}
