//! Whether a file that holds something secret is kept from the other accounts of its machine.
//!
//! There is one rule, for the keys of TLS as for passwords and the keys of clients: only its owner and its group may
//! read or change it. The group may, because services share what they are given by it. Whoever reads such a file
//! brings its mode and the mounts of the machine along.

use std::path::Path;

/// The rights to read and to change a file of whoever is neither its owner nor in its group.
const OF_OTHERS: u32 = 0o006;
/// Where container engines put secrets, for every account of the container, which is alone there.
const SECRETS: &str = "/run/secrets";

/// Where file systems in memory are for every account of a machine.
const SHARED: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// What tells which file systems are mounted.
pub const MOUNTS: &str = "/proc/self/mounts";

/// Whether accounts that are neither owner nor of the group may read or change a file, as far as its mode says. Not
/// one on a file system in memory that is mounted for it, or where containers have their secrets: who mounts it there
/// for one container or service gives it modes that say nothing. `path` is free of links, and `mounts` gives what stands in [`MOUNTS`]; it
/// is asked where that matters.
pub fn is_open_to_others(path: &Path, mode: u32, mounts: impl FnOnce() -> String) -> bool {
    mode & OF_OTHERS != 0 && !is_mounted_alone(path, &mounts())
}

/// What is wrong with such a file, and the way out.
#[must_use]
pub fn open_to_others(path: &Path, mode: u32) -> String {
    format!(
        "other accounts may read or change it (mode {:03o}), and it holds a secret; take that from them: chmod o= {}",
        mode & 0o777,
        path.display()
    )
}

fn is_mounted_alone(path: &Path, mounts: &str) -> bool {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
        path.starts_with(point).then_some((point, kind))
    });
    let in_memory = mounts
        .max_by_key(|(point, _)| point.len())
        .is_some_and(|(point, kind)| matches!(kind, "tmpfs" | "ramfs") && !SHARED.contains(&point));
    in_memory || path.starts_with(SECRETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: &str = "/dev/sda / ext4 rw 0 0\ntmpfs /etc/db tmpfs ro 0 0\n\
                           ramfs /run/credentials/attune.service ramfs ro 0 0\n\
                           tmpfs /tmp tmpfs rw 0 0\ntmpfs /run tmpfs rw 0 0\n";

    fn is_open(path: &str, mode: u32) -> bool {
        is_open_to_others(Path::new(path), mode, || MOUNTED.to_owned())
    }

    #[test]
    fn owner_and_group_may_use_a_secret_and_others_may_not() {
        let path = "/etc/attune/api.key";
        for mode in [0o600, 0o400, 0o640, 0o660, 0o440, 0o100_640] {
            assert!(!is_open(path, mode), "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o606, 0o666, 0o100_644] {
            assert!(is_open(path, mode), "{mode:o}");
        }
        let words = open_to_others(Path::new(path), 0o100_644);
        assert!(words.contains("(mode 644)"), "{words}");
        assert!(words.ends_with("chmod o= /etc/attune/api.key"), "{words}");
    }

    #[test]
    fn what_is_mounted_for_one_container_is_its_own() {
        for path in [
            "/etc/db/url",
            "/run/credentials/attune.service/database.url",
            "/run/secrets/database_url",
        ] {
            assert!(!is_open(path, 0o444), "{path}");
        }
        for path in [
            "/etc/attune/database.url",
            "/etc/dbx/url",
            "/tmp/url",
            "/run/attune/url",
        ] {
            assert!(is_open(path, 0o444), "{path}");
        }
    }
}
