//! The days of the history: made ahead, dropped when old, mended when they were late.

use std::time::Duration;

use attune_core::WorkerId;
use attune_store::{ExecutionStore as _, HistoryRetention, PartitionStore as _, WorkerStore as _};

use crate::support::{TestDb, on_fresh_db};

const DAY: Duration = Duration::from_secs(24 * 3600);

const KEEP_THREE_DAYS: HistoryRetention = HistoryRetention {
    history: Duration::from_secs(3 * 24 * 3600),
    requests: DAY,
};

/// The tables that the history consists of, without the default one.
async fn days(db: &TestDb) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'attune.execution_history'::regclass
           AND c.relname <> 'execution_history_default' ORDER BY 1",
    )
    .fetch_all(&db.sql)
    .await
    .unwrap()
}

async fn run(db: &TestDb, statement: &'static str) {
    sqlx::raw_sql(statement).execute(&db.sql).await.unwrap();
}

/// Today and the week to come have their partitions from the start, and ends go there.
#[tokio::test]
async fn the_days_to_come_are_there() {
    on_fresh_db(|db| async move {
        let made = days(&db).await;
        assert_eq!(made.len(), 8);
        let today = format!("execution_history_{}", chrono::Utc::now().format("%Y%m%d"));
        assert!(made.contains(&today), "{made:?}");
        let mut owner = db.owner().await;
        let ids = owner.insert(3).await;
        owner.end(&ids).await;
        let caught = db
            .count("SELECT count(*) FROM attune.execution_history_default")
            .await;
        assert_eq!(caught, 0);
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(days(&db).await, made);
        // Every day has the indexes of the whole.
        let indexes = db
            .count("SELECT count(*) FROM pg_indexes WHERE schemaname = 'attune' AND tablename ~ '^execution_history_2'")
            .await;
        assert_eq!(indexes, 8 * 5);
    })
    .await;
}

/// When the upkeep came late, what the default partition caught moves to its day.
#[tokio::test]
async fn what_came_before_its_day_moves_there() {
    on_fresh_db(|db| async move {
        for day in days(&db).await {
            let drop = format!("DROP TABLE attune.{day}");
            sqlx::query(sqlx::AssertSqlSafe(drop))
                .execute(&db.sql)
                .await
                .unwrap();
        }
        let mut owner = db.owner().await;
        let ids = owner.insert(5).await;
        owner.end(&ids).await;
        let caught = "SELECT count(*) FROM attune.execution_history_default";
        assert_eq!(db.count(caught).await, 5);
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(days(&db).await.len(), 8);
        assert_eq!(db.count(caught).await, 0);
        let kept = db.count("SELECT count(*) FROM attune.execution").await;
        assert_eq!(kept, 5);
    })
    .await;
}

/// Old days are dropped, and old rows of the default partition with them.
#[tokio::test]
async fn old_days_are_dropped() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "CREATE TABLE attune.execution_history_20200101 PARTITION OF attune.execution_history
                 FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00');
             CREATE TABLE attune.execution_history_20200102 PARTITION OF attune.execution_history
                 FOR VALUES FROM ('2020-01-02 00:00+00') TO ('2020-01-03 00:00+00');
             INSERT INTO attune.execution_history
                 (id, action, created, finished_at, request_id, attempt, priority,
                  cancel_requested, status, action_ref, parameters)
             SELECT n, 1, at, at, gen_random_uuid(), 1, 2, false, 'failed', 'a.b', '{}'
             FROM (VALUES (1, timestamptz '2020-01-01 12:00+00'), (2, '2020-01-02 12:00+00'),
                          (3, '2020-02-01 12:00+00'), (4, now() - interval '2 days'),
                          (5, now())) AS v (n, at);
             INSERT INTO attune.worker_lease (worker, name, pool, slots, expires_at)
             VALUES (gen_random_uuid(), 'old', 'p', 1, now() - interval '25 hours'),
                    (gen_random_uuid(), 'late', 'p', 1, now() - interval '23 hours')",
        )
        .await;
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        let left: Vec<i64> = sqlx::query_scalar("SELECT id FROM attune.execution ORDER BY id")
            .fetch_all(&db.sql)
            .await
            .unwrap();
        assert_eq!(left, [4, 5]);
        assert!(!days(&db).await.iter().any(|day| day.contains("2020")));
        let workers = db.store.workers().await.unwrap();
        assert_eq!(workers.len(), 1);
        assert_eq!(workers[0].name, "late");
    })
    .await;
}

/// A day that somebody reads is left for the next time instead of holding writers up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_in_use_is_left_for_later() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "CREATE TABLE attune.execution_history_20200101 PARTITION OF attune.execution_history
                 FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')",
        )
        .await;
        let mut reader = db.sql.begin().await.unwrap();
        sqlx::query("SELECT count(*) FROM attune.execution")
            .execute(&mut *reader)
            .await
            .unwrap();
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(days(&db).await.len(), 9);
        reader.rollback().await.unwrap();
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(days(&db).await.len(), 8);
    })
    .await;
}

/// A running execution whose worker's row is gone counts as lost since it was claimed.
#[tokio::test]
async fn a_worker_without_a_row_is_lost() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(1).await;
        owner.grant(&ids).await;
        sqlx::query("UPDATE attune.execution_active SET status = 'running', worker = $1, started_at = now() - interval '90 seconds'")
            .bind(WorkerId::fresh().0)
            .execute(&db.sql)
            .await
            .unwrap();
        let slots = db.store.load_slots(&[owner.action.partition]).await.unwrap();
        assert_eq!(slots.len(), 1);
        let lost = slots[0].worker_lost_for.as_secs();
        assert!((90..120).contains(&lost), "{lost}");
    })
    .await;
}
