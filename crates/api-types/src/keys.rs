//! Keys of clients.

use attune_core::or_null;
use attune_identity::{KeyId, Pattern, Rates, Role};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words;

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// Whom it stands for, in executions and in the audit log.
    #[schema(pattern = "^[A-Za-z0-9._@-]{1,64}$")]
    pub name: String,
    /// What it is for.
    #[schema(value_type = Vec<words::Role>, min_items = 1)]
    pub roles: Vec<Role>,
    /// The actions that it may ask for or define, as names or beginnings with a `*`; all unless given.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Vec<String>>)]
    pub actions: Option<Vec<Pattern>>,
    /// The pools that it may take work for, or whose workers run what it defines; none unless given.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Vec<String>>)]
    pub pools: Option<Vec<Pattern>>,
    /// Whether it may ask for executions in the name of others.
    #[serde(default, deserialize_with = "or_null")]
    #[schema(nullable)]
    pub impersonate: bool,
    /// How much it may ask for; what is not given is as the settings say.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<words::Rates>)]
    pub rates: Option<Rates>,
    /// How many of its executions may wait at once; as many as there is room for unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_waiting: Option<u32>,
    /// How long it is good; until it is revoked unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub lifetime_seconds: Option<u64>,
}

/// A key that is to take the place of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// How long the old one stays good.
    #[schema(minimum = 0, maximum = 31_536_000)]
    pub overlap_seconds: u64,
    /// How long the new one is good; as long as the one before was made for unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub lifetime_seconds: Option<u64>,
}

/// A key that was made. This is the only time that it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyMade {
    /// Its public part.
    #[schema(value_type = String)]
    pub id: KeyId,
    /// Whom it stands for.
    pub name: String,
    /// The key itself.
    pub key: String,
}

/// Whether a key is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It is.
    Good,
    /// Its time is over.
    Expired,
    /// Somebody has revoked it.
    Revoked,
}

/// A key as it is listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// Its public part.
    #[schema(value_type = String)]
    pub id: KeyId,
    /// Whom it stands for.
    pub name: String,
    /// Whether it is good.
    pub state: KeyState,
    /// What it is for.
    #[schema(value_type = Vec<words::Role>)]
    pub roles: Vec<Role>,
    /// The actions that it may ask for or define.
    #[schema(value_type = Vec<String>)]
    pub actions: Vec<Pattern>,
    /// The pools that it may take work for, or whose workers run what it defines.
    #[schema(value_type = Vec<String>)]
    pub pools: Vec<Pattern>,
    /// Whether it may ask for executions in the name of others.
    pub impersonate: bool,
    /// How much it may ask for, where that is not as the settings say.
    #[schema(value_type = words::Rates)]
    pub rates: Rates,
    /// How many of its executions may wait at once, where that is bounded.
    #[serde(default)]
    pub max_waiting: Option<u32>,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// Who made it.
    pub created_by: String,
    /// When its time is over.
    pub expires: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked: Option<DateTime<Utc>>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
    /// When it was shown last, within a minute.
    pub last_used: Option<DateTime<Utc>>,
    /// From which address.
    pub last_ip: Option<String>,
}

/// All keys, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// The keys.
    pub keys: Vec<KeyView>,
}
