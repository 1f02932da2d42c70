//! The private folder of a run.

mod removing;

use std::ffi::{CStr, CString};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use uuid::Uuid;

use crate::launch::Account;
use removing::FOLDER;

/// How the name of every room begins.
const PREFIX: &str = "attune-room-";
/// What the file with the parameters is called.
pub(crate) const PARAMETERS: &str = "parameters.json";

/// A folder that only this user can enter, with the parameters of a run in a file that cannot
/// be written. It is the run's working directory and goes away with everything in it.
///
/// It is locked while its worker lives, so that another one can tell which were left behind. What
/// the worker does in it goes by its descriptor: the path is the program's to change.
#[derive(Debug)]
pub(crate) struct Room {
    /// Nothing once it was removed.
    dir: Option<PathBuf>,
    parameters: PathBuf,
    /// The work directory, in which it has its name.
    parent: OwnedFd,
    name: CString,
    /// Holds the lock.
    folder: File,
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
        let parent = hold_work_dir(work_dir)?;
        let (name, folder) = loop {
            let name = format!("{PREFIX}{}", Uuid::new_v4().simple());
            if let Some(folder) = make_folder(parent.as_fd(), &CString::new(&*name)?)? {
                break (name, folder);
            }
        };
        let dir = std::path::absolute(work_dir)?.join(&name);
        let room = Self {
            parameters: dir.join(PARAMETERS),
            dir: Some(dir),
            parent,
            name: CString::new(name)?,
            folder,
        };
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&room.folder, PARAMETERS, new, Mode::RUSR)?);
        file.write_all(parameters.as_bytes())?;
        Ok(room)
    }

    /// Removes the rooms in `work_dir` whose workers are gone; their guards have ended what ran there. They are
    /// this user's, or those of the account that its programs run as.
    pub(crate) async fn remove_left(work_dir: PathBuf, account: Option<Account>) {
        let removing = tokio::task::spawn_blocking(move || {
            let Ok(parent) = hold_work_dir(&work_dir) else {
                return 0;
            };
            let entries = removing::entries(parent.as_fd());
            let names = entries.into_iter().flatten().flatten();
            names
                .filter(|entry| {
                    let name = entry.file_name();
                    name.to_bytes().starts_with(PREFIX.as_bytes())
                        && remove_if_left(parent.as_fd(), name, account)
                })
                .count()
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

    /// Removes the folder, also where the program has closed a folder in it to everybody, and also
    /// when it has another name in the work directory now. Nothing outside it is touched, whatever
    /// has its name. A process that escaped its group may still write there; then some of it stays.
    pub(crate) async fn remove(self) {
        // Whoever cannot wait any more leaves it to the blocking thread all the same.
        let _removed = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else {
            return;
        };
        let (parent, folder) = (self.parent.as_fd(), self.folder.as_fd());
        if let Err(error) = removing::remove(parent, &self.name, folder) {
            tracing::warn!(path = %dir.display(), %error, "a run's folder was not removed, or not all of it");
        }
    }
}

/// Holds the work directory. Who runs the worker may have made it a link.
fn hold_work_dir(work_dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, work_dir, flags, Mode::empty())?)
}

/// Makes a folder and locks it, where there are locks. Nothing when a worker that has just started
/// takes it for one that was left behind.
fn make_folder(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<File>> {
    mkdirat(parent, name, Mode::RWXU)?;
    let folder = match openat(parent, name, FOLDER, Mode::empty()) {
        Ok(folder) => File::from(folder),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => {
            // What was wrong is told; the folder that stays if this fails too is empty.
            let _ = removing::remove_empty(parent, name);
            return Err(error.into());
        }
    };
    let is_taken = matches!(folder.try_lock(), Err(TryLockError::WouldBlock));
    if is_taken || removing::names(parent, name, folder.as_fd())? != Some(true) {
        return Ok(None);
    }
    // Where others may change names, it need not be the one that was made; then what it holds is
    // none of ours to remove.
    if removing::entries(folder.as_fd())?.next().is_some() {
        return Err(io::Error::other("another folder came to its place"));
    }
    Ok(Some(folder))
}

/// Removes a room if nobody holds its lock; whether it did.
fn remove_if_left(parent: BorrowedFd<'_>, name: &CStr, account: Option<Account>) -> bool {
    let removed = lock_left(parent, name, account).and_then(|left| match left {
        Some(folder) => removing::remove(parent, name, folder.as_fd()).map(|()| true),
        None => Ok(false),
    });
    if let Err(error) = &removed {
        tracing::warn!(name = %name.to_string_lossy(), %error, "a run's folder was left and stays");
    }
    removed.unwrap_or(false)
}

/// Locks a room that was left behind. Nothing when it is none.
fn lock_left(
    parent: BorrowedFd<'_>,
    name: &CStr,
    account: Option<Account>,
) -> io::Result<Option<File>> {
    // What a link leads to, or somebody else has made, is none of ours.
    let Some(held) = removing::hold(parent, name)? else {
        return Ok(None);
    };
    let found = fstat(&held)?;
    let of_account = account.is_some_and(|account| account.user == found.st_uid);
    if found.st_uid != geteuid().as_raw() && !of_account {
        return Ok(None);
    }
    // Only what may be read can be locked.
    removing::open_up(held.as_fd())?;
    let folder = File::from(openat(&held, c".", FOLDER, Mode::empty())?);
    // Where there are no locks, nobody can tell.
    if folder.try_lock().is_ok() {
        return Ok(Some(folder));
    }
    if removing::is_closed(&found) {
        // It is in use: its program shall find it as it left it.
        fchmod(&folder, Mode::from_raw_mode(found.st_mode))?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn close(path: &Path) {
        fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }

    #[tokio::test]
    async fn what_a_killed_worker_leaves_is_removed() {
        let work_dir = tempfile::tempdir().unwrap();
        let alive = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let mut killed = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let left = killed.dir.take().unwrap();
        // As the kernel does it for a process that is killed.
        drop(killed);
        for path in [alive.path(), &left] {
            close(path);
        }
        let other = work_dir.path().join("attune-roomy");
        let elsewhere = tempfile::tempdir().unwrap();
        let file = elsewhere.path().join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o755)).unwrap();
        let link = work_dir.path().join("attune-room-link");
        symlink(elsewhere.path(), &link).unwrap();
        fs::create_dir(&other).unwrap();
        Room::remove_left(work_dir.path().to_owned(), None).await;
        assert!(!left.exists());
        for path in [alive.path(), &other, &file, &link] {
            assert!(path.exists(), "{}", path.display());
        }
        assert_eq!((mode(alive.path()), mode(elsewhere.path())), (0, 0o755));
        alive.remove().await;
        Room::remove_left(work_dir.path().join("none"), None).await;
    }

    #[tokio::test]
    async fn a_room_goes_away_whatever_its_program_closed() {
        let work_dir = tempfile::tempdir().unwrap();
        let room = Room::prepare(work_dir.path(), "{}").await.unwrap();
        assert_eq!((mode(room.path()), mode(room.parameters())), (0o700, 0o400));
        let inner = room.path().join("a").join("b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        symlink(work_dir.path(), room.path().join("link")).unwrap();
        for path in [inner.as_path(), room.path()] {
            close(path);
        }
        let path = room.path().to_owned();
        room.remove().await;
        assert!(!path.exists());
        assert!(work_dir.path().exists());
    }

    /// As `mv $PWD $PWD.x && ln -s VICTIM $PWD` does it.
    #[tokio::test]
    async fn a_link_in_the_place_of_a_room_is_not_followed() {
        let work_dir = tempfile::tempdir().unwrap();
        let victim = tempfile::tempdir().unwrap();
        fs::create_dir(victim.path().join("folder")).unwrap();
        fs::write(victim.path().join("folder/file"), "x").unwrap();
        fs::set_permissions(victim.path(), Permissions::from_mode(0o500)).unwrap();
        let room = Room::prepare(work_dir.path(), "{}").await.unwrap();
        let path = room.path().to_owned();
        let renamed = path.with_extension("x");
        fs::create_dir(path.join("folder")).unwrap();
        fs::rename(&path, &renamed).unwrap();
        symlink(victim.path(), &path).unwrap();
        room.remove().await;
        assert!(!renamed.exists());
        assert!(path.is_symlink());
        assert!(victim.path().join("folder/file").exists());
        assert_eq!(mode(victim.path()), 0o500);
        // Else it could not be removed.
        fs::set_permissions(victim.path(), Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn a_room_is_a_folder_that_was_made_for_it() {
        let work_dir = tempfile::tempdir().unwrap();
        let parent = hold_work_dir(work_dir.path()).unwrap();
        assert!(make_folder(parent.as_fd(), c"new").unwrap().is_some());
        assert!(make_folder(parent.as_fd(), c"new").is_err());
    }
}
