//! Watches over a process and everything in its process group.

use std::io;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use attune_core::WorkerId;
use attune_dispatch::Key;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Child;
use tokio::time::Instant;

use super::{Bounds, Cause};
use crate::guard::{Guard, Watched};

/// How long output is still read after the program itself has ended: what it started may hold
/// the pipe open for ever.
const DRAIN: Duration = Duration::from_secs(1);
/// How often an emptying group is looked at; the system has no event for it.
const GROUP_POLL: Duration = Duration::from_millis(10);

/// The process group of a run. Dropping it kills what is in it, so that nothing survives a task
/// that ends early.
#[derive(Debug)]
pub(crate) struct Group {
    id: Option<Pid>,
    watched: Option<Watched>,
}

impl Group {
    /// The group that `child` leads: it was started with `process_group(0)`, for an attempt that
    /// runs under a lease. The guard is told of it.
    pub(crate) fn led_by(child: &Child, guard: &Arc<Guard>, lease: WorkerId, key: Key) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            id: id.and_then(Pid::from_raw),
            watched: id.map(|id| guard.watch(lease, key, id)),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            // It fails when nobody is left in the group, which is what is wanted.
            let _ = kill_process_group(group, signal);
        }
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
/// What the program leaves behind in its group when it ends by itself is killed as well, once
/// it has had a moment to write what it still has.
pub(crate) async fn supervise(
    child: &mut Child,
    group: Group,
    mut pump: Pin<&mut impl Future<Output = ()>>,
    bounds: &Bounds,
    kill_grace: Duration,
) -> (io::Result<ExitStatus>, Option<Cause>) {
    let over = &bounds.stop.over;
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
            () = until(kill_at), if kill_at.is_some() => {
                kill_at = None;
                kill(child, &group);
            }
            () = &mut pump, if !pumped => pumped = true,
        }
    };
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
        drain(pump, pumped, bounds).await;
    } else {
        drain(pump, pumped, bounds).await;
        group.finish(false).await;
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

fn kill(child: &mut Child, group: &Group) {
    group.signal(Signal::KILL);
    // The program may have moved itself to another group. It fails when it has ended.
    let _ = child.start_kill();
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
