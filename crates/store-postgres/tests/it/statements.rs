//! Every statement can be prepared, and the schema mirrors the program.

use attune_core::Status;
use attune_store_postgres::sql::{self, CommitOf, Part};
use sqlx::{Executor as _, Statement as _};

use crate::support::on_fresh_db;

/// Each part alone, with what it needs, and all but each.
fn commits() -> Vec<CommitOf> {
    let needs = |part| match part {
        Part::Instant | Part::Traced => Some(Part::Accepts),
        _ => None,
    };
    let alone = |part| CommitOf::parts([Some(part), needs(part)].into_iter().flatten());
    let without = |out: Part| {
        let rest = Part::ALL.into_iter().filter(|part| *part != out);
        CommitOf::parts(rest.filter(|part| needs(*part) != Some(out)))
    };
    let mut commits = vec![CommitOf::default(), CommitOf::parts(Part::ALL)];
    commits.extend(Part::ALL.map(alone));
    commits.extend(Part::ALL.map(without));
    commits
}

/// Preparing finds misspelled columns and parameters whose type cannot be told.
#[tokio::test]
async fn every_statement_is_prepared() {
    on_fresh_db(|db| async move {
        assert!(sql::ALL.len() > 30);
        let mut connection = db.sql.acquire().await.unwrap();
        let all = sql::ALL.iter().copied();
        let all = all.filter(|(name, _)| *name != "commit");
        let commits = commits()
            .into_iter()
            .map(|of| ("a commit", sql::commit(of)));
        for (name, text) in all.chain(commits) {
            let text = sqlx::AssertSqlSafe(text.to_owned());
            let statement = connection
                .prepare(sqlx::SqlSafeStr::into_sql_str(text))
                .await;
            let statement = statement.unwrap_or_else(|error| panic!("{name}.sql: {error}"));
            assert!(statement.parameters().is_some(), "{name}.sql");
        }
    })
    .await;
}

/// The CHECKs on status hold exactly the words of the state machine.
#[tokio::test]
async fn the_checks_mirror_the_states() {
    on_fresh_db(|db| async move {
        for (table, terminal) in [("execution_active", false), ("execution_history", true)] {
            let check: String = sqlx::query_scalar(
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint
                 WHERE conrelid = ('attune.' || $1)::regclass AND conname = $1 || '_status_check'",
            )
            .bind(table)
            .fetch_one(&db.sql)
            .await
            .unwrap();
            for status in Status::ALL {
                assert_eq!(
                    check.contains(&format!("'{status}'")),
                    status.is_terminal() == terminal,
                    "{status} in {check}"
                );
            }
        }
    })
    .await;
}

/// Updates of active executions can only stay on their page while no index covers a column
/// that they change.
#[tokio::test]
async fn no_index_covers_a_column_that_updates_change() {
    on_fresh_db(|db| async move {
        // What an index depends on: its columns, and those of its expressions and its predicate.
        let indexed: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT a.attname::text FROM pg_index i
             JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
                 AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid
             JOIN pg_attribute a ON a.attrelid = i.indrelid
                 AND (a.attnum = d.refobjsubid OR a.attnum = ANY(i.indkey))
             WHERE i.indrelid = 'attune.execution_active'::regclass AND a.attnum > 0 ORDER BY 1",
        )
        .fetch_all(&db.sql)
        .await
        .unwrap();
        let never_updated = ["action", "asker", "created", "group_key", "requested_by"];
        assert_eq!(indexed, never_updated);
    })
    .await;
}
