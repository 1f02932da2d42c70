//! Settings of what is sent to a collector.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Sending metrics by OTLP.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSettings {
    /// The URL below which a collector has `/v1/metrics`; `None`: nothing is sent.
    pub endpoint: Option<Secret<String>>,
    /// How often metrics are sent, in seconds.
    pub interval_seconds: u64,
}

impl OtlpSettings {
    /// How often metrics are sent.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_seconds)
    }
}
