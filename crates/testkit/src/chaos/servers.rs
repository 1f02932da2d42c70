//! The rig's own PostgreSQL and RabbitMQ, which nobody else uses and which may be killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::process::Command;

use super::amqp::connect;
use super::lasting_faults::Clocks;
use super::security::Security;
use crate::wait_for;

/// The database and the virtual host of the rig.
pub(crate) const NAME: &str = "attune_chaos";
/// Settings of the broker: a delivery that is not settled after this time costs its channel, as
/// after half an hour in production. Twice as long as a message is left unacknowledged on purpose.
const BROKER_SETTINGS: &str = "{consumer_timeout, 120000}, {channel_tick_interval, 3000}";
/// Prints, one a line, what `scripts/services env` sets.
const PRINT_ENV: &str = r#"lines="$("$1" env)" && eval "$lines" &&
    printf '%s\n' "$ATTUNE_TEST_POSTGRES_URL" "$ATTUNE_TEST_AMQP_URL" "$ATTUNE_SERVICES_DIR""#;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// PostgreSQL.
    Postgres,
    /// RabbitMQ.
    Rabbitmq,
}

impl Server {
    /// Its name in scripts/services.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// The servers; they run until [`down`](Self::down).
#[derive(Debug)]
pub(crate) struct Servers {
    script: PathBuf,
    wanted: PathBuf,
    /// Where they really live.
    folder: PathBuf,
    pub(crate) database_url: String,
    pub(crate) broker_url: String,
    /// How the cluster is protected, if it is.
    pub(super) security: Option<Security>,
    /// The variables by which PostgreSQL goes by a clock of its own.
    clock: String,
    /// Two rigs would kill each other's servers.
    _lock: File,
}

impl Servers {
    /// Brings both up, without anything of an earlier run.
    pub(crate) async fn up(
        script: &Path,
        folder: &Path,
        clocks: Option<&Clocks>,
        security: Option<Security>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("rig.lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another rig uses {}", folder.display()))?;
        let mut servers = Self {
            script: script.to_owned(),
            wanted: folder.to_owned(),
            folder: folder.to_owned(),
            database_url: String::new(),
            broker_url: String::new(),
            security,
            clock: match clocks {
                Some(clocks) => variables(&clocks.variables("postgres")?),
                None => String::new(),
            },
            _lock: lock,
        };
        // From nothing: a broker that forgets the queues of the last run right after its start may
        // lose its supervisor of dead letters, and every queue that needs it (seen with 3.10.8).
        servers.call(&["purge"]).await?;
        servers.call(&["up"]).await?;
        if let Err(error) = servers.prepare().await {
            servers.down().await?;
            return Err(error);
        }
        Ok(servers)
    }

    async fn prepare(&mut self) -> anyhow::Result<()> {
        let mut shell = self.command("bash");
        shell.args(["-c", PRINT_ENV, "env"]).arg(&self.script);
        let text = output(shell).await?;
        let lines: Vec<&str> = text.lines().collect();
        let &[database, broker, folder] = lines.as_slice() else {
            bail!("scripts/services env says: {text}");
        };
        self.folder = folder.into();
        let mut server = PgConnection::connect(database).await?;
        // The name is our own.
        let create = format!("CREATE DATABASE {NAME} TEMPLATE template0");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut server)
            .await?;
        server.close().await?;
        if let Some(security) = &self.security {
            security.protect(database).await?;
        }
        self.database_url = with_path(database, NAME)?;
        self.broker_url = with_path(broker, NAME)?;
        self.call(&["vhost", "add", NAME]).await?;
        wait_for("the virtual host", || connect(&self.broker_url)).await?;
        Ok(())
    }

    /// Ends both; their data stays until the next run.
    pub(crate) async fn down(&self) -> anyhow::Result<()> {
        self.call(&["down"]).await.map(drop)
    }

    /// Crashes a server, as a power cut would.
    pub(crate) async fn kill(&self, server: Server) -> anyhow::Result<()> {
        self.call(&["kill", server.name()]).await.map(drop)
    }

    /// Starts a server that was killed, or wakes one that does not answer.
    pub(crate) async fn start(&self, server: Server) -> anyhow::Result<()> {
        self.call(&["start", server.name()]).await.map(drop)
    }

    /// Lets a server stand still or go on.
    pub(crate) fn signal(&self, server: Server, signal: Signal) -> anyhow::Result<()> {
        let path = self.folder.join(server.name()).join("server.pid");
        let text = std::fs::read_to_string(path)?;
        let id = text.split_whitespace().next().context("no process id")?;
        let id = Pid::from_raw(id.parse()?).context("an impossible process id")?;
        Ok(kill_process(id, signal)?)
    }

    /// Runs rabbitmqctl.
    pub(crate) async fn rabbitmqctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut all = vec!["rabbitmqctl"];
        all.extend(arguments);
        self.call(&all).await
    }

    /// The addresses that the daemons are given, before their ways are laid.
    pub(super) fn for_daemons(&self) -> anyhow::Result<(String, String)> {
        let (database, broker) = (&self.database_url, &self.broker_url);
        match &self.security {
            Some(security) => Ok((security.database(database)?, security.broker(broker)?)),
            None => Ok((database.clone(), broker.clone())),
        }
    }

    /// A connection to the database, not by way of any proxy.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.database_url).await?)
    }

    async fn call(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command(&self.script);
        command.args(arguments);
        output(command).await
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("ATTUNE_SERVICES_DIR", &self.wanted);
        let secured = self.security.as_ref();
        let settings = secured.map_or_else(
            || BROKER_SETTINGS.to_owned(),
            |it| format!("{BROKER_SETTINGS}, {}", it.of_broker()),
        );
        command.env("ATTUNE_SERVICES_RABBITMQ_SETTINGS", settings);
        command.env("ATTUNE_SERVICES_POSTGRES_VARIABLES", &self.clock);
        // Servers that are there already belong to somebody else.
        for name in ["POSTGRES_URL", "AMQP_URL", "AMQP_ADMIN_URL", "SERVICES"] {
            command.env_remove(format!("ATTUNE_TEST_{name}"));
        }
        // Out of the reach of a Ctrl-C on the terminal: what has begun is finished.
        command.process_group(0).stdin(Stdio::null());
        command
    }
}

/// `NAME=VALUE`, apart by spaces.
fn variables(variables: &[(String, String)]) -> String {
    let texts = variables
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    texts.collect::<Vec<_>>().join(" ")
}

async fn output(mut command: Command) -> anyhow::Result<String> {
    let output = command.output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{:?}: {}: {errors}",
        command.as_std(),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn with_path(url: &str, path: &str) -> anyhow::Result<String> {
    let mut url = url::Url::parse(url)?;
    url.set_path(path);
    Ok(url.into())
}
