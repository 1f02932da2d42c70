//! The settings of RabbitMQ.

use std::path::PathBuf;
use std::time::Duration;

use attune_core::Network;
use serde::{Deserialize, Serialize};

use crate::secret::Secret;
use crate::validate::host_of;

/// RabbitMQ.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerSettings {
    /// `amqp://…` or `amqps://…`
    pub url: Secret<String>,
    /// The file that it was read from, if it was.
    pub url_file: Option<PathBuf>,
    /// Where the broker may be when the connection is not encrypted.
    pub network: Network,
    /// Who the broker is, and who this process is, when it is.
    pub tls: BrokerTlsSettings,
    /// See [`requires_user_id`](Self::requires_user_id).
    pub require_user_id: Option<bool>,
    /// Users of the broker who may say for whom something is.
    pub impersonators: Vec<String>,
    /// Users of the broker whose messages owners of partitions take; all of them when it is empty.
    pub parts: Vec<String>,
    /// Whether exchanges and queues that stay are declared or only looked for.
    pub topology: BrokerTopology,
    /// The type of the durable queues.
    pub queue_type: QueueType,
    /// The heartbeat to ask for, in seconds.
    pub heartbeat_seconds: u16,
    /// See [`publish_timeout`](Self::publish_timeout).
    pub publish_timeout_seconds: u64,
    /// The largest message that is sent or taken, in bytes.
    pub max_message_bytes: usize,
    /// Put before the names of exchanges and queues; may be empty.
    pub prefix: String,
}

impl BrokerSettings {
    /// After this time without a confirm the outcome of a publish counts as unknown.
    #[must_use]
    pub const fn publish_timeout(&self) -> Duration {
        Duration::from_secs(self.publish_timeout_seconds)
    }

    /// Whether every message must name the user who sends it, for whom the broker then vouches: unless
    /// something else is said, where the broker is not on this machine.
    #[must_use]
    pub fn requires_user_id(&self) -> bool {
        self.require_user_id.unwrap_or_else(|| !self.is_near())
    }

    /// Whether the broker is on this machine.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let url = self.url.expose();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        Network::Loopback.is_named_by(host_of(rest))
    }
}

/// Certificates for `amqps://`, in files of PEM.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerTlsSettings {
    /// Who may vouch for the broker, beside those whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// Who this process is, with those who vouch for it.
    pub cert_file: Option<PathBuf>,
    /// The key of that.
    pub key_file: Option<PathBuf>,
}

/// Who makes the exchanges and queues that stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BrokerTopology {
    /// Each process declares what it needs.
    Apply,
    /// `attune topology apply` does; no process may.
    Passive,
}

/// The type of RabbitMQ's durable queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// Replicated.
    Quorum,
    /// On one node.
    Classic,
}

impl QueueType {
    /// The word that the broker knows (`x-queue-type`).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}
