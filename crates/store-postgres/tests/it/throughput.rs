//! What one execution's life costs the server. Not a test of speed: run it on purpose with
//! `cargo test -p attune-store-postgres --release -- --ignored --nocapture`.
//!
//! To compare two versions, keep the test program of each and run them in turns: the machine differs more
//! from one minute to the next than they do.

use std::time::{Duration, Instant};

use attune_core::{ActionId, Attempt, ExecutionId, PartitionId, QueueTotals, Status, WorkerId};
use attune_store::{Batch, NewExecution, PartitionStore as _, Update};

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
    let pids = backends(db).await;
    used(&pids) as f64 / 1e9
}

/// The backends of this database's store.
async fn backends(db: &TestDb) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'attune %'",
    )
    .fetch_all(&db.sql)
    .await
    .unwrap()
}

/// Nanoseconds of CPU that these processes have used.
fn used(pids: &[i32]) -> u64 {
    let of_one = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        stat.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    pids.iter().map(of_one).sum()
}

async fn wal(db: &TestDb) -> f64 {
    let bytes: i64 = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        .fetch_one(&db.sql)
        .await
        .unwrap();
    bytes as f64
}

/// How many actions the executions of [`the_cost_of_a_commit`] belong to.
const ACTIONS: usize = 100;

/// What one commit costs in the steady flow of many short executions: those that are accepted and granted at
/// once, and the ends of those of the commit before. Medians, so that what disturbs some of them does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn the_cost_of_a_commit() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let worker = db.worker().await;
        let mut actions = Vec::new();
        for number in 0..ACTIONS {
            actions.push(db.action(&format!("test.action-{number:03}")).await);
        }
        for size in [1, 16, 256] {
            let mut flow = Flow::default();
            let mut commits = Vec::new();
            let rounds = 20 + 10_000 / size.max(16);
            for round in 0..rounds {
                let new = (0..size).map(|place| {
                    let action = &actions[(round * 37 + place * 61) % ACTIONS];
                    NewExecution {
                        action_id: action.id,
                        status: Status::Requested,
                        attempt: Attempt(1),
                        grant_no: Some(1),
                        worker: Some(worker),
                        ..owner.queued()
                    }
                });
                let new: Vec<NewExecution> = new.collect();
                let cost = flow.commit(&db, &owner, new).await;
                // The first ones make plans, and the planner sees the table filled after some.
                match round {
                    10 => analyze(&db).await,
                    20.. => commits.push(cost),
                    _ => {}
                }
            }
            println!("{}", flow.line(size, &mut commits));
            flow.commit(&db, &owner, Vec::new()).await;
        }
    })
    .await;
}

async fn analyze(db: &TestDb) {
    sqlx::raw_sql("ANALYZE attune.execution_active")
        .execute(&db.sql)
        .await
        .unwrap();
}

/// A flow of executions that end in the commit after the one that accepts them.
#[derive(Default)]
struct Flow {
    running: Vec<(ExecutionId, ActionId)>,
    totals: std::collections::BTreeMap<ActionId, QueueTotals>,
}

/// What one commit took.
struct Cost {
    /// Nanoseconds of the server's CPU.
    cpu: u64,
    wall: Duration,
    /// Bytes that the server wrote ahead.
    wal: f64,
}

impl Flow {
    async fn commit(&mut self, db: &TestDb, owner: &Owner, inserts: Vec<NewExecution>) -> Cost {
        let next = inserts.iter().map(|new| (new.id, new.action_id)).collect();
        let ended = std::mem::replace(&mut self.running, next);
        let mut totals = std::collections::BTreeMap::new();
        for (_, action) in &self.running {
            self.totals.entry(*action).or_default().enqueued += 1;
            totals.insert(*action, self.totals[action]);
        }
        for (_, action) in &ended {
            self.totals.entry(*action).or_default().completed += 1;
            totals.insert(*action, self.totals[action]);
        }
        let batch = Batch {
            inserts,
            ends: ended.iter().map(|(id, _)| succeeded(*id)).collect(),
            totals: totals.into_iter().collect(),
            ..owner.batch()
        };
        let pids = backends(db).await;
        let (cpu, wal) = (used(&pids), wal(db).await);
        let began = Instant::now();
        let committed = db.store.commit(&batch).await.unwrap();
        let wall = began.elapsed();
        assert_eq!(committed.ended, u64::try_from(ended.len()).unwrap());
        Cost {
            cpu: used(&pids) - cpu,
            wall,
            wal: self::wal(db).await - wal,
        }
    }

    fn line(&self, size: usize, commits: &mut [Cost]) -> String {
        let each = |total: f64| total / size as f64;
        let place = commits.len() / 2;
        commits.sort_unstable_by_key(|cost| cost.cpu);
        let cpu = commits[place].cpu as f64 / 1e3;
        commits.sort_unstable_by_key(|cost| cost.wall);
        let wall = commits[place].wall.as_secs_f64() * 1e6;
        let wal: f64 = commits.iter().map(|cost| cost.wal).sum();
        format!(
            "{size:>4} accepted, {size:>4} ended: {:>6.1} µs of PostgreSQL, {:>6.1} µs wall, {:>5.0} B of WAL an execution",
            each(cpu),
            each(wall),
            each(wal / commits.len() as f64),
        )
    }
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
