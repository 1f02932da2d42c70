//! Watches over a process and everything in its process group.

use std::io;
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use attune_core::WorkerId;
use attune_dispatch::Key;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tokio::process::Child;
use tokio::time::Instant;

use super::limits::Limits;
use super::{Bounds, Cause};
use crate::guard::{Guard, Watched};
use crate::launch::Attendant;

/// How long output is still read after the program itself has ended: what it started may hold
/// the pipe open for ever.
const DRAIN: Duration = Duration::from_secs(1);
/// How long an attendant may take to kill what is below it.
const CLOSING: Duration = Duration::from_secs(5);
/// How often an emptying group is looked at; the system has no event for it.
const GROUP_POLL: Duration = Duration::from_millis(10);

/// A program that runs.
#[derive(Debug)]
pub(super) struct Process {
    /// Its own process, or that of its attendant.
    child: Child,
    /// The attendant, with the number of the program.
    attended: Option<(Attendant, Pid)>,
}

impl Process {
    pub(super) fn of(child: Child, attended: Option<(Attendant, Pid)>) -> Self {
        Self { child, attended }
    }

    /// Its number.
    pub(super) fn id(&self) -> Option<Pid> {
        match &self.attended {
            Some((_, program)) => Some(*program),
            None => id_of(&self.child),
        }
    }

    /// The number of its attendant, if it has one.
    pub(super) fn attendant(&self) -> Option<Pid> {
        self.attended.as_ref().and_then(|_| id_of(&self.child))
    }

    /// Waits for its end. Cancel safe.
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.attended {
            Some((attendant, _)) => attendant.ended().await,
            None => self.child.wait().await,
        }
    }

    fn kill(&mut self) {
        match &self.attended {
            // The attendant collects it and then tells of it; numbers do not come around in between.
            Some((_, program)) => drop(kill_process(*program, Signal::KILL)),
            // It fails when it has ended.
            None => drop(self.child.start_kill()),
        }
    }

    /// Lets an attendant kill all that is left, and waits until it has.
    async fn close(&mut self) {
        if self.attended.take().is_some() {
            end_attendant(&mut self.child).await;
        }
    }
}

/// The number of a child that has not been collected.
pub(super) fn id_of(child: &Child) -> Option<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.and_then(Pid::from_raw)
}

/// Waits until an attendant has ended, which knows that it is to.
pub(super) async fn end_attendant(child: &mut Child) {
    if tokio::time::timeout(CLOSING, child.wait()).await.is_err() {
        tracing::error!("processes of a run could not be killed by its attendant");
        let _ = child.start_kill();
    }
}

/// The process group of a run. Dropping it kills what is in it, so that nothing survives a task
/// that ends early.
#[derive(Debug)]
pub(crate) struct Group {
    id: Option<Pid>,
    watched: Option<Watched>,
}

impl Group {
    /// The group that a process leads: it was started with `process_group(0)`, for an attempt that
    /// runs under a lease. The guard is told of it.
    pub(crate) fn led_by(
        leader: Option<Pid>,
        guard: &Arc<Guard>,
        lease: WorkerId,
        key: Key,
    ) -> Self {
        Self {
            id: leader,
            watched: leader.map(|leader| guard.watch(lease, key, leader.as_raw_pid())),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            // It fails when nobody is left in the group, which is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Ends a child that has not become the program that it was to be.
    pub(super) async fn end(self, child: &mut Child) {
        // It fails when it has ended.
        let _ = child.start_kill();
        let _ = child.wait().await;
        self.finish(false).await;
    }

    fn is_alive(&self) -> bool {
        self.id
            .is_some_and(|group| test_kill_process_group(group).is_ok())
    }

    /// Ends for good what is left, also of what has left the group as far as it can be found.
    /// The group's number is not given to anyone else while a member lives; later it might be,
    /// so this is the last use.
    async fn finish(mut self, is_hunted: bool) {
        self.signal(Signal::KILL);
        self.id = None;
        if let Some(watched) = self.watched.take() {
            watched.end(is_hunted).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Waits for the end of `child` while `pump` moves its input and output, and ends its whole
/// group when something outside asks for it: TERM, and after `kill_grace` KILL; KILL at once
/// when the worker may not go on. Returns its exit status and what ended it, if anything did.
///
/// A program that takes more than it may is killed at once.
///
/// What the program leaves behind in its group when it ends by itself is killed as well, once
/// it has had a moment to write what it still has.
pub(super) async fn supervise(
    child: &mut Process,
    group: Group,
    mut pump: Pin<&mut impl Future<Output = ()>>,
    (bounds, limits): (&Bounds, &Limits),
    kill_grace: Duration,
) -> (io::Result<ExitStatus>, Option<Cause>) {
    let over = &bounds.stop.over;
    let mut exceeding = pin!(limits.exceeded());
    let mut cause = None;
    let mut kill_at = None;
    let mut pumped = false;
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status,
            () = over.cancelled(), if cause != Some(Cause::Killed) => {
                cause = Some(Cause::Killed);
                kill(child, &group);
            }
            ended_by = bounds.cause(), if cause.is_none() => {
                cause = Some(ended_by);
                kill_at = Some(Instant::now() + kill_grace);
                group.signal(Signal::TERM);
            }
            exceeded = &mut exceeding, if cause.is_none() => {
                cause = Some(Cause::Exceeded(exceeded));
                kill(child, &group);
            }
            () = until(kill_at), if kill_at.is_some() => {
                kill_at = None;
                kill(child, &group);
            }
            () = &mut pump, if !pumped => pumped = true,
        }
    };
    // Before the group is gone, which knows it.
    cause = cause.or_else(|| limits.killed().map(Cause::Exceeded));
    if cause.is_some() {
        // The rest of the group has the same grace as the program itself.
        while group.is_alive() && kill_at.is_some_and(|at| Instant::now() < at) {
            tokio::select! {
                () = over.cancelled() => break,
                () = &mut pump, if !pumped => pumped = true,
                () = tokio::time::sleep(GROUP_POLL) => {}
            }
        }
        // When the lease is over, the guard hunts once for all runs.
        group.finish(!over.is_cancelled()).await;
        child.close().await;
        drain(pump, pumped, bounds).await;
    } else {
        drain(pump, pumped, bounds).await;
        group.finish(false).await;
        child.close().await;
    }
    // Whatever was cancelled last: a worker that may not go on reports nothing.
    (
        status,
        if over.is_cancelled() {
            Some(Cause::Killed)
        } else {
            cause
        },
    )
}

fn kill(child: &mut Process, group: &Group) {
    group.signal(Signal::KILL);
    // The program may have moved itself to another group.
    child.kill();
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Reads what is still in the pipes, for a bounded time.
async fn drain(pump: Pin<&mut impl Future<Output = ()>>, pumped: bool, bounds: &Bounds) {
    if pumped {
        return;
    }
    tokio::select! {
        biased;
        () = bounds.stop.over.cancelled() => {}
        () = pump => {}
        () = tokio::time::sleep(DRAIN) => {}
    }
}
