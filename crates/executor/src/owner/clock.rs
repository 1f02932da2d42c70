//! The time by which an owner decides: the store's, carried on by a clock that cannot be set.
//!
//! Timeouts and delayed starts follow the store's clock, which all owners share. But that clock
//! may step, as any wall clock may; then every queue would expire at once. So the owner looks at
//! it and counts on from there by a monotonic clock. A later difference is reported and not
//! followed: the next process that starts will. A small one is followed: onwards at once, back by going at
//! half the pace until it is made up for, because nothing may see time go back.
//!
//! A process that starts while a clock is wrong has nothing to compare it with but its own wall
//! clock. While the two differ, one of them is right and nobody can say which. So until they agree
//! it decides by the earlier one, and nothing expires or starts before its time; and it writes down
//! what it accepts with the later one, because whoever knows the time afterwards must not take an
//! execution for older than it is. Who is written down as of the future counts as of now.

use attune_core::Bug;

use crate::queue::Millis;

/// A larger difference is worth an alarm.
pub(super) const DRIFT: Millis = 5_000;

/// What a look has shown of the clocks, at some moment from when it was asked for to when it was
/// answered; times in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// By the monotonic clock.
    pub(super) asked: Millis,
    /// Likewise.
    pub(super) answered: Millis,
    /// By the store's clock.
    pub(super) store: Millis,
    /// By the wall clock of this process.
    pub(super) own: Millis,
}

impl Shown {
    /// By how much the store's clock is ahead of this process', for sure.
    fn difference(self) -> Millis {
        let (by, slack) = (self.store - self.own, self.answered - self.asked);
        by.signum() * (by.abs() - slack).max(0)
    }

    /// The store's clock shows the time.
    fn sure(self) -> Anchor {
        Anchor {
            least: self.store - self.answered,
            most: self.store - self.asked,
            later: None,
        }
    }

    /// Either clock may show it.
    fn in_doubt(self) -> Anchor {
        let earlier = self.store.min(self.own);
        Anchor {
            least: earlier - self.answered,
            most: earlier - self.asked,
            later: Some(self.store.max(self.own) - self.asked),
        }
    }
}

/// What a look at the clocks has brought to light, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The store's clock has moved by itself; it is not followed.
    Drift(Millis),
    /// It is ahead of this process' clock by this much, or behind, and nobody knows who is right.
    Differ(Millis),
    /// They agree at last: the time has moved by this much.
    Agree(Millis),
}

/// Where monotonic time 0 lies in the time by which is decided: between two bounds.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    least: Millis,
    most: Millis,
    /// While the clocks have always differed, the bounds are those of the earlier one, and this is where it lies
    /// by the later one.
    later: Option<Millis>,
}

/// How far ahead of the store's time an owner was when it saw that, and when: from then on it goes at half the
/// pace until it is not.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// By the monotonic clock.
    since: Millis,
    by: Millis,
}

impl Ahead {
    /// How much of it is left.
    fn left(self, now: Millis) -> Millis {
        (self.by - (now - self.since).max(0) / 2).max(0)
    }
}

/// Turns monotonic times into times of the store.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    anchor: Option<Anchor>,
    ahead: Option<Ahead>,
    /// The difference that was reported last.
    reported: Millis,
}

impl StoreClock {
    /// Whether the store's clock was seen.
    pub(super) fn is_known(&self) -> bool {
        self.anchor.is_some()
    }

    /// Without what it is ahead.
    fn offset(&self) -> Millis {
        self.anchor.map_or(0, |anchor| anchor.least)
    }

    /// The store's time, in milliseconds since 1970; the monotonic time itself until the store
    /// was seen.
    pub(super) fn at(&self, now: Millis) -> Millis {
        let ahead = self.ahead.map_or(0, |ahead| ahead.left(now));
        now.saturating_add(self.offset()).saturating_add(ahead)
    }

    /// The time to be written down for what is decided now: never before the time that it is.
    pub(super) fn stamp(&self, now: Millis) -> Millis {
        match self.anchor.and_then(|anchor| anchor.later) {
            Some(later) => now.saturating_add(later),
            None => self.at(now),
        }
    }

    /// The monotonic time from which on [`at`](Self::at) shows `time`, to a millisecond.
    pub(super) fn when(&self, time: Millis) -> Millis {
        let when = time.saturating_sub(self.offset());
        let Some(ahead) = self.ahead else { return when };
        // As if it had been so far ahead always, and at half the pace from then on, until that is made up for.
        let early = when.saturating_sub(ahead.by);
        if early <= ahead.since {
            return early;
        }
        let slow = early.saturating_sub(ahead.since).saturating_mul(2);
        ahead.since.saturating_add(slow).min(when)
    }

    /// Takes what a look has shown, and says what is worth telling.
    pub(super) fn observe(&mut self, shown: Shown) -> Option<Finding> {
        // As if the time by which an owner decides were that of a clock on the wall.
        if Bug::WallClock.is_planted() {
            self.anchor = Some(shown.sure());
            return None;
        }
        let before = self.anchor;
        let was_sure = before.is_some_and(|anchor| anchor.later.is_none());
        let difference = shown.difference();
        if !was_sure && difference.abs() > DRIFT {
            self.follow(shown.in_doubt(), shown.answered);
            return self.is_news(difference).map(Finding::Differ);
        }
        let drift = self.follow(shown.sure(), shown.answered);
        if before.is_some() && !was_sure {
            // The earlier clock was the wrong one.
            if drift.abs() > DRIFT {
                self.anchor = Some(shown.sure());
                self.ahead = None;
            }
            self.reported = 0;
            return Some(Finding::Agree(drift));
        }
        if drift.abs() > DRIFT {
            return self.is_news(drift).map(Finding::Drift);
        }
        self.reported = 0;
        None
    }

    /// The time is known between two bounds. A look narrows them; one that contradicts them a
    /// little is followed, because clocks do not run at quite the same pace. Returns by how much it does: of one
    /// that contradicts them by more than that, `later` alone is taken.
    fn follow(&mut self, seen: Anchor, now: Millis) -> Millis {
        let Some(before) = self.anchor else {
            self.anchor = Some(seen);
            return 0;
        };
        let drift = (seen.least - before.most).max(0) + (seen.most - before.least).min(0);
        if drift.abs() > DRIFT {
            self.anchor = Some(Anchor {
                later: seen.later,
                ..before
            });
            return drift;
        }
        let stays = drift == 0 || (drift < 0 && Bug::ClockStaysAhead.is_planted());
        let (least, most) = match stays {
            true => (before.least.max(seen.least), before.most.min(seen.most)),
            false => (seen.least, seen.most),
        };
        // Wherever it is from now on, it was here.
        let was = self.at(now);
        self.anchor = Some(Anchor {
            least,
            most: most.max(least),
            later: seen.later,
        });
        let by = was - (now + least);
        self.ahead = (by > 0).then_some(Ahead { since: now, by });
        drift
    }

    /// A difference, unless about the same was reported last.
    fn is_news(&mut self, by: Millis) -> Option<Millis> {
        if (by - self.reported).abs() <= DRIFT {
            return None;
        }
        self.reported = by;
        Some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_HOURS: Millis = 7_200_000;

    /// Both clocks as they were seen by a look that took no time.
    fn seen(now: Millis, store: Millis, own: Millis) -> Shown {
        slowly(now, now, store, own)
    }

    fn slowly(asked: Millis, answered: Millis, store: Millis, own: Millis) -> Shown {
        Shown {
            asked,
            answered,
            store,
            own,
        }
    }

    #[test]
    fn a_step_of_either_clock_is_not_followed_and_the_stores_is_reported_once() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.observe(seen(100, 1_000_100, 1_000_100)), None);
        assert_eq!(clock.at(200), 1_000_200);
        let ahead = seen(300, 1_000_300 + TWO_HOURS, 1_000_300);
        assert_eq!(clock.observe(ahead), Some(Finding::Drift(TWO_HOURS)));
        let ahead = seen(400, 1_000_400 + TWO_HOURS, 1_000_400);
        assert_eq!(clock.observe(ahead), None);
        assert_eq!((clock.at(500), clock.stamp(500)), (1_000_500, 1_000_500));
        assert_eq!(clock.when(1_000_500), 500);
        assert_eq!(clock.observe(seen(600, 1_000_600, 1_000_600)), None);
        let own = seen(650, 1_000_650, 1_000_650 - TWO_HOURS);
        assert_eq!(clock.observe(own), None);
        assert_eq!((clock.at(700), clock.stamp(700)), (1_000_700, 1_000_700));
    }

    #[test]
    fn who_was_led_ahead_comes_back_at_half_the_pace_and_never_goes_back() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.observe(seen(0, 1_000_000, 1_000_000)), None);
        assert_eq!(clock.observe(seen(100, 1_003_100, 1_000_100)), None);
        assert_eq!(clock.at(200), 1_003_200, "a little is followed");
        assert_eq!(clock.observe(seen(1_000, 1_001_000, 1_001_000)), None);
        let times = [
            (1_000, 1_004_000),
            (3_000, 1_005_000),
            (6_998, 1_006_999),
            (7_000, 1_007_000),
            (9_000, 1_009_000),
        ];
        for (now, time) in times {
            assert_eq!((clock.at(now), clock.when(time)), (time, now));
        }
        assert_eq!(clock.when(1_003_500), 500, "that is over");
        // A step of it on the way counts from where it has come to.
        assert_eq!(clock.observe(seen(3_000, 1_002_000, 1_002_000)), None);
        assert_eq!(clock.at(3_000), 1_005_000);
        assert_eq!((clock.at(9_000), clock.at(10_000)), (1_008_000, 1_009_000));
        // One on the way onwards leads it no further than the store is.
        assert_eq!(clock.observe(seen(3_000, 1_006_000, 1_006_000)), None);
        assert_eq!(clock.at(3_000), 1_006_000);
        assert_eq!(clock.observe(seen(3_000, 1_002_000, 1_002_000)), None);
        for to_and_fro in 0..10 {
            let now = 3_000 + to_and_fro * 1_000;
            let store = 1_000_000 + now - 1_000;
            assert_eq!(clock.observe(seen(now, store + 4_000, store)), None);
            assert_eq!(clock.at(now), store + 4_000);
            assert_eq!(clock.observe(seen(now, store, store)), None);
            assert_eq!(clock.at(now), store + 4_000);
        }
        let mut last = 0;
        for now in 12_000..21_000 {
            let time = clock.at(now);
            assert!(time >= last && (clock.when(time) - now).abs() <= 1, "{now}");
            last = time;
        }
    }

    #[test]
    fn who_starts_while_the_clocks_differ_decides_by_the_earlier_and_writes_down_the_later() {
        let both = [
            (TWO_HOURS, 0),
            (-TWO_HOURS, 0),
            (0, TWO_HOURS),
            (0, -TWO_HOURS),
        ];
        for (store, own) in both {
            let mut clock = StoreClock::default();
            let at = |now: Millis, store: Millis, own: Millis| {
                seen(now, 9_000_000 + now + store, 9_000_000 + now + own)
            };
            let differ = Some(Finding::Differ(store - own));
            assert_eq!(clock.observe(at(0, store, own)), differ);
            assert_eq!(clock.observe(at(500, store, own)), None);
            let early = store.min(own);
            assert_eq!(clock.at(600), 9_000_600 + early);
            assert_eq!(clock.when(9_000_600 + early), 600);
            assert_eq!(clock.stamp(600), 9_000_600 + store.max(own));
            let agree = Some(Finding::Agree(-early));
            assert_eq!(clock.observe(at(1_000, 0, 0)), agree);
            assert_eq!(
                (clock.at(1_100), clock.stamp(1_100)),
                (9_001_100, 9_001_100)
            );
            // Known from here on.
            let drift = Some(Finding::Drift(TWO_HOURS));
            assert_eq!(clock.observe(at(1_200, TWO_HOURS, 0)), drift);
            assert_eq!(clock.at(1_300), 9_001_300);
        }
    }

    #[test]
    fn a_small_step_of_the_earlier_clock_is_followed_in_doubt_and_a_large_one_is_not() {
        let mut clock = StoreClock::default();
        let at = |now: Millis, store: Millis, own: Millis| {
            seen(now, 9_000_000 + now + store, 9_000_000 + now + own)
        };
        let differ = Some(Finding::Differ(3_400 - TWO_HOURS));
        assert_eq!(clock.observe(at(0, 3_400, TWO_HOURS)), differ);
        assert_eq!(clock.observe(at(500, 0, TWO_HOURS)), None);
        // At half the pace, as whoever knows the time goes.
        assert_eq!(clock.at(500), 9_003_900);
        assert_eq!(clock.at(1_500), 9_004_400);
        assert_eq!(clock.at(7_300), 9_007_300);
        assert_eq!(clock.stamp(7_300), 9_007_300 + TWO_HOURS);
        let differ = Some(Finding::Differ(-2 * TWO_HOURS));
        assert_eq!(clock.observe(at(8_000, -TWO_HOURS, TWO_HOURS)), differ);
        assert_eq!(clock.at(8_000), 9_008_000);
        // On the way back they agree, and it goes on to the end.
        let differ = Some(Finding::Differ(-TWO_HOURS));
        assert_eq!(clock.observe(at(8_500, 2_000, 2_000 + TWO_HOURS)), differ);
        assert_eq!(clock.at(8_500), 9_010_500);
        assert_eq!(clock.observe(at(9_000, 0, 0)), Some(Finding::Agree(-2_000)));
        assert_eq!((clock.at(9_000), clock.at(11_000)), (9_011_000, 9_012_000));
        assert_eq!(
            (clock.at(13_000), clock.stamp(14_000)),
            (9_013_000, 9_014_000)
        );
    }

    #[test]
    fn a_late_answer_is_no_drift_and_a_quick_one_is_more_exact() {
        let mut clock = StoreClock::default();
        let late = slowly(0, 9_000, 1_000_100, 1_009_000);
        assert_eq!(clock.observe(late), None, "they may agree");
        assert_eq!(
            clock.at(10_000),
            1_001_100,
            "late by as long as the answer took"
        );
        let quick = slowly(10_000, 10_010, 1_010_005, 1_010_010);
        assert_eq!(clock.observe(quick), None);
        assert_eq!(clock.at(20_000), 1_019_995);
        let late = slowly(20_000, 48_000, 1_020_001, 1_048_000);
        assert_eq!(clock.observe(late), None);
        assert_eq!(clock.at(20_000), 1_019_995);
        // A clock that runs a little faster is followed; one that was set is not.
        let faster = slowly(50_000, 50_010, 1_050_025, 1_050_025);
        assert_eq!(clock.observe(faster), None);
        assert_eq!(clock.at(60_000), 1_060_015);
        let set = slowly(60_000, 60_010, 1_066_000, 1_066_000);
        assert_eq!(clock.observe(set), Some(Finding::Drift(5_965)));
    }
}
