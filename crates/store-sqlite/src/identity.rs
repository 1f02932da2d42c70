//! Whether the database file is still the one that was opened.
//!
//! A file that is deleted or replaced under a running process stays open without a name: SQLite
//! goes on writing into it, and everything is gone when the process ends.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use attune_store::StoreError;

/// The files that were opened, by what the file system knows them.
#[derive(Debug)]
pub(crate) struct FileIdentity {
    database: Known,
    /// Its write-ahead log, once there is one: from then on it stays as long as somebody has the file
    /// open.
    log: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Known {
    fn of(path: PathBuf) -> io::Result<Self> {
        let found = std::fs::metadata(&path)?;
        Ok(Self {
            path,
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// What became of it, in words, if it does not lie there any more. What cannot be found out is
    /// not said.
    fn fate(&self) -> Option<&'static str> {
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => None,
            Ok(_) => Some("replaced by another one"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some("deleted or moved away"),
            Err(_) => None,
        }
    }
}

impl FileIdentity {
    /// Of the file that lies there now.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            database: Known::of(path.to_owned())?,
            log: Mutex::default(),
        })
    }

    /// Whether another file, or none, lies there now, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem_of_database().or_else(|| self.problem_of_log())
    }

    fn problem_of_database(&self) -> Option<String> {
        let what = self.database.fate()?;
        Some(format!(
            "the database file `{}` was {what} under the running process; put the right file in \
             its place while no process uses it, and start again",
            self.database.path.display()
        ))
    }

    fn problem_of_log(&self) -> Option<String> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(log) = &*log else {
            let mut path = self.database.path.clone().into_os_string();
            path.push("-wal");
            *log = Known::of(path.into()).ok();
            return None;
        };
        let what = log.fate()?;
        Some(format!(
            "the write-ahead log `{}` was {what} under the running process; stop it with TERM, not \
             KILL, so that it writes what it has into the database file, and start again",
            log.path.display()
        ))
    }

    /// As [`FileIdentity::check`], of the database alone: while this process does not have it open, its log
    /// may be gone.
    pub(crate) fn check_database(&self) -> Result<(), StoreError> {
        refuse(self.problem_of_database())
    }

    /// The file was opened anew by this process itself. If nobody else had it open meanwhile, its log was
    /// written into it and removed, and there is another one now.
    pub(crate) fn reopened(&self) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Refuses to write into a file that is lost.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: nothing was written.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        refuse(self.problem())
    }
}

fn refuse(problem: Option<String>) -> Result<(), StoreError> {
    match problem {
        Some(problem) => Err(StoreError::Refused(problem.into())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_again_by_more_than_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&path, "1").unwrap();
        let identity = FileIdentity::of(&path).unwrap();
        assert_eq!(identity.problem(), None);
        std::fs::rename(&path, &other).unwrap();
        assert!(identity.problem().unwrap().contains("deleted or moved"));
        std::fs::write(&path, "1").unwrap();
        assert!(identity.problem().unwrap().contains("replaced"));
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(identity.problem(), None);
    }
    #[test]
    fn so_is_its_write_ahead_log_once_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, log) = (folder.path().join("one"), folder.path().join("one-wal"));
        std::fs::write(&path, "1").unwrap();
        let identity = FileIdentity::of(&path).unwrap();
        assert_eq!(identity.problem(), None);
        std::fs::write(&log, "1").unwrap();
        assert_eq!(identity.problem(), None);
        std::fs::remove_file(&log).unwrap();
        let problem = identity.problem().unwrap();
        assert!(
            problem.contains("one-wal") && problem.contains("TERM"),
            "{problem}"
        );
        std::fs::write(&log, "2").unwrap();
        identity.reopened();
        assert_eq!(identity.problem(), None);
        std::fs::remove_file(&log).unwrap();
        identity.check_database().unwrap();
        identity.check().unwrap_err();
    }
}
