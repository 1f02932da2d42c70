//! Whether a loop still makes its rounds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What [`Rounds::at`] holds while nothing is due.
const RESTING: u64 = u64::MAX;

/// The stamp of a loop: set in every round, and old when the loop hangs in one. Made by
/// [`Health::progress`](crate::Health::progress); the default is one that nobody looks at. Cheap
/// to clone and to use; it counts until the last clone is gone.
///
/// A loop that waits for a server must go on making rounds (a try each), or it is taken for one
/// that hangs and the service manager ends the process, which makes no server come back.
///
/// ```
/// # use std::time::Duration;
/// let health = attune_runtime::Health::new();
/// let progress = health.progress("executor.owner", Duration::from_secs(30));
/// // A loop that wakes up by a timer at least: once a round.
/// progress.stamp();
/// // One that may have nothing to do for hours: also before it waits for work.
/// progress.rest();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Rounds>);

#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) name: String,
    bound: Duration,
    /// By a clock that stands still while the machine is suspended: nothing could be done then.
    origin: Instant,
    /// When the last round began, in milliseconds since the origin, or [`RESTING`].
    at: AtomicU64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self::new(String::new(), Duration::MAX)
    }
}

impl Rounds {
    fn new(name: String, bound: Duration) -> Self {
        Self {
            name,
            bound,
            origin: Instant::now(),
            at: AtomicU64::new(RESTING),
        }
    }

    /// How long ago the last round began, when that is longer ago than the bound.
    fn stalled_for(&self) -> Option<Duration> {
        let at = self.at.load(Ordering::Relaxed);
        if at == RESTING {
            return None;
        }
        let since = self
            .origin
            .elapsed()
            .saturating_sub(Duration::from_millis(at));
        (since > self.bound).then_some(since)
    }

    /// Words for a loop that hangs.
    pub(crate) fn problem(&self) -> Option<String> {
        let (since, bound) = (self.stalled_for()?.as_secs_f64(), self.bound.as_secs_f64());
        Some(format!(
            "no round for {since:.1} s; at most {bound:.1} s are usual"
        ))
    }
}

impl Progress {
    /// A round begins.
    pub fn stamp(&self) {
        let since = self.0.origin.elapsed().as_millis();
        // Never RESTING before the sun burns out.
        let since = u64::try_from(since).unwrap_or(RESTING - 1);
        self.0.at.store(since, Ordering::Relaxed);
    }

    /// There is nothing to do: no round is due until the next stamp.
    pub fn rest(&self) {
        self.0.at.store(RESTING, Ordering::Relaxed);
    }
}

/// The loops of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Loops(Vec<Weak<Rounds>>);

impl Loops {
    /// Adds one, which rests until its first stamp.
    pub(crate) fn add(&mut self, name: String, bound: Duration) -> Progress {
        self.0.retain(|rounds| rounds.strong_count() > 0);
        let rounds = Arc::new(Rounds::new(name, bound));
        self.0.push(Arc::downgrade(&rounds));
        Progress(rounds)
    }

    /// Those that have not ended.
    pub(crate) fn alive(&self) -> impl Iterator<Item = Arc<Rounds>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}
