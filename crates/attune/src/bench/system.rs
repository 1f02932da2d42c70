//! The system under load, on either wiring.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use attune_bench::{Group, Scenario};
use attune_bus::Bus;
use attune_cli::Trust;
use attune_config::{Settings, Wiring};
use attune_store::Store;
use tempfile::TempDir;

use super::api::ThroughApi;
use super::embedded::Embedded;
use super::interrupt::Interrupt;
use super::processes::Processes;
use super::scenario_run::Plan;

/// How many executions a worker of the benchmark runs at once: enough that slots of workers are
/// never what is short.
const WORKER_SLOTS: usize = 1024;

/// A system that exists for one scenario, with everything it keeps in a folder of its own.
pub(super) struct System {
    folder: TempDir,
    kind: Kind,
}

enum Kind {
    Embedded(Box<Embedded>),
    Processes(Box<Processes>),
}

impl System {
    /// Prepares the folder; nothing runs yet.
    pub(super) fn new(settings: &Settings, plan: &Plan<'_>) -> anyhow::Result<Self> {
        let (wiring, workers) = (plan.wiring, plan.workers);
        let folder = tempfile::Builder::new()
            .prefix("attune-bench-")
            .tempdir()
            .context("no folder for temporary files")?;
        let mut settings = settings_in(settings, wiring, folder.path());
        if let Some(slots) = plan.scenario.slots {
            settings.worker.slots = slots.div_ceil(usize::from(workers.max(1)));
        }
        let kind = match wiring {
            Wiring::Embedded => {
                let history = history_in(folder.path());
                Kind::Embedded(Box::new(Embedded::new(settings, workers, history)))
            }
            Wiring::PostgresRabbitmq => {
                let counts = (plan.executors, workers);
                let mut processes = Processes::new(settings, counts, folder.path());
                processes.has_api = plan.through_api.is_some();
                Kind::Processes(Box::new(processes))
            }
        };
        Ok(Self { folder, kind })
    }

    /// Where workers record what they do.
    pub(super) fn history(&self) -> PathBuf {
        history_in(self.folder.path())
    }

    /// Starts everything and returns when it serves. What was started before an error is ended
    /// by [`clean`](Self::clean).
    pub(super) async fn start(
        &mut self,
        scenario: &Scenario,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        match &mut self.kind {
            Kind::Embedded(embedded) => embedded.start(scenario, interrupt).await,
            Kind::Processes(processes) => processes.start(scenario, interrupt).await,
        }
    }

    /// The processes that are part of it, the servers among them as far as they can be found.
    pub(super) fn groups(&self) -> Vec<Group> {
        match &self.kind {
            Kind::Embedded(_) => Embedded::groups(),
            Kind::Processes(processes) => processes.groups(),
        }
    }

    /// How many messages the bus has taken from all of them, if that is known.
    pub(super) async fn published(&self) -> Option<u64> {
        match &self.kind {
            Kind::Embedded(embedded) => embedded.published(),
            Kind::Processes(processes) => processes.published().await,
        }
    }

    /// How many bytes the database server has written ahead, if it has a log that says so.
    pub(super) async fn wal_position(&self) -> Option<u64> {
        match &self.kind {
            Kind::Embedded(_) => None,
            Kind::Processes(processes) => processes.wal_position().await,
        }
    }

    /// How many transactions the database has seen, if it says so.
    pub(super) async fn transactions(&self) -> Option<u64> {
        match &self.kind {
            Kind::Embedded(_) => None,
            Kind::Processes(processes) => processes.transactions().await,
        }
    }

    /// How many completions its workers have sent twice.
    pub(super) fn sent_twice(&self) -> u64 {
        match &self.kind {
            Kind::Embedded(embedded) => embedded.sent_twice(),
            Kind::Processes(processes) => processes.sent_twice(),
        }
    }

    /// The store and the bus, once it is started.
    pub(super) fn ports(&self) -> anyhow::Result<(Arc<dyn Store>, Arc<dyn Bus>)> {
        let ports = match &self.kind {
            Kind::Embedded(embedded) => embedded.ports(),
            Kind::Processes(processes) => processes.ports(),
        };
        ports.context("the system was not started")
    }

    /// A client of its API.
    pub(super) async fn through_api(&self, trust: &Trust) -> anyhow::Result<ThroughApi> {
        match &self.kind {
            Kind::Embedded(_) => anyhow::bail!("the embedded system has no API in a benchmark"),
            Kind::Processes(processes) => processes.through_api(trust).await,
        }
    }

    /// How many partitions it has.
    pub(super) fn partitions(&self) -> u16 {
        match &self.kind {
            Kind::Embedded(embedded) => embedded.settings.cluster.partitions,
            Kind::Processes(processes) => processes.settings.cluster.partitions,
        }
    }

    /// Resolves when a part of it has broken down. Cancel safe.
    pub(super) async fn failure(&mut self) -> anyhow::Error {
        match &mut self.kind {
            Kind::Embedded(embedded) => embedded.failure().await,
            Kind::Processes(processes) => processes.failure().await,
        }
    }

    /// Stops the roles, so that their records are complete; the store can still be read. Returns
    /// what did not stop as it should.
    pub(super) async fn stop(&mut self, interrupt: &Interrupt) -> Vec<String> {
        match &mut self.kind {
            Kind::Embedded(embedded) => embedded.stop().await,
            Kind::Processes(processes) => processes.stop(interrupt).await,
        }
    }

    /// What the processes wrote last, for a failure that is to be explained.
    pub(super) fn logs(&self) -> String {
        match &self.kind {
            Kind::Embedded(_) => String::new(),
            Kind::Processes(processes) => processes.logs(),
        }
    }

    /// Stops what still runs and takes everything away, as far as that is possible; with `keep`
    /// the folder and the database stay, and it is said where.
    pub(super) async fn clean(mut self, keep: bool, interrupt: &Interrupt) {
        for problem in self.stop(interrupt).await {
            tracing::debug!("{problem}");
        }
        match &mut self.kind {
            Kind::Embedded(embedded) => embedded.clean().await,
            Kind::Processes(processes) => processes.clean(keep).await,
        }
        if keep {
            eprintln!("attune: kept {}", self.folder.keep().display());
        }
    }
}

/// Where workers record what they do.
pub(super) fn history_in(folder: &Path) -> PathBuf {
    folder.join("history")
}

/// Where the completion listener records what it does, where that is wanted: in a folder of its
/// own, so that it can be read while the workers write.
pub(super) fn listener_in(history: &Path) -> PathBuf {
    history.join("listener")
}

/// The settings of the system: the given ones, except that everything goes into the folder, that
/// workers have room and record, and that no role takes a port.
fn settings_in(settings: &Settings, wiring: Wiring, folder: &Path) -> Settings {
    let mut settings = settings.clone();
    settings.wiring = wiring;
    settings.data_dir = folder.join("data");
    // The workers record: it is from their runs that order and limits are judged.
    settings.history.dir = None;
    settings.worker.slots = WORKER_SLOTS;
    settings.worker.work_dir = Some(folder.join("work"));
    settings.metrics.listen = None;
    settings
}
