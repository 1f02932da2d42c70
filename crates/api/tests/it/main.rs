//! The API through its router, on fakes of the ports; the socket side on loopback.

#![expect(
    clippy::unwrap_used,
    reason = "a test says by a panic that its set-up failed"
)]

mod actions;
mod auth;
mod clients;
mod dead_letters;
mod events;
mod exchange;
mod executions;
mod explain;
mod fake_cluster;
mod fake_keys;
mod fakes;
mod harness;
mod http;
mod inherited;
mod keyed;
mod keys;
mod operations;
mod operators;
mod pauses;
mod policies;
mod published;
mod queues;
mod recording;
mod reference;
mod refusals;
mod schemas;
mod secrets;
mod server;
mod submit;
mod worker;
