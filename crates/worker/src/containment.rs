//! What a worker does so that its programs take nothing that is not theirs, and what its machine cannot
//! give it for that.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use attune_core::{Builtin, Resources};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};

use crate::guard::{can_have_cgroups, controllers};
use crate::launch::{Account, Sandbox, can_be_kept, can_scope_files, can_scope_signals, real_path};

/// Has this process be none that others of its account may look into: its environment, its memory and
/// its open files are for root alone from here on. What it was started with open, beside the three that every
/// process has, it keeps to itself: programs do not get it. For whoever holds a password and runs programs: call
/// it before anything else. A program that it becomes can be looked into again.
///
/// # Errors
/// Never, on Linux.
pub fn close_to_others() -> io::Result<()> {
    close_fds::set_fds_cloexec(3, &[]);
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// What keeps runs from what is not theirs.
#[derive(Debug, Clone)]
pub struct Containment {
    /// The command that starts a launcher: a program that calls [`launch`](crate::launch()) with the
    /// arguments behind it. Empty for none: programs then have no control group, no sandbox and no other
    /// account.
    pub launcher: Vec<OsString>,
    /// Whether programs are kept from their worker and from control groups.
    pub sandbox: SandboxMode,
    /// The only folders that programs may write to, beside their own and those for temporary files; all when
    /// empty.
    pub write_dirs: Vec<PathBuf>,
    /// Files with passwords of the worker, and folders of such: kept from programs.
    pub secrets: Vec<PathBuf>,
    /// Whose programs they are; the worker's, if nobody's.
    pub account: Option<Account>,
    /// What a run may take whose action says nothing else.
    pub resources: Resources,
    /// Files that a process of a run may have open.
    pub open_files: Option<u64>,
    /// How large a file may be that a run writes, in bytes.
    pub file_size: Option<u64>,
    /// What is run within the worker.
    pub builtins: Vec<Builtin>,
    /// Where the programs are that may be run; all when empty.
    pub program_dirs: Vec<PathBuf>,
    /// Whether variables of an action may choose the code that a program runs.
    pub env_unsafe: bool,
}

/// What this machine gives for that, as far as this process may use it: for people who look after it.
#[derive(Debug)]
pub struct HostSurvey {
    /// The number of the account that this process runs as.
    pub user: u32,
    /// The control group in which those of runs would be, or why there would be none.
    pub cgroup: io::Result<PathBuf>,
    /// The controllers that bound memory, processors and processes, of those that it has.
    pub controllers: Vec<&'static str>,
    /// What the kernel can keep programs from.
    pub landlock: &'static str,
}

impl HostSurvey {
    /// Looks at this process and its machine. Changes nothing.
    pub fn take() -> Self {
        let cgroup = can_have_cgroups();
        Self {
            user: geteuid().as_raw(),
            controllers: cgroup
                .as_ref()
                .map_or_else(|_| Vec::new(), |it| controllers(it)),
            cgroup,
            landlock: match (can_scope_files(), can_scope_signals()) {
                (false, _) => "none",
                (true, false) => "files",
                (true, true) => "files and signals",
            },
        }
    }
}

/// Whether programs are kept from their worker and from control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// As far as the machine can.
    Auto,
    /// Fully, or the worker does not start.
    Required,
    /// No.
    Off,
}

impl Default for Containment {
    fn default() -> Self {
        Self {
            launcher: Vec::new(),
            sandbox: SandboxMode::Auto,
            write_dirs: Vec::new(),
            secrets: Vec::new(),
            account: None,
            resources: Resources::default(),
            open_files: None,
            file_size: None,
            builtins: vec![
                Builtin::Noop,
                Builtin::Echo,
                Builtin::Sleep,
                Builtin::Fail,
                Builtin::Command,
                Builtin::HttpGet,
            ],
            program_dirs: Vec::new(),
            env_unsafe: false,
        }
    }
}

impl Containment {
    /// What keeps the programs of this worker from what is not theirs and cannot here, each with what
    /// follows from it. Empty where nothing is missing.
    ///
    /// For a log, and for people who look after a machine; it looks at this process, so it must be asked
    /// where the worker runs, as its user.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        let is_root = geteuid().is_root();
        if is_root && self.account.is_none() {
            lacks.push(
                "programs run as root, as the worker does: they can read its passwords and end it; \
                 run it as an account of its own, or set worker.run_as"
                    .to_owned(),
            );
        }
        if self.sandbox == SandboxMode::Off {
            lacks.push(
                "worker.sandbox is off: programs can end their worker and leave their control group"
                    .to_owned(),
            );
        } else {
            lacks.extend(self.lacks_of_kernel());
        }
        if let Err(error) = can_have_cgroups() {
            lacks.push(format!(
                "runs get no control group ({error}): what a program leaves behind is ended by an \
                 attendant, one more process for each run, limits are kept by samples, and nobody bounds \
                 processors; under systemd set Delegate=yes, in a container mount /sys/fs/cgroup for writing"
            ));
        }
        lacks
    }

    fn lacks_of_kernel(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if !can_scope_files() {
            lacks.push(
                "this kernel has no Landlock of Linux 5.19 or later: programs can leave their control \
                 group and end their worker, and worker.write_dirs is not kept"
                    .to_owned(),
            );
            return lacks;
        }
        if self.account.is_none() {
            let readable = self.secrets.iter().filter(|secret| !can_be_kept(secret));
            lacks.extend(readable.map(|secret| {
                format!(
                    "programs can read {}, because its folder, or one above, is this account's or may be \
                     written by others: put it where only root makes files",
                    secret.display()
                )
            }));
        }
        if !can_scope_signals() && self.account.is_none() {
            lacks.push(
                "this kernel is older than Linux 6.12: programs can send signals to their worker, which \
                 ends with all that it runs; worker.run_as keeps them from it"
                    .to_owned(),
            );
        }
        lacks
    }

    /// The sandbox of each program.
    pub(crate) fn sandbox(&self) -> Option<Sandbox> {
        (self.sandbox != SandboxMode::Off).then(|| Sandbox {
            write: self.write_dirs.clone(),
            secrets: self.kept_secrets().collect(),
            closed: cgroup_mounts(&fs::read_to_string("/proc/self/mounts").unwrap_or_default()),
        })
    }

    /// The files with passwords that can be kept from programs, by their real paths.
    fn kept_secrets(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let kept = self.secrets.iter().filter(|secret| can_be_kept(secret));
        kept.filter_map(|secret| real_path(secret))
    }

    /// Words that say what is impossible, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.account.is_some() && !geteuid().is_root() {
            return Some(
                "only root can run programs as somebody else: leave out worker.run_as, or run the \
                 worker as root"
                    .to_owned(),
            );
        }
        let lacks = match self.sandbox {
            SandboxMode::Required => self.lacks(),
            SandboxMode::Auto | SandboxMode::Off => return None,
        };
        (!lacks.is_empty()).then(|| format!("worker.sandbox is required, and {}", lacks.join("; ")))
    }

    /// Why a builtin is not run here, if it is not.
    pub(crate) fn refuses_builtin(&self, builtin: Builtin) -> Option<String> {
        let is_here = self.builtins.contains(&builtin);
        (!is_here).then(|| {
            let name = serde_json::to_string(&builtin).unwrap_or_default();
            format!(
                "this worker does not run the builtin {}: worker.builtins does not name it",
                name.trim_matches('"')
            )
        })
    }

    /// Why a program is not run here, if it is not.
    pub(crate) fn refuses_program(&self, program: &Path) -> Option<String> {
        if self.program_dirs.is_empty() {
            return None;
        }
        let shown = program.display();
        let folders: Vec<String> = self
            .program_dirs
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let folders = folders.join(", ");
        if !program.is_absolute() {
            return Some(format!(
                "the program `{shown}` is not named by its whole path, and this worker runs programs in \
                 {folders} alone (worker.program_dirs)"
            ));
        }
        // What is not there now could be somewhere else by the time it is started.
        let place = match fs::canonicalize(program) {
            Ok(place) => place,
            Err(error) => {
                return Some(format!("the program `{shown}` cannot be started: {error}"));
            }
        };
        let is_inside = self.program_dirs.iter().any(|folder| {
            let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            place.starts_with(folder)
        });
        (!is_inside).then(|| {
            format!(
                "the program `{shown}` is outside of {folders}, where alone this worker runs programs \
                 (worker.program_dirs)"
            )
        })
    }

    /// Why a variable of an action is not set here, if it is not.
    pub(crate) fn refuses_variable<'a>(
        &self,
        mut names: impl Iterator<Item = &'a String>,
    ) -> Option<String> {
        let name = names.find(|name| !self.env_unsafe && chooses_code(name))?;
        Some(format!(
            "the variable {name} in the action's `env` chooses the code that its program runs, and this \
             worker sets none of that kind: leave it out, or set worker.env_unsafe to true"
        ))
    }
}

/// Variables by which the loader, shells and interpreters are told to run something else.
const CHOOSES_CODE: [&str; 17] = [
    "PATH",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "BASH_ENV",
    "ENV",
    "IFS",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PERL5LIB",
    "PERL5OPT",
    "RUBYLIB",
    "RUBYOPT",
    "NODE_OPTIONS",
    "NODE_PATH",
    "JAVA_TOOL_OPTIONS",
    "CLASSPATH",
];

fn chooses_code(name: &str) -> bool {
    name.starts_with("LD_") || CHOOSES_CODE.contains(&name)
}

/// Where control groups are mounted, of either version.
fn cgroup_mounts(mounts: &str) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(point))
    });
    points.collect()
}

impl Account {
    /// Reads `NAME`, `USER` or `USER:GROUP`, the latter two as numbers. Names are looked up in
    /// `/etc/passwd`.
    ///
    /// # Errors
    /// Words that say what is wrong and what would be right.
    pub fn of(text: &str) -> Result<Self, String> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let account = read_account(text, &passwd).ok_or_else(|| {
            format!(
                "worker.run_as: {text:?} is no account in /etc/passwd; name one that is, or give the \
                 numbers of its user and its group, such as 65534:65534"
            )
        })?;
        if account.user == 0 {
            return Err(
                "worker.run_as is root; name an account of its own, or leave it out and set \
                 worker.allow_root to true"
                    .to_owned(),
            );
        }
        Ok(account)
    }
}

fn read_account(text: &str, passwd: &str) -> Option<Account> {
    if let Some((user, group)) = text.split_once(':') {
        let (user, group) = (user.parse().ok()?, group.parse().ok()?);
        return Some(Account { user, group });
    }
    passwd.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, _, user, group) = (parts.next()?, parts.next(), parts.next()?, parts.next()?);
        let (user, group) = (user.parse().ok()?, group.parse().ok()?);
        (name == text || text.parse() == Ok(user)).then_some(Account { user, group })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_name_or_its_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nrun:x:990:985::/:/bin/false\n";
        let run = Some(Account {
            user: 990,
            group: 985,
        });
        for text in ["run", "990", "990:985"] {
            assert_eq!(read_account(text, passwd), run, "{text}");
        }
        for text in ["nobody", "991", "run:run", ""] {
            assert_eq!(read_account(text, passwd), None, "{text}");
        }
        assert!(Account::of("0:0").unwrap_err().contains("allow_root"));
    }

    #[test]
    fn programs_elsewhere_are_refused_also_by_way_of_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        for folder in [&inside, &outside] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("program"), "").unwrap();
        }
        let link = inside.join("link");
        std::os::unix::fs::symlink(outside.join("program"), &link).unwrap();
        let containment = Containment {
            program_dirs: vec![inside.clone()],
            ..Containment::default()
        };
        assert_eq!(containment.refuses_program(&inside.join("program")), None);
        let absent = containment.refuses_program(&inside.join("none")).unwrap();
        assert!(absent.contains("cannot be started"), "{absent}");
        for (refused, word) in [
            (link, "outside of"),
            (outside.join("program"), "outside of"),
            (inside.join("../out/program"), "outside of"),
            (PathBuf::from("program"), "whole path"),
        ] {
            let why = containment.refuses_program(&refused).unwrap();
            assert!(
                why.contains(word) && why.contains("worker.program_dirs"),
                "{why}"
            );
        }
        assert_eq!(Containment::default().refuses_program(&outside), None);
    }

    #[test]
    fn variables_that_choose_code_are_refused_unless_they_are_wanted() {
        let mut containment = Containment::default();
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "BASH_ENV"].map(str::to_owned) {
            let why = containment.refuses_variable([&name].into_iter()).unwrap();
            assert!(
                why.contains(&name) && why.contains("worker.env_unsafe"),
                "{why}"
            );
        }
        let harmless = ["LANG", "MY_PATH", "OLD_LD"].map(str::to_owned);
        assert_eq!(containment.refuses_variable(harmless.iter()), None);
        containment.env_unsafe = true;
        let path = "PATH".to_owned();
        assert_eq!(containment.refuses_variable([&path].into_iter()), None);
    }

    #[test]
    fn control_groups_are_found_on_every_layout() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(cgroup_mounts(mounts), expected);
    }
}
