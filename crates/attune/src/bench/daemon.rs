//! One process of the system under load.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How much of the end of a log is shown.
const TAIL_BYTES: u64 = 4096;
/// How many lines of it.
const TAIL_LINES: usize = 12;

/// How to start processes of this program.
pub(super) struct Launcher {
    /// Where sockets and logs go, and the working folder.
    pub(super) folder: PathBuf,
    /// The settings file they read.
    pub(super) config: PathBuf,
    /// Settings that must not be in a file, as variables.
    pub(super) secrets: Vec<(&'static str, String)>,
}

/// A started process. Dropping it kills it.
pub(super) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    /// Reads what it tells its service manager as long as it lives: nobody else would, and a
    /// full socket would hold it up.
    _listener: AbortOnDropHandle<()>,
}

/// Whether a process has said that it is ready.
pub(super) struct Readiness(watch::Receiver<bool>);

impl Launcher {
    /// Starts `attune <command>`. `name` names its log; `variables` come on top.
    pub(super) fn start(
        &self,
        name: &str,
        command: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<(Daemon, Readiness)> {
        let address = self.folder.join(format!("{name}.socket"));
        let socket = UnixDatagram::bind(&address)
            .with_context(|| format!("the socket {} cannot be made", address.display()))?;
        let log = self.folder.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("{}", log.display()))?;
        let binary = std::env::current_exe().context("this program's own path")?;
        let mut process = Command::new(binary);
        process.arg("--config").arg(&self.config).arg(command);
        // Settings of this process are in the file; a variable would override it.
        for variable in inherited_settings(std::env::vars_os().map(|(name, _)| name)) {
            process.env_remove(variable);
        }
        process
            .envs(self.secrets.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .env("NOTIFY_SOCKET", &address)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A group of its own, so that Ctrl-C reaches the benchmark alone, which ends the
            // processes when it is done with them.
            .process_group(0)
            .kill_on_drop(true);
        let child = process
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let (listener, readiness) = listen(socket);
        Ok((
            Daemon {
                name: name.to_owned(),
                child,
                log,
                _listener: listener,
            },
            readiness,
        ))
    }
}

/// The variables among `names` that would be settings of a started process.
fn inherited_settings(names: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_setting = |name: &OsString| {
        let upper = name.to_string_lossy().to_ascii_uppercase();
        upper.starts_with("ATTUNE__") || upper == "ATTUNE_CONFIG"
    };
    names.filter(is_setting).collect()
}

impl Daemon {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its process, as long as it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Why it no longer runs, if so.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("{} ended: {status}", self.name)),
            Err(error) => Some(format!("{} cannot be looked at: {error}", self.name)),
        }
    }

    /// Waits for its end, without asking for it.
    pub(super) async fn wait(&mut self) -> anyhow::Result<()> {
        let status = self.child.wait().await?;
        if !status.success() {
            bail!("{} ended: {status}", self.name);
        }
        Ok(())
    }

    /// Asks it to stop.
    pub(super) fn terminate(&self) {
        // Without an id it has ended, and was seen to.
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Err(error) = kill_process(pid, Signal::TERM)
        {
            tracing::debug!(process.name = self.name, %error, "cannot be asked to stop");
        }
    }

    /// Waits until it has stopped, and kills it when that takes too long. Returns what was not
    /// as it should be.
    pub(super) async fn gone(
        &mut self,
        deadline: Instant,
        hurry: &CancellationToken,
    ) -> Option<String> {
        let stopped = tokio::select! {
            stopped = timeout_at(deadline, self.child.wait()) => stopped.ok(),
            () = hurry.cancelled() => None,
        };
        match stopped {
            Some(Ok(status)) if status.success() => None,
            Some(Ok(status)) => Some(self.bad_end(status)),
            Some(Err(error)) => Some(format!("{} cannot be waited for: {error}", self.name)),
            None => {
                let killed = self.child.kill().await;
                let how = killed.map_or_else(|error| error.to_string(), |()| "was killed".into());
                Some(format!("{} did not stop in time and {how}", self.name))
            }
        }
    }

    fn bad_end(&self, status: ExitStatus) -> String {
        format!("{} did not stop cleanly: {status}", self.name)
    }

    /// The rest of the first line that begins with these words, of what it has printed.
    pub(super) fn said(&self, words: &str) -> Option<String> {
        let printed = std::fs::read_to_string(&self.log).ok()?;
        let rest = printed.lines().find_map(|line| line.strip_prefix(words));
        rest.map(str::to_owned)
    }

    /// The last lines of its log, with passwords hidden.
    pub(super) fn tail(&self) -> String {
        match tail_of(&self.log) {
            Ok(tail) => attune_config::redact_urls(&tail),
            Err(error) => format!("({} cannot be read: {error})", self.log.display()),
        }
    }
}

fn tail_of(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

/// Reads what a process tells its service manager, one message after the other.
fn listen(socket: UnixDatagram) -> (AbortOnDropHandle<()>, Readiness) {
    let (ready, readiness) = watch::channel(false);
    let task = tokio::spawn(async move {
        let mut message = [0; 4096];
        // A socket that cannot be read any more says nothing; the wait for it has a deadline.
        while let Ok(length) = socket.recv(&mut message).await {
            let mut lines = message[..length].split(|byte| *byte == b'\n');
            if lines.any(|line| line == b"READY=1") {
                ready.send_replace(true);
            }
        }
    });
    (AbortOnDropHandle::new(task), Readiness(readiness))
}

impl Readiness {
    /// Waits for `READY=1`. Cancel safe.
    pub(super) async fn ready(mut self) -> anyhow::Result<()> {
        let ready = self.0.wait_for(|ready| *ready).await;
        ready.map(drop).context("its messages cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readiness_is_one_line_of_a_message() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("one.socket");
        let (_listener, readiness) = listen(UnixDatagram::bind(&address).unwrap());
        let sender = UnixDatagram::unbound().unwrap();
        // More than a socket holds: they are read although nobody waits yet.
        for message in ["STATUS=READY=1", "READY=0"].repeat(500) {
            sender.send_to(message.as_bytes(), &address).await.unwrap();
        }
        assert!(!*readiness.0.borrow());
        sender
            .send_to(b"STATUS=up\nREADY=1\n", &address)
            .await
            .unwrap();
        let ready = tokio::time::timeout(std::time::Duration::from_secs(10), readiness.ready());
        ready.await.unwrap().unwrap();
    }

    #[test]
    fn the_tail_is_short_and_hides_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        let mut text: String = (0..2000).map(|n| format!("line {n}\n")).collect();
        text += "cannot reach amqp://attune:hunter2@mq/x\n";
        std::fs::write(&path, &text).unwrap();
        let tail = attune_config::redact_urls(&tail_of(&path).unwrap());
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(
            tail.ends_with("cannot reach amqp://attune:***@mq/x"),
            "{tail}"
        );
        std::fs::write(&path, "").unwrap();
        assert_eq!(tail_of(&path).unwrap(), "");
    }

    #[test]
    fn only_settings_are_kept_from_processes() {
        let names = [
            "PATH",
            "ATTUNE__WORKER__SLOTS",
            "attune__log__level",
            "ATTUNE_CONFIG",
        ];
        let names = names.into_iter().map(OsString::from);
        assert_eq!(
            inherited_settings(names),
            [
                "ATTUNE__WORKER__SLOTS",
                "attune__log__level",
                "ATTUNE_CONFIG"
            ]
        );
    }
}
