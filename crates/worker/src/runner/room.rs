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

    /// Removes the folder, also where the program has closed a folder in it to everybody. A process
    /// that escaped its group may still write there; then some of it stays.
    pub(crate) async fn remove(self) {
        let path = self.dir.path().to_owned();
        let own = path.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let removed = self.dir.close().or_else(|_| {
                open_up(&own);
                std::fs::remove_dir_all(&own)
            });
            // Its program may have removed it.
            removed.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(path = %path.display(), %error, "a run's folder was not removed");
        }
    }
}

/// Lets this user into every folder below `path`, as far as that can be.
fn open_up(path: &Path) {
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = std::fs::set_permissions(&folder, Permissions::from_mode(0o700)) {
            tracing::debug!(path = %folder.display(), %error, "a folder stays closed");
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        // What a link names is none of ours.
        let inside = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inside.map(|entry| entry.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_room_goes_away_whatever_its_program_closed() {
        let work_dir = tempfile::tempdir().unwrap();
        let room = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let inner = room.path().join("a").join("b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(work_dir.path(), room.path().join("link")).unwrap();
        let closed = |path: &Path| std::fs::set_permissions(path, Permissions::from_mode(0o000));
        for path in [inner.as_path(), room.path()] {
            closed(path).unwrap();
        }
        let path = room.path().to_owned();
        // Whoever may do everything is not kept out: look at what was opened.
        open_up(&path);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&inner)), (0o700, 0o700));
        closed(&inner).unwrap();
        room.remove().await;
        assert!(!path.exists());
        assert!(work_dir.path().exists());
    }
}
