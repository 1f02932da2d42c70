//! Probes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Liveness {
    /// `ok`.
    pub status: String,
}

/// Whether requests would be served now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether all components are ready and the process is not stopping.
    pub ready: bool,
    /// Whether the process is on its way out.
    pub stopping: bool,
    /// The components by name.
    pub components: BTreeMap<String, ComponentHealth>,
}

/// How a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum ComponentHealth {
    /// It works.
    Ready,
    /// It cannot work until something happens; the reason says what.
    Waiting(String),
    /// It should work and makes no progress; the reason says since when.
    Stalled(String),
}
