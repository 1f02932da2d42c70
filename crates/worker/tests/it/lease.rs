//! Losing the lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::Bus;
use attune_bus::memory::MemoryBus;
use attune_core::{Attempt, Status};
use attune_record::Record;
use attune_worker::{Worker, WorkerError, WorkerOptions};
use tokio_util::sync::CancellationToken;

use crate::rig::{Mood, Rig, TestStore, echo, is_gone, options, pid_in, sleep, stubborn};

type Change = fn(&mut WorkerOptions);

/// Short enough to wait for its end, long enough that a busy machine does not lose it by itself.
fn short_lease(options: &mut WorkerOptions) {
    options.lease_ttl = Duration::from_secs(2);
}

/// Loses the lease in one way and comes back once that is over.
async fn lose(how: impl Fn(&TestStore), mend: impl Fn(&TestStore)) {
    let mut rig = Rig::start_with(short_lease).await;
    let sign = rig.sign("pid");
    let program = stubborn(1, &sign);
    rig.request(&[program.clone(), sleep(2, 300.0)]).await;
    let pid = pid_in(&sign).await;
    let first = rig.store.change(|state| state.registered[0]);
    how(&rig.store);
    is_gone(&pid).await;
    mend(&rig.store);
    rig.store
        .until("it is back", |state| state.registered.len() > 1)
        .await;
    let second = rig.store.change(|state| *state.registered.last().unwrap());
    assert_ne!(first, second);
    // Its next attempt runs under the new id, beside something new.
    let mut again = echo(1);
    again.attempt = Attempt(2);
    rig.request(&[again, echo(3)]).await;
    for completion in rig.completions(2).await {
        assert_eq!(
            (completion.worker, completion.status),
            (Some(second), Status::Succeeded)
        );
    }
    rig.stop().await;
    assert!(
        !rig.has_more(),
        "what the lost lease ran is reported by nobody"
    );
    let counters = rig.worker.counters();
    assert_eq!(
        (counters.lease_lost.get(), counters.abandoned.get()),
        (1, 2)
    );
    let killed = rig.records().into_iter().filter(|record| {
        matches!(
            record,
            Record::End {
                status: None,
                attempt: Attempt(1),
                ..
            }
        )
    });
    assert_eq!(killed.count(), 2);
    let (mut claims, mut lost) = (Vec::new(), Vec::new());
    for record in rig.all_records() {
        match record {
            Record::Claimed { worker, .. } => claims.push(worker),
            Record::WorkerLost { worker, .. } => lost.push(worker),
            _ => {}
        }
    }
    assert_eq!(
        (claims, lost),
        (vec![first, first, second, second], vec![first])
    );
    assert_eq!(rig.store.change(|state| state.retired.clone()), [second]);
}

#[tokio::test]
async fn a_lease_that_the_store_ended_kills_what_runs() {
    lose(|store| store.change(|state| state.live.clear()), |_| {}).await;
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_kills_what_runs() {
    lose(
        |store| store.change(|state| state.renewing = Mood::Away),
        |store| {
            store.change(|state| {
                state.live.clear();
                state.renewing = Mood::Fine;
            });
        },
    )
    .await;
}

#[tokio::test]
async fn a_store_that_never_answers_kills_what_runs() {
    lose(
        |store| store.change(|state| state.renewing = Mood::Stuck),
        |store| store.change(|state| state.renewing = Mood::Fine),
    )
    .await;
}

#[tokio::test]
async fn renewals_keep_a_lease_through_a_short_outage() {
    let mut rig = Rig::start_with(short_lease).await;
    // Longer than one lease lasts.
    rig.request(&[sleep(1, 2.5)]).await;
    rig.store.change(|state| state.renewing = Mood::Away);
    rig.store
        .until("two renewals failed", |state| state.renewals >= 3)
        .await;
    rig.store.change(|state| state.renewing = Mood::Fine);
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.stop().await;
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);
    assert_eq!(rig.store.change(|state| state.registered.len()), 1);
}

#[tokio::test]
async fn a_claim_whose_answer_comes_after_the_lease_is_lost_runs_nothing() {
    let mut rig = Rig::start_with(short_lease).await;
    rig.store.change(|state| state.hold_claims = true);
    let won = echo(1);
    rig.request(std::slice::from_ref(&won)).await;
    rig.store
        .until("it is claimed", |state| state.running.len() == 1)
        .await;
    // Not claimed by anyone: the store refuses a worker whose lease is over.
    rig.store.change(|state| state.live.clear());
    rig.store
        .until("it is back", |state| state.registered.len() > 1)
        .await;
    rig.store.change(|state| state.hold_claims = false);
    rig.request(&[echo(2)]).await;
    assert_eq!(rig.completion().await.execution_id, echo(2).execution_id);
    rig.all_is_settled().await;
    rig.stop().await;
    assert!(!rig.has_more());
    let counters = rig.worker.counters();
    assert_eq!((counters.abandoned.get(), counters.runs.get()), (1, 1));
    assert_eq!(rig.records().len(), 2, "only the second was run");
}

/// The store's clock jumped, or its owner has ended the lease: the worker learns it by its claim,
/// long before its next renewal.
#[tokio::test]
async fn a_claim_that_tells_of_a_lost_lease_is_made_again_under_the_next() {
    let mut rig = Rig::start().await;
    let sign = rig.sign("pid");
    rig.request(&[stubborn(1, &sign)]).await;
    let pid = pid_in(&sign).await;
    rig.store.change(|state| state.live.clear());
    rig.request(&[echo(2)]).await;
    let completion = rig.completion().await;
    assert_eq!(completion.execution_id, echo(2).execution_id);
    assert_eq!(completion.status, Status::Succeeded);
    // Its slot is somebody else's by now.
    is_gone(&pid).await;
    rig.all_is_settled().await;
    rig.stop().await;
    assert!(!rig.has_more());
    let counters = rig.worker.counters();
    assert_eq!(
        (counters.claims_lost.get(), counters.lease_lost.get()),
        (0, 1)
    );
    assert_eq!(rig.store.change(|state| state.registered.len()), 2);
}

/// An outage of the store, at a tenth of the usual times: a lease of 6 s for one of 60, which bears
/// an outage of two thirds of it.
async fn outage(lasting: Duration) -> (Rig, String) {
    let rig = Rig::start_with(|options| options.lease_ttl = Duration::from_secs(6)).await;
    let sign = rig.sign("pid");
    rig.request(&[stubborn(1, &sign)]).await;
    let pid = pid_in(&sign).await;
    let before = rig.store.change(|state| state.renewals);
    rig.store
        .until("it is renewed", |state| state.renewals > before)
        .await;
    let began = Instant::now();
    rig.store.change(|state| {
        state.renewing = Mood::Away;
        state.claiming = Mood::Away;
    });
    rig.store
        .until("it has lasted", |_| began.elapsed() >= lasting)
        .await;
    rig.store.change(|state| {
        state.renewing = Mood::Fine;
        state.claiming = Mood::Fine;
    });
    (rig, pid)
}

#[tokio::test]
async fn a_store_that_is_away_for_less_than_the_lease_costs_nothing() {
    let (mut rig, pid) = outage(Duration::from_secs(4)).await;
    let renewals = rig.store.change(|state| state.renewals);
    rig.store
        .until("it is renewed again", |state| state.renewals > renewals + 1)
        .await;
    assert!(std::fs::exists(format!("/proc/{pid}")).unwrap());
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);
    assert_eq!(rig.store.change(|state| state.registered.len()), 1);
    rig.cancel(&[&stubborn(1, &rig.sign("pid"))]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.stop().await;
}

#[tokio::test]
async fn a_store_that_is_away_for_longer_costs_what_runs() {
    let (mut rig, pid) = outage(Duration::from_secs(8)).await;
    is_gone(&pid).await;
    rig.store
        .until("it is back", |state| state.registered.len() > 1)
        .await;
    rig.stop().await;
    assert!(!rig.has_more(), "nothing is reported of what was killed");
    assert_eq!(rig.worker.counters().lease_lost.get(), 1);
}

#[tokio::test]
async fn what_a_dead_lease_could_not_claim_is_claimed_by_the_next() {
    let mut rig = Rig::start_with(short_lease).await;
    rig.store.change(|state| {
        state.hold_claims = true;
        state.live.clear();
    });
    rig.request(&[echo(1)]).await;
    rig.store
        .until("it is back", |state| state.registered.len() > 1)
        .await;
    rig.store.change(|state| state.hold_claims = false);
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.stop().await;
    assert_eq!(rig.worker.counters().claims_lost.get(), 0);
}

#[tokio::test]
async fn a_worker_waits_for_its_store_and_can_be_stopped_while_it_waits() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(TestStore::default());
    store.change(|state| state.renewing = Mood::Away);
    let shutdown = CancellationToken::new();
    let bus = Arc::new(MemoryBus::new());
    let start = |shutdown: &CancellationToken| {
        let (options, bus, store) = (options(dir.path()), bus.clone(), store.clone());
        tokio::spawn(Worker::start(options, bus, store, None, shutdown.clone()))
    };
    let waiting = start(&shutdown);
    shutdown.cancel();
    assert!(matches!(waiting.await.unwrap(), Err(WorkerError::Stopped)));

    let shutdown = CancellationToken::new();
    let waiting = start(&shutdown);
    store.change(|state| state.renewing = Mood::Fine);
    let worker = waiting.await.unwrap().unwrap();
    shutdown.cancel();
    worker.await.unwrap();
    assert_eq!(store.change(|state| state.retired.len()), 1);
}

#[tokio::test]
async fn impossible_options_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(TestStore::default());
    let bus = Arc::new(MemoryBus::new());
    let impossible: [(Change, &str); 4] = [
        (|options| options.slots = 0, "0 slots"),
        (|options| options.pool.clear(), "a name and a pool"),
        (
            |options| options.lease_ttl = Duration::ZERO,
            "the lease must last",
        ),
        (
            |options| options.max_message_bytes = 100,
            "at least 4096 bytes",
        ),
    ];
    for (change, words) in impossible {
        let mut options = options(dir.path());
        change(&mut options);
        let shutdown = CancellationToken::new();
        let started = Worker::start(options, bus.clone(), store.clone(), None, shutdown).await;
        let Err(WorkerError::Options(problem)) = started else {
            panic!("{words}")
        };
        assert!(problem.contains(words), "{problem}");
    }
    assert!(store.change(|state| state.registered.is_empty()));
}

#[tokio::test]
async fn a_store_or_bus_that_refuses_for_good_is_no_reason_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(TestStore::default());
    let bus = Arc::new(MemoryBus::new());
    let start = || {
        let (options, bus, store) = (options(dir.path()), bus.clone(), store.clone());
        Worker::start(options, bus, store, None, CancellationToken::new())
    };
    store.change(|state| state.renewing = Mood::Foreign);
    assert!(matches!(start().await, Err(WorkerError::Store(_))));
    store.change(|state| state.renewing = Mood::Fine);
    bus.close().await;
    let error = start().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the bus refuses the worker's subscription to `execution.cancel`"
    );
    assert_eq!(
        store.change(|state| state.retired.len()),
        1,
        "its lease is given back"
    );
}
