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
/// Bytes handed to the file at once, about.
const PORTION: usize = 256 * 1024;

/// Appends [`Record`]s to a file of its own, `<dir>/<role>-<pid>-<uuid>.jsonl`.
///
/// Recording costs a push onto a list; a thread writes the list out at least every 20 ms. A
/// process that is killed loses what it recorded since, and may leave half a line at the end.
/// When the file takes no more (its disk is full), nothing is written from then on, that is said in the log,
/// and the end of the role is not recorded: its process counts as killed.
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
    /// What went wrong first.
    problem: Option<String>,
}

impl Shared {
    /// The state stays usable when a thread panicked with the lock: each change is one step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records that stay together, when there is room.
    fn add(&self, records: impl IntoIterator<Item = Record>) {
        let mut state = self.lock();
        while state.waiting.len() >= MAX_WAITING {
            state = self
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
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
        let shared = Arc::new(Shared {
            path: path.clone(),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
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

    /// Blocks until everything recorded so far is in the file.
    ///
    /// # Errors
    /// When anything recorded since the start could not be written.
    pub fn flush(&self) -> Result<(), RecordError> {
        let shared = &self.inner.shared;
        let mut state = shared.lock();
        let target = state.recorded;
        state.hurry = true;
        shared.work.notify_one();
        while state.written < target {
            state = shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
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
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was reported when it happened; nothing is left to do.
            let _ = writer.join();
        }
    }
}

/// The writer: until the last recorder is gone, waits for an interval or a reason to hurry and
/// writes out what has gathered.
fn write_out(shared: &Shared, mut file: File) {
    // Up to where the file has whole records, in bytes, and what has gone wrong.
    let (mut whole, mut problem) = (0, None);
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
        // What comes after a hole proves nothing: the file ends as if its process had been killed.
        let outcome = match &problem {
            None => append(&mut file, &records, &mut whole),
            Some(_) => Ok(()),
        };
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
        state.problem.clone_from(&problem);
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
mod tests {
    use super::*;
    use crate::now::now_ns;
    use crate::read::read_dir;
    use attune_core::{ActionId, Attempt, ExecutionId};

    fn start(n: i64) -> Record {
        Record::Start {
            execution_id: ExecutionId(n),
            attempt: Attempt(1),
            action_id: ActionId(7),
            t_ns: now_ns(),
        }
    }

    #[test]
    fn the_life_of_a_role_begins_and_ends_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::of_role(dir.path(), "api").unwrap();
        let other = recorder.clone();
        recorder.record(start(1));
        drop(recorder);
        other.record_phase(ProcessPhase::Stopping);
        other.flush().unwrap();
        let phases = || {
            let records = read_dir(dir.path()).unwrap().map(Result::unwrap);
            let phase = |record| match record {
                Record::Process { role, phase, .. } if role == "api" => Some(phase),
                _ => None,
            };
            records.map(phase).collect::<Vec<_>>()
        };
        let lives = [
            Some(ProcessPhase::Began),
            None,
            Some(ProcessPhase::Stopping),
        ];
        assert_eq!(phases(), lives);
        drop(other);
        assert_eq!(phases()[3..], [Some(ProcessPhase::Ended)]);
    }

    #[test]
    fn a_file_that_takes_no_more_ends_with_a_whole_record_and_no_end_of_its_role() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api-1-a.jsonl");
        let shared = Shared {
            path: path.clone(),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        };
        let mut whole = 0;
        let mut file = File::create(&path).unwrap();
        append(&mut file, &[start(1)], &mut whole).unwrap();
        assert_eq!(file.metadata().unwrap().len(), whole);
        // Opened for reading, it takes nothing, as a full disk does.
        let file = File::open(&path).unwrap();
        shared.add([start(2)]);
        shared.lock().closed = true;
        write_out(&shared, file);
        assert!(shared.lock().problem.is_some());
        let inner = Inner {
            shared: Arc::new(shared),
            writer: None,
            role: Some("api".to_owned()),
        };
        let shared = Arc::clone(&inner.shared);
        drop(inner);
        assert_eq!(shared.lock().waiting.len(), 0, "no end is recorded");
    }

    #[test]
    fn everything_from_several_threads_is_in_the_file_in_each_ones_order() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(dir.path(), "worker").unwrap();
        let threads: Vec<_> = (0..4_i64)
            .map(|thread| {
                let recorder = recorder.clone();
                thread::spawn(move || {
                    // More than fits in memory at once, so that the bound is met.
                    for n in 0..30_000 {
                        recorder.record(start(thread * 100_000 + n));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(recorder);
        let mut next = [0_i64; 4];
        for record in read_dir(dir.path()).unwrap() {
            let Record::Start {
                execution_id: ExecutionId(id),
                ..
            } = record.unwrap()
            else {
                panic!("only starts were recorded");
            };
            let thread = usize::try_from(id / 100_000).unwrap();
            assert_eq!(id % 100_000, next[thread]);
            next[thread] += 1;
        }
        assert_eq!(next, [30_000; 4]);
    }

    #[test]
    fn a_flush_makes_records_readable_while_recording_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(&dir.path().join("new"), "client").unwrap();
        recorder.flush().unwrap();
        recorder.record(start(1));
        recorder.record(start(2));
        recorder.flush().unwrap();
        assert_eq!(
            std::fs::read_to_string(recorder.path())
                .unwrap()
                .lines()
                .count(),
            2
        );
        let name = recorder
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            name.starts_with(&format!("client-{}-", std::process::id())),
            "{name}"
        );
        recorder.record(start(3));
        let path = recorder.path().to_owned();
        drop(recorder);
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 3);
    }

    #[test]
    fn records_reach_the_file_without_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(dir.path(), "worker").unwrap();
        recorder.record(start(1));
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut state = recorder.inner.shared.lock();
        while state.written == 0 {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            assert!(!left.is_zero(), "the writer never wrote");
            state = recorder
                .inner
                .shared
                .done
                .wait_timeout(state, left)
                .unwrap()
                .0;
        }
        drop(state);
        assert_eq!(
            std::fs::read_to_string(recorder.path())
                .unwrap()
                .lines()
                .count(),
            1
        );
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Recorder::create(&file, "worker").unwrap_err();
        assert!(matches!(error, RecordError::Create { .. }), "{error}");

        // A file that is opened for reading refuses every write, like a full disk.
        let shared = Arc::new(Shared {
            path: file.clone(),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let for_thread = Arc::clone(&shared);
        let read_only = File::open(&file).unwrap();
        let writer = thread::spawn(move || write_out(&for_thread, read_only));
        let recorder = Recorder {
            inner: Arc::new(Inner {
                shared,
                writer: Some(writer),
                role: None,
            }),
        };
        recorder.record(start(1));
        assert!(matches!(
            recorder.flush().unwrap_err(),
            RecordError::Incomplete { .. }
        ));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let times: Vec<_> = (0..1000).map(|_| now_ns()).collect();
        assert!(times.is_sorted() && times[0] > 0);
    }
}
