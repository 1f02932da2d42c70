//! Which bounds and which order apply to an action: its own policy first, the executor's settings
//! otherwise.

use attune_core::policy::{OnFull, OnLimit};
use attune_core::{ActionSpec, DemandRule, OrderRule};

use crate::queue::QueueConfig;

/// The bounds of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueLimits {
    /// How many executions may hold a slot; `None` is unlimited.
    pub max_concurrent: Option<u32>,
    /// How many may wait.
    pub max_length: u32,
    /// How long one may wait, in seconds.
    pub timeout_seconds: u32,
    /// By what those who wait stand in line.
    pub order: OrderRule,
    /// What few queues have; apart, because most of many queues are plain and idle, and then small.
    pub extra: Option<Box<Extra>>,
}

/// The bounds that few queues have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extra {
    /// How much of a limit the holders of each group may take; `None` is unlimited.
    pub group_limit: Option<u32>,
    /// The [mark](attune_core::DemandRule::mark) of the rule by which executions demand different things;
    /// `None` where all demand the same.
    pub demands: Option<i64>,
    /// What becomes of a newcomer when a limit is reached.
    pub on_limit: OnLimit,
    /// What becomes of a newcomer when as many wait as may.
    pub on_full: OnFull,
    /// How many executions of one user may wait or hold a slot; `None` is unlimited.
    pub per_user: Option<u32>,
}

impl Extra {
    /// Itself; `None` when it says nothing.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl QueueLimits {
    /// How much of a limit the holders of each group may take; `None` is unlimited.
    pub fn group_limit(&self) -> Option<u32> {
        self.extra.as_ref()?.group_limit
    }

    /// What becomes of a newcomer when a limit is reached.
    pub fn on_limit(&self) -> OnLimit {
        let extra = self.extra.as_ref();
        extra.map_or(OnLimit::Wait, |extra| extra.on_limit)
    }

    /// What becomes of a newcomer when as many wait as may.
    pub fn on_full(&self) -> OnFull {
        let extra = self.extra.as_ref();
        extra.map_or(OnFull::Reject, |extra| extra.on_full)
    }

    /// How many executions of one user may wait or hold a slot; `None` is unlimited.
    pub fn per_user(&self) -> Option<u32> {
        self.extra.as_ref()?.per_user
    }

    /// Whether somebody who comes may do more than wait or be refused by a full queue.
    pub(crate) fn overflows(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| {
            extra.on_limit != OnLimit::Wait
                || extra.on_full != OnFull::Reject
                || extra.per_user.is_some()
        })
    }

    /// The mark of the rule by which executions demand different things; `None` where all demand the same.
    pub fn demands(&self) -> Option<i64> {
        self.extra.as_ref()?.demands
    }
}

/// The bounds of an action's queue; `demands` is the rule by which its executions demand.
pub fn limits_of(
    spec: &ActionSpec,
    demands: Option<&DemandRule>,
    config: QueueConfig,
) -> QueueLimits {
    QueueLimits {
        max_concurrent: spec.policy.concurrency.limit,
        max_length: spec
            .policy
            .queue
            .max_length
            .unwrap_or(config.max_queue_length),
        timeout_seconds: spec
            .policy
            .queue
            .timeout_seconds
            .unwrap_or(config.queue_timeout_seconds),
        order: spec.policy.order(),
        extra: Extra {
            group_limit: spec.policy.concurrency.group_limit,
            demands: demands.map(DemandRule::mark),
            on_limit: spec.policy.concurrency.on_limit.unwrap_or_default(),
            on_full: spec.policy.queue.on_full.unwrap_or_default(),
            per_user: spec.policy.per_user_limit,
        }
        .boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_policy_leaves_out_follows_the_settings() {
        let mut spec = ActionSpec::core_pack().remove(0);
        let config = QueueConfig {
            max_queue_length: 7,
            queue_timeout_seconds: 8,
        };
        let plain = QueueLimits {
            max_concurrent: None,
            max_length: 7,
            timeout_seconds: 8,
            order: OrderRule::Priority,
            extra: None,
        };
        assert_eq!(limits_of(&spec, None, config), plain);
        spec.policy.concurrency.limit = Some(2);
        spec.policy.queue.max_length = Some(3);
        let own = QueueLimits {
            max_concurrent: Some(2),
            max_length: 3,
            timeout_seconds: 8,
            order: OrderRule::Priority,
            extra: None,
        };
        assert_eq!(limits_of(&spec, None, config), own);
    }
}
