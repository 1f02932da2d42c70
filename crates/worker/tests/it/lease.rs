//! Losing the lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::Bus;
use attune_bus::memory::MemoryBus;
use attune_core::{Attempt, Status};
use attune_record::Record;
use attune_worker::{Worker, WorkerError, WorkerOptions};
use tokio_util::sync::CancellationToken;

use crate::rig::{Rig, again, echo, is_gone, options, pid_in, sleep, stubborn, until};
use crate::store::{Mood, State, TestStore};

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
    let first = rig.grant(&[program.clone(), sleep(2, 300.0)]).await;
    let pid = pid_in(&sign).await;
    how(&rig.store);
    is_gone(&pid).await;
    mend(&rig.store);
    let second = rig.owner.next_life().await;
    // Its next attempt runs under the new id, beside something new.
    rig.grant(&[again(&echo(1)), echo(3)]).await;
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
    let (mut taken, mut lost) = (Vec::new(), Vec::new());
    for record in rig.all_records() {
        match record {
            Record::Taken { worker, .. } => taken.push(worker),
            Record::WorkerLost { worker, .. } => lost.push(worker),
            _ => {}
        }
    }
    assert_eq!(
        (taken, lost),
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
    rig.grant(&[sleep(1, 2.5)]).await;
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

/// It would be lost with a lease that ends before anybody knows of it, and count as a try.
#[tokio::test]
async fn nothing_waits_for_a_life_while_nobody_knows_whether_it_is_registered() {
    let mut rig = Rig::start_with(short_lease).await;
    let first = rig.life().await;
    rig.store.change(|state| {
        state.live.clear();
        state.renewing = Mood::Unheard;
    });
    let is_tried_again = |state: &State| {
        let second = state.registered.get(1);
        second.is_some_and(|second| state.asked[second] >= 2)
    };
    rig.store
        .until("the next is asked for again", is_tried_again)
        .await;
    let second = rig.store.change(|state| state.registered[1]);
    assert_ne!(first, second);
    let early = rig.owner.grant(second, &[echo(1)]);
    assert!(rig.owner.send(&early).await.is_err(), "it comes back");
    rig.store.change(|state| state.renewing = Mood::Fine);
    assert_eq!(rig.owner.next_life().await, second);
    rig.send(&early).await;
    assert_eq!(rig.completion().await.worker, Some(second));
    rig.stop().await;
}

/// What was granted to a life ends with it: whoever takes its slots back decides what becomes of it.
#[tokio::test]
async fn a_lost_lease_forgets_everything_that_it_held() {
    let mut rig = Rig::start_with(|options| {
        short_lease(options);
        options.slots = 1;
        options.retell_after = Duration::from_millis(50);
    })
    .await;
    rig.settles = false;
    let sign = rig.sign("pid");
    let (ended, running, waiting) = (echo(1), stubborn(2, &sign), echo(3));
    let first = rig.grant(std::slice::from_ref(&ended)).await;
    rig.completion().await;
    rig.grant(&[running, waiting.clone()]).await;
    pid_in(&sign).await;
    rig.gives_back(&[&waiting]).await;
    let late = rig.owner.grant(first, &[echo(4)]);
    rig.store.change(|state| state.live.clear());
    let second = rig.owner.next_life().await;
    let counters = rig.worker.counters();
    until("nothing is kept", || counters.kept.get() == 0).await;
    assert!(rig.owner.send(&late).await.is_err(), "nobody hears of it");
    // Nothing of the life before is told to anybody, nor begun.
    rig.forget_completions();
    let retold = counters.retold.get();
    rig.settles = true;
    rig.grant(&[echo(5)]).await;
    let completion = rig.completion().await;
    assert_eq!(
        (completion.execution_id, completion.worker),
        (echo(5).execution_id, Some(second))
    );
    rig.stop().await;
    assert!(!rig.has_more());
    assert_eq!((counters.runs.get(), counters.retold.get()), (3, retold));
}

/// An outage of the store, at a tenth of the usual times: a lease of 6 s for one of 60, which bears
/// an outage of two thirds of it.
async fn outage(lasting: Duration) -> (Rig, String) {
    let mut rig = Rig::start_with(|options| options.lease_ttl = Duration::from_secs(6)).await;
    let sign = rig.sign("pid");
    rig.grant(&[stubborn(1, &sign)]).await;
    let pid = pid_in(&sign).await;
    let before = rig.store.change(|state| state.renewals);
    rig.store
        .until("it is renewed", |state| state.renewals > before)
        .await;
    let began = Instant::now();
    rig.store.change(|state| state.renewing = Mood::Away);
    rig.store
        .until("it has lasted", |_| began.elapsed() >= lasting)
        .await;
    rig.store.change(|state| state.renewing = Mood::Fine);
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
    let error = start().await.unwrap_err().to_string();
    assert!(
        error.starts_with("the bus refuses the worker's subscription to `worker "),
        "{error}"
    );
    assert!(
        store.change(|state| state.registered.is_empty()),
        "nobody is told of a worker that hears nothing"
    );
}
