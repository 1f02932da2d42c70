//! The worker's side of a launcher.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use attune_core::Resources;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::plan::{Plan, Said, Step, written};
use super::send_stdin;
use crate::containment::Containment;
use crate::guard::{Guard, cgroup_limits};

/// A line of a launcher is shorter, in bytes.
const MAX_WORDS: usize = 4096;

/// Starts programs by launchers.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    command: Vec<OsString>,
    plan: Plan,
}

/// A launcher that was started, before it was told what to do.
pub(crate) struct Told {
    worker: StdUnixStream,
    text: Vec<u8>,
    stdin: pipe::Sender,
}

/// Why a launcher has not become the program.
#[derive(Debug)]
pub(crate) enum NotLaunched {
    /// The program could not be started.
    Program(io::Error),
    /// This worker could not make the place for it.
    Place(String),
}

impl Launcher {
    /// None, where programs are started without.
    pub(crate) fn new(containment: &Containment) -> Option<Self> {
        let plan = Plan {
            open_files: containment.open_files,
            file_size: containment.file_size,
            account: containment.account,
            sandbox: containment.sandbox(),
            ..Plan::default()
        };
        let command = containment.launcher.clone();
        (!command.is_empty()).then_some(Self { command, plan })
    }

    /// The command that starts a launcher of `program`, and what to tell it then.
    ///
    /// # Errors
    /// When there are no more open files, or the plan cannot be written.
    pub(crate) fn prepare(
        &self,
        (program, arguments): (&OsStr, &[&OsStr]),
        environment: &BTreeMap<&OsStr, &OsStr>,
        (cgroup, resources, guard): (Option<&Path>, Resources, &Guard),
    ) -> io::Result<(Command, Told)> {
        let plan = Plan {
            attended_by: match cgroup {
                Some(_) => Vec::new(),
                None => self
                    .command
                    .iter()
                    .filter_map(|it| Some(it.to_str()?.to_owned()))
                    .collect(),
            },
            cgroup: cgroup.map(Path::to_owned),
            cgroup_limits: cgroup_limits(resources, guard.controllers()),
            ..self.plan.clone()
        };
        let environment = environment.iter().map(|(name, value)| (*name, *value));
        let text = written(&plan, environment)?;
        let (worker, launcher) = StdUnixStream::pair()?;
        let (reader, writer) = io::pipe()?;
        send_stdin(&worker, &reader)?;
        worker.set_nonblocking(true)?;
        let (name, first) = self
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("no command"))?;
        let mut command = Command::new(name);
        command
            .args(first)
            .arg(program)
            .args(arguments)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(launcher)));
        let stdin = pipe::Sender::from_owned_fd(writer.into())?;
        let told = Told {
            worker,
            text,
            stdin,
        };
        Ok((command, told))
    }
}

impl Told {
    /// Tells the launcher, and waits until the program runs.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) async fn tell(self) -> Result<Launched, NotLaunched> {
        let cannot = |error: io::Error| {
            NotLaunched::Place(format!("the launcher of programs cannot be told: {error}"))
        };
        let worker = UnixStream::from_std(self.worker).map_err(cannot)?;
        let mut attendant = Attendant {
            worker,
            unread: Vec::new(),
        };
        match attendant.worker.write_all(&self.text).await {
            // It has ended; what it has said tells why, or how the process ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            told => told.map_err(cannot)?,
        }
        let failure = match attendant.hear().await.map_err(cannot)? {
            None => {
                return Ok(Launched {
                    stdin: self.stdin,
                    attended: None,
                });
            }
            Some(Said::Began(program)) => {
                let program = Pid::from_raw(program).filter(|_| program > 1);
                let attended = program.map(|program| (attendant, program));
                return Ok(Launched {
                    stdin: self.stdin,
                    attended,
                });
            }
            Some(Said::Ended(_)) => {
                return Err(NotLaunched::Place(
                    "a program ended before it began".to_owned(),
                ));
            }
            Some(Said::Failed(failure)) => failure,
        };
        Err(match failure.step {
            Step::Exec => NotLaunched::Program(failure.error()),
            step => NotLaunched::Place(format!(
                "no program can be started: {}: {}",
                step.words(),
                failure.error()
            )),
        })
    }
}

/// A program that runs.
pub(crate) struct Launched {
    /// The program's stdin.
    pub(crate) stdin: pipe::Sender,
    /// Its attendant and its own number, where it has one: else the launcher is the program now.
    pub(crate) attended: Option<(Attendant, Pid)>,
}

/// The way to an attendant. Dropping it has everything killed that the attendant has below it.
#[derive(Debug)]
pub(crate) struct Attendant {
    worker: UnixStream,
    unread: Vec<u8>,
}

impl Attendant {
    /// Waits until the program has ended. Cancel safe.
    ///
    /// # Errors
    /// When the attendant is gone.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        match self.hear().await? {
            Some(Said::Ended(status)) => Ok(ExitStatus::from_raw(status)),
            _ => Err(io::Error::other("its attendant is gone")),
        }
    }

    /// What the launcher says; nothing when it has closed its end. Cancel safe.
    async fn hear(&mut self) -> io::Result<Option<Said>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.unread.len() > MAX_WORDS {
                return Err(io::Error::other("it says too much"));
            }
            match self.worker.read_buf(&mut self.unread).await {
                Ok(0) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                heard => drop(heard?),
            }
        }
    }
}

impl Step {
    fn words(self) -> &'static str {
        match self {
            Self::Hear => "its launcher does not understand its worker",
            Self::Attend => "it cannot be attended",
            Self::Cgroup => "its control group cannot be entered",
            Self::Room => "its folder cannot be given to the account of worker.run_as",
            Self::Limits => "its limits cannot be set",
            Self::Sandbox => "its sandbox cannot be entered",
            Self::Exec => "it cannot be executed",
        }
    }
}
