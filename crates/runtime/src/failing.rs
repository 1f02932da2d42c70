//! Trouble that is told once it lasts.

use std::time::{Duration, Instant};

/// Something that is tried again and again: whether every try has failed for a while. One failure
/// is nobody's business; a time in which nothing else comes of it is.
///
/// ```
/// use std::time::Duration;
///
/// let mut writing = attune_runtime::Failing::default();
/// writing.failed("disk full".to_owned());
/// assert_eq!(writing.lasting(Duration::ZERO), Some("disk full"));
/// assert_eq!(writing.lasting(Duration::from_secs(20)), None);
/// writing.succeeded();
/// assert_eq!(writing.lasting(Duration::ZERO), None);
/// ```
#[derive(Debug, Default)]
pub struct Failing(Option<Failures>);

/// Failures without a success between them.
#[derive(Debug)]
struct Failures {
    first: Instant,
    last: Instant,
    /// Of the last.
    words: String,
}

impl Failing {
    /// A try failed, for the reason that `words` give.
    pub fn failed(&mut self, words: String) {
        self.failed_at(Instant::now(), words);
    }

    fn failed_at(&mut self, now: Instant, words: String) {
        let first = self.0.as_ref().map_or(now, |failures| failures.first);
        let last = now;
        self.0 = Some(Failures { first, last, words });
    }

    /// A try succeeded.
    pub fn succeeded(&mut self) {
        self.0 = None;
    }

    /// Nothing is left to be tried: what failed is forgotten when it failed last so long ago.
    pub fn rested(&mut self, quiet: Duration) {
        self.rested_at(Instant::now(), quiet);
    }

    fn rested_at(&mut self, now: Instant, quiet: Duration) {
        self.0.take_if(|failures| now - failures.last >= quiet);
    }

    /// Why the last try failed, if the first that failed with nothing but failures after it was so
    /// long ago.
    pub fn lasting(&self, patience: Duration) -> Option<&str> {
        self.lasting_at(Instant::now(), patience)
    }

    fn lasting_at(&self, now: Instant, patience: Duration) -> Option<&str> {
        let failures = self.0.as_ref();
        let lasting = failures.filter(|failures| now - failures.first >= patience);
        lasting.map(|failures| failures.words.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn what_fails_is_told_once_it_lasts_and_until_it_works() {
        let (mut failing, start) = (Failing::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert_eq!(failing.lasting_at(at(0), PATIENCE), None);
        failing.failed_at(at(0), "away".to_owned());
        assert_eq!(failing.lasting_at(at(19), PATIENCE), None);
        failing.failed_at(at(19), "disk full".to_owned());
        assert_eq!(failing.lasting_at(at(20), PATIENCE), Some("disk full"));
        failing.succeeded();
        assert_eq!(failing.lasting_at(at(21), PATIENCE), None);
        failing.failed_at(at(22), "away".to_owned());
        assert_eq!(failing.lasting_at(at(41), PATIENCE), None, "it counts anew");
    }

    #[test]
    fn what_is_not_tried_any_more_is_forgotten_after_a_while() {
        let (mut failing, start) = (Failing::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        failing.failed_at(at(0), "away".to_owned());
        failing.failed_at(at(30), "away".to_owned());
        failing.rested_at(at(49), PATIENCE);
        assert_eq!(failing.lasting_at(at(49), PATIENCE), Some("away"));
        failing.rested_at(at(50), PATIENCE);
        assert_eq!(failing.lasting_at(at(50), PATIENCE), None);
    }
}
