//! The protocols of Attune as models that are checked exhaustively: every order of every step, up to
//! bounds.
//!
//! A model says in a few hundred lines what the parts of Attune promise each other, and its variants
//! leave out or change one thing at a time, so that each mechanism is shown to be needed. It shares
//! no code with what it is a model of: it judges the protocol, not the program.
//!
//! - [`ownership`]: who owns a partition, and what its commits may do to the store.
//! - [`dispatch`]: how a grant reaches the worker that it names, and how its end comes back.

pub mod dispatch;
pub mod ownership;
