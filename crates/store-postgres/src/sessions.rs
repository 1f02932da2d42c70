//! What each kind of connection asks of its session.
//!
//! The settings travel in the start-up message, so they cost no round trip. A pooler between
//! this program and the server must pass them on (PgBouncer: session mode).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use attune_core::{Bug, millis};
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::options::PostgresOptions;

/// How long a statement by key may take. It takes milliseconds; what takes longer waits for a
/// lock or a disk, and its caller repeats it.
const KEY_STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A renewal that takes longer than this is no use any more.
const LEASE_STATEMENT_TIMEOUT: Duration = Duration::from_secs(4);

/// How much longer than a server may work on it a call is waited for.
const SPARE: Duration = Duration::from_secs(5);

/// How long the question whether a connection is sound may go without an answer.
const CHECK_PATIENCE: Duration = Duration::from_secs(2);

/// How long a statement waits for a lock. Whoever waits for a table keeps all others out who come after, so a
/// migration waits no longer than they can bear, and tries again.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection that has been idle for longer is asked whether it is sound before it is used.
const CHECK_AFTER_IDLE: Duration = Duration::from_secs(2);

/// How long something that happened is recent.
const RECENT: Duration = Duration::from_secs(60);

/// Whether something has happened lately.
#[derive(Debug)]
pub(crate) struct Lately {
    since: Instant,
    /// Until so many milliseconds after that.
    until: AtomicU64,
}

impl Default for Lately {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            until: AtomicU64::new(0),
        }
    }
}

impl Lately {
    /// It has happened.
    pub(crate) fn note(&self) {
        let until = millis(self.since.elapsed() + RECENT);
        self.until.store(until, Ordering::Relaxed);
    }

    /// Whether it has happened less than a minute ago.
    pub(crate) fn is_recent(&self) -> bool {
        millis(self.since.elapsed()) < self.until.load(Ordering::Relaxed)
    }
}

/// When a statement turned out not to fit the tables any more: it was prepared before somebody changed
/// them, and fails for as long as its connection lives.
#[derive(Debug)]
pub(crate) struct Outdated {
    since: Instant,
    /// So many milliseconds after that, the last time; 0 when never.
    at: AtomicU64,
}

impl Default for Outdated {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            at: AtomicU64::new(0),
        }
    }
}

impl Outdated {
    /// It has happened.
    pub(crate) fn note(&self) {
        let at = millis(self.since.elapsed()).max(1);
        self.at.store(at, Ordering::Relaxed);
    }

    /// Whether a connection of this age may have such statements.
    fn concerns(&self, age: Duration) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        let ago = millis(self.since.elapsed()).saturating_sub(at);
        at > 0 && millis(age) >= ago
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The owner's commits.
    Commit,
    /// Look-ups, loads by id.
    Key,
    /// Leases of partitions and workers: they must not wait behind anything else.
    Lease,
    /// Everything else.
    General,
    /// Changing the schema.
    Migrate,
}

impl Purpose {
    /// How many there are.
    pub(crate) const COUNT: usize = 5;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Key => "key",
            Self::Lease => "lease",
            Self::General => "general",
            Self::Migrate => "migrate",
        }
    }

    fn statement_timeout(self, options: &PostgresOptions) -> Duration {
        match self {
            Self::Commit | Self::Key => KEY_STATEMENT_TIMEOUT,
            Self::Lease => LEASE_STATEMENT_TIMEOUT,
            Self::General => options.statement_timeout,
            Self::Migrate => options.migrate_statement_timeout,
        }
    }

    /// How long a call may be without an answer: as long as it waits for a connection, and the server may work on
    /// its longest statement, and a moment more. A live server has answered by then, or ended the statement.
    pub(crate) fn patience(self, options: &PostgresOptions) -> Duration {
        let statement = self.statement_timeout(options);
        match self {
            _ if Bug::WaitsForEver.is_planted() => Duration::MAX,
            // A renewal that comes later is late for a short lease.
            Self::Lease => statement * 2,
            Self::Commit | Self::Key | Self::General => options.acquire_timeout + statement + SPARE,
            Self::Migrate => Duration::MAX,
        }
    }

    /// The session's settings beside the timeouts.
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // The active executions come and go, so what the planner knows of them is always out
            // of date, and a plan that suits an empty table reads all of a full one. The
            // statements are written so that there is one right plan whatever the numbers (see
            // commit.sql): the index for rows, a hash join for arrays. It is made once and kept.
            Self::Commit | Self::Key => &[
                ("plan_cache_mode", "force_generic_plan"),
                ("enable_seqscan", "off"),
                ("enable_bitmapscan", "off"),
                ("enable_nestloop", "off"),
                ("enable_mergejoin", "off"),
            ],
            // A filter that is not set must cost nothing: plan with the values.
            Self::General => &[("plan_cache_mode", "force_custom_plan")],
            Self::Lease | Self::Migrate => &[],
        }
    }

    /// How to connect for this purpose.
    pub(crate) fn connect_options(
        self,
        options: &PostgresOptions,
        base: &PgConnectOptions,
    ) -> PgConnectOptions {
        let millis = |duration: Duration| duration.as_millis().to_string();
        let bounds = [
            ("statement_timeout", millis(self.statement_timeout(options))),
            ("lock_timeout", millis(LOCK_TIMEOUT)),
            // A stopped or cut-off client must not keep its locks: 10 s inside a transaction,
            // 15 s for the network, and a look whether it is still there every 5 s meanwhile.
            ("idle_in_transaction_session_timeout", "10000".to_owned()),
            // Connections that wait to be used are kept, whatever the database says of others.
            ("idle_session_timeout", "0".to_owned()),
            ("tcp_user_timeout", "15000".to_owned()),
            ("client_connection_check_interval", "5000".to_owned()),
            // Compiling a plan takes longer than any statement here should.
            ("jit", "off".to_owned()),
        ];
        base.clone()
            .application_name(&format!("{} {}", options.application_name, self.name()))
            .options(bounds)
            .options(self.settings().iter().copied())
    }

    /// A pool whose connections are opened when they are needed.
    ///
    /// The usual check before each use is off, because it is a round trip: it would double the
    /// cost of a look-up. What it protects from cannot happen here on the way it usually happens
    /// (a dropped caller leaves a transaction open), since every call runs in a task of its own.
    /// A connection that lay idle for a while is checked all the same, when a round trip costs
    /// nothing: whether it is still there, whether it is outside of any transaction, and whether
    /// it may write. While one that may not was `read_only` lately, each is asked before each use, and
    /// one that may not is closed. So is one whose statements may be `outdated`.
    pub(crate) fn pool(
        self,
        options: &PostgresOptions,
        base: &PgConnectOptions,
        size: u32,
        read_only: &Arc<Lately>,
        outdated: &Arc<Outdated>,
    ) -> PgPool {
        let (read_only, outdated) = (Arc::clone(read_only), Arc::clone(outdated));
        PgPoolOptions::new()
            .max_connections(size.max(1))
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                let is_suspect = read_only.is_recent();
                let is_outdated = outdated.concerns(meta.age);
                Box::pin(async move {
                    if is_outdated {
                        return Ok(false);
                    }
                    // One that was just made is as good as any: while the database takes no
                    // writes, not every call makes a new one.
                    let is_new = meta.age < CHECK_AFTER_IDLE;
                    if meta.idle_for < CHECK_AFTER_IDLE && (!is_suspect || is_new) {
                        return Ok(true);
                    }
                    // As a simple query, which is one message: between the messages of a prepared one
                    // the two clocks that it compares go on.
                    let asked = sqlx::raw_sql(crate::sql::SESSION_IS_SOUND).fetch_one(connection);
                    let asked = tokio::time::timeout(CHECK_PATIENCE, asked); // or its connection is closed
                    match asked.await {
                        Ok(row) => row?.try_get(0),
                        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                    }
                })
            })
            .connect_lazy_with(self.connect_options(options, base))
    }
}
