//! What keys are for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees everything and changes nothing.
    Viewer,
    /// Asks for executions, and sees and ends its own.
    Submitter,
    /// Takes work over HTTP.
    Worker,
    /// Defines actions and policies.
    Author,
    /// Runs the system: holds queues, ends executions, takes slots back.
    Operator,
    /// May do everything but take work.
    Admin,
}

/// So much a second for as long as one likes, and so much at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// In the long run.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub per_second: u32,
    /// At once, at most.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: u32,
}

/// The rates of one key; what is not given is as the settings say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Executions asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit: Option<Rate>,
    /// Questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Rate>,
    /// All other changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Rate>,
}
