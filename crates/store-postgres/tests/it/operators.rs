//! What operators and the reconciler ask stays cheap however much waits.

use attune_core::{PauseMode, PauseTarget, RequestId};
use attune_store::{
    ExecutionStore as _, PartitionStore as _, PauseChange, PauseStore as _, Store as _, check_chain,
};
use attune_store_postgres::sql;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row as _};

use crate::support::on_fresh_db;

/// 20,000 wait for ten actions; every 100th holds a slot.
const FILL: &str = "
INSERT INTO attune.execution_active
    (id, action, created, requested_at, request_id, attempt, priority, status, action_ref, parameters)
SELECT n * 256 + n % 16, n % 10 + 1, now() + n * interval '1 ms', now(), gen_random_uuid(), 1, 2,
       CASE WHEN n % 100 < 10 AND n / 100 % 10 = 0 THEN 'requested' ELSE 'queued' END,
       'p.a', '{}'
FROM generate_series(1, 20000) AS n;
ANALYZE attune.execution_active";

fn explain(statement: &str) -> Query<'static, Postgres, PgArguments> {
    let mut all = sql::ALL.iter();
    let (_, text) = all.find(|(name, _)| *name == statement).unwrap();
    sqlx::query(AssertSqlSafe(format!("EXPLAIN {text}")))
}

#[tokio::test]
async fn no_look_reads_more_than_it_must() {
    on_fresh_db(|db| async move {
        sqlx::raw_sql(FILL).execute(&db.sql).await.unwrap();
        let ids: Vec<i64> = (1..50).map(|n| n * 256 + n % 16).collect();
        let holders = explain("slot_holders")
            .bind(1_i64)
            .bind(i64::MIN)
            .bind(50_i64);
        let slots = explain("load_slots").bind(ids);
        let slice = explain("scan_active")
            .bind(vec![0_i64, 1])
            .bind(i64::MIN)
            .bind(50_i64);
        let page = explain("load_partition")
            .bind(0_i32)
            .bind(5_i64)
            .bind(chrono::Utc::now())
            .bind(7_i64)
            .bind(50_i64);
        for (question, index) in [
            (holders, "execution_active_action"),
            (slots, "execution_active_pkey"),
            (slice, "execution_active_pkey"),
            (page, "execution_active_action"),
        ] {
            let plan = question.fetch_all(&db.sql).await.unwrap();
            let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
            let plan = plan.join("\n");
            assert!(plan.contains(index), "{plan}");
            assert!(!plan.contains("Seq Scan on execution_active"), "{plan}");
        }
        let found = db
            .store
            .slot_holders(attune_core::ActionId(1), None, 1000)
            .await
            .unwrap();
        assert!(!found.is_empty() && found.iter().all(|it| it.status.holds_slot()));
        assert!(found.is_sorted_by_key(|holder| holder.id));
    })
    .await;
}

/// The audit log is append-only, whoever asks.
#[tokio::test]
async fn the_audit_log_cannot_be_changed() {
    on_fresh_db(|db| async move {
        let add = "INSERT INTO attune.audit_log (who, what, target, request_id)
                   VALUES ('ann', 'slot.force_release', '7', gen_random_uuid())";
        sqlx::raw_sql(add).execute(&db.sql).await.unwrap();
        for change in [
            "UPDATE attune.audit_log SET who = 'bob'",
            "DELETE FROM attune.audit_log",
            "TRUNCATE attune.audit_log",
        ] {
            let error = sqlx::raw_sql(change).execute(&db.sql).await.unwrap_err();
            assert!(error.to_string().contains("append-only"), "{error}");
        }
        assert_eq!(db.count("SELECT count(*) FROM attune.audit_log").await, 1);
    })
    .await;
}

/// Whoever may do everything in the database can change the log, and is seen: by the chain, or by a hash of
/// it that was noted elsewhere.
#[tokio::test]
async fn who_changes_the_audit_log_is_seen() {
    on_fresh_db(|db| async move {
        let run = async |statements: &str| {
            let statements = format!("SET session_replication_role = replica; {statements}");
            let mut session = db.sql.acquire().await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
                .execute(&mut *session)
                .await
                .unwrap();
            sqlx::raw_sql("SET session_replication_role = origin")
                .execute(&mut *session)
                .await
                .unwrap();
        };
        for number in 1..=4 {
            let add = format!(
                "INSERT INTO attune.audit_log (who, what, target, reason, after, request_id)
                 VALUES ('ann', 'key.create', '{number}', 'it''s, \u{1F980}', '{{\"a\": 1}}', gen_random_uuid())"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(add)).execute(&db.sql).await.unwrap();
        }
        let look = async || check_chain(&db.store, None).await.unwrap();
        let whole = look().await;
        assert_eq!((whole.entries, whole.broken, whole.unchained), (4, None, 0));
        let noted = whole.head.unwrap().1;

        run("CREATE TABLE kept AS SELECT * FROM attune.audit_log; \
             UPDATE attune.audit_log SET who = 'bob' WHERE target = '3'").await;
        assert_eq!(look().await.broken, Some((3, "its entry was changed")));
        run("UPDATE attune.audit_log SET who = 'ann' WHERE target = '3'").await;
        assert_eq!(look().await.broken, None);
        // Nothing can be put into columns that were not there when it was written.
        run("UPDATE attune.audit_log SET source_ip = '192.0.2.9' WHERE target = '3'").await;
        assert_eq!(look().await.broken, Some((3, "its entry was changed")));
        run("UPDATE attune.audit_log SET source_ip = NULL WHERE target = '3'").await;
        assert_eq!(look().await.broken, None);
        run("DELETE FROM attune.audit_log WHERE target = '3'").await;
        assert_eq!(look().await.broken, Some((3, "its entry was removed")));
        run("DELETE FROM attune.audit_chain WHERE no = 3").await;
        assert_eq!(look().await.broken, Some((4, "a link before it was removed")));
        // The end cut off, as by who sets the table back: only what was noted tells.
        run("DELETE FROM attune.audit_log WHERE target = '4'; DELETE FROM attune.audit_chain WHERE no = 4").await;
        let cut = check_chain(&db.store, Some(&noted)).await.unwrap();
        assert_eq!((cut.entries, cut.broken, cut.found), (2, None, false));
        run("INSERT INTO attune.audit_log (who, what, target, request_id) \
             VALUES ('eve', 'key.create', '9', gen_random_uuid())").await;
        assert_eq!(look().await.unchained, 1, "added beside the chain");
    })
    .await;
}

/// A clock that was wrong once says nothing of what others resumed, and nothing was resumed before it was paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_by_a_clock_that_is_wrong_spoils_no_other() {
    on_fresh_db(|db| async move {
        let owner = db.owner().await;
        let own = PauseTarget::Action(owner.action.spec.action_ref.clone());
        let change = |target: &PauseTarget, mode| PauseChange {
            request_id: RequestId::fresh(),
            target: target.clone(),
            mode,
            who: "test".into(),
            reason: None,
        };
        let pause = Some(PauseMode::Pause);
        for mode in [pause, None] {
            db.store.change_pause(&change(&own, mode)).await.unwrap();
        }
        let resumed = db.store.pauses(None).await.unwrap().unwrap().resumed;

        let ahead = db.with_clock("400 days").await;
        for mode in [pause, None] {
            let change = change(&PauseTarget::All, mode);
            ahead.change_pause(&change).await.unwrap();
        }
        ahead.close().await;
        let known = db.store.pauses(None).await.unwrap().unwrap().resumed;
        assert!(known.contains(&resumed[0]), "{known:?}");

        db.store.change_pause(&change(&own, pause)).await.unwrap();
        let held = db.store.pauses(None).await.unwrap().unwrap().held;
        let behind = db.with_clock("-1 hour").await;
        behind.change_pause(&change(&own, None)).await.unwrap();
        behind.close().await;
        let known = db.store.pauses(None).await.unwrap().unwrap().resumed;
        assert!(known.contains(&(own, held[0].since)), "{known:?}");
    })
    .await;
}
