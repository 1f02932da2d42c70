//! What a client asks for.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::{ExecutionId, RequestId};
use crate::input;
use crate::priority::Priority;
use crate::reject::Reject;

/// A request to run an action once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Names the request, so that repeating it gives the same execution; where it is missing,
    /// the id of the message or the `Idempotency-Key` header takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The action to run.
    pub action_ref: String,
    /// What the action is given: a JSON object, kept as it was written.
    #[serde(default = "empty_object")]
    pub parameters: Box<RawValue>,
    /// Who goes first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// The rule firing that asks, in the client's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_id: Option<String>,
    /// The user for whom it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// A key to list it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Free-form marks that are shown with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// It does not start before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// How long it may run, in seconds, in place of what the action says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// The ended execution that this one runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_of: Option<ExecutionId>,
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("{} is JSON")
}

fn is_default(priority: &Priority) -> bool {
    *priority == Priority::default()
}

impl Submission {
    /// A submission of `action_ref` with empty parameters.
    pub fn new(action_ref: impl Into<String>) -> Self {
        Self {
            request_id: None,
            action_ref: action_ref.into(),
            parameters: empty_object(),
            priority: Priority::default(),
            enforcement_id: None,
            requested_by: None,
            group: None,
            labels: BTreeMap::new(),
            not_before: None,
            timeout_seconds: None,
            requeue_of: None,
        }
    }

    /// A digest of the body without its request id, by which a repeated request is told from a different one
    /// under the same id: the first eight bytes of its SHA-256.
    pub fn digest(&self) -> i64 {
        use sha2::Digest as _;
        let body = Self {
            request_id: None,
            ..self.clone()
        };
        let body = serde_json::to_vec(&body).expect("a submission has only string keys");
        let hash = sha2::Sha256::digest(&body);
        i64::from_be_bytes(hash[..8].try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Checks everything that does not need the action's definition.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn check(&self) -> Result<(), Reject> {
        crate::action::ActionRef::check(&self.action_ref)
            .map_err(|problem| Reject::field("action_ref", problem))?;
        input::check_json_object("parameters", self.parameters.get())?;
        for (field, value) in [
            ("enforcement_id", &self.enforcement_id),
            ("requested_by", &self.requested_by),
            ("group", &self.group),
        ] {
            if let Some(value) = value {
                input::check_text(field, value)?;
            }
        }
        if self.labels.len() > input::MAX_LABELS {
            return Err(Reject::field(
                "labels",
                format!(
                    "{} labels; at most {} are allowed",
                    self.labels.len(),
                    input::MAX_LABELS
                ),
            ));
        }
        for (key, value) in &self.labels {
            input::check_text("labels", key)?;
            input::check_text(&format!("labels.{key}"), value)?;
        }
        if let Some(seconds) = self.timeout_seconds {
            input::check_run_timeout(seconds)?;
        }
        if self.requeue_of.is_some_and(|of| of.0 <= 0) {
            return Err(Reject::field(
                "requeue_of",
                "`requeue_of` must be the id of an execution: a positive integer",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Submission {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn only_the_action_is_required() {
        let submission = parse(r#"{"action_ref":"core.echo"}"#);
        assert_eq!(submission.parameters.get(), "{}");
        assert_eq!(submission.check(), Ok(()));
    }

    #[test]
    fn problems_name_the_field() {
        let deep = format!(
            r#"{{"action_ref":"core.echo","parameters":{}{}}}"#,
            r#"{"a":"#.repeat(33),
            format_args!("1{}", "}".repeat(33)),
        );
        for (text, field) in [
            (r#"{"action_ref":"Core Echo"}"#, "action_ref"),
            (
                r#"{"action_ref":"core.echo","parameters":[1]}"#,
                "parameters",
            ),
            (
                r#"{"action_ref":"core.echo","parameters":{"a":"x\u0000"}}"#,
                "parameters.a",
            ),
            (r#"{"action_ref":"core.echo","group":"a\u0000"}"#, "group"),
            (
                r#"{"action_ref":"core.echo","timeout_seconds":0}"#,
                "timeout_seconds",
            ),
            (r#"{"action_ref":"core.echo","requeue_of":0}"#, "requeue_of"),
        ] {
            assert_eq!(
                parse(text).check().unwrap_err().field.as_deref(),
                Some(field),
                "{text}"
            );
        }
        let reject = parse(&deep).check().unwrap_err();
        assert!(reject.message.contains("32"), "{reject}");
    }
}
