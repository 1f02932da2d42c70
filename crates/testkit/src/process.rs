//! One process of the system under test.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::wait::within;

/// Variables of the test's own environment that the processes see; everything else they are
/// given by name, so that a developer's settings change no test.
const INHERITED: [&str; 6] = [
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "RUST_BACKTRACE",
    "ATTUNE_PLANT",
];
/// How much of a log is shown when something fails.
const TAIL_BYTES: usize = 6 * 1024;

/// How to start a process.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What the test calls it; also names its files.
    pub name: String,
    /// The program.
    pub binary: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its variables, beside a few that are passed on.
    pub env: BTreeMap<String, String>,
    /// Where its log and its socket go.
    pub folder: PathBuf,
}

/// A process that was started; killed when dropped.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    pid: u32,
    child: Child,
    is_ready: watch::Receiver<bool>,
    // A process that says more than its socket holds would wait until somebody reads it.
    _reading: AbortOnDropHandle<()>,
}

impl Process {
    /// Starts a process and waits until it says that it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or ends or stays silent instead; with the end of its log.
    pub async fn start(launch: Launch) -> anyhow::Result<Self> {
        let mut process = Self::spawn(launch)?;
        process.ready().await?;
        Ok(process)
    }

    /// Starts a process and does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(launch: Launch) -> anyhow::Result<Self> {
        let socket = launch.folder.join(format!("{}.notify", launch.name));
        match std::fs::remove_file(&socket) {
            // That of the life before.
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("an old socket is in the way"),
        }
        let notices = UnixDatagram::bind(&socket)
            .with_context(|| format!("{} cannot be listened on", socket.display()))?;
        let log = open_log(&launch)?;
        let mut command = Command::new(&launch.binary);
        command
            .args(&launch.args)
            .env_clear()
            .envs(
                INHERITED
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .envs(&launch.env)
            .env("NOTIFY_SOCKET", &socket)
            .current_dir(&launch.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", launch.binary.display()))?;
        let pid = child.id().context("it has ended at once")?;
        let (ready, is_ready) = watch::channel(false);
        Ok(Self {
            launch,
            pid,
            child,
            is_ready,
            _reading: AbortOnDropHandle::new(tokio::spawn(read(notices, ready))),
        })
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// When it ends or stays silent instead; with the end of its log.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let what = format!("the readiness of {}", self.launch.name);
        let waiting = async {
            tokio::select! {
                ready = self.is_ready.wait_for(|ready| *ready) => {
                    ready.context("its notices are not read any more").map(drop)
                }
                status = self.child.wait() => bail!("it ended instead: {}", status?),
            }
        };
        let outcome = within(&what, waiting).await.and_then(|outcome| outcome);
        outcome.with_context(|| format!("{what}; its log ends with:\n{}", self.tail()))
    }

    /// Whether it has said that it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.is_ready.borrow()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.ended()?.is_none())
    }

    /// Asks it to stop, and expects it to end well.
    ///
    /// # Errors
    /// When it does not end in time or not with exit code 0; with the end of its log.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.end().await?;
        let (name, tail) = (&self.launch.name, self.tail());
        ensure!(
            status.success(),
            "{name} stopped with {status}; its log ends with:\n{tail}"
        );
        Ok(())
    }

    /// Kills it, as a crash would.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.end().await?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn end(&mut self) -> anyhow::Result<ExitStatus> {
        let what = format!("the end of {}", self.launch.name);
        let ended = within(&what, self.child.wait()).await;
        let ended = ended.with_context(|| format!("its log ends with:\n{}", self.tail()))?;
        Ok(ended?)
    }

    /// Lets it stand still, whatever it is doing, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When it has ended.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = self
            .child
            .id()
            .with_context(|| format!("{} has ended", self.launch.name))?;
        let id = i32::try_from(id).ok().and_then(Pid::from_raw);
        kill_process(id.context("an impossible process id")?, signal)?;
        Ok(())
    }

    /// Its number, also when it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it was started.
    #[must_use]
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Everything that it and its earlier lives have written.
    #[must_use]
    pub fn log(&self) -> String {
        // Nothing can be read from a log that is not there, which says enough.
        let bytes = std::fs::read(log_path(&self.launch)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The end of the log.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let from = log.len().saturating_sub(TAIL_BYTES);
        let from = (from..=log.len())
            .find(|at| log.is_char_boundary(*at))
            .unwrap_or_default();
        log[from..].to_owned()
    }

    /// What stands behind `mark` in the log up to the next blank, the last time it was written.
    #[must_use]
    pub fn announced(&self, mark: &str) -> Option<String> {
        let log = self.log();
        // Only whole lines: the last one may be half written.
        let whole = &log[..=log.rfind('\n')?];
        let (_, after) = whole.rsplit_once(mark)?;
        after.split_whitespace().next().map(str::to_owned)
    }
}

/// Reads everything that a process says about itself.
async fn read(notices: UnixDatagram, ready: watch::Sender<bool>) {
    let mut buffer = [0; 512];
    while let Ok(length) = notices.recv(&mut buffer).await {
        let notice = String::from_utf8_lossy(&buffer[..length]);
        if notice.lines().any(|line| line == "READY=1") {
            ready.send_replace(true);
        }
    }
}

fn log_path(launch: &Launch) -> PathBuf {
    launch.folder.join(format!("{}.log", launch.name))
}

fn open_log(launch: &Launch) -> anyhow::Result<File> {
    let path: &Path = &log_path(launch);
    let log = OpenOptions::new().append(true).create(true).open(path);
    log.with_context(|| format!("{} cannot be written", path.display()))
}
