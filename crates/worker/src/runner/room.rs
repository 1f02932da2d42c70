//! The private folder of a run.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use uuid::Uuid;

/// How the name of every room begins.
const PREFIX: &str = "attune-room-";

/// A folder that only this user can enter, with the parameters of a run in a file that cannot
/// be written. It is the run's working directory and goes away with everything in it.
///
/// It is locked while its worker lives, so that another one can tell which were left behind.
#[derive(Debug)]
pub(crate) struct Room {
    /// Nothing once it was removed.
    dir: Option<PathBuf>,
    parameters: PathBuf,
    _lock: File,
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
        let (dir, lock) = loop {
            let dir = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(std::path::absolute(work_dir)?)?;
            match File::open(dir.path()) {
                // A worker that has just started takes it for one that was left behind.
                Ok(lock) if is_locked(&lock) => {}
                Ok(lock) => break (dir, lock),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        };
        let room = Self {
            parameters: dir.path().join("parameters.json"),
            dir: Some(dir.keep()),
            _lock: lock,
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&room.parameters)?;
        file.write_all(parameters.as_bytes())?;
        Ok(room)
    }

    /// Removes the rooms in `work_dir` whose workers are gone; their guards have ended what ran there.
    pub(crate) async fn remove_left(work_dir: PathBuf) {
        let removing = tokio::task::spawn_blocking(move || {
            let entries = std::fs::read_dir(&work_dir).into_iter().flatten().flatten();
            let rooms = entries.filter(|entry| {
                let is_room = entry.file_name().to_string_lossy().starts_with(PREFIX);
                // What a link names, or somebody else has made, is none of ours.
                is_room
                    && entry
                        .metadata()
                        .is_ok_and(|it| it.is_dir() && it.uid() == geteuid().as_raw())
            });
            rooms.filter(|room| remove_if_left(&room.path())).count()
        });
        if let Ok(removed @ 1..) = removing.await {
            tracing::info!(
                removed,
                "folders of runs whose workers are gone were removed"
            );
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("."))
    }

    pub(crate) fn parameters(&self) -> &Path {
        &self.parameters
    }

    /// Removes the folder, also where the program has closed a folder in it to everybody. A process
    /// that escaped its group may still write there; then some of it stays.
    pub(crate) async fn remove(self) {
        // Whoever cannot wait any more leaves it to the blocking thread all the same.
        let _removed = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take()
            && let Err(error) = remove_all(&dir)
        {
            tracing::warn!(path = %dir.display(), %error, "a run's folder was not removed");
        }
    }
}

/// Whether somebody else holds the lock; else it is held from now on, where there are locks.
fn is_locked(folder: &File) -> bool {
    matches!(folder.try_lock(), Err(TryLockError::WouldBlock))
}

/// Removes a room if nobody holds its lock; whether it did.
fn remove_if_left(path: &Path) -> bool {
    let Ok(folder) = File::open(path) else {
        return false;
    };
    // Where there are no locks, nobody can tell.
    if folder.try_lock().is_err() {
        return false;
    }
    let removed = remove_all(path);
    if let Err(error) = &removed {
        tracing::warn!(path = %path.display(), %error, "a run's folder was left and stays");
    }
    removed.is_ok()
}

/// Removes a folder with everything in it, however deep a program has made it: what lies in a folder
/// of it moves up, so that this needs no stack, no long paths and two descriptors. That it is gone
/// already is no error.
fn remove_all(root: &Path) -> io::Result<()> {
    // What a program calls its folders may be in the way of those that move up.
    let mark = Uuid::new_v4();
    let mut moved = 0_u64;
    loop {
        let inside = match remove_files(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            inside => inside?,
        };
        if inside.is_empty() {
            return std::fs::remove_dir(root);
        }
        for folder in inside {
            for deeper in remove_files(&folder)? {
                // A folder moves only with the right to write in it.
                open_up(&deeper)?;
                std::fs::rename(&deeper, root.join(format!("{mark}-{moved}")))?;
                moved += 1;
            }
            std::fs::remove_dir(&folder)?;
        }
    }
}

/// Removes what lies in a folder and is none; gives the folders.
fn remove_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    open_up(folder)?;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // What a link names is none of ours.
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(folders)
}

/// Lets this user into a folder.
fn open_up(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_killed_worker_leaves_is_removed() {
        let work_dir = tempfile::tempdir().unwrap();
        let alive = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let mut killed = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let left = killed.dir.take().unwrap();
        // As the kernel does it for a process that is killed.
        drop(killed);
        let other = work_dir.path().join("attune-roomy");
        let elsewhere = tempfile::tempdir().unwrap();
        let link = work_dir.path().join("attune-room-link");
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        std::fs::create_dir(&other).unwrap();
        Room::remove_left(work_dir.path().to_owned()).await;
        assert!(!left.exists());
        for path in [alive.path(), &other, elsewhere.path(), &link] {
            assert!(path.exists(), "{}", path.display());
        }
        alive.remove().await;
    }

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
        assert_eq!(remove_files(&path).unwrap(), [path.join("a")]);
        assert_eq!(remove_files(&inner).unwrap(), [] as [PathBuf; 0]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&inner)), (0o700, 0o700));
        closed(&inner).unwrap();
        room.remove().await;
        assert!(!path.exists());
        assert!(work_dir.path().exists());
    }

    /// Folders in folders, deeper than a path can be long and than a stack or the bound on open files
    /// would bear, and names that are in the way.
    #[test]
    fn a_room_goes_away_however_deep_it_is() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join("room");
        std::fs::create_dir_all(root.join("wide/1")).unwrap();
        std::fs::create_dir_all(root.join("wide/2/1")).unwrap();
        std::fs::write(root.join("wide/2/file"), "x").unwrap();
        std::fs::create_dir(root.join("deep")).unwrap();
        // From the inside out, since no path reaches so deep.
        let (deep, next) = (root.join("deep/d"), work_dir.path().join("next"));
        for _ in 0..5_000 {
            std::fs::create_dir(&next).unwrap();
            std::fs::write(next.join("file"), "x").unwrap();
            if deep.exists() {
                std::fs::rename(&deep, next.join("d")).unwrap();
            }
            std::fs::rename(&next, &deep).unwrap();
        }
        remove_all(&root).unwrap();
        assert!(!root.exists());
        remove_all(&root).unwrap();
    }
}
