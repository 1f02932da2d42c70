//! Bringing the schema up to date, and judging it.

use std::time::Duration;

use attune_store::StoreError;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::db::Db;
use crate::failure::{Failure, is_locked, of_migration};
use crate::sessions::{LOCK_TIMEOUT, Purpose};
use crate::sql;
use crate::survey::SchemaSurvey;
use crate::upkeep::make_days;

/// How much longer the pause before each further try is.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Where the migrations that were applied are written down.
const TABLE: &str = "attune.schema_migration";

/// What the next release of `scripts/try-upgrade` adds, to a table of which every executor has prepared statements.
const NEXT: (i64, &str, &str) = (
    9999,
    "additive_next",
    "ALTER TABLE attune.execution_active ADD COLUMN of_the_next_release text",
);

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
        (
            7,
            "upkeep",
            include_str!("../../../migrations/postgres/0007_upkeep.sql"),
        ),
        (
            8,
            "additive_requeue_of",
            include_str!("../../../migrations/postgres/0008_additive_requeue_of.sql"),
        ),
        (
            9,
            "no_slots",
            include_str!("../../../migrations/postgres/0009_no_slots.sql"),
        ),
        (
            10,
            "request_days",
            include_str!("../../../migrations/postgres/0010_request_days.sql"),
        ),
        (
            11,
            "additive_epoch_is_a_key",
            include_str!("../../../migrations/postgres/0011_additive_epoch_is_a_key.sql"),
        ),
        (
            12,
            "additive_lease_trouble",
            include_str!("../../../migrations/postgres/0012_additive_lease_trouble.sql"),
        ),
        (
            13,
            "additive_cut_off",
            include_str!("../../../migrations/postgres/0013_additive_cut_off.sql"),
        ),
        (
            14,
            "additive_cluster_bus",
            include_str!("../../../migrations/postgres/0014_additive_cluster_bus.sql"),
        ),
        (
            15,
            "additive_system",
            include_str!("../../../migrations/postgres/0015_additive_system.sql"),
        ),
        (
            16,
            "additive_pause",
            include_str!("../../../migrations/postgres/0016_additive_pause.sql"),
        ),
        (
            17,
            "additive_retry",
            include_str!("../../../migrations/postgres/0017_additive_retry.sql"),
        ),
        (
            18,
            "additive_demands",
            include_str!("../../../migrations/postgres/0018_additive_demands.sql"),
        ),
        (
            19,
            "additive_meter",
            include_str!("../../../migrations/postgres/0019_additive_meter.sql"),
        ),
        (
            20,
            "additive_operations",
            include_str!("../../../migrations/postgres/0020_additive_operations.sql"),
        ),
        (
            22,
            "additive_end_code",
            include_str!("../../../migrations/postgres/0022_additive_end_code.sql"),
        ),
        (
            23,
            "additive_policies",
            include_str!("../../../migrations/postgres/0023_additive_policies.sql"),
        ),
        (
            24,
            "additive_kept_slot",
            include_str!("../../../migrations/postgres/0024_additive_kept_slot.sql"),
        ),
        (
            25,
            "additive_ascending_lists",
            include_str!("../../../migrations/postgres/0025_additive_ascending_lists.sql"),
        ),
        (
            26,
            "additive_grants",
            include_str!("../../../migrations/postgres/0026_additive_grants.sql"),
        ),
        (
            27,
            "additive_lists_without_id",
            include_str!("../../../migrations/postgres/0027_additive_lists_without_id.sql"),
        ),
        (
            28,
            "additive_over",
            include_str!("../../../migrations/postgres/0028_additive_over.sql"),
        ),
        (
            29,
            "additive_api_key",
            include_str!("../../../migrations/postgres/0029_additive_api_key.sql"),
        ),
        (
            30,
            "additive_audit_chain",
            include_str!("../../../migrations/postgres/0030_additive_audit_chain.sql"),
        ),
        (
            35,
            "additive_accounts",
            include_str!("../../../migrations/postgres/0035_additive_accounts.sql"),
        ),
        (
            36,
            "additive_worker_principal",
            include_str!("../../../migrations/postgres/0036_additive_worker_principal.sql"),
        ),
        (
            39,
            "additive_asker",
            include_str!("../../../migrations/postgres/0039_additive_asker.sql"),
        ),
        (
            40,
            "additive_audit_origin",
            include_str!("../../../migrations/postgres/0040_additive_audit_origin.sql"),
        ),
        (
            41,
            "additive_traceparent",
            include_str!("../../../migrations/postgres/0041_additive_traceparent.sql"),
        ),
        (
            42,
            "additive_letter_sender",
            include_str!("../../../migrations/postgres/0042_additive_letter_sender.sql"),
        ),
        (
            43,
            "additive_upkeep_bounds",
            include_str!("../../../migrations/postgres/0043_additive_upkeep_bounds.sql"),
        ),
        (
            44,
            "additive_lacks_key",
            include_str!("../../../migrations/postgres/0044_additive_lacks_key.sql"),
        ),
    ];
    all.into_iter()
        .chain(cfg!(attune_next).then_some(NEXT))
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
    /// do so. Also makes the partitions of the days to come.
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        let (options, tries) = (self.migration_options(), self.migrate_tries());
        self.run(Purpose::Migrate, async move {
            for tried in 1.. {
                // A pool of one, closed in every case: a failed migration leaves its session's
                // advisory lock behind, and with the session the lock goes.
                let pool = PgPoolOptions::new()
                    .max_connections(1)
                    .connect_lazy_with(options.clone());
                let migrated = migrate(&pool).await;
                pool.close().await;
                match migrated {
                    Err(failure) if failure.is_locked() => let_others_pass(tried, tries).await?,
                    migrated => return migrated,
                }
            }
            Ok(())
        })
        .await
    }

    /// Whether the schema is the one that this program needs.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let pool = self.general();
        self.run(Purpose::General, async move { check(&pool).await })
            .await
    }
}

/// Carries out a step of `attune migrate`, which may be repeated, and begins it again when it meets a lock, as a
/// migration is. A store that has no such locks ends it at once, one way or the other.
///
/// # Errors
/// Those of the step; [`StoreError::Schema`] with the way out when it has met a lock `tries` times.
pub async fn through_locks<T, Step>(
    tries: u32,
    mut step: impl FnMut() -> Step,
) -> Result<T, StoreError>
where
    Step: Future<Output = Result<T, StoreError>>,
{
    let mut tried = 1;
    loop {
        match step().await {
            Err(error) if is_locked(&error) => {
                let passed = let_others_pass(tried, tries).await;
                passed.map_err(|failure| failure.at(&"".into()))?;
            }
            done => return done,
        }
        tried += 1;
    }
}

/// Waits before the next try, so that whoever waited behind the last one passes.
async fn let_others_pass(tried: u32, tries: u32) -> Result<(), Failure> {
    if tried >= tries {
        return Err(locked(tried));
    }
    let pause = PAUSE.saturating_mul(tried).min(LONGEST_PAUSE);
    tracing::warn!(
        tried,
        "a migration waits for somebody who holds a table, or for another `attune migrate`; \
         it is begun again in {} s",
        pause.as_secs()
    );
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Why a migration is given up that meets a lock again and again.
fn locked(tried: u32) -> Failure {
    misfit(format!(
        "a migration has met a lock {tried} times, each for {} s; what it had begun was taken back and nothing is \
         lost. Somebody holds a table (a dump, a transaction that is left open: `SELECT pid, application_name, \
         state, xact_start FROM pg_stat_activity ORDER BY xact_start`), or another `attune migrate` runs. Let it \
         end, then begin again",
        LOCK_TIMEOUT.as_secs()
    ))
}

async fn migrate(pool: &PgPool) -> Result<(), Failure> {
    if exists(pool).await? {
        foreign(&applied(pool).await?)?;
        accept_corrections(pool).await?;
    }
    let mut migrator = migrator();
    // What this program does not know was judged just now.
    migrator.set_ignore_missing(true);
    migrator.run(pool).await.map_err(of_migration)?;
    make_days(pool).await
}

/// Migrations whose text was corrected without changing what they lead to: version, and the checksum
/// of the text before.
///
/// The seventh could be applied by a superuser only.
const CORRECTED: [(i64, &str); 1] = [(
    7,
    "bb61647bfb4f0e6a882e94a4f6a17e5f4bf5f51cfd169ddddd20f71cd1c7b127866d3aad30e8c87afb6ea99137762cd1",
)];

/// Takes a corrected migration for applied where its earlier text was.
async fn accept_corrections(pool: &PgPool) -> Result<(), Failure> {
    let known = migrations();
    for (version, before) in CORRECTED {
        let Some(now) = known.iter().find(|it| it.version == version) else {
            continue;
        };
        let accept = sqlx::query(sql::ACCEPT_CORRECTION);
        let accept = accept
            .bind(now.checksum.to_vec())
            .bind(version)
            .bind(before);
        accept.execute(pool).await?;
    }
    Ok(())
}

/// A migration that was applied: version, name, whether it was finished, checksum.
type Applied = (i64, String, bool, Vec<u8>);

async fn exists(pool: &PgPool) -> Result<bool, Failure> {
    let exists = sqlx::query_scalar(sql::SCHEMA_EXISTS).fetch_one(pool);
    Ok(exists.await?)
}

async fn applied(pool: &PgPool) -> Result<Vec<Applied>, Failure> {
    let applied = sqlx::query_as(sql::SCHEMA_VERSION).fetch_all(pool);
    Ok(applied.await?)
}

/// How far it has come.
pub(crate) async fn survey(pool: &PgPool) -> Result<SchemaSurvey, Failure> {
    let applied = match exists(pool).await? {
        true => applied(pool).await?,
        false => Vec::new(),
    };
    let known = migrations().iter().map(|it| it.version).max();
    Ok(SchemaSurvey {
        applied: applied.iter().map(|(version, ..)| *version).max(),
        known: known.unwrap_or(0),
    })
}

fn misfit(problem: String) -> Failure {
    Failure::Store(StoreError::Schema(problem))
}

/// Refuses what a newer program has done to the schema, unless it only added to it.
fn foreign(applied: &[Applied]) -> Result<(), Failure> {
    let known = migrations();
    let known = |version: i64| known.iter().any(|it| it.version == version);
    let mut unknown = applied.iter().filter(|(version, ..)| !known(*version));
    match unknown.find(|(_, name, ..)| !attune_store::is_additive(name)) {
        None => Ok(()),
        Some((version, ..)) => Err(misfit(format!(
            "it has migration {version}, which this program does not know; use a newer one"
        ))),
    }
}

async fn check(pool: &PgPool) -> Result<(), Failure> {
    if !exists(pool).await? {
        return Err(misfit("it is missing; run `attune migrate`".to_owned()));
    }
    let applied = applied(pool).await?;
    for migration in migrations() {
        let version = migration.version;
        let problem = match applied.iter().find(|(it, ..)| *it == version) {
            Some((.., true, checksum)) if *checksum == *migration.checksum => continue,
            Some((.., false, _)) => format!("migration {version} was not finished"),
            Some(_) => format!("migration {version} differs from the one that was applied"),
            None => format!("migration {version} is missing; run `attune migrate`"),
        };
        return Err(misfit(problem));
    }
    foreign(&applied)?;
    let settings = sqlx::query_as(sql::CHECK_SETTINGS).fetch_one(pool);
    judge(settings.await?).map_err(|problem| Failure::Store(StoreError::Conflict(problem)))
}

/// Refuses settings under which a commit that was answered could be lost, or text could not be
/// stored. `local` and the `remote_*` modes write to this server's disk before they answer.
fn judge((synchronous_commit, fsync, encoding): (String, String, String)) -> Result<(), String> {
    if synchronous_commit == "off" {
        return Err(
            "PostgreSQL answers commits before they are on its disk, so a crash loses work that \
             was accepted: synchronous_commit is off; set it to `on`, `local` or `remote_write` \
             for the server, this database and this user (ALTER DATABASE … SET, ALTER ROLE … SET)"
                .to_owned(),
        );
    }
    if fsync == "off" {
        return Err(
            "PostgreSQL does not wait for its disk, so a power cut destroys the database: fsync \
             is off; set it to `on` in postgresql.conf"
                .to_owned(),
        );
    }
    if encoding != "UTF8" {
        return Err(format!(
            "the database cannot store every text: its encoding is {encoding}; make it anew with \
             CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_break_a_promise_are_refused_by_name() {
        let judge = |commit: &str, fsync: &str, encoding: &str| {
            judge((commit.to_owned(), fsync.to_owned(), encoding.to_owned()))
        };
        for commit in ["on", "local", "remote_write", "remote_apply"] {
            assert_eq!(judge(commit, "on", "UTF8"), Ok(()));
        }
        for (answer, setting) in [
            (judge("off", "on", "UTF8"), "synchronous_commit"),
            (judge("on", "off", "UTF8"), "fsync"),
            (judge("on", "on", "SQL_ASCII"), "ENCODING 'UTF8'"),
        ] {
            assert!(
                answer.as_ref().is_err_and(|it| it.contains(setting)),
                "{answer:?}"
            );
        }
    }

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
