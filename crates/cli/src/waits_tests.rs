//! What is said for each reason to wait.

use attune_api_types::PartitionView;
use attune_core::{Attempt, Epoch, OwnerId, WorkerId};

use super::super::tests::{queue, record};
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
        action: Some(Bounds {
            limit,
            pool: "gpu".to_owned(),
            groups: None,
            by_cost: false,
            rate: None,
        }),
        holders: limit.map(|_| Vec::new()),
        queue: None,
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

fn queued_after(around: &Around, seconds: i64) -> String {
    let record = record(7, Status::Queued);
    queued(
        &record,
        around,
        record.created + TimeDelta::seconds(seconds),
    )
}

#[test]
fn without_an_owner_no_executor_decides() {
    let nobody = "nobody owns its partition 7";
    let mut early = record(7, Status::Queued);
    early.not_before = Some(early.created + TimeDelta::seconds(65));
    let mut around = orphaned(well(Some(1)));
    assert_eq!(
        queued(&early, &around, early.created),
        format!(
            "for its time, 1m 5s from now; {nobody}, so no executor decides \
             (`attune cluster`, /readyz)"
        )
    );
    let late = early.created + TimeDelta::seconds(66);
    let granted = "so nothing is granted (`attune cluster`, /readyz)";
    assert_eq!(
        queued(&early, &around, late),
        format!("for an executor: {nobody}, {granted}")
    );
    around = held(around);
    assert_eq!(
        queued_after(&around, 60),
        "for a slot: 1 of 1 is taken (`attune queues holders core.echo`); nobody would hand \
         one on: no executor owns its partition 7 (`attune cluster`, /readyz)"
    );
    let mut never = well(None);
    cluster(&mut never).partitions[0].owner = None;
    assert_eq!(
        queued_after(&never, 60),
        format!("for an executor: {nobody}, {granted}")
    );
}

#[test]
fn with_an_owner_slots_decide() {
    let mut early = record(7, Status::Queued);
    early.not_before = Some(early.created + TimeDelta::seconds(65));
    let around = well(Some(2));
    let words = queued(&early, &around, early.created);
    assert_eq!(words, "for its time, 1m 5s from now");
    let past = early.created + TimeDelta::seconds(66);
    let soon = "for the next round of its executor \"x-1\"";
    assert_eq!(queued(&early, &around, past), soon);
    assert_eq!(queued_after(&around, 1), soon);
    assert_eq!(
        queued_after(&held(around), 3),
        "for its executor \"x-1\", which has granted it no slot although only 1 of 2 is taken \
         just now (see its log)"
    );
    assert_eq!(
        queued_after(&well(None), 3),
        "for its executor \"x-1\", which has granted it no slot although its action has no \
         limit (see its log)"
    );
    assert_eq!(
        queued_after(&held(held(well(Some(2)))), 3),
        "for a slot: 2 of 2 are taken (`attune queues holders core.echo`)"
    );
    let mut granted = held(well(Some(1)));
    granted.holders.as_mut().unwrap()[0].execution_id = ExecutionId(7);
    assert_eq!(
        queued_after(&granted, 3),
        "for nothing: it has been granted a slot at this moment"
    );
}

/// How full a queue is never is why something waits, and old figures are no reason to think
/// that a slot is free.
#[test]
fn of_the_figures_only_a_number_is_told_with_its_age() {
    let mut around = held(well(Some(1)));
    let slot = "for a slot: 1 of 1 is taken (`attune queues holders core.echo`)";
    // The figures say that no slot is taken.
    around.queue = Some(queue(12, 0, Some(1)));
    let words = queued_after(&around, 60);
    assert_eq!(words, format!("{slot}; 12 wait in all (as of 1.2s ago)"));
    around.queue.as_mut().unwrap().age_ms = Some(900_000);
    assert_eq!(
        queued_after(&around, 60),
        format!("{slot}; 12 wait in all (as of 15m 0s ago, does a stats daemon run?)")
    );
    around.queue = Some(queue(1, 1, Some(1)));
    around.queue.as_mut().unwrap().age_ms = Some(0);
    let words = queued_after(&around, 60);
    assert_eq!(words, format!("{slot}; 1 waits in all (as of now)"));
    around.queue = Some(queue(0, 1, Some(1)));
    assert_eq!(queued_after(&around, 60), slot);
    // Nobody tells figures where nobody owns the queue; that is no fault of the stats daemon.
    around.queue = Some(queue(12, 0, Some(1)));
    around.queue.as_mut().unwrap().age_ms = Some(900_000);
    let words = queued_after(&orphaned(around), 60);
    assert!(
        words.ends_with("12 wait in all (as of 15m 0s ago)"),
        "{words}"
    );
}

#[test]
fn a_pool_without_workers_keeps_all_waiting() {
    let mut around = held(well(Some(1)));
    cluster(&mut around).workers[0].alive = false;
    let words = queued_after(&around, 60);
    assert!(
        words.ends_with("; no worker of its pool \"gpu\" is alive"),
        "{words}"
    );
    let words = requested(&record(7, Status::Requested), &around);
    assert_eq!(
        words,
        "for a worker of its pool \"gpu\" to take it up; no worker of that pool is alive \
         (`attune cluster`)"
    );
}

#[test]
fn what_has_a_slot_says_which_workers_it_waits_for() {
    let mut execution = record(7, Status::Requested);
    let of_pool = "for a worker of its pool \"gpu\" to take it up";
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
    let cancelled = format!("{of_pool} and end it unrun: it is being cancelled; ");
    assert!(words.starts_with(&cancelled), "{words}");
}

#[test]
fn a_run_whose_worker_is_lost_says_so() {
    let execution = record(8, Status::Running);
    let around = held(well(Some(1)));
    let holder = around.holders.as_ref().unwrap()[0].clone();
    assert_eq!(lost_worker(&execution, holder.clone()), None);
    let mut dead = holder;
    let worker = dead.worker.as_mut().unwrap();
    (worker.lease_remaining_ms, worker.lost_for_ms) = (0, 12_000);
    assert_eq!(lost_worker(&record(9, Status::Running), dead.clone()), None);
    let mut worker = lost_worker(&execution, dead).unwrap();
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
        queued_after(&Around::default(), 60),
        "for its executor; whether one decides could not be seen (`attune cluster`)"
    );
    let mut around = well(Some(1));
    around.holders = None;
    assert_eq!(
        queued_after(&around, 60),
        "for its executor \"x-1\"; who holds slots could not be seen"
    );
    let mut around = held(well(Some(1)));
    around.cluster = None;
    let words = queued_after(&around, 60);
    assert!(words.starts_with("for a slot: 1 of 1 is taken"), "{words}");
    assert!(
        words.ends_with("whether an executor decides could not be seen (`attune cluster`)"),
        "{words}"
    );
    assert_eq!(
        requested(&record(7, Status::Requested), &Around::default()),
        "for a worker of its pool to take it up; who works could not be seen (`attune cluster`)"
    );
}

#[test]
fn who_waits_in_a_held_queue_is_told_who_holds_it() {
    let mut around = held(well(Some(1)));
    let mut stats = queue(1, 1, Some(1));
    stats.pauses.push(attune_api_types::PauseView {
        scope: "pack".to_owned(),
        target: Some("core".to_owned()),
        mode: attune_core::PauseMode::Pause,
        since: Utc::now(),
        who: "ann".to_owned(),
        reason: None,
    });
    around.queue = Some(stats);
    let said = queued_after(&around, 60);
    let expected = "for operators to resume its queue: paused by ann with pack core";
    assert!(said.starts_with(expected), "{said}");
}

/// A free slot is no sign of trouble where the group may have no room.
#[test]
fn who_waits_for_its_group_is_told_so() {
    let mut around = well(Some(2));
    let action = around.action.as_mut().unwrap();
    action.groups = Some(("user, parameters.host".to_owned(), 1));
    let said = queued_after(&around, 60);
    let group =
        "for room in its group: at most 1 with the same user, parameters.host hold a slot at once";
    assert!(said.starts_with(group), "{said}");
    assert!(!said.contains("see its log"), "{said}");
    around.action.as_mut().unwrap().by_cost = true;
    let said = queued_after(&around, 60);
    assert!(
        said.contains("or for as much of the limits as it takes"),
        "{said}"
    );
}

/// Nor where others have started lately.
#[test]
fn who_waits_for_its_rate_is_told_so() {
    let mut around = well(None);
    let policy = r#"{"rate_limit": {"max_executions": 3, "window_seconds": 60, "by": ["user"]}, "min_interval_ms": 200}"#;
    let policy: attune_core::ActionPolicy = serde_json::from_str(policy).unwrap();
    around.action.as_mut().unwrap().rate = rate(&policy);
    let said = queued_after(&around, 60);
    let words = "for its rate: at most 3 with the same user start in any 60 s; or for its turn: at most \
                 one starts every 200 ms";
    assert!(said.starts_with(words), "{said}");
    assert!(!said.contains("see its log"), "{said}");
}
