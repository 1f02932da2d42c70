//! How many executions each user has, where a user may have so many only.

use attune_core::{ExecutionId, GroupKey};

use crate::{ById, ByKey};

/// The executions that wait, are delayed or hold a slot, by their users.
#[derive(Debug, Clone, Default)]
pub(crate) struct Users {
    of: ById<ExecutionId, GroupKey>,
    counts: ByKey<GroupKey, u32>,
}

impl Users {
    /// An execution of a user is there from now on.
    pub(crate) fn join(&mut self, id: ExecutionId, user: GroupKey) {
        if self.of.insert(id, user).is_none() {
            *self.counts.entry(user).or_default() += 1;
        }
    }

    /// An execution is gone.
    pub(crate) fn leave(&mut self, id: ExecutionId) {
        let Some(user) = self.of.remove(&id) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&user);
            }
        }
    }

    /// The user of an execution that is there.
    pub(crate) fn of(&self, id: ExecutionId) -> Option<GroupKey> {
        self.of.get(&id).copied()
    }

    /// How many executions of a user are there.
    pub(crate) fn count(&self, user: GroupKey) -> u32 {
        self.counts.get(&user).copied().unwrap_or_default()
    }
}
