//! Taking what is granted, and running it.

use attune_bus::{Bus, Subscription, Topic};
use attune_core::{Attempt, Epoch, Status, WorkerId};
use attune_record::Record;

use crate::owner::returned;
use crate::rig::{Rig, again, echo, sleep, until};

#[tokio::test]
async fn what_is_granted_is_run_reported_and_recorded() {
    let mut rig = Rig::start().await;
    let grants: Vec<_> = (1..=5).map(echo).collect();
    let worker = rig.grant(&grants).await;
    assert_eq!(rig.store.change(|state| state.registered.clone()), [worker]);
    let completions = rig.completions(5).await;
    for (completion, grant) in completions.iter().zip(&grants) {
        assert_eq!((completion.execution_id, completion.attempt), grant.key());
        assert_eq!(completion.status, Status::Succeeded);
        assert_eq!(
            completion.result.as_ref().unwrap().get(),
            grant.parameters.get()
        );
        assert_eq!(completion.worker, Some(worker));
        assert_eq!(completion.partition.unwrap().0, 5);
        assert!(completion.started_at.unwrap() <= completion.finished_at.unwrap());
    }
    rig.stop().await;
    assert!(!rig.has_more());
    let counters = rig.worker.counters();
    assert_eq!((counters.runs.get(), counters.reported.get()), (5, 5));
    assert_eq!(
        (
            counters.passed_over.get(),
            counters.retold.get(),
            counters.kept.get(),
            counters.busy.get()
        ),
        (0, 0, 0, 0)
    );
    let taken = rig
        .all_records()
        .into_iter()
        .filter_map(|record| match record {
            Record::Taken {
                execution_id,
                attempt,
                worker: by,
                ..
            } if by == worker => Some((execution_id, attempt)),
            _ => None,
        });
    assert!(taken.eq(grants.iter().map(|grant| grant.key())));
    let records = rig.records();
    assert_eq!(records.len(), 10);
    for (pair, grant) in records.chunks(2).zip(&grants) {
        let [
            Record::Start {
                execution_id: started,
                t_ns: from,
                ..
            },
            Record::End {
                execution_id: ended,
                status: Some(Status::Succeeded),
                t_ns: to,
                ..
            },
        ] = pair
        else {
            panic!("{pair:?}");
        };
        assert_eq!((*started, *ended), (grant.execution_id, grant.execution_id));
        assert!(from <= to);
    }
}

/// What has to wait for long is given back: then what has begun is what was granted first.
#[tokio::test]
async fn what_is_granted_begins_in_order_and_no_more_than_the_slots_at_once() {
    const SLOTS: usize = 3;
    let mut rig = Rig::start_with(|options| options.slots = SLOTS).await;
    let grants: Vec<_> = (1..=20).map(|id| sleep(id, 0.01)).collect();
    let worker = rig.life().await;
    for pair in grants.chunks(2) {
        let section = rig.owner.grant(worker, pair);
        rig.send(&section).await;
    }
    rig.all_is_taken().await;
    until("nothing waits or runs", || {
        let counters = rig.worker.counters();
        (counters.waiting.get(), counters.busy.get()) == (0, 0)
    })
    .await;
    rig.stop().await;
    let (mut running, mut most, mut begun) = (0_usize, 0, Vec::new());
    for record in rig.records() {
        match record {
            Record::Start { execution_id, .. } => {
                begun.push(execution_id);
                running += 1;
            }
            Record::End { .. } => running -= 1,
            other => panic!("{other:?}"),
        }
        most = most.max(running);
    }
    assert_eq!(most, SLOTS);
    let granted = grants.iter().map(|grant| grant.execution_id);
    assert!(granted.take(begun.len()).eq(begun));
}

#[tokio::test]
async fn what_waits_for_long_because_all_slots_are_taken_is_given_back() {
    let mut rig = Rig::start_with(|options| options.slots = 1).await;
    let (long, waiting) = (sleep(1, 300.0), echo(2));
    rig.grant(&[long.clone(), waiting.clone()]).await;
    let report = rig.gives_back(&[&waiting]).await;
    assert_eq!(report.returned[0].why, "all slots of its worker are taken");
    // Granted again it is another attempt.
    rig.cancel(&[&long]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.grant(&[again(&waiting)]).await;
    assert_eq!(rig.completion().await.attempt, Attempt(2));
    rig.stop().await;
    assert_eq!(rig.worker.counters().runs.get(), 2);
}

#[tokio::test]
async fn a_copy_of_a_section_and_one_of_an_old_epoch_begin_nothing() {
    let mut rig = Rig::start().await;
    let worker = rig.life().await;
    let long = sleep(1, 300.0);
    let section = rig.owner.grant(worker, std::slice::from_ref(&long));
    rig.send(&section).await;
    rig.send(&section).await;
    let mut old = rig.owner.next(worker, section.partition);
    old.epoch = Epoch(rig.owner.epoch.0 - 1);
    old.number = 77;
    old.grants = vec![echo(2)];
    rig.send(&old).await;
    old.sync = Some(Vec::new());
    rig.send(&old).await;
    rig.all_is_taken().await;
    assert_eq!(rig.worker.counters().passed_over.get(), 3);
    assert_eq!(rig.worker.counters().runs.get(), 1);
    rig.owner.has_lost(worker, section.partition);
    rig.cancel(&[&long]).await;
    let completion = rig.completion().await;
    assert_eq!(
        (completion.execution_id, completion.status),
        (long.execution_id, Status::Cancelled)
    );
    rig.stop().await;
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().runs.get(), 1);
}

#[tokio::test]
async fn a_section_for_another_life_is_ignored() {
    let mut rig = Rig::start().await;
    let worker = rig.life().await;
    let mut section = rig.owner.grant(worker, &[echo(1)]);
    section.worker = WorkerId::fresh();
    rig.owner.send_to(worker, &section).await.unwrap();
    rig.all_is_taken().await;
    assert_eq!(rig.worker.counters().runs.get(), 0);
    // It was not counted as one of the stream.
    section.worker = worker;
    rig.send(&section).await;
    assert_eq!(rig.completion().await.execution_id, echo(1).execution_id);
    rig.stop().await;
    assert_eq!(rig.worker.counters().passed_over.get(), 0);
}

/// What of it matters is repeated, as everything that is lost on a link.
#[tokio::test]
async fn what_cannot_be_read_is_dropped_and_counted() {
    let mut rig = Rig::start().await;
    let letters = Subscription {
        topic: Topic::DeadLetters,
        prefetch: 10,
    };
    let mut letters = rig.bus.subscribe(letters).await.unwrap();
    let link = Topic::link("default", rig.life().await);
    let newer = r#"{"message_id":"0198c1f0-0000-7000-8000-000000000000","message_type":"execution.requested","version":3,"timestamp":"2026-01-02T03:04:05Z","payload":{}}"#;
    for body in ["nonsense", newer, "{}"] {
        rig.publish(link.clone(), body.into()).await;
    }
    rig.grant(&[echo(1)]).await;
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.all_is_taken().await;
    assert_eq!(rig.worker.counters().unreadable.get(), 2);
    rig.stop().await;
    assert!(letters.try_next().is_none());
}

#[tokio::test]
async fn what_has_run_for_a_while_is_told() {
    let mut rig = Rig::start().await;
    let long = sleep(1, 300.0);
    rig.grant(&[echo(2), long.clone()]).await;
    let report = rig
        .report("it has started", |report| !report.started.is_empty())
        .await;
    assert_eq!(report.started.len(), 1, "{report:?}");
    let started = &report.started[0];
    assert_eq!((started.execution_id, started.attempt), long.key());
    assert!(started.age_ms >= 100);
    assert_eq!(returned(&report), []);
    rig.cancel(&[&long]).await;
    rig.completions(2).await;
    rig.stop().await;
}
