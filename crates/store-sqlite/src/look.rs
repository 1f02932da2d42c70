//! Looking at the file of another process, which goes on working with it. Nothing here changes anything.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use attune_store::{CallCounts, LetterGauge, StoreError, Unread};

use crate::lock::lock_path;
use crate::options::SqliteOptions;
use crate::sql;
use crate::store::{Inner, SqliteStore, cannot_open, reading, spawned};
use crate::writer::Writer;

impl SqliteStore {
    /// Opens a file that is there to read it, beside the process that uses it or without one. Whatever would be
    /// written is refused.
    ///
    /// # Errors
    /// As SQLite fails: the file is not there, or is no database.
    pub async fn look(options: SqliteOptions) -> Result<Self, StoreError> {
        spawned(async move {
            // Where nobody has anything under way SQLite needs no files beside it, and would leave them.
            let connection = options.reader().immutable(is_at_rest(&options.path));
            let readers = reading(&options, connection.clone());
            let writer = Writer::open(connection, readers.clone())
                .await
                .map_err(|error| cannot_open(&options, error))?;
            Ok(Self {
                inner: Arc::new(Inner {
                    letters: LetterGauge::new(options.letters),
                    unread: Unread::default(),
                    calls: CallCounts::default(),
                    options,
                    writer,
                    readers,
                    lock: Mutex::new(None),
                    _folder: None,
                }),
            })
        })
        .await
    }

    /// Whether the pages of the file fit together: `None` when they do, else the first thing that is wrong. Reads
    /// all of the file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn quick_check(&self) -> Result<Option<String>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let said = sqlx::query_as::<_, (String,)>(sql::QUICK_CHECK);
            let (said,) = said.fetch_one(&mut *inner.reader().await?).await?;
            Ok((said != "ok").then_some(said))
        })
        .await
    }
}

/// The number of the process that uses a database file, as the kernel says who holds its lock; `None` when
/// nobody does, as far as this process can see: one in another container may not show.
///
/// # Errors
/// When the file is not there, or the kernel says nothing.
pub fn holder(database: &Path) -> Result<Option<u32>, StoreError> {
    let lock = lock_path(database)?;
    let seen = |error: std::io::Error| StoreError::Conflict(error.to_string());
    let Ok(file) = fs::metadata(lock) else {
        return Ok(None);
    };
    let locks = fs::read_to_string("/proc/locks").map_err(seen)?;
    Ok(holder_in(&locks, file.ino()))
}

/// Whether nobody uses a database file, and all that was written is in the file itself.
fn is_at_rest(database: &Path) -> bool {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    matches!(holder(database), Ok(None)) && !Path::new(&log).exists()
}

/// Who holds a lock on all of a file of this number. Not the device: file systems with volumes in them tell
/// another one here than there.
fn holder_in(locks: &str, file: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some("FLOCK") {
            return None;
        }
        let process = words.nth(2)?;
        let number = words.next()?.rsplit(':').next()?;
        (number.parse() == Ok(file)).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use attune_store::{PartitionStore as _, Store as _};

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_by_the_number_of_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:41 0 EOF\n2: FLOCK  ADVISORY  WRITE 25487 fe:00:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 fe:00:42 0 EOF\n";
        assert_eq!(holder_in(locks, 42), Some(25487));
        assert_eq!(holder_in(locks, 41), None);
    }

    #[tokio::test]
    async fn a_file_is_looked_at_beside_its_process_and_without_it_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("attune.db");
        let options = SqliteOptions::new(&path);
        assert!(SqliteStore::look(options.clone()).await.is_err());
        assert!(!path.exists(), "it was made");
        let store = SqliteStore::open(options.clone()).await.unwrap();
        store.migrate().await.unwrap();
        store.ensure_partitions(4).await.unwrap();
        let look = SqliteStore::look(options.clone()).await.unwrap();
        look.check().await.unwrap();
        assert_eq!(look.quick_check().await.unwrap(), None);
        assert_eq!(look.leases().await.unwrap().len(), 4);
        assert!(look.ensure_partitions(5).await.is_err(), "it is written");
        assert_eq!(holder(&path).unwrap(), Some(std::process::id()));
        look.close().await;
        store.close().await;
        let names = || {
            let entries = fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (before, bytes) = (names(), fs::read(&path).unwrap());
        assert_eq!(holder(&path).unwrap(), None);
        let look = SqliteStore::look(options).await.unwrap();
        assert_eq!(look.leases().await.unwrap().len(), 4);
        look.close().await;
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(names(), before);
    }
}
