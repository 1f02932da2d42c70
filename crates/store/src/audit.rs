//! What was done by hand and what the system found wrong with itself: append-only.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{Epoch, OwnerId, PartitionId, RequestId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::actor::Actor;
use crate::error::StoreError;

/// The list of kinds.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// What an entry is about. The list is closed: nothing else is written, and each of them stands in
        /// docs/OPERATIONS.md.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum What {
            $($(#[$doc])+ $kind,)+
        }

        impl What {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// As the column `what` has it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// An operator took a slot from an attempt.
    ForceRelease = "slot.force_release",
    /// An execution was given a slot, or started, before an earlier one.
    OrderViolation = "violation.order",
    /// More executions held a slot than the limit allows.
    LimitViolation = "violation.limit",
    /// Operators pause queues; the target is `all`, or `pack` or `action` and its name.
    QueuesPause = "queues.pause",
    /// Operators drain queues; the target likewise.
    QueuesDrain = "queues.drain",
    /// Operators resume queues; the target likewise.
    QueuesResume = "queues.resume",
    /// Operators applied a policy document; the target is `global`, or `pack`, `action` or `user` and a name.
    PolicyApply = "policy.apply",
    /// Operators took a policy document back; the target likewise.
    PolicyRemove = "policy.remove",
    /// Operators asked for a bulk operation; the target is `operation` and its number.
    Operation = "executions.operation",
    /// A process has begun; the target is its role and name, `after` has its version, a digest of its settings
    /// and its login.
    ConfigStart = "config.start",
    /// An executor has taken partitions; the target is its name, `after` has its id and the epoch of each.
    PartitionTakeover = "partition.takeover",
    /// An operator fenced off what was before a restore of the store.
    RestoreFence = "cluster.restore_fence",
    /// An operator is about to put a dead letter back; the target is its message id.
    DeadLetterRequeueBegun = "dead_letter.requeue_begun",
    /// An operator put a dead letter back; the target is its message id.
    DeadLetterRequeue = "dead_letter.requeue",
    /// Somebody applied an action; the target is its ref.
    ActionApply = "action.apply",
    /// Somebody asked for an execution to be ended; the target is its id.
    Cancel = "execution.cancel",
    /// Somebody is about to be shown what is secret in the parameters of an execution; the target is its id.
    SecretRead = "secret.read",
    /// Somebody asked for an execution that has ended to be run again; the target is its id.
    Resubmit = "execution.resubmit",
    /// Keys that are not good were shown; the target is the address, told at most once a minute for each.
    AuthDenied = "auth.denied",
    /// A key was made; the target is its id.
    KeyCreate = "key.create",
    /// A key took the place of another; the target is the id of the one before.
    KeyRotate = "key.rotate",
    /// A key was revoked; the target is its id.
    KeyRevoke = "key.revoke",
}

/// Something to be written down, in the same commit as the change itself.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAudit {
    /// Names the command; a second entry of the same is not written.
    pub request_id: RequestId,
    /// Who did it, as far as is known.
    pub who: Actor,
    /// What was done.
    pub what: What,
    /// To what: the id of an execution, the ref of an action.
    pub target: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
    /// What it was before.
    pub before: Option<Value>,
    /// What it is from then on.
    pub after: Option<Value>,
}

/// A process has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStart {
    /// The account of the machine that it runs as.
    pub account: String,
    /// Its role and its name.
    pub target: String,
    /// The version of its program.
    pub version: String,
    /// A digest of its settings, in hexadecimal digits; of secrets there is none in it.
    pub settings_sha256: String,
}

impl ProcessStart {
    /// The entry of the audit log, where no login says as whom it works on the store.
    pub fn audit(&self) -> NewAudit {
        NewAudit {
            request_id: RequestId::fresh(),
            who: Actor::system(self.account.clone()),
            what: What::ConfigStart,
            target: self.target.clone(),
            reason: None,
            before: None,
            after: Some(json!({
                "version": self.version,
                "settings_sha256": self.settings_sha256,
            })),
        }
    }
}

/// The entry of the audit log for partitions that an executor has taken, each with its epoch.
pub fn audit_of_takeover(
    executor: OwnerId,
    name: &str,
    taken: &[(PartitionId, Epoch)],
) -> NewAudit {
    let epochs = taken.iter();
    let epochs: Map<String, Value> = epochs
        .map(|(partition, epoch)| (partition.0.to_string(), json!(epoch)))
        .collect();
    NewAudit {
        request_id: RequestId::fresh(),
        who: Actor::system(name),
        what: What::PartitionTakeover,
        target: name.to_owned(),
        reason: None,
        before: None,
        after: Some(json!({"executor": executor, "epochs": epochs})),
    }
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
    /// What was done: the [name](What::name) of one of [`What`], or of one that a newer program writes.
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
    /// How it is known who did it.
    pub origin: StoredOrigin,
}

/// [`Origin`] as it is kept, in words that a newer program may have written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOrigin {
    /// [`Origin::kind`].
    pub actor_kind: Option<String>,
    /// [`Origin::key`].
    pub key_id: Option<String>,
    /// [`Origin::address`].
    pub source_ip: Option<String>,
    /// [`Origin::via`].
    pub via: Option<String>,
}

impl StoredOrigin {
    /// The columns, in the order of [`Origin::columns`]; none when nothing is known.
    fn columns(&self) -> Option<[Option<&str>; 4]> {
        let columns = [&self.actor_kind, &self.key_id, &self.source_ip, &self.via];
        let columns = columns.map(Option::as_deref);
        columns.iter().any(Option::is_some).then_some(columns)
    }
}

/// The violations of one kind that were written down for one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations {
    /// The action's ref.
    pub action_ref: String,
    /// The name of [`What::OrderViolation`] or [`What::LimitViolation`].
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
    /// [`AuditEntry::origin`].
    pub origin: StoredOrigin,
}

impl RawAudit {
    /// The hash of its link, which follows one with the hash `before`: SHA-256 of that and of all fields, each
    /// text with its length before it, so that two entries never give one text.
    ///
    /// Where nothing is known of the [origin](Self::origin) that is the form of before it was written down, which
    /// begins with a digit; otherwise the second one, which begins with `v2`. So nothing can be put into the new
    /// columns of an old entry, and nothing taken from those of a new one.
    pub fn link(&self, before: &Hash) -> Hash {
        let text = |value: Option<&str>| match value {
            Some(value) => format!("{}:{value}", value.len()),
            None => "-".to_owned(),
        };
        let mut fields = vec![
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
        if let Some(origin) = self.origin.columns() {
            fields.insert(0, "v2".to_owned());
            fields.extend(origin.map(text));
        }
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

/// Compares links, which follow `before` or are the first of all, with their entries: how many there are.
///
/// # Errors
/// The number of the first link with which something is wrong, and what.
pub fn check_links(
    before: Option<&ChainLink>,
    links: &[ChainLink],
) -> Result<u64, (i64, &'static str)> {
    let (mut last, mut hash) = before.map_or((0, GENESIS), |link| (link.no, link.hash));
    for link in links {
        let Some(entry) = &link.entry else {
            return Err((link.no, "its entry was removed"));
        };
        if link.no != last + 1 {
            return Err((link.no, "a link before it was removed"));
        }
        if entry.link(&hash) != link.hash {
            return Err((link.no, "its entry was changed"));
        }
        (last, hash) = (link.no, link.hash);
    }
    Ok(links.len() as u64)
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

    /// Writes down that a process has begun.
    ///
    /// # Errors
    /// When the store fails, or the login of the process may not.
    async fn note_start(&self, start: &ProcessStart) -> Result<(), StoreError>;

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

    fn text(path: impl AsRef<Path>) -> String {
        std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
    }

    /// What a table of the documentation names in its first cells.
    #[test]
    fn every_kind_is_documented_and_no_other() {
        let page = text("docs/OPERATIONS.md");
        let (_, section) = page.split_once("\n## The audit log\n").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let rows = rows.filter(|line| !line.starts_with("| `what`"));
        let documented: BTreeSet<&str> = rows
            .flat_map(|line| line.split('|').nth(1).unwrap().split(','))
            .map(|word| word.trim().trim_matches('`'))
            .collect();
        let known: BTreeSet<&str> = What::ALL.iter().map(|what| what.name()).collect();
        assert_eq!(known.len(), What::ALL.len(), "a name twice");
        assert_eq!(documented, known);
    }

    /// A statement that writes into the log is given what it is about as a [`What`], or names one of them.
    #[test]
    fn no_statement_writes_another_kind() {
        let names =
            |text: &str| text.contains("INTO attune.audit_log") || text.contains("INTO audit_log");
        let mut writes = Vec::new();
        for folder in [
            "crates/store-postgres/sql",
            "crates/store-sqlite/sql",
            "migrations/postgres",
        ] {
            for entry in std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let sql = std::fs::read_to_string(&path).unwrap();
                if names(&sql) {
                    writes.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        writes.sort();
        assert_eq!(
            writes,
            [
                "0040_additive_audit_origin",
                "add_audit",
                "begin_requeue",
                "insert_audit",
                "mark_requeued",
                "restore_fence",
            ]
        );
        let named = format!("'{}'", What::ConfigStart.name());
        assert!(text("migrations/postgres/0040_additive_audit_origin.sql").contains(&named));
    }
}
