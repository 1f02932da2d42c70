//! Updates stay on their page (HOT): grants and starts write no index.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use attune_store::Store as _;
use attune_store_postgres::sql::{self, CommitOf, Part};
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::{TestDb, eventually, on_fresh_db};

/// As many as a batch at full load.
const COUNT: usize = 500;

/// An update is HOT when no index covers what it changes (another test sees to that) and when
/// the new version finds room on the page of the old one. A grant always does. A start does
/// once the version before the grant can be cleared away, which the server cannot do while a
/// transaction of any database of the server is older; so it may take a few rounds here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_and_starts_are_hot() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let worker = db.worker().await;
        let start = Instant::now();
        loop {
            let ids = owner.insert(COUNT).await;
            let inserted = pages(&db).await;
            owner.grant_to(worker, &ids).await;
            let granted = pages(&db).await;
            let stayed = same(&inserted, &granted);
            assert!(stayed * 100 >= COUNT * 99, "only {stayed} grants were HOT");

            owner.start(&ids).await;
            let running = "SELECT count(*) FROM attune.execution_active WHERE status = 'running'";
            assert_eq!(db.count(running).await, COUNT as i64);
            let stayed = same(&granted, &pages(&db).await);
            if stayed * 100 >= COUNT * 95 {
                break;
            }
            let waited = start.elapsed();
            assert!(
                waited < Duration::from_secs(30),
                "only {stayed} starts were HOT"
            );
            owner.end(&ids).await;
        }
    })
    .await;
}

/// The page of each active execution.
async fn pages(db: &TestDb) -> HashMap<i64, i64> {
    let rows: Vec<(i64, i64)> =
        sqlx::query_as("SELECT id, (ctid::text::point)[0]::bigint FROM attune.execution_active")
            .fetch_all(&db.sql)
            .await
            .unwrap();
    rows.into_iter().collect()
}

fn same(before: &HashMap<i64, i64>, after: &HashMap<i64, i64>) -> usize {
    assert_eq!(before.len(), after.len());
    before
        .iter()
        .filter(|(id, page)| after.get(id) == Some(page))
        .count()
}

/// The plans keep to index probes although the table was empty when the planner looked: however
/// many executions wait, a round reads only its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_reads_only_its_own_rows() {
    const ROUND: usize = 200;
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let worker = db.worker().await;
        for full in [false, true] {
            if full {
                for _ in 0..10 {
                    owner.insert(1_000).await;
                }
            }
            let ids = owner.insert(ROUND).await;
            owner.grant_to(worker, &ids).await;
            owner.start(&ids).await;
            owner.end(&ids).await;
            // Plans that were made by now are thrown away by this, and made anew.
            sqlx::raw_sql("VACUUM ANALYZE attune.execution_active, attune.request")
                .execute(&db.sql)
                .await
                .unwrap();
        }
        db.store.close().await;
        let read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
             WHERE relid = 'attune.execution_active'::regclass";
        let written = "SELECT n_tup_del FROM pg_stat_user_tables
             WHERE relid = 'attune.execution_active'::regclass";
        eventually("the statistics arrive", || async {
            (db.count(written).await == i64::try_from(2 * ROUND).unwrap()).then_some(())
        })
        .await;
        // Each of two rounds finds its rows three times: grant, start, end.
        let read = db.count(read).await;
        let needed = i64::try_from(2 * 3 * ROUND).unwrap();
        assert!(
            read <= 3 * needed,
            "{read} index entries read, {needed} needed"
        );
    })
    .await;
}

/// So many that each index has more than a page.
const COME_AND_GONE: &str = "
INSERT INTO attune.execution_active
    (id, action, created, request_id, attempt, priority, status, action_ref, parameters)
SELECT n, n % 50, now() + n * interval '1 ms', gen_random_uuid(), 0, 2, 'queued', 'p.a', '{}'
FROM generate_series(1, 20000) AS n;
DELETE FROM attune.execution_active";

/// How an owner's session plans.
const AS_AN_OWNER: &str = "
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;
SET enable_nestloop = off; SET enable_mergejoin = off";

/// On a table that was emptied and vacuumed all indexes look the same, and a plan that is made then stays until the
/// table is analysed. Any index with the id in it would do, and is read whole for each id.
#[tokio::test]
async fn a_commit_finds_executions_by_nothing_but_their_key() {
    on_fresh_db(|db| async move {
        let mut session = db.sql.acquire().await.unwrap();
        let vacuum = "VACUUM ANALYZE attune.execution_active";
        for prepare in [COME_AND_GONE, vacuum, AS_AN_OWNER] {
            sqlx::raw_sql(prepare).execute(&mut *session).await.unwrap();
        }
        for bits in 0..1 << Part::ALL.len() {
            let parts = Part::ALL.into_iter();
            let parts = parts.filter(|part| bits & 1 << *part as u16 != 0);
            let of = CommitOf::parts(parts);
            let needs = of.has(Part::Instant) || of.has(Part::Traced);
            if needs && !of.has(Part::Accepts) {
                continue;
            }
            let finding = [Part::Grants, Part::Changes, Part::Ends];
            let finding = finding.into_iter().filter(|part| of.has(*part)).count();
            let text = sql::commit(of);
            let is_there = |n: &usize| text.contains(&format!("${n}::"));
            let count = (1..=99).filter(is_there).max().unwrap();
            let nulls = vec!["NULL"; count].join(", ");
            let prepare = format!("PREPARE of_{bits} AS {text}");
            let explain = format!("EXPLAIN EXECUTE of_{bits}({nulls})");
            sqlx::raw_sql(AssertSqlSafe(prepare))
                .execute(&mut *session)
                .await
                .unwrap();
            let plan = sqlx::raw_sql(AssertSqlSafe(explain))
                .fetch_all(&mut *session)
                .await
                .unwrap();
            let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
            let uses =
                |line: &&String| line.contains("Scan") && line.contains(" on execution_active");
            let (by_key, others): (Vec<_>, Vec<_>) = plan
                .iter()
                .filter(uses)
                .partition(|line| line.contains("Index Scan using execution_active_pkey"));
            assert!(
                others.is_empty() && by_key.len() == finding,
                "{}",
                plan.join("\n")
            );
        }
    })
    .await;
}

/// The lease rows are written with every commit and renewal; they must not bloat either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_hot() {
    on_fresh_db(|db| async move {
        use attune_store::PartitionStore as _;
        let owner = db.owner().await;
        for _ in 0..200 {
            let ttl = std::time::Duration::from_secs(15);
            let held = owner.store.renew(owner.id, &owner.fences, ttl).await;
            assert_eq!(held.unwrap().len(), 4);
        }
        db.store.close().await;
        let (updates, hot): (i64, i64) = eventually("the statistics arrive", || async {
            let row: (i64, i64) = sqlx::query_as(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                 WHERE relid = 'attune.partition_lease'::regclass",
            )
            .fetch_one(&db.sql)
            .await
            .unwrap();
            (row.0 >= 800).then_some(row)
        })
        .await;
        assert!(hot * 100 >= updates * 95, "only {hot} of {updates}");
    })
    .await;
}

/// A full disk refuses new pages, and leases must be renewed all the same, also while every one of
/// them says so: their pages have room for a second version of each row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_in_trouble_need_no_new_page() {
    /// What a page has beside its header.
    const PAGE: i64 = 8_168;
    on_fresh_db(|db| async move {
        use attune_core::{OwnerId, PartitionId};
        use attune_store::{PartitionStore as _, TroubleNote};
        let (store, owner) = (&db.store, OwnerId::fresh());
        let count = PartitionId::MAX_COUNT;
        store.ensure_partitions(count).await.unwrap();
        let all: Vec<_> = (0..count).map(PartitionId).collect();
        let ttl = Duration::from_secs(15);
        let held = store.acquire(owner, "executor-1", &all, ttl).await.unwrap();
        let size = async || {
            db.count("SELECT pg_relation_size('attune.partition_lease')")
                .await
        };
        let before = size().await;
        let note = |(partition, epoch): (PartitionId, _)| TroubleNote {
            partition,
            epoch,
            trouble: Some((ttl, "x".repeat(163))),
        };
        let notes: Vec<_> = held.into_iter().map(note).collect();
        store.note_trouble(owner, &notes).await.unwrap();
        assert_eq!(size().await, before, "the table has grown");
        // With its line pointer, and rounded up.
        let fullest = "SELECT max(bytes) FROM (
                SELECT sum(pg_column_size(l.*) + 4 + 7) AS bytes FROM attune.partition_lease l
                GROUP BY (ctid::text::point)[0]
            ) AS pages";
        let fullest = db.count(fullest).await;
        assert!(2 * fullest <= PAGE, "{fullest} bytes on a page");
    })
    .await;
}
