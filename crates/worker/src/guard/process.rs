//! The guard process: it hears from its worker by stdin, and needs nothing else.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attune_core::WorkerId;
use attune_runtime::clock::{BootInstant, BootTimer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    test_kill_process, waitid,
};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::line::Line;
use super::{cgroup, hunt};
use crate::begun;

/// Read at once: all that a pipe can hold, so that one read takes everything that was written
/// before it.
const PIPE_BYTES: usize = 64 * 1024;
/// How long after the end of a lease its worker may take to say that it has noticed. The slots
/// are given to others when the margin of the lease and the grace are over too.
const SAYING: Duration = Duration::from_millis(500);
/// How long killed processes are looked for. What is still there then hangs in the kernel.
const PATIENCE: Duration = Duration::from_secs(5);

/// Is the guard of the worker that writes to this process's stdin, until the worker has ended:
/// kills what the worker runs when its lease ends, and everything when the worker is gone.
///
/// With `kills_worker` also the worker itself, if it does not say in time that it has noticed the
/// end of its lease: it stands still, and what it runs within itself, a request over HTTP for
/// one, must not go on when it wakes up. Not for a process that does more than being a worker.
///
/// # Errors
/// When stdin is not the pipe of a worker, or cannot be read; then nothing is guarded any more.
pub fn run(kills_worker: bool) -> io::Result<()> {
    let stdin = io::stdin();
    let is_pipe = FileType::from_raw_mode(fstat(&stdin)?.st_mode) == FileType::Fifo;
    if !is_pipe {
        return Err(io::Error::other("a guard is started by its worker alone"));
    }
    fcntl_setfl(&stdin, fcntl_getfl(&stdin)? | OFlags::NONBLOCK)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _context = runtime.enter();
    // A service manager that stops the worker tells every process of the service. Only the end
    // of the worker ends its guard.
    let _ignored = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    let mut watch = Watch {
        worker: kills_worker.then(getppid).flatten(),
        ..Watch::default()
    };
    let timer = BootTimer::new()?;
    let mut unread = Vec::new();
    let mut chunk = vec![0; PIPE_BYTES];
    loop {
        wait(&stdin, &timer, watch.next())?;
        // Before the read: what was written before this moment is heard before it is judged.
        let now = BootInstant::now();
        match rustix::io::read(&stdin, &mut chunk) {
            Ok(0) => {
                watch.end_all();
                return Ok(());
            }
            Ok(count) => {
                unread.extend_from_slice(&chunk[..count]);
                watch.hear(&mut unread);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                watch.end_all();
                return Err(error.into());
            }
        }
        watch.expire(now);
    }
}

/// Waits until the pipe can be read, or until a moment has come.
fn wait(pipe: impl AsFd, timer: &BootTimer, until: Option<BootInstant>) -> io::Result<()> {
    timer.set(until)?;
    let mut both = [
        PollFd::new(&pipe, PollFlags::IN),
        PollFd::new(timer, PollFlags::IN),
    ];
    match poll(&mut both, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What the guard knows. A lease that it does not know is over.
#[derive(Debug, Default)]
struct Watch {
    mark: String,
    cgroup: Option<PathBuf>,
    leases: HashMap<WorkerId, Lease>,
    /// The process to kill when it does not notice the end of a lease.
    worker: Option<Pid>,
    /// Leases that have ended without a word of the worker, and until when it must say one.
    unsaid: HashMap<WorkerId, BootInstant>,
}

#[derive(Debug)]
struct Lease {
    /// Until when it may be trusted.
    until: BootInstant,
    groups: HashSet<i32>,
    /// To be marked when nothing of it is left.
    begun: Option<PathBuf>,
}

impl Watch {
    /// Hears every whole line.
    fn hear(&mut self, unread: &mut Vec<u8>) {
        let Some(end) = unread.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let rest = unread.split_off(end + 1);
        for line in String::from_utf8_lossy(unread).lines() {
            match Line::parse(line) {
                Some(line) => self.take(line),
                None => tracing::error!(line, "the guard was told something unknown"),
            }
        }
        *unread = rest;
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Worker(mark, cgroup) => {
                self.mark = mark.to_string();
                self.cgroup = cgroup;
            }
            Line::Lease(lease, until) => {
                let unknown = || Lease {
                    until,
                    groups: HashSet::new(),
                    begun: None,
                };
                self.leases.entry(lease).or_insert_with(unknown).until = until;
            }
            Line::Lost(lease) => {
                self.unsaid.remove(&lease);
                self.end(lease, "its worker has lost the lease");
            }
            Line::Run(lease, group) => match self.leases.get_mut(&lease) {
                Some(known) => drop(known.groups.insert(group)),
                // A worker that stood still was just about to begin it.
                None => {
                    kill_group(group);
                    self.end(lease, "it was begun after the end of the lease");
                }
            },
            Line::Begun(lease, file) => {
                if let Some(known) = self.leases.get_mut(&lease) {
                    known.begun = file;
                }
            }
            Line::Over(lease, group) => {
                if let Some(known) = self.leases.get_mut(&lease) {
                    known.groups.remove(&group);
                }
            }
        }
    }

    /// When the next lease ends, or the time to say that it has.
    fn next(&self) -> Option<BootInstant> {
        let leases = self.leases.values().map(|lease| lease.until);
        leases.chain(self.unsaid.values().copied()).min()
    }

    /// Ends the leases whose time is over, and a worker that has not noticed.
    fn expire(&mut self, now: BootInstant) {
        let ended = self.leases.iter();
        let ended: Vec<_> = ended
            .filter(|(_, lease)| lease.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for lease in ended {
            self.end(lease, "its worker has not renewed the lease in time");
            if self.worker.is_some() {
                self.unsaid.insert(lease, now + SAYING);
            }
        }
        let Some(worker) = self.worker else { return };
        if self.unsaid.values().any(|until| *until <= now) {
            self.unsaid.clear();
            // Its number is nobody else's as long as it is the parent of this process.
            if getppid() == Some(worker) {
                tracing::error!(
                    pid = worker.as_raw_pid(),
                    "the worker stands still beyond its lease; it is killed"
                );
                let _ = kill_process(worker, Signal::KILL);
            }
        }
    }

    /// Kills what runs under a lease, and forgets the lease.
    fn end(&mut self, lease: WorkerId, why: &str) {
        let known = self.leases.remove(&lease);
        let cgroup = self.cgroup.as_deref();
        let cgroup = cgroup.map(|group| cgroup::of_lease(group, lease));
        let mark = format!("{}:{lease}", self.mark);
        let killed = kill_all(
            known.into_iter().flat_map(|known| known.groups),
            cgroup,
            &mark,
        );
        killed.tell(&lease.to_string(), why);
    }

    /// The worker is gone: kills everything that it ran, and marks the files of what had begun.
    fn end_all(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        let groups = leases.values().flat_map(|lease| lease.groups.iter());
        let groups: Vec<i32> = groups.copied().collect();
        let killed = kill_all(groups, self.cgroup.take(), &format!("{}:", self.mark));
        killed.tell("all", "its worker is gone");
        let files = leases.into_values().filter_map(|lease| lease.begun);
        for file in files.filter(|_| killed.is_all) {
            match begun::mark(&file) {
                // A worker that stops removes it first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let path = file.display();
                    tracing::warn!(%path, %error, "a worker's slots come back with the end of its lease");
                }
                Ok(()) => {}
            }
        }
    }
}

/// What became of those that were to be killed.
struct Killed {
    group_count: usize,
    process_count: usize,
    is_all: bool,
}

impl Killed {
    /// Says what was done, if anything was.
    fn tell(&self, worker: &str, why: &str) {
        let (group_count, process_count) = (self.group_count, self.process_count);
        if !self.is_all {
            tracing::error!(
                worker.id = worker,
                why,
                "the guard could not kill every program"
            );
        } else if group_count > 0 || process_count > 0 {
            tracing::warn!(
                worker.id = worker,
                why,
                group_count,
                process_count,
                "the guard has killed what a worker ran"
            );
        }
    }
}

/// Kills process groups, a cgroup, and whoever carries the mark: each way finds what another may
/// miss.
fn kill_all(groups: impl IntoIterator<Item = i32>, cgroup: Option<PathBuf>, mark: &str) -> Killed {
    if let Some(cgroup) = &cgroup {
        cgroup::kill(cgroup);
    }
    let group_count = groups.into_iter().map(kill_group).count();
    let (process_count, no_mark_left) = hunt::kill_marked(mark, PATIENCE);
    let is_empty = cgroup.is_none_or(|cgroup| cgroup::end(&cgroup));
    Killed {
        group_count,
        process_count,
        is_all: no_mark_left && is_empty,
    }
}

fn kill_group(group: i32) {
    // 1 would mean every process there is.
    if let Some(group) = Pid::from_raw(group).filter(|_| group > 1) {
        // It fails when nobody is left in the group, which is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Does the work of a guard that was killed together with its worker, whose runs were in `cgroup` and
/// whose programs carry `mark`: kills what is left. Whether nothing is left, for sure: this process must be of
/// the same service, and alone in it, so that its manager has killed what was never in a group of its own. Blocks.
pub(crate) fn ends_in_its_place(mark: Uuid, cgroup: &Path) -> bool {
    let is_next = cgroup::base().is_ok_and(|base| {
        let are_ours =
            |group: &Path| cgroup::members(group).is_ok_and(|inside| are_begun_here(&inside));
        let own = cgroup::own().is_ok_and(|own| are_ours(&own));
        cgroup.parent() == Some(base.as_path()) && are_ours(&base) && own
    });
    if !is_next {
        return false;
    }
    let killed = kill_all([], Some(cgroup.to_owned()), &format!("{mark}:"));
    killed.tell("all", "their worker and its guard are gone");
    killed.is_all
}

/// Whether all of these are this process, and what it has begun.
pub(super) fn are_begun_here(processes: &[Pid]) -> bool {
    processes.iter().copied().all(|process| {
        let mut next = Some(process);
        while let Some(of) = next.filter(|of| *of != getpid() && !is_child(*of)) {
            next = parent(of);
        }
        // One that has ended meanwhile has no parent either.
        next.is_some() || test_kill_process(process).is_err()
    })
}

/// Whether this process has begun it. Its guard does not show who its parent is, where `/proc` hides
/// what may not be looked into.
fn is_child(process: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), options).is_ok()
}

/// The parent of a process.
fn parent(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    // Behind its name, which may be anything, stand its state and its parent.
    let (_, rest) = stat.rsplit_once(')')?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}
