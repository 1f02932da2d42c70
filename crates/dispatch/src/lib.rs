//! How a grant reaches the worker that it names, and how what becomes of it comes back.
//!
//! A grant is stored with the *life* of a worker (a [`WorkerId`](attune_core::WorkerId)) that alone may begin
//! it; nobody claims anything. Everything on the way may be lost, doubled, late or out of order, and still
//! no attempt begins twice and none is given to another worker while it may yet begin: see ADR 49.
//!
//! - [`Entries`] is the worker's half: which sections it takes, what it holds until that is settled, what it
//!   reports and when.
//! - [`Roster`] and [`Stream`] are the owner's half: which worker has room, and which number a section has.
//!
//! No I/O, no clock, no chance: production, the simulator and the property tests drive the same code.

mod entries;
#[cfg(test)]
mod naive;
mod roster;
mod section;
mod stream;

pub use entries::{Entries, Outcome, Taken};
pub use roster::{Account, Life, Roster, Speaker};
pub use section::{Granted, Key, Millis, Report, Returned, Section, Started, Why};
pub use stream::Stream;
