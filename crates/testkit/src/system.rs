//! A whole system under test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::accounts::Accounts;
use crate::chaos::Clocks;
use crate::launching::{first_key, launch, migrate};
use crate::setup::{Setup, Wiring};
use crate::wait::{wait_for, within};
use crate::{Answer, Api, Broker, Database, Process, Proxy};

/// What the API says once it listens.
const LISTENS: &str = "Attune listens on ";
/// What the other daemons say once they serve their metrics.
const METRICS: &str = "server.address=";

/// A system that runs, as one process or as several. Everything of it is gone when it is dropped;
/// [`stop`](Self::stop) also checks that it ends well.
#[derive(Debug)]
pub struct System {
    /// Its HTTP interface; the address stays the same when the API is restarted.
    pub api: Api,
    setup: Setup,
    // Before the servers, which cannot go while they are used.
    processes: Mutex<BTreeMap<String, Process>>,
    servers: Option<Servers>,
    folder: TempDir,
}

/// What a cluster runs on.
#[derive(Debug)]
struct Servers {
    database: Database,
    broker: Broker,
    /// The way to the database and the way to the broker.
    proxies: Option<(Proxy, Proxy)>,
}

impl Servers {
    async fn start(proxied: bool) -> anyhow::Result<Self> {
        let (database, broker) = tokio::try_join!(Database::create(), Broker::create())?;
        let proxies = if proxied {
            Some((
                Proxy::start(database.url()).await?,
                Proxy::start(broker.url()).await?,
            ))
        } else {
            None
        };
        Ok(Self {
            database,
            broker,
            proxies,
        })
    }

    fn settings(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let (database, broker) = (self.database.url(), self.broker.url());
        let (database, broker) = match &self.proxies {
            Some((to_database, to_broker)) => (to_database.url(database)?, to_broker.url(broker)?),
            None => (database.to_owned(), broker.to_owned()),
        };
        Ok(vec![
            ("database.url", database),
            ("broker.url", broker),
            ("broker.prefix", self.broker.prefix().to_owned()),
        ])
    }
}

impl System {
    /// Starts a system and waits until it is ready for work.
    ///
    /// # Errors
    /// When something of it does not start; with the end of its log.
    pub async fn start(mut setup: Setup) -> anyhow::Result<Self> {
        // Short, because the names of sockets must be.
        let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
        let servers = match setup.wiring {
            Wiring::Embedded => None,
            Wiring::Cluster => Some(Servers::start(setup.proxied).await?),
        };
        complete(&mut setup, servers.as_ref(), folder.path())?;
        let mut names = vec!["standalone".to_owned()];
        if setup.wiring == Wiring::Cluster {
            if let (Some(statements), Some(servers)) = (setup.prepared, &servers) {
                let mut database = servers.database.connect().await?;
                sqlx::raw_sql(statements).execute(&mut database).await?;
            }
            migrate(&setup, folder.path()).await?;
            if let (true, Some(servers)) = (setup.has_accounts, &servers) {
                let operator = launch(&setup, "operator", folder.path())?;
                let (broker, database) = (&servers.broker, &servers.database);
                setup.accounts = Accounts::make(&operator, broker, database).await?;
                let [api, listener, executor] =
                    ["attune-api", "attune-listener", "attune-executor"]
                        .map(|part| setup.accounts.user(part));
                let parts = format!("{api}, {listener}, {executor}");
                for (key, value) in [
                    ("broker.topology", "passive"),
                    ("broker.require_user_id", "true"),
                    ("broker.impersonators", &api),
                    ("broker.parts", &parts),
                ] {
                    setup = setup.set(key, value);
                }
            }
            names = ["completion-listener", "stats", "api"]
                .map(str::to_owned)
                .into();
            match setup.executors {
                1 => names.push("executor".to_owned()),
                count => names.extend((1..=count).map(|number| format!("executor-{number}"))),
            }
            names.extend((1..=setup.workers).map(|number| format!("worker-{number}")));
        }
        let starting = names
            .iter()
            .map(async |name| Process::start(launch(&setup, name, folder.path())?).await);
        let started = try_join_all(starting).await?;
        let processes: BTreeMap<_, _> = names.into_iter().zip(started).collect();
        let api = &processes[serving(setup.wiring)];
        let base = wait_for("the address of the API", async || {
            api.announced(LISTENS).context("it is not told")
        })
        .await?;
        let place = base
            .strip_prefix("http://")
            .context("an address without http://")?;
        setup
            .settings
            .insert("api.listen".to_owned(), place.to_owned());
        let processes = Mutex::new(processes);
        let mut api = Api::new(base)?;
        if setup.asks_for_keys() {
            api = api.with_key(first_key(&setup, folder.path()).await?);
        }
        let system = Self {
            api,
            setup,
            processes,
            servers,
            folder,
        };
        if let Err(error) = system.api.until_ready().await {
            return Err(error.context(system.logs().await));
        }
        Ok(system)
    }

    /// Sets the wall clock of one of its processes so many seconds apart from the right time;
    /// only in a system [with clocks](Setup::clocks).
    ///
    /// # Errors
    /// When the clock cannot be written.
    pub fn set_clock(&self, name: &str, seconds: i64) -> anyhow::Result<()> {
        Clocks::new(self.folder.path().join("clocks"))?.set(name, seconds)
    }

    /// On what it runs.
    #[must_use]
    pub fn wiring(&self) -> Wiring {
        self.setup.wiring
    }

    /// The program under test.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.setup.binary
    }

    /// A folder of the test's own.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where its workers record what they run.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.folder.path().join("history")
    }

    /// The database of a cluster.
    ///
    /// # Errors
    /// When it has none.
    pub fn database(&self) -> anyhow::Result<&Database> {
        Ok(&self
            .servers
            .as_ref()
            .context("the embedded wiring has no database server")?
            .database)
    }

    /// The broker of a cluster.
    ///
    /// # Errors
    /// When it has none.
    pub fn broker(&self) -> anyhow::Result<&Broker> {
        Ok(&self
            .servers
            .as_ref()
            .context("the embedded wiring has no broker")?
            .broker)
    }

    /// As whom the broker knows a part of a system [with accounts](Setup::accounts), such as `attune-worker-gpu`.
    #[must_use]
    pub fn user_of(&self, part: &str) -> String {
        self.setup.accounts.user(part)
    }

    /// Where a part of such a system reaches the broker.
    ///
    /// # Errors
    /// When it has no user.
    pub fn broker_of(&self, part: &str) -> anyhow::Result<&str> {
        self.setup.accounts.broker(part)
    }

    /// A connection to the database as a part of such a system.
    ///
    /// # Errors
    /// When it has no login, or the server refuses.
    pub async fn database_as(&self, part: &str) -> anyhow::Result<sqlx::PgConnection> {
        self.setup.accounts.connect(part).await
    }

    /// The ways to the database and to the broker.
    ///
    /// # Errors
    /// When it was not set up with them.
    pub fn proxies(&self) -> anyhow::Result<(&Proxy, &Proxy)> {
        let proxies = self
            .servers
            .as_ref()
            .and_then(|servers| servers.proxies.as_ref());
        let (database, broker) = proxies.context("it was set up without proxies")?;
        Ok((database, broker))
    }

    /// The names of its processes.
    pub async fn names(&self) -> Vec<String> {
        self.processes.lock().await.keys().cloned().collect()
    }

    /// Asks a process to stop, expects it to end well, and starts it again.
    ///
    /// # Errors
    /// When it does not end well or does not start again.
    pub async fn restart(&self, name: &str) -> anyhow::Result<()> {
        self.halt(name).await?;
        self.start_again(name).await
    }

    /// Asks a process to stop, and expects it to end well.
    ///
    /// # Errors
    /// When it does not.
    pub async fn halt(&self, name: &str) -> anyhow::Result<()> {
        self.take(name).await?.stop().await
    }

    /// Kills a process, as a crash would, and starts it again.
    ///
    /// # Errors
    /// When it does not start again.
    pub async fn crash(&self, name: &str) -> anyhow::Result<()> {
        self.kill(name).await?;
        self.start_again(name).await
    }

    /// Kills a process.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self, name: &str) -> anyhow::Result<()> {
        self.take(name).await?.kill().await
    }

    /// Starts a process that was stopped or killed.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_again(&self, name: &str) -> anyhow::Result<()> {
        self.start_with(name, &[]).await
    }

    /// Likewise, with these settings besides those of the system.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_with(&self, name: &str, settings: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut setup = self.setup.clone();
        for (key, value) in settings {
            setup = setup.set(key, value);
        }
        let process = Process::start(launch(&setup, name, self.folder.path())?).await?;
        self.processes.lock().await.insert(name.to_owned(), process);
        Ok(())
    }

    /// Likewise, as this program, which another release may have built.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_as(&self, name: &str, program: &Path) -> anyhow::Result<()> {
        let mut launch = launch(&self.setup, name, self.folder.path())?;
        launch.binary = program.to_owned();
        let process = Process::start(launch).await?;
        self.processes.lock().await.insert(name.to_owned(), process);
        Ok(())
    }

    /// The number of a process.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pid(&self, name: &str) -> anyhow::Result<u32> {
        let processes = self.processes.lock().await;
        let id = processes.get(name).map(Process::pid);
        id.with_context(|| format!("{name} does not run"))
    }

    /// Lets a process stand still until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self, name: &str) -> anyhow::Result<()> {
        let processes = self.processes.lock().await;
        let process = processes.get(name);
        process
            .with_context(|| format!("there is no process {name}"))?
            .pause()
    }

    /// Lets a process go on.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn resume(&self, name: &str) -> anyhow::Result<()> {
        let processes = self.processes.lock().await;
        let process = processes.get(name);
        process
            .with_context(|| format!("there is no process {name}"))?
            .resume()
    }

    async fn take(&self, name: &str) -> anyhow::Result<Process> {
        let process = self.processes.lock().await.remove(name);
        process.with_context(|| format!("there is no process {name}"))
    }

    /// What stands behind `mark` in the log of a process, the last time it was written.
    pub async fn announced(&self, name: &str, mark: &str) -> Option<String> {
        self.processes.lock().await.get(name)?.announced(mark)
    }

    /// A metric of the role that decides, which on the embedded wiring the API serves.
    ///
    /// # Errors
    /// When there is no such metric.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        self.metric_of("executor", name).await
    }

    /// A metric of a process of a cluster; the embedded wiring has only one.
    ///
    /// # Errors
    /// When there is no such metric.
    pub async fn metric_of(&self, process: &str, name: &str) -> anyhow::Result<f64> {
        self.probes_of(process).await?.metric(name).await
    }

    /// What a process of a cluster answers at `/readyz`; the embedded wiring has only one.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn ready(&self, process: &str) -> anyhow::Result<Answer> {
        self.probes_of(process).await?.get("/readyz").await
    }

    /// Where a process serves its probes and metrics.
    async fn probes_of(&self, process: &str) -> anyhow::Result<Api> {
        if self.setup.wiring == Wiring::Embedded || process == "api" {
            return Api::new(self.api.base().to_owned());
        }
        let address = self.announced(process, METRICS).await;
        let address = address.with_context(|| format!("{process} does not serve metrics"))?;
        Api::new(format!("http://{address}"))
    }

    /// Runs the binary to its end as a client of this system, and returns its exit code, stdout
    /// and stderr.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn client(&self, args: &[&str]) -> anyhow::Result<(i32, String, String)> {
        let mut command = Command::new(&self.setup.binary);
        command.args(args).env("ATTUNE_URL", self.api.base());
        if let Some(key) = self.api.key() {
            command.env("ATTUNE_KEY", key);
        }
        self.outcome(command).await
    }

    /// Likewise, as an operator on a machine of this system: with its settings.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn command(&self, args: &[&str]) -> anyhow::Result<(i32, String, String)> {
        self.command_of(&self.setup.binary, args).await
    }

    /// Likewise, with this program, which another release may have built.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn command_of(
        &self,
        program: &Path,
        args: &[&str],
    ) -> anyhow::Result<(i32, String, String)> {
        let launch = launch(&self.setup, "operator", self.folder.path())?;
        let mut command = Command::new(program);
        command.args(args).envs(launch.env);
        self.outcome(command).await
    }

    async fn outcome(&self, mut command: Command) -> anyhow::Result<(i32, String, String)> {
        command
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .current_dir(self.folder.path());
        let what = format!("the end of {:?}", command.as_std().get_args());
        let output = within(&what, command.output()).await??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = output.status.code().context("it was killed")?;
        Ok((code, text(output.stdout), text(output.stderr)))
    }

    /// The ends of all logs.
    pub async fn logs(&self) -> String {
        let mut logs = String::new();
        for (name, process) in self.processes.lock().await.iter() {
            logs += &format!("--- the log of {name} ends with:\n{}\n", process.tail());
        }
        logs
    }

    /// Asks everything to stop: first who brings work, last who records its end.
    ///
    /// # Errors
    /// When something does not end well.
    pub async fn stop(self) -> anyhow::Result<()> {
        let mut processes = self.processes.lock().await;
        for (name, process) in processes.iter_mut() {
            ensure!(
                process.is_running()?,
                "{name} has ended by itself:\n{}",
                process.tail()
            );
        }
        // Roles do not depend on the order in which others stop, so all at once.
        try_join_all(processes.values_mut().map(Process::stop)).await?;
        Ok(())
    }
}

/// The process that serves HTTP.
fn serving(wiring: Wiring) -> &'static str {
    match wiring {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "api",
    }
}

/// The settings that follow from where it runs.
fn complete(setup: &mut Setup, servers: Option<&Servers>, folder: &Path) -> anyhow::Result<()> {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let mut settings = vec![
        ("api.listen", "127.0.0.1:0".to_owned()),
        ("history.dir", path("history")),
        ("worker.work_dir", path("work")),
    ];
    std::fs::create_dir_all(folder.join("work"))?;
    match servers {
        None => settings.push(("data_dir", path("data"))),
        Some(servers) => settings.extend(servers.settings()?),
    }
    for (key, value) in settings {
        setup.settings.entry(key.to_owned()).or_insert(value);
    }
    Ok(())
}
