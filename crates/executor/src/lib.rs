//! Every decision of an executor, without I/O.
//!
//! An execution's way through this crate: a message is [`Input::Delivered`] to the
//! [`Owner`](owner::Owner) → its `rounds` gather, look up and bring it to the
//! [`Partition`](partition::Partition) it belongs to → which decides, on the
//! [`ActionQueue`](queue::ActionQueue) of the action, by its `policy` → [`round`] folds the
//! decisions into one commit → when that is made, `telling` says what follows.
//!
//! - [`queue`]: who waits and who holds a slot, of one action; all queues of a process, also for
//!   programs that use them as a library ([`ExecutionQueueManager`]).
//! - [`policy`]: limits and order.
//! - [`partition`]: everything that can happen to the executions of one partition.
//! - [`owner`]: leases, loading, rounds, telling, comparing with the store.
//! - [`leases`]: who is to own which partition.
//! - `detector`: watches the grants and believes nothing that gives them.

#[cfg(test)]
mod case_tests;
pub mod counters;
#[cfg(test)]
mod counting_tests;
mod detector;
pub mod fact;
pub mod happened;
pub mod leases;
pub mod notice;
pub mod owner;
pub mod partition;
pub mod policy;
pub mod queue;
pub mod roster;
pub mod round;
pub mod stored;

/// A map by ids that the store or an owner makes. Nobody outside chooses them, so a quick hash is safe.
pub(crate) type ById<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
/// A map by keys of groups, rates, users and flows. Their values are chosen outside, but the keys are cut SHA-256
/// hashes of these: nobody can choose keys that collide under a quick hash with a seed.
pub(crate) type ByKey<K, V> = std::collections::HashMap<K, V, foldhash::quality::RandomState>;
/// [`ById`], shared by threads.
pub(crate) type SharedById<K, V> = dashmap::DashMap<K, V, foldhash::fast::RandomState>;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use std::sync;

pub use counters::Counter;
pub use detector::{Broken, Violation};
pub use fact::{Decided, Fact};
pub use happened::{ActionEvent, Happened};
pub use notice::Notice;
pub use owner::{Input, Output, Owner, OwnerOptions};
pub use queue::{Admission, ExecutionQueueManager, QueueConfig, QueueError, QueuesView};

#[cfg(test)]
pub(crate) use case_tests::thorough;
