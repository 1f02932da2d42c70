//! The daemons under test, each behind a way of its own to each server.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, MutexGuard};

use super::lasting_faults::Clocks;
use super::notes::Notes;
use super::security::Security;
use super::servers::{Server, Servers};
use super::{SETTINGS, Say};
use crate::launching::made_key;
use crate::{Api, Launch, Process, Proxy, variable, within};

/// How many daemons of each role there are.
const ROLES: [(&str, usize); 5] = [
    ("stats", 1),
    ("completion-listener", 2),
    ("executor", 3),
    ("worker", 4),
    ("api", 1),
];
/// The pool that only one worker has, beside those above.
pub(crate) const LONELY_POOL: &str = "lonely";
const LONELY_WORKER: &str = "worker-lonely";
/// How often the supervisor looks after a daemon.
const LOOK: Duration = Duration::from_millis(200);
/// How long it waits before it starts one again that has ended.
const RESTART: Duration = Duration::from_secs(1);

/// Binds a free port of loopback below those that the kernel gives to outgoing connections, so
/// that nobody takes it while its daemon is down.
pub(crate) async fn free_port() -> anyhow::Result<TcpListener> {
    for _ in 0..1000 {
        let port = rand::random_range(15_000..32_000);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            return Ok(listener);
        }
    }
    anyhow::bail!("no port is free")
}

/// A daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) to_database: Proxy,
    pub(crate) to_broker: Proxy,
    launch: Launch,
    /// Whoever holds it disturbs the daemon; nobody else does then, nor is it looked after.
    process: Mutex<Option<Process>>,
}

impl Daemon {
    /// Takes the daemon for a fault, unless another fault has it.
    pub(crate) fn take(&self) -> Option<MutexGuard<'_, Option<Process>>> {
        self.process.try_lock().ok()
    }

    /// Its way to a server.
    pub(crate) fn way(&self, server: Server) -> &Proxy {
        match server {
            Server::Postgres => &self.to_database,
            Server::Rabbitmq => &self.to_broker,
        }
    }

    /// Starts it; it is not waited for.
    pub(crate) fn spawn(&self) -> anyhow::Result<Process> {
        Process::spawn(self.launch.clone())
    }

    /// Where it writes its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.launch.folder.join(format!("{}.log", self.name))
    }
}

/// All daemons.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) daemons: Vec<Arc<Daemon>>,
    /// A client of the API that may do everything.
    pub(crate) api: Api,
    /// Ends of daemons that no fault explains.
    pub(crate) surprises: Mutex<Vec<String>>,
    notes: Notes,
    stopping: AtomicBool,
}

impl Fleet {
    /// Migrates the database, starts every daemon and waits until all are ready.
    pub(crate) async fn start(
        binary: &Path,
        folder: &Path,
        servers: &Servers,
        clocks: Option<&Clocks>,
        say: &Say,
    ) -> anyhow::Result<Arc<Self>> {
        let api_port = free_port().await?;
        let api = api_port.local_addr()?.to_string();
        let mut env: BTreeMap<String, String> = SETTINGS
            .iter()
            .map(|(key, value)| (variable(key), (*value).to_owned()))
            .collect();
        let work = folder.join("work");
        std::fs::create_dir_all(&work)?;
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        env.insert(variable("history.dir"), path(folder.join("history")));
        env.insert(variable("worker.work_dir"), path(work));
        // Apart from the folders of runs, none of which may be left in the end.
        env.insert(variable("worker.state_dir"), path(folder.join("state")));
        env.insert(variable("api.listen"), api.clone());
        // Where it runs as root.
        env.insert(variable("worker.allow_root"), "true".to_owned());
        for (key, value) in servers.security.iter().flat_map(Security::settings) {
            env.insert(variable(key), value);
        }
        let launch = |name: &str, role: &str, env| Launch {
            name: name.to_owned(),
            binary: binary.to_owned(),
            args: vec![role.to_owned()],
            env,
            folder: folder.to_owned(),
        };
        let urls = |mut env: BTreeMap<_, _>, database: String, broker: String| {
            env.insert(variable("database.url"), database);
            env.insert(variable("broker.url"), broker);
            env
        };
        let (database, broker) = &servers.for_daemons()?;
        let direct = urls(env.clone(), database.clone(), broker.clone());
        let mut migrate = Process::spawn(launch("migrate", "migrate", direct.clone()))?;
        let status = migrate.end().await?;
        ensure!(status.success(), "attune migrate: {}", migrate.tail());
        let api_client = match &servers.security {
            Some(security) => {
                let operator = launch("operator", "operator", direct);
                let key = made_key(operator, folder, &["--impersonate"]).await?;
                Api::believing(format!("https://{api}"), &security.authority)?.with_key(key)
            }
            None => Api::new(format!("http://{api}"))?,
        };
        let mut daemons = Vec::new();
        let names = ROLES.iter().flat_map(|(role, count)| {
            let numbered = (1..=*count).map(move |number| (*role, format!("{role}-{number}")));
            numbered.collect::<Vec<_>>()
        });
        let lonely = ("worker", LONELY_WORKER.to_owned());
        for (role, name) in names.chain([lonely]) {
            let to_database = Proxy::on(free_port().await?, database)?;
            let to_broker = Proxy::on(free_port().await?, broker)?;
            let ways = (to_database.url(database)?, to_broker.url(broker)?);
            let mut env = urls(env.clone(), ways.0, ways.1);
            env.insert(variable("worker.name"), name.clone());
            env.insert(variable("executor.name"), name.clone());
            if name == LONELY_WORKER {
                env.insert(variable("worker.pool"), LONELY_POOL.to_owned());
            }
            if let Some(clocks) = clocks.filter(|_| matches!(role, "executor" | "worker")) {
                env.extend(clocks.variables(&name)?);
            }
            if role != "api" {
                env.insert(variable("metrics.listen"), "127.0.0.1:0".to_owned());
            }
            daemons.push(Arc::new(Daemon {
                launch: launch(&name, role, env),
                name,
                role,
                to_database,
                to_broker,
                process: Mutex::new(None),
            }));
        }
        drop(api_port);
        for daemon in &daemons {
            let mut process = daemon.spawn()?;
            process.ready().await?;
            *daemon.process.lock().await = Some(process);
        }
        let fleet = Arc::new(Self {
            daemons,
            api: api_client,
            surprises: Mutex::default(),
            notes: Notes::open(&folder.join("history"), "fleet")?,
            stopping: AtomicBool::new(false),
        });
        for daemon in &fleet.daemons {
            let (fleet, daemon, say) = (Arc::clone(&fleet), Arc::clone(daemon), say.clone());
            tokio::spawn(async move { fleet.supervise(&daemon, &say).await });
        }
        Ok(fleet)
    }

    /// Starts a daemon again whenever it has ended, until the fleet stops.
    async fn supervise(&self, daemon: &Daemon, say: &Say) {
        while !self.stopping.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK).await; // poll
            let mut process = daemon.process.lock().await;
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let ended = match process.as_mut().map(Process::ended) {
                Some(Ok(None)) => continue,
                Some(Ok(Some(status))) => Some(status.to_string()),
                Some(Err(error)) => Some(error.to_string()),
                None => None,
            };
            if let Some(status) = ended {
                // Who cannot begin because a server went away may end and begin anew; a signal is
                // the doing of the poison action.
                let was_ready = process.as_ref().is_some_and(Process::is_ready);
                let when = if was_ready {
                    "by itself"
                } else {
                    "while starting"
                };
                let text = format!("{} has ended {when}: {status}", daemon.name);
                say.line(&text);
                let pid = process.as_ref().map(Process::pid);
                if let Some(Err(error)) = pid.map(|pid| self.notes.process_exit(pid)) {
                    say.line(&format!("{error:#}"));
                }
                if was_ready && !status.contains("SIGKILL") {
                    self.surprises.lock().await.push(text);
                }
                // As systemd does.
                tokio::time::sleep(RESTART).await;
            }
            match daemon.spawn() {
                Ok(started) => *process = Some(started),
                Err(error) => say.line(&format!("{} does not start: {error:#}", daemon.name)),
            }
        }
    }

    /// The only worker of its pool.
    pub(crate) fn lonely(&self) -> Option<Arc<Daemon>> {
        let mut daemons = self.daemons.iter();
        daemons.find(|daemon| daemon.name == LONELY_WORKER).cloned()
    }

    /// The daemons of a role.
    pub(crate) fn of(&self, role: &str) -> Vec<Arc<Daemon>> {
        let of_role = self.daemons.iter().filter(|daemon| daemon.role == role);
        of_role.cloned().collect()
    }

    /// Opens every way.
    pub(crate) fn restore_ways(&self) {
        for daemon in &self.daemons {
            daemon.to_database.restore();
            daemon.to_broker.restore();
        }
    }

    /// Asks all to stop and expects each to end well; what does not is told, and killed.
    pub(crate) async fn stop(&self) -> Vec<String> {
        self.stopping.store(true, Ordering::Relaxed);
        let stopping = self.daemons.iter().map(|daemon| async {
            let taken = within(&daemon.name, daemon.process.lock()).await;
            let mut process = match taken {
                Ok(mut process) => process.take()?,
                Err(error) => return Some(format!("{error:#}")),
            };
            let error = process.stop().await.err()?;
            Some(format!("{} does not stop well: {error:#}", daemon.name))
        });
        let problems = futures_util::future::join_all(stopping).await;
        problems.into_iter().flatten().collect()
    }

    /// Kills all.
    pub(crate) async fn kill(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for daemon in &self.daemons {
            if let Ok(mut process) = within(&daemon.name, daemon.process.lock()).await {
                // Dropping kills.
                process.take();
            }
        }
    }

    /// What the daemons have written about panics, by the first line of each.
    pub(crate) fn panics(&self) -> anyhow::Result<Vec<String>> {
        let mut panics = Vec::new();
        for daemon in &self.daemons {
            let path = daemon.log();
            let log = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let log = String::from_utf8_lossy(&log);
            let lines = log.lines().filter(|line| line.contains("panicked at"));
            panics.extend(lines.map(|line| format!("{}: {line}", daemon.name)));
        }
        Ok(panics)
    }
}
