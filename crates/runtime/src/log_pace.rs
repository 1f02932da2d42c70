//! How often to speak of trouble that goes on.

use std::time::{Duration, Instant};

/// The time between the first two lines; doubled from line to line.
const BASE: Duration = Duration::from_secs(1);
/// The longest time between two lines.
const CAP: Duration = Duration::from_secs(60);

/// Paces the log lines of a loop that tries something again and again: the first failure is told
/// at once, what follows after a second, two more, four more, and in the end once a minute.
///
/// ```
/// # fn try_it() -> Result<(), std::io::Error> { Ok(()) }
/// let mut pace = attune_runtime::LogPace::default();
/// while let Err(error) = try_it() {
///     if pace.is_due() {
///         tracing::warn!(%error, tries = pace.tries(), "it failed; trying again");
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct LogPace {
    /// When the next line is due, and the step after it; `None` before the first.
    next: Option<(Instant, Duration)>,
    tries: u64,
}

impl LogPace {
    /// Counts a failure; whether it is to be told.
    pub fn is_due(&mut self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&mut self, now: Instant) -> bool {
        self.tries = self.tries.saturating_add(1);
        let step = match self.next {
            None => BASE,
            Some((at, step)) if now >= at => (step * 2).min(CAP),
            Some(_) => return false,
        };
        self.next = Some((now + step, step));
        true
    }

    /// Failures since the start or the last [`reset`](Self::reset), told or not.
    pub fn tries(&self) -> u64 {
        self.tries
    }

    /// Whether a failure was told since then, so that its end is worth a line too.
    pub fn has_spoken(&self) -> bool {
        self.next.is_some()
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_speaks_at_once_and_then_ever_more_rarely() {
        let (mut pace, start) = (LogPace::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert!(!pace.has_spoken());
        let spoken: Vec<u64> = (0..300)
            .filter(|second| pace.is_due_at(at(*second)))
            .collect();
        assert_eq!(spoken, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert_eq!((pace.tries(), pace.has_spoken()), (300, true));
        pace.reset();
        assert_eq!((pace.tries(), pace.has_spoken()), (0, false));
        assert!(pace.is_due_at(at(300)));
    }
}
