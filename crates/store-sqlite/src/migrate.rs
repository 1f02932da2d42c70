//! The schema and its version.

use attune_store::StoreError;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnection;

use crate::error::{Failure, from_migrate, newer};
use crate::sql;

/// What the next release of `scripts/try-upgrade` adds.
const NEXT: (i64, &str, &str) = (
    9999,
    "additive_next",
    "ALTER TABLE execution_active ADD COLUMN of_the_next_release TEXT",
);

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
    (
        7,
        "upkeep",
        include_str!("../../../migrations/sqlite/0007_upkeep.sql"),
    ),
    (
        8,
        "additive_requeue_of",
        include_str!("../../../migrations/sqlite/0008_additive_requeue_of.sql"),
    ),
    (
        9,
        "no_slots",
        include_str!("../../../migrations/sqlite/0009_no_slots.sql"),
    ),
    (
        10,
        "additive_lease_trouble",
        include_str!("../../../migrations/sqlite/0010_additive_lease_trouble.sql"),
    ),
    (
        11,
        "additive_cut_off",
        include_str!("../../../migrations/sqlite/0011_additive_cut_off.sql"),
    ),
    (
        12,
        "additive_cluster_bus",
        include_str!("../../../migrations/sqlite/0012_additive_cluster_bus.sql"),
    ),
    (
        13,
        "additive_pause",
        include_str!("../../../migrations/sqlite/0013_additive_pause.sql"),
    ),
    (
        14,
        "additive_retry",
        include_str!("../../../migrations/sqlite/0014_additive_retry.sql"),
    ),
    (
        15,
        "additive_demands",
        include_str!("../../../migrations/sqlite/0015_additive_demands.sql"),
    ),
    (
        16,
        "additive_meter",
        include_str!("../../../migrations/sqlite/0016_additive_meter.sql"),
    ),
    (
        17,
        "additive_operations",
        include_str!("../../../migrations/sqlite/0017_additive_operations.sql"),
    ),
    (
        19,
        "additive_end_code",
        include_str!("../../../migrations/sqlite/0019_additive_end_code.sql"),
    ),
    (
        20,
        "additive_policies",
        include_str!("../../../migrations/sqlite/0020_additive_policies.sql"),
    ),
    (
        21,
        "additive_kept_slot",
        include_str!("../../../migrations/sqlite/0021_additive_kept_slot.sql"),
    ),
    (
        22,
        "additive_grants",
        include_str!("../../../migrations/sqlite/0022_additive_grants.sql"),
    ),
    (
        23,
        "additive_over",
        include_str!("../../../migrations/sqlite/0023_additive_over.sql"),
    ),
    (
        24,
        "additive_api_key",
        include_str!("../../../migrations/sqlite/0024_additive_api_key.sql"),
    ),
    (
        25,
        "additive_audit_chain",
        include_str!("../../../migrations/sqlite/0025_additive_audit_chain.sql"),
    ),
    (
        30,
        "additive_accounts",
        include_str!("../../../migrations/sqlite/0030_additive_accounts.sql"),
    ),
    (
        31,
        "additive_worker_principal",
        include_str!("../../../migrations/sqlite/0031_additive_worker_principal.sql"),
    ),
    (
        34,
        "additive_asker",
        include_str!("../../../migrations/sqlite/0034_additive_asker.sql"),
    ),
    (
        35,
        "additive_audit_origin",
        include_str!("../../../migrations/sqlite/0035_additive_audit_origin.sql"),
    ),
    (
        36,
        "additive_traceparent",
        include_str!("../../../migrations/sqlite/0036_additive_traceparent.sql"),
    ),
    (
        37,
        "additive_letter_sender",
        include_str!("../../../migrations/sqlite/0037_additive_letter_sender.sql"),
    ),
    (
        38,
        "additive_audit_of_tomorrow",
        include_str!("../../../migrations/sqlite/0038_additive_audit_of_tomorrow.sql"),
    ),
    (
        39,
        "additive_lacks_key",
        include_str!("../../../migrations/sqlite/0039_additive_lacks_key.sql"),
    ),
];

fn migrator() -> Migrator {
    let next = cfg!(attune_next).then_some(&NEXT);
    let migrations = MIGRATIONS.iter().chain(next).map(|(version, name, text)| {
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
    if let Some(applied) = applied(connection).await? {
        foreign(&applied)?;
    }
    let mut migrator = migrator();
    // What this program does not know was judged just now.
    migrator.set_ignore_missing(true);
    migrator
        .run_direct(None, connection, false)
        .await
        .map_err(|error| Failure::Store(from_migrate(error)))
}

/// Version, name and checksum of a migration that was applied.
type Applied = (i64, String, Vec<u8>);

/// What was applied; `None` when there are no tables yet.
async fn applied(connection: &mut SqliteConnection) -> Result<Option<Vec<Applied>>, Failure> {
    let applied = sqlx::query_as(sql::APPLIED_MIGRATIONS).fetch_all(connection);
    match applied.await {
        Ok(applied) => Ok(Some(applied)),
        Err(sqlx::Error::Database(error)) if error.message().starts_with("no such table") => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses what a newer program has done to the schema, unless it only added to it.
fn foreign(applied: &[Applied]) -> Result<(), Failure> {
    let migrator = migrator();
    let known = |version: i64| migrator.iter().any(|it| it.version == version);
    let mut unknown = applied.iter().filter(|(version, ..)| !known(*version));
    match unknown.find(|(_, name, _)| !attune_store::is_additive(name)) {
        None => Ok(()),
        Some((version, ..)) => Err(newer(*version).into()),
    }
}

/// Finds out whether the schema is one that this program can work with.
pub(crate) async fn check(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let Some(applied) = applied(connection).await? else {
        return Err(schema("it has no tables yet; run `attune migrate`"));
    };
    foreign(&applied)?;
    for migration in migrator().iter() {
        let version = migration.version;
        match applied.iter().find(|(it, ..)| *it == version) {
            None => {
                return Err(schema(
                    "it is older than this program; run `attune migrate`",
                ));
            }
            Some((.., checksum)) if checksum.as_slice() != migration.checksum.as_ref() => {
                return Err(schema(&format!(
                    "its version {version} was made by a different program"
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn schema(problem: &str) -> Failure {
    StoreError::Schema(problem.to_owned()).into()
}
