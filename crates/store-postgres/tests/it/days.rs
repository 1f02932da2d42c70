//! A long history: what is read of it is right, and locks a few of its days at a time.

use std::sync::Arc;

use attune_core::{ExecutionId, Outcome, Status};
use attune_store::{Batch, ExecutionFilter, ExecutionStore as _, PartitionStore as _};
use sqlx::AssertSqlSafe;

use crate::support::{TestDb, eventually, on_fresh_db};

/// A history of 200 days, all of them made by now.
async fn make_days(db: &TestDb) {
    for first in (1..=200).step_by(40) {
        let make = format!(
            "DO $$
             DECLARE
                 day date;
             BEGIN
                 FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date - n
                            FROM generate_series({first}, {first} + 39) AS n LOOP
                     EXECUTE format(
                         'CREATE TABLE attune.%I PARTITION OF attune.execution_history
                          FOR VALUES FROM (%L) TO (%L)',
                         'execution_history_' || to_char(day, 'YYYYMMDD'),
                         day::timestamp AT TIME ZONE 'UTC',
                         (day + 1)::timestamp AT TIME ZONE 'UTC');
                 END LOOP;
             END;
             $$"
        );
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(&db.sql)
            .await
            .unwrap();
    }
}

/// How many relations a call holds locks of at the moment when it comes to this day; the call must
/// get there, and goes on afterwards.
async fn locks<T>(db: &TestDb, day: i32, call: impl Future<Output = T>) -> (i64, T) {
    let table: String = sqlx::query_scalar(
        "SELECT 'attune.execution_history_' || to_char((now() AT TIME ZONE 'UTC')::date + $1, 'YYYYMMDD')",
    )
    .bind(day)
    .fetch_one(&db.sql)
    .await
    .unwrap();
    let mut barrier = db.sql.begin().await.unwrap();
    let lock = format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *barrier)
        .await
        .unwrap();
    let observe = async {
        let held = eventually("the call comes to the day", || async {
            let held: Option<i64> = sqlx::query_scalar(
                "SELECT (SELECT count(*) FROM pg_locks h
                         WHERE h.pid = w.pid AND h.granted AND h.locktype = 'relation')
                 FROM pg_locks w WHERE NOT w.granted AND w.relation = $1::regclass",
            )
            .bind(&table)
            .fetch_optional(&db.sql)
            .await
            .unwrap();
            held
        })
        .await;
        barrier.rollback().await.unwrap();
        held
    };
    tokio::join!(observe, call)
}

/// Locks are counted at the newest day there is and in the middle: days are locked from the oldest
/// that a statement reads to the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_locks_few_days_of_a_long_history() {
    on_fresh_db(|db| async move {
        make_days(&db).await;
        let mut owner = db.owner().await;
        let ended = owner.queued();
        let request = ended.request_id;
        let unknown = owner.queued().id;
        let batch = Batch {
            instant: vec![(ended, Arc::new(Outcome::of(Status::Cancelled, None)))],
            ..owner.batch()
        };
        db.store.commit(&batch).await.unwrap();
        // Sixteen days with six relations each, and a few more.
        let bound = 120;

        let all = ExecutionFilter::default();
        for day in [7, -100] {
            let (held, page) = locks(&db, day, db.store.list_executions(&all, None, 10)).await;
            assert_eq!(page.unwrap().executions.len(), 1);
            assert!(held <= bound, "a list holds {held} locks at day {day}");
            let (held, found) = locks(&db, day, db.store.find_execution(unknown)).await;
            assert_eq!(found.unwrap(), None);
            assert!(
                held <= bound,
                "a look at one holds {held} locks at day {day}"
            );
        }
        let requests = [request];
        let (held, known) = locks(&db, 1, db.store.look_up(&requests, &[])).await;
        let known = known.unwrap().requests;
        assert_eq!(known[0].status, Status::Cancelled);
        assert!(held <= bound, "a look-up holds {held} locks");
    })
    .await;
}

/// Whenever an execution was accepted and whenever it ended: pages give what one look at everything
/// gives, and each is found by its id.
#[tokio::test]
async fn pages_over_many_days_are_one_list() {
    on_fresh_db(|db| async move {
        make_days(&db).await;
        let mut owner = db.owner().await;
        owner.insert(5).await;
        // Some ended long after they were accepted, some before, by a clock that was set back, and
        // some on a day that nobody made.
        sqlx::raw_sql(
            "INSERT INTO attune.execution_history
                 (id, action, created, finished_at, request_id, attempt, priority,
                  cancel_requested, status, action_ref, parameters)
             SELECT n, 1, at - late, at, gen_random_uuid(), 1, 2, false,
                    CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'succeeded' END, 'a.b', '{}'
             FROM (SELECT n, now() - (n * 37 % 230) * interval '22 hours' AS at,
                          CASE WHEN n % 7 = 0 THEN interval '-20 hours'
                               WHEN n % 5 = 0 THEN n * interval '9 hours'
                               ELSE interval '1 minute' END AS late
                   FROM generate_series(1, 300) AS n) AS v",
        )
        .execute(&db.sql)
        .await
        .unwrap();
        for (statuses, limit) in [(vec![], 19), (vec![Status::Failed, Status::Queued], 40)] {
            let words: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
            let expected: Vec<i64> = sqlx::query_scalar(
                "SELECT id FROM attune.execution WHERE status = ANY($1) OR $1 = '{}'
                 ORDER BY created DESC, id DESC",
            )
            .bind(words)
            .fetch_all(&db.sql)
            .await
            .unwrap();
            let filter = ExecutionFilter {
                statuses,
                ..ExecutionFilter::default()
            };
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = db
                    .store
                    .list_executions(&filter, after, limit)
                    .await
                    .unwrap();
                found.extend(page.executions.iter().map(|row| row.id.0));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected);
        }
        for id in (1..=300).step_by(23).map(ExecutionId) {
            let found = db.store.find_execution(id).await.unwrap();
            assert_eq!(found.map(|row| row.id), Some(id));
        }
    })
    .await;
}

/// Whoever does the upkeep drops no day that is not over, no requests of today's, and makes no days without end.
#[tokio::test]
async fn the_upkeep_goes_within_its_bounds() {
    on_fresh_db(|db| async move {
        let count = async |of: &str| -> i64 {
            let days = "SELECT count(*) FROM pg_class WHERE relname ~ ('^' || $1 || '_[0-9]{8}$') AND relkind = 'r'";
            let counted = sqlx::query_scalar(days).bind(of).fetch_one(&db.sql).await;
            counted.unwrap()
        };
        for whole in ["request", "execution_history"] {
            let made = count(whole).await;
            assert!(made > 1, "{made}");
            let dropped: bool =
                sqlx::query_scalar("SELECT attune.drop_day($1, now() + interval '10 days')")
                    .bind(whole)
                    .fetch_one(&db.sql)
                    .await
                    .unwrap();
            assert!(!dropped, "{whole}");
            assert_eq!(count(whole).await, made);
            sqlx::query("SELECT attune.make_days($1, 400)")
                .bind(whole)
                .execute(&db.sql)
                .await
                .unwrap();
            assert_eq!(count(whole).await, 32, "{whole}");
        }
    })
    .await;
}
