//! The one connection that writes.

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool};
use sqlx::{Connection as _, Executor as _};
use tokio::sync::Mutex;

use crate::error::{Failure, closed};
use crate::identity::FileIdentity;

/// Gives the connection to one caller after another, in the order in which they ask.
///
/// Whoever calls runs in a task of its own that nobody cancels (see
/// [`spawned`](crate::store::spawned)), so the connection is always given back between two
/// transactions.
#[derive(Debug)]
pub(crate) struct Writer {
    options: SqliteConnectOptions,
    /// The file that was opened; nothing is written into another one.
    file: FileIdentity,
    /// The connections that only read: while one of them is open, the log stays.
    readers: SqlitePool,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(SqliteConnection),
    /// Its thread has died, or nobody knows whether a transaction is open in it; the next caller
    /// opens another one.
    Broken,
    Closed,
}

impl Writer {
    pub(crate) async fn open(
        options: SqliteConnectOptions,
        readers: SqlitePool,
    ) -> Result<Self, sqlx::Error> {
        let connection = SqliteConnection::connect_with(&options).await?;
        let file = FileIdentity::of(options.get_filename()).map_err(sqlx::Error::Io)?;
        Ok(Self {
            options,
            file,
            readers,
            state: Mutex::new(State::Open(connection)),
        })
    }

    /// Runs `work`, which is one statement that commits by itself, or begins and ends a transaction; when it
    /// fails, whatever is open is rolled back.
    pub(crate) async fn run<T, W>(&self, work: W) -> Result<T, Failure>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut state = self.state.lock().await;
        // Out of the state meanwhile: when `work` panics the connection goes, and with it what is open,
        // or the next statement would be written into that transaction and lost with it.
        let mut connection = self.take(&mut state).await?;
        let result = work(&mut connection).await;
        let is_sound = match &result {
            Ok(_) => true,
            Err(failure) => !failure.breaks_connection() && has_ended(&mut connection).await,
        };
        if is_sound {
            *state = State::Open(connection);
        }
        result
    }

    /// Runs `work` in a transaction: all of it is written, or none of it when it fails.
    pub(crate) async fn transaction<T, W>(&self, work: W) -> Result<T, Failure>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>
            + Send
            + 'static,
    {
        self.run(move |connection| Box::pin(in_transaction(connection, work)))
            .await
    }

    /// Whether the file is not the one any more that was opened, in words.
    pub(crate) fn lost_file(&self) -> Option<String> {
        self.file.problem()
    }

    /// Closes the connection; later calls are refused.
    pub(crate) async fn close(&self) -> Result<(), sqlx::Error> {
        let mut state = self.state.lock().await;
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(connection) => connection.close().await,
            State::Broken | State::Closed => Ok(()),
        }
    }

    /// Takes the connection out of the state, which is `Broken` until it is put back.
    async fn take(&self, state: &mut State) -> Result<SqliteConnection, Failure> {
        if matches!(state, State::Broken) {
            // Whoever closes the file as the last one writes its log into it and removes it. Where
            // somebody reads, it must be there: a new one beside it would hide what it has.
            if self.readers.size() > 0 {
                self.file.check()?;
            } else {
                self.file.check_database()?;
            }
            *state = State::Open(SqliteConnection::connect_with(&self.options).await?);
            self.file.reopened();
        }
        self.file.check()?;
        match std::mem::replace(state, State::Broken) {
            State::Open(connection) => Ok(connection),
            other => {
                *state = other;
                Err(closed().into())
            }
        }
    }
}

async fn in_transaction<T, W>(connection: &mut SqliteConnection, work: W) -> Result<T, Failure>
where
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
{
    connection.execute("BEGIN IMMEDIATE").await?;
    let value = work(connection).await?;
    connection.execute("COMMIT").await?;
    Ok(value)
}

/// Ends whatever transaction is open in a connection; false when nobody knows whether one still is.
///
/// The connection is kept, not replaced: on a full disk each refusal would open the file anew, and
/// between two of them nothing would hold its log.
async fn has_ended(connection: &mut SqliteConnection) -> bool {
    match connection.execute("ROLLBACK").await {
        Ok(_) => true,
        // SQLite had ended it by itself (disk full, an I/O error), or it never began.
        Err(sqlx::Error::Database(error)) => error.message().contains("no transaction is active"),
        Err(error) => {
            tracing::warn!(%error, "cannot roll back; the connection is opened again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use attune_store::StoreError;

    use super::*;
    use crate::options::SqliteOptions;

    type Work = for<'c> fn(&'c mut SqliteConnection) -> BoxFuture<'c, Result<(), Failure>>;

    async fn writer(folder: &std::path::Path) -> Writer {
        let options = SqliteConnectOptions::new()
            .filename(folder.join("attune.db"))
            .create_if_missing(true);
        let readers = SqlitePool::connect_lazy_with(options.clone());
        let writer = Writer::open(options, readers).await.unwrap();
        execute(&writer, "CREATE TABLE kept (body TEXT)")
            .await
            .unwrap();
        writer
    }

    async fn execute(writer: &Writer, statement: &'static str) -> Result<(), StoreError> {
        let done = writer.transaction(move |connection| {
            Box::pin(async move {
                sqlx::query(statement).execute(connection).await?;
                Ok(())
            })
        });
        done.await.map_err(StoreError::from)
    }

    /// As on a full disk, SQLite ends the transaction by itself: at a statement, or at the commit.
    #[tokio::test]
    async fn a_transaction_that_sqlite_has_ended_is_the_only_one_that_fails() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(folder.path()).await;
        let unseen: Work = |connection| {
            Box::pin(async move {
                sqlx::query("ROLLBACK").execute(connection).await?;
                Ok(())
            })
        };
        let seen: Work = |connection| {
            Box::pin(async move {
                sqlx::query("ROLLBACK").execute(&mut *connection).await?;
                sqlx::query("COMMIT").execute(connection).await?;
                Ok(())
            })
        };
        for work in [unseen, seen] {
            writer.transaction(work).await.unwrap_err();
            for _ in 0..2 {
                execute(&writer, "INSERT INTO kept VALUES ('x')")
                    .await
                    .unwrap();
            }
        }
        writer.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_full_file_refuses_and_goes_on_when_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(folder.path()).await;
        let limit = |pages: u32| {
            writer.run(move |connection| {
                Box::pin(async move {
                    let limit = format!("PRAGMA max_page_count = {pages}");
                    sqlx::query(sqlx::AssertSqlSafe(limit))
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
        };
        let large = "INSERT INTO kept VALUES (printf('%.*c', 100000, 'x'))";
        for _ in 0..3 {
            // Each time, because a connection that is opened again has no such limit.
            limit(8).await.unwrap();
            let full = execute(&writer, large).await;
            assert!(matches!(full, Err(StoreError::Refused(_))), "{full:?}");
        }
        limit(1_000).await.unwrap();
        execute(&writer, large).await.unwrap();
        writer.close().await.unwrap();
    }

    /// What a panic leaves open must take nothing with it that is written afterwards.
    #[tokio::test]
    async fn what_panics_leaves_no_transaction_open() {
        let folder = tempfile::tempdir().unwrap();
        let writer = std::sync::Arc::new(writer(folder.path()).await);
        let panicking = std::sync::Arc::clone(&writer);
        let fault = tokio::spawn(async move {
            let work: Work = |connection| {
                Box::pin(async move {
                    connection
                        .execute("INSERT INTO kept VALUES ('open')")
                        .await?;
                    panic!("it panics as it was told to")
                })
            };
            panicking.transaction(work).await
        });
        assert!(fault.await.unwrap_err().is_panic());
        let insert: Work = |connection| {
            Box::pin(async move {
                connection.execute("INSERT INTO kept VALUES ('x')").await?;
                Ok(())
            })
        };
        writer.run(insert).await.map_err(StoreError::from).unwrap();
        let kept = SqliteConnectOptions::new().filename(folder.path().join("attune.db"));
        let mut other = SqliteConnection::connect_with(&kept).await.unwrap();
        let kept: Vec<String> = sqlx::query_scalar("SELECT body FROM kept")
            .fetch_all(&mut other)
            .await
            .unwrap();
        assert_eq!(kept, ["x"]);
        writer.close().await.unwrap();
    }

    /// What was committed lies in the log; a new log beside it would hide it for good.
    #[tokio::test]
    async fn no_new_log_is_made_while_the_old_one_is_read_or_written() {
        for breaks in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let options = SqliteOptions::new(folder.path().join("attune.db"));
            let readers = SqlitePool::connect_lazy_with(options.reader());
            let writer = Writer::open(options.writer(), readers.clone())
                .await
                .unwrap();
            execute(&writer, "CREATE TABLE kept (body TEXT)")
                .await
                .unwrap();
            execute(&writer, "INSERT INTO kept VALUES ('x')")
                .await
                .unwrap();
            let reader = readers.acquire().await.unwrap();
            let failed = writer.run(move |connection| {
                Box::pin(async move {
                    let few = "PRAGMA max_page_count = 4; BEGIN IMMEDIATE";
                    connection.execute(few).await?;
                    let large = "INSERT INTO kept VALUES (printf('%.*c', 100000, 'x'))";
                    let full = connection.execute(large).await.unwrap_err();
                    Err::<(), _>(match breaks {
                        true => sqlx::Error::WorkerCrashed.into(),
                        false => full.into(),
                    })
                })
            });
            failed.await.unwrap_err();
            std::fs::remove_file(folder.path().join("attune.db-wal")).unwrap();
            for _ in 0..3 {
                let lost = execute(&writer, "INSERT INTO kept VALUES ('y')").await;
                let words = format!("{:?}", lost.unwrap_err());
                assert!(words.contains("write-ahead log"), "{words}");
            }
            drop(reader);
            writer.close().await.unwrap();
        }
    }

    /// Whoever closes a file as the last one removes its write-ahead log.
    #[tokio::test]
    async fn a_connection_that_was_the_only_one_is_replaced_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("attune.db"));
        let readers = SqlitePool::connect_lazy_with(options.reader());
        let writer = Writer::open(options.writer(), readers.clone())
            .await
            .unwrap();
        execute(&writer, "CREATE TABLE kept (body TEXT)")
            .await
            .unwrap();
        for _ in 0..20 {
            execute(&writer, "INSERT INTO kept VALUES ('x')")
                .await
                .unwrap();
            let broken = writer.run(|connection| {
                Box::pin(async move {
                    sqlx::query("BEGIN IMMEDIATE")
                        .execute(&mut *connection)
                        .await?;
                    sqlx::query("INSERT INTO kept VALUES ('left open')")
                        .execute(connection)
                        .await?;
                    Err::<(), _>(Failure::Sql(sqlx::Error::WorkerCrashed))
                })
            });
            broken.await.unwrap_err();
            // The thread of the connection that went ends by itself.
            let log = folder.path().join("attune.db-wal");
            let begun = Instant::now();
            while log.exists() {
                assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
                tokio::time::sleep(Duration::from_millis(1)).await; // poll
            }
        }
        execute(&writer, "INSERT INTO kept VALUES ('x')")
            .await
            .unwrap();
        let open = writer.run(|connection| {
            Box::pin(async move {
                let left = "SELECT count(*) FROM kept WHERE body <> 'x'";
                let left: i64 = sqlx::query_scalar(left).fetch_one(connection).await?;
                Ok(left)
            })
        });
        assert_eq!(open.await.map_err(StoreError::from).unwrap(), 0);
        writer.close().await.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_written_into_a_file_that_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(folder.path()).await;
        let path = folder.path().join("attune.db");
        let moved = folder.path().join("moved.db");
        std::fs::rename(&path, &moved).unwrap();
        let lost = execute(&writer, "INSERT INTO kept VALUES ('x')").await;
        assert!(matches!(lost, Err(StoreError::Refused(_))), "{lost:?}");
        assert!(!path.exists(), "no new file is made");
        std::fs::rename(&moved, &path).unwrap();
        execute(&writer, "INSERT INTO kept VALUES ('x')")
            .await
            .unwrap();
        writer.close().await.unwrap();
    }
}
