//! The pools, and how a call runs on them.

use std::sync::Arc;
use std::time::Duration;

use attune_core::Bug;
use attune_store::{LetterGauge, StoreError, Unread};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};

use crate::failure::{Failure, of_connecting};
use crate::options::{PostgresOptions, address};
use crate::sessions::{Lately, Outdated, Purpose};

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The pools, and how many letters went through them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Db {
    pub(crate) commit: PgPool,
    pub(crate) key: PgPool,
    pub(crate) lease: PgPool,
    pub(crate) general: PgPool,
    pub(crate) letters: Arc<LetterGauge>,
    /// A session was not allowed to write: there may be others that began while the database took
    /// none. Each that is used and may not says so again, until the last of them is closed.
    read_only: Arc<Lately>,
    /// Somebody has changed a table beneath a prepared statement: there may be others that do not fit.
    outdated: Arc<Outdated>,
    /// Something of a batch was there already: while that goes on, no commit is tried without.
    pub(crate) duplicates: Arc<Lately>,
    pub(crate) unread: Arc<Unread>,
    migrate: PgConnectOptions,
    address: Arc<str>,
}

/// The server did not answer the first attempt to connect.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL at {address} did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
struct NoAnswer {
    address: Arc<str>,
}

/// The address of the server cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}; what has a meaning in a URL is written with % in a password, such as %23 for #")]
struct BadUrl(String);

impl From<sqlx::Error> for BadUrl {
    fn from(error: sqlx::Error) -> Self {
        // Without the driver's frame around it, which may be there twice.
        let said = error.to_string();
        Self(
            said.trim_start_matches("error with configuration: ")
                .to_owned(),
        )
    }
}

impl Db {
    /// Connects once, and prepares the pools.
    pub(crate) async fn connect(options: &PostgresOptions) -> Result<Self, StoreError> {
        let base = options
            .connect_options()
            .map_err(|source| StoreError::Statement(Box::new(BadUrl::from(source))))?;
        let address: Arc<str> = address(&base).into();
        probe(
            Purpose::General.connect_options(options, &base),
            Arc::clone(&address),
        )
        .await?;
        let (read_only, outdated) = (Arc::default(), Arc::default());
        let pool =
            |purpose: Purpose, size| purpose.pool(options, &base, size, &read_only, &outdated);
        Ok(Self {
            commit: pool(Purpose::Commit, options.commit_connections),
            key: pool(Purpose::Key, options.key_connections),
            // One for the owner's partitions, one for the worker's lease, where one process is both.
            lease: pool(Purpose::Lease, 2),
            general: pool(Purpose::General, options.general_connections),
            letters: Arc::new(LetterGauge::new(options.letters)),
            read_only: Arc::clone(&read_only),
            outdated: Arc::clone(&outdated),
            duplicates: Arc::default(),
            unread: Arc::default(),
            migrate: Purpose::Migrate.connect_options(options, &base),
            address,
        })
    }

    /// Runs one call in a task of its own, so that a caller that is dropped never drops a
    /// statement in flight, and makes the caller's error of what goes wrong.
    ///
    /// # Panics
    /// When the work panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if Bug::CancelDb.is_planted() {
            // The caller's own future: dropped with it, in the middle of whatever it does.
            let result = Box::pin(work).await;
            return result.map_err(|failure| failure.at(&self.address));
        }
        match tokio::spawn(work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failure)) => {
                if failure.is_read_only() {
                    self.read_only.note();
                }
                if failure.is_outdated_plan() {
                    self.outdated.note();
                }
                Err(failure.at(&self.address))
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(error) => Err(StoreError::Unavailable(Box::new(error))),
        }
    }

    /// How to connect for changing the schema.
    pub(crate) fn migration_options(&self) -> PgConnectOptions {
        self.migrate.clone()
    }

    /// Finishes what is under way and closes every connection.
    pub(crate) async fn close(&self) {
        for pool in [&self.commit, &self.key, &self.lease, &self.general] {
            pool.close().await;
        }
    }
}

/// Connects once: a pool says only that it timed out, and nothing about the reason.
async fn probe(options: PgConnectOptions, address: Arc<str>) -> Result<(), StoreError> {
    let attempt = tokio::spawn(async move {
        let connection = PgConnection::connect_with(&options).await?;
        connection.close().await
    });
    // The attempt goes on by itself when nobody waits any more; only the waiting is cut short.
    let answer = tokio::time::timeout(CONNECT_TIMEOUT, attempt); // waiting only
    match answer.await {
        Ok(Ok(result)) => result.map_err(|error| of_connecting(error, &address)),
        Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Ok(Err(error)) => Err(StoreError::Unavailable(Box::new(error))),
        Err(_) => Err(StoreError::Unavailable(Box::new(NoAnswer { address }))),
    }
}
