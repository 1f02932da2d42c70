//! The system as separate processes of this program, on PostgreSQL and RabbitMQ that run: in a
//! database of its own and under a prefix of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_bus::{Bus, Topic};
use attune_bus_rabbitmq::RabbitBus;
use attune_config::{PrintFormat, Secret, Settings};
use attune_core::{ActionSpec, PartitionId};
use attune_store::Store;
use attune_store_postgres::TemporaryDatabase;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::daemon::{Daemon, Launcher, Readiness};
use super::interrupt::{Interrupt, nothing_fails};
use super::system::history_in;
use crate::parts;

/// How long connecting, and making or removing a database, may take.
const CONNECT: Duration = Duration::from_secs(30);
/// How long the migration may take.
const MIGRATE: Duration = Duration::from_secs(60);
/// How long the processes may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// How long the executor may take to own every partition.
const OWN: Duration = Duration::from_secs(60);
/// How long the processes may take to stop.
const STOP: Duration = Duration::from_secs(30);
/// How often processes and leases are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The system as separate processes.
pub(super) struct Processes {
    pub(super) settings: Settings,
    workers: u16,
    folder: PathBuf,
    /// What names the database and the prefix.
    name: String,
    bus: Option<Arc<RabbitBus>>,
    database: Option<TemporaryDatabase>,
    store: Option<Arc<dyn Store>>,
    daemons: Vec<Daemon>,
    stopped: bool,
}

impl Processes {
    pub(super) fn new(mut settings: Settings, workers: u16, folder: &Path) -> Self {
        let name = format!(
            "attune_bench_{}",
            &Uuid::new_v4().simple().to_string()[..12]
        );
        settings.broker.prefix = format!("{name}.");
        Self {
            settings,
            workers,
            folder: folder.to_owned(),
            name,
            bus: None,
            database: None,
            store: None,
            daemons: Vec::new(),
            stopped: false,
        }
    }

    pub(super) async fn start(
        &mut self,
        actions: &[ActionSpec],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        self.connect(interrupt).await?;
        let launcher = self.launcher()?;
        self.migrate(&launcher, interrupt).await?;
        let opening = parts::store(&self.settings, "bench", &interrupt.stop);
        let store = interrupt
            .phase("the store", CONNECT, nothing_fails(), opening)
            .await?;
        self.store = Some(Arc::clone(&store));
        // Before the executor starts, so that it knows them from the beginning.
        let partitions = self.settings.cluster.partitions;
        let applying = async {
            for action in actions {
                store.apply_action(action, partitions, "bench").await?;
            }
            Ok(())
        };
        interrupt
            .phase("the actions", MIGRATE, nothing_fails(), applying)
            .await?;
        self.start_daemons(&launcher, interrupt).await?;
        let owning = all_owned(store.as_ref());
        interrupt
            .phase("all partitions to be owned", OWN, self.failure(), owning)
            .await
    }

    /// Connects to both servers, once, and makes the database: what is not there now is not
    /// waited for.
    async fn connect(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let options = parts::rabbit_options(&self.settings, "bench");
        let broker = format!("RabbitMQ at {}", self.settings.broker.url.endpoint());
        let connecting = async { Ok(RabbitBus::connect(options).await?) };
        let bus = interrupt
            .phase(&broker, CONNECT, nothing_fails(), connecting)
            .await?;
        self.bus = Some(Arc::new(bus));
        let (url, name) = (
            self.settings.database.url.expose().clone(),
            self.name.clone(),
        );
        let server = format!(
            "a database on PostgreSQL at {}",
            self.settings.database.url.endpoint()
        );
        let creating = async { Ok(TemporaryDatabase::create(&url, &name).await?) };
        let database = interrupt
            .phase(&server, CONNECT, nothing_fails(), creating)
            .await?;
        self.settings.database.url = Secret::new(database.url().to_owned());
        self.database = Some(database);
        Ok(())
    }

    /// Writes the settings of the processes, all but the URLs, which hold passwords.
    fn launcher(&self) -> anyhow::Result<Launcher> {
        let (urls, mut shown) = (&self.settings, self.settings.clone());
        let defaults = Settings::default();
        shown.database.url = defaults.database.url;
        shown.broker.url = defaults.broker.url;
        let config = self.folder.join("attune.yaml");
        std::fs::write(&config, shown.print(PrintFormat::Yaml))
            .with_context(|| format!("{} cannot be written", config.display()))?;
        Ok(Launcher {
            folder: self.folder.clone(),
            config,
            secrets: vec![
                ("ATTUNE__DATABASE__URL", urls.database.url.expose().clone()),
                ("ATTUNE__BROKER__URL", urls.broker.url.expose().clone()),
            ],
        })
    }

    async fn migrate(&mut self, launcher: &Launcher, interrupt: &Interrupt) -> anyhow::Result<()> {
        let (daemon, _) = launcher.start("migrate", "migrate", &[])?;
        self.daemons.push(daemon);
        let migrate = self.daemons.last_mut().context("it was pushed just now")?;
        interrupt
            .phase("the schema", MIGRATE, nothing_fails(), migrate.wait())
            .await?;
        self.daemons.clear();
        Ok(())
    }

    /// Starts all roles at once and waits until each has said that it is ready.
    async fn start_daemons(
        &mut self,
        launcher: &Launcher,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let mut waited: Vec<(String, Readiness)> = Vec::new();
        let history = history_in(&self.folder).display().to_string();
        for role in ["stats", "completion-listener", "executor"] {
            let (daemon, readiness) = launcher.start(role, role, &[])?;
            waited.push((role.to_owned(), readiness));
            self.daemons.push(daemon);
        }
        for number in 1..=self.workers {
            let name = format!("worker-{number}");
            let own_name = format!("bench-{name}");
            let variables = [
                ("ATTUNE__WORKER__NAME", own_name.as_str()),
                ("ATTUNE__HISTORY__DIR", &history),
            ];
            let (daemon, readiness) = launcher.start(&name, "worker", &variables)?;
            waited.push((name, readiness));
            self.daemons.push(daemon);
        }
        for (name, readiness) in waited {
            let what = format!("{name} to be ready");
            interrupt
                .phase(&what, READY, self.failure(), readiness.ready())
                .await?;
        }
        Ok(())
    }

    pub(super) fn ports(&self) -> Option<(Arc<dyn Store>, Arc<dyn Bus>)> {
        let (store, bus) = (self.store.clone()?, self.bus.clone()?);
        Some((store, bus))
    }

    /// Resolves when a process has ended that should run. Cancel safe.
    pub(super) async fn failure(&mut self) -> anyhow::Error {
        loop {
            if let Some(ended) = self.daemons.iter_mut().find_map(Daemon::ended) {
                return anyhow!(ended);
            }
            sleep(LOOK).await;
        }
    }

    pub(super) async fn stop(&mut self, interrupt: &Interrupt) -> Vec<String> {
        if std::mem::replace(&mut self.stopped, true) {
            return Vec::new();
        }
        for daemon in &self.daemons {
            daemon.terminate();
        }
        let deadline = Instant::now() + STOP;
        let mut problems = Vec::new();
        for daemon in &mut self.daemons {
            problems.extend(daemon.gone(deadline, &interrupt.hurry).await);
        }
        problems
    }

    /// The ends of the logs.
    pub(super) fn logs(&self) -> String {
        let tail = |daemon: &Daemon| format!("--- {}\n{}\n", daemon.name(), daemon.tail());
        self.daemons.iter().map(tail).collect()
    }

    pub(super) async fn clean(&mut self, keep: bool) {
        if let Some(bus) = self.bus.take() {
            let topics = kept_topics(self.settings.cluster.partitions);
            tell("the broker's queues", bounded(bus.remove(&topics)).await);
            bus.close().await;
        }
        if let Some(store) = self.store.take() {
            store.close().await;
        }
        match self.database.take() {
            Some(database) if keep => eprintln!("attune: kept the database {}", database.name()),
            Some(database) => {
                tell(
                    &format!("the database {}", self.name),
                    bounded(database.remove()).await,
                );
            }
            None => {}
        }
    }
}

/// Waits until every partition has an owner.
async fn all_owned(store: &dyn Store) -> anyhow::Result<()> {
    loop {
        let leases = store.leases().await?;
        if !leases.is_empty() && leases.iter().all(|lease| lease.owner.is_some()) {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// Every topic of the system whose queue stays on the broker.
fn kept_topics(partitions: u16) -> Vec<Topic> {
    let single = [Topic::Enforcements, Topic::Completed, Topic::QueueStats];
    let each = (0..partitions)
        .map(PartitionId)
        .flat_map(|partition| [Topic::Commands(partition), Topic::Control(partition)]);
    single.into_iter().chain(each).collect()
}

async fn bounded<E>(work: impl Future<Output = Result<(), E>>) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    Ok(timeout(CONNECT, work)
        .await
        .context("no answer in time")??)
}

/// Cleaning goes on after a failure; what is left is told.
fn tell(what: &str, cleaned: anyhow::Result<()>) {
    if let Err(error) = cleaned {
        eprintln!("attune: {what} could not be removed: {error:#}");
    }
}
