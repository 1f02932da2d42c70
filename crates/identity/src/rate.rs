//! How much one may ask for: the generic cell rate algorithm (ITU-T I.371), with the time given from outside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// So much a second for as long as one likes, and so much at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// In the long run, from 1.
    pub per_second: u32,
    /// At once, at most, from 1.
    pub burst: u32,
}

/// The highest rate and the largest burst.
const MAX: u32 = 1_000_000;

/// The rates of one key; what is not set is as the settings say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Executions asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit: Option<Rate>,
    /// Questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Rate>,
    /// All other changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Rate>,
}

impl Rates {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (field, rate) in [
            ("rates.submit", self.submit),
            ("rates.read", self.read),
            ("rates.change", self.change),
        ] {
            let Some(rate) = rate else { continue };
            let fits = |number| (1..=MAX).contains(&number);
            if !fits(rate.per_second) || !fits(rate.burst) {
                return Err((
                    field,
                    format!("`per_second` and `burst` are from 1 to {MAX}"),
                ));
            }
        }
        Ok(())
    }
}

/// What one has used of a [`Rate`]: when it would be used up no more, in nanoseconds of the caller's clock.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Takes `cost` of `rate` at `now`, counted from any fixed moment; all of it or nothing. What costs more
    /// than the burst is taken as the burst when nothing is used: otherwise it could never be had.
    ///
    /// # Errors
    /// When it can be had at the earliest.
    pub fn take(&self, rate: Rate, cost: u32, now: Duration) -> Result<(), Duration> {
        let of_one = 1_000_000_000 / u64::from(rate.per_second.max(1));
        let cost = of_one.saturating_mul(u64::from(cost.min(rate.burst)));
        let burst = of_one.saturating_mul(u64::from(rate.burst));
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut used_until = self.0.load(Ordering::Relaxed);
        loop {
            let next = used_until.max(now).saturating_add(cost);
            let ahead = next.saturating_sub(now);
            if ahead > burst {
                return Err(Duration::from_nanos(ahead - burst));
            }
            // A race is lost to somebody who has taken; what is left is looked at anew.
            match self.0.compare_exchange_weak(
                used_until,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(seen) => used_until = seen,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let (pace, rate) = (
            Pace::default(),
            Rate {
                per_second: 10,
                burst: 3,
            },
        );
        let at = Duration::from_millis;
        for _ in 0..3 {
            assert_eq!(pace.take(rate, 1, at(1000)), Ok(()));
        }
        assert_eq!(pace.take(rate, 1, at(1000)), Err(at(100)));
        assert_eq!(pace.take(rate, 2, at(1100)), Err(at(100)), "all or nothing");
        assert_eq!(pace.take(rate, 1, at(1100)), Ok(()));
        assert_eq!(pace.take(rate, 9, at(1399)), Err(at(1)));
        assert_eq!(
            pace.take(rate, 9, at(1400)),
            Ok(()),
            "more than a burst is one"
        );
        assert_eq!(
            pace.take(rate, 1, at(0)),
            Err(at(1500)),
            "a clock that stood"
        );
    }

    proptest! {
        /// In any stretch of time no more is taken than the burst and what the rate gives in it.
        #[test]
        fn never_more_than_the_rate(
            per_second in 1..500_u32, burst in 1..50_u32,
            asked in prop::collection::vec((0..50_u64, 1..10_u32), 1..200),
        ) {
            let (pace, rate) = (Pace::default(), Rate { per_second, burst });
            let (mut now, mut taken) = (Duration::ZERO, Vec::new());
            for (pause, cost) in asked {
                now += Duration::from_millis(pause);
                if pace.take(rate, cost, now).is_ok() {
                    taken.push((now, cost.min(burst)));
                }
            }
            for (first, (begin, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &taken[first..] {
                    sum += cost;
                    let given = (*at - *begin).as_secs_f64() * f64::from(per_second);
                    // What one costs is a whole number of nanoseconds, rounded down.
                    prop_assert!(f64::from(sum) <= f64::from(burst) + given * 1.000_001 + 0.001);
                }
            }
        }
    }
}
