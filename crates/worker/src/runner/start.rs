//! Starting a program, and whether this worker can start any.
//!
//! A program that is missing or broken fails its execution. A worker that can start nothing (no
//! room on its disk, no more processes, a work directory that it may not write) must not: it would
//! take one execution after the other and fail them all. What it has begun waits here until it
//! can start programs again; meanwhile it takes nothing more.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use tokio::process::Command;
use tokio::sync::watch;

use super::room::Room;

/// So often a run is started in vain while nothing else of its worker starts or runs, with a
/// successful look between any two; then something about this run itself must be what the machine
/// cannot do.
pub(super) const MAX_STARTS: usize = 3;
/// What a look writes: as much as the largest parameters that a message may carry.
const LOOK_BYTES: usize = 1 << 20;

/// Why a program was not started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotStarted {
    /// Something is wrong with the program.
    Program(String),
    /// This worker cannot start programs at the moment.
    Worker(String),
}

impl NotStarted {
    /// Reads the error of a folder that could not be made; a run has no part in it.
    pub(super) fn no_room(work_dir: &Path, error: &io::Error) -> Self {
        let place = work_dir.display();
        Self::Worker(format!(
            "a folder for a run cannot be made in {place}: {error}"
        ))
    }

    /// Reads the error of the start of a launcher, which has its program's arguments.
    pub(super) fn of_launcher(program: &str, error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::TOOBIG) => Self::of(program, error),
            _ => Self::Worker(format!("no launcher of programs can be started: {error}")),
        }
    }

    /// Reads the error of a start.
    pub(super) fn of(program: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Program(format!(
                "the program `{program}` was not found, or the interpreter that it names"
            )),
            io::ErrorKind::PermissionDenied => {
                Self::Program(format!("the program `{program}` may not be executed"))
            }
            _ if is_of_machine(error) => {
                Self::Worker(format!("no program can be started: {error}"))
            }
            _ => Self::Program(format!(
                "the program `{program}` cannot be started: {error}"
            )),
        }
    }
}

/// Whether the machine lacks something: processes, memory, open files, room on a disk.
fn is_of_machine(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::AGAIN
                | Errno::NOMEM
                | Errno::NFILE
                | Errno::MFILE
                | Errno::NOSPC
                | Errno::DQUOT
                | Errno::ROFS
        )
    )
}

/// Makes a folder with a large file, and a process that ends at once: whether programs can be
/// started.
pub(super) async fn look(work_dir: &Path) -> Result<(), String> {
    let room = Room::prepare(work_dir, &" ".repeat(LOOK_BYTES)).await;
    let room = room.map_err(|error| words(NotStarted::no_room(work_dir, &error)))?;
    // There is no such program: that it is not found says that there was a process to look.
    let missing = room.path().join("none");
    let started = Command::new(&missing)
        .current_dir(room.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    room.remove().await;
    match started.map_err(|error| NotStarted::of("none", &error)) {
        Err(NotStarted::Worker(why)) => Err(why),
        Ok(_) | Err(NotStarted::Program(_)) => Ok(()),
    }
}

fn words(why: NotStarted) -> String {
    match why {
        NotStarted::Program(words) | NotStarted::Worker(words) => words,
    }
}

/// Where runs wait while their worker can start nothing.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// Why it is closed.
    why: watch::Sender<Option<Arc<str>>>,
    /// Changes when those that wait are to be given back.
    given_back: watch::Sender<()>,
    waiting: Arc<AtomicUsize>,
    /// How many runs are being started or go on.
    begun: Arc<AtomicUsize>,
}

/// How a wait for the start of a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// Programs can be started again.
    Opened,
    /// It has waited for so long that others shall run it.
    GivenBack,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            why: watch::Sender::new(None),
            given_back: watch::Sender::new(()),
            waiting: Arc::default(),
            begun: Arc::default(),
        }
    }

    /// Nothing can be started, for this reason.
    pub(crate) fn close(&self, why: &str) {
        self.why.send_replace(Some(why.into()));
    }

    /// Programs can be started again.
    pub(crate) fn open(&self) {
        self.why.send_replace(None);
    }

    /// A run is being started, and goes on if that succeeds, until this is dropped.
    pub(super) fn begin(&self) -> Counted<'_> {
        Counted::new(&self.begun)
    }

    /// Those that wait now are given back.
    pub(crate) fn give_back(&self) {
        self.given_back.send_replace(());
    }

    /// Why nothing can be started, if that is so.
    pub(crate) fn why(&self) -> Option<Arc<str>> {
        self.why.borrow().clone()
    }

    /// How many runs wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Waits until the gate is closed. Cancel safe.
    pub(crate) async fn closed(&self) {
        // The sender is ours, so this does not fail.
        let _ = self.why.subscribe().wait_for(Option::is_some).await;
    }

    /// Waits until the gate is open, or what waits is given back. Cancel safe.
    pub(super) async fn wait(&self) -> Waited {
        let mut given_back = self.given_back.subscribe();
        let mut why = self.why.subscribe();
        let _waiting = Counted::new(&self.waiting);
        tokio::select! {
            biased;
            _ = why.wait_for(Option::is_none) => Waited::Opened,
            _ = given_back.changed() => Waited::GivenBack,
        }
    }
}

/// Counts one run, until it is dropped.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }

    /// Whether no other is counted.
    pub(super) fn is_alone(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_alone_until_another_begins_and_when_it_has_ended() {
        let gate = Gate::new();
        let one = gate.begin();
        assert!(one.is_alone());
        let other = gate.begin();
        assert!(!one.is_alone() && !other.is_alone());
        drop(other);
        assert!(one.is_alone());
    }

    #[test]
    fn what_the_machine_lacks_is_no_fault_of_the_program() {
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NOSPC] {
            let error = io::Error::from(errno);
            let why = NotStarted::of("run", &error);
            assert!(matches!(why, NotStarted::Worker(_)), "{errno:?}: {why:?}");
        }
        for errno in [
            Errno::NOENT,
            Errno::ACCESS,
            Errno::NOEXEC,
            Errno::TOOBIG,
            Errno::LOOP,
        ] {
            let error = io::Error::from(errno);
            let why = NotStarted::of("run", &error);
            assert!(matches!(why, NotStarted::Program(_)), "{errno:?}: {why:?}");
        }
    }

    #[tokio::test]
    async fn a_look_says_whether_programs_can_be_started() {
        let dir = tempfile::tempdir().unwrap();
        let work_dir = dir.path().join("runs");
        assert_eq!(look(&work_dir).await, Ok(()));
        assert_eq!(std::fs::read_dir(&work_dir).unwrap().count(), 0);
        std::fs::remove_dir(&work_dir).unwrap();
        std::fs::write(&work_dir, "in the way").unwrap();
        let why = look(&work_dir).await.unwrap_err();
        assert!(why.contains("cannot be made in"), "{why}");
    }
}
