//! The store: its connections, and how long they live.

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use attune_store::{Actor, CallCounts, LetterGauge, PoolFigures, Store, StoreError, Unread};
use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

use crate::error::{Failure, from_sqlx};
use crate::former;
use crate::lock::FileLock;
use crate::migrate;
use crate::options::SqliteOptions;
use crate::rows::unsigned;
use crate::sql;
use crate::writer::Writer;

/// How long a call waits for one of the readers.
const READER_TIMEOUT: Duration = Duration::from_secs(5);

/// The storage ports on one SQLite file. Clones share the connections.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(crate) inner: Arc<Inner>,
}

/// The fields are dropped in this order: the lock goes after the connections, and a temporary
/// folder after everything that lies in it.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: SqliteOptions,
    pub(crate) writer: Writer,
    pub(crate) readers: SqlitePool,
    pub(crate) letters: LetterGauge,
    pub(crate) unread: Unread,
    pub(crate) calls: CallCounts,
    pub(crate) lock: Mutex<Option<FileLock>>,
    pub(crate) _folder: Option<TempDir>,
}

impl SqliteStore {
    /// Locks and opens the file; [`Store::migrate`] then makes or updates its tables.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another process uses the file or it cannot be made there;
    /// otherwise as SQLite fails.
    pub async fn open(options: SqliteOptions) -> Result<Self, StoreError> {
        spawned(Self::open_in(options, None)).await
    }

    /// A migrated store in a temporary folder, which goes away with the last clone.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when there is no place for temporary folders; otherwise as
    /// [`SqliteStore::open`].
    pub async fn temporary() -> Result<Self, StoreError> {
        let folder = TempDir::with_prefix("attune-")
            .map_err(|error| StoreError::Conflict(format!("no temporary folder: {error}")))?;
        let options = SqliteOptions::new(folder.path().join("attune.db"));
        let store = spawned(Self::open_in(options, Some(folder))).await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn open_in(options: SqliteOptions, folder: Option<TempDir>) -> Result<Self, StoreError> {
        let lock = FileLock::take(&options)?;
        let readers = reading(&options, options.reader());
        // The writer comes first: it makes the file a database, which a reader cannot.
        let writer = Writer::open(options.writer(), readers.clone())
            .await
            .map_err(|error| cannot_open(&options, error))?;
        writer
            .transaction(|connection| Box::pin(former::end_leases(connection)))
            .await?;
        Ok(Self {
            inner: Arc::new(Inner {
                letters: LetterGauge::new(options.letters),
                unread: Unread::default(),
                calls: CallCounts::default(),
                options,
                writer,
                readers,
                lock: Mutex::new(Some(lock)),
                _folder: folder,
            }),
        })
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.inner.options.path
    }

    /// Runs `work` on the adapter in a task of its own; see [`spawned`].
    pub(crate) async fn task<T, E, W, F>(&self, work: W) -> Result<T, E>
    where
        W: FnOnce(Arc<Inner>) -> F,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Send + 'static,
        E: From<Failure> + From<StoreError>,
    {
        let (work, inner) = (work(Arc::clone(&self.inner)), Arc::clone(&self.inner));
        let measured = async move {
            let began = Instant::now();
            let done = work.await;
            inner.calls.note(began.elapsed(), done.is_ok());
            Ok(done)
        };
        Ok(spawned(measured).await??)
    }

    /// Runs one statement that commits by itself; how many rows it has changed.
    pub(crate) async fn execute(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<u64, StoreError> {
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .run(move |connection| {
                    Box::pin(async move { Ok(query.execute(connection).await?.rows_affected()) })
                })
                .await
        })
        .await
    }
}

impl Inner {
    /// A connection that reads.
    pub(crate) async fn reader(&self) -> Result<PoolConnection<Sqlite>, Failure> {
        Ok(self.readers.acquire().await?)
    }
}

/// The connections that only read.
pub(crate) fn reading(options: &SqliteOptions, connection: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(options.readers.max(1))
        .acquire_timeout(READER_TIMEOUT)
        // The connections are in this process: there is nothing that could have gone away.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(connection)
}

/// What is wrong with a file that cannot be opened now is said with its name.
pub(crate) fn cannot_open(options: &SqliteOptions, error: sqlx::Error) -> StoreError {
    match from_sqlx(error) {
        passing if passing.is_transient() => passing,
        StoreError::Statement(source) => StoreError::Conflict(format!(
            "cannot use `{}` as a database: {source}",
            options.path.display()
        )),
        other => other,
    }
}

/// Runs `work` in a task, so that a caller that is dropped leaves no statement half way: a
/// connection whose future is dropped in the middle can stay inside a transaction, and the next
/// write on it would be acknowledged and then lost.
pub(crate) async fn spawned<T, F>(work: F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
    T: Send + 'static,
{
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(ended) => Err(StoreError::Unavailable(Box::new(ended))),
        },
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.task(async |inner: Arc<Inner>| {
            inner
                .writer
                .run(|connection| Box::pin(migrate::run(connection)))
                .await
        })
        .await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.task(async |inner: Arc<Inner>| {
            // Only somebody's hand changes that.
            if let Some(problem) = inner.writer.lost_file() {
                return Err(StoreError::Conflict(problem).into());
            }
            migrate::check(&mut *inner.reader().await?).await
        })
        .await
    }

    async fn partition_count(&self) -> Result<Option<u16>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let count = sqlx::query_as::<_, (i64,)>(sql::CLUSTER_PARTITIONS)
                .fetch_optional(&mut *inner.reader().await?)
                .await?;
            Ok(count.map(|(count,)| unsigned(count)).transpose()?)
        })
        .await
    }

    async fn noted_bus(&self) -> Result<Option<String>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let noted = sqlx::query_as::<_, (Option<String>,)>(sql::CLUSTER_BUS)
                .fetch_optional(&mut *inner.reader().await?)
                .await?;
            Ok(noted.and_then(|(bus,)| bus))
        })
        .await
    }

    async fn agree_on_bus(&self, name: &str) -> Result<Option<String>, StoreError> {
        let name = name.to_owned();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .run(move |connection| {
                    Box::pin(async move {
                        let note = sqlx::query(sql::NOTE_BUS).bind(name);
                        note.execute(&mut *connection).await?;
                        let noted = sqlx::query_as::<_, (Option<String>,)>(sql::CLUSTER_BUS);
                        Ok(noted
                            .fetch_optional(connection)
                            .await?
                            .and_then(|(bus,)| bus))
                    })
                })
                .await
        })
        .await
    }

    async fn system_id(&self) -> Result<Option<uuid::Uuid>, StoreError> {
        Ok(None)
    }

    async fn restore_fence(&self, who: &Actor, again: u16) -> Result<(), StoreError> {
        let who = who.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(former::fence(connection, who, again)))
                .await
        })
        .await
    }

    async fn keep_audit_for(&self, _days: u32) -> Result<(), StoreError> {
        // The upkeep of this process alone removes anything, by its own settings.
        Ok(())
    }

    async fn close(&self) {
        let inner = Arc::clone(&self.inner);
        let closed = spawned(async move {
            // The writer goes last: the last connection that may write tidies the log away.
            inner.readers.close().await;
            let closed = inner.writer.close().await;
            let lock = inner
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(lock);
            closed.map_err(from_sqlx)
        });
        if let Err(error) = closed.await {
            tracing::warn!(%error, "the database did not close cleanly; nothing is lost");
        }
    }

    fn pools(&self) -> Vec<PoolFigures> {
        let readers = &self.inner.readers;
        let calls = &self.inner.calls;
        // One connection writes, or none once the store is closed.
        let writers = u32::from(!readers.is_closed());
        vec![calls.figures("file", readers.size() + writers, readers.num_idle())]
    }
}
