//! What operators and the reconciler ask stays cheap however much waits.

use attune_store::ExecutionStore as _;
use attune_store_postgres::sql;
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::on_fresh_db;

/// 20,000 wait for ten actions; every 100th holds a slot.
const FILL: &str = "
INSERT INTO attune.execution_active
    (id, action, created, requested_at, request_id, attempt, priority, status, action_ref, parameters)
SELECT n * 256 + n % 16, n % 10 + 1, now() + n * interval '1 ms', now(), gen_random_uuid(), 1, 2,
       CASE WHEN n % 100 < 10 AND n / 100 % 10 = 0 THEN 'requested' ELSE 'queued' END,
       'p.a', '{}'
FROM generate_series(1, 20000) AS n;
INSERT INTO attune.slot
SELECT id, action FROM attune.execution_active WHERE status = 'requested';
ANALYZE attune.execution_active, attune.slot";

#[tokio::test]
async fn holders_are_found_by_their_slots() {
    on_fresh_db(|db| async move {
        sqlx::raw_sql(FILL).execute(&db.sql).await.unwrap();
        let explain = |statement: &str| {
            let (_, text) = sql::ALL
                .iter()
                .find(|(name, _)| *name == statement)
                .unwrap();
            sqlx::query(AssertSqlSafe(format!("EXPLAIN {text}")))
        };
        let holders = explain("slot_holders")
            .bind(1_i64)
            .bind(i64::MIN)
            .bind(50_i64);
        let slots = explain("load_slots").bind(vec![0_i64, 1]);
        for plan in [holders, slots] {
            let plan = plan.fetch_all(&db.sql).await.unwrap();
            let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
            let plan = plan.join("\n");
            assert!(plan.contains("using execution_active_pkey"), "{plan}");
            assert!(!plan.contains("Seq Scan on execution_active"), "{plan}");
        }
        let page = explain("load_active_of_one")
            .bind(0_i64)
            .bind(i64::MIN)
            .bind(50_i64);
        let page = page.fetch_all(&db.sql).await.unwrap();
        let page: Vec<String> = page.iter().map(|row| row.get(0)).collect();
        assert!(
            page.iter()
                .any(|step| step.contains("execution_active_partition")),
            "{page:#?}"
        );
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
