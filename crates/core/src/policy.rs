//! Policies: under which limits, and in which order, executions may start.

mod conflict;
mod demand;
mod difference;
mod document;
mod events;
mod fairness;
mod overflow;
mod path;
mod places;
mod priorities;
mod rates;
mod reach;
mod refused;
mod resolve;
mod retry;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use retry::{Backoff, Factor, Retry, RetryRule, TryEnd, TryEnds};

use crate::input;
use crate::priority::Priority;
use crate::reject::Reject;
use places::{check_key, check_path, check_stored};

pub use conflict::Conflict;
pub use demand::{Demand, DemandRule, GroupKey};
pub use difference::{FieldDifference, differences};
pub use document::{
    ActionDefaults, ConcurrencyDefaults, Content, MAX_DOCUMENT_BYTES, PolicyDocument, PolicyScope,
    PolicyTarget, RetryDefaults, UserPolicy,
};
pub use events::{EventKind, Events};
pub use fairness::{Fairness, Flow, FlowWeights, MAX_LEVELS, MAX_WEIGHT, Weights};
pub use overflow::{OnFull, OnLimit};
pub use path::{Path, Said, Words};
pub use priorities::{Exists, Priorities, PriorityRule, PriorityRules, Test};
pub use rates::{Calendar, CountRule, OnRate, Quota, RateLimit};
pub use resolve::{Behaviour, PolicySet};

/// How many executions of an action may hold a slot at once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The limit; without one it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// By what executions are grouped: those with the same values share `group_limit`.
    #[serde(
        default,
        deserialize_with = "path::read_paths",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub group_by: Vec<Path>,
    /// The limit of each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_limit: Option<u32>,
    /// How much of the limits an execution takes; without it, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// What becomes of an execution that comes when its limit is reached; without it, it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

/// How much of the limits an execution takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Where a submission says it.
    pub path: Path,
    /// What it is where nothing is said.
    #[serde(default = "one")]
    pub default: u16,
    /// The most that may be said.
    pub max: u16,
}

fn one() -> u16 {
    1
}

/// By what the executions of an action stand in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// A higher priority goes first; within one, first in, first out.
    #[default]
    Priority,
    /// First in, first out, whatever the priority.
    Fifo,
}

/// Bounds of an action's queue; what is not set follows the executor's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueBounds {
    /// How many executions may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
    /// How long an execution may wait, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// By what executions stand in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<Ordering>,
    /// What becomes of an execution that comes when as many wait as may; without it, it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
}

/// How many bytes the policy of an action may have, as JSON: as much as a document about it has room for.
const MAX_POLICY_BYTES: usize = MAX_DOCUMENT_BYTES - 1024;

/// The policy of one action.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionPolicy {
    /// How many may run at once.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// How many may wait, how long, and in which order.
    #[serde(default)]
    pub queue: QueueBounds,
    /// Which priority executions have, and what priorities are worth.
    #[serde(default, skip_serializing_if = "Priorities::is_default")]
    pub priority: Priorities,
    /// What is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How many executions of one user may wait or hold a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_user_limit: Option<u32>,
    /// How often executions may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// The shortest time between two starts, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_interval_ms: Option<u32>,
    /// How many are accepted in an hour, a day or a month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// By what the slots are shared among those who wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness: Option<Fairness>,
    /// What is told of the action as it happens.
    #[serde(default, skip_serializing_if = "Events::is_none")]
    pub events: Events,
}

/// How long ageing may take, in seconds: a month.
const MAX_AGEING_SECONDS: u32 = 31 * 86_400;

impl ActionPolicy {
    /// By what executions of the action stand in line.
    #[must_use]
    pub fn order(&self) -> OrderRule {
        match (
            self.queue.ordering.unwrap_or_default(),
            self.priority.ageing_seconds,
        ) {
            (Ordering::Fifo, _) => OrderRule::Fifo,
            (Ordering::Priority, None) => OrderRule::Priority,
            (Ordering::Priority, Some(seconds)) => OrderRule::Ageing {
                step: seconds.saturating_mul(1000),
            },
        }
    }

    /// Checks that it can be stored, and applied again as one of its versions.
    fn check_stored(&self) -> Result<(), Reject> {
        let text = serde_json::to_string(self)
            .map_err(|error| Reject::field("policy", format!("`policy`: {error}")))?;
        if text.len() > MAX_POLICY_BYTES {
            let words = format!(
                "`policy` takes {} bytes as JSON; {MAX_POLICY_BYTES} are allowed: say less in it",
                text.len()
            );
            return Err(Reject::field("policy", words));
        }
        input::check_json("policy", &text)
    }

    /// Checks what the types alone do not; `parameters` is the schema of the action's parameters.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn check(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        self.check_inherited(parameters)?;
        reach::check_reached(&self.priority.rules)
    }

    /// As [`check`](Self::check), where the rules of priorities are those of a document: whether each of them is
    /// reached was checked with it.
    fn check_inherited(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        let settings = "that of the executor's settings";
        self.check_stored()?;
        self.concurrency.check(parameters)?;
        check_count("policy.queue.max_length", self.queue.max_length, settings)?;
        check_count(
            "policy.queue.timeout_seconds",
            self.queue.timeout_seconds,
            settings,
        )?;
        let is_fifo = self.queue.ordering == Some(Ordering::Fifo);
        self.priority.check(is_fifo, parameters)?;
        self.retry.as_ref().map_or(Ok(()), Retry::check)?;
        self.check_overflow()?;
        if let Some(rate) = &self.rate_limit {
            rate.check(parameters)?;
        }
        rates::check_interval(self.min_interval_ms)?;
        rates::check_quotas(&self.quotas, parameters)?;
        if let Some(fairness) = &self.fairness {
            fairness.check(self, parameters)?;
        }
        let Some(seconds) = self.priority.ageing_seconds else {
            return Ok(());
        };
        let field = "policy.priority.ageing_seconds";
        if !(1..=MAX_AGEING_SECONDS).contains(&seconds) {
            let words = format!(
                "`{field}` must be from 1 to {MAX_AGEING_SECONDS}; leave it out for no ageing"
            );
            return Err(Reject::field(field, words));
        }
        if is_fifo {
            let words = format!(
                "`{field}` has no meaning with `policy.queue.ordering: fifo`, where priorities count \
                 for nothing; leave one of the two out"
            );
            return Err(Reject::field(field, words));
        }
        Ok(())
    }
}

/// By how many values executions can be grouped.
const MAX_GROUP_BY: usize = 4;

impl Concurrency {
    fn check(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        check_count("policy.concurrency.limit", self.limit, "no limit")?;
        let field = "policy.concurrency.group_limit";
        check_count(field, self.group_limit, "no groups")?;
        self.check_groups(parameters)?;
        if let (Some(limit), Some(group_limit)) = (self.limit, self.group_limit)
            && group_limit > limit
        {
            let words = format!(
                "`{field}` is {group_limit} and `policy.concurrency.limit` {limit}, which no group \
                 can go beyond; lower the one or raise the other"
            );
            return Err(Reject::field(field, words));
        }
        match &self.cost {
            Some(cost) => self.check_cost(cost, parameters),
            None => Ok(()),
        }
    }

    fn check_groups(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        let field = "policy.concurrency.group_by";
        let wrong = |words: String| Err(Reject::field(field, words));
        match (self.group_by.is_empty(), self.group_limit) {
            (true, None) => return Ok(()),
            (true, Some(_)) => {
                return wrong(format!(
                    "`policy.concurrency.group_limit` needs `{field}`, by which executions are \
                     grouped, such as [user]; add it or leave the limit out"
                ));
            }
            (false, None) => {
                return wrong(format!(
                    "`{field}` needs `policy.concurrency.group_limit`, the limit of each group; \
                     add it or leave the groups out"
                ));
            }
            (false, Some(_)) => {}
        }
        if self.group_by.len() > MAX_GROUP_BY {
            return wrong(format!(
                "`{field}` has {} places; at most {MAX_GROUP_BY} are allowed",
                self.group_by.len()
            ));
        }
        for (index, path) in self.group_by.iter().enumerate() {
            if self.group_by[..index].contains(path) {
                return wrong(format!("`{field}` names `{path}` twice; once is enough"));
            }
            check_stored(field, path)?;
            check_key(field, path, parameters)?;
        }
        Ok(())
    }

    fn check_cost(&self, cost: &Cost, parameters: Option<&Value>) -> Result<(), Reject> {
        check_stored("policy.concurrency.cost.path", &cost.path)?;
        check_path("policy.concurrency.cost.path", &cost.path, parameters)?;
        let field = "policy.concurrency.cost.max";
        let Some(least) = self.group_limit.or(self.limit) else {
            let words = "`policy.concurrency.cost` says how much of a limit an execution takes, and there \
                         is none; add `policy.concurrency.limit` or leave the cost out";
            return Err(Reject::field("policy.concurrency.cost", words));
        };
        if cost.max == 0 || u32::from(cost.max) > least {
            let words = format!(
                "`{field}` is {}; it must be from 1 to the lowest limit, {least}: nothing that \
                 takes more could start",
                cost.max
            );
            return Err(Reject::field(field, words));
        }
        if !(1..=cost.max).contains(&cost.default) {
            let field = "policy.concurrency.cost.default";
            let words = format!(
                "`{field}` is {}; it must be from 1 to `policy.concurrency.cost.max`, {}",
                cost.default, cost.max
            );
            return Err(Reject::field(field, words));
        }
        cost.check_default(parameters)
    }
}

/// The largest limit or count that a policy can name.
const MAX_COUNT: u32 = i32::MAX as u32;

/// Checks a count; `without` is what holds when it is left out.
pub(crate) fn check_count(field: &str, value: Option<u32>, without: &str) -> Result<(), Reject> {
    if value.is_none_or(|value| (1..=MAX_COUNT).contains(&value)) {
        return Ok(());
    }
    let words = format!("`{field}` must be from 1 to {MAX_COUNT}; leave it out for {without}");
    Err(Reject::field(field, words))
}

/// By what the executions of an action stand in line, as it is computed with.
///
/// With ageing, a wait is worth as much as a priority: each stands by the time of its acceptance and
/// one step more for each rank of its priority. That is a *virtual deadline* and never changes, so
/// nothing is sorted again while time passes, and it bounds who may go before: who is `n` ranks below
/// the highest is overtaken by nobody who is accepted more than `n` steps after it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OrderRule {
    /// A higher priority goes first.
    #[default]
    Priority,
    /// The priority counts for nothing.
    Fifo,
    /// A wait counts, too.
    Ageing {
        /// What a rank of priority is worth, in milliseconds of waiting.
        step: u32,
    },
}

impl OrderRule {
    /// Whether a higher priority goes first, as without a word about it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Where an execution stands that was accepted at `accepted_at`, in milliseconds: who has the smaller
    /// key stands before the other, and of two with the same key whoever was accepted first.
    #[must_use]
    pub fn key(self, priority: Priority, accepted_at: i64) -> i64 {
        let rank = i64::from(priority.rank());
        match self {
            Self::Priority => rank,
            Self::Fifo => 0,
            Self::Ageing { step } => accepted_at.saturating_add(i64::from(step) * rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_stored_or_applied_again_names_its_field() {
        for (text, place) in [
            (
                r#"{"fairness": {"by": ["user"], "weights": {"user:a\u0000b": 2}}}"#,
                "policy.fairness.weights",
            ),
            (
                r#"{"concurrency": {"group_by": ["labels.a\u0000"], "group_limit": 1}}"#,
                "policy.concurrency.group_by.0",
            ),
            (
                r#"{"priority": {"rules": [{"when": {"user": "a\u0000"}, "then": "high"}]}}"#,
                "policy.priority.rules.0.when.user",
            ),
        ] {
            let policy: ActionPolicy = serde_json::from_str(text).unwrap();
            let field = policy.check(None).unwrap_err().field;
            assert_eq!(field.as_deref(), Some(place));
        }
        let weights = (0..900).map(|number| (format!("user:{number:0100}"), 1));
        let mut policy: ActionPolicy =
            serde_json::from_str(r#"{"fairness": {"by": ["user"]}}"#).unwrap();
        policy.fairness.as_mut().unwrap().weights = weights.collect();
        let field = policy.check(None).unwrap_err().field;
        assert_eq!(field.as_deref(), Some("policy"));
        for target in [".", ".."] {
            let refused = PolicyTarget::of(PolicyScope::User, target).unwrap_err();
            assert_eq!(refused.field.as_deref(), Some("target"));
        }
        let missing = PolicyTarget::of(PolicyScope::Pack, "").unwrap_err();
        assert_eq!(missing.message, "`target`: it is required; say which pack");
        let scope = "pakc".parse::<PolicyScope>().unwrap_err();
        assert!(scope.starts_with("\"pakc\" is no scope"), "{scope}");
    }

    #[test]
    fn what_does_not_go_together_names_its_field() {
        let mut policy = ActionPolicy::default();
        let field = |policy: &ActionPolicy| policy.check(None).unwrap_err().field;
        policy.priority.ageing_seconds = Some(MAX_AGEING_SECONDS);
        assert_eq!(policy.check(None), Ok(()));
        for seconds in [0, MAX_AGEING_SECONDS + 1] {
            policy.priority.ageing_seconds = Some(seconds);
            let field = field(&policy);
            assert_eq!(field.as_deref(), Some("policy.priority.ageing_seconds"));
        }
        policy.priority.ageing_seconds = Some(5);
        policy.queue.ordering = Some(Ordering::Fifo);
        assert_eq!(
            field(&policy).as_deref(),
            Some("policy.priority.ageing_seconds")
        );
        policy.priority.ageing_seconds = None;
        assert_eq!(policy.check(None), Ok(()));
        policy.queue.max_length = Some(0);
        assert_eq!(field(&policy).as_deref(), Some("policy.queue.max_length"));
    }

    #[test]
    fn groups_and_costs_that_cannot_be_meant_name_their_field() {
        let schema = serde_json::json!({"properties": {"host": {}}});
        let check = |text: &str| {
            let policy = format!(r#"{{"concurrency": {text}}}"#);
            let policy: ActionPolicy = serde_json::from_str(&policy).unwrap();
            policy
                .check(Some(&schema))
                .map_err(|reject| reject.field.unwrap())
        };
        for right in [
            r#"{"limit": 9, "group_by": ["parameters.host", "user"], "group_limit": 9}"#,
            r#"{"group_by": ["labels.x"], "group_limit": 2, "cost": {"path": "labels.c", "max": 2}}"#,
            r#"{"limit": 5, "cost": {"path": "parameters.host", "default": 5, "max": 5}}"#,
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for (wrong, field) in [
            (r#"{"group_by": ["user"]}"#, "group_by"),
            (r#"{"group_limit": 1}"#, "group_by"),
            (r#"{"group_by": ["user"], "group_limit": 0}"#, "group_limit"),
            (
                r#"{"limit": 1, "group_by": ["user"], "group_limit": 2}"#,
                "group_limit",
            ),
            (
                r#"{"group_by": ["user", "user"], "group_limit": 2}"#,
                "group_by",
            ),
            (
                r#"{"group_by": ["parameters.port"], "group_limit": 2}"#,
                "group_by",
            ),
            (
                r#"{"group_by": ["user", "group", "labels.a", "labels.b", "labels.c"], "group_limit": 2}"#,
                "group_by",
            ),
            (r#"{"cost": {"path": "labels.c", "max": 2}}"#, "cost"),
            (
                r#"{"limit": 1, "cost": {"path": "labels.c", "max": 2}}"#,
                "cost.max",
            ),
            (
                r#"{"limit": 4, "group_by": ["user"], "group_limit": 2, "cost": {"path": "labels.c", "max": 3}}"#,
                "cost.max",
            ),
            (
                r#"{"limit": 4, "cost": {"path": "labels.c", "max": 0}}"#,
                "cost.max",
            ),
            (
                r#"{"limit": 4, "cost": {"path": "labels.c", "max": 2, "default": 3}}"#,
                "cost.default",
            ),
            (
                r#"{"limit": 4, "cost": {"path": "parameters.c", "max": 2}}"#,
                "cost.path",
            ),
        ] {
            assert_eq!(
                check(wrong),
                Err(format!("policy.concurrency.{field}")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_was_written_before_there_was_an_order_reads_and_writes_the_same() {
        let text = r#"{"concurrency":{"limit":2},"queue":{"max_length":7}}"#;
        let policy: ActionPolicy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.order(), OrderRule::Priority);
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
    }

    #[test]
    fn a_wait_of_a_step_is_worth_a_rank() {
        let rule = OrderRule::Ageing { step: 1000 };
        let low = rule.key(Priority::Low, 5_000);
        assert_eq!(low, rule.key(Priority::Normal, 6_000));
        assert!(low < rule.key(Priority::Normal, 6_001), "it came too late");
        assert!(low > rule.key(Priority::Critical, 7_999));
        assert!(
            OrderRule::Priority.key(Priority::Low, 0)
                > OrderRule::Priority.key(Priority::Normal, 9)
        );
        assert_eq!(
            OrderRule::Fifo.key(Priority::Low, 1),
            OrderRule::Fifo.key(Priority::High, 2)
        );
    }
}
