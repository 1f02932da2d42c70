use attune_core::{ActionId, WorkerId};

use super::*;

const BOUNDS: Bounds<'_> = Bounds {
    max_length: 100,
    unserved_pool: None,
    trouble: None,
    keyless_worker: None,
    held: false,
    grouped: false,
    counted: false,
    when_full: WhenFull::Refused,
};

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

/// Judges a queue of at most 100 with limit 2 whose oldest has waited `waited` seconds and
/// whose figures are `age` seconds old.
fn verdict(length: u64, active: u64, waited: i64, age: i64) -> (HealthState, String) {
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: length,
        active_count: active,
        max_concurrent: Some(2),
        oldest_enqueued_at: (length > 0).then(|| now() - TimeDelta::seconds(waited)),
        total_enqueued: 1000,
        total_completed: 0,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    let updated = Some(now() - TimeDelta::seconds(age));
    let health = judge(&stats, updated, BOUNDS, &[], now());
    (health.state, health.reasons.join("; "))
}

#[test]
fn the_bounds_are_where_they_are_said_to_be() {
    use HealthState::{Degraded, Healthy, Unhealthy};
    for ((length, active, waited, age), state, reason) in [
        ((0, 0, 0, 0), Healthy, ""),
        ((9, 2, 10, 0), Healthy, ""),
        ((10, 2, 10, 0), Degraded, "a tenth full or more: 10 of 100"),
        ((50, 2, 10, 0), Degraded, "a tenth full or more: 50 of 100"),
        ((51, 2, 10, 0), Unhealthy, "more than half full: 51 of 100"),
        (
            (90, 2, 10, 0),
            Unhealthy,
            "the queue is nearly full: 90 of 100",
        ),
        (
            (100, 2, 10, 0),
            Unhealthy,
            "the queue is full, 100 of 100: what comes is refused",
        ),
        ((1, 2, 299, 0), Healthy, ""),
        ((1, 2, 300, 0), Degraded, "the oldest has waited 5 minutes"),
        (
            (1, 2, 1800, 0),
            Degraded,
            "the oldest has waited 30 minutes",
        ),
        (
            (1, 2, 1801, 0),
            Unhealthy,
            "the oldest has waited 30 minutes",
        ),
        (
            (1, 1, 10, 0),
            Unhealthy,
            "stuck: 1 waits, but only 1 of 2 slots are taken",
        ),
        ((1, 1, 1, 0), Healthy, ""),
        ((0, 1, 0, 600), Healthy, ""),
        (
            (0, 1, 0, 601),
            Unhealthy,
            "no update for 10 minutes: its executor or the stats daemon does not work",
        ),
        ((0, 0, 0, 86_400), Healthy, ""),
    ] {
        assert_eq!(
            verdict(length, active, waited, age),
            (state, reason.to_owned()),
            "{length} waiting, {active} active, waited {waited} s, {age} s old"
        );
    }
}

/// Of whom the group has no room waits although slots are free, but not when nobody runs at all.
#[test]
fn a_free_slot_may_be_nobodys_where_executions_are_grouped() {
    for (active, reasons) in [
        (1, &[][..]),
        (0, &["stuck: 1 waits, but only 0 of 2 slots are taken"]),
    ] {
        let stats = QueueStats {
            action_id: ActionId(1),
            queue_length: 1,
            active_count: active,
            max_concurrent: Some(2),
            oldest_enqueued_at: Some(now() - TimeDelta::seconds(10)),
            total_enqueued: 3,
            total_completed: 0,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: None,
        };
        let bounds = Bounds {
            grouped: true,
            ..BOUNDS
        };
        let health = judge(&stats, Some(now()), bounds, &[], now());
        assert_eq!(health.reasons, reasons);
    }
}

/// Who waits beside free slots may wait for its rate, and that is as it should be.
#[test]
fn a_free_slot_may_be_nobodys_where_starts_are_counted() {
    for (counted, reasons) in [(true, 0), (false, 1)] {
        let stats = QueueStats {
            action_id: ActionId(1),
            queue_length: 1,
            active_count: 0,
            max_concurrent: Some(2),
            oldest_enqueued_at: Some(now() - TimeDelta::seconds(10)),
            total_enqueued: 3,
            total_completed: 2,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: None,
        };
        let bounds = Bounds { counted, ..BOUNDS };
        let health = judge(&stats, Some(now()), bounds, &[], now());
        assert_eq!(health.reasons.len(), reasons, "{:?}", health.reasons);
    }
}

/// A queue that is full refuses nobody where its policy makes room.
#[test]
fn a_full_queue_that_makes_room_refuses_nobody() {
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: 100,
        active_count: 2,
        max_concurrent: Some(2),
        oldest_enqueued_at: None,
        total_enqueued: 200,
        total_completed: 98,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    for (when_full, state, words) in [
        (WhenFull::Refused, HealthState::Unhealthy, "is refused"),
        (WhenFull::DropsOldest, HealthState::Degraded, "longest ends"),
        (WhenFull::Replaces, HealthState::Healthy, ""),
    ] {
        let bounds = Bounds {
            when_full,
            held: true,
            ..BOUNDS
        };
        let health = judge(&stats, Some(now()), bounds, &[], now());
        assert_eq!(health.state, state, "{:?}", health.reasons);
        assert!(health.reasons.concat().ends_with(words), "{health:?}");
    }
}

/// Slots that are held by nobody who runs are the first thing to see.
#[test]
fn a_pool_without_workers_is_named() {
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: 1,
        active_count: 2,
        max_concurrent: Some(2),
        oldest_enqueued_at: Some(now()),
        total_enqueued: 3,
        total_completed: 0,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    let bounds = Bounds {
        unserved_pool: Some("gpu"),
        ..BOUNDS
    };
    let health = judge(&stats, Some(now()), bounds, &[], now());
    assert_eq!(
        health.reasons,
        ["no worker of the pool \"gpu\" is alive: 3 wait for one"]
    );
    let idle = QueueStats {
        queue_length: 0,
        active_count: 0,
        ..stats
    };
    let health = judge(&idle, Some(now()), bounds, &[], now());
    assert_eq!(health.state, HealthState::Healthy, "{health:?}");
}

/// Its figures are those from before, however good they are.
#[test]
fn a_queue_whose_owner_cannot_write_or_hear_is_not_well() {
    let refused = "the store refuses for now: disk full";
    assert_eq!(
        troubled(refused),
        (
            HealthState::Unhealthy,
            format!("nothing has been decided since 2027-01-15T07:59:40Z: {refused}")
        )
    );
    let cut_off = format!("{}: connection refused", LeaseTrouble::NO_BROKER);
    assert_eq!(
        troubled(&cut_off),
        (
            HealthState::Unhealthy,
            format!(
                "nothing has been received or dispatched since 2027-01-15T07:59:40Z: {cut_off}"
            )
        )
    );
    let no_ends = format!("{}: nobody takes them", LeaseTrouble::NO_ENDS);
    assert_eq!(
        troubled(&no_ends),
        (
            HealthState::Unhealthy,
            format!("not every slot has come free since 2027-01-15T07:59:40Z: {no_ends}")
        )
    );
    let unread = format!("{}: permission denied", LeaseTrouble::UNREAD);
    assert_eq!(
        troubled(&unread),
        (
            HealthState::Unhealthy,
            format!("nothing has been accepted since 2027-01-15T07:59:40Z: {unread}")
        )
    );
    let partly = format!("{}: permission denied", LeaseTrouble::PARTLY_UNREAD);
    let some = "not every slot may have been freed, nor every dispatch sent again";
    assert_eq!(
        troubled(&partly),
        (
            HealthState::Degraded,
            format!("{some} since 2027-01-15T07:59:40Z: {partly}")
        )
    );
    let held = format!("{}: disk full", LeaseTrouble::OPERATION_REFUSED);
    assert_eq!(
        troubled(&held),
        (
            HealthState::Degraded,
            format!("not every operation has gone on since 2027-01-15T07:59:40Z: {held}")
        )
    );
    let ill = format!("{}: no route", LeaseTrouble::BROKER_ILL);
    let some = "not everything may have been received or dispatched";
    assert_eq!(
        troubled(&ill),
        (
            HealthState::Degraded,
            format!("{some} since 2027-01-15T07:59:40Z: {ill}")
        )
    );
}

/// The state and its only reason of a queue whose figures are good and whose owner says this.
fn troubled(words: &str) -> (HealthState, String) {
    let trouble = LeaseTrouble {
        since: now() - TimeDelta::seconds(20),
        words: words.to_owned(),
    };
    let bounds = Bounds {
        trouble: Some(&trouble),
        ..BOUNDS
    };
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: 0,
        active_count: 0,
        max_concurrent: None,
        oldest_enqueued_at: None,
        total_enqueued: 3,
        total_completed: 3,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    let health = judge(&stats, Some(now()), bounds, &[], now());
    assert_eq!(health.reasons.len(), 1, "{health:?}");
    (health.state, health.reasons.join("; "))
}

/// Who is sealed with a key that workers lack goes round: that is not well, and no longer said than it is so.
#[test]
fn a_queue_whose_workers_lack_a_key_is_not_well() {
    let worker = WorkerId::fresh();
    let judged = |seconds, name| {
        let stats = QueueStats {
            action_id: ActionId(1),
            queue_length: 1,
            active_count: 2,
            max_concurrent: Some(2),
            oldest_enqueued_at: Some(now()),
            total_enqueued: 3,
            total_completed: 0,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: Some(LacksKey {
                key: "k1".to_owned(),
                worker,
                last_at: now() - TimeDelta::seconds(seconds),
                executions: 3,
            }),
        };
        let bounds = Bounds {
            keyless_worker: name,
            ..BOUNDS
        };
        judge(&stats, Some(now()), bounds, &[], now())
    };
    let health = judged(20, Some("blue"));
    assert_eq!(health.state, HealthState::Unhealthy);
    assert_eq!(
        health.reasons,
        [
            "its workers lack the key \"k1\": 3 wait that are sealed with it, last given back by worker \"blue\" at \
             2027-01-15T07:59:40Z"
        ]
    );
    // One whose lease is long gone.
    let words = judged(20, None).reasons.join("");
    assert!(words.contains(&worker.to_string()), "{words}");
    assert_eq!(judged(300, None).reasons, [""; 0]);
}

/// As the figures show it: something waits, and nothing of it has an age.
#[test]
fn a_queue_of_delayed_executions_is_not_stuck() {
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: 3,
        active_count: 0,
        max_concurrent: Some(2),
        oldest_enqueued_at: None,
        total_enqueued: 3,
        total_completed: 0,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    let health = judge(&stats, Some(now()), BOUNDS, &[], now());
    assert_eq!(health.state, HealthState::Healthy, "{health:?}");
}

#[test]
fn several_reasons_give_the_worst_state() {
    let (state, reasons) = verdict(20, 0, 400, 0);
    assert_eq!(state, HealthState::Unhealthy);
    assert_eq!(reasons.matches("; ").count(), 2, "{reasons}");
}

#[test]
fn who_waits_without_a_limit_waits_for_a_worker() {
    let stats = QueueStats {
        action_id: ActionId(1),
        queue_length: 3,
        active_count: 50,
        max_concurrent: None,
        oldest_enqueued_at: Some(now() - TimeDelta::seconds(30)),
        total_enqueued: 53,
        total_completed: 0,
        total_cancelled: 0,
        total_expired: 0,
        lacks_key: None,
    };
    let health = judge(&stats, Some(now()), BOUNDS, &[], now());
    assert_eq!(health.state, HealthState::Healthy, "{health:?}");
}
