//! How many executions live from request to end in a second. Run it with
//! `cargo nextest run -p attune-store-sqlite --run-ignored only measure --no-capture`.

use std::time::{Duration, Instant};

use attune_core::{ExecutionId, WorkerId};
use attune_store::{Batch, PartitionStore as _, Store as _, Update, WorkerLease, WorkerStore as _};
use attune_store_sqlite::SqliteStore;

use crate::support::{LONG, Owner, end, grant};

/// Batch size and how many of them.
const ROUNDS: [(u32, u32); 3] = [(1, 400), (50, 100), (500, 40)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_lives() {
    for (size, rounds) in ROUNDS {
        let took = one_after_another(size, rounds).await;
        report("each with its start", size, rounds, &took);
        let took = overlapping(size, rounds).await;
        report("steady state", size, rounds, &took);
    }
}

/// The mean time of each kind of call, and of the whole.
struct Took {
    calls: Vec<(&'static str, Duration)>,
    whole: Duration,
}

fn report(what: &str, size: u32, rounds: u32, took: &Took) {
    let lives = f64::from(size * rounds) / took.whole.as_secs_f64();
    let calls: Vec<_> = took
        .calls
        .iter()
        .map(|(name, sum)| format!("{name} {:.2?}", *sum / rounds))
        .collect();
    println!(
        "{what}: batch {size}: {lives:.0} lives/s; {}",
        calls.join(", ")
    );
}

/// Accept, grant, start, end: each waits for the one before.
async fn one_after_another(size: u32, rounds: u32) -> Took {
    let (store, mut owner, worker) = prepared().await;
    let mut sums = [Duration::ZERO; 4];
    let start = Instant::now();
    for round in 0..rounds {
        let inserts = owner.queued(size);
        let ids: Vec<_> = inserts.iter().map(|new| new.id).collect();
        let totals = owner.totals(round.into());
        let accept = Batch {
            inserts,
            totals: totals.clone(),
            ..owner.batch()
        };
        let grants = Batch {
            updates: ids.iter().map(|id| granted(*id, worker)).collect(),
            totals: totals.clone(),
            ..owner.batch()
        };
        let starts = Batch {
            updates: ids.iter().map(|id| started(*id)).collect(),
            ..owner.batch()
        };
        let ends = Batch {
            ends: ids.iter().copied().map(end).collect(),
            totals,
            ..owner.batch()
        };
        let mut lap = Lap::start();
        store.commit(&accept).await.unwrap();
        lap.end(&mut sums[0]);
        let granted = store.commit(&grants).await.unwrap().granted;
        assert_eq!(granted.len(), ids.len());
        lap.end(&mut sums[1]);
        store.commit(&starts).await.unwrap();
        lap.end(&mut sums[2]);
        let ended = store.commit(&ends).await.unwrap().ended;
        assert_eq!(ended, ids.len() as u64);
        lap.end(&mut sums[3]);
    }
    let whole = start.elapsed();
    store.close().await;
    Took {
        calls: ["accept", "grant", "start", "end"]
            .into_iter()
            .zip(sums)
            .collect(),
        whole,
    }
}

/// As an owner works under load: each batch accepts some, grants the ones before and ends those
/// before them, too short to have said that they started.
async fn overlapping(size: u32, rounds: u32) -> Took {
    let (store, mut owner, worker) = prepared().await;
    let mut sums = [Duration::ZERO; 1];
    let (mut waiting, mut running): (Vec<ExecutionId>, Vec<ExecutionId>) = Default::default();
    let start = Instant::now();
    for round in 0..rounds + 2 {
        let inserts = if round < rounds {
            owner.queued(size)
        } else {
            Vec::new()
        };
        let new: Vec<_> = inserts.iter().map(|new| new.id).collect();
        let batch = Batch {
            inserts,
            updates: waiting.iter().map(|id| granted(*id, worker)).collect(),
            ends: running.iter().copied().map(end).collect(),
            totals: owner.totals(round.into()),
            ..owner.batch()
        };
        let mut lap = Lap::start();
        let committed = store.commit(&batch).await.unwrap();
        assert_eq!(committed.granted.len(), waiting.len());
        assert_eq!(committed.ended, running.len() as u64);
        lap.end(&mut sums[0]);
        running = std::mem::replace(&mut waiting, new);
    }
    let whole = start.elapsed();
    assert_eq!(owner.active().await, 0);
    store.close().await;
    Took {
        calls: ["commit"].into_iter().zip(sums).collect(),
        whole,
    }
}

struct Lap(Instant);

impl Lap {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn end(&mut self, sum: &mut Duration) {
        *sum += self.0.elapsed();
        self.0 = Instant::now();
    }
}

async fn prepared() -> (SqliteStore, Owner, WorkerId) {
    let store = SqliteStore::temporary().await.unwrap();
    let owner = Owner::of(&store).await;
    let lease = WorkerLease {
        worker: WorkerId::fresh(),
        name: "w".to_owned(),
        pool: "default".to_owned(),
        slots: 500,
        draining: false,
        ttl: LONG,
        broker_user: None,
        principal: None,
    };
    store.renew_worker(&lease).await.unwrap();
    (store, owner, lease.worker)
}

fn granted(id: ExecutionId, worker: WorkerId) -> Update {
    Update {
        worker: Some(worker),
        ..grant(id)
    }
}

fn started(id: ExecutionId) -> Update {
    Update {
        status: None,
        started: Some(chrono::Utc::now()),
        ..grant(id)
    }
}
