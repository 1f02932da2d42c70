//! Bringing the schema up to date, and judging it.

use std::collections::BTreeMap;

use attune_store::StoreError;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::db::Db;
use crate::executions::HISTORY_DAYS_AHEAD;
use crate::failure::{Failure, of_migration};
use crate::sql;

/// Where the migrations that were applied are written down.
const TABLE: &str = "attune.schema_migration";

/// The migrations, in order.
fn migrations() -> Vec<Migration> {
    let all = [
        (
            1,
            "initial",
            include_str!("../../../migrations/postgres/0001_initial.sql"),
        ),
        (
            2,
            "ownership",
            include_str!("../../../migrations/postgres/0002_ownership.sql"),
        ),
        (
            3,
            "operators",
            include_str!("../../../migrations/postgres/0003_operators.sql"),
        ),
        (
            4,
            "dead_letters",
            include_str!("../../../migrations/postgres/0004_dead_letters.sql"),
        ),
        (
            5,
            "observed_leases",
            include_str!("../../../migrations/postgres/0005_observed_leases.sql"),
        ),
        (
            6,
            "slots",
            include_str!("../../../migrations/postgres/0006_slots.sql"),
        ),
    ];
    all.into_iter()
        .map(|(version, name, text)| {
            Migration::new(
                version,
                name.into(),
                MigrationType::Simple,
                text.into_sql_str(),
                false,
            )
        })
        .collect()
}

fn migrator() -> Migrator {
    let mut migrator = Migrator::with_migrations(migrations());
    migrator.create_schema("attune");
    // The name is fixed before the first release, so nothing can be lost by it.
    migrator.dangerous_set_table_name(TABLE);
    migrator
}

impl Db {
    /// Brings the schema to what this program needs; an advisory lock lets one caller at a time
    /// do so. Also makes the history's partitions for the days to come.
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        let options = self.migration_options();
        self.run(async move {
            // A pool of one, closed in every case: a failed migration leaves its session's
            // advisory lock behind, and with the session the lock goes.
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .connect_lazy_with(options);
            let migrated = migrate(&pool).await;
            pool.close().await;
            migrated
        })
        .await
    }

    /// Whether the schema is the one that this program needs.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let pool = self.general.clone();
        self.run(async move { check(&pool).await }).await
    }
}

async fn migrate(pool: &PgPool) -> Result<(), Failure> {
    migrator().run(pool).await.map_err(of_migration)?;
    sqlx::query(sql::MAKE_HISTORY_DAYS)
        .bind(HISTORY_DAYS_AHEAD)
        .execute(pool)
        .await?;
    Ok(())
}

async fn check(pool: &PgPool) -> Result<(), Failure> {
    let schema = |problem: String| Failure::Store(StoreError::Schema(problem));
    let exists: bool = sqlx::query_scalar(sql::SCHEMA_EXISTS)
        .fetch_one(pool)
        .await?;
    if !exists {
        return Err(schema("it is missing; run `attune migrate`".to_owned()));
    }
    let rows: Vec<(i64, bool, Vec<u8>)> =
        sqlx::query_as(sql::SCHEMA_VERSION).fetch_all(pool).await?;
    let mut applied: BTreeMap<i64, (bool, Vec<u8>)> = rows
        .into_iter()
        .map(|(version, success, checksum)| (version, (success, checksum)))
        .collect();
    for migration in migrations() {
        let version = migration.version;
        match applied.remove(&version) {
            Some((true, checksum)) if checksum == *migration.checksum => {}
            Some((false, _)) => {
                return Err(schema(format!("migration {version} was not finished")));
            }
            Some(_) => {
                return Err(schema(format!(
                    "migration {version} differs from the one that was applied"
                )));
            }
            None => {
                return Err(schema(format!(
                    "migration {version} is missing; run `attune migrate`"
                )));
            }
        }
    }
    match applied.keys().next_back() {
        Some(newest) => Err(schema(format!(
            "it has migration {newest}, which this program does not know; use a newer one"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_and_match_the_files() {
        let versions: Vec<i64> = migrations().iter().map(|one| one.version).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let embedded: Vec<String> = migrations()
            .iter()
            .map(|one| format!("{:04}_{}.sql", one.version, one.description))
            .collect();
        assert_eq!(files, embedded);
    }
}
