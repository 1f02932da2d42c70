//! Runs programs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use attune_core::{Outcome, Status, input};
use attune_messages::v2::Grant;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use super::capture::{Capture, Text};
use super::process::{self, Group};
use super::room::Room;
use super::start::{self, Gate, MAX_STARTS, NotStarted, Waited};
use super::{Bounds, Ended};
use crate::guard::{Guard, VARIABLE};
use crate::options::WorkerOptions;

/// Runs programs, each in a folder, a process group and an environment of its own.
#[derive(Clone)]
pub(crate) struct Programs {
    work_dir: PathBuf,
    /// The worker's own variables that programs may see.
    env: Vec<(String, OsString)>,
    /// Whether they see those of the action as well.
    sees_action_env: bool,
    output_max_bytes: usize,
    kill_grace: Duration,
    guard: Arc<Guard>,
    gate: Gate,
}

impl Programs {
    pub(crate) fn new(options: &WorkerOptions, guard: Arc<Guard>) -> Self {
        Self {
            work_dir: options.work_dir.clone(),
            env: own_env(options.env_allow.iter().map(String::as_str)),
            sees_action_env: true,
            output_max_bytes: options.output_max_bytes,
            kill_grace: options.kill_grace,
            guard,
            gate: Gate::new(),
        }
    }

    /// The same for a program of Attune itself: it sees these variables of the worker and none of
    /// the action, and so much of its output is kept.
    pub(super) fn for_own(&self, env: &[&str], output_max_bytes: usize) -> Self {
        Self {
            env: own_env(env.iter().copied()),
            sees_action_env: false,
            output_max_bytes,
            ..self.clone()
        }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) async fn look(&self) -> Result<(), String> {
        start::look(&self.work_dir).await
    }

    /// Runs a program to its end; nothing in its process group is left when this returns. It waits
    /// for its start while this worker can start nothing.
    pub(crate) async fn run(
        &self,
        argv: &[impl AsRef<OsStr>],
        request: &Grant,
        mut bounds: Bounds,
    ) -> Ended {
        let argv: Vec<&OsStr> = argv.iter().map(AsRef::as_ref).collect();
        let Some((program, arguments)) = argv.split_first().filter(|(name, _)| !name.is_empty())
        else {
            return Ended::Outcome(Outcome::failed("`argv` names no program"));
        };
        let mut starts = 0;
        let (room, child, _begun) = loop {
            let begun = self.gate.begin();
            match self.start(program, arguments, request, &bounds).await {
                Ok((room, child)) => break (room, child, begun),
                // What is missing may be what the others have.
                Err(NotStarted::Worker(_)) if !begun.is_alone() => {}
                Err(NotStarted::Worker(_)) if starts + 1 < MAX_STARTS => starts += 1,
                Err(NotStarted::Program(error) | NotStarted::Worker(error)) => {
                    return Ended::Outcome(Outcome::failed(error));
                }
            }
            drop(begun);
            bounds.wait();
            tokio::select! {
                biased;
                () = bounds.stop.over.cancelled() => return Ended::Killed,
                () = bounds.stop.cancel.cancelled() => {
                    return Ended::Outcome(Outcome::cancelled("cancelled before it ran"));
                }
                waited = self.gate.wait() => match waited {
                    Waited::Opened => bounds.restart(),
                    Waited::GivenBack => return Ended::GivenBack,
                },
            }
        };
        let ended = self.attend(child, request, &bounds).await;
        room.remove().await;
        ended
    }

    /// Starts a program in a folder of its own. Closes the gate when this worker cannot.
    async fn start(
        &self,
        program: &OsStr,
        arguments: &[&OsStr],
        request: &Grant,
        bounds: &Bounds,
    ) -> Result<(Room, Child), NotStarted> {
        let prepared = Room::prepare(&self.work_dir, request.parameters.get()).await;
        let prepared = prepared.map_err(|error| NotStarted::no_room(&self.work_dir, &error));
        let started = match prepared {
            Ok(room) => {
                let mut command = self.command(program, arguments, request, &room);
                let key = (request.execution_id, request.attempt);
                command.env(VARIABLE, self.guard.mark(bounds.worker, key));
                match command.spawn() {
                    Ok(child) => return Ok((room, child)),
                    Err(error) => {
                        room.remove().await;
                        NotStarted::of(&program.to_string_lossy(), &error)
                    }
                }
            }
            Err(why) => why,
        };
        if let NotStarted::Worker(why) = &started {
            self.gate.close(why);
        }
        Err(started)
    }

    fn command(
        &self,
        program: &OsStr,
        arguments: &[&OsStr],
        request: &Grant,
        room: &Room,
    ) -> Command {
        // A relative path means the worker's folder, not the run's own.
        let path = if program.as_encoded_bytes().contains(&b'/') {
            std::path::absolute(program).ok()
        } else {
            None
        };
        let mut command = Command::new(path.unwrap_or_else(|| program.into()));
        command
            .args(arguments)
            .current_dir(room.path())
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .envs(request.env.iter().filter(|_| self.sees_action_env))
            .env("ATTUNE_EXECUTION_ID", request.execution_id.to_string())
            .env("ATTUNE_ATTEMPT", request.attempt.to_string())
            .env("ATTUNE_ACTION", &request.action_ref)
            .env("ATTUNE_PARAMETERS_FILE", room.parameters())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    async fn attend(&self, mut child: Child, request: &Grant, bounds: &Bounds) -> Ended {
        let key = (request.execution_id, request.attempt);
        let group = Group::led_by(&child, &self.guard, bounds.worker, key);
        let mut stdout = Capture::new(self.output_max_bytes);
        let mut stderr = Capture::new(self.output_max_bytes);
        let (status, cause) = {
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let (Some(to_stdin), Some(from_stdout), Some(from_stderr)) = pipes else {
                unreachable!("all three were asked for");
            };
            let pump = async {
                tokio::join!(
                    feed(to_stdin, request.parameters.get()),
                    stdout.read_from(from_stdout),
                    stderr.read_from(from_stderr),
                );
            };
            tokio::pin!(pump);
            process::supervise(&mut child, group, pump, bounds, self.kill_grace).await
        };
        let outcome = outcome(status, stdout.into_text(), stderr.into_text());
        match cause {
            None => Ended::Outcome(outcome),
            Some(cause) => bounds.ended_by(cause, outcome),
        }
    }
}

/// Those of the worker's own variables with these names that are set.
fn own_env<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(String, OsString)> {
    names
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .collect()
}

/// Gives the parameters to a program. One that does not read them has every right not to.
async fn feed(mut stdin: ChildStdin, parameters: &str) {
    let _ = stdin.write_all(parameters.as_bytes()).await;
}

fn outcome(status: io::Result<ExitStatus>, stdout: Text, stderr: Text) -> Outcome {
    let mut outcome = match status {
        Ok(status) if status.success() => Outcome::succeeded(None),
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::failed(format!("the program exited with code {code}")),
            (None, Some(signal)) => {
                Outcome::failed(format!("the program was ended by {}", signal_name(signal)))
            }
            (None, None) => Outcome::failed(format!("the program ended: {status}")),
        },
        Err(ref error) => Outcome::failed(format!("the program's end was not seen: {error}")),
    };
    outcome.exit_code = status.ok().and_then(|status| status.code());
    outcome.result = result(&stdout);
    outcome.stdout = kept(stdout);
    outcome.stderr = kept(stderr);
    debug_assert!(matches!(outcome.status, Status::Succeeded | Status::Failed));
    outcome
}

/// JSON on stdout is the result, else the text is, without the newline at its end. JSON that
/// could not be stored (too deep, NUL characters, keys of the parser, numbers out of range) counts as text.
fn result(stdout: &Text) -> Option<Box<RawValue>> {
    if stdout.cut == 0 {
        let text = stdout.text.trim();
        if input::check_json("result", text).is_ok() {
            return RawValue::from_string(text.to_owned()).ok();
        }
    }
    if stdout.text.is_empty() && stdout.cut == 0 {
        return None;
    }
    let text = Text {
        text: stdout.text.clone(),
        cut: stdout.cut,
    }
    .marked();
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    serde_json::value::to_raw_value(text).ok()
}

fn kept(text: Text) -> Option<String> {
    Some(text.marked()).filter(|text| !text.is_empty())
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} (SIG{name})")
}
