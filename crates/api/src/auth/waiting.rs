//! How many executions of a key wait, over all partitions.
//!
//! Owners keep the bound exactly, each in its partitions; this keeps it over all of them, as exactly as a sum
//! can that is a moment old: what was counted at most a second ago, and all that was let in since.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_core::{Asker, WaitBound};
use attune_store::KeyStore;
use tokio::time::Instant;

use crate::error::ApiError;

/// How old a count may be by which somebody is let in.
const OLDEST: Duration = Duration::from_secs(1);
/// How old it must be before it is counted anew for somebody who would be refused: what has started meanwhile
/// waits no longer.
const PAUSE: Duration = Duration::from_millis(50);

/// The sums, by whom is counted.
#[derive(Debug, Default)]
pub(crate) struct WaitingSums {
    of: Mutex<HashMap<Asker, Sum>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    /// When it was counted.
    counted: Option<Instant>,
    /// What waited then, what was under way then, and what was let in since.
    waiting: u32,
    /// What was let in and not answered yet.
    under_way: u32,
}

/// So many were let in; not under way any more when this is dropped.
#[derive(Debug)]
pub(crate) struct LetIn {
    sums: Arc<WaitingSums>,
    asker: Asker,
    count: u32,
}

impl LetIn {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// So many of them do not wait: they were granted a slot at once, refused, or accepted before.
    pub(crate) fn settle(&self, not_waiting: usize) {
        let not_waiting = u32::try_from(not_waiting).unwrap_or(u32::MAX);
        self.sums.change(self.asker, |sum| {
            sum.waiting = sum.waiting.saturating_sub(not_waiting.min(self.count));
        });
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        let count = self.count;
        self.sums.change(self.asker, |sum| {
            sum.under_way = sum.under_way.saturating_sub(count);
        });
    }
}

impl WaitingSums {
    /// Lets in as many of `wanted` as may wait beside those that do.
    ///
    /// # Errors
    /// When the store cannot count.
    pub(crate) async fn let_in(
        self: &Arc<Self>,
        keys: &dyn KeyStore,
        bound: WaitBound,
        wanted: u32,
    ) -> Result<LetIn, ApiError> {
        let asker = bound.asker;
        let sum = self.change(asker, |sum| *sum);
        let age = sum.counted.map(|at| at.elapsed());
        let would_refuse = sum.waiting.saturating_add(wanted) > bound.max_waiting;
        let oldest = if would_refuse { PAUSE } else { OLDEST };
        if age.is_none_or(|age| age >= oldest) {
            let began = Instant::now();
            let waiting = keys.count_waiting(asker).await?;
            self.change(asker, |sum| {
                // Whoever counted later knows better.
                if sum.counted.is_none_or(|at| at < began) {
                    sum.counted = Some(began);
                    sum.waiting = waiting.saturating_add(sum.under_way);
                }
            });
        }
        let count = self.change(asker, |sum| {
            let count = wanted.min(bound.max_waiting.saturating_sub(sum.waiting));
            sum.waiting = sum.waiting.saturating_add(count);
            sum.under_way = sum.under_way.saturating_add(count);
            count
        });
        Ok(LetIn {
            sums: Arc::clone(self),
            asker,
            count,
        })
    }

    fn change<T>(&self, asker: Asker, change: impl FnOnce(&mut Sum) -> T) -> T {
        let mut sums = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        change(sums.entry(asker).or_default())
    }
}
