//! The queue of one action, and all queues of a process.

mod action_queue;
mod ahead;
mod bounds;
mod counting;
mod delayed;
mod entering;
mod entry;
mod explaining;
mod holders;
mod keeping;
mod keyless;
mod leaving;
mod load;
mod manager;
mod mending;
mod moving;
mod overflow;
mod rivals;
mod view;

pub use action_queue::ActionQueue;
pub use entry::{Blocked, Grant, Granted, Holder, Millis, QueueFull, Waiting};
pub use manager::{Admission, ExecutionQueueManager, QueueConfig, QueueError};
pub use overflow::{Arrival, Newcomer, Refused};
pub use view::{QueueLook, QueuesView};
