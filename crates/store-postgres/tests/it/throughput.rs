//! What one execution's life costs the server. Not a test of speed: run it on purpose with
//! `cargo test -p attune-store-postgres --release -- --ignored --nocapture`.

use std::time::Instant;

use attune_core::{ExecutionId, PartitionId, QueueTotals, WorkerId};
use attune_store::{Batch, PartitionStore as _, Update};

use crate::support::{Owner, TestDb, grant, on_fresh_db, start, succeeded};

/// How many executions live in each round.
const LIVES: usize = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn the_cost_of_a_life() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let worker = db.worker().await;
        for batch in [1, 10, 50, 200, 500, 1_000] {
            let lives = if batch < 50 { LIVES / 20 } else { LIVES };
            // The first round of each size warms plans and pages up.
            for (round, length) in [
                ("warm", Length::Long),
                ("measured", Length::Short),
                ("measured", Length::Long),
            ] {
                let line = measure(&db, &mut owner, worker, length, batch, lives).await;
                if round == "measured" {
                    println!("{line}");
                }
            }
        }
        let left = db
            .count("SELECT count(*) FROM attune.execution_active")
            .await;
        assert_eq!(left, 0);
    })
    .await;
}

/// How long an execution runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// Its start is written with its end.
    Short,
    /// Its start is written before its end.
    Long,
}

/// Pipelines the stages as an owner does: one commit holds the inserts of a batch, the grants of
/// the one before, the starts of the one before that where it runs for long, and the ends of the one
/// before.
async fn measure(
    db: &TestDb,
    owner: &mut Owner,
    worker: WorkerId,
    length: Length,
    batch: usize,
    lives: usize,
) -> String {
    let before = cpu(db).await;
    let wal = wal(db).await;
    let began = Instant::now();
    let mut stages: [Vec<ExecutionId>; 3] = Default::default();
    let mut done = 0;
    let mut inserted = 0;
    while done < lives {
        let inserts: Vec<_> = (0..batch.min(lives - inserted))
            .map(|_| owner.queued())
            .collect();
        inserted += inserts.len();
        let next = inserts.iter().map(|new| new.id).collect();
        let totals = QueueTotals {
            enqueued: u64::try_from(inserted).unwrap(),
            ..QueueTotals::default()
        };
        let [waiting, running, ending] = &stages;
        let granted = waiting.iter().map(|id| Update {
            worker: Some(worker),
            ..grant(*id)
        });
        let started = running.iter().map(|id| start(*id));
        let started = started.filter(|_| length == Length::Long);
        let round = Batch {
            inserts,
            updates: granted.chain(started).collect(),
            ends: ending.iter().map(|id| succeeded(*id)).collect(),
            totals: vec![(owner.action.id, totals)],
            ..owner.batch()
        };
        db.store.commit(&round).await.unwrap();
        done += ending.len();
        let [waiting, running, _] = stages;
        stages = match length {
            Length::Long => [next, waiting, running],
            Length::Short => [next, Vec::new(), waiting],
        };
    }
    let wall = began.elapsed();
    let cpu = cpu(db).await - before;
    let wal = self::wal(db).await - wal;
    let each = |total: f64| total / lives as f64;
    format!(
        "{length:?}, batch {batch:>5}: {:>6.0} lives/s wall, {:>6.1} µs of PostgreSQL a life = {:>6.0} lives/s of CPU, {:.0} B of WAL a life",
        lives as f64 / wall.as_secs_f64(),
        each(cpu * 1e6),
        lives as f64 / cpu,
        each(wal),
    )
}

/// CPU seconds that the backends of this database's store have used: the server must run on
/// this machine.
async fn cpu(db: &TestDb) -> f64 {
    let pids: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'attune %'",
    )
    .fetch_all(&db.sql)
    .await
    .unwrap();
    let ticks: u64 = pids
        .iter()
        .map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            let fields: Vec<&str> = fields.split(' ').collect();
            // utime and stime, the 14th and 15th field of the line.
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum();
    ticks as f64 / 100.0
}

async fn wal(db: &TestDb) -> f64 {
    let bytes: i64 = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        .fetch_one(&db.sql)
        .await
        .unwrap();
    bytes as f64
}

/// How fast a new owner gets a long queue back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn the_cost_of_a_takeover() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        for _ in 0..100 {
            owner.insert(1_000).await;
        }
        let start = Instant::now();
        let (mut after, mut count) = (None, 0);
        for place in (0..4).map(PartitionId) {
            loop {
                let page = db.store.load_partition(place, after, 10_000).await.unwrap();
                count += page.rows.len();
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        assert_eq!(count, 100_000);
        println!("100,000 waiting executions load in {:?}", start.elapsed());
    })
    .await;
}
