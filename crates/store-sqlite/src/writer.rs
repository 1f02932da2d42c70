//! The one connection that writes.

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Sqlite, Transaction};
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
    pub(crate) async fn open(options: SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let connection = SqliteConnection::connect_with(&options).await?;
        let file = FileIdentity::of(options.get_filename()).map_err(sqlx::Error::Io)?;
        Ok(Self {
            options,
            file,
            state: Mutex::new(State::Open(connection)),
        })
    }

    /// Runs `work`, which is one statement that commits by itself or finds a way of its own.
    pub(crate) async fn run<T, W>(&self, work: W) -> Result<T, Failure>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut state = self.state.lock().await;
        let connection = self.connection(&mut state).await?;
        let result = work(connection).await;
        if result.as_ref().is_err_and(Failure::breaks_connection) {
            *state = State::Broken;
        }
        result
    }

    /// Runs `work`, which begins and ends a transaction by itself, and has ended it when it finds that
    /// it is fenced off. After any other failure nobody knows whether one is open: the connection goes,
    /// and with it whatever is.
    pub(crate) async fn scripts<T, W>(&self, work: W) -> Result<T, Failure>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut state = self.state.lock().await;
        let connection = self.connection(&mut state).await?;
        let result = work(connection).await;
        if let Err(failure) = &result
            && !matches!(failure, Failure::Fenced(_))
        {
            *state = State::Broken;
        }
        result
    }

    /// Runs `work` in a transaction: all of it is written, or none of it when it fails.
    pub(crate) async fn transaction<T, W>(&self, work: W) -> Result<T, Failure>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut state = self.state.lock().await;
        let connection = self.connection(&mut state).await?;
        let result = match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(transaction) => finish(transaction, work).await,
            Err(error) => Err((error.into(), false)),
        };
        result.map_err(|(failure, broken)| {
            if broken || failure.breaks_connection() {
                *state = State::Broken;
            }
            failure
        })
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

    async fn connection<'s>(
        &self,
        state: &'s mut State,
    ) -> Result<&'s mut SqliteConnection, Failure> {
        if matches!(state, State::Broken) {
            self.file.check_database()?;
            *state = State::Open(SqliteConnection::connect_with(&self.options).await?);
            self.file.reopened();
        }
        self.file.check()?;
        match state {
            State::Open(connection) => Ok(connection),
            State::Broken | State::Closed => Err(closed().into()),
        }
    }
}

/// Runs `work` and ends the transaction; a failure says whether the connection is broken.
async fn finish<T, W>(
    mut transaction: Transaction<'_, Sqlite>,
    work: W,
) -> Result<T, (Failure, bool)>
where
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
{
    let failure = match work(&mut transaction).await {
        Ok(value) => match transaction.commit().await {
            Ok(()) => return Ok(value),
            // SQLite may have ended the transaction by itself (disk full, an I/O error) or not
            // (BUSY). Where it has, sqlx goes on to believe in it and begins none any more; so
            // the connection goes, and with it whatever is open.
            Err(error) => return Err((error.into(), true)),
        },
        Err(failure) => failure,
    };
    match transaction.rollback().await {
        Ok(()) => Err((failure, false)),
        Err(error) => {
            tracing::warn!(%error, "cannot roll back; the connection is opened again");
            Err((failure, true))
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
        let writer = Writer::open(options).await.unwrap();
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

    /// Whoever closes a file as the last one removes its write-ahead log.
    #[tokio::test]
    async fn a_connection_that_was_the_only_one_is_replaced_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("attune.db"));
        let writer = Writer::open(options.writer()).await.unwrap();
        execute(&writer, "CREATE TABLE kept (body TEXT)")
            .await
            .unwrap();
        for _ in 0..20 {
            execute(&writer, "INSERT INTO kept VALUES ('x')")
                .await
                .unwrap();
            let broken = writer.scripts(|connection| {
                Box::pin(async move {
                    sqlx::query("BEGIN IMMEDIATE")
                        .execute(&mut *connection)
                        .await?;
                    sqlx::query("INSERT INTO kept VALUES ('left open')")
                        .execute(connection)
                        .await?;
                    Err::<(), _>(Failure::Store(StoreError::Statement(
                        "it breaks off".into(),
                    )))
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
