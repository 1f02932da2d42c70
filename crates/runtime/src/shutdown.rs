//! The order to stop, and the wait for everything to end.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info, info_span, warn};

use crate::error_text::error_chain;

/// Stops a process, or a part of it, in order; cheap to clone.
///
/// All clones and [children](Self::child) share the set of tasks. A child can be cancelled alone,
/// so that a daemon can stop its parts one after the other; cancelling the parent cancels it too.
/// A task that dies cancels the *root*: what is left without it can not be trusted to work, and
/// the supervisor of the process starts it anew (crash-only).
#[derive(Clone, Debug)]
pub struct Shutdown {
    token: CancellationToken,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: CancellationToken,
    tracker: TaskTracker,
    tasks: Mutex<Tasks>,
}

/// Held for single statements, never across an await.
#[derive(Debug, Default)]
struct Tasks {
    next: u64,
    running: BTreeMap<u64, String>,
    /// The first task that died; later ones usually follow from it.
    failed: Option<(String, String)>,
}

/// Why a stop was not clean.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// A task panicked, failed, or ended although it should have run until the stop.
    #[error("the task {task} died: {reason}")]
    TaskDied {
        /// Its name.
        task: String,
        /// What happened to it.
        reason: String,
    },
    /// Tasks still ran at the deadline.
    #[error("stopped with {} still running after {} s", .tasks.join(", "), .waited.as_secs())]
    Deadline {
        /// Their names, in the order in which they were started.
        tasks: Vec<String>,
        /// How long they were waited for.
        waited: Duration,
    },
}

/// What a task may return: nothing, or a result whose error ends the process.
pub trait TaskOutcome: Send + 'static {
    /// Nothing, or why the task failed.
    fn failure(self) -> Option<String>;
}

impl TaskOutcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E> TaskOutcome for Result<(), E>
where
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    fn failure(self) -> Option<String> {
        let error: Box<dyn Error + Send + Sync> = self.err()?.into();
        Some(error_chain(&*error))
    }
}

/// Whether a task may end before the stop.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    AtStop,
    Anytime,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A new root.
    #[must_use]
    pub fn new() -> Self {
        let root = CancellationToken::new();
        Self {
            token: root.clone(),
            shared: Arc::new(Shared {
                root,
                tracker: TaskTracker::new(),
                tasks: Mutex::default(),
            }),
        }
    }

    /// A part that can be stopped alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Orders the stop of this part and its children.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Whether the stop was ordered.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits for the order to stop. Cancel-safe.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// The token behind it, for code that takes one.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Starts a task that runs until the stop. If it panics, fails or ends before this part is
    /// cancelled, that is logged and the whole process is cancelled.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: TaskOutcome> + Send + 'static,
    {
        self.supervise(name.into(), Ends::AtStop, task);
    }

    /// Starts a task that has an end of its own. If it panics or fails, that is logged and the
    /// whole process is cancelled.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn_finite<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: TaskOutcome> + Send + 'static,
    {
        self.supervise(name.into(), Ends::Anytime, task);
    }

    fn supervise<F>(&self, name: String, ends: Ends, task: F)
    where
        F: Future<Output: TaskOutcome> + Send + 'static,
    {
        // In the set before it starts, so that a wait that begins now waits for it too.
        let id = self.tasks().add(name.clone());
        let shutdown = self.clone();
        let span = info_span!("task", task.name = name);
        self.shared.tracker.spawn(async move {
            // A task of its own, so that its panic ends here and not in the supervisor.
            let ended = tokio::spawn(task.instrument(span)).await;
            let failure = match ended {
                Ok(outcome) => outcome.failure().or_else(|| shutdown.unexpected_end(ends)),
                Err(error) => error.try_into_panic().ok().map(|panic| panic_text(&*panic)),
            };
            let mut tasks = shutdown.tasks();
            tasks.running.remove(&id);
            if let Some(reason) = failure {
                tasks.failed.get_or_insert((name.clone(), reason.clone()));
                drop(tasks);
                // Before anything is said of it: what is safe must not depend on the log.
                shutdown.shared.root.cancel();
                error!(
                    task.name = name,
                    error = reason,
                    "a task died; stopping the process"
                );
            }
        });
    }

    fn unexpected_end(&self, ends: Ends) -> Option<String> {
        (ends == Ends::AtStop && !self.is_cancelled())
            .then(|| "it ended although nothing asked it to".to_owned())
    }

    /// Cancels on SIGTERM and SIGINT; a second one of either ends the process at once, with 128
    /// plus the number of the signal as its exit code.
    ///
    /// # Errors
    /// When the signals cannot be listened for.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn listen_for_signals(&self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let token = self.token.clone();
        // Not in the set of tasks: it goes on while the others are waited for.
        tokio::spawn(async move {
            let (name, _) = next_signal(&mut terminate, &mut interrupt).await;
            token.cancel();
            info!(
                signal = name,
                "stopping; a second signal ends the process at once"
            );
            let (name, number) = next_signal(&mut terminate, &mut interrupt).await;
            warn!(signal = name, "second signal; ending at once");
            std::process::exit(128 + number);
        });
        Ok(())
    }

    /// Waits for the order to stop, then at most `drain` for all tasks of the process to end.
    ///
    /// Meant for the end of `main`; on an error the process should end with a failure, which
    /// ends the tasks that are left. That is safe, because leases run out.
    ///
    /// # Errors
    /// [`StopError::TaskDied`] if a task was the reason, else [`StopError::Deadline`].
    pub async fn wait(&self, drain: Duration) -> Result<(), StopError> {
        self.cancelled().await;
        self.shared.tracker.close();
        // Waiting is cancel-safe; the tasks themselves are not touched.
        let ended = tokio::time::timeout(drain, self.shared.tracker.wait()).await;
        let tasks = self.tasks();
        if let Some((task, reason)) = tasks.failed.clone() {
            return Err(StopError::TaskDied { task, reason });
        }
        match ended {
            Ok(()) => Ok(()),
            Err(_) => Err(StopError::Deadline {
                tasks: tasks.running.values().cloned().collect(),
                waited: drain,
            }),
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        // Single statements cannot leave it half changed, so a poisoned lock is still good.
        self.shared
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tasks {
    fn add(&mut self, name: String) -> u64 {
        let id = self.next;
        self.next += 1;
        self.running.insert(id, name);
        id
    }
}

async fn next_signal(terminate: &mut Signal, interrupt: &mut Signal) -> (&'static str, i32) {
    tokio::select! {
        _ = terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
        _ = interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!(
        "it panicked: {}",
        attune_config::redact_urls(message.unwrap_or("no message"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_stop_waits_for_every_task() {
        let shutdown = Shutdown::new();
        let (ended, mut log) = tokio::sync::mpsc::channel(2);
        for name in ["first", "second"] {
            let (stop, ended) = (shutdown.clone(), ended.clone());
            shutdown.spawn(name, async move {
                stop.cancelled().await;
                ended.send(name).await
            });
        }
        shutdown.spawn_finite("short", async { Ok::<(), anyhow::Error>(()) });
        shutdown.cancel();
        assert_eq!(shutdown.wait(LONG).await, Ok(()));
        let mut names = [log.recv().await.unwrap(), log.recv().await.unwrap()];
        names.sort_unstable();
        assert_eq!(names, ["first", "second"]);
    }

    async fn death_of(start: impl FnOnce(&Shutdown)) -> StopError {
        let root = Shutdown::new();
        let stop = root.clone();
        root.spawn("bystander", async move { stop.cancelled().await });
        start(&root.child());
        root.wait(LONG).await.unwrap_err()
    }

    fn fall_over() {
        panic!("slot {}", 7);
    }

    fn died(reason: &str) -> StopError {
        StopError::TaskDied {
            task: "journal".to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_task_that_dies_stops_the_process() {
        let failed = || async { Err(anyhow::anyhow!("disk full").context("commit failed")) };
        assert_eq!(
            death_of(|part| part.spawn("journal", async { fall_over() })).await,
            died("it panicked: slot 7")
        );
        assert_eq!(
            death_of(|part| part.spawn("journal", async {})).await,
            died("it ended although nothing asked it to")
        );
        assert_eq!(
            death_of(|part| part.spawn("journal", failed())).await,
            died("commit failed: disk full")
        );
        assert_eq!(
            death_of(|part| part.spawn_finite("journal", failed())).await,
            died("commit failed: disk full")
        );
    }

    #[tokio::test]
    async fn a_failure_during_the_stop_is_told_too() {
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        shutdown.spawn("journal", async move {
            stop.cancelled().await;
            Err(anyhow::anyhow!("last commit failed"))
        });
        shutdown.cancel();
        assert_eq!(shutdown.wait(LONG).await, Err(died("last commit failed")));
    }

    #[tokio::test]
    async fn a_child_stops_alone_and_with_its_parent() {
        let root = Shutdown::new();
        let (intake, granting) = (root.child(), root.child());
        let stop = intake.clone();
        intake.spawn("intake", async move { stop.cancelled().await });
        intake.cancel();
        assert!(intake.is_cancelled() && !granting.is_cancelled() && !root.is_cancelled());
        root.cancel();
        assert!(granting.token().is_cancelled());
        assert_eq!(root.wait(LONG).await, Ok(()));
    }

    #[tokio::test]
    async fn the_deadline_names_what_still_runs() {
        let shutdown = Shutdown::new();
        shutdown.spawn("stuck", std::future::pending::<()>());
        shutdown.cancel();
        let error = shutdown.wait(Duration::ZERO).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "stopped with stuck still running after 0 s"
        );
    }
}
