//! The verdict on a queue: a pure function of its figures and the time.

use std::time::Duration;

use attune_core::{LacksKey, QueueStats};
use attune_store::{LeaseTrouble, Violations, What};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use attune_api_types::{HealthState, QueueHealth};

/// A waiting execution is fine for so long.
const OLDEST_HEALTHY: TimeDelta = TimeDelta::minutes(5);
/// A waiting execution is too old after so long.
const OLDEST_UNHEALTHY: TimeDelta = TimeDelta::minutes(30);
/// Owners tell the figures of a queue that holds something at least every minute, changed or not.
/// Without news for so long its owner, or whoever writes the figures down, does not work.
const STALE: TimeDelta = TimeDelta::minutes(10);
/// That workers lack a key is said for so long after something was given back for want of it.
const KEY_SHOWN: TimeDelta = TimeDelta::minutes(5);
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
    /// The name of the worker that lacked a key last, where it is known.
    pub keyless_worker: Option<&'a str>,
    /// Operators hold it: that its executions wait is what they want.
    pub held: bool,
    /// Executions demand different things of its limits: a slot that is free may be nobody's of those
    /// who wait, as long as anybody holds one.
    pub grouped: bool,
    /// Its starts are counted: who waits beside a free slot may wait for its rate.
    pub counted: bool,
    /// What becomes of who comes when as many wait as may.
    pub when_full: WhenFull,
}

/// What becomes of who comes when as many wait as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused.
    Refused,
    /// It is accepted, and who has waited longest ends.
    DropsOldest,
    /// It takes the place of those who wait: a full queue is as it should be.
    Replaces,
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
    judge_key(stats, bounds, now, &mut found);
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
        let kind = match violation.what == What::LimitViolation.name() {
            true => "more executions held a slot than the limit allows",
            false => "executions were not started in their order",
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
    } else if words.starts_with(LeaseTrouble::NO_ENDS) {
        (HealthState::Unhealthy, "not every slot has come free")
    } else if words.starts_with(LeaseTrouble::UNREAD) {
        (HealthState::Unhealthy, "nothing has been accepted")
    } else if words.starts_with(LeaseTrouble::PARTLY_UNREAD) {
        let some = "not every slot may have been freed, nor every dispatch sent again";
        (HealthState::Degraded, some)
    } else if words.starts_with(LeaseTrouble::NOT_KEPT) {
        let some =
            "not every slot that was taken back has been confirmed, nor everything refused kept";
        (HealthState::Degraded, some)
    } else if words.starts_with(LeaseTrouble::OPERATION_REFUSED) {
        (HealthState::Degraded, "not every operation has gone on")
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
    match bounds.when_full {
        WhenFull::Refused => {}
        WhenFull::Replaces => return,
        WhenFull::DropsOldest if length < max => {}
        WhenFull::DropsOldest => {
            let words = format!(
                "the queue is full, {length} of {max}: for each that comes, who has waited longest ends"
            );
            return found.push((HealthState::Degraded, words));
        }
    }
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
    // Who waits for an action without a limit waits for a worker with a free slot, as it should.
    let limit = stats.max_concurrent;
    let free = limit.is_some_and(|limit| stats.active_count < u64::from(limit))
        && (!bounds.grouped || stats.active_count == 0)
        && !bounds.counted;
    if stats.queue_length == 0 || !free || waited.is_none_or(|waited| waited < SETTLE) {
        return;
    }
    let (waiting, active) = (stats.queue_length, stats.active_count);
    let limit = limit.unwrap_or(0);
    let wait = if waiting == 1 { "waits" } else { "wait" };
    found.push((
        HealthState::Unhealthy,
        format!("stuck: {waiting} {wait}, but only {active} of {limit} slots are taken"),
    ));
}

/// Whoever waits waits for a worker that does not exist.
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

/// The key that workers lack, as long as it is told. While nobody has it something comes back every minute, unless no
/// worker has room.
pub(crate) fn lacked_key(stats: &QueueStats, now: DateTime<Utc>) -> Option<&LacksKey> {
    let lacks = stats.lacks_key.as_ref();
    lacks.filter(|lacks| now - lacks.last_at < KEY_SHOWN)
}

/// Workers give back what they cannot open: nothing fails by it, and nothing of it begins.
fn judge_key(stats: &QueueStats, bounds: Bounds<'_>, now: DateTime<Utc>, found: &mut Found) {
    let Some(lacks) = lacked_key(stats, now) else {
        return;
    };
    let worker = bounds
        .keyless_worker
        .map_or_else(|| lacks.worker.to_string(), |name| format!("{name:?}"));
    let (many, key) = (lacks.executions, &lacks.key);
    let (wait, are) = if many == 1 {
        ("waits", "is")
    } else {
        ("wait", "are")
    };
    let at = lacks.last_at.to_rfc3339_opts(SecondsFormat::Secs, true);
    found.push((
        HealthState::Unhealthy,
        format!(
            "its workers lack the key {key:?}: {many} {wait} that {are} sealed with it, last given back by worker \
             {worker} at {at}"
        ),
    ));
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
#[path = "health_tests.rs"]
mod tests;
