//! The folders that a worker is given, looked at before anything starts.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{bail, ensure};
use attune_config::Settings;
use tracing::warn;

use crate::roles::Role;

/// Makes `worker.work_dir` where it is missing, and says so, and warns of a `worker.secrets_dir` that is not there.
///
/// # Errors
/// When `worker.work_dir` is no folder, or the folder in which it would be made is not there: it is misspelt, or what
/// should be mounted there is not. One that cannot be made for another reason, such as a full disk, is left to the
/// worker, which is not ready until it can.
pub(crate) fn prepare(settings: &Settings, roles: &[Role]) -> anyhow::Result<()> {
    if !roles.contains(&Role::Worker) {
        return Ok(());
    }
    let work = settings.worker.work_dir.as_deref();
    if let Some(folder) = work.filter(|folder| folder.is_absolute()) {
        make(folder)?;
    }
    if let Some(words) = no_secrets(settings) {
        warn!(
            "{words}; an action whose `env` names a secret that is to be in it fails: make it, or leave the setting out"
        );
    }
    Ok(())
}

fn make(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    match fs::create_dir(folder) {
        Ok(()) => warn!("worker.work_dir {shown} was not there and was made"),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let within = folder.parent().unwrap_or(folder).display();
            bail!(
                "worker.work_dir {shown} cannot be made: {within} is not there or no folder. Make it or mount it, or \
                 mend the setting"
            );
        }
        Err(_) => ensure!(
            !folder.exists() || folder.is_dir(),
            "worker.work_dir {shown} is no folder: mend the setting, or move what is there"
        ),
    }
    Ok(())
}

/// What is wrong with `worker.secrets_dir` when it is not there.
pub(crate) fn no_secrets(settings: &Settings) -> Option<String> {
    let folder = settings.worker.secrets_dir.as_deref();
    let folder = folder.filter(|folder| !folder.is_dir())?;
    let shown = folder.display();
    Some(format!(
        "worker.secrets_dir {shown}: there is no such folder"
    ))
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    fn prepared(setting: &str, folder: &Path, roles: &[Role]) -> Result<(), String> {
        let flags = [(setting, folder.to_str().unwrap())];
        let loaded = Loader::new().flags(flags).load().unwrap();
        prepare(&loaded.settings, roles).map_err(|error| error.to_string())
    }

    #[test]
    fn the_folder_of_runs_is_made_in_one_that_is_there_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (work, deep) = (dir.path().join("work"), dir.path().join("a/b"));
        let with = |folder: &Path| prepared("worker.work_dir", folder, &[Role::Worker]);
        for _ in 0..2 {
            assert_eq!(with(&work), Ok(()));
            assert!(work.is_dir());
        }
        let words = with(&deep).unwrap_err();
        for part in ["worker.work_dir", "a/b cannot be made", "mend the setting"] {
            assert!(words.contains(part), "{words}");
        }
        assert!(!dir.path().join("a").exists());
        // Whoever has no worker does not look.
        assert_eq!(prepared("worker.work_dir", &deep, &[Role::Api]), Ok(()));
        fs::write(dir.path().join("file"), "").unwrap();
        for place in ["file", "file/work"] {
            let words = with(&dir.path().join(place)).unwrap_err();
            assert!(words.contains("no folder"), "{words}");
        }
        assert_eq!(with(Path::new("relative/folder")), Ok(()));
    }

    #[test]
    fn a_folder_of_secrets_that_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let words = |folder: &Path| {
            let flags = [("worker.secrets_dir", folder.to_str().unwrap())];
            no_secrets(&Loader::new().flags(flags).load().unwrap().settings)
        };
        assert_eq!(words(dir.path()), None);
        let missing = words(&dir.path().join("none")).unwrap();
        assert!(missing.starts_with("worker.secrets_dir /"), "{missing}");
        let missing = dir.path().join("none");
        assert_eq!(
            prepared("worker.secrets_dir", &missing, &[Role::Worker]),
            Ok(())
        );
    }
}
