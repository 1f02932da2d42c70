//! The values of variables that programs see.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EnvValue {
    /// As it stands here.
    Plain(String),
    /// What the worker has.
    Secret(NamedSecret),
}

/// Names what the worker has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedSecret {
    /// The name of the secret: the name of a file in `worker.secrets_dir`, or of a credential with `secret.` before it.
    #[schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]
    pub secret: String,
}
