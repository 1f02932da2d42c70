//! A cgroup for each run, where the system lets this process have any.
//!
//! `<base>/attune-<mark>/<lease>/<run>`: killing one of these kills all below it at once. A program is
//! put there before it begins (see [`launch`](crate::launch)), and its sandbox keeps it from writing
//! itself out of it. The base is the group that this process was started in.
//!
//! Where that group has controllers and nobody else is in it, they are used to bound what a run takes.
//! The kernel wants no processes in a group whose controllers are handed down, so this process then moves
//! itself to `<base>/supervisor`.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use attune_core::{Cpu, Resources, WorkerId};
use attune_dispatch::Key;
use rustix::process::Pid;
use uuid::Uuid;

use super::process::are_begun_here;

/// By which a run is bounded.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Where a worker and its guard are, below the group that they were started in.
const SUPERVISOR: &str = "supervisor";
/// Of how many microseconds a run has its share of the processors.
const PERIOD_US: u64 = 100_000;

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

/// The group in which this process was started, also after it has moved itself.
///
/// # Errors
/// When there is no cgroup v2.
pub(super) fn base() -> io::Result<PathBuf> {
    let own = own()?;
    let parent = own.parent().filter(|_| own.ends_with(SUPERVISOR));
    Ok(parent.map_or_else(|| own.clone(), Path::to_owned))
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

/// Whether a worker could have a group, in the words of who could not.
///
/// # Errors
/// When there is no cgroup v2, or it may not be used.
pub(super) fn can_be_made() -> io::Result<PathBuf> {
    let base = base()?;
    // Moving a process takes the right to write here, besides that to the new group.
    OpenOptions::new()
        .write(true)
        .open(base.join("cgroup.procs"))?;
    Ok(base)
}

/// Makes the group of a worker below the one that this process was started in, and says which controllers
/// its runs have.
///
/// # Errors
/// When there is no cgroup v2, or it may not be used.
pub(super) fn make(mark: Uuid) -> io::Result<(PathBuf, Vec<&'static str>)> {
    let base = can_be_made()?;
    let group = base.join(format!("attune-{mark}"));
    fs::create_dir(&group)?;
    if !group.join("cgroup.kill").exists() {
        fs::remove_dir(&group)?;
        return Err(none("the kernel is older than cgroup.kill (5.14)"));
    }
    let handed = hand_down(&base, &group, &CONTROLLERS);
    let handed = handed.unwrap_or_else(|error| {
        tracing::debug!(%error, "the controllers of control groups are not used");
        Vec::new()
    });
    Ok((group, handed))
}

/// Those controllers of a group by which a run can be bounded.
pub(super) fn controllers(group: &Path) -> Vec<&'static str> {
    let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let has = |controller: &&str| text.split_whitespace().any(|one| one == *controller);
    CONTROLLERS.into_iter().filter(has).collect()
}

/// Has those of the controllers that a group has be in force in the groups below `group`, which is in it.
/// None where others than this process are in there.
fn hand_down(base: &Path, group: &Path, wanted: &[&'static str]) -> io::Result<Vec<&'static str>> {
    let has = controllers(base);
    let wanted: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|it| has.contains(it))
        .collect();
    let inside = members(base)?;
    if wanted.is_empty() || !are_begun_here(&inside) {
        return Ok(Vec::new());
    }
    let supervisor = base.join(SUPERVISOR);
    if !inside.is_empty() {
        fs::create_dir_all(&supervisor)?;
    }
    for process in inside {
        fs::write(
            supervisor.join("cgroup.procs"),
            process.as_raw_pid().to_string(),
        )?;
    }
    let hands = |group: &Path, controller: &str| {
        fs::write(
            group.join("cgroup.subtree_control"),
            format!("+{controller}"),
        )
    };
    let is_handed = |one: &&str| hands(base, one).is_ok() && hands(group, one).is_ok();
    Ok(wanted.into_iter().filter(is_handed).collect())
}

/// What is to be written into which files of a run's group, as far as it has the controllers.
pub(crate) fn limits(resources: Resources, controllers: &[&str]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut set = |controller: &str, file: &str, value: Option<String>| {
        let value = value.filter(|_| controllers.contains(&controller));
        files.extend(value.map(|value| (file.to_owned(), value)));
    };
    let memory = resources.memory.map(|memory| memory.bytes().to_string());
    set("memory", MEMORY_MAX, memory.clone());
    set("memory", SWAP_MAX, memory.clone().map(|_| "0".to_owned()));
    set("memory", "memory.oom.group", memory.map(|_| "1".to_owned()));
    let share = |cpu: Cpu| {
        format!(
            "{} {PERIOD_US}",
            u64::from(cpu.thousandths()) * PERIOD_US / 1000
        )
    };
    set("cpu", "cpu.max", resources.cpu.map(share));
    set(
        "pids",
        "pids.max",
        resources.pids.map(|pids| pids.to_string()),
    );
    files
}

/// Bounds memory.
const MEMORY_MAX: &str = "memory.max";
/// Bounds swap; there is none where the kernel does not count it.
const SWAP_MAX: &str = "memory.swap.max";

/// Whether something in a group was killed because the group had no memory left.
pub(crate) fn had_no_memory(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("memory.events")).unwrap_or_default();
    let killed = events
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    killed.is_some_and(|count| count.trim() != "0")
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

/// Makes the group of a run with its limits, and moves this process into it.
///
/// # Errors
/// When the system refuses.
pub(crate) fn enter(group: &Path, limits: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(group)?;
    let lease = group.parent().filter(|_| !limits.is_empty());
    for (file, value) in limits {
        if let (Some(lease), Some((controller, _))) = (lease, file.split_once('.')) {
            fs::write(
                lease.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )?;
        }
        let path = group.join(file);
        if file != SWAP_MAX || path.exists() {
            fs::write(path, value)?;
        }
    }
    // This process, and not a thread of it.
    fs::write(group.join("cgroup.procs"), "0")
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
    fn a_run_is_bounded_by_the_controllers_that_there_are() {
        let resources = Resources {
            memory: "512Mi".parse().ok(),
            cpu: Cpu::try_from(1.5).ok(),
            pids: Some(256),
        };
        let written = |controllers: &[&str]| {
            let files = limits(resources, controllers).into_iter();
            files
                .map(|(file, value)| format!("{file}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            written(&CONTROLLERS),
            [
                "memory.max=536870912",
                "memory.swap.max=0",
                "memory.oom.group=1",
                "cpu.max=150000 100000",
                "pids.max=256"
            ]
        );
        assert_eq!(written(&["pids"]), ["pids.max=256"]);
        assert_eq!(limits(Resources::default(), &CONTROLLERS), []);
    }

    /// The files of a group as they are written, in a folder that is none.
    #[test]
    fn who_enters_sets_the_limits_first() {
        let lease = tempfile::tempdir().unwrap();
        let group = lease.path().join("run");
        let files = limits(
            Resources {
                memory: "1Mi".parse().ok(),
                pids: Some(3),
                cpu: None,
            },
            &["memory", "pids"],
        );
        enter(&group, &files).unwrap();
        let read = |path: &str| fs::read_to_string(lease.path().join(path)).unwrap();
        assert_eq!(read("run/memory.max"), "1048576");
        assert_eq!(read("run/pids.max"), "3");
        assert_eq!(read("run/cgroup.procs"), "0");
        assert_eq!(read("cgroup.subtree_control"), "+pids");
        assert!(!group.join(SWAP_MAX).exists(), "this kernel counts none");
        fs::write(group.join("memory.events"), "low 0\noom 1\noom_kill 2\n").unwrap();
        assert!(had_no_memory(&group));
        fs::write(group.join("memory.events"), "oom 0\noom_kill 0\n").unwrap();
        assert!(!had_no_memory(&group));
    }

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
