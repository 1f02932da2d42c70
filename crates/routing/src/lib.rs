//! What becomes of a rule firing or a completion on its way to the owner of its partition.
//!
//! The intake and the completion listener do the same: they read a message, find the partition of
//! each of its items, publish the items to the queue of that partition, and acknowledge the message
//! when all that came out of it is confirmed. [`Relay`] decides all of that without I/O: it is given
//! messages and the answers to what it published, and says what to publish and what to acknowledge.
//! Time and ids come from outside, so the same inputs always lead to the same outputs; the services
//! drive it in production, the simulator drives the same one.
//!
//! What is particular to firings or completions stands in [`Rules`]: [`Firings`], [`Completions`].
//!
//! - **Nothing is lost**: what cannot be used becomes a dead letter, and is acknowledged when that
//!   is confirmed. Dead letters that take nothing send it back to the end of its own topic.
//! - **A target holds up no other.** Each has a line of its own with one publish on its way. After a
//!   refusal it waits, longer each time. What cannot be forwarded for long would fill the window of
//!   unacknowledged messages in the end; when it holds most of it, in messages or in bytes, it makes
//!   room: completions, whose order has no meaning, go back to the end of their topic; firings go to
//!   the dead letters after half a minute, from which they can be put back.
//! - **What a newer program wrote waits**, few of it unacknowledged, the rest at the end of its topic.

pub mod completions;
pub mod firings;
mod forwarder;
mod port;
mod relay;
mod router;
mod rules;
mod senders;

pub use completions::Completions;
pub use firings::Firings;
pub use forwarder::Bounds;
pub use port::{Answer, Arrived, CallId, DeliveryId, Input, Message, Now, Output, Target};
pub use relay::Relay;
pub use rules::{Item, Read, Rules};
pub use senders::{Sender, Senders};
