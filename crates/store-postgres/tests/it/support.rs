//! A database for each test, and shorthands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_core::{
    Action, ActionSpec, Attempt, Builtin, Epoch, ExecutionId, Outcome, OwnerId, PartitionId,
    RequestId, Run, Seq, Status, Submission, WorkerId,
};
use attune_store::{
    ActionStore as _, Batch, End, NewExecution, PartitionStore as _, Store as _, Update,
    WorkerLease, WorkerStore as _,
};
use attune_store_postgres::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use uuid::Uuid;

/// The server's address.
pub(crate) fn server_url() -> String {
    std::env::var("ATTUNE_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "ATTUNE_TEST_POSTGRES_URL is not set; start the services with `scripts/services up` \
             and run `eval \"$(scripts/services env)\"`"
        )
    })
}

/// A migrated database of one test.
#[derive(Clone)]
pub(crate) struct TestDb {
    /// The store under test.
    pub(crate) store: PostgresStore,
    /// Where the database is, for a user who may do nothing but own it.
    pub(crate) url: String,
    /// Connections to it of a superuser.
    pub(crate) sql: PgPool,
}

/// Owns the databases of the tests, and is its own password. Managed servers give nobody more.
const PLAIN_USER: &str = "attune_test_plain";

/// Several tests may do so at once.
const MAKE_PLAIN_USER: &str = "
DO $$
BEGIN
    CREATE ROLE attune_test_plain LOGIN PASSWORD 'attune_test_plain';
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END;
$$";

/// Runs a test on a database of its own, which is dropped afterwards.
pub(crate) async fn on_fresh_db<F>(test: impl FnOnce(TestDb) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let server = server_url();
    let name = format!("attune_test_{}", Uuid::now_v7().simple());
    let mut admin = PgConnection::connect(&server).await.unwrap();
    sqlx::raw_sql(MAKE_PLAIN_USER)
        .execute(&mut admin)
        .await
        .unwrap();
    // template0, because nobody can be connected to it; a copy needs that.
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 OWNER {PLAIN_USER}");
    sqlx::query(AssertSqlSafe(create))
        .execute(&mut admin)
        .await
        .unwrap();

    let (address, query) = server.split_once('?').unwrap_or((&server, ""));
    let (address, _) = address.rsplit_once('/').unwrap();
    let of_admin = format!("{address}/{name}?{query}");
    let (scheme, place) = address.split_once("://").unwrap();
    let host = place.rsplit_once('@').map_or(place, |(_, host)| host);
    let url = format!("{scheme}://{PLAIN_USER}:{PLAIN_USER}@{host}/{name}?{query}");
    let store = PostgresStore::connect(PostgresOptions::new(&url))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let sql = PgPool::connect(&of_admin).await.unwrap();
    let db = TestDb { store, url, sql };
    // In a task, so that the database is dropped although the test panics.
    let result = tokio::spawn(test(db.clone())).await;
    db.store.close().await;
    db.sql.close().await;
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    if let Err(error) = sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await {
        eprintln!("database {name} is left behind: {error}");
    }
    if let Err(error) = result {
        std::panic::resume_unwind(error.into_panic());
    }
}

impl TestDb {
    /// The store as it is while its server's clock is ahead, or behind.
    pub(crate) async fn with_clock(&self, ahead: &str) -> PostgresStore {
        // What a session finds in `shifted` comes before what every database has.
        let shift = format!(
            "DROP SCHEMA IF EXISTS shifted CASCADE;
             CREATE SCHEMA shifted;
             CREATE FUNCTION shifted.now() RETURNS timestamptz LANGUAGE sql STABLE
                 AS $$ SELECT pg_catalog.now() + interval '{ahead}' $$;
             CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS $$ SELECT pg_catalog.clock_timestamp() + interval '{ahead}' $$;
             GRANT USAGE ON SCHEMA shifted TO {PLAIN_USER}"
        );
        sqlx::raw_sql(AssertSqlSafe(shift))
            .execute(&self.sql)
            .await
            .unwrap();
        let separator = if self.url.ends_with('?') { "" } else { "&" };
        let url = format!(
            "{}{separator}options=-csearch_path%3Dshifted%2Cpg_catalog",
            self.url
        );
        PostgresStore::connect(PostgresOptions::new(&url))
            .await
            .unwrap()
    }

    /// An owner of all partitions of a cluster of four, with one action.
    pub(crate) async fn owner(&self) -> Owner {
        let count = 4;
        self.store.ensure_partitions(count).await.unwrap();
        let id = OwnerId::fresh();
        let all: Vec<PartitionId> = (0..count).map(PartitionId).collect();
        let fences = self
            .store
            .acquire(id, "test", &all, Duration::from_secs(600))
            .await
            .unwrap();
        let action = self.action("test.action").await;
        Owner {
            store: self.store.clone(),
            id,
            fences,
            action,
            next: 0,
        }
    }

    /// A no-op action.
    pub(crate) async fn action(&self, action_ref: &str) -> Action {
        let spec = ActionSpec::new(action_ref.parse().unwrap(), Run::Builtin(Builtin::Noop));
        let applied = self.store.apply_action(&spec, 4, "test").await.unwrap();
        applied.action
    }

    /// A worker with a long lease.
    pub(crate) async fn worker(&self) -> WorkerId {
        let lease = WorkerLease {
            worker: WorkerId::fresh(),
            name: "test".to_owned(),
            pool: "default".to_owned(),
            slots: 10,
            draining: false,
            ttl: Duration::from_secs(600),
            broker_user: None,
            principal: None,
        };
        self.store.renew_worker(&lease).await.unwrap();
        lease.worker
    }

    /// One number.
    pub(crate) async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(&self.sql)
            .await
            .unwrap()
    }
}

/// Holds every partition and makes executions of one action.
pub(crate) struct Owner {
    pub(crate) store: PostgresStore,
    pub(crate) id: OwnerId,
    pub(crate) fences: Vec<(PartitionId, Epoch)>,
    pub(crate) action: Action,
    next: u32,
}

impl Owner {
    pub(crate) fn batch(&self) -> Batch {
        Batch {
            fences: self.fences.clone(),
            ..Batch::new(self.id)
        }
    }

    /// An execution that waits.
    pub(crate) fn queued(&mut self) -> NewExecution {
        let submission = Submission::new(self.action.spec.action_ref.as_str());
        self.next += 1;
        NewExecution {
            id: ExecutionId::new(self.action.partition, Seq::new(Epoch(1), self.next)),
            action_id: self.action.id,
            request_id: RequestId::fresh(),
            digest: 7,
            submission: Arc::new(submission),
            status: Status::Queued,
            attempt: Attempt(0),
            grant_no: None,
            worker: None,
            demand: None,
            asker: None,
            cancel_requested: false,
        }
    }

    /// Inserts `count` executions that wait.
    pub(crate) async fn insert(&mut self, count: usize) -> Vec<ExecutionId> {
        let inserts: Vec<_> = (0..count).map(|_| self.queued()).collect();
        let ids = inserts.iter().map(|new| new.id).collect();
        let batch = Batch {
            inserts,
            ..self.batch()
        };
        self.store.commit(&batch).await.unwrap();
        ids
    }

    /// Grants them a slot, to `worker`.
    pub(crate) async fn grant_to(&self, worker: WorkerId, ids: &[ExecutionId]) {
        let to_it = |id: &ExecutionId| Update {
            worker: Some(worker),
            ..grant(*id)
        };
        let granted = self.update(ids.iter().map(to_it).collect()).await;
        assert_eq!(granted, ids.len());
    }

    /// Writes that they have started.
    pub(crate) async fn start(&self, ids: &[ExecutionId]) {
        self.update(ids.iter().map(|id| start(*id)).collect()).await;
    }

    /// Grants them a slot, to nobody.
    pub(crate) async fn grant(&self, ids: &[ExecutionId]) {
        let granted = self.update(ids.iter().map(|id| grant(*id)).collect()).await;
        assert_eq!(granted, ids.len());
    }

    /// How many bodies of grants came back.
    async fn update(&self, updates: Vec<Update>) -> usize {
        let batch = Batch {
            updates,
            ..self.batch()
        };
        self.store.commit(&batch).await.unwrap().granted.len()
    }

    /// Ends them.
    pub(crate) async fn end(&self, ids: &[ExecutionId]) {
        let ends = ids.iter().map(|id| succeeded(*id)).collect();
        let batch = Batch {
            ends,
            ..self.batch()
        };
        let committed = self.store.commit(&batch).await.unwrap();
        assert_eq!(committed.ended, u64::try_from(ids.len()).unwrap());
    }
}

pub(crate) fn grant(id: ExecutionId) -> Update {
    Update {
        id,
        status: Some(Status::Requested),
        attempt: Attempt(1),
        grant_no: Some(1),
        worker: None,
        started: None,
        cancel_requested: false,
        put_back: None,
    }
}

/// What its worker says: it has just started.
pub(crate) fn start(id: ExecutionId) -> Update {
    Update {
        status: None,
        grant_no: None,
        started: Some(chrono::Utc::now()),
        ..grant(id)
    }
}

pub(crate) fn succeeded(id: ExecutionId) -> End {
    End {
        id,
        outcome: Arc::new(Outcome::succeeded(None)),
        ran: Some(Duration::from_millis(20)),
    }
}

/// The whole chain of an error, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Asks again and again until `probe` gives something.
pub(crate) async fn eventually<T, F>(what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed().as_secs() < 20, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await; // poll
    }
}

/// The store as the suite takes it.
pub(crate) fn port(db: &TestDb) -> Arc<dyn attune_store::Store> {
    Arc::new(db.store.clone())
}
