//! The adapter against a real PostgreSQL server: the conformance suite, and what only
//! PostgreSQL can get wrong.
#![expect(clippy::unwrap_used, reason = "a test panics when something fails")]

mod conformance;
mod connecting;
mod days;
mod fencing;
mod grants;
mod hot;
mod letters;
mod monitoring;
mod operators;
mod requests;
mod statements;
mod support;
mod throughput;
mod unreadable;
mod upkeep;
