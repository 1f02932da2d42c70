//! What every process shows among its metrics, whatever its roles.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attune_config::{Settings, Wiring, host_name};
use attune_runtime::{Counter, Gauge, Label, Metrics, Otlp, process};
use attune_store::{PoolFigures, Store};

use super::Role;
use crate::parts::Parts;

/// How long the end of a process waits for its last figures to be sent.
const LAST_FIGURES: Duration = Duration::from_secs(2);

/// The name of a process beside others that have the same roles.
pub(crate) fn instance(settings: &Settings, roles: &[Role]) -> String {
    match roles {
        [Role::Worker] => settings.worker.name_or_host(),
        roles if roles.contains(&Role::Executor) => settings.executor.name_or_host(),
        _ => host_name(),
    }
}

/// The metrics of a process of this name, which are sent as well where that is wanted.
pub(super) fn of_process(
    settings: &Settings,
    name: &'static str,
    roles: &[Role],
) -> anyhow::Result<Metrics> {
    let metrics = match &settings.otlp.endpoint {
        None => Metrics::new(),
        Some(endpoint) => Metrics::sending(&Otlp {
            endpoint: endpoint.expose().clone(),
            interval: settings.otlp.interval(),
            traces: settings.otlp.traces(),
            role: name,
            instance: instance(settings, roles),
        })?,
    };
    process::export(&metrics, name);
    let partitions = settings.cluster.partitions;
    let help = "Partitions of the cluster, each of which is to have an owner.";
    Gauge::show(
        &metrics.meter("cluster"),
        "cluster.partitions",
        help,
        move || Some(f64::from(partitions)),
    );
    Ok(metrics)
}

/// Shows what goes through store and bus, and how much room there is for what the process writes.
pub(super) fn export_parts(settings: &Settings, parts: &Parts, roles: &[Role], metrics: &Metrics) {
    parts.bus_figures.export(&metrics.meter("bus"));
    export_store(&parts.store, metrics);
    let mut places: Vec<(&'static str, PathBuf)> = Vec::new();
    if settings.wiring == Wiring::Embedded {
        places.push(("data_dir", settings.data_dir.clone()));
    }
    if roles.contains(&Role::Worker) {
        places.push(("work_dir", settings.worker.work_dir_or_temp()));
    }
    if let Some(history) = &settings.history.dir {
        places.push(("history_dir", history.clone()));
    }
    process::export_room(&metrics.meter("disk"), places);
}

/// Reads one of the figures of a pool.
type Read = fn(&PoolFigures) -> f64;

fn export_store(store: &Arc<dyn Store>, metrics: &Metrics) {
    let meter = metrics.meter("store");
    let gauges: [(_, _, Read); 2] = [
        (
            "store.pool.size",
            "Connections to the database that are open, by what they are for.",
            |pool| f64::from(pool.size),
        ),
        (
            "store.pool.idle",
            "Connections to the database that are open and not in use.",
            |pool| pool.idle as f64,
        ),
    ];
    for (name, help, read) in gauges {
        let store = Arc::clone(store);
        Gauge::show_all(&meter, name, help, move || {
            let pools = store.pools();
            pools.into_iter().map(move |pool| (read(&pool), of(&pool)))
        });
    }
    let counters: [(_, _, Read); 3] = [
        (
            "store.calls.total",
            "Calls to the database that have ended.",
            |pool| pool.calls as f64,
        ),
        (
            "store.calls.failed.total",
            "Calls to the database that failed.",
            |pool| pool.failed as f64,
        ),
        (
            "store.calls.seconds.total",
            "How long calls to the database took together, the wait for a connection included.",
            |pool| pool.took.as_secs_f64(),
        ),
    ];
    for (name, help, read) in counters {
        let store = Arc::clone(store);
        Counter::show_all(&meter, name, help, move || {
            let pools = store.pools();
            pools.into_iter().map(move |pool| (read(&pool), of(&pool)))
        });
    }
}

fn of(pool: &PoolFigures) -> Vec<Label> {
    vec![Label::new("pool", pool.pool)]
}

/// Sends what was not sent yet, as far as the collector takes it in time.
pub(super) async fn end(metrics: Metrics) {
    // A thread of its own: the end of the runtime waits for those that it has, and a collector may hang.
    let (done, is_done) = tokio::sync::oneshot::channel();
    let ending = std::thread::Builder::new().spawn(move || {
        metrics.end();
        done.send(()).ok();
    });
    if ending.is_err() || tokio::time::timeout(LAST_FIGURES, is_done).await.is_err() {
        tracing::debug!("the last metrics were not sent in time");
    }
}
