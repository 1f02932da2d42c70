//! The one connection that writes.

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Sqlite, Transaction};
use tokio::sync::Mutex;

use crate::error::{Failure, closed};

/// Gives the connection to one caller after another, in the order in which they ask.
///
/// Whoever calls runs in a task of its own that nobody cancels (see
/// [`spawned`](crate::store::spawned)), so the connection is always given back between two
/// transactions.
#[derive(Debug)]
pub(crate) struct Writer {
    options: SqliteConnectOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(SqliteConnection),
    /// Its thread has died; the next caller opens another one.
    Broken,
    Closed,
}

impl Writer {
    pub(crate) async fn open(options: SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let connection = SqliteConnection::connect_with(&options).await?;
        Ok(Self {
            options,
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
            *state = State::Open(SqliteConnection::connect_with(&self.options).await?);
        }
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
            // Dropping it has queued a ROLLBACK before whatever the connection does next. A
            // commit that failed with BUSY would otherwise stay open.
            Err(error) => return Err((error.into(), false)),
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
