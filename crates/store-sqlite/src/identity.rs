//! Whether the database file is still the one that was opened.
//!
//! A file that is deleted or replaced under a running process stays open without a name: SQLite
//! goes on writing into it, and everything is gone when the process ends.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use attune_store::StoreError;

/// The file that was opened, by what the file system knows it.
#[derive(Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Of the file that lies there now.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Whether another file, or none, lies there now, in words. What cannot be found out is not
    /// said.
    pub(crate) fn problem(&self) -> Option<String> {
        let what = match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => return None,
            Ok(_) => "replaced by another one",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "deleted or moved away",
            Err(_) => return None,
        };
        Some(format!(
            "the database file `{}` was {what} under the running process; put the right file in \
             its place while no process uses it, and start again",
            self.path.display()
        ))
    }

    /// Refuses to write into a file that is lost.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: nothing was written.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.problem() {
            Some(problem) => Err(StoreError::Refused(problem.into())),
            None => Ok(()),
        }
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
}
