//! HTTP interface of Attune.
//!
//! What it promises:
//! - **201 means durable.** A submission is answered when the owner of its partition has
//!   committed it. No answer in time is 503 with `OUTCOME_UNKNOWN`, never a guess; repeating the
//!   request with the same `Idempotency-Key` gives the same execution.
//! - **Every refusal is the same JSON**: `{"error": {"code", "message", …}}`, with the field that
//!   is wrong and when to try again where that applies; also for unknown paths, malformed
//!   bodies and panics.
//! - **A client that goes away leaves nothing half done**: steps that belong together run in a
//!   task of their own.
//! - **The owner decides.** Checks here (parameter schema, known action) spare the owner work and
//!   give better words; they use a view of the actions that may be a second old.
//!
//! - **Nobody may do what was not allowed to them.** What each endpoint needs stands in one table, and
//!   what does not stand there is refused. Where no key is asked for, only this machine is served, and
//!   no request that a browser sends on behalf of a foreign page ([`attune_runtime::http`]).
//!
//! [`ApiServer`] is the service; [`router`] is the same without a socket, for tests.

mod answers;
mod aside;
mod auth;
mod body;
mod budget;
mod catalog;
mod error;
mod events;
mod extent;
mod figures;
pub mod health;
pub mod keys;
mod layers;
mod letters;
mod matching;
mod options;
mod policies;
mod polls;
mod ports;
mod query;
mod ready;
mod reference;
mod routes;
mod schema;
mod server;
mod traced;

pub use auth::ClientRates;
pub use error::ApiError;
pub use figures::ApiFigures;
pub use options::{ApiOptions, OpsListen, QueueDefaults};
pub use ports::{Commands, LiveQueues, Ports};
pub use ready::{BusProbe, PartitionsProbe, Probe, StoreProbe};
pub use routes::{Verdict, router, verdicts};
pub use server::{Addresses, ApiServer, BindError};
