//! What is sealed with a key that this worker lacks.
//!
//! Somebody has forgotten this worker when a key was changed. Its executions are not at fault: failing them
//! would end everything that waits for this pool, one after the other. So they go back to their owner as never
//! begun, and another worker may have the key. Each is held here for a while before, ever longer, so that
//! owner and worker do not hand it to and fro as fast as they can.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use attune_runtime::{Counter, LogPace};
use tokio::time::Instant;

use super::start::Counted;

/// How long the first is held, and how long one is at most.
const FIRST_HOLD: Duration = Duration::from_millis(250);
const LONGEST_HOLD: Duration = Duration::from_secs(5);
/// Without another one for so long it counts as over.
const OVER: Duration = Duration::from_secs(60);

/// What this worker could not open.
#[derive(Debug, Default)]
pub(crate) struct Keyless {
    /// For short moments only.
    last: Mutex<Last>,
    /// How many are held at the moment.
    held: AtomicUsize,
    /// Those that were given back.
    given_back: Counter,
}

#[derive(Debug, Default)]
struct Last {
    /// When a key was missing the last time, and in which words that is told.
    missed: Option<(Instant, String)>,
    hold: Duration,
    log: LogPace,
}

impl Keyless {
    /// Counts in `given_back`.
    pub(crate) fn new(given_back: Counter) -> Self {
        Self {
            given_back,
            ..Self::default()
        }
    }

    fn last<T>(&self, act: impl FnOnce(&mut Last) -> T) -> T {
        act(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that what was granted of an action cannot be opened, for this reason; how long it is held before
    /// it is given back.
    pub(super) fn lacks(&self, action_ref: &str, why: &str, now: Instant) -> Duration {
        self.given_back.add(1);
        let (hold, is_due) = self.last(|last| {
            let is_over = last
                .missed
                .as_ref()
                .is_none_or(|(at, _)| now >= *at + OVER);
            if is_over {
                (last.hold, last.log) = (FIRST_HOLD, LogPace::default());
            }
            let hold = last.hold;
            last.hold = (hold * 2).min(LONGEST_HOLD);
            let words = format!(
                "it lacks a key with which parameters are sealed, and gives such executions back: {why}"
            );
            last.missed = Some((now, words));
            (hold, last.log.is_due())
        });
        if is_due {
            tracing::error!(
                action.ref = action_ref,
                reason = why,
                "this worker lacks a key and gives back what is sealed with it"
            );
        }
        hold
    }

    /// Counts one that is held, until this is dropped.
    pub(super) fn hold(&self) -> Counted<'_> {
        Counted::new(&self.held)
    }

    /// How many are held at the moment.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// What is missing, for people.
    pub(crate) fn trouble(&self) -> Option<String> {
        let now = Instant::now();
        self.last(|last| {
            let missed = last.missed.as_ref();
            let recent = missed.filter(|(at, _)| now < *at + OVER);
            recent.map(|(_, words)| words.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_is_held_for_longer_until_it_is_over() {
        let given_back = Counter::default();
        let (keyless, now) = (Keyless::new(given_back.clone()), Instant::now());
        assert_eq!(keyless.trouble(), None);
        let held: Vec<u128> = (0..7)
            .map(|_| keyless.lacks("a.b", "no key `k`", now).as_millis())
            .collect();
        assert_eq!(held, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        assert!(keyless.trouble().unwrap().contains("no key `k`"));
        assert_eq!(keyless.lacks("a.b", "no", now + OVER), FIRST_HOLD);
        assert_eq!(given_back.get(), 8);
        let counted = keyless.hold();
        assert_eq!(keyless.held(), 1);
        drop(counted);
        assert_eq!(keyless.held(), 0);
    }
}
