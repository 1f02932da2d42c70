//! The schema and its version.

use attune_store::StoreError;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnection;

use crate::error::{Failure, from_migrate, newer};
use crate::sql;

/// Number, name and text of every migration, in order. They are never changed, only added to.
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (
        1,
        "initial",
        include_str!("../../../migrations/sqlite/0001_initial.sql"),
    ),
    (
        2,
        "ownership",
        include_str!("../../../migrations/sqlite/0002_ownership.sql"),
    ),
    (
        3,
        "operators",
        include_str!("../../../migrations/sqlite/0003_operators.sql"),
    ),
    (
        4,
        "dead_letters",
        include_str!("../../../migrations/sqlite/0004_dead_letters.sql"),
    ),
    (
        5,
        "observed_leases",
        include_str!("../../../migrations/sqlite/0005_observed_leases.sql"),
    ),
    (
        6,
        "slots",
        include_str!("../../../migrations/sqlite/0006_slots.sql"),
    ),
];

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|(version, name, text)| {
        Migration::new(
            *version,
            (*name).into(),
            MigrationType::Simple,
            (*text).into_sql_str(),
            false,
        )
    });
    Migrator::with_migrations(migrations.collect())
}

/// Runs the migrations that are missing, each in a transaction. Several that do so at once come
/// one after another, because there is one writer.
pub(crate) async fn run(connection: &mut SqliteConnection) -> Result<(), Failure> {
    migrator()
        .run_direct(None, connection, false)
        .await
        .map_err(|error| Failure::Store(from_migrate(error)))
}

/// Finds out whether the schema is exactly the one that this program knows.
pub(crate) async fn check(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let applied = sqlx::query_as::<_, (i64, Vec<u8>)>(sql::APPLIED_MIGRATIONS)
        .fetch_all(connection)
        .await;
    let applied = match applied {
        Ok(applied) => applied,
        Err(sqlx::Error::Database(error)) if error.message().starts_with("no such table") => {
            return Err(schema("it has no tables yet; run `attune migrate`"));
        }
        Err(error) => return Err(error.into()),
    };
    let known = migrator();
    for (version, checksum) in &applied {
        let Some(migration) = known.iter().find(|one| one.version == *version) else {
            return Err(newer(*version).into());
        };
        if migration.checksum.as_ref() != checksum.as_slice() {
            return Err(schema(&format!(
                "its version {version} was made by a different program"
            )));
        }
    }
    if applied.len() < known.iter().count() {
        return Err(schema(
            "it is older than this program; run `attune migrate`",
        ));
    }
    Ok(())
}

fn schema(problem: &str) -> Failure {
    StoreError::Schema(problem.to_owned()).into()
}
