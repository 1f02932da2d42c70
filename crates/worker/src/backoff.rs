//! How long to wait before trying again.

use std::time::Duration;

/// Exponential waits with full jitter, so that workers that lost the same server do not all
/// come back at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    base: Duration,
    bound: Duration,
}

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    /// The first wait is at most `base`; each next one at most twice the one before.
    pub(crate) fn new(base: Duration) -> Self {
        Self { base, bound: base }
    }

    /// The next wait.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.bound.min(LONGEST);
        self.bound = bound * 2;
        // Never zero: a server that refuses at once must not be asked in a tight loop.
        bound.mul_f64(rand::random_range(0.1..=1.0))
    }

    /// It worked: start over.
    pub(crate) fn reset(&mut self) {
        self.bound = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_and_start_over() {
        let base = Duration::from_millis(100);
        let mut backoff = Backoff::new(base);
        for doubled in 0..20 {
            let wait = backoff.next();
            let bound = (base * 2_u32.pow(doubled)).min(LONGEST);
            assert!(wait >= bound / 20 && wait <= bound, "{wait:?} {bound:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= base);
    }
}
