//! Servers that are not there yet when a daemon starts, or not there any more when it ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use attune_testkit::{Broker, Database, Launch, Process, Proxy, Way, variable, wait_for};
use futures_util::future::try_join_all;
use sqlx::Executor as _;
use tempfile::TempDir;

/// How long a process that is told to end may take: 30 s besides what its programs are given, which is
/// one here, and some for a busy machine.
const END: Duration = Duration::from_secs(38);

/// Servers of one test, and the ways to them.
struct Servers {
    to_database: Proxy,
    to_broker: Proxy,
    env: BTreeMap<String, String>,
    folder: TempDir,
    database: Database,
    _broker: Broker,
}

impl Servers {
    async fn create() -> anyhow::Result<Self> {
        let (database, broker) = tokio::try_join!(Database::create(), Broker::create())?;
        let to_database = Proxy::start(database.url()).await?;
        let to_broker = Proxy::start(broker.url()).await?;
        let settings = [
            ("database.url", to_database.url(database.url())?),
            ("broker.url", to_broker.url(broker.url())?),
            ("broker.prefix", broker.prefix().to_owned()),
            ("cluster.partitions", "1".to_owned()),
            ("worker.drain_seconds", "1".to_owned()),
            ("worker.allow_root", "true".to_owned()),
            ("log.format", "text".to_owned()),
        ];
        let settings = settings.into_iter().filter(|(_, value)| !value.is_empty());
        Ok(Self {
            to_database,
            to_broker,
            env: settings
                .map(|(key, value)| (variable(key), value))
                .collect(),
            folder: tempfile::Builder::new().prefix("attune-it-").tempdir()?,
            database,
            _broker: broker,
        })
    }

    fn launch(&self, role: &str) -> Launch {
        Launch {
            name: role.to_owned(),
            binary: env!("CARGO_BIN_EXE_attune").into(),
            args: vec![role.to_owned()],
            env: self.env.clone(),
            folder: self.folder.path().to_owned(),
        }
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let mut migrate = Process::spawn(self.launch("migrate"))?;
        ensure!(migrate.end().await?.success(), "{}", migrate.tail());
        Ok(())
    }

    /// Starts a role that cannot work; gives what it says.
    async fn refused(&self, role: &str, settings: &[(&str, &str)]) -> anyhow::Result<String> {
        let mut launch = self.launch(role);
        for (key, value) in settings {
            launch.env.insert(variable(key), (*value).to_owned());
        }
        let mut process = Process::spawn(launch)?;
        let end = process.end().await?;
        let log = process.log();
        ensure!(!end.success(), "{role} {settings:?} ends well: {log}");
        Ok(log)
    }
}

/// A process that speaks where nobody of its cluster listens does not start, whichever role it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_process_under_another_prefix_is_refused() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.migrate().await?;
    let mut executor = Process::start(servers.launch("executor")).await?;
    for role in ["executor", "worker", "completion-listener", "stats", "api"] {
        let log = servers
            .refused(role, &[("broker.prefix", "elsewhere.")])
            .await?;
        let words = ["under the prefix `elsewhere.`", "set them alike"];
        ensure!(
            words.iter().all(|words| log.contains(words)),
            "{role}: {log}"
        );
    }
    executor.stop().await
}

/// A process with another database than those whose messages are there does not start, whichever role
/// it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_process_of_another_system_is_refused() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.migrate().await?;
    let mut executor = Process::start(servers.launch("executor")).await?;
    let other = Database::create().await?;
    let settings = [("database.url", other.url())];
    let mut migrate = servers.launch("migrate");
    migrate
        .env
        .insert(variable("database.url"), other.url().to_owned());
    let mut migrate = Process::spawn(migrate)?;
    ensure!(migrate.end().await?.success(), "{}", migrate.tail());
    for role in ["executor", "worker", "completion-listener", "stats", "api"] {
        let log = servers.refused(role, &settings).await?;
        let words = ["another system with a database of its own", "broker.prefix"];
        ensure!(
            words.iter().all(|words| log.contains(words)),
            "{role}: {log}"
        );
    }
    executor.stop().await
}

/// A daemon waits for each server and for the schema, says for which, and goes on when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_servers_come_late() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    let (to_database, to_broker) = (&servers.to_database, &servers.to_broker);
    to_database.cut();
    to_broker.cut();
    let mut executor = Process::spawn(servers.launch("executor"))?;
    let says = async |words: &str| {
        wait_for(&format!("the words {words:?} in the log"), async || {
            let log = executor.log();
            ensure!(log.contains(words), "{log}");
            Ok(())
        })
        .await
    };
    says(&format!(
        "waiting for PostgreSQL at {} for 0 s",
        to_database.address()
    ))
    .await?;
    to_database.restore();
    says("waiting for the schema").await?;
    servers.migrate().await?;
    says(&format!(
        "waiting for RabbitMQ at {} for 0 s",
        to_broker.address()
    ))
    .await?;
    let log = executor.log();
    ensure!(!log.contains("Owner") && executor.is_running()?, "{log}");
    to_broker.restore();
    executor.ready().await?;
    executor.stop().await
}

/// Daemons that are told to end while a server has stopped answering, without closing a connection,
/// end in time and well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_servers_that_fall_silent_hold_up_no_end() -> anyhow::Result<()> {
    let database = ends_without(|servers| &servers.to_database);
    let broker = ends_without(|servers| &servers.to_broker);
    tokio::try_join!(database, broker).map(drop)
}

async fn ends_without(silent: impl Fn(&Servers) -> &Proxy) -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.migrate().await?;
    let roles = ["executor", "worker", "completion-listener"];
    let started = roles.map(|role| Process::start(servers.launch(role)));
    let mut daemons = try_join_all(started).await?;
    silent(&servers).set(Way::HalfOpen);
    let told = Instant::now();
    try_join_all(daemons.iter_mut().map(Process::stop)).await?;
    ensure!(told.elapsed() < END, "{:?}", told.elapsed());
    Ok(())
}

/// Whoever migrates does not wait for as long as somebody holds the list of migrations: what starts after
/// it would wait as well. And while it waits for something else it ends when it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_migration_that_cannot_go_on_ends() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.migrate().await?;
    let mut lock = servers.database.connect().await?;
    for (table, ends_by_itself) in [("schema_migration", true), ("cluster", false)] {
        let locked = format!("BEGIN; LOCK TABLE attune.{table} IN ACCESS EXCLUSIVE MODE");
        lock.execute(sqlx::AssertSqlSafe(locked)).await?;
        let mut migrate = Process::spawn(servers.launch("migrate"))?;
        if ends_by_itself {
            let ended = migrate.end().await?;
            ensure!(ended.code() == Some(1), "{ended}");
            let words = "the schema cannot be looked at";
            ensure!(migrate.log().contains(words), "{}", migrate.log());
        } else {
            let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted
                         AND relation = 'attune.cluster'::regclass";
            wait_for("a wait for the table", async || {
                let waiting: i64 = sqlx::query_scalar(waits).fetch_one(&mut lock).await?;
                ensure!(waiting > 0, "nobody waits");
                Ok(())
            })
            .await?;
            let told = Instant::now();
            let ended = format!("{:#}", migrate.stop().await.expect_err("it was not done"));
            ensure!(ended.contains("143"), "{ended}");
            ensure!(told.elapsed() < END, "{:?}", told.elapsed());
        }
        lock.execute("ROLLBACK").await?;
    }
    servers.migrate().await
}
