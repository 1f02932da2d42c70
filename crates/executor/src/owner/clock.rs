//! The time by which an owner decides: the store's, carried on by a clock that cannot be set.
//!
//! Timeouts and delayed starts follow the store's clock, which all owners share. But that clock
//! may step, as any wall clock may; then every queue would expire at once. So the owner looks at
//! it once and counts on from there by a monotonic clock. A later difference is reported and not
//! followed: the next process that starts will.

use attune_core::Bug;

use crate::queue::Millis;

/// A larger difference is worth an alarm.
const DRIFT: Millis = 5_000;

/// Turns monotonic times into times of the store.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    /// What the store's clock showed at monotonic time 0.
    offset: Option<Millis>,
    /// The difference that was reported last.
    reported: Millis,
}

impl StoreClock {
    /// Whether the store's clock was seen.
    pub(super) fn is_known(&self) -> bool {
        self.offset.is_some()
    }

    /// The store's time, in milliseconds since 1970; the monotonic time itself until the store
    /// was seen.
    pub(super) fn at(&self, now: Millis) -> Millis {
        now.saturating_add(self.offset.unwrap_or(0))
    }

    /// The monotonic time at which the store's clock shows `time`.
    pub(super) fn when(&self, time: Millis) -> Millis {
        time.saturating_sub(self.offset.unwrap_or(0))
    }

    /// The store's clock showed `store` at some moment from `asked` to `now`. Gives the
    /// difference when it has become large. A small one is followed when the store is ahead: what
    /// was taken for its time was late by the time that the answer took.
    pub(super) fn observe(&mut self, asked: Millis, now: Millis, store: Millis) -> Option<Millis> {
        let (least, most) = (store - now, store - asked);
        // As if the time by which an owner decides were that of a clock on the wall.
        if Bug::WallClock.is_planted() {
            self.offset = Some(least);
            return None;
        }
        let offset = self.offset.get_or_insert(least);
        let drift = (least - *offset).max(0) + (most - *offset).min(0);
        if drift.abs() <= DRIFT {
            *offset = least.max(*offset);
            self.reported = 0;
            return None;
        }
        if (drift - self.reported).abs() <= DRIFT {
            return None;
        }
        self.reported = drift;
        Some(drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_stores_clock_is_reported_once_and_not_followed() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.observe(100, 100, 1_000_100), None);
        assert_eq!(clock.at(200), 1_000_200);
        assert_eq!(clock.observe(300, 300, 8_200_300), Some(7_200_000));
        assert_eq!(clock.observe(400, 400, 8_200_400), None);
        assert_eq!(clock.at(500), 1_000_500);
        assert_eq!(clock.when(1_000_500), 500);
        assert_eq!(clock.observe(600, 600, 1_000_600), None, "and back");
        assert_eq!(clock.at(700), 1_000_700);
    }

    #[test]
    fn a_late_answer_is_no_drift_and_a_quick_one_is_more_exact() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.observe(0, 900, 1_000_100), None);
        assert_eq!(
            clock.at(1_000),
            1_000_200,
            "late by as long as the answer took"
        );
        assert_eq!(clock.observe(1_000, 1_010, 1_001_005), None);
        assert_eq!(clock.at(2_000), 1_001_995);
        assert_eq!(clock.observe(2_000, 30_000, 1_002_001), None);
        assert_eq!(clock.at(2_000), 1_001_995);
    }
}
