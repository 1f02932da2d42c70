//! How many executions wait of those who may have so many waiting only.
//!
//! What is counted is what is stored: whoever is `queued`. So it follows from what a step decides
//! ([`Effect`]), and what the API adds up over all partitions is the same.

use attune_core::{Asker, Bug, ExecutionId, Reject, Status, WaitBound};

use super::{Effect, Partition};
use crate::stored::StoredExecution;
use crate::{ById, ByKey};

/// Whose executions are here, and how many of them wait. Empty where nobody is bounded.
#[derive(Debug, Clone, Default)]
pub(super) struct Askers {
    of: ById<ExecutionId, Asked>,
    waiting: ByKey<Asker, u32>,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    asker: Asker,
    waits: bool,
}

impl Askers {
    /// Whether one more of whoever asks may wait.
    pub(super) fn admit(&self, bound: Option<WaitBound>) -> Result<(), Reject> {
        let Some(bound) = bound else {
            return Ok(());
        };
        bound.admits(self.waiting(bound.asker))
    }

    /// How many of theirs wait.
    pub(super) fn waiting(&self, asker: Asker) -> u32 {
        self.waiting.get(&asker).copied().unwrap_or_default()
    }

    /// An execution is here from now on, or another than memory knew.
    pub(super) fn put(&mut self, id: ExecutionId, asker: Asker, waits: bool) {
        self.forget(id);
        self.of.insert(id, Asked { asker, waits });
        self.count(asker, false, waits);
    }

    /// The same, of a stored one.
    pub(super) fn restore(&mut self, row: &StoredExecution) {
        match row.asker {
            Some(_) if Bug::AskersForgotten.is_planted() => {}
            Some(asker) => self.put(row.id, asker, row.status == Status::Queued),
            None => {}
        }
    }

    /// An execution is gone.
    pub(super) fn forget(&mut self, id: ExecutionId) {
        if let Some(asked) = self.of.remove(&id) {
            self.count(asked.asker, asked.waits, false);
        }
    }

    fn turn(&mut self, id: ExecutionId, waits: bool) {
        let Some(asked) = self.of.get_mut(&id) else {
            return;
        };
        let waited = std::mem::replace(&mut asked.waits, waits);
        let asker = asked.asker;
        self.count(asker, waited, waits);
    }

    fn count(&mut self, asker: Asker, waited: bool, waits: bool) {
        if waited == waits {
            return;
        }
        let count = self.waiting.entry(asker).or_default();
        if waits {
            *count += 1;
            return;
        }
        *count -= 1;
        if *count == 0 {
            self.waiting.remove(&asker);
        }
    }
}

impl Partition {
    /// Counts on with what was decided just now.
    pub(super) fn follow_askers(&mut self, decided: &[Effect]) {
        if self.askers.of.is_empty() {
            return;
        }
        for effect in decided {
            match effect {
                Effect::Change(change) => {
                    if let Some(transition) = change.transition {
                        let waits = transition.to() == Status::Queued;
                        self.askers.turn(change.id, waits);
                    }
                }
                Effect::End(end) => self.askers.forget(end.id),
                _ => {}
            }
        }
    }
}
