//! The system in this process: SQLite in a temporary folder, and the bus in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_bench::{Group, Scenario};
use attune_bus::Bus;
use attune_config::Settings;
use attune_runtime::{Health, Metrics, Shutdown};
use attune_store::Store;

use super::interrupt::{Interrupt, nothing_fails};
use super::prepare::{apply, hold, setting_up};
use super::system::listener_in;
use super::workers::Workers;
use crate::parts::Parts;
use crate::roles::{self, Role};

/// How long the start may take.
const START: Duration = Duration::from_secs(60);
/// How long the roles may take to stop.
const STOP: Duration = Duration::from_secs(30);

/// The system in this process.
pub(super) struct Embedded {
    pub(super) settings: Settings,
    workers: u16,
    /// Where the workers record what they run.
    history: PathBuf,
    /// Stops the roles but the workers, apart from the benchmark itself.
    shutdown: Shutdown,
    /// Stops the workers, which come first: what they ran is settled by the others.
    of_workers: Shutdown,
    parts: Option<Parts>,
    in_process: Workers,
    stopped: bool,
}

impl Embedded {
    pub(super) fn new(settings: Settings, workers: u16, history: PathBuf) -> Self {
        Self {
            settings,
            workers,
            history,
            shutdown: Shutdown::new(),
            of_workers: Shutdown::new(),
            parts: None,
            in_process: Workers::default(),
            stopped: false,
        }
    }

    pub(super) async fn start(
        &mut self,
        scenario: &Scenario,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let opening = Parts::open(&self.settings, "bench", &interrupt.stop);
        let opened = interrupt
            .phase("the store", START, nothing_fails(), opening)
            .await?;
        let parts = self.parts.insert(opened).clone();
        let limit = setting_up(START, scenario);
        let preparing = async {
            apply(&parts.store, scenario, self.settings.cluster.partitions).await?;
            hold(parts.store.as_ref(), scenario).await
        };
        interrupt
            .phase("the actions", limit, nothing_fails(), preparing)
            .await?;
        let (settings, shutdown, of_workers) = (&self.settings, &self.shutdown, &self.of_workers);
        let starting = async {
            let (health, metrics) = (Health::new(), Metrics::new());
            let mut of_listener = settings.clone();
            if scenario.doubled.is_some() {
                of_listener.history.dir = Some(listener_in(&self.history));
            }
            let (services, listener) = ([Role::Stats, Role::Executor], [Role::CompletionListener]);
            roles::start(&of_listener, &listener, &parts, &health, &metrics, shutdown).await?;
            let running =
                roles::start(settings, &services, &parts, &health, &metrics, shutdown).await?;
            let workers = Workers::start(
                scenario,
                (settings, &parts),
                self.workers,
                &self.history,
                (&health, &metrics),
                of_workers,
            );
            let workers = workers.await?;
            let view = running
                .executor
                .context("the executor is one of the roles")?;
            roles::all_owned(&view, settings.cluster.partitions).await?;
            anyhow::Ok(workers)
        };
        self.in_process = interrupt
            .phase("the roles to start", limit, nothing_fails(), starting)
            .await?;
        Ok(())
    }

    /// The one process there is.
    pub(super) fn groups() -> Vec<Group> {
        vec![Group {
            name: "standalone".to_owned(),
            root: std::process::id(),
        }]
    }

    /// Messages that the bus has taken.
    pub(super) fn published(&self) -> Option<u64> {
        let parts = self.parts.as_ref()?;
        Some(parts.bus_figures.published.get())
    }

    /// Completions that were sent twice.
    pub(super) fn sent_twice(&self) -> u64 {
        self.in_process.sent_twice()
    }

    pub(super) fn ports(&self) -> Option<(Arc<dyn Store>, Arc<dyn Bus>)> {
        self.parts
            .as_ref()
            .map(|parts| (parts.store.clone(), parts.bus.clone()))
    }

    /// Resolves when a role has died; why is in the log and told by [`stop`](Self::stop).
    pub(super) async fn failure(&self) -> anyhow::Error {
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = self.of_workers.cancelled() => {}
        }
        anyhow!("a part of the system died")
    }

    pub(super) async fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.stopped, true) || self.parts.is_none() {
            return Vec::new();
        }
        let mut failures = Vec::new();
        for shutdown in [&self.of_workers, &self.shutdown] {
            shutdown.cancel();
            let stopped = shutdown.wait(STOP).await;
            failures.extend(stopped.err().map(|error| error.to_string()));
        }
        failures
    }

    pub(super) async fn clean(&mut self) {
        if let Some(parts) = self.parts.take() {
            parts.close().await;
        }
    }
}
