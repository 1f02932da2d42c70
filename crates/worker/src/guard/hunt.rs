//! Finding and killing every process that carries a mark in its environment.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::line::VARIABLE;

/// Between two looks at all processes: long enough for one that was just begun to show its
/// environment.
const PAUSE: Duration = Duration::from_millis(10);
/// Looks in a row that must find nothing.
const QUIET_LOOKS: usize = 2;

/// Kills every process whose mark begins with `mark`, and looks again until two looks in a row
/// have found none: what is killed may have begun another one meanwhile. Returns how many were
/// killed, and whether none is left when `patience` is over.
///
/// A process that was begun with another environment, or has written over it, is not found; nor
/// is one of another user, unless this process may look at all.
pub(super) fn kill_marked(mark: &str, patience: Duration) -> (usize, bool) {
    let mark = format!("{VARIABLE}={mark}");
    let began = Instant::now();
    let mut killed = HashSet::new();
    let mut quiet = 0;
    loop {
        let found = marked(mark.as_bytes());
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        for pid in &found {
            // It fails when the process has ended, or belongs to somebody else.
            let _ = kill_process(*pid, Signal::KILL);
        }
        killed.extend(found);
        let is_over = quiet == 0 && began.elapsed() > patience;
        if is_over || quiet == QUIET_LOOKS {
            return (killed.len(), !is_over);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes that carry the mark. One that has ended and was not collected has no
/// environment any more.
fn marked(mark: &[u8]) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = rustix::process::getpid();
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(Pid::from_raw)
        .filter(|pid| *pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).is_ok_and(|environ| {
                let mut variables = environ.split(|byte| *byte == 0);
                variables.any(|variable| variable.starts_with(mark))
            })
        })
        .collect()
}
