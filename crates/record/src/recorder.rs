//! The recorder that appends records to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use crate::now::now_ns;
use crate::phase::ProcessPhase;
use crate::record::Record;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use crate::thread::{self, JoinHandle};

/// A record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file could not be made.
    #[error("the record {} cannot be created", path.display())]
    Create {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that was recorded is not in the file.
    #[error("the record {} is not complete: {problem}", path.display())]
    Incomplete {
        /// Which file.
        path: PathBuf,
        /// What went wrong first.
        problem: String,
    },
}

/// How long a record may stay in memory.
const INTERVAL: Duration = Duration::from_millis(20);
/// Records in memory, at most; who records more waits until the writer has caught up, because a
/// history with holes proves nothing.
const MAX_WAITING: usize = 65_536;
/// With so many waiting the writer does not wait for its interval to end.
const MANY: usize = MAX_WAITING / 4;
/// For how long whoever records waits for a file that takes nothing: a disk that hangs must not stop what is
/// recorded.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes handed to the file at once, about.
const PORTION: usize = 256 * 1024;

/// Appends [`Record`]s to a file of its own, `<dir>/<role>-<pid>-<uuid>.jsonl`.
///
/// Recording costs a push onto a list; a thread writes the list out at least every 20 ms. A
/// process that is killed loses what it recorded since, and may leave half a line at the end.
/// When the file takes no more (its disk is full, or hangs for 5 s), nothing is written from then on, that is
/// said in the log, and the end of the role is not recorded: its process counts as killed.
/// Clones write to the same file; dropping the last one writes out what is left.
#[derive(Debug, Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    /// The role whose life is recorded as well.
    role: Option<String>,
}

/// What recorders and the writer thread share.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// [`PATIENCE`].
    patience: Duration,
    state: Mutex<State>,
    /// Wakes the writer: much to do, a flush, the end.
    work: Condvar,
    /// Wakes recorders that wait for room or for a flush.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Record>,
    /// How many were ever recorded.
    recorded: u64,
    /// How many of those the writer is done with, written or not.
    written: u64,
    /// Someone waits for `written` to catch up.
    hurry: bool,
    /// No recorder is left.
    closed: bool,
    /// What went wrong first. Nothing is recorded from then on.
    problem: Option<String>,
    /// The writer waits for its file, and nobody knows for how long.
    hangs: bool,
}

impl Shared {
    fn new(path: PathBuf, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            path,
            patience,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// The state stays usable when a thread panicked with the lock: each change is one step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records that stay together, when there is room; none after something went wrong, since what comes
    /// after a hole proves nothing.
    fn add(&self, records: impl IntoIterator<Item = Record>) {
        let mut state = self.lock();
        while state.problem.is_none() && state.waiting.len() >= MAX_WAITING {
            state = self.wait(state);
        }
        if state.problem.is_some() {
            return;
        }
        let before = state.waiting.len();
        state.waiting.extend(records);
        let after = state.waiting.len();
        state.recorded += (after - before) as u64;
        // Waking the writer for each record would cost more than all the rest.
        if before < MANY && after >= MANY {
            self.work.notify_one();
        }
    }

    /// Waits until the writer has written something, or gives the file up.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let written = state.written;
        let stands = |state: &mut State| state.written == written && state.problem.is_none();
        let waited = self.done.wait_timeout_while(state, self.patience, stands);
        let (mut state, wait) = waited.unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            self.give_up(&mut state);
        }
        state
    }

    /// The file has taken nothing for too long.
    fn give_up(&self, state: &mut State) {
        let problem = format!("it has taken nothing for {:?}", self.patience);
        tracing::error!(
            error = %problem,
            file = %self.path.display(),
            "records cannot be written; none is from now on, and the history is not complete"
        );
        (state.problem, state.hangs) = (Some(problem), true);
        state.waiting = Vec::new();
        self.done.notify_all();
    }
}

impl Recorder {
    /// Makes `dir` where it is missing, a file in it, and the thread that writes it. `role` is
    /// the first part of the file's name.
    ///
    /// # Errors
    /// When the folder, the file or the thread cannot be made.
    pub fn create(dir: &Path, role: &str) -> Result<Self, RecordError> {
        Self::with(dir, role, None)
    }

    /// The same for a role of this process, which is recorded to begin now, and to have ended
    /// when the last clone is dropped; see [`Record::Process`]. When that is missing, the process
    /// was killed, and with it may have gone what it recorded last.
    ///
    /// # Errors
    /// When the folder, the file or the thread cannot be made.
    pub fn of_role(dir: &Path, role: &str) -> Result<Self, RecordError> {
        let recorder = Self::with(dir, role, Some(role.to_owned()))?;
        recorder.record_phase(ProcessPhase::Began);
        Ok(recorder)
    }

    /// Records where the role stands, if this is the recorder [of one](Self::of_role).
    pub fn record_phase(&self, phase: ProcessPhase) {
        self.inner.record_phase(phase);
    }

    fn with(dir: &Path, role: &str, life_of: Option<String>) -> Result<Self, RecordError> {
        let name = format!("{role}-{}-{}.jsonl", std::process::id(), Uuid::new_v4());
        let path = dir.join(name);
        let open = || {
            std::fs::create_dir_all(dir)?;
            // Others than the owner and its group have no business with what was asked for.
            OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o640)
                .open(&path)
        };
        let file = open().map_err(|source| RecordError::Create {
            path: path.clone(),
            source,
        })?;
        let shared = Shared::new(path.clone(), PATIENCE);
        let for_thread = Arc::clone(&shared);
        let writer = thread::Builder::new()
            .name("attune-recorder".to_owned())
            .spawn(move || write_out(&for_thread, file))
            .map_err(|source| RecordError::Create { path, source })?;
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                writer: Some(writer),
                role: life_of,
            }),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.shared.path
    }

    /// Records. Waits only when the file is tens of thousands of records behind. What cannot be
    /// written is reported by [`flush`](Self::flush).
    pub fn record(&self, record: Record) {
        self.record_all([record]);
    }

    /// Records several that stay together, in their order; see [`record`](Self::record).
    pub fn record_all(&self, records: impl IntoIterator<Item = Record>) {
        self.inner.shared.add(records);
    }

    /// Blocks until everything recorded so far is in the file, or the file takes nothing more.
    ///
    /// # Errors
    /// When anything recorded since the start could not be written.
    pub fn flush(&self) -> Result<(), RecordError> {
        let shared = &self.inner.shared;
        let mut state = shared.lock();
        let target = state.recorded;
        state.hurry = true;
        shared.work.notify_one();
        while state.written < target && state.problem.is_none() {
            state = shared.wait(state);
        }
        match &state.problem {
            None => Ok(()),
            Some(problem) => Err(RecordError::Incomplete {
                path: shared.path.clone(),
                problem: problem.clone(),
            }),
        }
    }
}

impl Inner {
    fn record_phase(&self, phase: ProcessPhase) {
        if let Some(role) = &self.role {
            self.shared.add([Record::Process {
                role: role.clone(),
                pid: std::process::id(),
                phase,
                t_ns: now_ns(),
            }]);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A panic may have kept the rest from being recorded.
        let is_whole = self.shared.lock().problem.is_none();
        if is_whole && !thread::panicking() {
            self.record_phase(ProcessPhase::Ended);
        }
        let hangs = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.hangs
        };
        self.shared.work.notify_one();
        // A writer that waits for its file cannot be waited for: the process is to end.
        if let Some(writer) = self.writer.take().filter(|_| !hangs) {
            // A panic of the writer was reported when it happened; nothing is left to do.
            let _ = writer.join();
        }
    }
}

/// The writer: until the last recorder is gone, waits for an interval or a reason to hurry and
/// writes out what has gathered.
fn write_out(shared: &Shared, mut file: File) {
    // Up to where the file has whole records, in bytes.
    let mut whole = 0;
    loop {
        let mut state = shared.lock();
        while !state.hurry && !state.closed && state.waiting.len() < MANY {
            let (woken, wait) = shared
                .work
                .wait_timeout(state, INTERVAL)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if wait.timed_out() {
                break;
            }
        }
        state.hurry = false;
        let last = state.closed;
        let records = mem::take(&mut state.waiting);
        drop(state);
        // Nothing comes after a problem: the file ends as if its process had been killed.
        let (outcome, mut problem) = (append(&mut file, &records, &mut whole), None);
        if let Err(error) = outcome {
            let cut = file.set_len(whole);
            tracing::error!(
                %error,
                file = %shared.path.display(),
                is_cut = cut.is_ok(),
                "records cannot be written; none is from now on, and the history is not complete"
            );
            problem = Some(error.to_string());
        }
        let mut state = shared.lock();
        state.written += records.len() as u64;
        state.hangs = false;
        if state.problem.is_none() {
            state.problem = problem;
        }
        if state.problem.is_some() {
            state.waiting = Vec::new();
        }
        shared.done.notify_all();
        if last {
            return;
        }
    }
}

/// Appends records, and says up to where whole ones are in the file.
fn append(file: &mut File, records: &[Record], whole: &mut u64) -> io::Result<()> {
    let mut text = Vec::with_capacity(PORTION.min(records.len() * 128));
    for record in records {
        serde_json::to_writer(&mut text, record)?;
        text.push(b'\n');
        if text.len() >= PORTION {
            write(file, &mut text, whole)?;
        }
    }
    write(file, &mut text, whole)
}

fn write(file: &mut File, text: &mut Vec<u8>, whole: &mut u64) -> io::Result<()> {
    file.write_all(text)?;
    *whole += text.len() as u64;
    text.clear();
    Ok(())
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
