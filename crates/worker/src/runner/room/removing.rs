//! Removing the folder of a run, whatever its program does to the names in it and around it.
//!
//! A program may put a link or another folder in the place of any name of its room, while it runs,
//! between any two steps of a removal (what escaped its group), and for good; and the worker may
//! have more rights than the program. So no step goes by a path: each works from the descriptor of
//! a folder that was opened without following a link, on one name in that folder.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

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

/// How long a removal may take. Its run is not told as over before, and what escaped its group may
/// make folders faster than they go.
const LONGEST: Duration = Duration::from_secs(300);
/// How deep files are removed in place where the disk is too full to move folders up.
const THINNED: usize = 32;

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
    empty(folder, LONGEST)?;
    remove_name(parent, name, folder)
}

/// Removes everything in a folder, however deep a program has made it: what lies in a folder of it
/// moves up, so that this needs no stack, no long paths and five descriptors.
fn empty(folder: BorrowedFd<'_>, longest: Duration) -> io::Result<()> {
    open_up(folder)?;
    let mut emptying = Emptying::new(folder, longest);
    loop {
        match emptying.once() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // A folder that moves up may need room that the files in it have taken.
            Err(error) if is_full(&error) && emptying.thin(folder, THINNED)? => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|it| full.contains(&it))
}

struct Emptying<'a> {
    folder: BorrowedFd<'a>,
    until: Instant,
    /// What a program calls its folders may be in the way of those that move up.
    mark: Uuid,
    moved: u64,
}

impl<'a> Emptying<'a> {
    fn new(folder: BorrowedFd<'a>, longest: Duration) -> Self {
        Self {
            folder,
            until: Instant::now() + longest,
            mark: Uuid::new_v4(),
            moved: 0,
        }
    }

    /// Removes what the folder holds; whether there were folders in it, whose own have moved up.
    fn once(&mut self) -> io::Result<bool> {
        let mut folders = false;
        for entry in entries(self.folder)? {
            self.check()?;
            let entry = entry?;
            if is_folder(self.folder, &entry)? {
                folders |= self.dissolve(entry.file_name())?;
            }
        }
        Ok(folders)
    }

    /// Removes the files in a folder and in those in it, and the folders that are empty then, without
    /// moving anything; whether there were any.
    fn thin(&self, folder: BorrowedFd<'_>, depth: usize) -> io::Result<bool> {
        let mut removed = false;
        for entry in entries(folder)? {
            self.check()?;
            let entry = entry?;
            if !is_folder(folder, &entry)? {
                removed = true;
                continue;
            }
            let Some(inner) = hold(folder, entry.file_name())? else {
                continue;
            };
            open_up(inner.as_fd())?;
            if depth > 0 {
                removed |= self.thin(inner.as_fd(), depth - 1)?;
            }
            removed |= unlinkat(folder, entry.file_name(), AtFlags::REMOVEDIR).is_ok();
        }
        Ok(removed)
    }

    /// # Errors
    /// When it has taken too long.
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.until {
            return Ok(());
        }
        let why = "it has taken too long: something may still be writing there";
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Removes a folder in the folder; those in it move up. False when it was none any more.
    fn dissolve(&mut self, name: &CStr) -> io::Result<bool> {
        let Some(inner) = hold(self.folder, name)? else {
            return unlink(self.folder, name);
        };
        open_up(inner.as_fd())?;
        for entry in entries(inner.as_fd())? {
            self.check()?;
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
#[path = "removing_tests.rs"]
mod tests;
