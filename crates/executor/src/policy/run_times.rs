//! How long executions of an action hold their slots, and how often slots come free: what estimates are
//! made of. A few words for each action of which anything has ended, and a few additions for each end.

use attune_core::Priority;
use attune_core::explain::Basis;

use crate::queue::Millis;

/// The newest ends count with a hundredth each, which is worth as much as a mean over the last 200.
const NEWEST: f64 = 100.0;
/// Of those that come one by one, as many are missing in a row once in twenty times.
const SILENT: f64 = 3.0;
/// How many times as long as the longest silence so far another one is, if it is more than the next of them.
const LONGER: f64 = 1.5;
/// How much of the longest silence is forgotten with each end: half of it with 280.
const FORGOTTEN: f32 = 1.0 / 400.0;
/// How many ends the figures are worth at most.
const WORTH: u32 = 200;

/// A slot that somebody gives back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    /// For how long it was held, in milliseconds.
    pub(crate) held: Millis,
    pub(crate) priority: Priority,
    /// When whoever held it was accepted.
    pub(crate) accepted: Millis,
    /// In how many milliseconds it comes back to its place, if it does.
    pub(crate) back: Option<Millis>,
}

/// Decayed figures of the ends of an action.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTimes {
    ends: u32,
    /// From grant to end, in milliseconds.
    mean: f64,
    variance: f64,
    /// Between two ends, in milliseconds.
    between: f64,
    /// Which part of the ends had which priority.
    shares: [f32; Priority::ALL.len()],
    /// Which part of the ends was that of a try after which the execution waits again at its old place.
    returning: f32,
    /// How long those wait before they do, in milliseconds.
    pause: f32,
    last: Millis,
    /// When the last of each priority was accepted that has ended.
    newest: [Millis; Priority::ALL.len()],
    /// About how long the longest time was in which none of a priority came, in milliseconds.
    silence: [f32; Priority::ALL.len()],
}

impl RunTimes {
    /// A slot came free at `now` in which somebody `ran`.
    pub(crate) fn note(&mut self, now: Millis, ran: Ran) {
        let Ran {
            held,
            priority,
            accepted,
            back,
        } = ran;
        if self.ends > 0 {
            let between = self.last.abs_diff(now.max(self.last)) as f64;
            self.between += (between - self.between) / f64::from(self.ends).min(NEWEST);
        }
        self.ends = self.ends.saturating_add(1);
        let weight = 1.0 / f64::from(self.ends).min(NEWEST);
        let step = held.max(0) as f64 - self.mean;
        self.mean += weight * step;
        self.variance = (1.0 - weight) * (self.variance + weight * step * step);
        for (rank, share) in (0..).zip(&mut self.shares) {
            let is_it = f32::from(u8::from(rank == priority.rank()));
            *share += (weight as f32) * (is_it - *share);
        }
        self.note_accepted(priority, accepted);
        let weight = weight as f32;
        self.returning += weight * (f32::from(u8::from(back.is_some())) - self.returning);
        if let Some(pause) = back {
            // The first counts wholly.
            let weight = if self.pause > 0.0 {
                weight.max(0.05)
            } else {
                1.0
            };
            self.pause += weight * (pause.max(1) as f32 - self.pause);
        }
        self.last = self.last.max(now);
    }

    fn note_accepted(&mut self, priority: Priority, accepted: Millis) {
        let rank = usize::from(priority.rank());
        let before = self.newest[rank];
        self.newest[rank] = accepted.max(before);
        let silence = &mut self.silence[rank];
        // Before the first there was no silence.
        let between = if before > 0 {
            accepted.saturating_sub(before)
        } else {
            0
        };
        *silence = (*silence * (1.0 - FORGOTTEN)).max(between as f32);
    }

    /// Which part of the ends is no end of its execution, which waits again at its old place, and how long it
    /// takes until it does, in milliseconds.
    pub(crate) fn returns(&self) -> (f64, f64) {
        (self.returning.into(), self.pause.into())
    }

    /// How many ends the figures are worth.
    pub(crate) fn samples(&self) -> u32 {
        self.ends.min(WORTH)
    }

    /// The mean, in milliseconds: from 1 on, because what is over at once is not over before.
    pub(crate) fn mean(&self) -> f64 {
        self.mean.max(1.0)
    }

    /// The standard deviation, in milliseconds.
    pub(crate) fn deviation(&self) -> f64 {
        self.variance.max(0.0).sqrt()
    }

    /// How many of a priority come in a millisecond, where the newest of those that are still there was accepted at
    /// `newest`: as many as end, because where all that come are served as many come. But where none has come for
    /// longer than is likely at that pace, and longer than it has happened before, those that ended had come together
    /// and are no sign of more.
    pub(crate) fn rate(&self, now: Millis, priority: Priority, newest: Option<Millis>) -> f64 {
        let rank = usize::from(priority.rank());
        if self.ends < 2 {
            return 0.0;
        }
        let rate = f64::from(self.shares[rank]) / self.between.max(1.0);
        let newest = newest.map_or(self.newest[rank], |newest| newest.max(self.newest[rank]));
        let silent = now.saturating_sub(newest) as f64;
        let usual = f64::from(self.silence[rank]) * LONGER;
        if rate * silent > SILENT && silent > usual {
            return 1.0 / silent;
        }
        rate
    }

    /// What estimates are based on.
    pub(crate) fn basis(&self, now: Millis) -> Basis {
        Basis {
            samples: self.samples(),
            mean_ms: self.mean.round() as u64,
            deviation_ms: self.deviation().round() as u64,
            age_ms: u64::try_from(now - self.last).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody that was accepted when its slot came free to it.
    fn ran(now: Millis, held: Millis, priority: Priority, back: Option<Millis>) -> Ran {
        Ran {
            held,
            priority,
            accepted: now - held,
            back,
        }
    }

    #[test]
    fn those_that_came_together_are_no_sign_of_more() {
        let mut times = RunTimes::default();
        for n in 1..=8 {
            let run = Ran {
                accepted: 0,
                ..ran(n * 1_000, 1_000, Priority::High, None)
            };
            times.note(n * 1_000, run);
        }
        let rate = |newest| times.rate(8_000, Priority::High, newest);
        assert!((rate(None) - 1.0 / 8_000.0).abs() < 1e-9, "{}", rate(None));
        // One that waits has come just now: they go on.
        assert!((rate(Some(7_000)) - 0.001).abs() < 1e-6);
    }

    #[test]
    fn those_that_come_together_again_and_again_are_a_sign_of_more() {
        let mut times = RunTimes::default();
        for n in 0..22 * 8_i64 {
            let burst = 1_000 + n / 22 * 9_000;
            let now = burst + n % 22 * 400;
            let run = Ran {
                accepted: burst + n % 22,
                ..ran(now, 400, Priority::High, None)
            };
            times.note(now, run);
        }
        let last = 1_000 + 7 * 9_000;
        let rate = |after: Millis| times.rate(last + after, Priority::High, None);
        for after in [500, 4_000, 8_900] {
            assert!((rate(after) - 1.0 / 400.0).abs() < 1e-4, "{}", rate(after));
        }
        assert!(rate(20_000) < 1.0 / 19_000.0, "it is over");
    }

    #[test]
    fn figures_are_those_of_what_was_noted() {
        let mut times = RunTimes::default();
        for n in 0..50 {
            let priority = Priority::ALL[(n % 2) as usize];
            times.note(n * 20, ran(n * 20, 100 + 100 * (n % 2), priority, None));
        }
        assert!((times.mean() - 150.0).abs() < 1e-6 && (times.deviation() - 50.0).abs() < 1e-6);
        assert!((times.rate(980, Priority::Critical, None) - 0.025).abs() < 1e-6);
        assert_eq!(times.rate(980, Priority::Low, None), 0.0);
        let basis = times.basis(1_000);
        assert_eq!(
            (
                basis.samples,
                basis.mean_ms,
                basis.deviation_ms,
                basis.age_ms
            ),
            (50, 150, 50, 20)
        );
    }

    #[test]
    fn what_was_long_ago_counts_less_and_less() {
        let mut times = RunTimes::default();
        for n in 0..1_000 {
            times.note(n, ran(n, 1_000, Priority::Normal, Some(100)));
        }
        for n in 0..300 {
            times.note(1_000 + n, ran(1_000 + n, 10, Priority::Normal, None));
        }
        assert!(times.mean() < 70.0, "{}", times.mean());
        assert_eq!(times.samples(), 200);
        let (returning, pause) = times.returns();
        assert!(
            returning < 0.06 && (pause - 100.0).abs() < 1e-3,
            "{returning}"
        );
    }

    #[test]
    fn a_clock_that_goes_back_spoils_nothing() {
        let mut times = RunTimes::default();
        for now in [1_000, 500, 2_000] {
            times.note(now, ran(now, -5, Priority::Normal, None));
        }
        assert_eq!(times.basis(1_500).age_ms, 0);
        assert!(times.rate(500, Priority::Normal, None) > 0.0 && times.mean() >= 1.0);
    }
}
