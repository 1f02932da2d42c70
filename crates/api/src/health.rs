//! The verdict on a queue: a pure function of its figures and the time.

use std::time::Duration;

use attune_core::QueueStats;
use attune_store::audit::what;
use attune_store::{LeaseTrouble, Violations};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use attune_api_types::{HealthState, QueueHealth};

/// A waiting execution is fine for so long.
const OLDEST_HEALTHY: TimeDelta = TimeDelta::minutes(5);
/// A waiting execution is too old after so long.
const OLDEST_UNHEALTHY: TimeDelta = TimeDelta::minutes(30);
/// Owners tell the figures of a queue that holds something at least every minute, changed or not.
/// Without news for so long its owner, or whoever writes the figures down, does not work.
const STALE: TimeDelta = TimeDelta::minutes(10);
/// An execution that has waited shorter than this beside a free slot may just be on its way: the
/// figures of a queue are up to a quarter of a second apart.
const SETTLE: TimeDelta = TimeDelta::seconds(2);

/// What a queue is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds<'a> {
    /// How many executions may wait.
    pub max_length: u32,
    /// The pool of the action, if no worker of it lives.
    pub unserved_pool: Option<&'a str>,
    /// What keeps the owner of its partition from its work.
    pub trouble: Option<&'a LeaseTrouble>,
    /// Operators hold it: that its executions wait is what they want.
    pub held: bool,
    /// Executions demand different things of its limits: a slot that is free may be nobody's of those
    /// who wait, as long as anybody holds one.
    pub grouped: bool,
    /// Its starts are counted: who waits beside a free slot may wait for its rate.
    pub counted: bool,
}

/// For how long a violation of order or limit shows in the health of a queue.
pub const VIOLATION_SHOWN: Duration = Duration::from_secs(24 * 3600);

/// Judges a queue by its figures, which describe the moment `as_of`, and by the violations that
/// were found in it within [`VIOLATION_SHOWN`].
///
/// `now` may come from another clock than the figures; the thresholds are minutes, so seconds
/// between the two do not matter.
pub fn judge(
    stats: &QueueStats,
    as_of: Option<DateTime<Utc>>,
    bounds: Bounds<'_>,
    violations: &[Violations],
    now: DateTime<Utc>,
) -> QueueHealth {
    let mut found = Vec::new();
    judge_violations(violations, &mut found);
    judge_owner(bounds, &mut found);
    judge_length(stats, bounds, &mut found);
    let waited = stats.oldest_enqueued_at.map(|oldest| now - oldest);
    if !bounds.held {
        judge_age(waited, &mut found);
        judge_slots(stats, bounds, waited, &mut found);
    }
    judge_pool(stats, bounds, &mut found);
    judge_freshness(stats, as_of, now, &mut found);
    QueueHealth {
        state: found
            .iter()
            .map(|(state, _)| *state)
            .max()
            .unwrap_or(HealthState::Healthy),
        reasons: found.into_iter().map(|(_, reason)| reason).collect(),
    }
}

type Found = Vec<(HealthState, String)>;

/// What must never happen; it stays visible until somebody has looked.
fn judge_violations(violations: &[Violations], found: &mut Found) {
    for violation in violations {
        let kind = match violation.what.as_str() {
            what::LIMIT_VIOLATION => "more executions held a slot than the limit allows",
            _ => "executions were not started in their order",
        };
        let at = violation.last_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        let entries = violation.entries;
        found.push((
            HealthState::Unhealthy,
            format!("{kind}: {entries} in the audit log, the last at {at}"),
        ));
    }
}

/// Whose owner cannot write decides nothing, and its figures stand as they were. Whose owner has no
/// broker gets nothing to decide, but waits end there. Whose owner has trouble with something there
/// may still get all that concerns this queue.
fn judge_owner(bounds: Bounds<'_>, found: &mut Found) {
    let Some(trouble) = bounds.trouble else {
        return;
    };
    let since = trouble.since.to_rfc3339_opts(SecondsFormat::Secs, true);
    let words = &trouble.words;
    let (state, stands) = if words.starts_with(LeaseTrouble::NO_BROKER) {
        (
            HealthState::Unhealthy,
            "nothing has been received or dispatched",
        )
    } else if words.starts_with(LeaseTrouble::UNREAD) {
        (HealthState::Unhealthy, "nothing has been accepted")
    } else if words.starts_with(LeaseTrouble::PARTLY_UNREAD) {
        let some = "not every slot may have been freed, nor every dispatch sent again";
        (HealthState::Degraded, some)
    } else if words.starts_with(LeaseTrouble::NOT_KEPT) {
        let some =
            "not every slot that was taken back has been confirmed, nor everything refused kept";
        (HealthState::Degraded, some)
    } else if words.starts_with(LeaseTrouble::SLOW) {
        (HealthState::Degraded, "little has been decided")
    } else if words.starts_with(LeaseTrouble::BROKER_ILL) {
        let some = "not everything may have been received or dispatched";
        (HealthState::Degraded, some)
    } else {
        (HealthState::Unhealthy, "nothing has been decided")
    };
    found.push((state, format!("{stands} since {since}: {words}")));
}

fn judge_length(stats: &QueueStats, bounds: Bounds<'_>, found: &mut Found) {
    let (length, max) = (stats.queue_length, u64::from(bounds.max_length));
    // Each bound in tenths, so that small maxima are not rounded away.
    if length >= max {
        found.push((
            HealthState::Unhealthy,
            format!("the queue is full, {length} of {max}: what comes is refused"),
        ));
    } else if length * 10 >= max * 9 {
        found.push((
            HealthState::Unhealthy,
            format!("the queue is nearly full: {length} of {max}"),
        ));
    } else if length * 2 > max {
        found.push((
            HealthState::Unhealthy,
            format!("more than half full: {length} of {max}"),
        ));
    } else if length * 10 >= max {
        found.push((
            HealthState::Degraded,
            format!("a tenth full or more: {length} of {max}"),
        ));
    }
}

fn judge_age(waited: Option<TimeDelta>, found: &mut Found) {
    let Some(waited) = waited.filter(|waited| *waited >= OLDEST_HEALTHY) else {
        return;
    };
    let state = if waited > OLDEST_UNHEALTHY {
        HealthState::Unhealthy
    } else {
        HealthState::Degraded
    };
    found.push((
        state,
        format!("the oldest has waited {} minutes", waited.num_minutes()),
    ));
}

/// Executions that wait while a slot is free: the queue is stuck, unless all that wait are delayed.
fn judge_slots(
    stats: &QueueStats,
    bounds: Bounds<'_>,
    waited: Option<TimeDelta>,
    found: &mut Found,
) {
    let limit = stats.max_concurrent;
    let free = limit.is_none_or(|limit| stats.active_count < u64::from(limit))
        && (!bounds.grouped || stats.active_count == 0)
        && !bounds.counted;
    if stats.queue_length == 0 || !free || waited.is_none_or(|waited| waited < SETTLE) {
        return;
    }
    let (waiting, active) = (stats.queue_length, stats.active_count);
    let taken = match stats.max_concurrent {
        Some(limit) => format!("only {active} of {limit} slots are taken"),
        None => format!("{active} hold a slot and there is no limit"),
    };
    found.push((
        HealthState::Unhealthy,
        format!("stuck: {waiting} wait, but {taken}"),
    ));
}

/// Who has a slot waits for a worker that does not exist, and keeps everybody else waiting.
fn judge_pool(stats: &QueueStats, bounds: Bounds<'_>, found: &mut Found) {
    let Some(pool) = bounds.unserved_pool else {
        return;
    };
    let waiting = stats.queue_length + stats.active_count;
    if waiting > 0 {
        found.push((
            HealthState::Unhealthy,
            format!("no worker of the pool {pool:?} is alive: {waiting} wait for one"),
        ));
    }
}

/// An empty queue has nothing to report; one that holds something must.
fn judge_freshness(
    stats: &QueueStats,
    as_of: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    found: &mut Found,
) {
    if stats.queue_length == 0 && stats.active_count == 0 {
        return;
    }
    let age = as_of.map(|at| now - at);
    if let Some(age) = age.filter(|age| *age > STALE) {
        found.push((
            HealthState::Unhealthy,
            format!(
                "no update for {} minutes: its executor or the stats daemon does not work",
                age.num_minutes()
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use attune_core::ActionId;

    use super::*;

    const BOUNDS: Bounds<'_> = Bounds {
        max_length: 100,
        unserved_pool: None,
        trouble: None,
        held: false,
        grouped: false,
        counted: false,
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
                "stuck: 1 wait, but only 1 of 2 slots are taken",
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
            (0, &["stuck: 1 wait, but only 0 of 2 slots are taken"]),
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
                max_concurrent: None,
                oldest_enqueued_at: Some(now() - TimeDelta::seconds(10)),
                total_enqueued: 3,
                total_completed: 2,
                total_cancelled: 0,
                total_expired: 0,
            };
            let bounds = Bounds { counted, ..BOUNDS };
            let health = judge(&stats, Some(now()), bounds, &[], now());
            assert_eq!(health.reasons.len(), reasons, "{:?}", health.reasons);
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
        };
        let health = judge(&stats, Some(now()), bounds, &[], now());
        assert_eq!(health.reasons.len(), 1, "{health:?}");
        (health.state, health.reasons.join("; "))
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
    fn without_a_limit_nothing_should_wait() {
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
        };
        let health = judge(&stats, Some(now()), BOUNDS, &[], now());
        assert_eq!(health.state, HealthState::Unhealthy);
        assert!(
            health.reasons[0].contains("there is no limit"),
            "{health:?}"
        );
    }
}
