//! Policies: under which limits, and in which order, executions may start.

mod retry;

use serde::{Deserialize, Serialize};

pub use retry::{Backoff, Factor, Retry, RetryRule, TryEnd, TryEnds};

use crate::priority::Priority;
use crate::reject::Reject;

/// How many executions of an action may hold a slot at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The limit; without one it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
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
}

/// What priorities are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priorities {
    /// After how many seconds of waiting an execution stands where one of the next higher priority
    /// stands that comes then; without it a lower priority waits as long as there is a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing_seconds: Option<u32>,
}

impl Priorities {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The policy of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionPolicy {
    /// How many may run at once.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// How many may wait, how long, and in which order.
    #[serde(default)]
    pub queue: QueueBounds,
    /// What priorities are worth.
    #[serde(default, skip_serializing_if = "Priorities::is_default")]
    pub priority: Priorities,
    /// What is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
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
                step: i64::from(seconds) * 1000,
            },
        }
    }

    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn check(&self) -> Result<(), Reject> {
        let settings = "that of the executor's settings";
        check_count(
            "policy.concurrency.limit",
            self.concurrency.limit,
            "no limit",
        )?;
        check_count("policy.queue.max_length", self.queue.max_length, settings)?;
        check_count(
            "policy.queue.timeout_seconds",
            self.queue.timeout_seconds,
            settings,
        )?;
        self.retry.as_ref().map_or(Ok(()), Retry::check)?;
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
        if self.queue.ordering == Some(Ordering::Fifo) {
            let words = format!(
                "`{field}` has no meaning with `policy.queue.ordering: fifo`, where priorities count \
                 for nothing; leave one of the two out"
            );
            return Err(Reject::field(field, words));
        }
        Ok(())
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
        step: i64,
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
            Self::Ageing { step } => accepted_at.saturating_add(step.saturating_mul(rank)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_names_its_field() {
        let mut policy = ActionPolicy::default();
        let field = |policy: &ActionPolicy| policy.check().unwrap_err().field;
        policy.priority.ageing_seconds = Some(MAX_AGEING_SECONDS);
        assert_eq!(policy.check(), Ok(()));
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
        assert_eq!(policy.check(), Ok(()));
        policy.queue.max_length = Some(0);
        assert_eq!(field(&policy).as_deref(), Some("policy.queue.max_length"));
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
