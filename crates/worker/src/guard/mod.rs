//! A second process that kills what a worker runs when the worker cannot do it itself: because it
//! was killed, or because it stands still beyond its lease.
//!
//! The worker tells its guard, over a pipe, until when its lease may be trusted and which process
//! groups run. When that moment passes, or the pipe closes because the worker is gone, the guard
//! kills them, with everything that carries the mark of the worker in its environment
//! ([`VARIABLE`]) or is in its cgroup. The pipe closes only when each child of the worker has
//! become the program that it was to be (until then it holds the pipe too), so none is missed
//! that was just being begun.
//!
//! When the worker is gone and nothing of what it ran is left, the guard marks the file of what had
//! [begun](crate::begun): from then on others may say so.
//!
//! A guard that dies is replaced and told everything again. Without one, programs go on to be
//! run and the worker warns: it still kills them itself when its lease ends.

mod cgroup;
mod hunt;
mod line;
mod process;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, PipeWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_core::WorkerId;
use attune_dispatch::Key;
use attune_runtime::Backoff;
use attune_runtime::clock::BootInstant;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

pub(crate) use cgroup::{enter as enter_cgroup, had_no_memory, limits as cgroup_limits};
use line::Line;
pub(crate) use line::VARIABLE;
pub(crate) use process::ends_in_its_place;
pub use process::run;

/// How long a guard may take to end after its worker has closed the pipe: its own patience with
/// what cannot be killed, and some more.
const CLOSING: Duration = Duration::from_secs(10);
/// A guard that lives for so long ends for no reason that others have to fear.
const LASTING: Duration = Duration::from_secs(10);
/// Between two attempts to tell a new guard the rest of what it must know.
const FLUSH: Duration = Duration::from_millis(10);
/// How long a process that was killed is looked for at the end of its run.
const HUNT: Duration = Duration::from_secs(1);

/// The worker's side.
#[derive(Debug)]
pub(crate) struct Guard {
    /// How the guard process is started; nothing when there is to be none.
    command: Vec<OsString>,
    /// Marks every program of this worker.
    mark: Uuid,
    /// In which each run has its own.
    cgroup: Option<PathBuf>,
    /// Which controllers bound the cgroup of a run.
    controllers: Vec<&'static str>,
    state: Mutex<State>,
    /// The guard process does not read; it is to be replaced.
    broken: Notify,
    /// Who looks after the guard process.
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// What a guard process must know, and the way to it.
#[derive(Debug, Default)]
struct State {
    /// The number of the guard process.
    process: Option<u32>,
    pipe: Option<PipeWriter>,
    /// What a new guard process could not be told at once.
    untold: Vec<u8>,
    leases: HashMap<WorkerId, Lease>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lease {
    /// Until when it may be trusted.
    until: Option<BootInstant>,
    groups: HashSet<i32>,
    /// The file of what has begun under it.
    begun: Option<PathBuf>,
}

impl Guard {
    /// Starts the guard process, unless `command` is empty. One that cannot be started is tried
    /// again and again, and the worker goes on meanwhile.
    pub(crate) fn start(command: Vec<OsString>) -> Arc<Self> {
        let mark = Uuid::now_v7();
        // A worker that is killed leaves it to its guard to remove them.
        let made = Some(mark).filter(|_| !command.is_empty());
        Self::start_with(command, mark, made.and_then(make_cgroup))
    }

    fn start_with(command: Vec<OsString>, mark: Uuid, made: Option<Made>) -> Arc<Self> {
        let (cgroup, controllers) = made.unzip();
        let guard = Arc::new(Self {
            cgroup,
            controllers: controllers.unwrap_or_default(),
            command,
            mark,
            state: Mutex::default(),
            broken: Notify::new(),
            keeper: Mutex::default(),
        });
        if guard.is_wanted() {
            let child = guard.spawn();
            let keeper = tokio::spawn(Arc::clone(&guard).keep(child));
            *guard.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        }
        guard
    }

    /// A lease may be trusted until then.
    pub(crate) fn trust(&self, lease: WorkerId, until: BootInstant) {
        let mut state = self.state();
        state.leases.entry(lease).or_default().until = Some(until);
        self.tell(&mut state, &Line::Lease(lease, until));
    }

    /// Whether there is to be a guard process.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.command.is_empty()
    }

    /// What every program of this worker carries.
    pub(crate) fn carried(&self) -> Uuid {
        self.mark
    }

    /// In which each run has its own.
    pub(crate) fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    /// Which controllers bound the cgroup of a run.
    pub(crate) fn controllers(&self) -> &[&'static str] {
        &self.controllers
    }

    /// The cgroup of a run.
    pub(crate) fn cgroup_of(&self, lease: WorkerId, key: Key) -> Option<PathBuf> {
        let worker = self.cgroup.as_deref()?;
        Some(cgroup::of_run(worker, lease, key))
    }

    /// The file of what has begun under a lease, which the guard marks when the worker was killed and
    /// nothing of it is left; none when the file is not to be believed.
    pub(crate) fn begun(&self, lease: WorkerId, file: Option<PathBuf>) {
        let mut state = self.state();
        if let Some(known) = state.leases.get_mut(&lease) {
            known.begun.clone_from(&file);
        }
        self.tell(&mut state, &Line::Begun(lease, file));
    }

    /// A lease is lost; what still runs under it is killed.
    pub(crate) fn lost(&self, lease: WorkerId) {
        let mut state = self.state();
        state.leases.remove(&lease);
        self.tell(&mut state, &Line::Lost(lease));
    }

    /// What a run's program must have in its environment under [`VARIABLE`].
    pub(crate) fn mark(&self, lease: WorkerId, (execution_id, attempt): Key) -> String {
        format!("{}:{lease}:{execution_id}.{attempt}", self.mark)
    }

    /// Watches over a process that was begun under a lease and leads a group.
    pub(crate) fn watch(self: &Arc<Self>, lease: WorkerId, key: Key, group: i32) -> Watched {
        let mut state = self.state();
        if let Some(known) = state.leases.get_mut(&lease) {
            known.groups.insert(group);
        }
        self.tell(&mut state, &Line::Run(lease, group));
        drop(state);
        Watched {
            guard: Arc::clone(self),
            lease,
            key,
            group: Some(group),
            cgroup: self.cgroup_of(lease, key),
        }
    }

    /// Ends the guard process, which kills what is left of any run, and waits for it. Nothing is
    /// guarded from here on.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.state();
            state.is_closed = true;
            state.pipe = None;
        }
        self.broken.notify_one();
        let keeper = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(keeper) = keeper
            && tokio::time::timeout(CLOSING, keeper).await.is_err()
        {
            tracing::error!("the guard does not end; it cannot kill what the worker ran");
        }
        if let Some(cgroup) = self.cgroup.clone() {
            // Its guard has done this, if there was one; a failure was told by whoever had it.
            let _ = tokio::task::spawn_blocking(move || cgroup::end(&cgroup)).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the guard process, if there is one that reads.
    fn tell(&self, state: &mut State, line: &Line) {
        if state.pipe.is_none() {
            return;
        }
        let line = format!("{line}\n");
        if !state.untold.is_empty() {
            // In order: a new guard process is still being told what came before.
            state.untold.extend_from_slice(line.as_bytes());
            return;
        }
        let written = state.pipe.as_mut().map(|pipe| pipe.write(line.as_bytes()));
        if !matches!(written, Some(Ok(count)) if count == line.len()) {
            // It is gone, or has read nothing for a thousand lines: no use waiting for it here.
            state.pipe = None;
            self.broken.notify_one();
        }
    }

    /// Tells a new guard process what it was not told at once; whether that was all.
    fn flush(&self) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        while let Some(pipe) = state.pipe.as_mut()
            && !state.untold.is_empty()
        {
            match pipe.write(&state.untold) {
                Ok(count) => drop(state.untold.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    state.pipe = None;
                    self.broken.notify_one();
                }
            }
        }
        true
    }

    /// Starts a guard process that knows everything.
    fn spawn(&self) -> io::Result<Child> {
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("no command"))?;
        let (reader, pipe) = io::pipe()?;
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        let child = Command::new(program)
            .args(arguments)
            // Nor may it carry the mark of a worker that runs this one.
            .env_clear()
            .current_dir("/")
            // What is sent to the worker's group, by a terminal for one, is not for the guard.
            .process_group(0)
            .stdin(reader)
            .stdout(Stdio::null())
            .spawn()?;
        let mut state = self.state();
        state.process = child.id();
        let mut lines = vec![Line::Worker(self.mark, self.cgroup.clone())];
        for (id, lease) in &state.leases {
            lines.extend(lease.until.map(|until| Line::Lease(*id, until)));
            lines.extend(lease.groups.iter().map(|group| Line::Run(*id, *group)));
            let file = lease.begun.clone();
            lines.extend(file.map(|file| Line::Begun(*id, Some(file))));
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        state.untold = text.into_bytes();
        state.pipe = (!state.is_closed).then_some(pipe);
        drop(state);
        self.flush();
        Ok(child)
    }

    /// Replaces the guard process whenever it has ended, until the worker closes it.
    async fn keep(self: Arc<Self>, mut child: io::Result<Child>) {
        let mut backoff = Backoff::default();
        loop {
            match child {
                Ok(mut process) => {
                    let began = Instant::now();
                    let ended = self.attend(&mut process).await;
                    if began.elapsed() > LASTING {
                        backoff.reset();
                    }
                    if self.state().is_closed {
                        return;
                    }
                    let pid = self.state().process;
                    tracing::warn!(
                        pid,
                        ended,
                        "the worker's guard has ended; it gets another one"
                    );
                }
                Err(error) => tracing::warn!(
                    %error,
                    "the worker has no guard: its programs would outlive a kill -9"
                ),
            }
            tokio::select! {
                () = self.closed() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
            child = self.spawn();
        }
    }

    /// Waits for the end of a guard process; one that does not read is killed.
    async fn attend(&self, process: &mut Child) -> String {
        loop {
            let is_told = self.flush();
            tokio::select! {
                status = process.wait() => {
                    self.state().pipe = None;
                    return status.map_or_else(|error| error.to_string(), |status| status.to_string());
                }
                () = self.broken.notified() => {
                    let state = self.state();
                    if state.pipe.is_none() && !state.is_closed {
                        drop(state);
                        // It fails when the process has ended.
                        let _ = process.start_kill();
                    }
                }
                () = tokio::time::sleep(FLUSH), if !is_told => {}
            }
        }
    }

    async fn closed(&self) {
        while !self.state().is_closed {
            self.broken.notified().await;
        }
    }
}

/// A cgroup with the controllers of its runs.
type Made = (PathBuf, Vec<&'static str>);

fn make_cgroup(mark: Uuid) -> Option<Made> {
    match cgroup::make(mark) {
        Ok((group, controllers)) => {
            let path = group.display();
            let controllers_used = controllers.join(" ");
            tracing::info!(%path, controllers_used, "each run gets a cgroup, and is killed with everything in it");
            Some((group, controllers))
        }
        Err(error) => {
            tracing::info!(%error, "runs get no cgroup: they are killed by group and by mark");
            None
        }
    }
}

/// The cgroup in which runs of this process would have their own.
///
/// # Errors
/// Why they would have none.
pub(crate) fn can_have_cgroups() -> io::Result<PathBuf> {
    cgroup::can_be_made()
}

/// The controllers of a cgroup by which runs are bounded.
pub(crate) fn controllers(group: &Path) -> Vec<&'static str> {
    cgroup::controllers(group)
}

/// A process group that the guard knows of.
#[derive(Debug)]
pub(crate) struct Watched {
    guard: Arc<Guard>,
    lease: WorkerId,
    key: Key,
    /// Until the guard was told that it is over.
    group: Option<i32>,
    cgroup: Option<PathBuf>,
}

impl Watched {
    /// Kills what has left the group: everything in the run's cgroup and, if `is_hunted`, whoever carries
    /// its mark, which takes a look at every process there is.
    pub(crate) async fn end(mut self, is_hunted: bool) {
        // First: the number may be given to another group.
        self.group_is_over();
        let is_hunted = is_hunted && self.guard.is_wanted();
        let mark = self.guard.mark(self.lease, self.key);
        let cgroup = self.cgroup.clone();
        if cgroup.is_none() && !is_hunted {
            return;
        }
        let ending = tokio::task::spawn_blocking(move || {
            let no_mark_left = !is_hunted || hunt::kill_marked(&mark, HUNT).1;
            no_mark_left && cgroup.is_none_or(|cgroup| cgroup::end(&cgroup))
        });
        if !matches!(ending.await, Ok(true)) {
            let (execution_id, attempt) = self.key;
            tracing::error!(
                execution.id = %execution_id,
                execution.attempt = %attempt,
                "processes of a run could not be killed"
            );
        }
    }

    fn group_is_over(&mut self) {
        let Some(group) = self.group.take() else {
            return;
        };
        let mut state = self.guard.state();
        if let Some(known) = state.leases.get_mut(&self.lease) {
            known.groups.remove(&group);
        }
        self.guard.tell(&mut state, &Line::Over(self.lease, group));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.group_is_over();
    }
}
