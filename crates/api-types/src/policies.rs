//! Policy documents.

use attune_core::policy::differences;
use attune_core::{PolicyDocument, PolicyTarget};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{InForce, words};

/// One version of a policy document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// `global`, `pack`, `action` or `user`.
    pub scope: String,
    /// The pack, the action's ref or the user; `null` for `global`.
    pub target: Option<String>,
    /// Rises by one with each change of the document; the `ETag` of the answer that shows it.
    pub version: i64,
    /// The version of the set with which it was stored; `null` of an action's policy that was changed with
    /// the action.
    pub set_version: Option<i64>,
    /// The document; `null` when it was taken back with this version.
    #[schema(value_type = Option<words::PolicyDocument>)]
    pub document: Option<PolicyDocument>,
    /// Who changed it, as far as is known.
    pub who: String,
    /// When.
    pub at: DateTime<Utc>,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
}

/// In how many partitions a version of the policy set is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyProgress {
    /// Which version.
    pub set_version: i64,
    /// How many partitions decide under it, or under a later one.
    pub in_force_in: u16,
    /// How many there are.
    pub partitions: u16,
}

/// A policy document, and whether it is in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyShown {
    /// The document as it was stored last.
    #[serde(flatten)]
    pub policy: PolicyView,
    /// Where it is in force; told of an action's policy only where it was changed as a document, as
    /// it is no part of the set otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<PolicyProgress>,
    /// Of an action: its policy with what it inherits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<words::ActionPolicy>)]
    pub effective: Option<Value>,
}

/// Policy documents that are stored together, or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The documents, at most one for each target.
    #[schema(value_type = Vec<words::PolicyDocument>, min_items = 1, max_items = 1000)]
    pub documents: Vec<PolicyDocument>,
    /// Why, for the versions and the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub reason: Option<String>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
}

/// The answer to a change of policy documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyApplied {
    /// What has changed, in the order of the request; what was so already is left out. With `dry_run`
    /// nothing is stored, and it is empty.
    pub changed: Vec<PolicyView>,
    /// What that changes, document by document; with `dry_run` what it would change.
    #[serde(default)]
    pub differences: Vec<PolicyDifference>,
    /// How many documents were so already, or would be stored with `dry_run`.
    pub others: usize,
    /// Whether it is in force in every partition.
    pub applied: InForce,
    /// In how many it is.
    pub in_force: PolicyProgress,
    /// Why it is not in force everywhere yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<String>,
}

/// What a change makes of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyResult {
    /// There was none.
    Created,
    /// It says something else.
    Changed,
    /// It is taken back.
    Removed,
    /// Something that a later release knows.
    #[serde(other)]
    Other,
}

/// What two documents about one target say differently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyDifference {
    /// `global`, `pack`, `action` or `user`.
    pub scope: String,
    /// The pack, the action's ref or the user; `null` for `global`.
    pub target: Option<String>,
    /// What becomes of the document.
    pub result: PolicyResult,
    /// The fields that differ, by path; none of a document that says nothing.
    pub fields: Vec<PolicyField>,
}

/// A field that two documents say differently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyField {
    /// Its path, as in `action_defaults.queue.max_length`.
    pub field: String,
    /// What was said; `null` where nothing was.
    #[schema(value_type = Option<Value>)]
    pub before: Option<Value>,
    /// What is said from then on; `null` where nothing is.
    #[schema(value_type = Option<Value>)]
    pub after: Option<Value>,
}

impl PolicyDifference {
    /// What two documents about `target` say differently, as they are stored; `None` is no document.
    #[must_use]
    pub fn between(target: &PolicyTarget, before: Option<&Value>, after: Option<&Value>) -> Self {
        let fields = differences(before, after).into_iter();
        Self {
            scope: target.scope().as_str().to_owned(),
            target: Some(target.name().to_owned()).filter(|name| !name.is_empty()),
            result: match (before, after) {
                (None, _) => PolicyResult::Created,
                (Some(_), None) => PolicyResult::Removed,
                (Some(_), Some(_)) => PolicyResult::Changed,
            },
            fields: fields
                .map(|it| PolicyField {
                    field: it.field,
                    before: it.before,
                    after: it.after,
                })
                .collect(),
        }
    }
}

/// A page of the documents in force, but for those of actions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    /// Where the newest set is in force.
    pub in_force: PolicyProgress,
    /// The documents, by scope and target.
    pub policies: Vec<PolicyView>,
    /// The `after` of the next page, if there is one.
    pub next: Option<String>,
}

/// Versions of a policy document, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyVersions {
    /// The versions.
    pub versions: Vec<PolicyView>,
    /// The `before` of the next page, if there is one.
    pub next: Option<i64>,
}
