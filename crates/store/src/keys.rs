//! Keys of clients: what is stored of them, and every change of them with its entry in the audit log.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{Asker, RequestId};
use attune_identity::{Grants, KeyHash, KeyId};
use chrono::{DateTime, Utc};
use serde_json::json;

use crate::actor::Actor;
use crate::audit::{NewAudit, What};
use crate::error::StoreError;

/// How many keys there may be, the expired and the revoked ones included. They are small, few and listed
/// whole.
pub const MAX_KEYS: u32 = 10_000;

/// A key to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewKey {
    /// Its public part.
    pub id: KeyId,
    /// What is stored of its secret.
    pub hash: KeyHash,
    /// Whom it stands for. No other key of this name is good at the same time, but for a rotation.
    pub name: String,
    /// What it is for.
    pub grants: Grants,
    /// How long it is good; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
    /// Who makes it.
    pub who: Actor,
}

impl NewKey {
    /// The entry in the audit log.
    pub fn audit(&self) -> NewAudit {
        NewAudit {
            request_id: RequestId::fresh(),
            who: self.who.clone(),
            what: What::KeyCreate,
            target: self.id.to_string(),
            reason: None,
            before: None,
            after: Some(json!({
                "name": self.name,
                "grants": self.grants,
                "lifetime_seconds": self.lifetime.map(|it| it.as_secs()),
            })),
        }
    }
}

/// A key that takes the place of another.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRotation {
    /// The one before.
    pub old: KeyId,
    /// The public part of the new one, which has the same name and is for the same.
    pub id: KeyId,
    /// What is stored of its secret.
    pub hash: KeyHash,
    /// How long the old one stays good, at most.
    pub overlap: Duration,
    /// How long the new one is good; `None`: as long as the one before was made for.
    pub lifetime: Option<Duration>,
    /// Who does it.
    pub who: Actor,
}

impl KeyRotation {
    /// The entry in the audit log.
    pub fn audit(&self) -> NewAudit {
        NewAudit {
            request_id: RequestId::fresh(),
            who: self.who.clone(),
            what: What::KeyRotate,
            target: self.old.to_string(),
            reason: None,
            before: None,
            after: Some(json!({
                "id": self.id,
                "overlap_seconds": self.overlap.as_secs(),
                "lifetime_seconds": self.lifetime.map(|it| it.as_secs()),
            })),
        }
    }
}

/// Whether a key is good, by the clock of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is, for so long if nobody revokes it; `None`: without an end.
    Good(Option<Duration>),
    /// Its time is over.
    Expired,
    /// Somebody has revoked it.
    Revoked,
}

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRecord {
    /// Its public part.
    pub id: KeyId,
    /// What is stored of its secret.
    pub hash: KeyHash,
    /// Whom it stands for.
    pub name: String,
    /// What it is for. A role that this program does not know is left out, and allows nothing.
    pub grants: Grants,
    /// Whether it is good.
    pub standing: Standing,
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

/// What became of a change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOutcome {
    /// It is stored.
    Stored,
    /// A key of this name is good already, or there is one with this id.
    Taken,
    /// There is no such key.
    Unknown,
    /// The key is not good any more.
    Over,
    /// Another good key stands in its place already.
    Replaced,
    /// There are as many as there may be.
    TooMany,
}

/// Keys of clients.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// Makes a key; with `first`, only if there is none at all.
    ///
    /// # Errors
    /// When the store fails.
    async fn create_key(&self, key: &NewKey, first: bool) -> Result<KeyOutcome, StoreError>;

    /// Puts a key in the place of another, which stays good for a while.
    ///
    /// # Errors
    /// When the store fails.
    async fn rotate_key(&self, rotation: &KeyRotation) -> Result<KeyOutcome, StoreError>;

    /// Ends a key at once. Doing it again changes nothing.
    ///
    /// # Errors
    /// When the store fails.
    async fn revoke_key(&self, id: &KeyId, who: &Actor) -> Result<KeyOutcome, StoreError>;

    /// A key, whether it is good or not.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError>;

    /// All keys, by name and then by age.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Notes that a key was shown, from this address.
    ///
    /// # Errors
    /// When the store fails.
    async fn note_key_use(&self, id: &KeyId, ip: Option<&str>) -> Result<(), StoreError>;

    /// How many executions wait that were asked for with the keys of somebody of whom that is counted.
    ///
    /// # Errors
    /// When the store fails.
    async fn count_waiting(&self, asker: Asker) -> Result<u32, StoreError>;
}

/// The entry in the audit log for a key that was revoked.
pub fn audit_of_revocation(id: &KeyId, who: &Actor) -> NewAudit {
    NewAudit {
        request_id: RequestId::fresh(),
        who: who.clone(),
        what: What::KeyRevoke,
        target: id.to_string(),
        reason: None,
        before: None,
        after: None,
    }
}

/// The grants that a row holds; what this program does not know of it is left out.
pub fn stored_grants(
    roles: &[String],
    actions: Vec<String>,
    pools: Vec<String>,
    impersonate: bool,
    rates: Option<&str>,
    max_waiting: Option<i64>,
) -> Grants {
    let patterns = |all: Vec<String>| all.iter().filter_map(|it| it.parse().ok()).collect();
    Grants {
        roles: roles.iter().filter_map(|role| role.parse().ok()).collect(),
        actions: patterns(actions),
        pools: patterns(pools),
        impersonate,
        rates: rates
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
        max_waiting: max_waiting.map(|it| u32::try_from(it).unwrap_or(u32::MAX)),
    }
}
