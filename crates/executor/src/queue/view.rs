//! Queues of a running executor, to be looked at: nothing here grants or releases.

use attune_core::{ActionId, QueueStats};

use super::{Blocked, ExecutionQueueManager};

/// What one look at a queue shows.
#[derive(Debug, Clone)]
pub struct QueueLook {
    /// Its figures.
    pub stats: QueueStats,
    /// How many executions may wait in it.
    pub max_length: u32,
    /// Why nobody of those who wait is given a slot right now; `None` when somebody can be.
    pub blocked: Option<Blocked>,
}

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

    /// Every queue as it is now, in no order. No queue is held while others are read.
    pub fn look_at_all(&self) -> Vec<QueueLook> {
        self.0.look_at_all()
    }
}
