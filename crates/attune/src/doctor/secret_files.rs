//! The secrets that a worker gives to its programs: whether it can read them, and nobody else.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use attune_config::read_private_file;
use attune_core::secret::check_secret_name;
use rustix::fs::{Access, access};

use super::Patient;
use super::finding::{Findings, State};
use super::pages::SECRETS;

const NAME: &str = "secrets_dir";
/// How many files are looked at.
const MOST: usize = 1_000;
/// Of how many of something the words are said.
const NAMED: usize = 3;

pub(super) fn look(patient: &Patient, found: &mut Findings) {
    let Some(folder) = &patient.settings.worker.secrets_dir else {
        return found.skip(NAME, "worker.secrets_dir is not set");
    };
    let shown = folder.display();
    let (mode, seen) = match std::fs::metadata(folder) {
        Ok(seen) if seen.is_dir() => (
            seen.mode() & 0o7777,
            access(folder, Access::READ_OK | Access::EXEC_OK),
        ),
        _ => {
            let says = format!("worker.secrets_dir {shown}: there is no such folder");
            let advice = "make it, or leave the setting out";
            return found.problem(NAME, says, (advice, SECRETS));
        }
    };
    let owner = "asked as this command runs: ask as the worker's account, or give it the folder: chown -R … ";
    let faults = [
        (
            mode & 0o002 != 0,
            State::Problem,
            format!(
                "everybody may write into worker.secrets_dir {shown}, so no secret of it is used (mode {mode:03o})"
            ),
            ("chmod o-w it", SECRETS),
        ),
        (
            seen.is_err(),
            State::Problem,
            format!("worker.secrets_dir {shown} cannot be read"),
            (owner, SECRETS),
        ),
        (
            mode & 0o005 != 0,
            State::Warning,
            format!("everybody may look into worker.secrets_dir {shown} (mode {mode:03o})"),
            ("chmod o-rx it", SECRETS),
        ),
    ];
    let (count, unusable) = match seen {
        Ok(()) => files(folder),
        Err(_) => (0, Vec::new()),
    };
    found.first(NAME, faults, || format!("secrets in {shown}: {count}"));
    if !unusable.is_empty() {
        let more = unusable.len().saturating_sub(NAMED);
        let mut says = unusable[..unusable.len().min(NAMED)].join("; ");
        if more > 0 {
            says.push_str(&format!("; and {more} more"));
        }
        let advice = "chmod 600 and chown them to the worker's account, and leave none empty";
        found.problem("secrets", says, (advice, SECRETS));
    }
}

/// How many secrets are there, and what is wrong with those that a run could not be given.
fn files(folder: &Path) -> (usize, Vec<String>) {
    let (mut count, mut unusable) = (0, Vec::new());
    let Ok(entries) = std::fs::read_dir(folder) else {
        return (0, Vec::new());
    };
    for entry in entries.flatten().take(MOST) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|it| check_secret_name(it).is_ok()) else {
            continue;
        };
        let path = entry.path();
        if path.is_dir() {
            continue;
        }
        count += 1;
        match read_private_file(&path) {
            Err(why) => unusable.push(format!("`{name}`: {why}")),
            Ok(text) if text.trim_end_matches(['\n', '\r']).is_empty() => {
                unusable.push(format!("`{name}`: it is empty"));
            }
            Ok(_) => {}
        }
    }
    unusable.sort();
    (count, unusable)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secrets_that_cannot_be_given_to_a_run_are_named() {
        // Not in memory, where modes say nothing.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for (name, text, mode) in [
            ("good", "x\n", 0o600),
            ("open", "x\n", 0o644),
            ("empty", "\n", 0o600),
            (".hidden", "x", 0o644),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let (count, unusable) = files(folder.path());
        assert_eq!(count, 3, "{unusable:?}");
        assert_eq!(unusable.len(), 2, "{unusable:?}");
        assert_eq!(unusable[0], "`empty`: it is empty");
        assert!(unusable[1].contains("chmod o= "), "{unusable:?}");
    }
}
