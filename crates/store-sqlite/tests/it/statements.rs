//! The statements: each can be prepared, and none reads more than it must.

use std::collections::BTreeSet;

use attune_store_sqlite::{SqliteStore, sql};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqlSafeStr as _};

async fn connection(store: &SqliteStore) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(store.path());
    SqliteConnection::connect_with(&options).await.unwrap()
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut connection = connection(&store).await;
    for (name, text) in sql::ALL {
        let prepared = connection.prepare(text.into_sql_str()).await;
        assert!(prepared.is_ok(), "{name}: {prepared:?}");
        let code: String = code(text);
        assert!(!code.contains(';'), "{name} holds more than one statement");
    }
}

#[test]
fn every_file_is_a_statement_of_the_adapter() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    let files: BTreeSet<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known: BTreeSet<_> = sql::ALL
        .iter()
        .map(|(name, _)| format!("{name}.sql"))
        .collect();
    assert_eq!(files, known);
}

/// The tables that grow are entered by a key or along an index, by every statement.
#[tokio::test]
async fn no_statement_reads_a_whole_table_that_grows() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut connection = connection(&store).await;
    // The first is cut off by its LIMIT; the others are asked by operators, once in a while, and say so; the last is
    // for all that waits, once after a restore.
    let may_scan = [
        "prune_requests",
        "count_meant",
        "meant_labels",
        "depth",
        "raise_attempts",
    ];
    let mut checked = 0;
    for (name, text) in sql::ALL {
        let grows = [
            "execution_active",
            "execution_history",
            "request",
            "execution",
        ];
        let code = code(text);
        let words: Vec<&str> = code
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .collect();
        if !grows.iter().any(|table| words.contains(table)) || may_scan.contains(name) {
            continue;
        }
        let plan = plan(&mut connection, text).await;
        for step in plan.iter().filter(|step| step.starts_with("SCAN ")) {
            let harmless = step.contains("VIRTUAL TABLE")
                || step.starts_with("SCAN (subquery")
                || step == "SCAN execution";
            assert!(harmless, "{name}: {plan:#?}");
        }
        checked += 1;
    }
    assert!(checked >= 15, "{checked} statements were looked at");
    let slots = plan(&mut connection, sql::LOAD_SLOTS).await;
    assert!(
        slots[1].starts_with("SEARCH a USING INTEGER PRIMARY KEY"),
        "{slots:#?}"
    );
    let holders = plan(&mut connection, sql::SLOT_HOLDERS).await;
    assert!(
        holders[0].starts_with("SEARCH a USING INDEX execution_active_slot"),
        "{holders:#?}"
    );
    let page = plan(&mut connection, sql::LOAD_PARTITION).await;
    let along = "SEARCH execution_active USING INDEX execution_active_action (action=?";
    assert_eq!(
        page.iter().filter(|step| step.starts_with(along)).count(),
        2,
        "{page:#?}"
    );
    assert!(
        !page.iter().any(|step| step.contains("TEMP B-TREE")),
        "{page:#?}"
    );
    let violations = plan(&mut connection, sql::VIOLATIONS).await;
    assert!(
        violations[0].contains("USING INDEX audit_log_violation"),
        "{violations:#?}"
    );
}

/// What people ask on PostgreSQL, in the words of SQLite; the documentation gives them like this.
const MONITORING: [&str; 4] = [
    "SELECT action_id, queue_length, active_count, max_concurrent, oldest_enqueued_at, last_updated
     FROM queue_stats WHERE queue_length > 0 OR active_count > 0 ORDER BY queue_length DESC",
    "SELECT a.ref, qs.queue_length, qs.active_count, qs.oldest_enqueued_at,
            unixepoch('now') - unixepoch(qs.last_updated) AS stale_seconds
     FROM queue_stats qs JOIN action a ON a.id = qs.action_id
     WHERE (queue_length > 0 OR active_count > 0)
       AND last_updated < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-10 minutes')",
    "SELECT a.ref, qs.total_completed, qs.total_enqueued,
            CAST(qs.total_completed AS REAL) / NULLIF(qs.total_enqueued, 0) * 100
                AS completion_rate
     FROM queue_stats qs JOIN action a ON a.id = qs.action_id
     WHERE total_enqueued > 0 ORDER BY total_enqueued DESC",
    "SELECT id, status, created FROM execution
     WHERE action = 1 AND status IN ('running', 'requested') ORDER BY created DESC LIMIT 10",
];

#[tokio::test]
async fn people_can_ask_what_they_ask_on_postgres() {
    let store = SqliteStore::temporary().await.unwrap();
    let mut connection = connection(&store).await;
    for question in MONITORING {
        let rows = sqlx::query(question).fetch_all(&mut connection).await;
        assert_eq!(rows.unwrap().len(), 0, "{question}");
    }
    let slots = plan(&mut connection, MONITORING[3]).await;
    let touched: Vec<_> = slots
        .iter()
        .filter(|step| step.contains("execution_"))
        .collect();
    assert!(
        touched.len() == 2 && touched.iter().all(|step| step.starts_with("SEARCH")),
        "{slots:#?}"
    );
    assert!(
        touched[1].contains("COVERING INDEX execution_history_action"),
        "{slots:#?}"
    );
    assert!(
        !slots.iter().any(|step| step.contains("TEMP B-TREE")),
        "{slots:#?}"
    );
}

async fn plan(connection: &mut SqliteConnection, statement: &str) -> Vec<String> {
    let explained = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let rows = sqlx::query(explained).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get("detail")).collect()
}

/// A statement without its comments.
fn code(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n")
}
