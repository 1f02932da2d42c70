//! A database of one test.

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use crate::{clean_up, prepared};

/// An empty database, dropped with its handle.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    server: String,
}

impl Database {
    /// Creates one on the server that `ATTUNE_TEST_POSTGRES_URL` names.
    ///
    /// # Errors
    /// When the variable is not set or the server refuses.
    pub async fn create() -> anyhow::Result<Self> {
        let server = prepared("ATTUNE_TEST_POSTGRES_URL")?;
        let name = format!("attune_it_{}", Uuid::now_v7().simple());
        // template0, because nobody can be connected to it; a copy needs that.
        let create = format!("CREATE DATABASE {name} TEMPLATE template0");
        execute(&server, create)
            .await
            .with_context(|| format!("database {name}"))?;
        let mut url = url::Url::parse(&server)?;
        url.set_path(&name);
        Ok(Self {
            name,
            url: url.into(),
            server,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection to it.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.url).await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let server = self.server.clone();
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let what = format!("the end of database {}", self.name);
        // What `attune migrate --grants` made for it; roles are no database's own.
        let roles = format!("r{}_", &self.name[self.name.len() - 12..]);
        let drop_roles = format!(
            "DO $$ DECLARE one text; BEGIN
                FOR one IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{roles}') LOOP
                    EXECUTE format('DROP ROLE %I', one);
                END LOOP;
            END $$"
        );
        clean_up(what, move || async move {
            execute(&server, drop).await?;
            execute(&server, drop_roles).await
        });
    }
}

/// Runs one statement on a connection of its own. The names in it are our own.
async fn execute(server: &str, statement: String) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(server).await?;
    sqlx::query(AssertSqlSafe(statement))
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}
