//! What a program cannot do, whatever its account may.
//!
//! With Landlock a process gives up, for itself and all that it begins: writing outside of some folders,
//! reading the files with its worker's passwords, looking into processes outside of the sandbox (their memory, their environment, their open files),
//! and, since Linux 6.12, sending them signals.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde::{Deserialize, Serialize};

/// What there is to write by. Not ioctls on devices: a terminal or a graphics card is of no use without.
const WRITING: ABI = ABI::V3;
/// Where every program may write, besides its own folder: files for a moment, devices, and what the kernel
/// shows of processes, among them itself.
const ALWAYS: [&str; 4] = ["/tmp", "/var/tmp", "/dev", "/proc"];

/// Rights of root over the machine and what runs there, by which the environment of every process can be
/// read, also where Landlock forbids to look into it.
const OVER_THE_MACHINE: [CapabilitySet; 7] = [
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::PERFMON,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::BPF,
];

/// A sandbox to be entered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// The only folders that may be written to, besides those that always may; everything but
    /// `closed` when there are none.
    pub write: Vec<PathBuf>,
    /// What may not be written to in any case: where control groups are.
    pub closed: Vec<PathBuf>,
    /// What may not be read: files, or folders of them.
    pub secrets: Vec<PathBuf>,
}

impl Sandbox {
    /// Puts this process into the sandbox, as far as the kernel can.
    ///
    /// # Errors
    /// When the kernel can and does not.
    pub(super) fn enter(&self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        for right in OVER_THE_MACHINE {
            // It fails for who is not root, and has none, and for one that this kernel does not know.
            let _ = remove_capability_from_bounding_set(right);
        }
        if !can_scope_files() {
            // Where it knows no moves between folders, it forbids them all.
            return Ok(());
        }
        self.restrict().map_err(io::Error::other)
    }

    fn restrict(&self) -> Result<(), RulesetError> {
        let mut writable: Vec<PathBuf> = Vec::new();
        if self.write.is_empty() {
            open_all_but(Path::new("/"), &self.closed, &mut writable);
        } else {
            writable.extend(ALWAYS.map(PathBuf::from));
            writable.extend(self.write.iter().cloned());
        }
        // The run's own folder.
        writable.push(PathBuf::from("."));
        let writing = AccessFs::from_write(WRITING);
        let mut handled = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(writing)?
            .scope(Scope::Signal)?;
        if !self.secrets.is_empty() {
            handled = handled.handle_access(AccessFs::ReadFile)?;
        }
        let mut rules = handled
            .create()?
            .add_rules(path_beneath_rules(writable, writing))?;
        if !self.secrets.is_empty() {
            let mut readable = vec![PathBuf::from(".")];
            open_all_but(Path::new("/"), &self.secrets, &mut readable);
            rules = rules.add_rules(path_beneath_rules(readable, AccessFs::ReadFile))?;
        }
        rules.restrict_self().map(drop)
    }
}

/// Whether a file or folder can be kept from programs of this account: what comes to be in the folders above
/// it later is kept from them too, so none of these may be a place where they make something.
pub(crate) fn can_be_kept(secret: &Path) -> bool {
    let account = rustix::process::geteuid().as_raw();
    let is_fixed = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|it| {
            let is_own = it.uid() == account && account != 0;
            !is_own && it.mode() & 0o022 == 0
        })
    };
    real_path(secret).is_some_and(|path| path.ancestors().skip(1).all(is_fixed))
}

/// Where a file or folder is, also where it comes to be only later, in a folder that is there.
pub(crate) fn real_path(place: &Path) -> Option<PathBuf> {
    fs::canonicalize(place)
        .or_else(|_| {
            let name = place.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let folder = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
            // A folder of a relative name stands in the current one.
            let folder = match folder.as_os_str().is_empty() {
                true => Path::new("."),
                false => folder,
            };
            fs::canonicalize(folder).map(|folder| folder.join(name))
        })
        .ok()
}

/// Every folder and file in `folder` but those that are closed, or lead there.
fn open_all_but(folder: &Path, closed: &[PathBuf], open: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if closed.contains(&path) {
            continue;
        }
        // A link leads to what stands somewhere else, and is opened or not there.
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        if closed.iter().any(|closed| closed.starts_with(&path)) {
            open_all_but(&path, closed, open);
        } else {
            open.push(path);
        }
    }
}

/// Whether the kernel can keep a process from writing and from looking into others.
pub(crate) fn can_scope_files() -> bool {
    is_made(required().handle_access(AccessFs::Refer))
}

/// Whether the kernel can keep a process from signalling others.
pub(crate) fn can_scope_signals() -> bool {
    is_made(required().scope(Scope::Signal))
}

fn required() -> Ruleset {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
}

fn is_made(rules: Result<Ruleset, RulesetError>) -> bool {
    rules.and_then(Ruleset::create).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_later_has_its_place_already() {
        let root = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(root.path()).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("link")).unwrap();
        let later = root.path().join("link/admin.key");
        assert_eq!(real_path(&later), Some(real.join("admin.key")));
        assert_eq!(real_path(&root.path().join("none/admin.key")), None);
        // Whoever is in the folder then is as far from it as if it had been there.
        fs::write(&later, "").unwrap();
        let mut open = Vec::new();
        open_all_but(root.path(), &[real.join("admin.key")], &mut open);
        assert_eq!(open, Vec::<PathBuf>::new());
    }

    #[test]
    fn all_is_open_but_what_is_closed_and_what_leads_there() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in ["a", "sys/fs/cgroup/unified", "sys/kernel", "sys/fs/fuse"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(path("sys"), path("link")).unwrap();
        let mut open = Vec::new();
        open_all_but(root.path(), &[path("sys/fs/cgroup")], &mut open);
        open.sort();
        let expected = ["a", "file", "sys/fs/fuse", "sys/kernel"].map(path);
        assert_eq!(open, expected);
    }
}
