//! Whose turn it is where executions of an action wait for the same slots: shares by weight, along up to
//! three places of a submission.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::demand::{GroupKey, absent_value, key_of};
use super::path::{Path, Words, read_paths};
use super::places::{check_key, check_stored};
use super::{ActionPolicy, Ordering};
use crate::action::ActionSpec;
use crate::reject::Reject;
use crate::strict;

/// By what the slots of an action are shared among those who wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fairness {
    /// The levels, from the top: among those with the same value in the first place slots are shared by the
    /// second. `group` stands for the execution's group by `concurrency.group_by`.
    #[serde(default, deserialize_with = "read_paths")]
    pub by: Vec<Path>,
    /// What the share of a value is worth beside that of others, by `LEVEL:VALUE`, as `user:ann`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// The same of all others; without it, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_weight: Option<u32>,
}

/// How many levels there may be.
pub const MAX_LEVELS: usize = 3;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 1_000;
/// How many weights an action can have.
const MAX_WEIGHTS: usize = 1_000;

impl Fairness {
    /// Checks what the types alone do not; `policy` is the one that it is part of.
    pub(super) fn check(
        &self,
        policy: &ActionPolicy,
        parameters: Option<&Value>,
    ) -> Result<(), Reject> {
        let field = "policy.fairness";
        let wrong = |words: String| Err(Reject::field(field, words));
        if policy.queue.ordering == Some(Ordering::Fifo) {
            return wrong(format!(
                "`{field}` has no meaning with `policy.queue.ordering: fifo`, where executions start as \
                 they came; leave one of the two out"
            ));
        }
        self.check_levels(policy, parameters)?;
        check_weight(
            "policy.fairness.default_weight",
            self.default_weight.unwrap_or(1),
        )?;
        self.check_weights(policy)
    }

    fn check_levels(
        &self,
        policy: &ActionPolicy,
        parameters: Option<&Value>,
    ) -> Result<(), Reject> {
        let field = "policy.fairness.by";
        let wrong = |words: String| Err(Reject::field(field, words));
        if !(1..=MAX_LEVELS).contains(&self.by.len()) {
            return wrong(format!(
                "`{field}` has {} places; it must have from 1 to {MAX_LEVELS}, such as [user]",
                self.by.len()
            ));
        }
        for (index, path) in self.by.iter().enumerate() {
            if self.by[..index].contains(path) {
                return wrong(format!("`{field}` names `{path}` twice; once is enough"));
            }
            check_stored(field, path)?;
            check_key(field, path, parameters)?;
            if *path == Path::Group && policy.concurrency.group_by.is_empty() {
                return wrong(format!(
                    "`{field}` names `group`, which executions are in by \
                     `policy.concurrency.group_by`, and there is none; add it or name another place"
                ));
            }
        }
        Ok(())
    }

    fn check_weights(&self, policy: &ActionPolicy) -> Result<(), Reject> {
        let field = "policy.fairness.weights";
        if self.weights.len() > MAX_WEIGHTS {
            let words = format!(
                "`{field}` has {} weights; at most {MAX_WEIGHTS} are allowed",
                self.weights.len()
            );
            return Err(Reject::field(field, words));
        }
        let mut named = BTreeSet::new();
        for (text, weight) in &self.weights {
            let shown: String = text.chars().take(64).collect();
            let own = format!("{field}.{shown}");
            check_weight(&own, *weight)?;
            let wrong = |words: String| Err(Reject::field(own.clone(), words));
            let Some((level, value)) = self.level_of(text) else {
                let levels: Vec<String> = self.by.iter().map(|it| format!("{it}:VALUE")).collect();
                return wrong(format!(
                    "`{own}` is of no level of `policy.fairness.by`; name a value of one as {}",
                    levels.join(" or ")
                ));
            };
            let Some(key) = self.key_of_value(&policy.concurrency.group_by, level, value) else {
                return wrong(format!(
                    "`{own}` names a group by one value, and `policy.concurrency.group_by` has {} places, \
                     which is not supported yet; leave the weight out",
                    policy.concurrency.group_by.len()
                ));
            };
            if !named.insert((level, key)) {
                return wrong(format!(
                    "`{own}` says the same value as another weight; keep one of the two"
                ));
            }
        }
        Ok(())
    }

    /// The level that a weight is of, and the value that it names. Of levels of which one begins like
    /// another it is the longer one.
    fn level_of<'a>(&self, text: &'a str) -> Option<(usize, &'a str)> {
        let levels = self.by.iter().enumerate();
        let named = levels.filter_map(|(level, path)| {
            let name = path.to_string();
            let value = text.strip_prefix(&name)?.strip_prefix(':')?;
            Some((name.len(), (level, value)))
        });
        named.max_by_key(|(length, _)| *length).map(|(_, it)| it)
    }

    /// The key of a value that a weight names; `None` where that cannot be said in one value.
    fn key_of_value(&self, group_by: &[Path], level: usize, value: &str) -> Option<GroupKey> {
        let place = match (self.by.get(level)?, group_by) {
            (Path::Group, [place]) => place,
            (Path::Group, _) => return None,
            (place, _) => place,
        };
        let value = match place {
            // Numbers and the like as JSON; what is none is text.
            Path::Parameter(_) => {
                strict::value(value).unwrap_or_else(|_| Value::String(value.to_owned()))
            }
            _ => Value::String(value.to_owned()),
        };
        Some(GroupKey::of_values(vec![value]))
    }
}

fn check_weight(field: &str, weight: u32) -> Result<(), Reject> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        return Ok(());
    }
    let words = format!("`{field}` is {weight}; it must be from 1 to {MAX_WEIGHT}");
    Err(Reject::field(field, words))
}

/// Whose turn an execution waits for: its keys along [`Fairness::by`], from the top; none where nobody
/// shares.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "Vec<GroupKey>", into = "Vec<GroupKey>")]
pub struct Flow([GroupKey; MAX_LEVELS]);

impl Flow {
    /// That of these keys, from the top; `None` when there are more than there can be, or one stands for all
    /// together.
    #[must_use]
    pub fn of(keys: &[GroupKey]) -> Option<Self> {
        let mut flow = Self::default();
        let room = flow.0.get_mut(..keys.len())?;
        room.copy_from_slice(keys);
        (!keys.iter().any(GroupKey::is_zero)).then_some(flow)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0[0].is_zero()
    }

    /// Its keys, from the top.
    pub fn keys(&self) -> impl Iterator<Item = GroupKey> + '_ {
        self.0.iter().copied().take_while(|key| !key.is_zero())
    }
}

impl From<Flow> for Vec<GroupKey> {
    fn from(flow: Flow) -> Self {
        flow.keys().collect()
    }
}

impl TryFrom<Vec<GroupKey>> for Flow {
    type Error = String;

    fn try_from(keys: Vec<GroupKey>) -> Result<Self, String> {
        Self::of(&keys).ok_or_else(|| format!("{} keys are no flow", keys.len()))
    }
}

/// How the flow of an execution follows from its submission, for one action.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FlowRule(Vec<Level>);

/// A level of a rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
enum Level {
    /// The group by `group_by`.
    Group,
    /// What stands at a place, and what counts where nothing does.
    Place([(Path, Value); 1]),
}

impl FlowRule {
    /// The rule of an action; `None` where nobody shares.
    pub(super) fn of(spec: &ActionSpec) -> Option<Self> {
        let fairness = spec.policy.fairness.as_ref()?;
        let levels = fairness.by.iter().map(|path| match path {
            Path::Group => Level::Group,
            path => Level::Place([(path.clone(), absent_value(spec, path))]),
        });
        Some(Self(levels.collect()))
    }

    /// Each place but the own group, and what counts where nothing stands there.
    pub(super) fn places(&self) -> impl Iterator<Item = &(Path, Value)> {
        let places = self.0.iter().map(|level| match level {
            Level::Group => &[][..],
            Level::Place(place) => place,
        });
        places.flatten()
    }

    /// The flow of a submission that is in this group.
    pub(super) fn flow(&self, words: &Words<'_>, group: GroupKey) -> Flow {
        let levels = self.0.iter();
        let keys: Vec<GroupKey> = levels
            .map(|level| match level {
                Level::Group => group,
                Level::Place(place) => key_of(place, words),
            })
            .collect();
        Flow::of(&keys).unwrap_or_default()
    }
}

/// What the shares of an action are worth, as it is computed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    default: u16,
    /// By level, counted from the top, and key.
    of: BTreeMap<(usize, GroupKey), u16>,
    mark: i64,
}

/// What a flow is worth, and by which weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowWeights {
    /// Tells the weights of all flows from others: of the same mark each flow is worth the same.
    pub mark: i64,
    /// Its weight on each level, from the top.
    pub of: Vec<u16>,
}

impl Weights {
    /// Those of an action; `None` where nobody shares.
    #[must_use]
    pub fn of(spec: &ActionSpec) -> Option<Self> {
        let fairness = spec.policy.fairness.as_ref()?;
        let group_by = &spec.policy.concurrency.group_by;
        let weights = fairness.weights.iter().filter_map(|(text, weight)| {
            let (level, value) = fairness.level_of(text)?;
            let key = fairness.key_of_value(group_by, level, value)?;
            Some(((level, key), bounded(*weight)))
        });
        let default = bounded(fairness.default_weight.unwrap_or(1));
        Some(Self::new(default, weights))
    }

    /// Weights of some keys, by level, counted from the top; `default` is that of all others.
    pub fn new(default: u16, weights: impl IntoIterator<Item = ((usize, GroupKey), u16)>) -> Self {
        let of: BTreeMap<(usize, GroupKey), u16> = weights.into_iter().collect();
        let mut hash = Sha256::new();
        hash.update(default.to_be_bytes());
        for ((level, key), weight) in &of {
            hash.update([u8::try_from(*level).unwrap_or(u8::MAX)]);
            hash.update(key.0);
            hash.update(weight.to_be_bytes());
        }
        let hash = hash.finalize();
        let mark = i64::from_be_bytes(hash[..8].try_into().unwrap_or_default());
        Self { default, of, mark }
    }

    /// The weight of a key, from 1 to [`MAX_WEIGHT`].
    #[must_use]
    pub fn weight(&self, level: usize, key: GroupKey) -> u16 {
        let own = self.of.get(&(level, key));
        own.copied().unwrap_or(self.default).max(1)
    }

    /// What a flow is worth.
    #[must_use]
    pub fn of_flow(&self, flow: Flow) -> FlowWeights {
        let keys = flow.keys().enumerate();
        FlowWeights {
            mark: self.mark,
            of: keys.map(|(level, key)| self.weight(level, key)).collect(),
        }
    }
}

fn bounded(weight: u32) -> u16 {
    u16::try_from(weight.clamp(1, MAX_WEIGHT)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let schema = serde_json::json!({"properties": {"host": {}}});
        let policy: ActionPolicy = serde_json::from_str(text).unwrap();
        let check = policy.check(Some(&schema));
        check.map_err(|reject| reject.field.unwrap())
    }

    #[test]
    fn what_cannot_be_meant_names_its_field() {
        for right in [
            r#"{"fairness": {"by": ["user"]}}"#,
            r#"{"fairness": {"by": ["user"]}, "concurrency": {"limit": 1, "on_limit": "cancel_running"}}"#,
            r#"{"fairness": {"by": ["labels.tenant", "user", "parameters.host"], "default_weight": 1000,
                "weights": {"user:ann": 4, "labels.tenant:a:b": 1, "parameters.host:3": 1}}}"#,
            r#"{"concurrency": {"group_by": ["user"], "group_limit": 1, "limit": 2, "on_limit": "reject"},
                "priority": {"ageing_seconds": 5}, "fairness": {"by": ["group"], "weights": {"group:ann": 2}}}"#,
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for (wrong, field) in [
            (r#"{"fairness": {}}"#, "by"),
            (r#"{"fairness": {"by": []}}"#, "by"),
            (
                r#"{"fairness": {"by": ["user", "labels.a", "labels.b", "labels.c"]}}"#,
                "by",
            ),
            (r#"{"fairness": {"by": ["user", "user"]}}"#, "by"),
            (r#"{"fairness": {"by": ["source"]}}"#, "by"),
            (r#"{"fairness": {"by": ["group"]}}"#, "by"),
            (r#"{"fairness": {"by": ["parameters.port"]}}"#, "by"),
            (
                r#"{"fairness": {"by": ["user"], "default_weight": 0}}"#,
                "default_weight",
            ),
            (
                r#"{"fairness": {"by": ["user"], "default_weight": 1001}}"#,
                "default_weight",
            ),
            (
                r#"{"fairness": {"by": ["user"], "weights": {"user:ann": 0}}}"#,
                "weights.user:ann",
            ),
            (
                r#"{"fairness": {"by": ["user"], "weights": {"group:a": 1}}}"#,
                "weights.group:a",
            ),
            (
                r#"{"fairness": {"by": ["user"], "weights": {"ann": 1}}}"#,
                "weights.ann",
            ),
            (
                r#"{"concurrency": {"group_by": ["user", "labels.a"], "group_limit": 1},
                    "fairness": {"by": ["group"], "weights": {"group:ann": 2}}}"#,
                "weights.group:ann",
            ),
            (
                r#"{"fairness": {"by": ["parameters.host"],
                    "weights": {"parameters.host:1": 2, "parameters.host: 1": 2}}}"#,
                "weights.parameters.host:1",
            ),
            (
                r#"{"fairness": {"by": ["user"]}, "queue": {"ordering": "fifo"}}"#,
                "",
            ),
        ] {
            let field = format!("policy.fairness.{field}");
            let field = field.trim_end_matches('.').to_owned();
            assert_eq!(check(wrong), Err(field), "{wrong}");
        }
        let many: Vec<String> = (0..=MAX_WEIGHTS)
            .map(|n| format!(r#""user:{n}":1"#))
            .collect();
        let many = format!(
            r#"{{"fairness":{{"by":["user"],"weights":{{{}}}}}}}"#,
            many.join(",")
        );
        assert_eq!(check(&many), Err("policy.fairness.weights".to_owned()));
        let unknown = serde_json::from_str::<ActionPolicy>(r#"{"fairness": {"by": ["usr"]}}"#);
        assert!(unknown.unwrap_err().to_string().contains("labels.NAME"));
    }

    #[test]
    fn a_weight_is_that_of_whoever_says_its_value() {
        let mut spec = ActionSpec::core_pack().remove(1);
        spec.policy = serde_json::from_str(
            r#"{"concurrency": {"group_by": ["labels.host"], "group_limit": 1},
                "fairness": {"by": ["user", "group", "parameters.size"], "default_weight": 2,
                "weights": {"user:ann": 4, "group:h1": 5, "parameters.size:3": 6, "parameters.size:\"3\"": 7}}}"#,
        )
        .unwrap();
        let weights = Weights::of(&spec).unwrap();
        let rule = crate::DemandRule::of(&spec).unwrap();
        let of = |text: &str| {
            let submission: crate::Submission = serde_json::from_str(text).unwrap();
            let demand = rule.demand(&submission.words()).unwrap();
            let keys = demand.flow.keys().enumerate();
            keys.map(|(level, key)| weights.weight(level, key))
                .collect::<Vec<_>>()
        };
        let told = r#"{"action_ref":"a.b","requested_by":"ann","labels":{"host":"h1"},"parameters":{"size":3}}"#;
        assert_eq!(of(told), [4, 5, 6]);
        let text = r#"{"action_ref":"a.b","requested_by":"h1","labels":{"host":"ann"},"parameters":{"size":"3"}}"#;
        assert_eq!(of(text), [2, 2, 7]);
        assert_eq!(of(r#"{"action_ref":"a.b"}"#), [2, 2, 2]);
        let flow = Flow::of(&[GroupKey([1; 16])]).unwrap();
        let told = weights.of_flow(flow);
        assert_eq!((told.of, told.mark), (vec![2], weights.mark));
        let other = spec.policy.fairness.as_mut().unwrap();
        other.weights.insert("user:bob".to_owned(), 2);
        assert_ne!(Weights::of(&spec).unwrap().mark, weights.mark);
    }

    #[test]
    fn a_flow_is_written_and_read_the_same() {
        let key = |n: u8| GroupKey([n; 16]);
        for keys in [vec![], vec![key(1)], vec![key(1), key(2), key(1)]] {
            let flow = Flow::of(&keys).unwrap();
            assert_eq!(flow.is_none(), keys.is_empty());
            let text = serde_json::to_string(&flow).unwrap();
            assert_eq!(serde_json::from_str::<Flow>(&text).unwrap(), flow);
            assert_eq!(flow.keys().collect::<Vec<_>>(), keys);
        }
        assert_eq!(Flow::of(&[key(1), key(0)]), None);
        assert_eq!(Flow::of(&[key(1); 4]), None);
    }
}
