//! What was done by hand and what the system found wrong with itself: append-only.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::error::StoreError;

/// The kinds of entries, as `what` holds them.
pub mod what {
    /// An operator took a slot from an attempt.
    pub const FORCE_RELEASE: &str = "slot.force_release";
    /// An execution was given a slot, or started, before an earlier one.
    pub const ORDER_VIOLATION: &str = "violation.order";
    /// Operators pause queues; the target is `all`, or `pack` or `action` and its name.
    pub const QUEUES_PAUSE: &str = "queues.pause";
    /// Operators drain queues; the target likewise.
    pub const QUEUES_DRAIN: &str = "queues.drain";
    /// Operators resume queues; the target likewise.
    pub const QUEUES_RESUME: &str = "queues.resume";
    /// Operators applied a policy document; the target is `global`, or `pack`, `action` or `user` and a name.
    pub const POLICY_APPLY: &str = "policy.apply";
    /// Operators took a policy document back; the target likewise.
    pub const POLICY_REMOVE: &str = "policy.remove";
    /// Operators asked for a bulk operation; the target is `operation` and its number.
    pub const OPERATION: &str = "executions.operation";
    /// More executions held a slot than the limit allows.
    pub const LIMIT_VIOLATION: &str = "violation.limit";
    /// An operator fenced off what was before a restore of the store.
    pub const RESTORE_FENCE: &str = "cluster.restore_fence";
    /// An operator is about to put a dead letter back; the target is its message id.
    pub const DEAD_LETTER_REQUEUE_BEGUN: &str = "dead_letter.requeue_begun";
    /// An operator put a dead letter back; the target is its message id.
    pub const DEAD_LETTER_REQUEUE: &str = "dead_letter.requeue";
    /// Somebody applied an action; the target is its ref.
    pub const ACTION_APPLY: &str = "action.apply";
    /// Somebody asked for an execution to be ended; the target is its id.
    pub const CANCEL: &str = "execution.cancel";
    /// Somebody is about to be shown what is secret in the parameters of an execution; the target is its id.
    pub const SECRET_READ: &str = "secret.read";
    /// Somebody asked for an execution that has ended to be run again; the target is its id.
    pub const RESUBMIT: &str = "execution.resubmit";
    /// Keys that are not good were shown; the target is the address, told at most once a minute for each.
    pub const AUTH_DENIED: &str = "auth.denied";
    /// A key was made; the target is its id.
    pub const KEY_CREATE: &str = "key.create";
    /// A key took the place of another; the target is the id of the one before.
    pub const KEY_ROTATE: &str = "key.rotate";
    /// A key was revoked; the target is its id.
    pub const KEY_REVOKE: &str = "key.revoke";
}

/// Something to be written down, in the same commit as the change itself.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAudit {
    /// Names the command; a second entry of the same is not written.
    pub request_id: RequestId,
    /// Who did it, as far as is known.
    pub who: String,
    /// What was done; see [`what`].
    pub what: &'static str,
    /// To what: the id of an execution, the ref of an action.
    pub target: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
    /// What it was before.
    pub before: Option<Value>,
    /// What it is from then on.
    pub after: Option<Value>,
}

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Rises with every entry, with gaps.
    pub id: i64,
    /// When it was done.
    pub at: DateTime<Utc>,
    /// Who did it, as far as is known.
    pub who: String,
    /// What was done; see [`what`].
    pub what: String,
    /// To what: the id of an execution, the ref of an action.
    pub target: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
    /// What it was before.
    pub before: Option<Value>,
    /// What it is from then on.
    pub after: Option<Value>,
    /// Names the command.
    pub request_id: RequestId,
}

/// The violations of one kind that were written down for one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations {
    /// The action's ref.
    pub action_ref: String,
    /// [`what::ORDER_VIOLATION`] or [`what::LIMIT_VIOLATION`].
    pub what: String,
    /// How many entries.
    pub entries: u64,
    /// The latest of them.
    pub last_at: DateTime<Utc>,
}

/// A hash of the chain.
pub type Hash = [u8; 32];

/// From what the first link is made.
const GENESIS: Hash = [0; 32];

/// An entry as its link was made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawAudit {
    /// [`AuditEntry::id`].
    pub id: i64,
    /// When, in microseconds since 1970.
    pub at_micros: i64,
    /// [`AuditEntry::who`].
    pub who: String,
    /// [`AuditEntry::what`].
    pub what: String,
    /// [`AuditEntry::target`].
    pub target: String,
    /// [`AuditEntry::reason`].
    pub reason: Option<String>,
    /// The text of [`AuditEntry::before`].
    pub before: Option<String>,
    /// The text of [`AuditEntry::after`].
    pub after: Option<String>,
    /// [`AuditEntry::request_id`].
    pub request_id: RequestId,
}

impl RawAudit {
    /// The hash of its link, which follows one with the hash `before`: SHA-256 of that and of all fields, each
    /// text with its length before it, so that two entries never give one text.
    pub fn link(&self, before: &Hash) -> Hash {
        let text = |value: Option<&str>| match value {
            Some(value) => format!("{}:{value}", value.len()),
            None => "-".to_owned(),
        };
        let fields = [
            self.id.to_string(),
            self.at_micros.to_string(),
            text(Some(&self.who)),
            text(Some(&self.what)),
            text(Some(&self.target)),
            text(self.reason.as_deref()),
            text(self.before.as_deref()),
            text(self.after.as_deref()),
            self.request_id.0.to_string(),
        ];
        let mut digest = Sha256::new();
        digest.update(before);
        digest.update(fields.join(","));
        digest.finalize().into()
    }
}

/// A link of the chain, with its entry if that is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLink {
    /// Its number; the first has 1.
    pub no: i64,
    /// Its hash.
    pub hash: Hash,
    /// The entry.
    pub entry: Option<RawAudit>,
}

/// What became of a look at the whole chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainCheck {
    /// Entries that are as they were written.
    pub entries: u64,
    /// The number of the first link that has its entry; those before were removed by age.
    pub first: Option<i64>,
    /// The last link and its hash: what was noted elsewhere must be found in a later look.
    pub head: Option<(i64, Hash)>,
    /// What is wrong, and from which link on; what follows was not looked at.
    pub broken: Option<(i64, &'static str)>,
    /// Entries that are no links of the chain.
    pub unchained: u64,
    /// Whether a hash that was asked for is one of the chain.
    pub found: bool,
}

/// How many links are read at once.
const PAGE: u32 = 1000;

/// Walks the chain and compares each link with its entry; `noted` is a hash that must be found.
///
/// # Errors
/// When the store fails.
pub async fn check_chain(
    store: &dyn AuditStore,
    noted: Option<&Hash>,
) -> Result<ChainCheck, StoreError> {
    let mut check = ChainCheck {
        entries: 0,
        first: None,
        head: None,
        broken: None,
        unchained: store.unchained_audit().await?,
        found: false,
    };
    let (mut before, mut last) = (GENESIS, 0);
    loop {
        let page = store.audit_chain(last, PAGE).await?;
        for link in &page {
            check.found |= noted == Some(&link.hash);
            match &link.entry {
                // By age: what was removed before anything else is there.
                None if check.first.is_none() => {}
                None => {
                    check.broken = Some((link.no, "its entry was removed"));
                    return Ok(check);
                }
                Some(_) if last != 0 && link.no != last + 1 => {
                    check.broken = Some((link.no, "a link before it was removed"));
                    return Ok(check);
                }
                // Nothing is left to compare it with.
                Some(_) if last == 0 && link.no != 1 => {
                    check.broken = Some((link.no, "the link before it was removed"));
                    return Ok(check);
                }
                Some(entry) if entry.link(&before) != link.hash => {
                    check.broken = Some((link.no, "its entry was changed"));
                    return Ok(check);
                }
                Some(_) => {
                    check.first.get_or_insert(link.no);
                    check.entries += 1;
                }
            }
            (before, last) = (link.hash, link.no);
            check.head = Some((link.no, link.hash));
        }
        if page.len() < PAGE as usize {
            return Ok(check);
        }
    }
}

/// What the API asks about the audit log.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Up to `limit` entries, the newest first, before the entry with the id `before`.
    ///
    /// # Errors
    /// When the store fails.
    async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError>;

    /// Up to `limit` links of the chain after the number `after`, in order.
    ///
    /// # Errors
    /// When the store fails.
    async fn audit_chain(&self, after: i64, limit: u32) -> Result<Vec<ChainLink>, StoreError>;

    /// How many entries are no links of the chain.
    ///
    /// # Errors
    /// When the store fails.
    async fn unchained_audit(&self) -> Result<u64, StoreError>;

    /// Writes an entry down that belongs to no other change.
    ///
    /// # Errors
    /// When the store fails.
    async fn note_audit(&self, entry: &NewAudit) -> Result<(), StoreError>;

    /// The violations of order and limit that were written down within the last `within` for
    /// these actions, by action and kind.
    ///
    /// # Errors
    /// When the store fails.
    async fn violations(
        &self,
        within: Duration,
        action_refs: &[String],
    ) -> Result<Vec<Violations>, StoreError>;
}
