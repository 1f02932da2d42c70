//! The system in this process: SQLite in a temporary folder, and the bus in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_bus::Bus;
use attune_config::Settings;
use attune_core::ActionSpec;
use attune_runtime::{Health, Metrics, Shutdown};
use attune_store::Store;

use super::interrupt::{Interrupt, nothing_fails};
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
    /// Stops the roles, apart from the benchmark itself.
    shutdown: Shutdown,
    parts: Option<Parts>,
    stopped: bool,
}

impl Embedded {
    pub(super) fn new(settings: Settings, workers: u16, history: PathBuf) -> Self {
        Self {
            settings,
            workers,
            history,
            shutdown: Shutdown::new(),
            parts: None,
            stopped: false,
        }
    }

    pub(super) async fn start(
        &mut self,
        actions: &[ActionSpec],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let opening = Parts::open(&self.settings, "bench", &interrupt.stop);
        let opened = interrupt
            .phase("the store", START, nothing_fails(), opening)
            .await?;
        let parts = self.parts.insert(opened).clone();
        let (settings, shutdown) = (&self.settings, &self.shutdown);
        let starting = async {
            for action in actions {
                parts
                    .store
                    .apply_action(action, settings.cluster.partitions, "bench")
                    .await?;
            }
            let (health, metrics) = (Health::new(), Metrics::new());
            let services = [Role::Stats, Role::CompletionListener, Role::Executor];
            let running =
                roles::start(settings, &services, &parts, &health, &metrics, shutdown).await?;
            let mut settings = settings.clone();
            settings.history.dir = Some(self.history.clone());
            for number in 1..=self.workers {
                settings.worker.name = Some(format!("bench-worker-{number}"));
                roles::start(
                    &settings,
                    &[Role::Worker],
                    &parts,
                    &health,
                    &metrics,
                    shutdown,
                )
                .await?;
            }
            let view = running
                .executor
                .context("the executor is one of the roles")?;
            roles::all_owned(&view, settings.cluster.partitions).await
        };
        interrupt
            .phase("the roles to start", START, nothing_fails(), starting)
            .await
    }

    pub(super) fn ports(&self) -> Option<(Arc<dyn Store>, Arc<dyn Bus>)> {
        self.parts
            .as_ref()
            .map(|parts| (parts.store.clone(), parts.bus.clone()))
    }

    /// Resolves when a role has died; why is in the log and told by [`stop`](Self::stop).
    pub(super) async fn failure(&self) -> anyhow::Error {
        self.shutdown.cancelled().await;
        anyhow!("a part of the system died")
    }

    pub(super) async fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.stopped, true) || self.parts.is_none() {
            return Vec::new();
        }
        self.shutdown.cancel();
        let stopped = self.shutdown.wait(STOP).await;
        stopped
            .err()
            .map(|error| error.to_string())
            .into_iter()
            .collect()
    }

    pub(super) async fn clean(&mut self) {
        if let Some(parts) = self.parts.take() {
            parts.close().await;
        }
    }
}
