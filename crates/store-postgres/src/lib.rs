//! PostgreSQL adapter of Attune's storage ports.
//!
//! - **The commit is one statement** (`sql/commit.sql`): fence, inserts, grants, ends and totals
//!   over `UNNEST` arrays, so no transaction ever waits for this program between two statements.
//! - **Every port call runs in a task of its own**, which the caller awaits: a caller that is
//!   dropped never leaves a connection inside a transaction.
//! - **Four pools** keep what must not wait away from what may be slow: commits, reads by
//!   key, lease renewals, and everything else. See the module `sessions`.
//!
//! PostgreSQL 15 is the oldest version that is tested. All SQL is in `sql/`, one statement a
//! file; the schema is in `migrations/postgres/`.

mod actions;
mod audit;
mod bind;
mod commit;
mod commit_parts;
mod db;
mod dead_letters;
mod executions;
mod failure;
mod grants;
mod history;
mod keys;
mod operations;
mod options;
mod partition_rows;
mod partitions;
mod pauses;
mod policies;
mod requests;
mod schema;
mod sessions;
pub mod sql;
mod stats;
mod survey;
mod temporary;
mod text;
mod time;
mod upkeep;
mod workers;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::What;
use attune_store::{
    Actor, FENCE_ATTEMPTS, FENCE_JUMP, MAX_UNBEGUN, PoolFigures, Store, StoreError,
};
use sqlx::postgres::PgPoolOptions;

use crate::db::Db;
pub use crate::failure::is_forbidden;
pub use crate::grants::Roles;
pub use crate::options::{MIGRATE_TRIES, PostgresOptions};
pub use crate::schema::through_locks;
use crate::sessions::Purpose;
pub use crate::survey::{LoginSurvey, SchemaSurvey, ServerSurvey, TableSurvey};
pub use crate::temporary::TemporaryDatabase;

/// The storage ports on PostgreSQL. Cheap to clone; all clones share the connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    db: Db,
    /// [`PostgresOptions::broker_user`].
    broker_user: Option<String>,
}

impl PostgresStore {
    /// Connects once to see that the server can be reached, and prepares the pools; their
    /// connections are opened when they are first needed.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the options cannot work (a URL that cannot be read, a wrong
    /// password, a database that does not exist), [`StoreError::Unavailable`] when the server
    /// cannot be reached. Both name host and port, never the password.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        Ok(Self {
            db: Db::connect(&options).await?,
            broker_user: options.broker_user,
        })
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.db.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.db.check().await
    }

    async fn partition_count(&self) -> Result<Option<u16>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let count = sqlx::query_scalar::<_, i32>(sql::CLUSTER_PARTITIONS);
                let count = count.fetch_optional(&pool).await?;
                Ok(count.map(|count| u16::try_from(count).expect("the schema allows 1 to 256")))
            })
            .await
    }

    async fn noted_bus(&self) -> Result<Option<String>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let noted = sqlx::query_scalar::<_, Option<String>>(sql::CLUSTER_BUS);
                Ok(noted.fetch_optional(&pool).await?.flatten())
            })
            .await
    }

    async fn agree_on_bus(&self, name: &str) -> Result<Option<String>, StoreError> {
        let note = sqlx::query(sql::NOTE_BUS).bind(text::text(name).into_owned());
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                note.execute(&pool).await?;
                let noted = sqlx::query_scalar::<_, Option<String>>(sql::CLUSTER_BUS);
                Ok(noted.fetch_optional(&pool).await?.flatten())
            })
            .await
    }

    async fn system_id(&self) -> Result<Option<uuid::Uuid>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let id = sqlx::query_scalar(sql::SYSTEM_ID);
                Ok(id.fetch_optional(&pool).await?)
            })
            .await
    }

    async fn restore_fence(&self, who: &Actor, again: u16) -> Result<(), StoreError> {
        let [kind, key, address, via] = who.origin.columns();
        let query = sqlx::query(sql::RESTORE_FENCE)
            .bind(FENCE_JUMP * (i64::from(again) + 1))
            .bind(RequestId::fresh().0)
            .bind(text::text(who).into_owned())
            .bind(What::RestoreFence.name())
            .bind(kind)
            .bind(key)
            .bind(address)
            .bind(via)
            .bind(i32::try_from(FENCE_ATTEMPTS * (i64::from(again) + 1)).unwrap_or(i32::MAX))
            .bind(i32::try_from(MAX_UNBEGUN).unwrap_or(i32::MAX));
        // Of a million that wait each row is written.
        let options = self.db.migration_options();
        self.db
            .run(Purpose::Migrate, async move {
                let pool = PgPoolOptions::new()
                    .max_connections(1)
                    .connect_lazy_with(options);
                let done = query.execute(&pool).await;
                pool.close().await;
                done?;
                Ok(())
            })
            .await
    }

    async fn keep_audit_for(&self, days: u32) -> Result<(), StoreError> {
        let days = i32::try_from(days).unwrap_or(i32::MAX);
        let query = sqlx::query(sql::KEEP_AUDIT_FOR).bind(days);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn close(&self) {
        self.db.close().await;
    }

    fn pools(&self) -> Vec<PoolFigures> {
        self.db.figures()
    }
}
