//! Which of an executor's loops still make their rounds.

use std::sync::{Mutex, PoisonError};

use attune_runtime::Progress;

/// The stamps of an executor's loops; the default are stamps that nobody looks at.
#[derive(Debug, Clone, Default)]
pub struct ExecutorProgress {
    /// Of the owner, which decides; it makes a round a second at least.
    pub owner: Progress,
    /// Of the publisher; it stamps when something is published and when that has come to an end,
    /// confirmed, refused or unknown, and rests while nothing is.
    pub publisher: Progress,
    /// Of what acknowledges messages; it rests while nothing is to be acknowledged.
    pub settling: Progress,
}

/// Stamps for work that is done side by side: as long as one of it comes to an end now and then,
/// it goes on.
#[derive(Debug)]
pub(crate) struct SideBySide {
    progress: Progress,
    under_way: Mutex<usize>,
}

impl SideBySide {
    pub(crate) fn new(progress: Progress) -> Self {
        Self {
            progress,
            under_way: Mutex::default(),
        }
    }

    /// Some of it begins; it ends when the guard is dropped.
    pub(crate) fn begin(&self) -> Piece<'_> {
        self.change(|under_way| {
            *under_way += 1;
            *under_way == 1
        });
        Piece(self)
    }

    /// Changes how much is under way; `change` says whether that is a reason to stamp.
    fn change(&self, change: impl FnOnce(&mut usize) -> bool) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_due = change(&mut under_way);
        if *under_way == 0 {
            self.progress.rest();
        } else if is_due {
            self.progress.stamp();
        }
    }
}

/// A piece of work that is under way.
pub(crate) struct Piece<'a>(&'a SideBySide);

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        self.0.change(|under_way| {
            *under_way -= 1;
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use attune_runtime::Health;

    use super::*;

    #[test]
    fn work_that_never_ends_is_a_standstill_and_none_is_a_rest() {
        // Every stamp is older than nothing at all.
        let health = Health::new();
        let work = SideBySide::new(health.progress("publisher", Duration::ZERO));
        let stalled = || {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            health.stalled().is_some()
        };
        assert!(!stalled(), "nothing is under way");
        let first = work.begin();
        assert!(stalled());
        let second = work.begin();
        drop(first);
        assert!(stalled(), "the second one does not end");
        drop(second);
        assert!(!stalled());
    }
}
