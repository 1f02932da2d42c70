//! Opens the store and the bus that the settings name: the only place that knows the adapters.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use attune_bus::{Bus, BusError, MemoryBus, Topic};
use attune_bus_rabbitmq::{Declaring, QueueType, RabbitBus, RabbitOptions, TlsFiles};
use attune_config::{Settings, Wiring};
use attune_core::{PartitionId, Status};
use attune_routing::Senders;
use attune_runtime::{Shutdown, error_chain, retry_until_ready};
use attune_store::{ExecutionFilter, Store, StoreError};
use attune_store_postgres::{MIGRATE_TRIES, PostgresOptions, PostgresStore, Roles, through_locks};
use attune_store_sqlite::{SqliteOptions, SqliteStore};

use crate::measured::{BusFigures, Measured};

/// What the services work on.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) bus: Arc<dyn Bus>,
    /// What goes through the bus.
    pub(crate) bus_figures: Arc<BusFigures>,
    /// The same bus, when it is inside this process.
    memory: Option<Arc<MemoryBus>>,
    partitions: u16,
}

/// How long a stopping process waits for its last completions to be recorded.
const DRAIN: Duration = Duration::from_secs(10);

impl Parts {
    /// Opens both, waiting for servers that are not there yet.
    pub(crate) async fn open(
        settings: &Settings,
        role: &str,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let store = store(settings, role, shutdown).await?;
        if settings.wiring == Wiring::Embedded {
            // The file belongs to this process alone.
            store
                .migrate()
                .await
                .context("the tables could not be made")?;
        } else {
            wait_for_schema(store.as_ref(), shutdown).await?;
        }
        let partitions = settings.cluster.partitions;
        let made_with = store.partition_count().await;
        let made_with = made_with.context("the number of partitions cannot be read")?;
        if let Some(made_with) = made_with.filter(|made_with| *made_with != partitions) {
            bail!(
                "cluster.partitions is {partitions}, but the cluster was made with {made_with}, \
                 which cannot change: set cluster.partitions to {made_with}"
            );
        }
        let bus_figures = Arc::<BusFigures>::default();
        if settings.wiring == Wiring::Embedded {
            let memory = Arc::new(MemoryBus::new());
            let measured = Measured::new(memory.clone(), Arc::clone(&bus_figures));
            return Ok(Self {
                store,
                bus_figures,
                bus: Arc::new(measured),
                memory: Some(memory),
                partitions,
            });
        }
        let mut options = rabbit_options(settings, role);
        options.reconnects = bus_figures.reconnects.clone();
        let bus = rabbit(settings, options, shutdown).await?;
        // Whoever is refused here leaves no mark there, and who is refused there notes nothing here.
        let noted = store.noted_bus().await;
        let is_noted = is_our_bus(noted, settings, role)?;
        let system = store.system_id().await;
        if let Some(system) = system.context("whose database it is cannot be read")? {
            let marked = retry_until_ready("the mark of this system", shutdown, || async {
                let marked = bus.leave_mark(system).await;
                settle(marked, |error| matches!(error, BusError::Unavailable(_)))
            });
            marked.await??;
        }
        if !is_noted {
            // Not before: what cannot be reached is nobody's place to meet.
            let name = rabbit_options(settings, role).bus_name()?;
            let noted = store.agree_on_bus(&name).await;
            is_our_bus(noted, settings, role)?;
        }
        let measured = Measured::new(bus, Arc::clone(&bus_figures));
        Ok(Self {
            store,
            bus_figures,
            bus: Arc::new(measured),
            memory: None,
            partitions,
        })
    }

    /// Waits until the completions on the bus inside this process are recorded and its dead
    /// letters are in the store: nobody would bring them again. A broker keeps them.
    pub(crate) async fn drain(&self) {
        let Some(bus) = &self.memory else { return };
        let deadline = tokio::time::Instant::now() + DRAIN;
        while bus.unsettled(&Topic::Completed) > 0
            || bus.unsettled(&Topic::CompletedKept) > 0
            || bus.unsettled(&Topic::DeadLetters) > 0
            || (0..self.partitions).map(PartitionId).any(|id| {
                bus.unsettled(&Topic::Control(id)) + bus.unsettled(&Topic::ControlKept(id)) > 0
            })
        {
            if tokio::time::Instant::now() > deadline {
                tracing::warn!(
                    "completions or dead letters were left unrecorded; their executions run again"
                );
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Closes both, the bus first: what it has not acknowledged comes again.
    pub(crate) async fn close(&self) {
        self.bus.close().await;
        self.store.close().await;
    }
}

/// Opens the store.
pub(crate) async fn store(
    settings: &Settings,
    role: &str,
    shutdown: &Shutdown,
) -> anyhow::Result<Arc<dyn Store>> {
    match settings.wiring {
        Wiring::Embedded => {
            let folder = &settings.data_dir;
            std::fs::create_dir_all(folder)
                .with_context(|| format!("data_dir {} cannot be made", folder.display()))?;
            let path = database_file(settings);
            let store = SqliteStore::open(SqliteOptions::new(&path))
                .await
                .with_context(|| format!("{} cannot be opened", path.display()))?;
            Ok(Arc::new(store))
        }
        Wiring::PostgresRabbitmq => {
            let options = postgres_options(settings, role)?;
            let what = format!("PostgreSQL at {}", settings.database.url.endpoint());
            let cause = Mutex::new(String::new());
            let opened = retry_until_ready(&what, shutdown, || async {
                let connected = PostgresStore::connect(options.clone()).await;
                let opened = settle(connected, StoreError::is_transient);
                if let (Err(error), Ok(mut cause)) = (&opened, cause.lock()) {
                    *cause = error_chain(error);
                }
                opened
            });
            let opened = opened.await.map_err(|stopped| match cause.into_inner() {
                Ok(cause) if !cause.is_empty() => anyhow!(cause),
                _ => stopped.into(),
            })?;
            let store = opened.map_err(unframed);
            Ok(Arc::new(store.context("database.url cannot be used")?))
        }
    }
}

/// How to reach the database that the settings name.
pub(crate) fn postgres_options(settings: &Settings, role: &str) -> anyhow::Result<PostgresOptions> {
    let database = &settings.database;
    let mut options = PostgresOptions::new(database.url.expose());
    options.application_name = format!("attune-{role}");
    options.general_connections = database.max_connections;
    options.acquire_timeout = database.acquire_timeout();
    options.statement_timeout = database.statement_timeout();
    options.migrate_statement_timeout = database.migration_timeout();
    // What only looks at the database says nothing on the broker.
    options.broker_user = match role {
        "migrate" | "restore-fence" | "doctor" => None,
        _ => own_user(settings, role)?,
    };
    Ok(options)
}

/// The roles of the database that are asked for.
pub(crate) fn roles(settings: &Settings, prefix: &str, pools: &[String]) -> anyhow::Result<Roles> {
    ensure!(
        settings.wiring == Wiring::PostgresRabbitmq,
        "--grants: `wiring: embedded` has a file and no roles"
    );
    let pools = match pools {
        [] => std::slice::from_ref(&settings.worker.pool),
        pools => pools,
    };
    Roles::new(prefix, pools).context("--grants")
}

/// Grants the roles of the database what they need.
pub(crate) async fn grant(settings: &Settings, roles: &Roles) -> anyhow::Result<()> {
    let store = PostgresStore::connect(postgres_options(settings, "migrate")?).await?;
    let granted = through_locks(MIGRATE_TRIES, || store.grant(roles)).await;
    store.close().await;
    granted.context(
        "--grants: the roles could not be made (it takes CREATEROLE and the tables' owner)",
    )
}

/// Where the embedded wiring has everything.
pub(crate) fn database_file(settings: &Settings) -> PathBuf {
    settings.data_dir.join("attune.db")
}

/// Why no connection can be made, without the words about a statement: none was sent.
fn unframed(error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Statement(source) | StoreError::Forbidden(source) => {
            anyhow::Error::from_boxed(source)
        }
        other => other.into(),
    }
}

/// Connects to the broker.
async fn rabbit(
    settings: &Settings,
    options: RabbitOptions,
    shutdown: &Shutdown,
) -> anyhow::Result<Arc<RabbitBus>> {
    let what = format!("RabbitMQ at {}", settings.broker.url.endpoint());
    let opened = retry_until_ready(&what, shutdown, || async {
        settle(RabbitBus::connect(options.clone()).await, |error| {
            matches!(error, BusError::Unavailable(_))
        })
    });
    Ok(Arc::new(opened.await??))
}

/// Whoever spoke under another prefix or in another virtual host than the rest of its cluster would
/// wait for messages that never come, and every probe would be green. Whether any bus is noted yet.
fn is_our_bus(
    noted: Result<Option<String>, StoreError>,
    settings: &Settings,
    role: &str,
) -> anyhow::Result<bool> {
    let name = rabbit_options(settings, role).bus_name()?;
    let noted = noted.context("which bus the cluster uses cannot be read")?;
    match noted {
        Some(noted) if noted != name => bail!(
            "broker.url and broker.prefix lead to {name}, but all others of this cluster (database.url) \
             meet in {noted}, where nobody would hear of this process: set them alike. If the whole \
             system moves, end every process of it first, and run in the database: \
             UPDATE attune.cluster SET bus = NULL"
        ),
        noted => Ok(noted.is_some()),
    }
}

/// How to reach the broker that the settings name.
pub(crate) fn rabbit_options(settings: &Settings, role: &str) -> RabbitOptions {
    let broker = &settings.broker;
    let mut options = RabbitOptions::new(broker.url.expose());
    options.network = broker.network;
    options.prefix = broker.prefix.clone();
    options.queue_type = match broker.queue_type {
        attune_config::QueueType::Quorum => QueueType::Quorum,
        attune_config::QueueType::Classic => QueueType::Classic,
    };
    options.heartbeat = Duration::from_secs(u64::from(broker.heartbeat_seconds));
    options.publish_timeout = broker.publish_timeout();
    options.max_message_bytes = broker.max_message_bytes;
    options.connection_name = format!("attune-{role}");
    options.names_user = broker.requires_user_id();
    options.declaring = match broker.topology {
        attune_config::BrokerTopology::Apply => Declaring::Apply,
        attune_config::BrokerTopology::Passive => Declaring::Passive,
    };
    let tls = &broker.tls;
    options.tls = TlsFiles {
        ca: tls.ca_file.clone(),
        cert: tls.cert_file.clone(),
        key: tls.key_file.clone(),
    };
    options
}

/// Who may say what on the bus.
pub(crate) fn senders(settings: &Settings, role: &str) -> anyhow::Result<Senders> {
    let broker = &settings.broker;
    if settings.wiring == Wiring::Embedded {
        return Ok(Senders::default());
    }
    ensure!(
        broker.parts.is_empty() || broker.requires_user_id(),
        "broker.parts tells users apart, and broker.require_user_id is false, so that messages name none: leave \
         one of them out"
    );
    Ok(Senders {
        required: broker.requires_user_id(),
        own: own_user(settings, role)?,
        impersonators: broker.impersonators.iter().cloned().collect(),
        parts: broker.parts.iter().cloned().collect(),
    })
}

/// The user as whom the broker vouches for what this process says, where it does.
fn own_user(settings: &Settings, role: &str) -> anyhow::Result<Option<String>> {
    if !settings.broker.requires_user_id() {
        return Ok(None);
    }
    let user = rabbit_options(settings, role).user()?;
    let Some(user) = user else {
        bail!(
            "broker.url logs in by certificate, which does not say as whom: set broker.require_user_id to \
             false, or log in with a user and a password"
        );
    };
    Ok(Some(user))
}

/// Lets only errors that may pass be tried again.
pub(crate) fn settle<T, E>(
    outcome: Result<T, E>,
    transient: impl Fn(&E) -> bool,
) -> Result<Result<T, E>, E> {
    match outcome {
        Err(error) if transient(&error) => Err(error),
        settled => Ok(settled),
    }
}

/// The schema is made by `attune migrate`, which may still run while the daemons start.
async fn wait_for_schema(store: &dyn Store, shutdown: &Shutdown) -> anyhow::Result<()> {
    let checked = retry_until_ready(
        "the schema (`attune migrate` makes it)",
        shutdown,
        || async {
            match store.check().await {
                Err(error) if error.is_transient() || matches!(error, StoreError::Schema(_)) => {
                    Err(error)
                }
                settled => Ok(settled),
            }
        },
    );
    match checked.await? {
        Ok(()) => Ok(()),
        Err(error) => bail!("the store cannot be used: {error}"),
    }
}

/// Whether an execution waits or holds a slot.
pub(crate) async fn has_active(store: &dyn Store) -> Result<bool, StoreError> {
    let filter = ExecutionFilter {
        statuses: vec![Status::Queued, Status::Requested, Status::Running],
        ..ExecutionFilter::default()
    };
    Ok(!store
        .list_executions(&filter, None, 1)
        .await?
        .executions
        .is_empty())
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    async fn refused(url: &str, shutdown: &Shutdown) -> String {
        let flags = [("database.url", url)];
        let settings = Loader::new().flags(flags).load().unwrap().settings;
        let opened = store(&settings, "test", shutdown).await;
        format!("{:#}", opened.err().unwrap())
    }

    #[tokio::test]
    async fn a_url_that_cannot_be_read_is_told_with_the_way_out() {
        let problem = "invalid digit found in string";
        for url in [
            "postgres://u:hunter2@h/d?statement-cache-capacity=many",
            "postgres://u:hunter2@h/d?port=many",
        ] {
            let said = refused(url, &Shutdown::new()).await;
            let start = format!("database.url cannot be used: {problem};");
            assert!(said.starts_with(&start), "{said}");
            assert!(said.ends_with("such as %23 for #"), "{said}");
            assert!(!said.contains("hunter"), "{said}");
        }
    }

    #[tokio::test]
    async fn who_stops_waiting_is_told_the_last_cause() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://u@{}/d", server.local_addr().unwrap());
        let shutdown = Shutdown::new();
        let hang_up = async {
            drop(server.accept().await);
            shutdown.cancel();
        };
        let (said, ()) = tokio::join!(refused(&url, &shutdown), hang_up);
        assert!(
            said.contains("the store cannot be reached: PostgreSQL at 127"),
            "{said}"
        );
    }
}
