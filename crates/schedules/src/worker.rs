//! The worker's outbox and its lease.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{ActionId, Attempt, ExecutionId, Status, WorkerId};
use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_store::{StoreError, WorkerLease, WorkerRow, WorkerStore};
use shuttle::future::{JoinHandle, block_on, spawn};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

use crate::guard::Guard;
use crate::lease::{Leases, Registered};
use crate::options::WorkerOptions;
use crate::outbox::{Batch, Outbox, Way};
use crate::time::{self, Instant};

const HOUR: Duration = Duration::from_secs(3600);

fn completion(id: i64) -> ExecutionCompleted {
    ExecutionCompleted(Completion {
        execution_id: ExecutionId(id),
        attempt: Attempt(1),
        action_id: ActionId(1),
        status: Status::Succeeded,
        result: None,
        error: None,
        code: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        partition: None,
        worker: None,
        broker_user: None,
        started_at: None,
        finished_at: None,
    })
}

/// Puts so many in, at once.
fn push(outbox: &Arc<Outbox>, ids: std::ops::RangeInclusive<i64>) {
    let runs: Vec<_> = ids
        .map(|id| {
            let outbox = Arc::clone(outbox);
            spawn(async move { outbox.push(completion(id)) })
        })
        .collect();
    for run in runs {
        block_on(run).unwrap();
    }
}

fn keys(batch: &Batch) -> Vec<(ExecutionId, Attempt)> {
    let letters = batch.letters.iter();
    let keys = letters.map(|letter| (letter.item.0.execution_id, Attempt(1)));
    keys.collect()
}

/// Reads what goes one way until the end: all of it is settled when it is confirmed, but what the quick
/// way does not take, with which this is.
fn read(outbox: &Arc<Outbox>, way: Way, refused: i64) -> JoinHandle<Vec<i64>> {
    let outbox = Arc::clone(outbox);
    spawn(async move {
        let mut read = Vec::new();
        while let Some(batch) = outbox.next(way, 2).await {
            let keys = keys(&batch);
            if way == Way::Quick && keys.iter().any(|key| key.0.0 == refused) {
                outbox.refused(batch);
                continue;
            }
            read.extend(keys.iter().map(|key| key.0.0));
            let owner = Arc::clone(&outbox);
            spawn(async move { owner.settle(&keys) });
            outbox.confirmed(batch);
        }
        read
    })
}

/// Everything that is put in comes out, the readers hear of the end, and whoever waits for room
/// hears of every settlement, whether it comes before the confirm or after it.
pub fn the_outbox_wakes_its_readers_and_whoever_waits_for_room() {
    let outbox = Arc::new(Outbox::new(HOUR));
    let readers = [Way::Quick, Way::Lasting].map(|way| read(&outbox, way, 2));
    push(&outbox, 1..=3);
    block_on(async {
        while outbox.unconfirmed() > 0 || outbox.unsettled() > 0 {
            outbox.emptied().await;
        }
    });
    outbox.close();
    let mut read = readers.map(|reader| block_on(reader).unwrap()).concat();
    read.sort_unstable();
    assert_eq!(read, [1, 2, 3]);
}

/// What nobody has settled when the worker ends goes the lasting way, wherever it is then.
pub fn a_closed_outbox_lets_everything_out() {
    let outbox = Arc::new(Outbox::new(HOUR));
    let quick = spawn({
        let outbox = Arc::clone(&outbox);
        async move {
            while let Some(batch) = outbox.next(Way::Quick, 2).await {
                shuttle::future::yield_now().await;
                outbox.confirmed(batch);
            }
        }
    });
    let lasting = spawn({
        let outbox = Arc::clone(&outbox);
        async move {
            let mut read = Vec::new();
            while let Some(batch) = outbox.next(Way::Lasting, 2).await {
                read.extend(keys(&batch).iter().map(|key| key.0.0));
                outbox.confirmed(batch);
            }
            read
        }
    });
    push(&outbox, 1..=3);
    outbox.close();
    block_on(quick).unwrap();
    let mut read = block_on(lasting).unwrap();
    read.sort_unstable();
    assert_eq!(read, [1, 2, 3]);
    assert_eq!((outbox.unconfirmed(), outbox.unsettled()), (0, 0));
}

/// A store that says so once, and then refuses or is away.
struct Store {
    renewals: AtomicUsize,
    /// When the lease ends, in its eyes.
    expires: Mutex<Instant>,
}

#[async_trait]
impl WorkerStore for Store {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let renewals = self.renewals.fetch_add(1, Ordering::SeqCst);
        if renewals >= 2 {
            return Err(StoreError::Unavailable("it is away".into()));
        }
        let mut expires = self.expires.lock().unwrap();
        if renewals > 0 && Instant::now() >= *expires {
            return Err(StoreError::Conflict("it has expired".to_owned()));
        }
        *expires = Instant::now() + lease.ttl;
        Ok(())
    }

    async fn worker_over(
        &self,
        _: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn retire_worker(
        &self,
        _: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn principal_of(&self, _: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        Ok(None)
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        Ok(Vec::new())
    }
}

/// A life is over before the store says so, and whoever runs something hears of it.
pub fn a_life_ends_before_its_lease() {
    let options = WorkerOptions::default();
    let store = Arc::new(Store {
        renewals: AtomicUsize::new(0),
        expires: Mutex::new(Instant::now()),
    });
    let leases = Leases::new(&options, store.clone(), Arc::new(Guard), Box::new(|_| {}));
    let leases = Arc::new(leases);
    let shutdown = CancellationToken::new();
    let registered = block_on(leases.register(WorkerId::fresh(), &shutdown, || ()));
    let Ok(Registered::Life(life)) = registered else {
        panic!("the store takes its lease");
    };
    let run = spawn({
        let life = Arc::clone(&life);
        async move { life.over().cancelled().await }
    });
    let clock = spawn(async move {
        for _ in 0..12 {
            time::advance(options.lease_ttl / 6);
            shuttle::future::yield_now().await;
        }
    });
    let watch = spawn({
        let (life, store) = (Arc::clone(&life), Arc::clone(&store));
        async move {
            for _ in 0..12 {
                let expires = *store.expires.lock().unwrap();
                if Instant::now() >= expires {
                    // Another renewal may have come between the two looks.
                    let still = *store.expires.lock().unwrap() == expires;
                    assert!(!still || life.is_over());
                }
                shuttle::future::yield_now().await;
            }
        }
    });
    for task in [clock, watch, run] {
        block_on(task).unwrap();
    }
    assert!(life.is_over());
}
