//! Bounds on what requests make the process keep, summed over all of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;

/// Bodies that are being received, and those that are worked on, may have so many bytes.
const BODIES: usize = 64 * 1024 * 1024;
/// A body up to so many bytes is always taken: many large ones must not keep small ones out, and
/// the number of connections bounds what they take.
pub(crate) const SMALL_BODY: usize = 16 * 1024;
/// So many bytes of text may be parsed to trees at once. A tree can take 65 times its text.
const PARSED: usize = 4 * 1024 * 1024;
/// Semaphores count in units of this many bytes.
const UNIT: usize = 1024;

/// So many bytes, shared by all requests.
#[derive(Clone)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    all: usize,
}

/// A part of a budget; it goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share(Option<OwnedSemaphorePermit>);

impl Budget {
    fn new(bytes: usize) -> Self {
        let all = bytes / UNIT;
        Self {
            units: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// For the bytes of bodies.
    pub(crate) fn of_bodies() -> Self {
        Self::new(BODIES)
    }

    /// For the text of what is parsed to trees.
    pub(crate) fn of_parsed() -> Self {
        Self::new(PARSED)
    }

    /// What is larger than everything takes everything: it is let in, alone.
    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT).min(self.all)).unwrap_or(u32::MAX)
    }

    /// A share of so many bytes if it is free now.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Share> {
        let units = Arc::clone(&self.units);
        let permit = units.try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(Share(Some(permit)))
    }

    /// A share of so many bytes, as soon as it is free. Those who wait get it in turn.
    ///
    /// # Errors
    /// 503 `OVERLOADED` with `problem` as the words when it is not free by `deadline`.
    pub(crate) async fn take(
        &self,
        bytes: usize,
        deadline: Instant,
        problem: &str,
    ) -> Result<Share, ApiError> {
        let units = Arc::clone(&self.units);
        let permit = units.acquire_many_owned(self.units_of(bytes));
        match timeout_at(deadline, permit).await {
            Ok(permit) => Ok(Share(Some(permit.expect("nobody closes this semaphore")))),
            Err(_) => Err(ApiError::unavailable("OVERLOADED", problem)),
        }
    }
}

impl Share {
    /// Of no budget.
    pub(crate) fn free() -> Self {
        Self(None)
    }

    /// Whether it counts against a budget.
    pub(crate) fn counts(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_budget_is_out_at_once() {
        let budget = Budget::new(10 * UNIT);
        let first = budget.try_take(9 * UNIT + 1).unwrap();
        assert!(budget.try_take(1).is_none());
        let soon = Instant::now() + Duration::from_secs(1);
        let error = budget.take(1, soon, "later").await.unwrap_err();
        assert_eq!(
            (error.status.as_u16(), &*error.detail.message),
            (503, "later")
        );
        assert!(error.detail.retry_after_seconds.is_some());
        drop(first);
        assert!(budget.try_take(10 * UNIT).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_all_is_let_in_alone_and_in_turn() {
        let budget = Budget::new(10 * UNIT);
        let small = budget.try_take(UNIT).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        let large = budget.take(1000 * UNIT, late, "later");
        let freed = async { drop(small) };
        let (large, ()) = tokio::join!(large, freed);
        let large = large.unwrap();
        assert!(budget.try_take(1).is_none());
        drop(large);
        assert!(budget.try_take(1).is_some());
    }
}
