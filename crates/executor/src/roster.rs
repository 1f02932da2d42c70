//! The lives of workers, as all partitions of an owner see them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use attune_dispatch::Roster;

/// A [`Roster`] that the partitions of one owner share. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct SharedRoster(Arc<Mutex<Roster>>);

impl SharedRoster {
    /// The roster, for a moment: nothing else is done while it is held.
    pub fn lock(&self) -> MutexGuard<'_, Roster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
