//! The private folder of a run.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder that only this user can enter, with the parameters of a run in a file that cannot
/// be written. It is the run's working directory and goes away with everything in it.
#[derive(Debug)]
pub(crate) struct Room {
    dir: TempDir,
    parameters: PathBuf,
}

impl Room {
    /// Makes a folder in `work_dir` and puts the parameters there.
    pub(crate) async fn prepare(work_dir: &Path, parameters: &str) -> io::Result<Self> {
        let work_dir = work_dir.to_owned();
        let parameters = parameters.to_owned();
        tokio::task::spawn_blocking(move || Self::make(&work_dir, &parameters))
            .await
            .map_err(io::Error::other)?
    }

    fn make(work_dir: &Path, parameters: &str) -> io::Result<Self> {
        std::fs::create_dir_all(work_dir)?;
        let dir = tempfile::Builder::new()
            .prefix("attune-run-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(std::path::absolute(work_dir)?)?;
        let path = dir.path().join("parameters.json");
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)?;
        file.write_all(parameters.as_bytes())?;
        Ok(Self {
            dir,
            parameters: path,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn parameters(&self) -> &Path {
        &self.parameters
    }

    /// Removes the folder. A process that escaped its group may still write there; then some of
    /// it stays, which harms nobody.
    pub(crate) async fn remove(self) {
        let path = self.dir.path().to_owned();
        let removed = tokio::task::spawn_blocking(move || self.dir.close()).await;
        if let Ok(Err(error)) = removed {
            tracing::debug!(path = %path.display(), %error, "a run's folder was not removed");
        }
    }
}
