//! The settings as types. What each key means stands in the default file; here stands what code
//! needs to know. No field has a default of its own: the default file has them all.

mod worker;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use attune_core::Network;
use config::{Config, File, FileFormat};
use serde::{Deserialize, Serialize};

use crate::DEFAULT_FILE;
use crate::api::ApiSettings;
use crate::broker::BrokerSettings;
use crate::otlp::OtlpSettings;
use crate::secret::Secret;

pub use worker::{
    SandboxMode, WorkerHttpSettings, WorkerLeaseSettings, WorkerLimits, WorkerSettings,
};

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which adapters the roles use.
    pub wiring: Wiring,
    /// Embedded wiring: the folder of the SQLite file.
    pub data_dir: PathBuf,
    /// The PostgreSQL store.
    pub database: DatabaseSettings,
    /// RabbitMQ.
    pub broker: BrokerSettings,
    /// What all processes of a cluster must agree on.
    pub cluster: ClusterSettings,
    /// The executor role.
    pub executor: ExecutorSettings,
    /// The completion listener role.
    pub completion_listener: CompletionListenerSettings,
    /// Queue stats: the executor's sampler and the stats persister role.
    pub stats: StatsSettings,
    /// The worker role.
    pub worker: WorkerSettings,
    /// The API role.
    pub api: ApiSettings,
    /// What is kept of the past.
    pub history: HistorySettings,
    /// What is secret in parameters.
    pub secrets: SecretsSettings,
    /// The audit log.
    pub audit: AuditSettings,
    /// Logging.
    pub log: LogSettings,
    /// Metrics and health of the roles other than the API.
    pub metrics: MetricsSettings,
    /// Health and metrics of the API on a listener of their own.
    pub ops: OpsSettings,
    /// Sending metrics to a collector.
    pub otlp: OtlpSettings,
}

/// Which adapters the roles use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wiring {
    /// SQLite and the in-process bus.
    Embedded,
    /// PostgreSQL and RabbitMQ.
    PostgresRabbitmq,
}

/// The PostgreSQL store.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSettings {
    /// `postgres://…`
    pub url: Secret<String>,
    /// The file that it was read from, if it was.
    pub url_file: Option<PathBuf>,
    /// Connections of one process, at most.
    pub max_connections: u32,
    /// See [`acquire_timeout`](Self::acquire_timeout).
    pub acquire_timeout_seconds: u64,
    /// See [`statement_timeout`](Self::statement_timeout).
    pub statement_timeout_seconds: u64,
    /// See [`migration_timeout`](Self::migration_timeout).
    pub migration_timeout_seconds: u64,
}

impl DatabaseSettings {
    /// How long to wait for a free connection.
    #[must_use]
    pub const fn acquire_timeout(&self) -> Duration {
        Duration::from_secs(self.acquire_timeout_seconds)
    }

    /// After this time the server ends a statement.
    #[must_use]
    pub const fn statement_timeout(&self) -> Duration {
        Duration::from_secs(self.statement_timeout_seconds)
    }

    /// After this time the server ends a statement of a migration.
    #[must_use]
    pub const fn migration_timeout(&self) -> Duration {
        Duration::from_secs(self.migration_timeout_seconds)
    }
}

/// What all processes of a cluster must agree on.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// The number of partitions, 1 to 256.
    pub partitions: u16,
}

/// The executor role.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutorSettings {
    /// See [`name_or_host`](Self::name_or_host).
    pub name: Option<String>,
    /// Bounds of the ActionQueues.
    pub queue: QueueSettings,
    /// The leases on partitions.
    pub lease: LeaseSettings,
    /// The group commit.
    pub batch: BatchSettings,
    /// What is granted ahead of its slot.
    pub lanes: LaneSettings,
    /// The periodic pass that mends what a lost event left behind.
    pub reconcile: ReconcileSettings,
    /// Taking commands from the broker.
    pub intake: IntakeSettings,
}

impl ExecutorSettings {
    /// The name that leases and logs show.
    #[must_use]
    pub fn name_or_host(&self) -> String {
        self.name.clone().unwrap_or_else(host_name)
    }
}

/// Bounds of the ActionQueues.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// Executions of one action that may wait.
    pub max_queue_length: usize,
    /// See [`queue_timeout`](Self::queue_timeout).
    pub queue_timeout_seconds: u64,
    /// Whether the metrics show what the executor counts.
    pub enable_metrics: bool,
}

impl QueueSettings {
    /// Executions that waited longer expire.
    #[must_use]
    pub const fn queue_timeout(&self) -> Duration {
        Duration::from_secs(self.queue_timeout_seconds)
    }
}

/// The leases on partitions.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseSettings {
    /// See [`ttl`](Self::ttl).
    pub ttl_seconds: u64,
}

impl LeaseSettings {
    /// How long a lease lasts unless it is renewed.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds)
    }
}

/// The group commit.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSettings {
    /// Commands and completions of one commit, at most.
    pub max_items: usize,
}

/// What is granted ahead of its slot.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LaneSettings {
    /// Executions of one action that a worker is granted ahead of their slots, at most.
    pub max_ahead: usize,
}

/// The periodic pass that mends what a lost event left behind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileSettings {
    /// See [`interval`](Self::interval).
    pub interval_seconds: u64,
}

impl ReconcileSettings {
    /// How often the pass runs.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_seconds)
    }
}

/// Taking commands from the broker.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IntakeSettings {
    /// Messages handed over before the first is acknowledged.
    pub prefetch: u16,
}

/// The completion listener role.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionListenerSettings {
    /// Messages handed over before the first is acknowledged.
    pub prefetch: u16,
    /// Completions passed on together, at most.
    pub max_batch: usize,
}

/// Queue stats.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StatsSettings {
    /// See [`publish_interval`](Self::publish_interval).
    pub publish_interval_ms: u64,
    /// See [`retention`](Self::retention).
    pub retention_days: u32,
}

impl StatsSettings {
    /// Changes of a queue within this time share one write.
    #[must_use]
    pub const fn publish_interval(&self) -> Duration {
        Duration::from_millis(self.publish_interval_ms)
    }

    /// How long the history per minute is kept.
    #[must_use]
    pub const fn retention(&self) -> Duration {
        days(self.retention_days)
    }
}

/// What is kept of the past.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HistorySettings {
    /// See [`retention`](Self::retention).
    pub retention_days: u32,
    /// Where processes record what they did, for the history checker; `None`: nowhere.
    pub dir: Option<PathBuf>,
}

impl HistorySettings {
    /// How long finished executions are kept in the store.
    #[must_use]
    pub const fn retention(&self) -> Duration {
        days(self.retention_days)
    }
}

/// What is secret in parameters.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SecretsSettings {
    /// The keys with which it is encrypted; `None`: it is not.
    pub key_file: Option<PathBuf>,
}

/// The audit log.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSettings {
    /// See [`retention`](Self::retention).
    pub retention_days: u32,
}

impl AuditSettings {
    /// How long entries are kept, and versions of policies that are not in force any more. Months go as a whole.
    #[must_use]
    pub const fn retention(&self) -> Duration {
        days(self.retention_days)
    }
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Levels in the syntax of `tracing_subscriber::EnvFilter`.
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
    /// Text on a terminal, JSON elsewhere.
    Auto,
}

/// Health and metrics of the API, where its clients cannot take all connections.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpsSettings {
    /// Where to serve them; `None`: [`DEFAULT_LISTEN`](Self::DEFAULT_LISTEN), or a free port when
    /// that one is in use.
    pub listen: Option<SocketAddr>,
    /// Who may reach that.
    pub network: Network,
}

impl OpsSettings {
    /// Where they are served when nothing is set.
    pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
}

/// Metrics and health of the roles other than the API.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSettings {
    /// Where to serve them; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Who may reach that.
    pub network: Network,
}

/// How [`Settings::print`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintFormat {
    /// In the form of the default file.
    Yaml,
    /// One object.
    Json,
}

impl Default for Settings {
    /// What the default file says.
    fn default() -> Self {
        Config::builder()
            .add_source(File::from_str(DEFAULT_FILE, FileFormat::Yaml))
            .build()
            .and_then(Config::try_deserialize)
            .expect("the default file is part of the program, and a test loads it")
    }
}

impl Settings {
    /// What is in force, with secrets hidden.
    #[must_use]
    pub fn print(&self, format: PrintFormat) -> String {
        let plain = "settings are plain data with text keys";
        match format {
            PrintFormat::Yaml => yaml_serde::to_string(self).expect(plain),
            PrintFormat::Json => serde_json::to_string_pretty(self).expect(plain) + "\n",
        }
    }
}

const fn days(days: u32) -> Duration {
    Duration::from_secs(days as u64 * 24 * 3600)
}

/// The name of this machine, as far as it can be known without a system call of our own.
#[must_use]
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}
