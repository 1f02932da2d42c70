//! The lock that keeps a second process off the file.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use attune_store::StoreError;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::options::SqliteOptions;

/// Parameters and results of executions are nobody else's business.
const ONLY_OWNER: u32 = 0o600;

/// Holds the lock until it is dropped. The kernel lets go of it when the process ends, however
/// it ends, so the file may stay behind. Programs that a worker starts do not inherit it, because
/// the descriptor is closed on exec.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Makes sure that the database file exists, readable for its owner only (SQLite gives its
    /// other files the same rights), and takes the lock beside it. The lock belongs to the file
    /// and not to its name, so that a link to it does not lead past the lock.
    pub(crate) fn take(options: &SqliteOptions) -> Result<Self, StoreError> {
        create(&options.path, OFlags::empty())?;
        let path = lock_path(&options.path)?;
        // Made by nobody else: a link here would have another file written over.
        let mut file = create(&path, OFlags::NOFOLLOW)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(options, &mut file)),
            Err(error) => return Err(cannot("lock", &path, &error.into())),
        }
        note_holder(&mut file).map_err(|error| cannot("write", &path, &error))?;
        Ok(Self { _file: file })
    }
}

/// `<file>.lock` in the folder in which the file really lies.
pub(crate) fn lock_path(path: &Path) -> Result<PathBuf, StoreError> {
    let mut path = path
        .canonicalize()
        .map_err(|error| cannot("find", path, &error))?
        .into_os_string();
    path.push(".lock");
    Ok(path.into())
}

fn create(path: &Path, flags: OFlags) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(ONLY_OWNER)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| cannot("open", path, &error))
}

/// Leaves the number of this process for the message of one that comes second.
fn note_holder(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn in_use(options: &SqliteOptions, file: &mut File) -> StoreError {
    let mut holder = String::new();
    // The number only helps the reader of the message; without it the message still stands.
    let holder = match file.take(32).read_to_string(&mut holder) {
        Ok(_) if !holder.trim().is_empty() => format!(" (process {})", holder.trim()),
        _ => String::new(),
    };
    StoreError::Conflict(format!(
        "the database `{}` is in use by another Attune process{holder}; one file serves one process: stop that one or use another file",
        options.path.display(),
    ))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Conflict(format!("cannot {what} `{}`: {error}", path.display()))
}
