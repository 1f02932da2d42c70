//! The queue of one action, and all queues of a process.

mod action_queue;
mod delayed;
mod manager;
mod view;

pub use action_queue::{ActionQueue, Blocked, Grant, Granted, Holder, Millis, QueueFull, Waiting};
pub use manager::{Admission, ExecutionQueueManager, QueueConfig, QueueError};
pub use view::QueuesView;
