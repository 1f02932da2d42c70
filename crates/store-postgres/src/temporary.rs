//! Databases that exist for a while, such as the one of a benchmark.

use std::fmt;
use std::sync::Arc;

use attune_store::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use url::Url;

use crate::failure::Failure;
use crate::options::{PostgresOptions, address};
use crate::sql;

/// What a role without the right to create databases is told by the server.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// A database next to the one that a URL names. It stays until [`remove`](Self::remove).
pub struct TemporaryDatabase {
    /// How to reach the server: by the database that was there before.
    server: PgConnectOptions,
    address: Arc<str>,
    name: String,
    url: String,
}

/// The name cannot be one, or the URL leads elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unusable(String);

/// The server's refusal, with what would help.
#[derive(Debug, thiserror::Error)]
#[error(
    "the user {user} may not create databases on PostgreSQL at {address}; \
     let it: ALTER ROLE {user} CREATEDB"
)]
struct MayNotCreate {
    user: String,
    address: Arc<str>,
}

impl TemporaryDatabase {
    /// Creates the empty database `name` on the server of `url`, with the same user. The name
    /// consists of lower-case letters, digits and `_`, at most 63 of them.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the name or the URL cannot be used, the user may not
    /// create databases, or the name is taken; [`StoreError::Unavailable`] when the server
    /// cannot be reached.
    pub async fn create(url: &str, name: &str) -> Result<Self, StoreError> {
        let database = Self::at(url, name)?;
        // template0, because nobody can be connected to it; a copy needs that.
        let statement = format!("CREATE DATABASE \"{name}\" TEMPLATE template0");
        database.run(statement).await?;
        Ok(database)
    }

    /// The URL of the database. It holds the password of the one it was made from.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Drops it, whoever is still connected.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn remove(&self) -> Result<(), StoreError> {
        let statement = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        self.run(statement).await
    }

    /// How many bytes its server has written ahead, for all its databases together.
    ///
    /// # Errors
    /// When the server cannot be reached or does not write by itself.
    pub async fn wal_position(&self) -> Result<u64, StoreError> {
        let options = self.server.clone();
        let work = async move {
            let mut connection = options.connect().await?;
            let position: i64 = sqlx::query_scalar(sql::WAL_POSITION)
                .fetch_one(&mut connection)
                .await?;
            connection.close().await?;
            Ok(u64::try_from(position).unwrap_or(0))
        };
        self.own_task(work).await
    }

    /// How many transactions it has seen, those of sessions that have ended all among them; a statement by itself is
    /// one.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn transactions(&self) -> Result<u64, StoreError> {
        let (options, name) = (self.server.clone(), self.name.clone());
        let work = async move {
            let mut connection = options.connect().await?;
            let count: i64 = sqlx::query_scalar(sql::TRANSACTIONS)
                .bind(name)
                .fetch_one(&mut connection)
                .await?;
            connection.close().await?;
            Ok(u64::try_from(count).unwrap_or(0))
        };
        self.own_task(work).await
    }

    fn at(url: &str, name: &str) -> Result<Self, StoreError> {
        let unusable = |why: &str| StoreError::Statement(Box::new(Unusable(why.to_owned())));
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(fits) {
            return Err(unusable("the name of a temporary database is like bench_1"));
        }
        let bad_url = || unusable("the URL of PostgreSQL cannot be used");
        let server = PostgresOptions::new(url)
            .connect_options()
            .map_err(|_| bad_url())?;
        let mut url = Url::parse(url).map_err(|_| bad_url())?;
        url.set_path(name);
        let options = PostgresOptions::new(url.as_str());
        // A parameter of the URL can name the database as well, and would win.
        let named = options.connect_options().map_err(|_| bad_url())?;
        if named.get_database() != Some(name) {
            return Err(unusable(
                "the URL of PostgreSQL must name its database by its path",
            ));
        }
        let (address, name, url) = (address(&server).into(), name.to_owned(), url.into());
        Ok(Self {
            server,
            address,
            name,
            url,
        })
    }

    /// Runs one statement on a connection of its own, in a task of its own. The statement is
    /// put together here, because the server takes no parameters in place of names.
    async fn run(&self, statement: String) -> Result<(), StoreError> {
        let options = self.server.clone();
        let work = async move {
            let mut connection = options.connect().await?;
            sqlx::query(AssertSqlSafe(statement))
                .execute(&mut connection)
                .await?;
            connection.close().await
        };
        self.own_task(work).await
    }

    /// Lets work end also when nobody waits for it any more.
    async fn own_task<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match tokio::spawn(work).await {
            Ok(result) => result.map_err(|error| self.failure(error)),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(error) => Err(StoreError::Unavailable(Box::new(error))),
        }
    }

    fn failure(&self, error: sqlx::Error) -> StoreError {
        let code = error.as_database_error().and_then(|error| error.code());
        if code.as_deref() != Some(INSUFFICIENT_PRIVILEGE) {
            return Failure::from(error).at(&self.address);
        }
        StoreError::Statement(Box::new(MayNotCreate {
            user: self.server.get_username().to_owned(),
            address: Arc::clone(&self.address),
        }))
    }
}

/// Leaves the URL out: it may hold a password.
impl fmt::Debug for TemporaryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporaryDatabase")
            .field("address", &self.address)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_the_url_changes() {
        let url = "postgres://ada:s3cret@db.example.com:6432/attune?sslmode=require";
        let database = TemporaryDatabase::at(url, "attune_bench_1").unwrap();
        assert_eq!(
            database.url(),
            "postgres://ada:s3cret@db.example.com:6432/attune_bench_1?sslmode=require"
        );
        assert!(!format!("{database:?}").contains("s3cret"));
        let socket = TemporaryDatabase::at("postgres:///attune?host=/run/postgresql", "b").unwrap();
        assert_eq!(socket.url(), "postgres:///b?host=/run/postgresql");
    }

    #[test]
    fn a_name_that_is_none_and_a_url_that_leads_elsewhere_are_refused() {
        let url = "postgres://u:s3cret@h/d";
        for (url, name) in [
            (url, ""),
            (url, "a\"b"),
            (url, "A"),
            (url, &"a".repeat(64)),
            ("postgres://u:s3cret@h/d?dbname=real", "b"),
            ("s3cret", "b"),
        ] {
            let error = TemporaryDatabase::at(url, name).unwrap_err();
            let StoreError::Statement(source) = &error else {
                panic!("{error:?}")
            };
            assert!(!source.to_string().contains("s3cret"), "{source}");
        }
    }
}
