//! The days of the history: made ahead, dropped when old, mended when they were late.

use std::time::Duration;

use attune_core::WorkerId;
use attune_store::{
    DeadLetterStore as _, ExecutionStore as _, HistoryRetention, NewDeadLetter,
    PartitionStore as _, RecordRetention, Store as _, StoreError, WorkerStore as _,
};
use sqlx::AssertSqlSafe;

use crate::support::{TestDb, on_fresh_db};

const DAY: Duration = Duration::from_secs(24 * 3600);

const KEEP_THREE_DAYS: HistoryRetention = HistoryRetention {
    history: Duration::from_secs(3 * 24 * 3600),
    requests: DAY,
    records: RecordRetention::USUAL,
};

/// The tables that the history consists of, without the default one.
async fn days(db: &TestDb) -> Vec<String> {
    days_of(db, "execution_history").await
}

/// The tables that one by the day consists of, without the default one.
pub(crate) async fn days_of(db: &TestDb, whole: &str) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = ('attune.' || $1)::regclass
           AND c.relname <> $1 || '_default' ORDER BY 1",
    )
    .bind(whole)
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
             INSERT INTO attune.worker_lease (worker, name, pool, slots, expires_at, ended)
             VALUES (gen_random_uuid(), 'old', 'p', 1, now() - interval '25 hours', true),
                    (gen_random_uuid(), 'silent', 'p', 1, now() - interval '25 hours', false),
                    (gen_random_uuid(), 'late', 'p', 1, now() - interval '23 hours', false)",
        )
        .await;
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        let left: Vec<i64> = sqlx::query_scalar("SELECT id FROM attune.execution ORDER BY id")
            .fetch_all(&db.sql)
            .await
            .unwrap();
        assert_eq!(left, [4, 5]);
        assert!(!days(&db).await.iter().any(|day| day.contains("2020")));
        // Nobody has ended the silent one: it may live, and only the clock have stepped.
        let workers = db.store.workers().await.unwrap();
        let mut names: Vec<_> = workers.iter().map(|worker| worker.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["late", "silent"]);
    })
    .await;
}

/// A table that cannot be cleaned keeps no other from being cleaned: the failure is told at the end.
#[tokio::test]
async fn a_step_that_fails_leaves_the_others_be() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "CREATE TABLE attune.execution_history_20200101 PARTITION OF attune.execution_history
                 FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00');
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END$$;
             CREATE TRIGGER refuse BEFORE DELETE ON attune.request_default
                 FOR EACH STATEMENT EXECUTE FUNCTION refuse();
             INSERT INTO attune.worker_lease (worker, name, pool, slots, expires_at, ended)
             VALUES (gen_random_uuid(), 'old', 'p', 1, now() - interval '25 hours', true)",
        )
        .await;
        let told = db.store.maintain_history(KEEP_THREE_DAYS).await;
        assert!(matches!(told, Err(StoreError::Refused(_))), "{told:?}");
        assert!(!days(&db).await.iter().any(|day| day.contains("2020")));
        assert_eq!(db.store.workers().await.unwrap(), vec![]);
    })
    .await;
}

/// The records beside the work are bounded too: entries of the audit log, versions of policies that
/// are not in force, minutes of queues, and dead letters.
#[tokio::test]
async fn old_records_go() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "INSERT INTO attune.audit_log (at, who, what, target, request_id)
             SELECT at, 'ann', 'w', 't', gen_random_uuid()
             FROM (VALUES (now() - interval '432 days'), (now() - interval '399 days')) AS v (at);
             INSERT INTO attune.policy (scope, target, version, spec, changed_by, changed_at)
             SELECT 'action', target, version, '{}', 'ann', now() - interval '500 days'
             FROM (VALUES ('a', 1), ('a', 2), ('b', 1)) AS v (target, version);
             INSERT INTO attune.queue_stats_history
             SELECT 1, minute, 0, 0, 0, 0, 0, 0
             FROM (VALUES (now() - interval '31 days'), (now() - interval '29 days')) AS v (minute);
             INSERT INTO attune.dead_letter (message_id, reason, source, body, bytes, received_at)
             SELECT gen_random_uuid(), 'r', 's', '', 0, at
             FROM (VALUES (now() - interval '31 days'), (now() - interval '29 days')) AS v (at)",
        )
        .await;
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        for (table, left) in [
            ("SELECT count(*) FROM attune.audit_log", 1),
            ("SELECT count(*) FROM attune.policy", 2),
            ("SELECT count(*) FROM attune.queue_stats_history", 1),
            ("SELECT count(*) FROM attune.dead_letter", 1),
        ] {
            assert_eq!(db.count(table).await, left, "{table}");
        }
        // What is left of the log is still what was written, and what comes goes on from there.
        run(
            &db,
            "INSERT INTO attune.audit_log (who, what, target, request_id)
             VALUES ('ann', 'w', 't', gen_random_uuid())",
        )
        .await;
        let chain = attune_store::check_chain(&db.store, None).await.unwrap();
        assert_eq!(
            (chain.entries, chain.first, chain.broken),
            (2, Some(2), None)
        );
        let in_force = "SELECT count(*) FROM attune.policy WHERE target = 'a' AND version = 2";
        assert_eq!(db.count(in_force).await, 1);
    })
    .await;
}

/// The upkeep removes nothing of the audit log that the owner of the tables keeps, whatever it is told, and
/// months as a whole.
#[tokio::test]
async fn nobody_but_the_owner_shortens_the_audit_log() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "INSERT INTO attune.audit_log (at, who, what, target, request_id)
             SELECT at, 'ann', 'w', 't', gen_random_uuid()
             FROM (VALUES (now() - interval '100 days'), (date_trunc('month', now(), 'UTC') - interval '1 s'),
                          (now())) AS v (at)",
        )
        .await;
        let (entries, everything) = (
            "SELECT count(*) FROM attune.audit_log",
            "SELECT attune.prune_audit(now(), 1000)",
        );
        assert_eq!(db.count(everything).await, 0);
        assert_eq!(db.count(entries).await, 3);
        let noted = attune_store::check_chain(&db.store, None).await.unwrap().head;
        db.store.keep_audit_for(31).await.unwrap();
        assert_eq!(db.count(everything).await, 1);
        assert_eq!(db.count(entries).await, 2);
        // What is left goes on from the hash that stays, and what was noted is still found.
        let (_, noted) = noted.unwrap();
        let left = attune_store::check_chain(&db.store, Some(&noted)).await.unwrap();
        assert_eq!((left.entries, left.first, left.broken), (2, Some(2), None));
        assert!(left.found);
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

/// Who comes back after an hour is counted in a row that is old: the upkeep waits for no round that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_counted_right_now_is_left_alone() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "INSERT INTO attune.meter (partition, limit_id, key, state, expires_at, written_at)
             SELECT 0, 'action/a.b/rate_limit', decode(repeat(n::text, 32), 'hex'), '',
                    now() - age * interval '1 minute', now()
             FROM (VALUES (1, 61), (2, 61), (3, 59)) AS v (n, age)",
        )
        .await;
        let mut round = db.sql.begin().await.unwrap();
        sqlx::query(
            "UPDATE attune.meter SET expires_at = now() WHERE key = decode(repeat('1', 32), 'hex')",
        )
        .execute(&mut *round)
        .await
        .unwrap();
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(db.count("SELECT count(*) FROM attune.meter").await, 2);
        round.commit().await.unwrap();
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(db.count("SELECT count(*) FROM attune.meter").await, 2);
    })
    .await;
}

/// A running execution whose worker's row is gone has nobody who runs it.
#[tokio::test]
async fn a_worker_without_a_row_is_over() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(1).await;
        owner.grant(&ids).await;
        sqlx::query("UPDATE attune.execution_active SET status = 'running', worker = $1, started_at = now() - interval '90 seconds'")
            .bind(WorkerId::fresh().0)
            .execute(&db.sql)
            .await
            .unwrap();
        let slots = db.store.load_slots(&ids).await.unwrap();
        assert_eq!(slots.len(), 1);
        assert!(slots[0].worker_over, "{slots:?}");
    })
    .await;
}

/// The store was away when the worker was killed, or all of the cluster was.
#[tokio::test]
async fn what_is_said_late_of_an_end_counts_from_then() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "INSERT INTO attune.worker_lease (worker, name, pool, slots, expires_at, ended)
             VALUES (gen_random_uuid(), 'old', 'p', 1, now() - interval '2 hours', true)",
        )
        .await;
        assert_eq!(db.store.worker_ends().await.unwrap(), vec![]);
        let worker = db.store.workers().await.unwrap()[0].worker;
        assert!(db.store.worker_over(worker, Some(&[])).await.unwrap());
        let ends = db.store.worker_ends().await.unwrap();
        let shown = ends.iter().map(|end| (end.worker, end.begun.clone()));
        assert_eq!(shown.collect::<Vec<_>>(), [(worker, Some(vec![]))]);
    })
    .await;
}

/// By a clock that was set everything may look old.
#[tokio::test]
async fn nothing_is_removed_while_the_clocks_differ() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(3).await;
        owner.end(&ids).await;
        let letter = NewDeadLetter {
            message_id: uuid::Uuid::now_v7(),
            reason: "for the test".to_owned(),
            source: "execution.completed".to_owned(),
            body: "{}".into(),
            bytes: 2,
            sender: None,
        };
        db.store.add_dead_letters(&[letter]).await.unwrap();
        let left = || async {
            let history = "SELECT count(*) FROM attune.execution_history";
            let letters = "SELECT count(*) FROM attune.dead_letter";
            (db.count(history).await, db.count(letters).await)
        };
        for ahead in ["40 days", "6 seconds", "-6 seconds"] {
            let stepped = db.with_clock(ahead).await;
            let kept = stepped.maintain_history(KEEP_THREE_DAYS).await;
            let error = kept.unwrap_err().to_string();
            assert!(error.contains("clocks differ"), "{ahead}: {error}");
            assert_eq!(left().await, (3, 1), "{ahead}");
            stepped.close().await;
        }
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        assert_eq!(left().await, (3, 1));
    })
    .await;
}

/// A database of before the correction of a migration goes on without being made anew.
#[tokio::test]
async fn an_earlier_text_of_a_migration_is_accepted() {
    on_fresh_db(|db| async move {
        run(
            &db,
            "UPDATE attune.schema_migration SET checksum = decode('bb61647bfb4f0e6a882e94a4f6a17e5f\
             4bf5f51cfd169ddddd20f71cd1c7b127866d3aad30e8c87afb6ea99137762cd1', 'hex')
             WHERE version = 7",
        )
        .await;
        assert!(db.store.check().await.is_err());
        db.store.migrate().await.unwrap();
        db.store.check().await.unwrap();
        run(
            &db,
            "UPDATE attune.schema_migration SET checksum = '\\x00' WHERE version = 7",
        )
        .await;
        assert!(
            db.store.migrate().await.is_err(),
            "nobody knows what it was"
        );
    })
    .await;
}

/// One entry from a moment when the clock was ahead does not keep those behind it for as long.
#[tokio::test]
async fn an_entry_of_tomorrow_goes_with_those_behind_it() {
    on_fresh_db(|db| async move {
        let days = |days: &[i32]| {
            let values: Vec<_> = days
                .iter()
                .map(|it| format!("(now() + interval '{it} days')"))
                .collect();
            format!(
                "INSERT INTO attune.audit_log (at, who, what, target, request_id)
                 SELECT at, 'ann', 'w', 't', gen_random_uuid() FROM (VALUES {}) AS v (at)",
                values.join(", ")
            )
        };
        // The last of tomorrow has nothing old behind it.
        let entries = days(&[-500, 300, -450, 300, -1]);
        sqlx::raw_sql(AssertSqlSafe(entries))
            .execute(&db.sql)
            .await
            .unwrap();
        db.store.maintain_history(KEEP_THREE_DAYS).await.unwrap();
        let chain = attune_store::check_chain(&db.store, None).await.unwrap();
        assert_eq!(
            (chain.entries, chain.first, chain.broken),
            (2, Some(4), None)
        );
    })
    .await;
}
