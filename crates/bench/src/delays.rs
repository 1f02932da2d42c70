//! Percentiles of delays.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Digits to which a delay is kept: it is off by less than a ten-thousandth of itself.
const DIGITS: u8 = 4;

/// Percentiles of a delay, in milliseconds; null when nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delays {
    /// Half of them are shorter.
    pub p50: Option<f64>,
    /// 5 % of them are longer.
    pub p95: Option<f64>,
    /// 1 % of them are longer.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
}

impl Delays {
    /// The percentiles of these nanoseconds. A delay below 0, which two clocks that differ can
    /// show, counts as 0.
    pub fn of(delays_ns: impl IntoIterator<Item = i64>) -> Self {
        let mut histogram = Histogram::<u64>::new(DIGITS).expect("it keeps up to five digits");
        for delay in delays_ns {
            let delay = u64::try_from(delay).unwrap_or(0);
            histogram
                .record(delay)
                .expect("it grows with what it is given, to all that 64 bits hold");
        }
        if histogram.is_empty() {
            return Self::none();
        }
        let longest = histogram.max();
        let at = |quantile| Some(millis(histogram.value_at_quantile(quantile).min(longest)));
        Self {
            p50: at(0.50),
            p95: at(0.95),
            p99: at(0.99),
            max: Some(millis(longest)),
        }
    }

    /// Nothing was measured.
    pub const fn none() -> Self {
        Self {
            p50: None,
            p95: None,
            p99: None,
            max: None,
        }
    }
}

/// Nanoseconds in milliseconds, to the microsecond.
fn millis(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn within(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!(
            (found - expected).abs() <= expected * 1e-4,
            "{found} instead of {expected}"
        );
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let delays = Delays::of((1..=1000).rev().map(|n| n * MS));
        within(delays.p50, 500.0);
        within(delays.p95, 950.0);
        within(delays.p99, 990.0);
        within(delays.max, 1000.0);
    }

    #[test]
    fn short_and_very_long_delays_are_in_one_histogram() {
        let day = 24 * 3600 * 1000;
        let delays = Delays::of((0..99).map(|_| 3_000).chain([day * MS]));
        assert_eq!(delays.p50, Some(0.003));
        assert_eq!(delays.p99, Some(0.003));
        within(delays.max, day as f64);
    }

    #[test]
    fn one_value_is_every_percentile_and_none_is_none() {
        let delays = Delays::of([2 * MS]);
        assert_eq!((delays.p50, delays.p99), (Some(2.0), Some(2.0)));
        assert_eq!(delays.max, Some(2.0));
        assert_eq!(Delays::of([]), Delays::none());
        assert_eq!(Delays::of([-5]).max, Some(0.0));
    }
}
