//! Layered settings of Attune.
//!
//! Four sources, each overriding the one before: the commented default file that is part of the
//! program ([`DEFAULT_FILE`]), a YAML file, `ATTUNE__…` variables and flags. [`Loader`] reads
//! them, refuses what is unknown or impossible, and names the key, its source and what would be
//! right for *every* problem at once.
//!
//! ```
//! use attune_config::Loader;
//!
//! let loaded = Loader::new()
//!     .environment([("ATTUNE__EXECUTOR__QUEUE__MAX_QUEUE_LENGTH", "50")])
//!     .flags([("worker.slots", "8")])
//!     .load()?;
//! assert_eq!(loaded.settings.executor.queue.max_queue_length, 50);
//! assert_eq!(loaded.settings.worker.slots, 8);
//! # Ok::<(), attune_config::LoadError>(())
//! ```
//!
//! The default file is the single place of the defaults: the structs have none of their own.
//! What a value may be is in one table (`keys.rs`), which also gives the words of the messages
//! and of `docs/CONFIGURATION.md`.

mod api;
mod broker;
mod files;
mod keys;
mod loader;
mod otlp;
mod problem;
mod secret;
mod settings;
mod suggest;
mod urls;
mod validate;
mod walk;

pub use api::{ApiSettings, RateSettings, TlsSettings};
pub use broker::{BrokerSettings, BrokerTlsSettings, BrokerTopology, QueueType};
pub use files::{read_file_bytes, read_private_bytes, read_private_file};
pub use loader::{Loaded, Loader, Warning};
pub use otlp::OtlpSettings;
pub use problem::{LoadError, Problem, Problems, Source};
pub use secret::{Secret, redact_urls};
pub use settings::{
    AuditSettings, BatchSettings, ClusterSettings, CompletionListenerSettings, DatabaseSettings,
    ExecutorSettings, HistorySettings, IntakeSettings, LeaseSettings, LogFormat, LogSettings,
    MetricsSettings, OpsSettings, PrintFormat, QueueSettings, ReconcileSettings, SandboxMode,
    SecretsSettings, Settings, StatsSettings, Wiring, WorkerHttpSettings, WorkerLeaseSettings,
    WorkerLimits, WorkerSettings, host_name,
};

/// The commented default file, as it is in the program: every key with its default.
pub const DEFAULT_FILE: &str = include_str!("../../../config/default.yaml");
