//! What every daemon of Attune needs around its own work.
//!
//! - [`Shutdown`]: the order to stop, from signals or from a task that died, and the wait for all
//!   tasks to end. Crash-only: a task that panics or ends when it should not stops the process.
//! - [`telemetry`]: logging to stderr.
//! - [`systemd`]: telling the service manager that the daemon is ready, what it does, that it stops.
//! - [`Backoff`] and [`retry_until_ready`]: waiting for a service that is not there yet.
//! - [`Health`]: what the daemon waits for, for `/healthz` and `/readyz`.
//! - [`Metrics`]: OpenTelemetry instruments, shown as Prometheus text.
//! - [`ops_router`] and [`ops_server`]: those three over HTTP.
//!
//! Nothing here is global except the logger: two daemons can live in one process, each with its
//! own of everything, which is what tests and `attune standalone` do.

mod backoff;
mod error_text;
mod health;
mod metrics;
mod ops;
mod shutdown;
pub mod systemd;
pub mod telemetry;

pub use backoff::{Backoff, Stopped, retry_until_ready};
pub use health::{Component, ComponentState, Health, HealthSnapshot};
pub use metrics::{DURATION_SECONDS_BUCKETS, Metrics};
pub use ops::{OpsError, metrics_router, ops_router, ops_server};
pub use shutdown::{Shutdown, StopError, TaskOutcome};
