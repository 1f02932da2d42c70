//! Each part of the system may make the statements that it makes, as what `attune migrate --grants` gives it, and a
//! worker none of the others.

use attune_store_postgres::sql::{self, CommitOf, Part};
use attune_store_postgres::{PostgresOptions, PostgresStore, Roles};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{TestDb, on_fresh_db, server_url};

/// Which parts make which statement; without any it is for the owner of the tables.
const USES: &[(&str, &str)] = &[
    ("accept_correction", ""),
    ("acquire", "executor"),
    ("acquire_observed", "executor"),
    ("actions_by_ref", "executor api"),
    ("add_audit", "executor api"),
    ("add_dead_letters", "executor stats"),
    ("add_key", "api"),
    ("add_operation", "api"),
    ("add_operation_parts", "api"),
    ("add_pause", "api"),
    ("add_policy", "api"),
    ("audit_chain", "api"),
    ("audit_log", "api"),
    ("begin_requeue", "api"),
    ("change_action", "api"),
    ("check_settings", "executor api listener worker"),
    ("cluster_bus", "executor api stats listener worker"),
    ("cluster_partitions", "executor api stats listener worker"),
    ("commit", "executor"),
    ("count_meant", "api"),
    ("count_queue_stats", "api stats"),
    ("count_waiting", "api"),
    ("depth", "api"),
    ("drop_day", "stats"),
    ("end_workers", "executor"),
    ("executors", "executor api"),
    ("find_active", "api"),
    ("find_dead_letter", "api"),
    ("find_ended", "api"),
    ("find_key", "api"),
    ("find_parameters_active", "api"),
    ("find_parameters_ended", "api"),
    ("find_pause", "api"),
    ("find_queue_stats", "api"),
    ("find_standing_active", "api"),
    ("find_standing_ended", "api"),
    ("give_up", "executor"),
    ("history_days", "api stats"),
    ("judge_key", "api"),
    ("keep_audit_for", ""),
    ("leases", "executor api"),
    ("list_actions", "api"),
    ("list_active", "api"),
    ("list_dead_letters", "api"),
    ("list_ended", "api"),
    ("list_keys", "api"),
    ("list_operations", "api"),
    ("list_queue_stats", "api"),
    ("load_actions", "executor"),
    ("load_bodies", "executor"),
    ("load_labels", "executor"),
    ("load_meters", "executor"),
    ("load_partition", "executor"),
    ("load_pauses", "executor api"),
    ("load_policies", "executor api"),
    ("load_slots", "executor"),
    ("load_totals", "executor"),
    ("load_words", "executor"),
    ("lock_action", "api"),
    ("lock_keys", ""),
    ("look_up_history", "executor api"),
    ("look_up_requests", "executor api"),
    ("make_action", "api"),
    ("make_cluster", "executor"),
    ("make_days", "stats"),
    ("make_leases", "executor"),
    ("make_pack", "api"),
    ("mark_requeued", "api"),
    ("meant_labels", "api"),
    ("move_executions", "executor"),
    ("newest_policy", "api"),
    ("note_bus", "executor"),
    ("note_key_use", "api"),
    ("note_start", "executor listener stats api"),
    ("note_trouble", "executor"),
    ("now", "executor api stats listener worker"),
    ("open_operations", "executor"),
    ("operation_of_request", "api"),
    ("policy_changes", "api"),
    ("policy_mark", "api"),
    ("policy_progress", "api"),
    ("policy_versions", "api"),
    ("principal_of", "api"),
    ("prune_audit", "stats"),
    ("prune_dead_letters", "stats"),
    ("prune_default_history", "stats"),
    ("prune_default_requests", "stats"),
    ("prune_executors", "stats"),
    ("prune_meters", "stats"),
    ("prune_operations", "stats"),
    ("prune_policies", "stats"),
    ("prune_stats_history", "stats"),
    ("prune_workers", "stats"),
    ("put_back", "executor"),
    ("raise_pauses", "api"),
    ("raise_policies", "api"),
    ("remove_pause", "api"),
    ("renew", "executor"),
    ("renew_executor", "executor"),
    ("renew_worker", "api worker"),
    ("request_gap", "executor"),
    ("restore_fence", ""),
    ("retire_executor", "executor"),
    ("revoke_key", "api"),
    ("rotate_key", "api"),
    ("scan_active", "executor"),
    ("schema_exists", "executor api stats listener worker"),
    ("schema_version", "executor api stats listener worker"),
    ("session_is_sound", "executor api worker"),
    ("share_policies", "api"),
    ("slot_holders", "api"),
    ("stock", "stats"),
    ("survey_login", "executor api stats listener worker monitor"),
    (
        "survey_server",
        "executor api stats listener worker monitor",
    ),
    (
        "survey_sessions",
        "executor api stats listener worker monitor",
    ),
    (
        "survey_tables",
        "executor api stats listener worker monitor",
    ),
    ("system_id", "executor api stats listener worker"),
    ("transactions", "executor api"),
    ("unchained_audit", "api"),
    ("upsert_queue_stats", "stats"),
    ("violations", "api"),
    ("wal_position", "executor"),
    ("worker_ended", "api worker"),
    ("worker_ends", "executor"),
    ("workers", "api"),
    ("write_policy_progress", "executor"),
];

/// What a worker may do as well: it concerns its own leases alone, by the policy on their rows, or no table but
/// those of the catalog.
const HARMLESS: [&str; 6] = [
    "end_workers",
    "worker_ends",
    "workers",
    "principal_of",
    "now",
    "history_days",
];

/// Makes the roles, as somebody who may.
async fn grant(db: &TestDb, prefix: &str) {
    let mut url = url::Url::parse(&server_url()).unwrap();
    url.set_path(url::Url::parse(&db.url).unwrap().path());
    let store = PostgresStore::connect(PostgresOptions::new(url.to_string())).await;
    let store = store.unwrap();
    let roles = Roles::new(prefix, &["default".to_owned()]).unwrap();
    // A second time changes nothing.
    for _ in 0..2 {
        store.grant(&roles).await.unwrap();
    }
    attune_store::Store::close(&store).await;
}

/// Has a statement planned as a role, which asks for its rights and runs nothing.
async fn plan(
    connection: &mut PgConnection,
    role: &str,
    statement: &str,
) -> Result<(), sqlx::Error> {
    let most = (1..100)
        .rev()
        .find(|n| statement.contains(&format!("${n}")));
    let nulls = vec!["NULL"; most.unwrap_or(0)].join(", ");
    let values = if nulls.is_empty() {
        nulls
    } else {
        format!("({nulls})")
    };
    let asked =
        format!("SET ROLE {role};\nPREPARE it AS {statement};\nEXPLAIN EXECUTE it{values};");
    let outcome = sqlx::raw_sql(AssertSqlSafe(asked))
        .execute(&mut *connection)
        .await;
    let undo = "RESET ROLE; DEALLOCATE ALL";
    sqlx::raw_sql(undo).execute(connection).await?;
    outcome.map(drop)
}

#[tokio::test]
async fn each_part_may_make_its_statements_and_a_worker_no_others() {
    on_fresh_db(|db| async move {
        let prefix = format!("t{}_", &uuid::Uuid::now_v7().simple().to_string()[20..]);
        grant(&db, &prefix).await;
        let mut connection = db.sql.acquire().await.unwrap();
        let mut wrong = Vec::new();
        for (name, text) in sql::ALL {
            let uses = USES.iter().find(|(of, _)| of == name);
            let (_, parts) = uses.unwrap_or_else(|| panic!("{name}.sql: who makes it?"));
            let whole = sql::commit(CommitOf::parts(Part::ALL));
            let text = if *name == "commit" { whole } else { text };
            for part in parts.split_whitespace() {
                let role = format!("{prefix}{part}");
                if let Err(error) = plan(&mut connection, &role, text).await {
                    wrong.push(format!("{part} may not make {name}.sql: {error}"));
                }
            }
            let is_its = parts.contains("worker") || HARMLESS.contains(name);
            if !is_its && text.contains("attune.") {
                let role = format!("{prefix}worker");
                if plan(&mut connection, &role, text).await.is_ok() {
                    wrong.push(format!("a worker may make {name}.sql"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        drop(connection);
        let drop_roles = format!(
            "DO $$ DECLARE one text; BEGIN
                FOR one IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{prefix}') LOOP
                    EXECUTE format('DROP OWNED BY %I', one);
                    EXECUTE format('DROP ROLE %I', one);
                END LOOP;
            END $$"
        );
        sqlx::raw_sql(AssertSqlSafe(drop_roles))
            .execute(&db.sql)
            .await
            .unwrap();
    })
    .await;
}
