//! How the slots of an action are shared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Levels, Weights};

/// By what the slots of an action are shared among those who wait: whoever holds the fewest slots for its
/// weight goes first. Of those who hold equally many each has its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fairness {
    /// The levels, from the top: slots are shared by the first place, and what one has there by the next.
    /// `user`, `labels.NAME`, `parameters.NAME`, or `group`, the execution's group by `group_by`.
    #[serde(default)]
    #[schema(value_type = Levels, required = true)]
    pub by: Vec<String>,
    /// What shares are worth beside others, by `LEVEL:VALUE`, such as `user:ann`: from 1 to 1000.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Weights)]
    pub weights: BTreeMap<String, u32>,
    /// The same of all others; 1 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub default_weight: Option<u32>,
}
