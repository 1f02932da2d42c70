//! A cgroup for each run, where the system lets this process have any.
//!
//! `<own group>/attune-<mark>/<lease>/<run>`: killing one of these kills all below it at once,
//! and nothing that a program does gets it out. No controller is ever enabled.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use attune_core::WorkerId;
use attune_dispatch::Key;
use rustix::process::Pid;
use uuid::Uuid;

/// How long the killed members of a group may take to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// The group that this process is in.
///
/// # Errors
/// When there is no cgroup v2.
pub(super) fn own() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    own_group(&mounts, &own).ok_or_else(|| none("no cgroup v2 is mounted"))
}

/// Who is in a group, and not in one below it.
///
/// # Errors
/// When it cannot be read.
pub(super) fn members(group: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    let members = text.lines().map(|line| {
        // One of another namespace has no number here.
        let number = line.parse().ok().and_then(Pid::from_raw);
        number.ok_or_else(|| none("somebody in it cannot be seen"))
    });
    members.collect()
}

fn none(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what.to_owned())
}

/// Makes the group of a worker below the one that this process is in.
///
/// # Errors
/// When there is no cgroup v2, or it may not be used.
pub(super) fn make(mark: Uuid) -> io::Result<PathBuf> {
    let own = own()?;
    // Moving a process takes the right to write here, besides that to the new group.
    OpenOptions::new()
        .write(true)
        .open(own.join("cgroup.procs"))?;
    let group = own.join(format!("attune-{mark}"));
    fs::create_dir(&group)?;
    if !group.join("cgroup.kill").exists() {
        fs::remove_dir(&group)?;
        return Err(none("the kernel is older than cgroup.kill (5.14)"));
    }
    Ok(group)
}

/// The folder of the group that a process is in, from its `/proc/…/mounts` and `/proc/…/cgroup`.
fn own_group(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then_some(point)
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(path))
}

/// The group of all runs under a lease.
pub(super) fn of_lease(group: &Path, lease: WorkerId) -> PathBuf {
    group.join(lease.to_string())
}

/// The group of a run.
pub(super) fn of_run(group: &Path, lease: WorkerId, (execution_id, attempt): Key) -> PathBuf {
    of_lease(group, lease).join(format!("{execution_id}-{attempt}"))
}

/// Makes a group and moves a process into it. What the process has begun before stays where it is.
///
/// # Errors
/// When the system refuses, or the process has ended.
pub(super) fn enter(group: &Path, pid: i32) -> io::Result<()> {
    fs::create_dir_all(group)?;
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Kills everything in a group and below.
pub(super) fn kill(group: &Path) {
    // It fails when the group is gone, and so is what was in it.
    let _ = fs::write(group.join("cgroup.kill"), "1");
}

/// Kills everything in a group and below, and removes it; whether it is gone, and so is all that
/// was in it.
pub(super) fn end(group: &Path) -> bool {
    let began = Instant::now();
    loop {
        kill(group);
        if remove(group) {
            return true;
        }
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Removes a group with those below it, as far as they are empty.
fn remove(group: &Path) -> bool {
    match fs::remove_dir(group) {
        Ok(()) => return true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
        Err(_) => {}
    }
    let Ok(entries) = fs::read_dir(group) else {
        return false;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_on_every_layout() {
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let check = |mounts: &str, own: &str, expected: Option<&str>| {
            assert_eq!(own_group(mounts, own), expected.map(PathBuf::from));
        };
        let service = "0::/system.slice/attune.service\n";
        let expected = "/sys/fs/cgroup/system.slice/attune.service";
        check(unified, service, Some(expected));
        check(hybrid, "1:cpu:/a\n0::/\n", Some("/sys/fs/cgroup/unified/"));
        check("tmpfs / tmpfs rw 0 0\n", "0::/\n", None);
        check(unified, "1:cpu:/a\n", None);
    }
}
