//! What is kept of the snapshots that arrive, and when it is to be written: pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use attune_core::ActionId;
use attune_messages::v1::QueueSnapshot;
use attune_store::StatsRow;
use chrono::Datelike as _;

/// The newest snapshot of each action. Sorted by action, so that persisters that write at the
/// same time lock rows in the same order.
#[derive(Debug, Default)]
pub(crate) struct Newest(BTreeMap<ActionId, StatsRow>);

impl Newest {
    /// Keeps a snapshot, unless one as new is kept already.
    pub(crate) fn merge(&mut self, snapshot: QueueSnapshot) {
        let QueueSnapshot { version, stats } = snapshot;
        let row = StatsRow { version, stats };
        self.0
            .entry(row.stats.action_id)
            .and_modify(|kept| {
                if kept.version < row.version {
                    *kept = row.clone();
                }
            })
            .or_insert(row);
    }

    /// All of them, by action.
    pub(crate) fn rows(&self) -> Vec<StatsRow> {
        self.0.values().cloned().collect()
    }

    /// Lets go of rows that were written, except where a newer one was merged since.
    pub(crate) fn forget(&mut self, written: &[StatsRow]) {
        for row in written {
            let action_id = row.stats.action_id;
            if self
                .0
                .get(&action_id)
                .is_some_and(|kept| kept.version <= row.version)
            {
                self.0.remove(&action_id);
            }
        }
    }
}

/// Whether a snapshot can be stored; if not, why. The store keeps numbers in 64 bits with a
/// sign, and one row that it refuses would keep all others of its write out.
pub(crate) fn check(snapshot: &QueueSnapshot) -> Result<(), String> {
    let stats = &snapshot.stats;
    if stats.action_id.0 <= 0 {
        return Err(format!(
            "`action_id` {} is not the id of an action",
            stats.action_id
        ));
    }
    for (name, value) in [
        ("queue_length", stats.queue_length),
        ("active_count", stats.active_count),
        ("total_enqueued", stats.total_enqueued),
        ("total_completed", stats.total_completed),
        ("total_cancelled", stats.total_cancelled),
        ("total_expired", stats.total_expired),
    ] {
        if i64::try_from(value).is_err() {
            return Err(format!(
                "`{name}` is {value}; at most {} can be stored",
                i64::MAX
            ));
        }
    }
    if let Some(limit) = stats.max_concurrent
        && i32::try_from(limit).is_err()
    {
        return Err(format!(
            "`max_concurrent` is {limit}; at most {} can be stored",
            i32::MAX
        ));
    }
    match stats.oldest_enqueued_at {
        Some(time) if !(1970..=9999).contains(&time.year()) => Err(format!(
            "`oldest_enqueued_at` is in the year {}",
            time.year()
        )),
        _ => Ok(()),
    }
}

/// When the next write may begin.
#[derive(Debug)]
pub(crate) struct Pace {
    min_interval: Duration,
    /// Not before this.
    next: Option<Instant>,
    /// The last write failed, so that there is a reason to wait beyond the interval.
    backing_off: bool,
}

impl Pace {
    /// At most one write per `min_interval`; the first may begin at once.
    pub(crate) fn new(min_interval: Duration) -> Self {
        Self {
            min_interval,
            next: None,
            backing_off: false,
        }
    }

    /// A write that began at `started` has succeeded.
    pub(crate) fn succeeded(&mut self, started: Instant) {
        self.next = Some(started + self.min_interval);
        self.backing_off = false;
    }

    /// A write has failed; the next may be tried after `delay`.
    pub(crate) fn failed(&mut self, now: Instant, delay: Duration) {
        self.next = Some(now + delay);
        self.backing_off = true;
    }

    /// How long to wait before writing what there is. With `full`, nothing more can arrive
    /// before the write, so that waiting for company would be in vain.
    pub(crate) fn wait(&self, now: Instant, full: bool) -> Duration {
        match self.next {
            Some(next) if self.backing_off || !full => next.saturating_duration_since(now),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::QueueStats;

    fn snapshot(action: i64, version: i64, queue_length: u64) -> QueueSnapshot {
        let stats = QueueStats {
            action_id: ActionId(action),
            queue_length,
            active_count: 1,
            max_concurrent: Some(2),
            oldest_enqueued_at: None,
            total_enqueued: 3,
            total_completed: 2,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: None,
        };
        QueueSnapshot { version, stats }
    }

    fn shape(newest: &Newest) -> Vec<(i64, i64, u64)> {
        let rows = newest.rows().into_iter();
        rows.map(|row| (row.stats.action_id.0, row.version, row.stats.queue_length))
            .collect()
    }

    #[test]
    fn the_newest_of_each_action_is_kept_in_whatever_order_they_come() {
        let mut newest = Newest::default();
        for (action, version, length) in [
            (2, 5, 50),
            (1, 7, 70),
            (2, 9, 90),
            (2, 6, 60),
            (1, 7, 71),
            (3, -1, 0),
        ] {
            newest.merge(snapshot(action, version, length));
        }
        assert_eq!(shape(&newest), [(1, 7, 70), (2, 9, 90), (3, -1, 0)]);
    }

    #[test]
    fn what_was_written_is_let_go_unless_it_has_changed() {
        let mut newest = Newest::default();
        newest.merge(snapshot(1, 1, 10));
        newest.merge(snapshot(2, 1, 10));
        let written = newest.rows();
        newest.merge(snapshot(2, 2, 20));
        newest.forget(&written);
        assert_eq!(shape(&newest), [(2, 2, 20)]);
        // A snapshot that comes again after it was written is written again; the store's own
        // version makes that harmless.
        newest.merge(snapshot(1, 1, 10));
        assert_eq!(shape(&newest), [(1, 1, 10), (2, 2, 20)]);
    }

    #[test]
    fn only_what_can_be_stored_passes() {
        let good = snapshot(1, i64::MIN, i64::MAX as u64);
        assert_eq!(check(&good), Ok(()));
        let change = |change: fn(&mut QueueStats)| {
            let mut bad = good.clone();
            change(&mut bad.stats);
            check(&bad).unwrap_err()
        };
        for (reason, named) in [
            (change(|stats| stats.action_id = ActionId(0)), "`action_id`"),
            (
                change(|stats| stats.queue_length = u64::MAX),
                "`queue_length`",
            ),
            (
                change(|stats| stats.active_count = 1 << 63),
                "`active_count`",
            ),
            (
                change(|stats| stats.total_enqueued = 1 << 63),
                "`total_enqueued`",
            ),
            (
                change(|stats| stats.total_completed = 1 << 63),
                "`total_completed`",
            ),
            (
                change(|stats| stats.total_cancelled = 1 << 63),
                "`total_cancelled`",
            ),
            (
                change(|stats| stats.total_expired = 1 << 63),
                "`total_expired`",
            ),
            (
                change(|stats| stats.max_concurrent = Some(1 << 31)),
                "`max_concurrent`",
            ),
            (
                change(|stats| {
                    stats.oldest_enqueued_at = Some(chrono::DateTime::<chrono::Utc>::MAX_UTC)
                }),
                "`oldest_enqueued_at`",
            ),
        ] {
            assert!(reason.starts_with(named), "{reason}");
        }
    }

    #[test]
    fn writes_keep_their_distance_and_the_first_does_not_wait() {
        let interval = Duration::from_millis(250);
        let (mut pace, start) = (Pace::new(interval), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.wait(start, false), Duration::ZERO);
        pace.succeeded(start);
        assert_eq!(pace.wait(at(100), false), Duration::from_millis(150));
        assert_eq!(
            pace.wait(at(100), true),
            Duration::ZERO,
            "nothing more can come"
        );
        assert_eq!(pace.wait(at(300), false), Duration::ZERO);

        pace.failed(at(300), Duration::from_secs(2));
        assert_eq!(
            pace.wait(at(300), true),
            Duration::from_secs(2),
            "an outage is no hurry"
        );
        pace.succeeded(at(2300));
        assert_eq!(pace.wait(at(2400), true), Duration::ZERO);
    }
}
