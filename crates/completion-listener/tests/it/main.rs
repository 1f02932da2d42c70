//! The completion listener on the in-process bus: what passes, what does not, and what happens
//! when the bus fails.

mod faults;
mod passing;
mod poison;
mod support;
mod waiting;
