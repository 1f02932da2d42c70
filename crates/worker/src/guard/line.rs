//! What a worker tells its guard: one event a line, short enough to be written whole or not at all.

use std::fmt;
use std::path::PathBuf;

use attune_core::WorkerId;
use attune_runtime::clock::BootInstant;
use uuid::Uuid;

/// The variable that marks every program of a worker, and by which it is found however it moves
/// between groups.
pub(crate) const VARIABLE: &str = "ATTUNE_GUARD";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// The first one: the mark of all programs of this worker, and the cgroup in which its runs
    /// have theirs, if they do.
    Worker(Uuid, Option<PathBuf>),
    /// A lease may be trusted until then; written in nanoseconds of `CLOCK_BOOTTIME`.
    Lease(WorkerId, BootInstant),
    /// A lease is lost: nothing that ran under it may go on.
    Lost(WorkerId),
    /// A process group runs under a lease.
    Run(WorkerId, i32),
    /// Nothing is left of that group.
    Over(WorkerId, i32),
    /// The file of what has begun under a lease, to be marked when nothing of it is left; none when
    /// the file is not to be believed.
    Begun(WorkerId, Option<PathBuf>),
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(mark, None) => write!(out, "worker {mark}"),
            Self::Worker(mark, Some(cgroup)) => write!(out, "worker {mark} {}", cgroup.display()),
            Self::Lease(lease, until) => write!(out, "lease {lease} {}", until.as_nanos()),
            Self::Lost(lease) => write!(out, "lost {lease}"),
            Self::Run(lease, group) => write!(out, "run {lease} {group}"),
            Self::Over(lease, group) => write!(out, "over {lease} {group}"),
            Self::Begun(lease, None) => write!(out, "begun {lease}"),
            Self::Begun(lease, Some(file)) => write!(out, "begun {lease} {}", file.display()),
        }
    }
}

impl Line {
    /// Reads a line; `None` when it is none of these.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        let (id, last) = match rest.split_once(' ') {
            Some((id, last)) => (id, Some(last)),
            None => (rest, None),
        };
        let id: Uuid = id.parse().ok()?;
        match (word, last) {
            ("worker", cgroup) => Some(Self::Worker(id, cgroup.map(PathBuf::from))),
            ("lease", Some(until)) => {
                let until = BootInstant::from_nanos(until.parse().ok()?);
                Some(Self::Lease(WorkerId(id), until))
            }
            ("lost", None) => Some(Self::Lost(WorkerId(id))),
            ("run", Some(group)) => Some(Self::Run(WorkerId(id), group.parse().ok()?)),
            ("begun", file) => Some(Self::Begun(WorkerId(id), file.map(PathBuf::from))),
            ("over", Some(group)) => Some(Self::Over(WorkerId(id), group.parse().ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let (mark, lease) = (Uuid::now_v7(), WorkerId::fresh());
        for line in [
            Line::Worker(mark, None),
            Line::Worker(mark, Some(PathBuf::from("/sys/fs/cgroup/a group"))),
            Line::Lease(lease, BootInstant::from_nanos(i64::MAX)),
            Line::Lost(lease),
            Line::Run(lease, i32::MAX),
            Line::Over(lease, 1),
            Line::Begun(lease, Some(PathBuf::from("/run/a folder/file"))),
            Line::Begun(lease, None),
        ] {
            let text = line.to_string();
            assert!(text.len() < 100, "{text}");
            assert_eq!(Line::parse(&text), Some(line));
        }
    }

    #[test]
    fn what_is_no_line_is_not_read() {
        let lease = WorkerId::fresh();
        for text in ["", "run", "run 7 7", "go 7"] {
            assert_eq!(Line::parse(text), None);
        }
        for text in ["run", "lease", "jump"] {
            assert_eq!(Line::parse(&format!("{text} {lease}")), None);
            assert_eq!(Line::parse(&format!("{text} {lease} x")), None);
        }
    }
}
