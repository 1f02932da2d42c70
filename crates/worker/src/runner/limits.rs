//! What a run may take of its machine, and whether it takes more.
//!
//! Where its control group has the controllers, the kernel keeps the limits: whoever wants more processes
//! gets none, more processors waits, and more memory is killed, which is read from the group at the end.
//! Elsewhere the processes of the run are looked at four times a second and killed when they have too
//! much; between two looks they may have more. Nobody bounds processors there.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attune_core::{EndCode, Resources, Size};
use rustix::process::Pid;

use crate::guard::had_no_memory;

/// Between two looks at the processes of a run.
const PERIOD: Duration = Duration::from_millis(250);

/// What a run has taken more of than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceeded {
    what: What,
    is_sampled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Memory.
    Memory(Size),
    /// Processes and threads.
    Pids(u32),
}

impl Exceeded {
    /// Its name for programs.
    pub(super) fn code(self) -> EndCode {
        match self.what {
            What::Memory(_) => EndCode::OutOfMemory,
            What::Pids(_) => EndCode::TooManyProcesses,
        }
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Memory(limit) => write!(f, "out of memory: it may take {limit}")?,
            What::Pids(limit) => write!(f, "too many processes: it may have {limit}")?,
        }
        f.write_str(if self.is_sampled {
            " (enforced: sampled)"
        } else {
            " (enforced: by the kernel)"
        })
    }
}

/// The limits of one run.
#[derive(Debug)]
pub(super) struct Limits {
    resources: Resources,
    /// Those of them that the kernel does not keep.
    sampled: Resources,
    cgroup: Option<PathBuf>,
    /// The program, and its attendant.
    program: (Option<Pid>, Option<Pid>),
}

impl Limits {
    /// Of a run in this cgroup, which has these controllers, and of this program with its attendant.
    pub(super) fn new(
        resources: Resources,
        (cgroup, controllers): (Option<PathBuf>, &[&str]),
        program: (Option<Pid>, Option<Pid>),
    ) -> Self {
        let is_sampled = |controller| cgroup.is_none() || !controllers.contains(&controller);
        let sampled = Resources {
            memory: resources.memory.filter(|_| is_sampled("memory")),
            cpu: None,
            pids: resources.pids.filter(|_| is_sampled("pids")),
        };
        Self {
            resources,
            sampled,
            cgroup,
            program,
        }
    }

    /// Waits until the run takes too much, where nobody else keeps it from that. Cancel safe.
    pub(super) async fn exceeded(&self) -> Exceeded {
        if self.sampled.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(PERIOD).await;
            let (sampled, cgroup, program) = (self.sampled, self.cgroup.clone(), self.program);
            let look = move || too_much(sampled, &members(cgroup.as_deref(), program));
            if let Ok(Some(what)) = tokio::task::spawn_blocking(look).await {
                return Exceeded {
                    what,
                    is_sampled: true,
                };
            }
        }
    }

    /// What the kernel has killed the run for.
    pub(super) fn killed(&self) -> Option<Exceeded> {
        let limit = self
            .resources
            .memory
            .filter(|_| self.sampled.memory.is_none())?;
        had_no_memory(self.cgroup.as_deref()?).then_some(Exceeded {
            what: What::Memory(limit),
            is_sampled: false,
        })
    }
}

fn too_much(limits: Resources, members: &[String]) -> Option<What> {
    let memory = limits.memory.filter(|limit| {
        let bytes: u64 = members.iter().map(|pid| memory_of(pid)).sum();
        bytes > limit.bytes()
    });
    let pids = limits.pids.filter(|limit| {
        let threads = members.iter().map(|pid| threads_of(pid));
        threads.sum::<usize>() > *limit as usize
    });
    memory.map(What::Memory).or(pids.map(What::Pids))
}

/// The numbers of the processes of a run: those in its cgroup; without one its program, what is in the
/// group of that, and whatever these have begun.
fn members(cgroup: Option<&Path>, (program, attendant): (Option<Pid>, Option<Pid>)) -> Vec<String> {
    if let Some(cgroup) = cgroup {
        let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        return text.lines().map(str::to_owned).collect();
    }
    let Some(program) = program.map(|program| program.as_raw_pid().to_string()) else {
        return Vec::new();
    };
    let attendant = attendant.map(|attendant| attendant.as_raw_pid().to_string());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let all: Vec<(String, String, String)> = pids
        .filter(|pid| pid.starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // Behind its name, which may be anything, stand its state, its parent and its group.
            let mut rest = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
            Some((pid, rest.next()?.to_owned(), rest.next()?.to_owned()))
        })
        .collect();
    let mut members: Vec<String> = Vec::new();
    loop {
        let before = members.len();
        for (pid, parent, group) in &all {
            let belongs = *pid == program
                || *group == program
                || attendant.as_ref() == Some(parent)
                || members.contains(parent);
            if belongs && !members.contains(pid) {
                members.push(pid.clone());
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

/// The memory of a process, its share of what it shares with others, in bytes; nothing when it is gone.
fn memory_of(pid: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let share = rollup.ok().and_then(|text| kib_of(&text, "Pss:"));
    let whole = || {
        kib_of(
            &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
            "VmRSS:",
        )
    };
    // Of an account whose processes may not be looked into, all that it has counts.
    share.or_else(whole).unwrap_or(0) * 1024
}

fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn threads_of(pid: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_keep_is_sampled() {
        let resources = Resources {
            memory: "64Mi".parse().ok(),
            pids: Some(8),
            cpu: None,
        };
        let sampled = |cgroup: Option<&str>, controllers: &[&str]| {
            let cgroup = cgroup.map(PathBuf::from);
            let sampled = Limits::new(resources, (cgroup, controllers), (None, None)).sampled;
            (sampled.memory.is_some(), sampled.pids.is_some())
        };
        assert_eq!(sampled(Some("/x"), &["memory", "pids"]), (false, false));
        assert_eq!(sampled(Some("/x"), &["pids"]), (true, false));
        assert_eq!(sampled(None, &["memory", "pids"]), (true, true));
    }

    #[test]
    fn this_process_takes_some_memory_and_has_threads() {
        let own = std::process::id().to_string();
        assert!(memory_of(&own) > 1 << 20);
        assert!(threads_of(&own) >= 1);
        let process = rustix::process::getpid();
        assert!(members(None, (Some(process), None)).contains(&own));
        let limits = Resources {
            pids: Some(1),
            ..Resources::default()
        };
        let twice = [own.clone(), own];
        assert_eq!(too_much(limits, &twice), Some(What::Pids(1)));
        assert_eq!(memory_of("none"), 0);
    }
}
