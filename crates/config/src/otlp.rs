//! Settings of what is sent to a collector.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Sending metrics and traces by OTLP.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSettings {
    /// The URL below which a collector has `/v1/metrics` and `/v1/traces`; `None`: nothing is sent.
    pub endpoint: Option<Secret<String>>,
    /// How often metrics are sent, in seconds.
    pub interval_seconds: u64,
    /// Whether spans of executions are sent as well.
    pub traces: bool,
    /// Of how many in a thousand requests that name no trace one begins.
    pub traces_per_mille: u32,
}

impl OtlpSettings {
    /// Whether spans are sent, and then how many of the requests that name no trace begin one: from 0 to 1.
    #[must_use]
    pub fn traces(&self) -> Option<f64> {
        let ratio = f64::from(self.traces_per_mille) / 1000.0;
        self.traces.then_some(ratio)
    }

    /// How often metrics are sent.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_seconds)
    }
}
