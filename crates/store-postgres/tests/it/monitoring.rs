//! The queries that operators have run for years, to the letter, and the plan of the last one.

use attune_core::QueueStats;
use attune_store::{StatsRow, StatsStore as _};
use attune_store_postgres::sql;
use chrono::{DateTime, Utc};
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::{TestDb, on_fresh_db};

const ACTIVE_QUEUES: &str = "\
SELECT action_id, queue_length, active_count, max_concurrent, oldest_enqueued_at, last_updated
FROM attune.queue_stats WHERE queue_length > 0 OR active_count > 0 ORDER BY queue_length DESC;";

const STUCK_QUEUES: &str = "\
SELECT a.ref, qs.queue_length, qs.active_count, qs.oldest_enqueued_at, NOW() - qs.last_updated AS stale_duration
FROM attune.queue_stats qs JOIN attune.action a ON a.id = qs.action_id
WHERE (queue_length > 0 OR active_count > 0) AND last_updated < NOW() - INTERVAL '10 minutes';";

const THROUGHPUT: &str = "\
SELECT a.ref, qs.total_completed, qs.total_enqueued,
       qs.total_completed::float / NULLIF(qs.total_enqueued, 0) * 100 AS completion_rate
FROM attune.queue_stats qs JOIN attune.action a ON a.id = qs.action_id
WHERE total_enqueued > 0 ORDER BY total_enqueued DESC;";

const SLOTS_OF_ONE_ACTION: &str = "\
SELECT id, status, created FROM attune.execution
WHERE action = 1 AND status IN ('running', 'requested') ORDER BY created DESC LIMIT 10;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_four_queries_answer() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let (busy, idle, stuck) = (
            owner.action.clone(),
            db.action("test.idle").await,
            db.action("test.stuck").await,
        );
        assert_eq!(busy.id.0, 1, "the last query speaks of action 1");
        let row = |action_id, queue_length, active_count, total_enqueued| StatsRow {
            version: 1,
            stats: QueueStats {
                action_id,
                queue_length,
                active_count,
                max_concurrent: Some(2),
                oldest_enqueued_at: Some(Utc::now()),
                total_enqueued,
                total_completed: total_enqueued / 2,
                total_cancelled: 0,
                total_expired: 0,
                lacks_key: None,
            },
        };
        let rows = [
            row(busy.id, 3, 2, 10),
            row(idle.id, 0, 0, 40),
            row(stuck.id, 7, 0, 0),
        ];
        db.store.upsert_queue_stats(&rows).await.unwrap();
        sqlx::query("UPDATE attune.queue_stats SET last_updated = now() - interval '11 minutes' WHERE action_id = $1")
            .bind(stuck.id.0)
            .execute(&db.sql)
            .await
            .unwrap();

        type Active = (i64, i64, i64, Option<i32>, Option<DateTime<Utc>>, DateTime<Utc>);
        let active: Vec<Active> = sqlx::query_as(ACTIVE_QUEUES).fetch_all(&db.sql).await.unwrap();
        let lengths: Vec<_> = active.iter().map(|row| (row.0, row.1, row.2, row.3)).collect();
        assert_eq!(
            lengths,
            [(stuck.id.0, 7, 0, Some(2)), (busy.id.0, 3, 2, Some(2))]
        );

        type Stuck = (String, i64, i64, Option<DateTime<Utc>>, PgInterval);
        let found: Vec<Stuck> = sqlx::query_as(STUCK_QUEUES).fetch_all(&db.sql).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.as_str(), found[0].1), ("test.stuck", 7));
        assert!(found[0].4.microseconds >= 660_000_000);

        let rates: Vec<(String, i64, i64, f64)> =
            sqlx::query_as(THROUGHPUT).fetch_all(&db.sql).await.unwrap();
        let expected = [
            ("test.idle".to_owned(), 20, 40, 50.0),
            ("test.action".to_owned(), 5, 10, 50.0),
        ];
        assert_eq!(rates, expected);

        let ids = owner.insert(4).await;
        owner.grant_to(db.worker().await, &ids[..3]).await;
        owner.start(&ids[..1]).await;
        owner.end(&ids[1..2]).await;
        let slots: Vec<(i64, String, DateTime<Utc>)> =
            sqlx::query_as(SLOTS_OF_ONE_ACTION).fetch_all(&db.sql).await.unwrap();
        let mut seen: Vec<_> = slots.iter().map(|row| (row.0, row.1.as_str())).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(ids[0].0, "running"), (ids[2].0, "requested")]);
    })
    .await;
}

/// However much has ended, the query for held slots reads only what is active: the CHECK on the
/// history's status tells the planner that nothing there can match.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_slots_are_found_without_the_history() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(20).await;
        owner.grant(&ids).await;
        let written = sqlx::query(
            "INSERT INTO attune.execution_history
                 (id, action, created, finished_at, request_id, attempt, priority,
                  cancel_requested, status, action_ref, parameters)
             SELECT n, 1 + n % 50, now(), now(), '00000000-0000-0000-0000-000000000000', 1, 2,
                    false, 'succeeded', 'test.action', '{}'
             FROM generate_series(1, 1000000) AS n",
        )
        .execute(&db.sql)
        .await
        .unwrap();
        assert_eq!(written.rows_affected(), 1_000_000);
        sqlx::query("ANALYZE attune.execution_history, attune.execution_active")
            .execute(&db.sql)
            .await
            .unwrap();

        let explain = format!("EXPLAIN (ANALYZE, BUFFERS) {SLOTS_OF_ONE_ACTION}");
        let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
            .fetch_all(&db.sql)
            .await
            .unwrap();
        let plan = plan.join("\n");
        assert!(plan.contains("execution_active"), "{plan}");
        assert!(!plan.contains("history"), "{plan}");

        for filter in ["NULL, NULL", "'test.action', NULL"] {
            let plan = plan_of_list(&db, "list_ended", filter, LAST_DAYS).await;
            let today = format!("execution_history_{}", chrono::Utc::now().format("%Y%m%d"));
            assert!(plan.contains("Merge Append"), "{plan}");
            assert!(plan.contains(&format!("on {today} ")), "{plan}");
            assert!(!plan.contains(&format!("Seq Scan on {today} ")), "{plan}");
            let plan = plan_of_list(&db, "list_active", filter, "").await;
            assert!(plan.contains("execution_active"), "{plan}");
            assert!(!plan.contains("history"), "{plan}");
        }
    })
    .await;
}

/// The parameters of a list of what has ended since yesterday, after those of every list.
const LAST_DAYS: &str = ", NULL, NULL, now() - interval '1 day', NULL";

/// How a part of the API's list is answered with this filter, in a session as the adapter has.
async fn plan_of_list(db: &TestDb, part: &str, filter: &str, more: &str) -> String {
    let (_, list) = sql::ALL.iter().find(|(name, _)| *name == part).unwrap();
    let mut connection = db.sql.acquire().await.unwrap();
    let script =
        format!("SET plan_cache_mode = force_custom_plan; DEALLOCATE ALL; PREPARE list AS {list}");
    sqlx::raw_sql(AssertSqlSafe(script))
        .execute(&mut *connection)
        .await
        .unwrap();
    let explain = format!(
        "EXPLAIN EXECUTE list ({filter}, NULL, NULL, now(), 1, 50, false, false, false, false, NULL{more})"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}
