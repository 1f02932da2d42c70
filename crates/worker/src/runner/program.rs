//! Runs programs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use attune_core::{Outcome, Status, input};
use attune_messages::v2::Grant;
use attune_secrets::Secrets;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

use super::capture::{Capture, Text};
use super::limits::Limits;
use super::process::{self, Group, Process};
use super::room::Room;
use super::start::{self, Gate, MAX_STARTS, NotStarted, Waited};
use super::{Bounds, Ended, STUCK};
use crate::containment::Containment;
use crate::guard::{Guard, VARIABLE};
use crate::launch::{Launcher, NotLaunched};
use crate::options::WorkerOptions;

/// How long a program may take to begin below an attendant.
const ATTENDING: Duration = Duration::from_secs(30);

/// The variable in which a program finds of which trace it is a part, as tools of OpenTelemetry expect it.
const TRACEPARENT: &str = "TRACEPARENT";

/// Runs programs, each in a folder, a process group and an environment of its own.
#[derive(Clone)]
pub(crate) struct Programs {
    work_dir: PathBuf,
    /// The worker's own variables that programs may see.
    env: Vec<(String, OsString)>,
    /// Whether they are Attune's own: those see nothing of the action.
    is_own: bool,
    containment: Containment,
    /// Nothing where programs are started without.
    launcher: Option<Launcher>,
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
            is_own: false,
            launcher: Launcher::new(&options.containment),
            containment: options.containment.clone(),
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
            is_own: true,
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
        (request, secrets): (&Grant, &Secrets),
        mut bounds: Bounds,
    ) -> Ended {
        let argv: Vec<&OsStr> = argv.iter().map(AsRef::as_ref).collect();
        let Some((program, arguments)) = argv.split_first().filter(|(name, _)| !name.is_empty())
        else {
            return Ended::Outcome(Outcome::failed("`argv` names no program"));
        };
        if let Some(why) = self.refuses(program, request) {
            return Ended::Outcome(Outcome::failed(why));
        }
        let mut starts = 0;
        let (started, _begun) = loop {
            let begun = self.gate.begin();
            match self.start(program, arguments, request, &bounds).await {
                Ok(started) => break (started, begun),
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
                    Waited::GivenBack => return Ended::GivenBack(STUCK.into()),
                },
            }
        };
        self.attend(started, (request, secrets), &bounds).await
    }

    /// Why a program of somebody else is not run here, if it is not.
    fn refuses(&self, program: &OsStr, request: &Grant) -> Option<String> {
        if self.is_own {
            return None;
        }
        let of_program = self.containment.refuses_program(Path::new(program));
        of_program.or_else(|| self.containment.refuses_variable(request.env.keys()))
    }

    /// Starts a program in a folder of its own. Closes the gate when this worker cannot.
    async fn start(
        &self,
        program: &OsStr,
        arguments: &[&OsStr],
        request: &Grant,
        bounds: &Bounds,
    ) -> Result<Started, NotStarted> {
        let prepared = Room::prepare(&self.work_dir, request.parameters.get()).await;
        let prepared = prepared.map_err(|error| NotStarted::no_room(&self.work_dir, &error));
        let started = match prepared {
            Ok(room) => {
                let begun = self
                    .begin((program, arguments), request, &room, bounds)
                    .await;
                match begun {
                    Ok(program) => return Ok(Started { program, room }),
                    Err(why) => {
                        room.remove().await;
                        why
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

    /// Begins a program in its folder.
    async fn begin(
        &self,
        (program, arguments): (&OsStr, &[&OsStr]),
        request: &Grant,
        room: &Room,
        bounds: &Bounds,
    ) -> Result<Begun, NotStarted> {
        let failed = |error: &io::Error| NotStarted::of(&program.to_string_lossy(), error);
        // A relative path means the worker's folder, not the run's own.
        let path = if program.as_encoded_bytes().contains(&b'/') {
            std::path::absolute(program).ok()
        } else {
            None
        };
        let path = path.as_ref().map_or(program, |path| path.as_os_str());
        let key = (request.execution_id, request.attempt);
        let mark = self.guard.mark(bounds.worker, key);
        let (id, attempt) = (
            request.execution_id.to_string(),
            request.attempt.to_string(),
        );
        let of_run = [
            ("ATTUNE_EXECUTION_ID", OsStr::new(&id)),
            ("ATTUNE_ATTEMPT", OsStr::new(&attempt)),
            ("ATTUNE_ACTION", OsStr::new(&request.action_ref)),
            ("ATTUNE_PARAMETERS_FILE", room.parameters().as_os_str()),
            (VARIABLE, OsStr::new(&mark)),
        ];
        let own = self
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_os_str()));
        let action = request.env.iter().filter(|_| !self.is_own);
        let action =
            action.filter_map(|(name, value)| Some((name.as_str(), OsStr::new(value.plain()?))));
        let trace = request.traceparent.filter(|_| !self.is_own);
        let trace = trace.map(|trace| trace.to_string());
        let trace = trace.as_ref().map(|it| (TRACEPARENT, OsStr::new(it)));
        let environment: BTreeMap<&OsStr, &OsStr> = (own.chain(action).chain(of_run).chain(trace))
            .map(|(name, value)| (OsStr::new(name), value))
            .collect();
        let cgroup = self
            .launcher
            .as_ref()
            .and_then(|_| self.guard.cgroup_of(bounds.worker, key));
        let resources = request.resources.or(self.containment.resources);
        let (mut command, told) = match &self.launcher {
            None => {
                let mut command = Command::new(path);
                command.args(arguments).env_clear().envs(environment);
                command.stdin(Stdio::piped());
                (command, None)
            }
            Some(launcher) => {
                let place = (cgroup.as_deref(), resources, &*self.guard);
                let prepared = launcher.prepare((path, arguments), &environment, place);
                let (mut command, told) = prepared.map_err(|error| failed(&error))?;
                if cgroup.is_some() {
                    command.env(VARIABLE, &mark);
                }
                (command, Some(told))
            }
        };
        // An attendant ends by itself, and then there is nothing below it.
        let is_attended = told.is_some() && cgroup.is_none();
        command
            .current_dir(room.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(!is_attended);
        let mut child = command.spawn().map_err(|error| match told {
            Some(_) => NotStarted::of_launcher(&program.to_string_lossy(), &error),
            None => failed(&error),
        })?;
        // With its end of the socket to the launcher.
        drop(command);
        let pipes = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = pipes else {
            unreachable!("both were asked for");
        };
        let led_by = |leader| Group::led_by(leader, &self.guard, bounds.worker, key);
        let not_launched = |why| match why {
            NotLaunched::Program(error) => failed(&error),
            NotLaunched::Place(why) => NotStarted::Worker(why),
        };
        let (process, group, stdin) = match told {
            None => {
                let group = led_by(process::id_of(&child));
                let stdin = child.stdin.take().map(Input::Own);
                (Process::of(child, None), group, stdin)
            }
            Some(told) if is_attended => {
                let told = tokio::time::timeout(ATTENDING, told.tell()).await;
                let launched = told.unwrap_or_else(|_| {
                    let why = format!("no program can be started within {ATTENDING:?}");
                    Err(NotLaunched::Place(why))
                });
                match launched {
                    Ok(launched) => {
                        let process = Process::of(child, launched.attended);
                        let group = led_by(process.id());
                        (process, group, Some(Input::Sent(launched.stdin)))
                    }
                    Err(why) => {
                        process::end_attendant(&mut child).await;
                        return Err(not_launched(why));
                    }
                }
            }
            Some(told) => {
                let group = led_by(process::id_of(&child));
                let launched = tokio::select! {
                    biased;
                    launched = told.tell() => Some(launched),
                    // Whoever attends it sees the same, and ends it.
                    _ = bounds.cause() => None,
                };
                match launched.transpose() {
                    Ok(launched) => {
                        let stdin = launched.map(|launched| Input::Sent(launched.stdin));
                        (Process::of(child, None), group, stdin)
                    }
                    Err(why) => {
                        group.end(&mut child).await;
                        return Err(not_launched(why));
                    }
                }
            }
        };
        let place = (cgroup, self.guard.controllers());
        let limits = Limits::new(resources, place, (process.id(), process.attendant()));
        Ok(Begun {
            process,
            group,
            stdin,
            outputs: (stdout, stderr),
            limits,
        })
    }

    async fn attend(
        &self,
        started: Started,
        (request, secrets): (&Grant, &Secrets),
        bounds: &Bounds,
    ) -> Ended {
        let Started { program, room } = started;
        let Begun {
            mut process,
            group,
            stdin,
            outputs: (from_stdout, from_stderr),
            limits,
        } = program;
        let mut stdout = Capture::new(self.output_max_bytes, secrets);
        let mut stderr = Capture::new(self.output_max_bytes, secrets);
        let (status, cause) = {
            let pump = async {
                tokio::join!(
                    feed(stdin, request.parameters.get()),
                    stdout.read_from(from_stdout),
                    stderr.read_from(from_stderr),
                );
            };
            tokio::pin!(pump);
            let bounds = (bounds, &limits);
            process::supervise(&mut process, group, pump, bounds, self.kill_grace).await
        };
        room.remove().await;
        let outcome = outcome(status, stdout.into_text(), stderr.into_text());
        match cause {
            None => Ended::Outcome(outcome),
            Some(cause) => bounds.ended_by(cause, outcome),
        }
    }
}

/// A program that was started, in its folder.
struct Started {
    program: Begun,
    room: Room,
}

/// A program that was begun.
struct Begun {
    process: Process,
    group: Group,
    /// Nothing when it was ended before it was there.
    stdin: Option<Input>,
    outputs: (ChildStdout, ChildStderr),
    limits: Limits,
}

/// Where parameters are written.
enum Input {
    /// What the library has made.
    Own(ChildStdin),
    /// What the launcher was sent.
    Sent(pipe::Sender),
}

/// Those of the worker's own variables with these names that are set.
fn own_env<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(String, OsString)> {
    names
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .collect()
}

/// Gives the parameters to a program. One that does not read them has every right not to.
async fn feed(stdin: Option<Input>, parameters: &str) {
    let _ = match stdin {
        None => Ok(()),
        Some(Input::Own(mut stdin)) => stdin.write_all(parameters.as_bytes()).await,
        Some(Input::Sent(mut stdin)) => stdin.write_all(parameters.as_bytes()).await,
    };
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
