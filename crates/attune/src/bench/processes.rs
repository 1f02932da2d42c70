//! The system as separate processes of this program, on PostgreSQL and RabbitMQ that run: in a
//! database of its own and under a prefix of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_bench::{Group, Scenario, usage};
use attune_bus::{Bus, Topic};
use attune_bus_rabbitmq::RabbitBus;
use attune_cli::Trust;
use attune_config::{PrintFormat, Secret, Settings};
use attune_core::PartitionId;
use attune_runtime::{Health, Metrics, Shutdown};
use attune_store::Store;
use attune_store_postgres::TemporaryDatabase;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::api::ThroughApi;
use super::daemon::{Daemon, Launcher, Readiness};
use super::interrupt::{Interrupt, nothing_fails};
use super::prepare::{apply, hold, setting_up};
use super::scrape;
use super::system::{history_in, listener_in};
use super::workers::Workers;
use crate::measured::{BusFigures, Measured};
use crate::parts::{self, Parts};

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
/// The process that serves HTTP.
const API: &str = "api";
/// What stands before its address, when it says where it is.
const LISTENS: &str = "Attune listens on ";
/// How often processes and leases are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The system as separate processes.
pub(super) struct Processes {
    pub(super) settings: Settings,
    executors: u16,
    workers: u16,
    /// Whether an API is part of it.
    pub(super) has_api: bool,
    folder: PathBuf,
    /// What names the database and the prefix.
    name: String,
    bus: Option<Arc<RabbitBus>>,
    /// The same, for what is asked for.
    counted: Option<Arc<Measured>>,
    published: Arc<BusFigures>,
    database: Option<TemporaryDatabase>,
    store: Option<Arc<dyn Store>>,
    daemons: Vec<Daemon>,
    inside: Inside,
    stopped: bool,
}

/// Workers in the process of the benchmark: only a bus of its own can be made to send twice.
#[derive(Default)]
struct Inside {
    shutdown: Shutdown,
    parts: Option<Parts>,
    workers: Workers,
}

impl Processes {
    /// So many executors and workers, with these settings.
    pub(super) fn new(
        mut settings: Settings,
        (executors, workers): (u16, u16),
        folder: &Path,
    ) -> Self {
        let name = format!(
            "attune_bench_{}",
            &Uuid::new_v4().simple().to_string()[..12]
        );
        settings.broker.prefix = format!("{name}.");
        Self {
            settings,
            executors,
            workers,
            has_api: false,
            folder: folder.to_owned(),
            name,
            bus: None,
            counted: None,
            published: Arc::default(),
            database: None,
            store: None,
            daemons: Vec::new(),
            inside: Inside::default(),
            stopped: false,
        }
    }

    pub(super) async fn start(
        &mut self,
        scenario: &Scenario,
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
            apply(&store, scenario, partitions).await?;
            hold(store.as_ref(), scenario).await
        };
        let limit = setting_up(MIGRATE, scenario);
        interrupt
            .phase("the actions", limit, nothing_fails(), applying)
            .await?;
        self.start_daemons(scenario, &launcher, interrupt).await?;
        let limit = setting_up(OWN, scenario);
        let owning = all_owned(store.as_ref(), self.executors);
        interrupt
            .phase("all partitions to be owned", limit, self.failure(), owning)
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
        let bus = Arc::new(bus);
        let figures = Arc::clone(&self.published);
        self.counted = Some(Arc::new(Measured::new(bus.clone(), figures)));
        self.bus = Some(bus);
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
        scenario: &Scenario,
        launcher: &Launcher,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let mut waited: Vec<(String, Readiness)> = Vec::new();
        let history = history_in(&self.folder);
        let shown = |path: &Path| path.display().to_string();
        // A port that nobody else has; `/proc` says which.
        let metrics = ("ATTUNE__METRICS__LISTEN", "127.0.0.1:0");
        let of_listener = shown(&listener_in(&history));
        let mut daemons = vec![
            ("stats".to_owned(), "stats"),
            ("completion-listener".to_owned(), "completion-listener"),
        ];
        daemons.extend((1..=self.executors).map(|number| match number {
            1 => ("executor".to_owned(), "executor"),
            _ => (format!("executor-{number}"), "executor"),
        }));
        for (name, role) in daemons {
            let mut variables = vec![metrics];
            if role == "completion-listener" && scenario.doubled.is_some() {
                variables.push(("ATTUNE__HISTORY__DIR", &of_listener));
            }
            let (daemon, readiness) = launcher.start(&name, role, &variables)?;
            waited.push((name, readiness));
            self.daemons.push(daemon);
        }
        if self.has_api {
            let listen =
                ["ATTUNE__API__LISTEN", "ATTUNE__OPS__LISTEN"].map(|it| (it, "127.0.0.1:0"));
            let (daemon, readiness) = launcher.start(API, "api", &listen)?;
            waited.push((API.to_owned(), readiness));
            self.daemons.push(daemon);
        }
        let outside = if scenario.doubled.is_some() {
            0
        } else {
            self.workers
        };
        let of_workers = shown(&history);
        for number in 1..=outside {
            let name = format!("worker-{number}");
            let own_name = format!("bench-{name}");
            let variables = [
                metrics,
                ("ATTUNE__WORKER__NAME", own_name.as_str()),
                ("ATTUNE__HISTORY__DIR", &of_workers),
                // Nobody but the benchmark submits anything.
                ("ATTUNE__WORKER__ALLOW_ROOT", "true"),
            ];
            let (daemon, readiness) = launcher.start(&name, "worker", &variables)?;
            waited.push((name, readiness));
            self.daemons.push(daemon);
        }
        let limit = setting_up(READY, scenario);
        for (name, readiness) in waited {
            let what = format!("{name} to be ready");
            interrupt
                .phase(&what, limit, self.failure(), readiness.ready())
                .await?;
        }
        if outside == 0 {
            self.start_inside(scenario, &history, interrupt).await?;
        }
        Ok(())
    }

    /// Starts the workers in this process, on connections of their own.
    async fn start_inside(
        &mut self,
        scenario: &Scenario,
        history: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let (settings, shutdown) = (&self.settings, &self.inside.shutdown);
        let opening = Parts::open(settings, "bench-worker", &interrupt.stop);
        let parts = interrupt
            .phase(
                "the workers' connections",
                CONNECT,
                nothing_fails(),
                opening,
            )
            .await?;
        let parts: &Parts = self.inside.parts.insert(parts);
        let (health, metrics) = (Health::new(), Metrics::new());
        let starting = Workers::start(
            scenario,
            (settings, parts),
            self.workers,
            history,
            (&health, &metrics),
            shutdown,
        );
        self.inside.workers = interrupt
            .phase("the workers to start", READY, nothing_fails(), starting)
            .await?;
        Ok(())
    }

    /// A client of the API, with a key if it asks for one.
    pub(super) async fn through_api(&self, trust: &Trust) -> anyhow::Result<ThroughApi> {
        let mut daemons = self.daemons.iter();
        let api = daemons.find(|daemon| daemon.name() == API);
        let said = api.and_then(|api| api.said(LISTENS));
        let port = said.and_then(|place| place.rsplit(':').next()?.parse().ok());
        let port = port.context("the API did not say where it listens")?;
        let store = self.store.as_ref().context("the store is open by now")?;
        ThroughApi::new(&self.settings.api, port, store.as_ref(), trust).await
    }

    /// The roles' processes, this one, and the servers that can be found on this machine.
    pub(super) fn groups(&self) -> Vec<Group> {
        let group = |name: &str, root| Group {
            name: name.to_owned(),
            root,
        };
        let roles = self.daemons.iter();
        let mut groups: Vec<_> = roles
            .filter_map(|daemon| Some(group(daemon.name(), daemon.pid()?)))
            .collect();
        groups.push(group("bench", std::process::id()));
        let (database, broker) = (&self.settings.database.url, &self.settings.broker.url);
        let database = usage::server(&database.endpoint(), 5432, "postgres");
        groups.extend(database.map(|root| group("postgresql", root)));
        let broker = usage::server(&broker.endpoint(), 5672, "beam.smp");
        groups.extend(broker.map(|root| group("rabbitmq", root)));
        groups
    }

    /// What all processes have published; unknown as soon as one of them cannot be asked.
    pub(super) async fn published(&self) -> Option<u64> {
        // An API tells its figures to the owners of keys alone.
        if self.has_api {
            return None;
        }
        let mut sum = self.published.published.get();
        let inside = self.inside.parts.as_ref();
        sum += inside.map_or(0, |it| it.bus_figures.published.get());
        for daemon in &self.daemons {
            let port = usage::port_of(daemon.pid()?)?;
            sum += scrape::figure(port, "bus_published_total").await?;
        }
        Some(sum)
    }

    /// How many bytes PostgreSQL has written ahead.
    pub(super) async fn wal_position(&self) -> Option<u64> {
        let position = timeout(CONNECT, self.database.as_ref()?.wal_position()).await;
        position.ok()?.ok()
    }

    /// How many transactions PostgreSQL has seen in the database.
    pub(super) async fn transactions(&self) -> Option<u64> {
        let count = timeout(CONNECT, self.database.as_ref()?.transactions()).await;
        count.ok()?.ok()
    }

    /// Completions that were sent twice.
    pub(super) fn sent_twice(&self) -> u64 {
        self.inside.workers.sent_twice()
    }

    pub(super) fn ports(&self) -> Option<(Arc<dyn Store>, Arc<dyn Bus>)> {
        let (store, bus) = (self.store.clone()?, self.counted.clone()?);
        Some((store, bus))
    }

    /// Resolves when a process has ended that should run. Cancel safe.
    pub(super) async fn failure(&mut self) -> anyhow::Error {
        loop {
            if let Some(ended) = self.daemons.iter_mut().find_map(Daemon::ended) {
                return anyhow!(ended);
            }
            if self.inside.shutdown.is_cancelled() && !self.stopped {
                return anyhow!("a worker in the benchmark's own process died");
            }
            sleep(LOOK).await;
        }
    }

    pub(super) async fn stop(&mut self, interrupt: &Interrupt) -> Vec<String> {
        if std::mem::replace(&mut self.stopped, true) {
            return Vec::new();
        }
        let mut problems = Vec::new();
        // Workers first: the others settle what they ran, and a worker waits for that at its end.
        for workers in [true, false] {
            let deadline = Instant::now() + STOP;
            let daemons = self.daemons.iter_mut();
            let mut daemons: Vec<&mut Daemon> = daemons
                .filter(|daemon| daemon.name().starts_with("worker") == workers)
                .collect();
            for daemon in &daemons {
                daemon.terminate();
            }
            if workers {
                self.inside.shutdown.cancel();
            }
            if workers && self.inside.parts.is_some() {
                let stopped = self.inside.shutdown.wait(STOP).await;
                problems.extend(stopped.err().map(|error| error.to_string()));
            }
            for daemon in &mut daemons {
                problems.extend(daemon.gone(deadline, &interrupt.hurry).await);
            }
        }
        problems
    }

    /// The ends of the logs.
    pub(super) fn logs(&self) -> String {
        let tail = |daemon: &Daemon| format!("--- {}\n{}\n", daemon.name(), daemon.tail());
        self.daemons.iter().map(tail).collect()
    }

    pub(super) async fn clean(&mut self, keep: bool) {
        if let Some(parts) = self.inside.parts.take() {
            parts.close().await;
        }
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

/// Waits until every partition has an owner, and every executor some of them.
async fn all_owned(store: &dyn Store, executors: u16) -> anyhow::Result<()> {
    loop {
        let leases = store.leases().await?;
        let owners: BTreeSet<_> = leases.iter().map(|lease| lease.owner).collect();
        let sharing = usize::from(executors).min(leases.len());
        if !leases.is_empty() && !owners.contains(&None) && owners.len() >= sharing {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// Every topic of the system whose queue stays on the broker.
fn kept_topics(partitions: u16) -> Vec<Topic> {
    let single = [
        Topic::Enforcements,
        Topic::Completed,
        Topic::CompletedKept,
        Topic::QueueStats,
    ];
    let each = (0..partitions).map(PartitionId).flat_map(|partition| {
        [
            Topic::Commands(partition),
            Topic::Calls(partition),
            Topic::Control(partition),
            Topic::ControlKept(partition),
        ]
    });
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
