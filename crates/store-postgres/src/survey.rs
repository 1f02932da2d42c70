//! What the server and its tables are like, for people who look after them. Nothing here changes anything.

use attune_store::StoreError;

use crate::PostgresStore;
use crate::schema;
use crate::sessions::Purpose;
use crate::sql;

/// The server, as far as what was confirmed depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSurvey {
    /// Its version as a number: 150004 is 15.4.
    pub version: i32,
    /// The same in words.
    pub version_words: String,
    /// Whether it waits for its disk: `on` or `off`.
    pub fsync: String,
    /// Whether a page that was half written can be mended: `on` or `off`.
    pub full_page_writes: String,
    /// When a commit is answered; `off` is before it is kept.
    pub synchronous_commit: String,
    /// How many connections it takes.
    pub max_connections: i32,
    /// Of these, for superusers alone.
    pub reserved: i32,
    /// How many there are now, of all databases.
    pub connections: i64,
    /// Whether it only follows another server, and takes no writes.
    pub is_standby: bool,
}

/// As whom this process has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSurvey {
    /// Its name.
    pub login: String,
    /// Whether it may do everything.
    pub is_superuser: bool,
    /// Whether it owns tables of the system.
    pub is_owner: bool,
}

/// A table that every execution changes, as the statistics of the server have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSurvey {
    /// Its name, without the schema.
    pub table: String,
    /// Rows.
    pub live: i64,
    /// Versions of rows that nobody sees any more and no vacuum has taken.
    pub dead: i64,
    /// Changes of rows since the statistics began.
    pub changes: i64,
    /// Of these, without work on any index.
    pub hot_changes: i64,
}

/// How far the schema has come, by the numbers of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaSurvey {
    /// The newest that was applied; `None` where there is no schema.
    pub applied: Option<i64>,
    /// The newest that this program knows.
    pub known: i64,
}

impl PostgresStore {
    /// The server.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn survey_server(&self) -> Result<ServerSurvey, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let found: (i32, String, String, String, String, i32, i32, i64, bool) =
                    sqlx::query_as(sql::SURVEY_SERVER).fetch_one(&pool).await?;
                Ok(ServerSurvey {
                    version: found.0,
                    version_words: found.1,
                    fsync: found.2,
                    full_page_writes: found.3,
                    synchronous_commit: found.4,
                    max_connections: found.5,
                    reserved: found.6,
                    connections: found.7,
                    is_standby: found.8,
                })
            })
            .await
    }

    /// The login of this process.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn survey_login(&self) -> Result<LoginSurvey, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let (login, is_superuser, is_owner) =
                    sqlx::query_as(sql::SURVEY_LOGIN).fetch_one(&pool).await?;
                Ok(LoginSurvey {
                    login,
                    is_superuser,
                    is_owner,
                })
            })
            .await
    }

    /// How many connections each role has to this database, by its name on the command line.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn survey_sessions(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let found = sqlx::query_as(sql::SURVEY_SESSIONS).fetch_all(&pool);
                Ok(found.await?)
            })
            .await
    }

    /// The tables that every execution changes, by name.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn survey_tables(&self) -> Result<Vec<TableSurvey>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let found: Vec<(String, i64, i64, i64, i64)> =
                    sqlx::query_as(sql::SURVEY_TABLES).fetch_all(&pool).await?;
                let tables = found
                    .into_iter()
                    .map(|(table, live, dead, changes, hot_changes)| TableSurvey {
                        table,
                        live,
                        dead,
                        changes,
                        hot_changes,
                    });
                Ok(tables.collect())
            })
            .await
    }

    /// How far the schema has come.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn survey_schema(&self) -> Result<SchemaSurvey, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move { schema::survey(&pool).await })
            .await
    }
}
