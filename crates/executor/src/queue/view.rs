//! Queues of a running executor, to be looked at: nothing here grants or releases.

use attune_core::{ActionId, QueueStats};

use super::ExecutionQueueManager;

/// Reads the queues of a running executor. Cheap to clone.
#[derive(Debug, Clone)]
pub struct QueuesView(ExecutionQueueManager);

impl QueuesView {
    pub(crate) fn of(queues: &ExecutionQueueManager) -> Self {
        Self(queues.clone())
    }

    /// The queue of an action as it is now; `None` when this executor does not serve it.
    pub fn get_queue_stats(&self, action_id: ActionId) -> Option<QueueStats> {
        self.0.get_queue_stats(action_id)
    }

    /// Every queue as it is now, by action id. No queue is held while others are read.
    pub fn get_all_queue_stats(&self) -> Vec<QueueStats> {
        self.0.get_all_queue_stats()
    }
}
