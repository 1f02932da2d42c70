//! What is recorded of policy documents.

use attune_core::{Epoch, PartitionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// An owner decides under a version of the policy set from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInForce {
    /// In which partition.
    pub partition: PartitionId,
    /// The version.
    pub set_version: i64,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The round, counted by the owner.
    #[serde(default)]
    pub round: u64,
    /// When.
    pub t_ns: i64,
}

/// A change of documents, as the API sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum PolicyChange {
    /// It is about to be stored. What was asked for and was not told may have been stored.
    Asked {
        /// By which the outcome is found.
        policy_id: Uuid,
        /// About whom: `global`, or `pack`, `action` or `user` and a name.
        targets: Vec<String>,
        /// What is said of each from then on, as it is stored; nothing where it is taken back. Empty when that
        /// is not recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        says: Vec<Option<Value>>,
        /// When.
        t_ns: i64,
    },
    /// It is stored.
    Told {
        /// Which change.
        policy_id: Uuid,
        /// The version of the set from then on.
        set_version: i64,
        /// Whether all partitions have written down that they decide under it, or a later one.
        in_force: bool,
        /// When.
        t_ns: i64,
    },
}
