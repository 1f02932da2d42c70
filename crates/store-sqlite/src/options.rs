//! How a store is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use attune_store::DeadLetterRetention;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

/// How to open a [`SqliteStore`](crate::SqliteStore).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The database file; it is made when it is missing, its folder is not.
    pub path: PathBuf,
    /// How many connections read at once.
    pub readers: u32,
    /// How long a statement waits for a program outside of Attune, such as the `sqlite3` shell,
    /// to finish its own write; afterwards the store counts as unavailable.
    pub busy_timeout: Duration,
    /// How much of the dead letters is kept between two upkeeps.
    pub letters: DeadLetterRetention,
}

/// How many pages of 4 KiB the write-ahead log gathers before they are copied into the file.
/// Pages that change often are copied once for many changes; measured at 500 lives a batch, 4,000
/// instead of SQLite's 1,000 takes a third off the time of a life and costs 16 MB of disk.
const CHECKPOINT_PAGES: &str = "4000";

/// What is left of the write-ahead log after a burst, in bytes.
const LOG_SIZE_LIMIT: &str = "67108864";

/// How much of the file each connection keeps in memory, in KiB, as SQLite wants it.
const CACHE_KIB: &str = "-32768";

impl SqliteOptions {
    /// The usual settings for the file at `path`: 4 readers, 5 s for other programs.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            busy_timeout: Duration::from_secs(5),
            letters: DeadLetterRetention::USUAL,
        }
    }

    pub(crate) fn writer(&self) -> SqliteConnectOptions {
        self.connection("attune-sqlite-write")
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .pragma("journal_size_limit", LOG_SIZE_LIMIT)
    }

    pub(crate) fn reader(&self) -> SqliteConnectOptions {
        self.connection("attune-sqlite-read").read_only(true)
    }

    fn connection(&self, thread: &'static str) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(AsRef::<Path>::as_ref(&self.path))
            .foreign_keys(true)
            .busy_timeout(self.busy_timeout)
            .pragma("cache_size", CACHE_KIB)
            .pragma("temp_store", "MEMORY")
            .thread_name(move |n| format!("{thread}-{n}"))
    }
}
