//! How a run goes on, and how long the next takes: what estimates draw from.

use super::RunTimes;
use crate::queue::Millis;

/// More than this part of those whose try ends is not taken to come back: in the end all are over.
pub(super) const MOST_RETURN: f64 = 0.95;

/// A run of an age that fewer than this part of all runs reach, as far as those that were seen tell, is not like
/// them.
const UNHEARD_OF: f64 = 1e-3;
/// A run that is not like the others is not taken to last longer than so many times its age.
const MOST_AGES: f64 = 1e3;

/// How those who hold a slot go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    pub(super) runs: Runs,
    /// Which part of them comes back, and after how long.
    pub(super) returns: (f64, f64),
}

/// How run times are distributed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Runs {
    /// A shortest time and an exponential rest.
    Shifted { least: f64, rest: f64 },
    /// One of two means, the first with this chance.
    Mixed { first: f64, means: [f64; 2] },
}

impl Model {
    pub(super) fn of(times: &RunTimes) -> Self {
        let (back, pause) = times.returns();
        Self {
            runs: Runs::of(times),
            returns: (back.min(MOST_RETURN), pause),
        }
    }
}

impl Runs {
    fn of(times: &RunTimes) -> Self {
        let (mean, deviation) = (times.mean(), times.deviation());
        if deviation <= mean {
            return Self::Shifted {
                least: mean - deviation,
                rest: deviation,
            };
        }
        let square = (deviation / mean).powi(2).min(1e6);
        let first = 0.5 * (1.0 + ((square - 1.0) / (square + 1.0)).sqrt());
        Self::Mixed {
            first,
            means: [mean / (2.0 * first), mean / (2.0 * (1.0 - first))],
        }
    }

    pub(super) fn run(&self, dice: &mut Dice) -> f64 {
        match *self {
            Self::Shifted { least, rest } => least + rest * dice.exponential(),
            Self::Mixed { first, means } => {
                let mean = means[usize::from(dice.uniform() >= first)];
                mean * dice.exponential()
            }
        }
    }

    fn mean(&self) -> f64 {
        match *self {
            Self::Shifted { least, rest } => least + rest,
            Self::Mixed { first, means } => first * means[0] + (1.0 - first) * means[1],
        }
    }

    /// Which part of all runs takes longer.
    fn beyond(&self, age: f64) -> f64 {
        match *self {
            Self::Shifted { least, .. } if age <= least => 1.0,
            Self::Shifted { least, rest } => ((least - age) / rest.max(f64::MIN_POSITIVE)).exp(),
            Self::Mixed { first, means } => {
                let [one, two] = beyond_of_both(first, means, age);
                one + two
            }
        }
    }

    /// How long somebody holds its slot still, who has held it for `age`.
    pub(super) fn rest(&self, age: Option<Millis>, dice: &mut Dice) -> f64 {
        let age = age.map(|age| age.max(0) as f64);
        if let Some(age) = age
            && age > 2.0 * self.mean()
            && self.beyond(age) < UNHEARD_OF
        {
            // It hangs, or does something else than those that were seen. Of such a one its age alone is known:
            // seen at any moment of its time it is as likely to last as long again as not (J. R. Gott,
            // "Implications of the Copernican principle for our future prospects", Nature 363, 1993).
            let part = dice.uniform().max(1.0 / MOST_AGES);
            return age * (1.0 / part - 1.0);
        }
        match (*self, age) {
            (Self::Shifted { least, rest }, Some(age)) => {
                (least - age).max(0.0) + rest * dice.exponential()
            }
            (Self::Shifted { least, rest }, None) => {
                // It is seen at any time of its run, and longer runs are seen more often.
                let mean = least + rest;
                if dice.uniform() * mean < least {
                    least * dice.uniform()
                } else {
                    least + rest * dice.exponential()
                }
            }
            (Self::Mixed { first, means }, Some(age)) => {
                let [one, two] = beyond_of_both(first, means, age);
                let kind = usize::from(dice.uniform() * (one + two) >= one);
                means[kind] * dice.exponential()
            }
            (Self::Mixed { means, .. }, None) => {
                means[usize::from(dice.uniform() >= 0.5)] * dice.exponential()
            }
        }
    }
}

/// Which part of all runs is of each of two means, the first with this chance, and takes longer than `age`.
fn beyond_of_both(first: f64, means: [f64; 2], age: f64) -> [f64; 2] {
    let chances = [first, 1.0 - first];
    [0, 1].map(|kind: usize| chances[kind] * (-age / means[kind]).exp())
}

/// Numbers that look random and are always the same (SplitMix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// From 0 to below 1.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// About normal, as the sum of twelve is.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
