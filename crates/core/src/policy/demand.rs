//! What an execution demands of the limits of its action.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::fairness::{Flow, FlowRule};
use super::path::{Path, Standing, Words};
use super::rates::CountRule;
use super::{Concurrency, Cost};
use crate::action::ActionSpec;
use crate::reject::Reject;

/// Names a group: the executions of one action that share a group limit. It is the SHA-256 of the values
/// by which they are grouped, as a canonical JSON array, cut to 16 bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct GroupKey(pub [u8; 16]);

impl GroupKey {
    /// Whether it stands for all together.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The key of these values.
    #[must_use]
    pub(super) fn of_values(values: Vec<Value>) -> Self {
        // Members of objects are in the order of their names, so equal values have equal texts.
        let text = Value::Array(values).to_string();
        let hash = Sha256::digest(text.as_bytes());
        Self(hash[..16].try_into().unwrap_or_default())
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl From<GroupKey> for String {
    fn from(key: GroupKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for GroupKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = u128::from_str_radix(&text, 16).ok();
        let read = read.filter(|_| text.len() == 32);
        read.map(|key| Self(key.to_be_bytes()))
            .ok_or_else(|| format!("{text:?} is no group key: 32 hexadecimal digits"))
    }
}

/// What an execution demands of the limits of its action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Demand {
    /// The [`DemandRule::mark`] of the rule that it follows from. It says nothing under any other.
    pub rule: i64,
    /// Its group.
    pub group: GroupKey,
    /// How much it takes of each limit.
    pub cost: u16,
    /// The user among whose executions it counts, where a user may have so many only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<GroupKey>,
    /// For whom its starts are counted; all zeros where those of all are counted together, or none.
    #[serde(default, skip_serializing_if = "GroupKey::is_zero")]
    pub rate: GroupKey,
    /// Whose turn it waits for, where slots are shared.
    #[serde(default, skip_serializing_if = "Flow::is_none")]
    pub flow: Flow,
}

/// What is stored of a demand beside its first 26 bytes; of its flow how many keys, in the two bits from
/// the third on.
const HAS_USER: u8 = 1;
const HAS_RATE: u8 = 2;
const FLOW_BIT: u32 = 2;
const FLOW_KEYS: u8 = 3;

impl Demand {
    /// The rule, the group and the cost, as they are stored; then, unless there is none of them, which of the
    /// others there are, the user, for whom starts are counted, and the flow.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(59);
        bytes.extend(self.rule.to_be_bytes());
        bytes.extend(self.group.0);
        bytes.extend(self.cost.to_be_bytes());
        let rate = Some(self.rate).filter(|rate| !rate.is_zero());
        let marks = [(self.user, HAS_USER), (rate, HAS_RATE)];
        let marks = marks.map(|(key, mark)| key.map_or(0, |_| mark));
        let flow = u8::try_from(self.flow.keys().count()).unwrap_or(0) << FLOW_BIT;
        let marks = marks[0] | marks[1] | flow;
        if marks != 0 {
            bytes.push(marks);
        }
        for key in self.user.into_iter().chain(rate).chain(self.flow.keys()) {
            bytes.extend(key.0);
        }
        bytes
    }

    /// Reads what is stored; `None` when that is no demand, so that it must be made anew.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (rule, rest) = bytes.split_first_chunk()?;
        let (group, rest) = rest.split_first_chunk()?;
        let (cost, rest) = rest.split_first_chunk()?;
        let (marks, mut rest) = match rest {
            [] => (0, rest),
            [marks, rest @ ..] => (*marks, rest),
        };
        let mut key = |mark: u8| -> Option<Option<GroupKey>> {
            if marks & mark == 0 {
                return Some(None);
            }
            let (key, behind) = rest.split_first_chunk()?;
            rest = behind;
            Some(Some(GroupKey(*key)))
        };
        let (user, rate) = (key(HAS_USER)?, key(HAS_RATE)?);
        let mut flow = Vec::new();
        for _ in 0..marks >> FLOW_BIT & FLOW_KEYS {
            let (key, behind) = rest.split_first_chunk()?;
            flow.push(GroupKey(*key));
            rest = behind;
        }
        let cost = u16::from_be_bytes(*cost);
        let is_whole = rest.is_empty();
        (cost > 0 && is_whole).then_some(Self {
            rule: i64::from_be_bytes(*rule),
            group: GroupKey(*group),
            cost,
            user,
            rate: rate.unwrap_or_default(),
            flow: Flow::of(&flow)?,
        })
    }
}

/// How demands follow from submissions, for one action.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandRule {
    /// Each place and what counts where nothing stands there.
    group_by: Vec<(Path, Value)>,
    cost: Option<(Cost, Value)>,
    /// Whether it counts how many a user has.
    users: bool,
    /// For whom starts are counted, if not for all together.
    rate: Option<CountRule>,
    /// Whose turn it is, where slots are shared.
    flows: Option<FlowRule>,
    mark: i64,
}

/// What counts where nothing stands at a place: what the schema of the parameters says.
pub(super) fn absent_value(spec: &ActionSpec, path: &Path) -> Value {
    let schema = spec.parameters.as_ref();
    let default = schema.and_then(|schema| path.default(schema));
    default.cloned().unwrap_or_default()
}

/// The key of what a submission says at these places; all zeros where there are none. What is too long to be read
/// counts as nothing: only what was accepted under another rule can be.
pub(super) fn key_of(places: &[(Path, Value)], words: &Words<'_>) -> GroupKey {
    if places.is_empty() {
        return GroupKey::default();
    }
    let values = places.iter();
    let values =
        values.map(|(path, absent)| path.standing(words).value().unwrap_or(absent).clone());
    GroupKey::of_values(values.collect())
}

impl DemandRule {
    /// The rule of an action; `None` where every execution demands the same.
    #[must_use]
    pub fn of(spec: &ActionSpec) -> Option<Self> {
        let Concurrency { group_by, cost, .. } = &spec.policy.concurrency;
        let users = spec.policy.per_user_limit.is_some();
        let rate = spec.policy.rate_limit.as_ref();
        let rate = rate.map(|rate| CountRule::of(spec, &rate.by));
        let rate = rate.filter(|rate| !rate.is_shared());
        let flows = FlowRule::of(spec);
        let is_plain = group_by.is_empty() && cost.is_none() && !users && rate.is_none();
        if is_plain && flows.is_none() {
            return None;
        }
        let group_by: Vec<_> = group_by
            .iter()
            .map(|path| (path.clone(), absent_value(spec, path)))
            .collect();
        let cost = cost.clone().map(|cost| {
            let absent = absent_value(spec, &cost.path);
            (cost, absent)
        });
        let places = rate.as_ref().map(CountRule::places);
        let text = match (users, places) {
            _ if flows.is_some() => {
                serde_json::to_vec(&(&group_by, &cost, users, places, "fair", &flows))
            }
            // As it was written before there were users and rates: what is stored says the same.
            (false, None) => serde_json::to_vec(&(&group_by, &cost)),
            (true, None) => serde_json::to_vec(&(&group_by, &cost, "user")),
            (false, Some(places)) => serde_json::to_vec(&(&group_by, &cost, places)),
            (true, Some(places)) => serde_json::to_vec(&(&group_by, &cost, "user", places)),
        };
        let hash = Sha256::digest(text.unwrap_or_default());
        // Never 0, which stands for no rule.
        let mark = i64::from_be_bytes(hash[..8].try_into().unwrap_or_default()) | 1;
        Some(Self {
            group_by,
            cost,
            users,
            rate,
            flows,
            mark,
        })
    }

    /// Tells this rule from others: demands are only worth something under the rule that they follow from.
    #[must_use]
    pub fn mark(&self) -> i64 {
        self.mark
    }

    /// What a submission demands.
    ///
    /// # Errors
    /// A [`Reject`] that names a place: that of the cost, when what stands there is none, or one by which
    /// executions are told apart, when what stands there is too long.
    pub fn demand(&self, words: &Words<'_>) -> Result<Demand, Reject> {
        let rate = self.rate.iter().flat_map(CountRule::places);
        let flows = self.flows.iter().flat_map(FlowRule::places);
        let places = self.group_by.iter().chain(rate).chain(flows);
        for (path, _) in places {
            path.check_length(words)?;
        }
        let cost = match &self.cost {
            None => 1,
            Some((cost, absent)) => cost.of(words, absent)?,
        };
        Ok(self.with_cost(words, cost))
    }

    /// What an execution demands that was accepted under another rule. More than there may be now is as
    /// much as there may be, so that it runs alone; where no cost can be read it is the one of those that
    /// say nothing.
    #[must_use]
    pub fn demand_anew(&self, words: &Words<'_>) -> Demand {
        self.demand(words).unwrap_or_else(|_| {
            let cost = self.cost.as_ref();
            let cost = cost.map_or(1, |(cost, absent)| cost.of_accepted(words, absent));
            self.with_cost(words, cost)
        })
    }

    /// The key of the user that is named. Who names none counts for nobody.
    fn user(&self, words: &Words<'_>) -> Option<GroupKey> {
        let user = words.user().filter(|_| self.users)?;
        let hash = Sha256::digest(user.as_bytes());
        Some(GroupKey(hash[..16].try_into().unwrap_or_default()))
    }

    fn with_cost(&self, words: &Words<'_>, cost: u16) -> Demand {
        let (rate, flows) = (self.rate.as_ref(), self.flows.as_ref());
        let group = key_of(&self.group_by, words);
        Demand {
            rule: self.mark,
            group,
            cost,
            user: self.user(words),
            rate: rate.map_or(GroupKey::default(), |rate| rate.key(words)),
            flow: flows.map_or(Flow::default(), |flows| flows.flow(words, group)),
        }
    }
}

/// The cost that a value says; `None` when it says nothing, `Some(None)` when it is none.
fn read_cost(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Null => None,
        // A label is always text.
        Value::String(text) => Some(text.parse().ok()),
        value => Some(value.as_u64()),
    }
}

impl Cost {
    /// Checks that what the schema of the parameters says where nothing stands at its place is a cost: every
    /// execution that says nothing would be refused.
    pub(super) fn check_default(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        let default = parameters.and_then(|schema| self.path.default(schema));
        let said = default.and_then(read_cost);
        if said.is_none_or(|said| said.is_some_and(|it| self.is_one(it))) {
            return Ok(());
        }
        let words = format!(
            "`policy.concurrency.cost.path` names `{}`, whose `default` in the schema of the action's parameters is \
             no cost: every execution that says nothing would be refused; it must be a whole number from 1 to \
             `policy.concurrency.cost.max`, {}",
            self.path, self.max
        );
        Err(Reject::field("policy.concurrency.cost.path", words))
    }

    fn is_one(&self, said: u64) -> bool {
        (1..=u64::from(self.max)).contains(&said)
    }

    /// That of an execution which was accepted when others were right.
    fn of_accepted(&self, words: &Words<'_>, absent: &Value) -> u16 {
        let standing = self.path.standing(words);
        let said = read_cost(standing.value().unwrap_or(absent)).flatten();
        let said = said.filter(|said| *said > 0);
        said.map_or(self.default, |said| {
            u16::try_from(said).unwrap_or(u16::MAX).min(self.max)
        })
    }

    fn of(&self, words: &Words<'_>, absent: &Value) -> Result<u16, Reject> {
        let standing = self.path.standing(words);
        if let Standing::TooLong(bytes) = standing {
            return Err(self.path.too_long(bytes));
        }
        let value = standing.value().unwrap_or(absent);
        let given = match read_cost(value) {
            None => return Ok(self.default),
            Some(given) => given.filter(|given| self.is_one(*given)),
        };
        given
            .and_then(|given| u16::try_from(given).ok())
            .ok_or_else(|| {
                let shown: String = value.to_string().chars().take(64).collect();
                let words = format!(
                    "`{}` is {shown}; it says how much of the limits of the action this execution \
                     takes and must be a whole number from 1 to {}",
                    self.path, self.max
                );
                Reject::field(self.path.to_string(), words)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(policy: &str, parameters: Option<Value>) -> ActionSpec {
        let mut spec = ActionSpec::core_pack().remove(1);
        spec.policy = serde_json::from_str(policy).unwrap();
        spec.parameters = parameters;
        spec
    }

    fn submission(text: &str) -> crate::Submission {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn equal_values_make_one_group_however_they_are_written() {
        let policy =
            r#"{"concurrency": {"group_by": ["parameters.host", "user"], "group_limit": 1}}"#;
        let rule = DemandRule::of(&spec(policy, None)).unwrap();
        let group = |text: &str| rule.demand(&submission(text).words()).unwrap().group;
        let one = group(
            r#"{"action_ref":"a.b","requested_by":"ann","parameters":{"host":{"a":1,"b":2}}}"#,
        );
        let same = group(
            r#"{"action_ref":"a.b","requested_by":"ann","parameters":{"x":0, "host":{ "b" : 2, "a":1 }}}"#,
        );
        assert_eq!(one, same);
        let others = [
            r#"{"action_ref":"a.b","parameters":{"host":{"a":1,"b":2}}}"#,
            r#"{"action_ref":"a.b","requested_by":"ann","parameters":{"host":{"a":1}}}"#,
            r#"{"action_ref":"a.b","requested_by":"null"}"#,
            r#"{"action_ref":"a.b"}"#,
        ];
        let groups: std::collections::BTreeSet<_> =
            others.iter().map(|text| group(text)).chain([one]).collect();
        assert_eq!(groups.len(), 5);
        let null = group(r#"{"action_ref":"a.b","parameters":{"host":null}}"#);
        assert_eq!(null, group(others[3]), "a missing value is null");
    }

    #[test]
    fn what_is_left_out_is_what_the_schema_says() {
        let policy = r#"{"concurrency": {"group_by": ["parameters.host"], "group_limit": 1}}"#;
        let schema =
            |default: &str| Some(serde_json::json!({"properties": {"host": {"default": default}}}));
        let (here, there) = (spec(policy, schema("here")), spec(policy, schema("there")));
        let [here, there] = [here, there].map(|spec| DemandRule::of(&spec).unwrap());
        assert_ne!(here.mark(), there.mark(), "another rule");
        let silent = submission(r#"{"action_ref":"a.b"}"#);
        let told = submission(r#"{"action_ref":"a.b","parameters":{"host":"here"}}"#);
        let group =
            |rule: &DemandRule, of: &crate::Submission| rule.demand(&of.words()).unwrap().group;
        assert_eq!(group(&here, &silent), group(&here, &told));
        assert_ne!(group(&there, &silent), group(&there, &told));
    }

    #[test]
    fn a_cost_that_is_none_names_its_place() {
        let policy = r#"{"concurrency": {"limit": 8, "cost": {"path": "labels.gpus", "default": 2, "max": 8}}}"#;
        let rule = DemandRule::of(&spec(policy, None)).unwrap();
        let labelled = |gpus: &str| {
            submission(&format!(
                r#"{{"action_ref":"a.b","labels":{{"gpus":"{gpus}"}}}}"#
            ))
        };
        for (gpus, cost) in [("1", 1), ("8", 8)] {
            assert_eq!(rule.demand(&labelled(gpus).words()).unwrap().cost, cost);
        }
        let silent = submission(r#"{"action_ref":"a.b"}"#);
        assert_eq!(rule.demand(&silent.words()).unwrap().cost, 2);
        for (gpus, anew) in [
            ("0", 2),
            ("9", 8),
            ("70000", 8),
            ("-1", 2),
            ("1.5", 2),
            ("many", 2),
            ("99999999999999999999", 2),
        ] {
            let labelled = labelled(gpus);
            let reject = rule.demand(&labelled.words()).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some("labels.gpus"), "{reject}");
            assert_eq!(rule.demand_anew(&labelled.words()).cost, anew, "{gpus}");
        }
    }

    #[test]
    fn what_is_too_long_to_be_told_apart_by_is_refused_and_counts_as_nothing_where_it_was_accepted()
    {
        let policy = r#"{"concurrency": {"limit": 8, "group_by": ["parameters.a"], "group_limit": 1,
                "cost": {"path": "parameters.n", "max": 8}},
            "rate_limit": {"max_executions": 9, "window_seconds": 1, "by": ["parameters.b"]},
            "fairness": {"by": ["parameters.c"]}}"#;
        let rule = DemandRule::of(&spec(policy, None)).unwrap();
        let long = "x".repeat(5_000);
        let nothing = submission(r#"{"action_ref":"a.b","parameters":{"n":3}}"#);
        let nothing = rule.demand(&nothing.words()).unwrap();
        for name in ["a", "b", "c"] {
            let text =
                format!(r#"{{"action_ref":"a.b","parameters":{{"n":3,"{name}":"{long}"}}}}"#);
            let submission = submission(&text);
            let refused = rule.demand(&submission.words()).unwrap_err();
            let place = format!("parameters.{name}");
            assert_eq!(refused.field.as_deref(), Some(place.as_str()), "{refused}");
            assert_eq!(rule.demand_anew(&submission.words()), nothing);
        }
        let dear = submission(&format!(
            r#"{{"action_ref":"a.b","parameters":{{"n":"{long}"}}}}"#
        ));
        let refused = rule.demand(&dear.words()).unwrap_err();
        assert!(refused.to_string().contains("5002 bytes"), "{refused}");
    }

    #[test]
    fn a_demand_is_stored_and_read() {
        let demand = Demand {
            rule: -7,
            group: GroupKey(*b"0123456789abcdef"),
            cost: 3,
            user: None,
            rate: GroupKey::default(),
            flow: Flow::default(),
        };
        let bytes = demand.to_bytes();
        assert_eq!(
            bytes.len(),
            26,
            "as it was before there were users and rates"
        );
        let of_user = Demand {
            user: Some(GroupKey([7; 16])),
            ..demand
        };
        let rated = Demand {
            rate: GroupKey(*b"fedcba9876543210"),
            ..demand
        };
        let both = Demand {
            user: of_user.user,
            ..rated
        };
        let flow = |keys: usize| Demand {
            flow: Flow::of(&[1, 2, 3].map(|n| GroupKey([n; 16]))[..keys]).unwrap(),
            ..both
        };
        let fair = Demand {
            flow: flow(1).flow,
            ..demand
        };
        for demand in [
            demand,
            of_user,
            rated,
            both,
            fair,
            flow(1),
            flow(2),
            flow(3),
        ] {
            let bytes = demand.to_bytes();
            assert_eq!(Demand::from_bytes(&bytes), Some(demand));
            assert_eq!(Demand::from_bytes(&bytes[..bytes.len() - 1]), None);
        }
        let free = Demand { cost: 0, ..demand }.to_bytes();
        for wrong in [&bytes[1..], &rated.to_bytes()[..30], &free, &[]] {
            assert_eq!(Demand::from_bytes(wrong), None);
        }
        let text = demand.group.to_string();
        assert_eq!(GroupKey::try_from(text), Ok(demand.group));
    }
}
