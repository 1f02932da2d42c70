//! What is said for each reason to wait.

use attune_api_types::{ExplainState, PartitionView};
use attune_core::{Attempt, Epoch, OwnerId, WorkerId};

use super::super::tests::record;
use super::*;

/// An action of the pool `gpu` with this limit, an executor, and a worker with two slots.
fn well(limit: Option<u32>) -> Around {
    Around {
        cluster: Some(Cluster {
            executors: Vec::new(),
            partitions: vec![PartitionView {
                partition: PartitionId(7),
                owner: Some(OwnerId::fresh()),
                owner_name: Some("x-1".to_owned()),
                epoch: Epoch(3),
                lease_remaining_ms: 9000,
            }],
            workers: vec![WorkerView {
                id: WorkerId::fresh(),
                name: "w-1".to_owned(),
                pool: "gpu".to_owned(),
                slots: 2,
                alive: true,
                lease_remaining_ms: 9000,
                seen_ago_ms: Some(10),
            }],
            workers_left_out: 0,
        }),
        pool: Some("gpu".to_owned()),
        holders: limit.map(|_| Vec::new()),
        explained: None,
    }
}

fn cluster(around: &mut Around) -> &mut Cluster {
    around.cluster.as_mut().unwrap()
}

/// As the store shows a partition whose executor was killed.
fn orphaned(mut around: Around) -> Around {
    cluster(&mut around).partitions[0].lease_remaining_ms = 0;
    around
}

/// One more slot is held, by a run on the worker.
fn held(mut around: Around) -> Around {
    let worker = cluster(&mut around).workers[0].clone();
    around.holders.as_mut().unwrap().push(Holder {
        execution_id: ExecutionId(8),
        attempt: Attempt(1),
        status: Status::Running,
        requested_at: None,
        held_ms: 10,
        started_at: None,
        cancel_requested: false,
        worker: Some(HolderWorker {
            id: worker.id,
            name: Some(worker.name),
            pool: Some(worker.pool),
            seen_ago_ms: Some(10),
            lease_remaining_ms: 9000,
            lost_for_ms: 0,
        }),
    });
    around
}

/// As its executor says it of somebody who waits for a slot.
fn explained_as(change: impl FnOnce(&mut ExplainView)) -> Option<Result<ExplainView, String>> {
    let record = record(7, Status::Queued);
    let mut view = ExplainView {
        id: record.id,
        action_ref: record.action_ref,
        status: record.status,
        state: ExplainState::Waiting,
        attempt: record.attempt,
        priority: record.priority,
        at: record.created,
        waits: "for a slot: 1 of 1 is taken, it is next".to_owned(),
        waits_for: Vec::new(),
        pauses: Vec::new(),
        next_time: None,
        expires_at: None,
        position: Some(0),
        is_about: false,
        order_key: None,
        starts: None,
        estimate: None,
        no_estimate: None,
        policy_version: None,
        limit_scope: None,
    };
    change(&mut view);
    Some(Ok(view))
}

fn queued_after(around: &Around, seconds: i64) -> String {
    let record = record(7, Status::Queued);
    let now = record.created + chrono::TimeDelta::seconds(seconds);
    queued(&record, around, now)
}

#[test]
fn without_an_owner_no_executor_decides() {
    let nobody = "for an executor: nobody owns its partition 7, so nothing is granted \
                  (`attune cluster`, /readyz)";
    let mut early = record(7, Status::Queued);
    early.not_before = Some(early.created + chrono::TimeDelta::seconds(65));
    let around = orphaned(well(Some(1)));
    assert_eq!(
        queued(&early, &around, early.created),
        format!("for its time, 1m 5s from now; {nobody}")
    );
    assert_eq!(queued_after(&around, 60), nobody);
    let mut never = well(None);
    cluster(&mut never).partitions[0].owner = None;
    assert_eq!(queued_after(&never, 60), nobody);
}

#[test]
fn what_an_executor_says_is_said() {
    let mut around = well(Some(1));
    around.explained = explained_as(|_| {});
    assert_eq!(
        queued_after(&around, 1),
        "for a slot: 1 of 1 is taken, it is next"
    );
    let time = Utc::now();
    around.explained = explained_as(|view| {
        view.starts = Some("in about 2.0s".to_owned());
        let basis = attune_core::explain::Basis {
            samples: 9,
            mean_ms: 2_000,
            deviation_ms: 0,
            age_ms: 0,
        };
        view.estimate = Some(attune_core::explain::Estimate {
            starts_at: time,
            earliest: time,
            latest: time,
            basis,
        });
    });
    let said = queued_after(&around, 1);
    assert!(
        said.ends_with(", it is next; it starts in about 2.0s"),
        "{said}"
    );
    // Why there is no estimate is for whoever asks for one.
    around.explained = explained_as(|view| view.starts = Some("not to be told yet".to_owned()));
    let said = queued_after(&around, 1);
    assert!(said.ends_with(", it is next"), "{said}");
}

#[test]
fn an_executor_that_says_nothing_is_named() {
    let mut around = well(Some(1));
    around.explained = Some(Err("it has not answered".to_owned()));
    assert_eq!(
        queued_after(&around, 1),
        "for its executor \"x-1\", which does not say what for: it has not answered"
    );
    around.cluster = None;
    assert_eq!(
        queued_after(&around, 1),
        "for what could not be seen: it has not answered"
    );
}

#[test]
fn a_pool_without_workers_keeps_all_waiting() {
    let mut around = held(well(Some(1)));
    around.explained = explained_as(|_| {});
    cluster(&mut around).workers[0].alive = false;
    let words = queued_after(&around, 60);
    assert!(
        words.ends_with("; no worker of its pool \"gpu\" is alive"),
        "{words}"
    );
    let words = requested(&record(7, Status::Requested), &around);
    assert_eq!(
        words,
        "for its worker, of its pool \"gpu\", to say that it runs; no worker of that pool is alive \
         (`attune cluster`)"
    );
}

#[test]
fn a_pool_of_which_nobody_is_heard_is_told_of_before_its_leases_end() {
    let mut around = held(well(Some(1)));
    around.explained = explained_as(|_| {});
    let worker = &mut cluster(&mut around).workers[0];
    (worker.lease_remaining_ms, worker.seen_ago_ms) = (20_000, Some(40_000));
    assert_eq!(
        queued_after(&around, 60),
        "for a slot: 1 of 1 is taken, it is next; the one worker of its pool \"gpu\" has given no sign of \
         life for 40.0s; its lease ends in 20.0s"
    );
    let words = requested(&record(7, Status::Requested), &around);
    assert_eq!(
        words,
        "for its worker, of its pool \"gpu\", to say that it runs; the one worker of that pool has given no sign of \
         life for 40.0s; its lease ends in 20.0s"
    );
    let mut second = cluster(&mut around).workers[0].clone();
    (second.lease_remaining_ms, second.seen_ago_ms) = (25_000, Some(35_000));
    cluster(&mut around).workers.push(second);
    let said = queued_after(&around, 60);
    let none = "none of the 2 workers of its pool \"gpu\" has given a sign of life for 35.0s; the last of their \
                leases ends in 25.0s";
    assert!(said.ends_with(none), "{said}");
    let second = &mut cluster(&mut around).workers[1];
    (second.lease_remaining_ms, second.seen_ago_ms) = (50_000, Some(10_000));
    let said = queued_after(&around, 60);
    assert!(said.ends_with("it is next"), "one is well: {said}");
}

#[test]
fn what_has_a_slot_says_which_workers_it_waits_for() {
    let mut execution = record(7, Status::Requested);
    let of_pool = "for its worker, of its pool \"gpu\", to say that it runs";
    let around = held(well(Some(3)));
    assert_eq!(
        requested(&execution, &around),
        format!("{of_pool}; its one living worker has 2 slots for all actions of the pool")
    );
    let mut around = held(around);
    assert_eq!(
        requested(&execution, &around),
        format!("{of_pool}; all 2 slots of its one living worker are taken")
    );
    let mut second = cluster(&mut around).workers[0].clone();
    second.id = WorkerId::fresh();
    cluster(&mut around).workers.push(second);
    let around = orphaned(around);
    assert_eq!(
        requested(&execution, &around),
        format!(
            "{of_pool}; its 2 living workers have 4 slots for all actions of the pool; nobody \
             owns its partition 7, so nobody sends it again (`attune cluster`, /readyz)"
        )
    );
    execution.cancel_requested = true;
    let words = requested(&execution, &around);
    let cancelled =
        "for its worker, of its pool \"gpu\", to end it: it is being cancelled; ".to_owned();
    assert!(words.starts_with(&cancelled), "{words}");
}

#[test]
fn a_run_whose_worker_is_lost_says_so() {
    let execution = record(8, Status::Running);
    let around = held(well(Some(1)));
    let holder = around.holders.as_ref().unwrap()[0].clone();
    assert_eq!(worker_of(&record(9, Status::Running), holder.clone()), None);
    let mut worker = worker_of(&execution, holder).unwrap();
    assert_eq!(silent(&worker), None);
    (worker.lease_remaining_ms, worker.seen_ago_ms) = (20_000, Some(40_000));
    assert_eq!(
        silent(&worker).unwrap(),
        "its worker \"w-1\" has given no sign of life for 40.0s; its lease ends in 20.0s"
    );
    (worker.lease_remaining_ms, worker.lost_for_ms) = (0, 12_000);
    let partition = PartitionId(7);
    assert_eq!(
        lost(&worker, partition, around.cluster.as_ref()),
        "\"w-1\", its lease was lost 12.0s ago; the executor \"x-1\" takes the slot back after \
         the grace time"
    );
    worker.name = None;
    let around = orphaned(around);
    assert_eq!(
        lost(&worker, partition, around.cluster.as_ref()),
        "its lease was lost 12.0s ago; nobody owns the partition 7, so nobody takes the slot \
         back (`attune cluster`, /readyz)"
    );
}

#[test]
fn what_cannot_be_seen_is_not_guessed() {
    assert_eq!(
        requested(&record(7, Status::Requested), &Around::default()),
        "for its worker, of its pool, to say that it runs; who works could not be seen (`attune cluster`)"
    );
}

#[test]
fn who_waits_in_a_held_queue_is_told_who_holds_it() {
    let mut around = well(Some(1));
    around.explained = explained_as(|view| {
        view.waits = "for operators to resume its queue, which is paused".to_owned();
        view.pauses.push(attune_api_types::PauseView {
            scope: "pack".to_owned(),
            target: Some("core".to_owned()),
            mode: attune_core::PauseMode::Pause,
            since: Utc::now(),
            who: "ann".to_owned(),
            reason: None,
        });
    });
    assert_eq!(
        queued_after(&around, 60),
        "for operators to resume its queue, which is paused (paused by ann with pack core)"
    );
}

#[test]
fn who_keeps_its_slot_waits_for_its_next_try() {
    let mut execution = record(7, Status::Requested);
    let now = execution.created;
    execution.not_before = Some(now + chrono::TimeDelta::seconds(5));
    assert_eq!(next_try(&execution, now), None, "a delay that is over");
    execution.last_error = Some("no luck".to_owned());
    let said = next_try(&execution, now).unwrap();
    assert_eq!(said, "for its next try, 5.0s from now; it keeps its slot");
    assert_eq!(
        next_try(&execution, now + chrono::TimeDelta::seconds(5)),
        None
    );
}
