//! The attendant of a run that has no control group.
//!
//! A process whose parent has ended becomes a child of the nearest ancestor that asked for such children.
//! So a launcher stays between worker and program and asks for them: whatever the program begins, however it
//! leaves its group, its session and its environment, stays below the attendant. When the run is over, or the
//! worker is gone (its end of the socket closes in both cases), it kills all of that.
//!
//! It is not in the sandbox, and so cannot be signalled from there. Where the kernel has none, a program of the
//! same account can kill it, and with that leave.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::plan::{Failure, Plan, Said, Step, written};
use super::send_stdin;
use crate::guard::VARIABLE;

/// Between two rounds of killing what is left.
const PAUSE: Duration = Duration::from_millis(2);

/// Starts another launcher for the program, and stays until nothing of it is left.
pub(super) fn attend(
    worker: &mut UnixStream,
    mut plan: Plan,
    environment: &[(OsString, OsString)],
    argv: &[OsString],
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::of(Step::Attend, &error);
    // What is sent to every process of a service is not for the attendant: the end of its worker is.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let runtime = runtime.map_err(failed)?;
    let _context = runtime.enter();
    let ignored = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let _ignored: Vec<_> = ignored
        .into_iter()
        .map(signal)
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    let command = std::mem::take(&mut plan.attended_by);
    let (program, said) = begin(&command, &plan, environment, argv).map_err(failed)?;
    if !said.is_empty() {
        // It says itself why it has not become the program.
        worker.write_all(&said).map_err(failed)?;
        return Ok(());
    }
    let began = worker.write_all(&Said::Began(program.as_raw_pid()).line());
    let mut to_worker = worker.try_clone().map_err(failed)?;
    let reaper = thread::spawn(move || reap_all(program, &mut to_worker));
    if began.is_ok() {
        // A worker says nothing more: this waits for its end.
        let _ = worker.read(&mut [0]);
    }
    while !reaper.is_finished() {
        kill_children();
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Starts the launcher; returns its number, and what it says when it has not become the program.
fn begin(
    command: &[String],
    plan: &Plan,
    environment: &[(OsString, OsString)],
    argv: &[OsString],
) -> io::Result<(Pid, Vec<u8>)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    send_stdin(&ours, io::stdin())?;
    let (name, first) = command
        .split_first()
        .ok_or_else(|| io::Error::other("no command"))?;
    let mark = environment.iter().filter(|(name, _)| name == VARIABLE);
    let mut launcher = Command::new(name);
    launcher
        .args(first)
        .args(argv)
        .env_clear()
        .envs(mark.cloned())
        .process_group(0)
        .stdin(OwnedFd::from(theirs));
    let child = launcher.spawn()?;
    drop(launcher);
    // Whoever reads the program's output waits for the last who has it open.
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let variables = environment.iter().map(|(name, value)| (&**name, &**value));
    let mut said = Vec::new();
    match ours.write_all(&written(plan, variables)?) {
        // It has ended; how is its status.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        told => {
            told?;
            ours.read_to_end(&mut said)?;
        }
    }
    let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok((number.ok_or_else(|| io::Error::other("no number"))?, said))
}

/// Waits for every child there is, and tells of the program's end.
fn reap_all(program: Pid, worker: &mut UnixStream) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => {
                // A worker that is gone needs no word.
                let _ = worker.write_all(&Said::Ended(status.as_raw()).line());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Kills every child. What they have begun are children then, and are killed the next time.
fn kill_children() {
    let own = getpid().as_raw_pid().to_string();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind its name, which may be anything, stand its state and its parent.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        if rest.split_whitespace().nth(1) == Some(&own) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
