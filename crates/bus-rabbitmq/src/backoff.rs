//! How long to wait before trying again.

use std::time::Duration;

/// The bound of the first wait: the usual reason for a lost connection is over at once.
const FIRST: Duration = Duration::from_millis(50);
/// The bound that the waits grow to: a broker that came back is used again within this time, also
/// after several short outages in a row.
const CAP: Duration = Duration::from_secs(5);

/// Full jitter: each wait is drawn from zero to a bound that doubles. When a broker comes back,
/// its clients then do not all arrive at the same moment (lapin's own retries have no jitter).
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
}

impl Backoff {
    /// The next wait; its bound doubles with every call, up to 5 s.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let bound = self.bound().as_micros();
        self.attempt = self.attempt.saturating_add(1);
        let bound = u64::try_from(bound).expect("a few seconds fit into 64 bits of microseconds");
        Duration::from_micros(rand::random_range(0..=bound))
    }

    /// Starts again with the shortest bound.
    pub(crate) fn reset(&mut self) {
        self.attempt = 0;
    }

    fn bound(&self) -> Duration {
        FIRST.saturating_mul(1 << self.attempt.min(16)).min(CAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_double_up_to_the_cap_and_waits_stay_below() {
        let mut backoff = Backoff::default();
        let mut bounds = Vec::new();
        for _ in 0..40 {
            let bound = backoff.bound();
            assert!(backoff.next_wait() <= bound);
            bounds.push(bound.as_millis());
        }
        assert_eq!(
            bounds[..11],
            [
                50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000
            ]
        );
        assert_eq!(bounds[39], 5_000);
        backoff.reset();
        assert_eq!(backoff.bound(), FIRST);
    }
}
