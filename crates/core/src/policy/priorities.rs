//! Which priority an execution has, and what that is worth.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::Path;
use super::path::{Standing, Words};
use super::places::check_path;
use crate::priority::Priority;
use crate::reject::Reject;
use crate::source::Source;

/// Which priority executions have, and what priorities are worth.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priorities {
    /// The priority of whatever asks for none and no rule is for; `normal` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Priority>,
    /// The highest priority that may be asked for: what asks for more has this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Priority>,
    /// The priority of what asks for none, by what it says: that of the first rule that is for it.
    #[serde(default, skip_serializing_if = "PriorityRules::is_empty")]
    pub rules: PriorityRules,
    /// After how many seconds of waiting an execution stands where one of the next higher priority
    /// stands that comes then; without it a lower priority waits as long as there is a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing_seconds: Option<u32>,
}

/// Rules in their order. Thousands of actions may inherit them of one document, so they are there once.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "Vec<PriorityRule>")]
pub struct PriorityRules(Arc<Vec<PriorityRule>>);

impl std::ops::Deref for PriorityRules {
    type Target = [PriorityRule];

    fn deref(&self) -> &[PriorityRule] {
        &self.0
    }
}

impl PriorityRules {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<PriorityRule>> for PriorityRules {
    fn from(rules: Vec<PriorityRule>) -> Self {
        Self(Arc::new(rules))
    }
}

impl FromIterator<PriorityRule> for PriorityRules {
    fn from_iter<I: IntoIterator<Item = PriorityRule>>(rules: I) -> Self {
        Vec::from_iter(rules).into()
    }
}

impl PartialEq for PriorityRules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Serialize for PriorityRules {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

/// The priority of some executions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorityRule {
    /// What a submission must say, all of it.
    pub when: BTreeMap<Path, Test>,
    /// The priority that it has then.
    pub then: Priority,
}

/// What must stand at a place. It cannot fail, and what it costs is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Test {
    /// One of these.
    OneOf(Vec<Value>),
    /// Something, or nothing.
    Exists(Exists),
    /// This.
    Equals(Value),
}

/// Whether something must stand at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exists {
    /// Whether it must.
    pub exists: bool,
}

/// How many rules there may be.
const MAX_RULES: usize = 100;
/// How many places one rule may name.
const MAX_PLACES: usize = 16;
/// How many places of the parameters all rules together may name: each is looked for in every submission.
const MAX_PARAMETERS: usize = 16;
/// How many values one test may name.
const MAX_VALUES: usize = 1_000;
/// How many values all rules together may name: each rule is compared with all before it.
const MAX_VALUES_IN_ALL: usize = 2_000;

impl Test {
    /// Whether it fits what stands at its place. What is too long to be read is there, and is none of its values.
    fn holds(&self, standing: &Standing) -> bool {
        let value = standing.value();
        match self {
            Self::Exists(wanted) => (*standing != Standing::Nothing) == wanted.exists,
            Self::Equals(wanted) => value == Some(wanted),
            Self::OneOf(wanted) => value.is_some_and(|value| wanted.contains(value)),
        }
    }

    pub(super) fn values(&self) -> &[Value] {
        match self {
            Self::Exists(_) => &[],
            Self::Equals(value) => std::slice::from_ref(value),
            Self::OneOf(values) => values,
        }
    }

    /// What can never stand at this place, and what could.
    fn never(&self, path: &Path) -> Option<(&Value, &'static str)> {
        let could: fn(&Value) -> bool = match path {
            Path::User | Path::Tier | Path::Group | Path::Label(_) => Value::is_string,
            Path::Source => |value| Source::deserialize(value).is_ok(),
            // `{exist: true}` is nearly `{exists: true}`.
            Path::Parameter(_) => |value| {
                let object = value.as_object();
                let mut keys = object.into_iter().flat_map(|object| object.keys());
                !keys.any(|key| key.starts_with("exist")) || object.is_some_and(|it| it.len() > 1)
            },
        };
        let what = match path {
            Path::Source => "`interactive`, `api` or `background`",
            Path::Parameter(_) => "a value that is no object with a member like `exists`",
            _ => "a text",
        };
        let mut values = self.values().iter();
        let wrong = values.find(|value| !could(value));
        wrong.map(|value| (value, what))
    }
}

impl PriorityRule {
    fn is_for(&self, words: &Words<'_>) -> bool {
        let mut tests = self.when.iter();
        tests.all(|(path, test)| test.holds(&path.standing(words)))
    }
}

impl Priorities {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether some executions have another priority than the one that was asked for, or `normal`.
    #[must_use]
    pub fn sets_any(&self) -> bool {
        self.default.is_some() || self.max.is_some() || !self.rules.is_empty()
    }

    /// The priority of a submission that asks for `asked`.
    #[must_use]
    pub fn of(&self, asked: Option<Priority>, words: &Words<'_>) -> Priority {
        if !self.sets_any() {
            return asked.unwrap_or_default();
        }
        let by_rule = || self.rules.iter().find(|rule| rule.is_for(words));
        let wanted = asked.or_else(|| by_rule().map(|rule| rule.then));
        let wanted = wanted.or(self.default).unwrap_or_default();
        // The higher goes first and is the smaller.
        self.max.map_or(wanted, |max| wanted.max(max))
    }

    /// Checks all but whether each rule is reached.
    pub(super) fn check(&self, is_fifo: bool, parameters: Option<&Value>) -> Result<(), Reject> {
        if let (Some(default), Some(max)) = (self.default, self.max)
            && default < max
        {
            let field = "policy.priority.default";
            let words = format!(
                "`{field}` is {default} and `policy.priority.max` {max}, which is lower; lower the one \
                 or raise the other"
            );
            return Err(Reject::field(field, words));
        }
        let sets = [
            ("default", self.default.is_some()),
            ("max", self.max.is_some()),
            ("rules", !self.rules.is_empty()),
        ];
        if let Some((name, _)) = sets.iter().find(|(_, is_set)| is_fifo && *is_set) {
            let field = format!("policy.priority.{name}");
            let words = format!(
                "`{field}` has no meaning with `policy.queue.ordering: fifo`, where priorities count \
                 for nothing; leave one of the two out"
            );
            return Err(Reject::field(field, words));
        }
        let field = "policy.priority.rules";
        if self.rules.len() > MAX_RULES {
            let words = format!(
                "`{field}` has {} rules; at most {MAX_RULES} are allowed",
                self.rules.len()
            );
            return Err(Reject::field(field, words));
        }
        let tests = self.rules.iter().flat_map(|rule| rule.when.values());
        let values: usize = tests.map(|test| test.values().len()).sum();
        if values > MAX_VALUES_IN_ALL {
            let words = format!(
                "`{field}` name {values} values; at most {MAX_VALUES_IN_ALL} are allowed in all"
            );
            return Err(Reject::field(field, words));
        }
        for (number, rule) in self.rules.iter().enumerate() {
            self.check_rule(number, rule, parameters)?;
        }
        let places = self.rules.iter().flat_map(|rule| rule.when.keys());
        let places: BTreeSet<_> = places
            .filter(|path| matches!(path, Path::Parameter(_)))
            .collect();
        if places.len() > MAX_PARAMETERS {
            let words = format!(
                "`{field}` name {} different places of the parameters; at most {MAX_PARAMETERS} are \
                 allowed, because each is looked for in every submission: use labels instead",
                places.len()
            );
            return Err(Reject::field(field, words));
        }
        Ok(())
    }

    fn check_rule(
        &self,
        number: usize,
        rule: &PriorityRule,
        parameters: Option<&Value>,
    ) -> Result<(), Reject> {
        let field = format!("policy.priority.rules.{number}");
        let wrong =
            |part: &str, words: String| Err(Reject::field(format!("{field}.{part}"), words));
        if rule.when.is_empty() {
            let words = format!(
                "`{field}.when` is for everything; that is what `policy.priority.default` says"
            );
            return wrong("when", words);
        }
        if rule.when.len() > MAX_PLACES {
            let words = format!(
                "`{field}.when` names {} places; at most {MAX_PLACES} are allowed",
                rule.when.len()
            );
            return wrong("when", words);
        }
        for (path, test) in &rule.when {
            check_path(&format!("{field}.when"), path, parameters)?;
            let values = test.values();
            if values.len() > MAX_VALUES || (values.is_empty() && !matches!(test, Test::Exists(_)))
            {
                let words = format!(
                    "`{field}.when.{path}` names {} values; it must be from 1 to {MAX_VALUES}",
                    values.len()
                );
                return wrong("when", words);
            }
            if let Some((value, could)) = test.never(path) {
                let shown: String = value.to_string().chars().take(64).collect();
                let words = format!(
                    "`{field}.when.{path}` is {shown}, which never stands there; name {could}, a list of \
                     such, `{{exists: true}}` or `{{exists: false}}`"
                );
                return wrong("when", words);
            }
        }
        if self.max.is_some_and(|max| rule.then < max) {
            let words = format!(
                "`{field}.then` is {} and above `policy.priority.max`; lower the one or raise the other",
                rule.then
            );
            return wrong("then", words);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Submission;
    use crate::policy::reach::check_reached;

    fn priorities(text: &str) -> Priorities {
        serde_json::from_str(text).unwrap()
    }

    /// As a policy checks them.
    fn check(text: &str, is_fifo: bool, parameters: Option<&Value>) -> Result<(), Reject> {
        let priorities = priorities(text);
        priorities.check(is_fifo, parameters)?;
        check_reached(&priorities.rules)
    }

    #[test]
    fn the_first_rule_decides_for_what_asks_for_none() {
        let priorities = priorities(
            r#"{"default": "low", "max": "high", "rules": [
                {"when": {"source": "interactive", "labels.tier": ["gold", "silver"]}, "then": "high"},
                {"when": {"parameters.rows": 0}, "then": "background"},
                {"when": {"user": {"exists": true}}, "then": "normal"}]}"#,
        );
        assert_eq!(priorities.check(false, None), Ok(()));
        let of = |submission: &str| {
            let submission: Submission = serde_json::from_str(submission).unwrap();
            priorities.of(submission.priority, &submission.words())
        };
        let gold = r#""labels":{"tier":"gold"}"#;
        for (submission, priority) in [
            (
                format!(r#"{{"action_ref":"a.b","source":"interactive",{gold}}}"#),
                Priority::High,
            ),
            (
                format!(r#"{{"action_ref":"a.b","source":"api",{gold}}}"#),
                Priority::Low,
            ),
            (
                r#"{"action_ref":"a.b","parameters":{"rows":0},"requested_by":"ann"}"#.to_owned(),
                Priority::Background,
            ),
            (
                r#"{"action_ref":"a.b","parameters":{"rows":"0"},"requested_by":"ann"}"#.to_owned(),
                Priority::Normal,
            ),
            (r#"{"action_ref":"a.b"}"#.to_owned(), Priority::Low),
            (
                r#"{"action_ref":"a.b","priority":"normal"}"#.to_owned(),
                Priority::Normal,
            ),
            (
                r#"{"action_ref":"a.b","priority":"critical"}"#.to_owned(),
                Priority::High,
            ),
        ] {
            assert_eq!(of(&submission), priority, "{submission}");
        }
    }

    #[test]
    fn what_cannot_be_meant_names_its_field() {
        let rule = |when: &str, then: &str| format!(r#"{{"when": {when}, "then": "{then}"}}"#);
        let user = rule(r#"{"user": ["ann", "bob"]}"#, "high");
        let places = |under: &str, count: usize| {
            let places = (0..count).map(|n| format!(r#""{under}.p{n}": 1"#));
            format!("{{{}}}", places.collect::<Vec<_>>().join(","))
        };
        let listed = |rules: usize| {
            let rules = (0..rules).map(|n| {
                let values = (0..900).map(|value| format!(r#""u{}""#, n * 1_000 + value));
                let values = values.collect::<Vec<_>>().join(",");
                rule(&format!(r#"{{"user": [{values}]}}"#), "low")
            });
            rules.collect::<Vec<_>>().join(",")
        };
        let many = (0..=MAX_RULES).map(|n| rule(&format!(r#"{{"user": "u{n}"}}"#), "low"));
        let many = many.collect::<Vec<_>>().join(",");
        for (text, field) in [
            (
                r#"{"default": "high", "max": "normal"}"#.to_owned(),
                "default",
            ),
            (
                format!(r#"{{"rules": [{}]}}"#, rule("{}", "low")),
                "rules.0.when",
            ),
            (
                format!(r#"{{"rules": [{}]}}"#, rule(r#"{"user": []}"#, "low")),
                "rules.0.when",
            ),
            (
                format!(
                    r#"{{"rules": [{}]}}"#,
                    rule(r#"{"parameters.x": 1}"#, "low")
                ),
                "rules.0.when",
            ),
            (
                format!(r#"{{"max": "normal", "rules": [{user}]}}"#),
                "rules.0.then",
            ),
            (
                format!(
                    r#"{{"rules": [{user}, {}]}}"#,
                    rule(r#"{"user": "bob", "group": "g"}"#, "low")
                ),
                "rules.1.when",
            ),
            (
                format!(
                    r#"{{"rules": [{}, {user}]}}"#,
                    rule(r#"{"user": {"exists": true}}"#, "low")
                ),
                "rules.1.when",
            ),
            (format!(r#"{{"rules": [{many}]}}"#), "rules"),
            (format!(r#"{{"rules": [{}]}}"#, listed(3)), "rules"),
            (
                format!(r#"{{"rules": [{}]}}"#, rule(&places("labels", 17), "low")),
                "rules.0.when",
            ),
            (
                format!(
                    r#"{{"rules": [{}, {}]}}"#,
                    rule(&places("parameters.y", 9), "low"),
                    rule(&places("parameters.y.z", 8), "low")
                ),
                "rules",
            ),
        ] {
            let schema = serde_json::json!({"properties": {"y": {}}});
            let reject = check(&text, false, Some(&schema)).unwrap_err();
            assert_eq!(
                reject.field,
                Some(format!("policy.priority.{field}")),
                "{text}"
            );
        }
        for when in [
            r#"{"user": 7}"#,
            r#"{"group": ["g", 1]}"#,
            r#"{"labels.tier": 5}"#,
            r#"{"labels.tier": null}"#,
            r#"{"source": "interactve"}"#,
            r#"{"user": {"exist": true}}"#,
            r#"{"user": {"exists": "yes"}}"#,
            r#"{"parameters.y": {"exist": true}}"#,
        ] {
            let text = format!(r#"{{"rules": [{}]}}"#, rule(when, "low"));
            let reject = check(&text, false, None).unwrap_err();
            assert_eq!(
                reject.field.as_deref(),
                Some("policy.priority.rules.0.when"),
                "{when}"
            );
            assert!(reject.message.contains("never stands there"), "{reject}");
        }
        let wider = format!(
            r#"{{"rules": [{}, {user}]}}"#,
            rule(r#"{"user": "bob"}"#, "low")
        );
        assert_eq!(check(&wider, false, None), Ok(()));
        for (text, field) in [
            (r#"{"default": "low"}"#.to_owned(), "default"),
            (r#"{"max": "low"}"#.to_owned(), "max"),
            (format!(r#"{{"rules": [{user}]}}"#), "rules"),
        ] {
            let reject = check(&text, true, None).unwrap_err();
            assert_eq!(
                reject.field,
                Some(format!("policy.priority.{field}")),
                "{text}"
            );
        }
    }
}
