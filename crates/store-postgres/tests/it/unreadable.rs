//! Rows that the program would never write: somebody at a prompt did, or a disk.

use std::collections::BTreeSet;
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, OwnerId, PartitionId, Priority, QueueStats, RequestId};
use attune_store::What;
use attune_store::{
    ActionStore as _, AuditStore as _, Batch, Cursor, DeadLetterStore as _, ExecutionFilter,
    ExecutionStore as _, NewAudit, NewDeadLetter, PartitionStore as _, StatsRow, StatsStore as _,
    WorkerStore as _,
};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::support::{Owner, TestDb, chain, on_fresh_db};

/// Beyond what the program can represent, some of it beyond what the driver can.
const BEYOND: [&str; 5] = [
    "infinity",
    "-infinity",
    "294276-12-31 23:59:59+00",
    "20000-01-01 00:00:00+00",
    "0044-03-15 12:00:00+00 BC",
];

async fn run(db: &TestDb, statement: String) {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.clone()))
        .execute(&db.sql)
        .await;
    done.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

/// Some that wait, and some that hold slots, of which a worker runs half.
async fn fill(db: &TestDb, owner: &mut Owner) -> (Vec<ExecutionId>, Vec<ExecutionId>) {
    let waiting = owner.insert(4).await;
    let holding = owner.insert(4).await;
    owner.grant_to(db.worker().await, &holding).await;
    owner.start(&holding[..2]).await;
    (waiting, holding)
}

fn every_partition() -> Vec<PartitionId> {
    (0..4).map(PartitionId).collect()
}

/// Every table that has a time is read while each of its rows has one that the driver cannot read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_time_of_any_table_stops_a_read() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let (waiting, holding) = fill(&db, &mut owner).await;
        let ended = owner.insert(2).await;
        owner.grant(&ended).await;
        owner.end(&ended).await;
        let store = &db.store;
        let letter = NewDeadLetter {
            message_id: Uuid::now_v7(),
            reason: "there is no such action".to_owned(),
            source: "partition.03.commands".to_owned(),
            body: b"x".to_vec(),
            bytes: 1,
            sender: None,
        };
        let entry = NewAudit {
            request_id: RequestId::fresh(),
            who: "test".into(),
            what: What::OrderViolation,
            target: "test.action".to_owned(),
            reason: None,
            before: None,
            after: None,
        };
        let beside = Batch {
            audit: vec![entry],
            letters: vec![letter],
            ..owner.batch()
        };
        store.commit(&beside).await.unwrap();
        let minute = Duration::from_secs(60);
        let me = OwnerId::fresh();
        store.renew_executor(me, "e", minute, false).await.unwrap();
        let action = owner.action.id;
        let stats = StatsRow {
            version: 1,
            stats: QueueStats {
                action_id: action,
                queue_length: 4,
                active_count: 4,
                max_concurrent: None,
                oldest_enqueued_at: Some(chrono::Utc::now()),
                total_enqueued: 8,
                total_completed: 0,
                total_cancelled: 0,
                total_expired: 0,
                lacks_key: None,
            },
        };
        store.upsert_queue_stats(&[stats]).await.unwrap();
        let requests: Vec<Uuid> = sqlx::query_scalar("SELECT request_id FROM attune.request")
            .fetch_all(&db.sql)
            .await
            .unwrap();
        let requests: Vec<_> = requests.into_iter().map(RequestId).collect();
        let refs = [owner.action.spec.action_ref.to_string()];

        let columns: Vec<(String, String)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text FROM pg_class c
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             WHERE c.relnamespace = 'attune'::regnamespace AND c.relkind IN ('r', 'p')
               AND NOT c.relispartition AND a.atttypid = 'timestamptz'::regtype",
        )
        .fetch_all(&db.sql)
        .await
        .unwrap();
        assert!(columns.len() > 20, "{columns:?}");
        let open = "ALTER TABLE attune.audit_log DISABLE TRIGGER USER";
        run(&db, open.to_owned()).await;
        for beyond in BEYOND {
            for (table, column) in &columns {
                run(
                    &db,
                    format!("UPDATE attune.{table} SET {column} = '{beyond}'"),
                )
                .await;
            }
            assert_eq!(store.leases().await.unwrap().len(), 4);
            assert_eq!(store.executors().await.unwrap().len(), 1);
            assert_eq!(store.workers().await.unwrap().len(), 1);
            store.worker_ends().await.unwrap();
            assert!(!store.audit_log(None, 9).await.unwrap().is_empty());
            store.violations(minute, &refs).await.unwrap();
            assert_eq!(store.policy_changes(action).await.unwrap().len(), 1);
            assert_eq!(store.list_queue_stats(None, 9).await.unwrap().total, 1);
            assert!(store.find_by_action(action).await.unwrap().is_some());
            let letters = store.list_dead_letters(&Default::default(), None, 9).await;
            let letters = letters.unwrap();
            let found = store.find_dead_letter(letters[0].id).await.unwrap();
            assert!(found.is_some());
            store.look_up(&requests, &refs).await.unwrap();

            let all = store.scan_active(&every_partition(), None, 99).await;
            assert_eq!(all.unwrap().rows.len(), 8, "{beyond}");
            let page = store.load_partition(owner.action.partition, None, 99).await;
            assert_eq!(page.unwrap().rows.len(), 8, "{beyond}");
            let slots = store.load_slots(&holding).await.unwrap();
            assert_eq!(slots.len(), 4, "{beyond}");
            // Nothing is measured from such a time.
            let measured = |slot: &&attune_store::SlotRow| {
                slot.requested_at.is_some() || slot.running_for.is_some()
            };
            assert_eq!(slots.iter().find(measured), None, "{beyond}");
            let holders = store.slot_holders(action, None, 9).await.unwrap();
            assert_eq!(holders.len(), 4, "{beyond}");
            let list = ExecutionFilter::default();
            let list = store.list_executions(&list, None, 99).await.unwrap();
            assert_eq!(list.executions.len(), 10, "{beyond}");
            for id in waiting.iter().chain(&holding).chain(&ended) {
                let found = store.find_execution(*id).await.unwrap();
                assert!(found.is_some(), "{beyond}: {id}");
            }
        }
    })
    .await;
}

/// A page that ends with a time beyond the program's is followed by what comes after it: nothing comes
/// twice, or a partition would be loaded for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_end_whatever_the_times_are() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(6).await;
        let usual: BTreeSet<ExecutionId> = [ids[0], ids[4], ids[5]].into();
        for beyond in BEYOND {
            for id in &ids[1..4] {
                let set = format!("created = '{beyond}' WHERE id = {id}");
                run(&db, format!("UPDATE attune.execution_active SET {set}")).await;
            }
            let mut loaded = Vec::new();
            let mut after = None;
            loop {
                let page = db.store.load_partition(owner.action.partition, after, 1);
                let page = page.await.unwrap();
                loaded.extend(page.rows.iter().map(|row| row.id));
                assert!(loaded.len() <= ids.len(), "{beyond}: {loaded:?}");
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            let mut listed = Vec::new();
            let mut after: Option<Cursor> = None;
            loop {
                let filter = ExecutionFilter::default();
                let page = db.store.list_executions(&filter, after, 1).await.unwrap();
                listed.extend(page.executions.iter().map(|row| row.id));
                assert!(listed.len() <= ids.len(), "{beyond}: {listed:?}");
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            for pages in [loaded, listed] {
                let seen: BTreeSet<_> = pages.iter().copied().collect();
                assert_eq!(seen.len(), pages.len(), "{beyond}: {pages:?}");
                assert!(seen.is_superset(&usual), "{beyond}: {pages:?}");
                assert!(seen.len() > usual.len(), "{beyond}: {pages:?}");
            }
        }
    })
    .await;
}

/// Whoever is to own a row is told which one it is; what compares many partitions goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_row_is_named_and_compared() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let (waiting, holding) = fill(&db, &mut owner).await;
        let odd = [waiting[1], holding[1]];
        for id in odd {
            let set = format!("priority = 9 WHERE id = {id}");
            run(&db, format!("UPDATE attune.execution_active SET {set}")).await;
        }
        let store = &db.store;
        let words = |id| format!("execution {id}: a stored priority cannot be read: 9");
        for id in odd {
            let error = store.find_execution(id).await.unwrap_err();
            assert!(chain(&error).contains(&words(id)), "{}", chain(&error));
        }
        let page = store.load_partition(owner.action.partition, None, 99).await;
        let error = chain(&page.unwrap_err());
        assert!(error.contains(&words(odd[0])), "{error}");
        let list = ExecutionFilter::default();
        let error = chain(&store.list_executions(&list, None, 99).await.unwrap_err());
        assert!(error.contains(&words(odd[1])), "{error}");

        let slice = store.scan_active(&every_partition(), None, 99).await;
        let slice = slice.unwrap();
        assert_eq!(slice.rows.len(), 8);
        assert_eq!(slice.last, Some(holding[3]));
        let slots = store.load_slots(&holding).await.unwrap();
        assert_eq!(slots.len(), 4);
        // It passes nobody.
        let rows = slice.rows.iter().map(|row| (row.id, row.priority));
        let slots = slots.iter().map(|slot| (slot.id, slot.priority));
        for (id, priority) in rows.chain(slots) {
            let last = odd.contains(&id);
            assert_eq!(priority == Priority::Background, last, "{id}");
        }

        // What is in no state neither waits nor holds a slot, and does not hide the others.
        let gone = waiting[2];
        run(
            &db,
            format!(
                "ALTER TABLE attune.execution_active DROP CONSTRAINT execution_active_status_check;
                 UPDATE attune.execution_active SET status = 'paused' WHERE id = {gone}"
            ),
        )
        .await;
        let slice = store.scan_active(&every_partition(), None, 99).await;
        let seen: Vec<_> = slice.unwrap().rows.iter().map(|row| row.id).collect();
        assert_eq!(seen.len(), 7);
        assert!(!seen.contains(&gone));
        // A row of a partition that was not asked for is none of the asker's business.
        let others = store.scan_active(&[], None, 3).await.unwrap();
        assert!(others.rows.is_empty() && others.last == Some(gone));
    })
    .await;
}

/// What commands need is read without what somebody gave to the execution. Here nobody may read that;
/// a block of it that is lost fails likewise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standing_needs_no_parameters() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(2).await;
        owner.grant(&ids).await;
        owner.end(&ids[1..]).await;
        for table in ["execution_active", "execution_history"] {
            run(
                &db,
                format!(
                    "REVOKE SELECT ON attune.{table} FROM attune_test_plain;
                     GRANT SELECT (id, status, attempt, worker) ON attune.{table}
                         TO attune_test_plain"
                ),
            )
            .await;
        }
        run(
            &db,
            "GRANT SELECT (finished_at) ON attune.execution_history TO attune_test_plain".into(),
        )
        .await;
        for id in ids {
            let error = chain(&db.store.find_execution(id).await.unwrap_err());
            assert!(error.contains("permission denied"), "{error}");
            let standing = db.store.find_standing(id).await.unwrap().unwrap();
            assert_eq!(standing.attempt, Attempt(1), "{id}");
        }
    })
    .await;
}

/// A document that is no JSON that can be read, and operations that nobody could have asked for: one that names nothing
/// would mean every execution.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_cannot_have_said_holds_up_nothing() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        owner.insert(2).await;
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        run(
            &db,
            format!(
                "INSERT INTO attune.policy (scope, target, version, spec, changed_by, set_version)
                 VALUES ('pack', 'tour', 1, '{deep}', 'somebody', 1), ('user', 'ann', 1, '{{}}', 'somebody', 1);
                 UPDATE attune.policy_set SET version = 1"
            ),
        )
        .await;
        let stored = db.store.policies(None).await.unwrap().unwrap();
        let (_, unreadable) = stored.set();
        let unreadable: Vec<String> = unreadable.iter().map(|(it, _)| it.to_string()).collect();
        assert_eq!(unreadable, ["pack tour"]);
        assert_eq!(stored.documents.len(), 2);

        for (kind, filter) in [
            ("cancel", "{}"),
            ("clear", r#"{"user": "ann"}"#),
            ("cancel", r#"{"user": "ann"}"#),
        ] {
            run(
                &db,
                format!(
                    "WITH asked AS (
                         INSERT INTO attune.operation (request_id, kind, filter, args, who)
                         VALUES (gen_random_uuid(), '{kind}', '{filter}', '{{}}', 'somebody') RETURNING id
                     )
                     INSERT INTO attune.operation_progress (operation, partition) SELECT id, 0 FROM asked"
                ),
            )
            .await;
        }
        let open = db.store.open_operations(&every_partition()).await.unwrap();
        let open: Vec<i64> = open.iter().map(|it| it.operation.id.0).collect();
        assert_eq!(open, [3], "only the last one says whom it means");
    })
    .await;
}
