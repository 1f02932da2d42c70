//! Roles of the database with no more rights than each part of the system needs.

use attune_store::StoreError;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;

use crate::PostgresStore;
use crate::sessions::Purpose;

/// What is granted to whom; `$` stands for the prefix of the roles' names.
const GRANTS: &str = include_str!("../grants.sql");
/// The role whose members may register workers of a pool.
const POOL: &str = r#"
DO $do$ BEGIN
    CREATE ROLE "$pool_POOL" NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END; $do$;
"#;
/// The longest name that the server keeps whole, in bytes.
const MAX_NAME: usize = 63;

/// The roles of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    prefix: String,
    pools: Vec<String>,
}

impl Roles {
    /// Roles whose names begin with a prefix, for workers of these pools.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when a name can be none of a role: a prefix has lower-case letters, digits and
    /// `_`, and does not begin with a digit, pools have `-` as well.
    pub fn new(prefix: &str, pools: &[String]) -> Result<Self, StoreError> {
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let starts_well = !prefix.starts_with(|first: char| first.is_ascii_digit());
        if prefix.is_empty() || !starts_well || !prefix.bytes().all(fits) {
            return Err(StoreError::Conflict(format!(
                "`{prefix}` cannot begin the names of roles: use lower-case letters, digits and `_`, as in attune_"
            )));
        }
        for pool in pools {
            let is_whole = format!("{prefix}pool_{pool}").len() <= MAX_NAME;
            if pool.is_empty() || !is_whole || !pool.bytes().all(|it| fits(it) || it == b'-') {
                return Err(StoreError::Conflict(format!(
                    "`{pool}` is no pool whose role can have a name: with `{prefix}pool_` before it, it has up to \
                     {MAX_NAME} lower-case letters, digits, `_` and `-`"
                )));
            }
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            pools: pools.to_vec(),
        })
    }

    /// The statements, with names that were checked.
    fn statements(&self) -> String {
        let pools = self.pools.iter().map(|pool| POOL.replace("POOL", pool));
        let text: String = pools.chain([GRANTS.to_owned()]).collect();
        // Names and texts alone begin so; a quote around a body has no letter behind its `$`.
        let text = text.replace("\"$", &format!("\"{}", self.prefix));
        text.replace("'$", &format!("'{}", self.prefix))
    }
}

impl PostgresStore {
    /// Makes the roles that are not there, and grants each what its part of the system needs, all of it or nothing.
    ///
    /// # Errors
    /// When the server refuses: whoever asks must own the tables and be allowed to make roles (`CREATEROLE`).
    pub async fn grant(&self, roles: &Roles) -> Result<(), StoreError> {
        let (options, text) = (self.db.migration_options(), roles.statements());
        self.db
            .run(Purpose::Migrate, async move {
                let pool = PgPoolOptions::new()
                    .max_connections(1)
                    .connect_lazy_with(options);
                // Several statements in one message are one transaction.
                let granted = sqlx::raw_sql(AssertSqlSafe(text)).execute(&pool).await;
                pool.close().await;
                granted?;
                Ok(())
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_get_into_statements() {
        let roles = |prefix: &str, pool: &str| Roles::new(prefix, &[pool.to_owned()]);
        for (prefix, pool) in [
            ("", "default"),
            ("1a_", "default"),
            ("a\"b", "default"),
            ("A_", "default"),
            ("a_", ""),
            ("a_", "x\"; DROP"),
            ("a_", &"x".repeat(57)),
        ] {
            assert!(roles(prefix, pool).is_err(), "{prefix} {pool}");
        }
        let text = roles("blue_", "gpu-a").unwrap().statements();
        assert!(
            text.contains(r#"CREATE ROLE "blue_pool_gpu-a" NOLOGIN"#),
            "{text}"
        );
        assert!(text.contains("'blue_pool_' || pool"), "{text}");
        assert!(!text.contains("\"$") && !text.contains("'$"), "{text}");
        assert_eq!(text.matches("$do$").count(), 4);
    }
}
