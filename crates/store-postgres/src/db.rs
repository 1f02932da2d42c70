//! The pools, and how a call runs on them.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use attune_core::Bug;
use attune_store::{CallCounts, LetterGauge, PoolFigures, StoreError, Unread};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::failure::{Failure, of_connecting};
use crate::options::{PostgresOptions, address};
use crate::sessions::{Lately, Outdated, Purpose};

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The pools, and how many letters went through them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Db {
    pools: Arc<RwLock<Pools>>,
    pub(crate) letters: Arc<LetterGauge>,
    /// A session was not allowed to write: there may be others that began while the database took
    /// none. Each that is used and may not says so again, until the last of them is closed.
    read_only: Arc<Lately>,
    /// Somebody has changed a table beneath a prepared statement: there may be others that do not fit.
    outdated: Arc<Outdated>,
    /// Something of a batch was there already: while that goes on, no commit is tried without.
    pub(crate) duplicates: Arc<Lately>,
    pub(crate) unread: Arc<Unread>,
    /// By purpose.
    calls: Arc<[CallCounts; Purpose::COUNT]>,
    /// How to connect.
    options: Arc<(PostgresOptions, PgConnectOptions)>,
    address: Arc<str>,
}

/// A pool for each purpose. They are left together when a call got no answer: what is in use then may never
/// come back.
#[derive(Debug, Clone)]
struct Pools {
    commit: PgPool,
    key: PgPool,
    lease: PgPool,
    general: PgPool,
    /// How often they were left before.
    generation: u64,
}

/// The server has not answered a call for longer than it may work on it.
#[derive(Debug, thiserror::Error)]
#[error(
    "PostgreSQL at {address} has not answered for {} s; its connections are left and new ones made",
    after.as_secs()
)]
struct Silent {
    address: Arc<str>,
    after: Duration,
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
        let pools = Pools::new(options, &base, (&read_only, &outdated), 0);
        Ok(Self {
            pools: Arc::new(RwLock::new(pools)),
            letters: Arc::new(LetterGauge::new(options.letters)),
            read_only: Arc::clone(&read_only),
            outdated: Arc::clone(&outdated),
            duplicates: Arc::default(),
            unread: Arc::default(),
            calls: Arc::default(),
            options: Arc::new((options.clone(), base)),
            address,
        })
    }

    fn of_pools<T>(&self, of: impl FnOnce(&Pools) -> T) -> T {
        of(&self.pools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// For commits.
    pub(crate) fn commit(&self) -> PgPool {
        self.of_pools(|pools| pools.commit.clone())
    }

    /// For reads by key.
    pub(crate) fn key(&self) -> PgPool {
        self.of_pools(|pools| pools.key.clone())
    }

    /// For leases.
    pub(crate) fn lease(&self) -> PgPool {
        self.of_pools(|pools| pools.lease.clone())
    }

    /// For everything else.
    pub(crate) fn general(&self) -> PgPool {
        self.of_pools(|pools| pools.general.clone())
    }

    /// Takes new pools in place of those of this generation. A connection that went silent without an end
    /// (a firewall that forgets it, a host that is gone) says so only after a quarter of an hour.
    fn leave(&self, generation: u64) {
        let left = {
            let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
            if pools.generation != generation {
                return;
            }
            let noted = (&self.read_only, &self.outdated);
            let (options, base) = &*self.options;
            let new = Pools::new(options, base, noted, generation + 1);
            std::mem::replace(&mut *pools, new)
        };
        tracing::warn!(
            server.address = %self.address,
            "PostgreSQL has not answered for longer than it may work on a call; its connections are left and \
             new ones made"
        );
        // What is in use ends by itself, whenever that is; nobody waits for it.
        tokio::spawn(async move { left.close().await });
    }

    /// Runs one call in a task of its own, so that a caller that is dropped never drops a
    /// statement in flight, and makes the caller's error of what goes wrong. A call without an answer
    /// for longer than the server may work on it has failed, and nobody knows what came of it; its
    /// statement is never dropped, and goes on.
    ///
    /// # Panics
    /// When the work panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        purpose: Purpose,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if Bug::CancelDb.is_planted() {
            // The caller's own future: dropped with it, in the middle of whatever it does.
            let result = Box::pin(work).await;
            return result.map_err(|failure| failure.at(&self.address));
        }
        let began = Instant::now();
        let (db, patience) = (self.clone(), purpose.patience(&self.options.0));
        let generation = self.of_pools(|pools| pools.generation);
        let task = tokio::spawn(async move {
            let mut work = Box::pin(work);
            let answer = tokio::time::timeout(patience, work.as_mut()).await; // waiting only
            if answer.is_err() {
                db.leave(generation);
                tokio::spawn(work);
            }
            let succeeded = matches!(answer, Ok(Ok(_)));
            db.calls[purpose as usize].note(began.elapsed(), succeeded);
            answer.ok()
        });
        match task.await {
            Ok(None) => Err(StoreError::Unavailable(Box::new(Silent {
                address: Arc::clone(&self.address),
                after: patience,
            }))),
            Ok(Some(Ok(done))) => Ok(done),
            Ok(Some(Err(failure))) => {
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

    /// What the connections do, by purpose.
    pub(crate) fn figures(&self) -> Vec<PoolFigures> {
        let pools = self.of_pools(Pools::clone);
        let pools = [
            (Purpose::Commit, pools.commit),
            (Purpose::Key, pools.key),
            (Purpose::Lease, pools.lease),
            (Purpose::General, pools.general),
        ];
        let figures = pools.into_iter().map(|(purpose, pool)| {
            let calls = &self.calls[purpose as usize];
            calls.figures(purpose.name(), pool.size(), pool.num_idle())
        });
        figures.collect()
    }

    /// How often a migration that meets a lock is begun again.
    pub(crate) fn migrate_tries(&self) -> u32 {
        self.options.0.migrate_tries
    }

    /// How to connect for changing the schema.
    pub(crate) fn migration_options(&self) -> PgConnectOptions {
        let (options, base) = &*self.options;
        // A migration may take its time, and its text is pages.
        Purpose::Migrate
            .connect_options(options, base)
            .disable_statement_logging()
    }

    /// Finishes what is under way and closes every connection.
    pub(crate) async fn close(&self) {
        self.of_pools(Pools::clone).close().await;
    }
}

impl Pools {
    fn new(
        options: &PostgresOptions,
        base: &PgConnectOptions,
        (read_only, outdated): (&Arc<Lately>, &Arc<Outdated>),
        generation: u64,
    ) -> Self {
        let pool = |purpose: Purpose, size| purpose.pool(options, base, size, read_only, outdated);
        Self {
            commit: pool(Purpose::Commit, options.commit_connections),
            key: pool(Purpose::Key, options.key_connections),
            // One for the owner's partitions, one for the worker's lease, where one process is both.
            lease: pool(Purpose::Lease, 2),
            general: pool(Purpose::General, options.general_connections),
            generation,
        }
    }

    /// Finishes what is under way and closes every connection.
    async fn close(&self) {
        let [commit, key, lease, general] =
            [&self.commit, &self.key, &self.lease, &self.general].map(PgPool::close);
        tokio::join!(commit, key, lease, general);
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
