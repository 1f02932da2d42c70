//! What a client asks for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use chrono::{DateTime, Datelike as _, Utc};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::ids::{ExecutionId, RequestId};
use crate::input;
use crate::priority::Priority;
use crate::reject::Reject;
use crate::source::Source;
use crate::trace::TraceParent;

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
    #[serde(default = "empty_object", deserialize_with = "object_or_null")]
    pub parameters: Box<RawValue>,
    /// Who goes first; without it, as the policy of the action says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The rule firing that asks, in the client's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_id: Option<String>,
    /// The user for whom it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// A key that policies can group by, and by which it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Labels, by which policies can group, count and rank.
    #[serde(
        default,
        deserialize_with = "labels_or_null",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// It does not start before this time.
    #[serde(
        default,
        deserialize_with = "time_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub not_before: Option<DateTime<Utc>>,
    /// How long it may run, in seconds, in place of what the action says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// The ended execution that this one runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_of: Option<ExecutionId>,
    /// Of which trace it is a part. It travels beside what is asked for and not in it: no part of the request, so
    /// that the same with another one is the same request.
    #[serde(skip)]
    pub trace: Option<TraceParent>,
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("{} is JSON")
}

/// An optional field may also be null, which means the same as leaving it out.
fn object_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Box<RawValue>, D::Error> {
    let given = Option::<Box<RawValue>>::deserialize(from)?;
    Ok(given.unwrap_or_else(empty_object))
}

/// As [`object_or_null`]. A key that comes twice is refused: what its sender meant cannot be told.
fn labels_or_null<'de, D>(from: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Labels;

    impl<'de> Visitor<'de> for Labels {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut labels = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                match labels.entry(key) {
                    Entry::Vacant(free) => drop(free.insert(value)),
                    Entry::Occupied(taken) => {
                        let words = format!("the label `{}` is given twice", taken.key());
                        return Err(A::Error::custom(words));
                    }
                }
            }
            Ok(labels)
        }
    }

    from.deserialize_option(Labels)
}

/// As [`object_or_null`].
fn time_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let given = Option::<String>::deserialize(from)?;
    let time = given.map(|text| read_time(&text).map_err(D::Error::custom));
    time.transpose()
}

/// Reads a time as it is written in a submission.
///
/// # Errors
/// For people, when it is none.
pub fn read_time(text: &str) -> Result<DateTime<Utc>, String> {
    let wrong = |_| format!("`{text}` is no time; write one such as `2026-01-31T09:30:00Z`");
    text.parse().map_err(wrong)
}

impl Submission {
    /// A submission of `action_ref` with empty parameters.
    pub fn new(action_ref: impl Into<String>) -> Self {
        Self {
            request_id: None,
            action_ref: action_ref.into(),
            parameters: empty_object(),
            priority: None,
            source: None,
            enforcement_id: None,
            requested_by: None,
            group: None,
            labels: BTreeMap::new(),
            not_before: None,
            timeout_seconds: None,
            requeue_of: None,
            trace: None,
        }
    }

    /// A digest of the body without its request id, by which a repeated request is told from a different one
    /// under the same id: the first eight bytes of its SHA-256. To ask for the priority `normal` is the same
    /// as to ask for none here, as it was before that made a difference.
    pub fn digest(&self) -> i64 {
        use sha2::Digest as _;
        let priority = self.priority.filter(|asked| *asked != Priority::Normal);
        let body = match self.request_id {
            None if priority == self.priority => serde_json::to_vec(self),
            _ => serde_json::to_vec(&Self {
                request_id: None,
                priority,
                ..self.clone()
            }),
        };
        let body = body.expect("a submission has only string keys");
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
            input::check_label_key(key)?;
            input::check_text(&format!("labels.{key}"), value)?;
        }
        if let Some(not_before) = self.not_before
            && !(1..=9999).contains(&not_before.year())
        {
            return Err(Reject::field(
                "not_before",
                format!(
                    "`not_before` is in the year {}; it must be from 0001 to 9999",
                    not_before.year()
                ),
            ));
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
    fn null_means_left_out() {
        let text = r#"{"action_ref":"core.echo","request_id":null,"parameters":null,
            "priority":null,"source":null,"enforcement_id":null,"requested_by":null,"group":null,"labels":null,
            "not_before":null,"timeout_seconds":null,"requeue_of":null}"#;
        let (with, without) = (parse(text), parse(r#"{"action_ref":"core.echo"}"#));
        assert_eq!(with.check(), Ok(()));
        assert_eq!(with.digest(), without.digest());
        assert_eq!(with.parameters.get(), "{}");
        for wrong in [
            r#""priority":"urgent""#,
            r#""source":"human""#,
            r#""source":7"#,
            r#""labels":[]"#,
            r#""labels":{"a":null}"#,
            r#""labels":{"a":"1","b":"2","a":"1"}"#,
            r#""not_before":"tomorrow""#,
            r#""not_before":7"#,
        ] {
            let text = format!(r#"{{"action_ref":"core.echo",{wrong}}}"#);
            assert!(serde_json::from_str::<Submission>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn asking_for_normal_is_the_same_request_as_asking_for_nothing() {
        let digest = |text: &str| parse(text).digest();
        let silent = digest(r#"{"action_ref":"core.echo"}"#);
        let id = "0198c1f0-5a00-7000-8000-0000000000a1";
        let named =
            format!(r#"{{"request_id":"{id}","action_ref":"core.echo","priority":"normal"}}"#);
        assert_eq!(silent, digest(&named));
        assert_ne!(
            silent,
            digest(r#"{"action_ref":"core.echo","priority":"low"}"#)
        );
        let normal = parse(&named);
        assert_eq!(
            normal.priority,
            Some(Priority::Normal),
            "the policy sees it"
        );
        let sent = serde_json::to_string(&normal).unwrap();
        assert!(sent.contains(r#""priority":"normal""#), "{sent}");
    }

    #[test]
    fn with_another_trace_it_is_the_same_request() {
        let plain = Submission::new("core.echo");
        let trace = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(trace.is_some());
        let traced = Submission {
            trace,
            ..plain.clone()
        };
        assert_eq!(plain.digest(), traced.digest());
        let [plain, traced] = [plain, traced].map(|it| serde_json::to_string(&it).unwrap());
        assert_eq!(plain, traced);
        // Nobody says it in the body, where an earlier release refuses it.
        let said = r#"{"action_ref":"core.echo","trace":null}"#;
        assert!(serde_json::from_str::<Submission>(said).is_err());
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
            (
                r#"{"action_ref":"core.echo","not_before":"+10000-01-01T00:00:00Z"}"#,
                "not_before",
            ),
            (
                r#"{"action_ref":"core.echo","not_before":"-0001-12-31T00:00:00Z"}"#,
                "not_before",
            ),
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
