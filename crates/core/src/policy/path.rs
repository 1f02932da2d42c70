//! Places in a submission that a policy goes by.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::input::MAX_TEXT_BYTES;
use crate::reject::Reject;
use crate::source::Source;
use crate::submission::Submission;

/// A place in a submission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Path {
    /// The user for whom it runs: `user`.
    User,
    /// The tier of that user, as the policy document of the user says: `user.tier`. A submission has no say
    /// in it.
    Tier,
    /// Where it comes from: `source`.
    Source,
    /// Its own group: `group`.
    Group,
    /// One of its labels: `labels.NAME`.
    Label(String),
    /// One of its parameters, or a part of one: `parameters.a.b`.
    Parameter(Vec<String>),
}

/// How many parts a path into the parameters may have.
const MAX_PARTS: usize = 8;
/// How many bytes it may have: it stands in every refusal that is stored.
const MAX_PLACE_BYTES: usize = 512;
/// How many bytes of JSON a value may have by which executions are told apart, as it was written. Whoever decides
/// reads and hashes it for each place that a policy names, while all others wait.
pub(super) const MAX_VALUE_BYTES: usize = 4_096;

impl Path {
    /// How many bytes the name at such a place may have, if this one has more: nobody could say such a label.
    pub(super) fn exceeds(&self) -> Option<usize> {
        match self {
            Self::Label(name) => Some(MAX_TEXT_BYTES).filter(|most| name.len() > *most),
            Self::Parameter(parts) => {
                let bytes = parts.iter().map(|part| part.len() + 1).sum::<usize>() - 1;
                Some(MAX_PLACE_BYTES).filter(|most| bytes > *most)
            }
            Self::User | Self::Tier | Self::Source | Self::Group => None,
        }
    }
}

impl std::str::FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, rest) = match text.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (text, None),
        };
        match (first, rest) {
            ("user", None) => return Ok(Self::User),
            ("source", None) => return Ok(Self::Source),
            ("group", None) => return Ok(Self::Group),
            ("user", Some("tier")) => return Ok(Self::Tier),
            ("labels", Some(name)) if !name.is_empty() => return Ok(Self::Label(name.to_owned())),
            ("parameters", Some(rest)) => {
                let parts: Vec<String> = rest.split('.').map(str::to_owned).collect();
                if parts.len() <= MAX_PARTS && parts.iter().all(|part| !part.is_empty()) {
                    return Ok(Self::Parameter(parts));
                }
            }
            _ => {}
        }
        let shown: String = text.chars().take(64).collect();
        Err(format!(
            "{shown:?} is no place in a submission; use user, group, labels.NAME or parameters.NAME, a \
             parameter's parts with dots between them, {MAX_PARTS} at most (some fields take source or \
             user.tier, too)"
        ))
    }
}

impl TryFrom<String> for Path {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Path> for String {
    fn from(path: Path) -> Self {
        path.to_string()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Tier => f.write_str("user.tier"),
            Self::Source => f.write_str("source"),
            Self::Group => f.write_str("group"),
            Self::Label(name) => write!(f, "labels.{name}"),
            Self::Parameter(parts) => write!(f, "parameters.{}", parts.join(".")),
        }
    }
}

/// What of a submission policies can go by.
#[derive(Debug)]
pub struct Words<'a> {
    said: Said<'a>,
    /// What the policy set says of its user, which no submission can say of itself.
    tier: Option<&'a str>,
    /// What was found in the parameters so far. Nearly always nothing is, and then there is no map.
    found: RefCell<Option<Box<Found<'a>>>>,
}

/// What was found in parameters. They may have a mebibyte, and a policy may name dozens of places, all deep
/// down in them: each object is gone through once, and each place looked for once.
#[derive(Debug, Default)]
struct Found<'a> {
    /// What stands at places.
    values: BTreeMap<Vec<String>, Standing>,
    /// The members of what stands at places; none of what is no object.
    members: BTreeMap<Vec<String>, Members<'a>>,
}

/// What stands at a place of a submission.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Standing {
    /// Nothing.
    Nothing,
    /// This value.
    Value(Rc<Value>),
    /// A value of so many bytes, which is not read: more than [`MAX_VALUE_BYTES`].
    TooLong(usize),
}

impl Standing {
    /// The value, if there is one that is read.
    pub(super) fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing | Self::TooLong(_) => None,
        }
    }
}

/// The members of a JSON object, unread.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// The parts of a submission that policies can go by.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The user for whom it runs.
    pub user: Option<&'a str>,
    /// Where it comes from.
    pub source: Option<Source>,
    /// Its own group.
    pub group: Option<&'a str>,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its parameters: a JSON object, as it was written.
    pub parameters: &'a RawValue,
}

impl<'a> From<Said<'a>> for Words<'a> {
    fn from(said: Said<'a>) -> Self {
        Self {
            said,
            tier: None,
            found: RefCell::default(),
        }
    }
}

impl<'a> Words<'a> {
    /// With the tier of its user.
    #[must_use]
    pub fn of_tier(mut self, tier: Option<&'a str>) -> Self {
        self.tier = tier;
        self
    }

    /// The user who is named.
    pub(super) fn user(&self) -> Option<&str> {
        self.said.user
    }

    fn parameter(&self, parts: &[String]) -> Standing {
        let mut found = self.found.borrow_mut();
        let found = found.get_or_insert_default();
        if let Some(known) = found.values.get(parts) {
            return known.clone();
        }
        let unread = found.unread(self.said.parameters, parts);
        let standing = match unread.map(RawValue::get) {
            Some(text) if text.len() > MAX_VALUE_BYTES => Standing::TooLong(text.len()),
            text => {
                let value = text.and_then(|text| serde_json::from_str(text).ok());
                value.map_or(Standing::Nothing, |value| Standing::Value(Rc::new(value)))
            }
        };
        found.values.insert(parts.to_vec(), standing.clone());
        standing
    }
}

impl<'a> Found<'a> {
    /// What stands at a place of the parameters.
    fn unread(&mut self, parameters: &'a RawValue, parts: &[String]) -> Option<&'a RawValue> {
        let mut place = parameters;
        for (depth, part) in parts.iter().enumerate() {
            let way = &parts[..depth];
            if !self.members.contains_key(way) {
                self.members.insert(way.to_vec(), members(place));
            }
            place = self.members.get(way)?.get(part.as_str())?;
        }
        Some(place)
    }
}

impl Submission {
    /// What of it policies can go by.
    #[must_use]
    pub fn words(&self) -> Words<'_> {
        Words::from(Said {
            user: self.requested_by.as_deref(),
            source: self.source,
            group: self.group.as_deref(),
            labels: &self.labels,
            parameters: &self.parameters,
        })
    }
}

impl Path {
    /// What stands at this place.
    pub(super) fn standing(&self, words: &Words<'_>) -> Standing {
        let said = &words.said;
        let text = match self {
            Self::User => said.user,
            Self::Tier => words.tier,
            Self::Source => said.source.map(Source::as_str),
            Self::Group => said.group,
            Self::Label(name) => said.labels.get(name).map(String::as_str),
            Self::Parameter(parts) => return words.parameter(parts),
        };
        let value = |text: &str| Standing::Value(Rc::new(Value::String(text.to_owned())));
        text.map_or(Standing::Nothing, value)
    }

    /// Checks that executions can be told apart by what stands at this place.
    ///
    /// # Errors
    /// A [`Reject`] that names the place, when what stands there is too long.
    pub(super) fn check_length(&self, words: &Words<'_>) -> Result<(), Reject> {
        match self.standing(words) {
            Standing::TooLong(bytes) => Err(self.too_long(bytes)),
            Standing::Nothing | Standing::Value(_) => Ok(()),
        }
    }

    /// The refusal of what has so many bytes.
    pub(super) fn too_long(&self, bytes: usize) -> Reject {
        let words = format!(
            "`{self}` has {bytes} bytes of JSON; the policy of the action goes by what stands there, which may have \
             {MAX_VALUE_BYTES} at most"
        );
        Reject::field(self.to_string(), words)
    }

    /// What a JSON schema of the parameters says that counts where nothing stands at this place.
    pub(super) fn default<'a>(&self, parameters: &'a Value) -> Option<&'a Value> {
        match self.schema(parameters) {
            InSchema::Found(schema) => schema.get("default"),
            InSchema::Absent | InSchema::Unknown => None,
        }
    }

    /// What a JSON schema of the parameters says about this place: the schema of what stands there, or
    /// that nothing can be said, or that there is no such place.
    pub(super) fn schema<'a>(&self, parameters: &'a Value) -> InSchema<'a> {
        let Self::Parameter(parts) = self else {
            return InSchema::Unknown;
        };
        let mut schema = parameters;
        for part in parts {
            let Some(Value::Object(properties)) = schema.get("properties") else {
                return InSchema::Unknown;
            };
            match properties.get(part) {
                Some(property) => schema = property,
                // What is described elsewhere than under `properties` may have the member.
                None if schema
                    .as_object()
                    .is_some_and(|schema| schema.keys().any(|it| is_wide(it))) =>
                {
                    return InSchema::Unknown;
                }
                None => return InSchema::Absent,
            }
        }
        InSchema::Found(schema)
    }
}

/// Whether a keyword of a schema can name members that `properties` does not.
fn is_wide(keyword: &str) -> bool {
    let words = [
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "patternProperties",
        "dependentSchemas",
    ];
    words.contains(&keyword)
}

/// What a schema says about a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum InSchema<'a> {
    /// This must fit what stands there.
    Found(&'a Value),
    /// It has members, and this is none of them.
    Absent,
    /// It does not say.
    Unknown,
}

/// The members of a JSON object; none where it is no object. What is in them is passed over.
fn members(object: &RawValue) -> Members<'_> {
    struct All;

    impl<'de> Visitor<'de> for All {
        type Value = Members<'de>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Members::new();
            while let Some((name, value)) = map.next_entry()? {
                members.insert(name, value);
            }
            Ok(members)
        }
    }

    if !object.get().trim_start().starts_with('{') {
        return Members::new();
    }
    let mut reader = serde_json::Deserializer::from_str(object.get());
    reader.deserialize_map(All).unwrap_or_default()
}

/// Reads a list of places, which names the one that is wrong.
pub(super) fn read_paths<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Path>, D::Error> {
    let given = Vec::<String>::deserialize(from)?;
    let read = given.into_iter().map(Path::try_from);
    read.collect::<Result<_, _>>().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(path: &str, submission: &str) -> Option<Value> {
        let submission: Submission = serde_json::from_str(submission).unwrap();
        let path: Path = path.parse().unwrap();
        let words = submission.words();
        let found = path.standing(&words);
        assert_eq!(path.standing(&words), found, "looked for once, told twice");
        found.value().cloned()
    }

    #[test]
    fn however_many_places_are_named_each_object_is_gone_through_once() {
        let deep = r#"{"action_ref":"a.b","parameters":{"a":{"b":{"c1":1,"c2":[2],"c3":null,"c1":"twice"}},"d":5}}"#;
        let submission: Submission = serde_json::from_str(deep).unwrap();
        let words = submission.words();
        let value = |path: &str| {
            let path: Path = path.parse().unwrap();
            path.standing(&words).value().cloned()
        };
        for (path, expected) in [
            ("parameters.a.b.c2", Some(serde_json::json!([2]))),
            ("parameters.a.b.c1", Some("twice".into())),
            ("parameters.a.b.c3", Some(Value::Null)),
            ("parameters.a.b.c4", None),
            ("parameters.d", Some(5.into())),
            ("parameters.d.e", None),
            ("parameters.d.f", None),
            ("parameters.none.of.it", None),
        ] {
            assert_eq!(value(path), expected, "{path}");
        }
        let found = words.found.borrow();
        let gone_through: Vec<String> = found
            .as_ref()
            .unwrap()
            .members
            .keys()
            .map(|it| it.join("."))
            .collect();
        assert_eq!(gone_through, ["", "a", "a.b", "d"]);
    }

    #[test]
    fn a_path_is_read_and_written_the_same() {
        for text in [
            "user",
            "user.tier",
            "source",
            "group",
            "labels.a.b",
            "parameters.x",
            "parameters.a.b.c",
        ] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "users",
            "labels",
            "labels.",
            "parameters",
            "parameters.",
            "parameters.a..b",
            "user.name",
            "parameters.1.2.3.4.5.6.7.8.9",
        ] {
            let said = text.parse::<Path>().unwrap_err();
            assert!(said.contains("labels.NAME"), "{text}: {said}");
        }
    }

    #[test]
    fn a_value_is_found_wherever_it_stands() {
        let submission = r#"{"action_ref": "core.echo", "requested_by": "ann", "labels": {"a.b": "1"},
            "parameters": {"big": {"x": [1, {"host": "no"}]}, "t": {"host": {"b": 2, "a": 1}}, "h\u006fst": null}}"#;
        assert_eq!(value("user", submission), Some("ann".into()));
        assert_eq!(value("group", submission), None);
        assert_eq!(value("labels.a.b", submission), Some("1".into()));
        assert_eq!(value("labels.b", submission), None);
        let object = serde_json::json!({"a": 1, "b": 2});
        assert_eq!(value("parameters.t.host", submission), Some(object));
        assert_eq!(
            value("parameters.host", submission),
            Some(Value::Null),
            "escaped"
        );
        assert_eq!(value("parameters.big.x.host", submission), None, "a list");
        assert_eq!(value("parameters.none.host", submission), None);
    }

    #[test]
    fn what_is_too_long_is_not_read_and_names_its_place() {
        let of = |bytes: usize| {
            let text = "x".repeat(bytes - 2);
            format!(r#"{{"action_ref":"a.b","parameters":{{"a":{{"b":"{text}"}}}}}}"#)
        };
        let path: Path = "parameters.a.b".parse().unwrap();
        let checked = |bytes| {
            let submission: Submission = serde_json::from_str(&of(bytes)).unwrap();
            let words = submission.words();
            assert_eq!(
                path.standing(&words).value().is_some(),
                bytes <= MAX_VALUE_BYTES
            );
            path.check_length(&words)
        };
        assert_eq!(checked(MAX_VALUE_BYTES), Ok(()));
        let refused = checked(MAX_VALUE_BYTES + 1).unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("parameters.a.b"));
        assert!(refused.to_string().contains("4097 bytes"), "{refused}");
    }

    #[test]
    fn a_tier_is_what_the_set_says_and_nothing_that_is_submitted() {
        let claims = r#"{"action_ref": "core.echo", "requested_by": "ann",
            "labels": {"tier": "gold", "user.tier": "gold"}}"#;
        assert_eq!(value("user.tier", claims), None);
        let submission: Submission = serde_json::from_str(claims).unwrap();
        let words = submission.words().of_tier(Some("bronze"));
        let tier = Path::Tier.standing(&words);
        assert_eq!(tier.value(), Some(&Value::from("bronze")));
    }

    #[test]
    fn a_schema_knows_its_members() {
        let schema = serde_json::json!({"properties": {
            "a": {"properties": {"b": {"default": 7}}}, "open": {}, "wide": {"properties": {}, "anyOf": []}}});
        let at = |path: &str| path.parse::<Path>().unwrap().schema(&schema);
        assert_eq!(
            at("parameters.a.b"),
            InSchema::Found(&serde_json::json!({"default": 7}))
        );
        assert_eq!(at("parameters.a.c"), InSchema::Absent);
        assert_eq!(at("parameters.c"), InSchema::Absent);
        assert_eq!(at("parameters.open.c"), InSchema::Unknown);
        assert_eq!(at("parameters.wide.c"), InSchema::Unknown);
        assert_eq!(at("labels.c"), InSchema::Unknown);
    }
}
