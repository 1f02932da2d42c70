//! Removing the folder of a run, whatever its program does to the names in it and around it.
//!
//! A program may put a link or another folder in the place of any name of its room, while it runs,
//! between any two steps of a removal (what escaped its group), and for good; and the worker may
//! have more rights than the program. So no step goes by a path: each works from the descriptor of
//! a folder that was opened without following a link, on one name in that folder.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, DirEntry, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, chmod,
    fstat, openat, renameat, statat, statx, unlinkat,
};
use rustix::io::Errno;
use uuid::Uuid;

/// How a folder is opened to be read and locked. A link is refused.
pub(super) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// How a folder is opened to be held only, which needs no right to it. A link is refused.
const HELD: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes a folder with everything in it, and its name: the one it was made with in its parent, or
/// the one it has there now. That it is gone already is no error.
///
/// # Errors
/// Also when the folder was emptied, but is elsewhere, or when something else has its name: that
/// stays as it is.
pub(super) fn remove(
    parent: BorrowedFd<'_>,
    name: &CStr,
    folder: BorrowedFd<'_>,
) -> io::Result<()> {
    empty(folder)?;
    remove_name(parent, name, folder)
}

/// Removes everything in a folder, however deep a program has made it: what lies in a folder of it
/// moves up, so that this needs no stack, no long paths and five descriptors.
fn empty(folder: BorrowedFd<'_>) -> io::Result<()> {
    open_up(folder)?;
    let mut emptying = Emptying {
        folder,
        mark: Uuid::new_v4(),
        moved: 0,
    };
    while emptying.once()? {}
    Ok(())
}

struct Emptying<'a> {
    folder: BorrowedFd<'a>,
    /// What a program calls its folders may be in the way of those that move up.
    mark: Uuid,
    moved: u64,
}

impl Emptying<'_> {
    /// Removes what the folder holds; whether there were folders in it, whose own have moved up.
    fn once(&mut self) -> io::Result<bool> {
        let mut folders = false;
        for entry in entries(self.folder)? {
            let entry = entry?;
            if is_folder(self.folder, &entry)? {
                folders |= self.dissolve(entry.file_name())?;
            }
        }
        Ok(folders)
    }

    /// Removes a folder in the folder; those in it move up. False when it was none any more.
    fn dissolve(&mut self, name: &CStr) -> io::Result<bool> {
        let Some(inner) = hold(self.folder, name)? else {
            return unlink(self.folder, name);
        };
        open_up(inner.as_fd())?;
        for entry in entries(inner.as_fd())? {
            let entry = entry?;
            if !is_folder(inner.as_fd(), &entry)? {
                continue;
            }
            // A folder moves only with the right to write in it.
            if let Some(deeper) = hold(inner.as_fd(), entry.file_name())? {
                open_up(deeper.as_fd())?;
            }
            // Whatever has the name by now: a link moves as a link, and goes with the next round.
            let up = format!("{}-{}", self.mark, self.moved);
            match renameat(&inner, entry.file_name(), self.folder, up) {
                Ok(()) => self.moved += 1,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match unlinkat(self.folder, name, AtFlags::REMOVEDIR) {
            // Something else has come to its place, for the next round.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Holds the folder of this name. Nothing when there is none: the name is gone, or a link's, or a
/// file's.
///
/// # Errors
/// Also when something is mounted there.
pub(super) fn hold(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let folder = match openat(parent, name, HELD, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        folder => folder?,
    };
    // What a program with the right to has mounted in its room lies elsewhere. Where the kernel
    // cannot tell (before 5.8), it is taken for a part of the room.
    let is_mounted = statx(&folder, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    if is_mounted {
        let why = format!("something is mounted at {name:?}");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    Ok(Some(folder))
}

/// Lets this user into a folder that a program may have closed.
///
/// A closed folder can be held, but not be opened, and `fchmod` refuses what is only held; `fchmodat`
/// would follow a link that has come to its name. The entry in `/proc` leads to the very folder that
/// is held, whatever its name leads to now.
pub(super) fn open_up(folder: BorrowedFd<'_>) -> io::Result<()> {
    if is_closed(&fstat(folder)?) {
        chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::RWXU)?;
    }
    Ok(())
}

/// Whether its owner is kept out of a folder.
pub(super) fn is_closed(folder: &Stat) -> bool {
    !Mode::from_raw_mode(folder.st_mode).contains(Mode::RWXU)
}

/// What lies in a folder, also in one that is only held.
pub(super) fn entries(
    folder: BorrowedFd<'_>,
) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
    // Not by its name, which may be something else's by now.
    let listing = Dir::new(openat(folder, c".", FOLDER, Mode::empty())?)?;
    Ok(listing
        .filter(|entry| !matches!(entry, Ok(it) if [c".", c".."].contains(&it.file_name())))
        .map(|entry| Ok(entry?)))
}

/// Whether an entry is a folder; else it is removed.
fn is_folder(parent: BorrowedFd<'_>, entry: &DirEntry) -> io::Result<bool> {
    // Only to spare a call: what the listing says may be over, and some file systems do not say it.
    Ok(entry.file_type() == FileType::Directory || unlink(parent, entry.file_name())?)
}

/// Removes a name, not what a link leads to; whether it is a folder's, which stays.
fn unlink(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Removes the name of an emptied folder in its parent.
fn remove_name(parent: BorrowedFd<'_>, name: &CStr, folder: BorrowedFd<'_>) -> io::Result<()> {
    let named = names(parent, name, folder)?;
    if named == Some(true) {
        return remove_empty(parent, name);
    }
    let mut found = false;
    for entry in entries(parent)? {
        let entry = entry?;
        if names(parent, entry.file_name(), folder)? == Some(true) {
            remove_empty(parent, entry.file_name())?;
            found = true;
            break;
        }
    }
    let is_gone = found || fstat(folder)?.st_nlink == 0;
    match (named, is_gone) {
        (None, true) => Ok(()),
        (None, false) => Err(io::Error::other("it was emptied, but has been moved away")),
        (Some(_), true) => Err(io::Error::other(
            "it is gone, but something else has its name and stays",
        )),
        (Some(_), false) => Err(io::Error::other(
            "it was emptied, but has been moved away, and something else has its name and stays",
        )),
    }
}

/// Whether a name leads to this very folder; nothing when nobody has the name.
pub(super) fn names(
    parent: BorrowedFd<'_>,
    name: &CStr,
    folder: BorrowedFd<'_>,
) -> io::Result<Option<bool>> {
    let own = fstat(folder)?;
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(it) => Ok(Some((it.st_dev, it.st_ino) == (own.st_dev, own.st_ino))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes an empty folder. There is no call that takes its descriptor: should the name be another's
/// since it was compared, a link or a folder that holds anything stays all the same.
pub(super) fn remove_empty(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // Another worker was faster.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::{self, File, Permissions};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn close(path: &Path) {
        fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }

    /// A folder with a file, which nobody may touch.
    struct Victim(tempfile::TempDir);

    impl Victim {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("file"), "x").unwrap();
            // A mode that a removal would have to change.
            fs::set_permissions(dir.path(), Permissions::from_mode(0o500)).unwrap();
            Self(dir)
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        #[track_caller]
        fn check_untouched(&self) {
            assert_eq!(fs::read_to_string(self.path().join("file")).unwrap(), "x");
            assert_eq!(mode(self.path()), 0o500);
        }
    }

    impl Drop for Victim {
        fn drop(&mut self) {
            // Else it could not be removed.
            let _ = fs::set_permissions(self.path(), Permissions::from_mode(0o700));
        }
    }

    #[track_caller]
    fn check_removed(root: &Path) {
        let parent = File::open(root.parent().unwrap()).unwrap();
        let name = CString::new(root.file_name().unwrap().as_bytes()).unwrap();
        let folder = File::open(root).unwrap();
        // The second time it is gone already.
        for _ in 0..2 {
            remove(parent.as_fd(), &name, folder.as_fd()).unwrap();
            assert!(!root.exists());
        }
    }

    #[test]
    fn closed_folders_are_opened() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join("room");
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        fs::write(root.join("a/file"), "x").unwrap();
        let folder = File::open(&root).unwrap();
        for path in [&inner, &root.join("a"), &root] {
            close(path);
        }
        // Whoever may do everything is not kept out: look at what was opened.
        open_up(folder.as_fd()).unwrap();
        let a = hold(folder.as_fd(), c"a").unwrap().unwrap();
        open_up(a.as_fd()).unwrap();
        let b = hold(a.as_fd(), c"b").unwrap().unwrap();
        open_up(b.as_fd()).unwrap();
        for path in [&inner, &root.join("a"), &root] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        for path in [&inner, &root.join("a")] {
            close(path);
        }
        check_removed(&root);
    }

    /// Folders in folders, deeper than a path can be long and than a stack or the bound on open files
    /// would bear, and names that are in the way.
    #[test]
    fn a_room_goes_away_however_deep_it_is() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join("room");
        fs::create_dir_all(root.join("wide/1")).unwrap();
        fs::create_dir_all(root.join("wide/2/1")).unwrap();
        fs::write(root.join("wide/2/file"), "x").unwrap();
        fs::create_dir(root.join("deep")).unwrap();
        // From the inside out, since no path reaches so deep.
        let (deep, next) = (root.join("deep/d"), work_dir.path().join("next"));
        for _ in 0..5_000 {
            fs::create_dir(&next).unwrap();
            fs::write(next.join("file"), "x").unwrap();
            if deep.exists() {
                fs::rename(&deep, next.join("d")).unwrap();
                close(&next.join("d"));
            }
            fs::rename(&next, &deep).unwrap();
        }
        check_removed(&root);
    }

    #[test]
    fn a_room_goes_away_however_much_is_in_it() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join("room");
        fs::create_dir_all(root.join("many")).unwrap();
        for number in 0..3_000 {
            fs::write(root.join(number.to_string()), "x").unwrap();
            fs::create_dir_all(root.join(format!("many/{number}/in"))).unwrap();
        }
        check_removed(&root);
    }

    /// As a listing gives it, and as it is after that.
    #[test]
    fn a_link_in_the_place_of_a_folder_is_not_followed() {
        let (work_dir, victim) = (tempfile::tempdir().unwrap(), Victim::new());
        let root = work_dir.path().join("room");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let folder = File::open(&root).unwrap();
        let listed = entries(folder.as_fd()).unwrap().next().unwrap().unwrap();
        assert_eq!(listed.file_type(), FileType::Directory);
        fs::rename(root.join("a"), root.join("was-a")).unwrap();
        symlink(victim.path(), root.join("a")).unwrap();
        symlink(victim.path(), root.join("was-a/link")).unwrap();
        assert!(hold(folder.as_fd(), c"a").unwrap().is_none());
        let mut emptying = Emptying {
            folder: folder.as_fd(),
            mark: Uuid::new_v4(),
            moved: 0,
        };
        assert!(is_folder(folder.as_fd(), &listed).unwrap());
        assert!(!emptying.dissolve(listed.file_name()).unwrap());
        assert!(!root.join("a").is_symlink());
        check_removed(&root);
        victim.check_untouched();
    }

    #[test]
    fn what_is_mounted_is_not_entered() {
        let root = File::open("/").unwrap();
        let refused = hold(root.as_fd(), c"proc").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    }

    /// What escaped its group goes on exchanging a folder for a link.
    #[test]
    fn nothing_outside_is_touched_while_names_change() {
        let (work_dir, victim) = (tempfile::tempdir().unwrap(), Victim::new());
        let parent = File::open(work_dir.path()).unwrap();
        for _ in 0..50 {
            let root = work_dir.path().join("room");
            fs::create_dir_all(root.join("a/b/c")).unwrap();
            for place in [&root, &root.join("a")] {
                symlink(victim.path(), place.join("link")).unwrap();
            }
            let folder = File::open(&root).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        for (one, other) in [(c"a", c"link"), (c"a/b", c"a/link")] {
                            let flags = RenameFlags::EXCHANGE;
                            let _ = renameat_with(&folder, one, &folder, other, flags);
                        }
                    }
                });
                // It may well fail; then the rest goes when the names rest.
                let _ = remove(parent.as_fd(), c"room", folder.as_fd());
                over.store(true, Ordering::Relaxed);
            });
            if root.exists() {
                check_removed(&root);
            }
            victim.check_untouched();
        }
    }

    #[test]
    fn what_has_the_name_now_stays_and_is_told() {
        let work_dir = tempfile::tempdir().unwrap();
        let parent = File::open(work_dir.path()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let root = work_dir.path().join("room");
        let tell = |to: &Path, other: bool| {
            fs::create_dir(&root).unwrap();
            fs::write(root.join("file"), "x").unwrap();
            let folder = File::open(&root).unwrap();
            fs::rename(&root, to).unwrap();
            if other {
                fs::create_dir(&root).unwrap();
                fs::write(root.join("file"), "x").unwrap();
            }
            let told = remove(parent.as_fd(), c"room", folder.as_fd());
            if other {
                assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "x");
                fs::remove_dir_all(&root).unwrap();
            }
            told.map_err(|error| error.to_string())
        };
        let near = work_dir.path().join("room.x");
        assert_eq!(tell(&near, false), Ok(()));
        assert!(!near.exists());
        let told = tell(&near, true).unwrap_err();
        assert!(told.starts_with("it is gone, but"), "{told}");
        assert!(!near.exists());
        // The same file system, but another folder.
        for (far, other) in [("1", false), ("2", true)] {
            let far = elsewhere.path().join(far);
            let told = tell(&far, other).unwrap_err();
            assert!(told.starts_with("it was emptied, but"), "{told}");
            assert_eq!(fs::read_dir(&far).unwrap().count(), 0);
        }
    }
}
