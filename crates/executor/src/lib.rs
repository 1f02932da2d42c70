//! The executor of Attune: queues, pure core, journal, dispatcher and recovery.

pub mod action_queue;
pub mod queue_manager;

pub use action_queue::{ActionQueue, QueueLimits};
pub use queue_manager::{Admission, ExecutionQueueManager, QueueConfig, QueueError};
