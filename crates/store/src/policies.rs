//! Policy documents: of all actions, of packs and of users. The policy of an action stands in the action;
//! changed as a document it is changed there.

use async_trait::async_trait;
use attune_core::policy::Content;
use attune_core::{
    ActionPolicy, ActionSpec, PartitionId, PolicySet, PolicyTarget, Reject, RequestId,
};
use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::actions::Applied;
use crate::actor::Actor;
use crate::audit::{NewAudit, What};
use crate::error::StoreError;

/// How many documents may be in force at once: owners read the whole set.
pub const MAX_DOCUMENTS: usize = 10_000;

/// How many bytes they may have together, as JSON.
pub const MAX_SET_BYTES: usize = 4 << 20;

/// One version of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyVersion {
    /// About whom.
    pub target: PolicyTarget,
    /// Rises by one with each change of the document.
    pub version: i64,
    /// The version of the set with which it was stored; `None` of an action's policy that was changed
    /// with the action, or by an older program.
    pub set_version: Option<i64>,
    /// What it says, as [`Content::stored`]; `None` when it was taken back.
    pub document: Option<Value>,
    /// Who changed it.
    pub who: String,
    /// When.
    pub at: DateTime<Utc>,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
}

/// Every document in force, but for those of actions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoredPolicies {
    /// Rises with every change, in the order of the commits.
    pub version: i64,
    /// The documents, by scope and target.
    pub documents: Vec<PolicyVersion>,
}

impl StoredPolicies {
    /// What owners decide by, and what of it this program cannot read: of that nothing is in force.
    #[must_use]
    pub fn set(&self) -> (PolicySet, Vec<(PolicyTarget, Reject)>) {
        let (mut set, mut unreadable) = (PolicySet::default(), Vec::new());
        set.version = self.version;
        for PolicyVersion {
            target, document, ..
        } in &self.documents
        {
            let Some(document) = document else { continue };
            match Content::from_stored(target, document.clone()) {
                Ok(content) => set.put(target, Some(content)),
                Err(problem) => unreadable.push((target.clone(), problem)),
            }
        }
        (set, unreadable)
    }

    /// The document about a target, if there is one.
    #[must_use]
    pub fn find(&self, target: &PolicyTarget) -> Option<&PolicyVersion> {
        self.documents.iter().find(|it| it.target == *target)
    }
}

/// What a change was checked against: it is stored only while this is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyMark {
    /// The version of the set.
    pub set_version: i64,
    /// Rises with every change of an action and every new one.
    pub actions: i64,
}

/// What is said about a target from then on.
#[derive(Debug, Clone, PartialEq)]
pub enum DocumentChange {
    /// This document, as [`Content::stored`].
    Document(Value),
    /// The action is this, with another policy than before.
    Action(Box<ActionSpec>),
    /// Nothing any more.
    Removed,
}

impl DocumentChange {
    /// Whether nothing is said of its target from then on.
    fn takes_back(&self) -> bool {
        match self {
            Self::Document(_) => false,
            Self::Action(spec) => spec.policy == ActionPolicy::default(),
            Self::Removed => true,
        }
    }
}

/// Changes that are stored together, or not at all.
#[derive(Debug, Clone)]
pub struct PolicyChanges {
    /// Names the request in the audit log.
    pub request_id: RequestId,
    /// Who asks.
    pub who: Actor,
    /// Why.
    pub reason: Option<String>,
    /// What they were checked against.
    pub mark: PolicyMark,
    /// About whom, each once, and what.
    pub documents: Vec<(PolicyTarget, DocumentChange)>,
}

impl PolicyChanges {
    /// The entry of the audit log for one of them, which is written in the same transaction.
    #[must_use]
    pub fn audit(
        &self,
        (target, change): (&PolicyTarget, &DocumentChange),
        before: Option<Value>,
        after: Option<Value>,
    ) -> NewAudit {
        NewAudit {
            // An entry for each of them: of one request there may be one only.
            request_id: RequestId::from_key(&format!("{} {target}", self.request_id)),
            who: self.who.clone(),
            what: match change.takes_back() {
                false => What::PolicyApply,
                true => What::PolicyRemove,
            },
            target: target.to_string(),
            reason: self.reason.clone(),
            before,
            after,
        }
    }
}

/// What came of changes.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyOutcome {
    /// They are stored.
    Stored {
        /// The version of the set from then on.
        set_version: i64,
        /// What was stored, in the order of the changes.
        versions: Vec<PolicyVersion>,
    },
    /// Something else than they were checked against is stored by now; nothing was written.
    Stale,
}

/// What operators ask; owners read the set through
/// [`PartitionStore::policies`](crate::PartitionStore::policies).
#[async_trait]
pub trait PolicyStore: Send + Sync {
    /// What a change is to be checked against.
    ///
    /// # Errors
    /// When the store fails.
    async fn policy_mark(&self) -> Result<PolicyMark, StoreError>;

    /// Stores changes, with a higher version of the set and entries of the audit log, in one transaction,
    /// if what they were checked against is still so.
    ///
    /// # Errors
    /// When the store fails.
    async fn change_policies(&self, changes: &PolicyChanges) -> Result<PolicyOutcome, StoreError>;

    /// As [`ActionStore::apply_action`](crate::ActionStore::apply_action), if the version of the set is
    /// still the one under which the action was checked; `None` when it is not, and nothing was written.
    ///
    /// # Errors
    /// When the store fails.
    async fn apply_action_under(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &Actor,
        set_version: i64,
    ) -> Result<Option<Applied>, StoreError>;

    /// Up to `limit` versions of a document, the newest first, below the version `before` if that is given.
    ///
    /// # Errors
    /// When the store fails.
    async fn policy_versions(
        &self,
        target: &PolicyTarget,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<PolicyVersion>, StoreError>;

    /// By which version of the set partitions decide, in order; those that have not said so are left out.
    ///
    /// # Errors
    /// When the store fails.
    async fn policy_progress(&self) -> Result<Vec<(PartitionId, i64)>, StoreError>;
}
