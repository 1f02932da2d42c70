//! What every daemon of Attune needs around its own work.
//!
//! - [`Shutdown`]: the order to stop, from signals or from a task that died, and the wait for all
//!   tasks to end. Crash-only: a task that panics or ends when it should not stops the process.
//! - [`telemetry`]: logging to stderr.
//! - [`systemd`]: telling the service manager that the daemon is ready, what it does, that it stops.
//! - [`Backoff`] and [`retry_until_ready`]: waiting for a service that is not there yet.
//! - [`clock`]: the time that leases are measured by.
//! - [`LogPace`] and [`error_chain`]: what goes wrong again and again, in few lines without
//!   passwords; [`Failing`] says when it lasts.
//! - [`Health`]: what the daemon waits for, for `/healthz` and `/readyz`.
//! - [`Progress`]: whether the daemon's loops still make their rounds, for `/readyz` and for the
//!   service manager's watchdog.
//! - [`Metrics`]: OpenTelemetry instruments, shown as Prometheus text; [`counters!`] declares
//!   those of a part of the program.
//! - [`Spans`]: what was done for one execution or request, sent to a collector.
//! - [`ops_router`] and [`ops_server`]: those three over HTTP.
//! - [`http`]: what stands before every listener: bounds on connections and time, foreign pages.
//! - [`descriptors`]: how many files and sockets the process may have open.
//!
//! Nothing here is global except the logger: two daemons can live in one process, each with its
//! own of everything, which is what tests and `attune standalone` do.

mod backoff;
pub mod clock;
mod counters;
pub mod descriptors;
mod error_text;
mod failing;
mod health;
pub mod http;
mod in_task;
mod log_lines;
mod log_pace;
mod log_repeats;
mod metrics;
mod ops;
mod otlp;
mod pem;
pub mod process;
mod progress;
mod shutdown;
mod spans;
pub mod systemd;
pub mod telemetry;

pub use backoff::{Backoff, Stopped, retry_until_ready};
pub use counters::{Counter, Family, Gauge, Label, Sizes, Timing};
pub use error_text::error_chain;
pub use failing::Failing;
pub use health::{Component, ComponentState, Health, HealthSnapshot};
pub use in_task::in_task;
pub use log_pace::LogPace;
pub use metrics::{DURATION_SECONDS_BUCKETS, Metrics};
/// Where instruments are made; see [`Metrics::meter`].
pub use opentelemetry::metrics::Meter;
pub use ops::{OpsError, metrics_router, ops_router, ops_server};
pub use otlp::{Otlp, OtlpError};
pub use pem::{read_certificates, read_private_key};
pub use progress::Progress;
pub use shutdown::{Shutdown, StopError, TaskOutcome};
pub use spans::{EndedSpan, SpanKind, Spans};
