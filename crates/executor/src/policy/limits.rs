//! Which bounds and which order apply to an action: its own policy first, the executor's settings
//! otherwise.

use std::sync::Arc;

use attune_core::policy::{CountRule, OnFull, OnLimit, OnRate, Weights};
use attune_core::{ActionSpec, DemandRule, OrderRule};

use super::window::Rate;
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
    /// How often executions may start.
    pub rate: Option<RateBound>,
    /// How often executions of the action may start one after the other: one in its window.
    pub interval: Option<Rate>,
    /// What the shares are worth of those who wait for the same slots, where slots are shared.
    pub fairness: Option<Arc<Weights>>,
}

/// How often executions of an action may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateBound {
    /// So often.
    pub rate: Rate,
    /// The [mark](attune_core::policy::CountRule::mark) of the rule that says for whom starts are counted;
    /// 0 where they are for all together.
    pub mark: i64,
    /// Whether what comes while the rate is used up is refused.
    pub rejects: bool,
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

    /// How often executions may start.
    pub fn rate(&self) -> Option<RateBound> {
        self.extra.as_ref()?.rate
    }

    /// The rate where each key has its own.
    pub(crate) fn keyed_rate(&self) -> Option<Rate> {
        let rate = self.rate().filter(|rate| rate.mark != 0);
        rate.map(|rate| rate.rate)
    }

    /// The rate of all together.
    pub(crate) fn shared_rate(&self) -> Option<Rate> {
        let rate = self.rate().filter(|rate| rate.mark == 0);
        rate.map(|rate| rate.rate)
    }

    /// How often executions of the action may start one after the other.
    pub fn interval(&self) -> Option<Rate> {
        self.extra.as_ref()?.interval
    }

    /// What the shares are worth of those who wait for the same slots, where slots are shared.
    pub fn fairness(&self) -> Option<&Arc<Weights>> {
        self.extra.as_ref()?.fairness.as_ref()
    }

    /// Whether starts are counted.
    pub(crate) fn counts_starts(&self) -> bool {
        let extra = self.extra.as_ref();
        extra.is_some_and(|extra| extra.rate.is_some() || extra.interval.is_some())
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
            rate: rate_of(spec),
            interval: spec.policy.min_interval_ms.map(|interval| Rate {
                max: 1,
                window: interval.into(),
            }),
            fairness: Weights::of(spec).map(Arc::new),
        }
        .boxed(),
    }
}

fn rate_of(spec: &ActionSpec) -> Option<RateBound> {
    let limit = spec.policy.rate_limit.as_ref()?;
    Some(RateBound {
        rate: Rate {
            max: limit.max_executions,
            window: i64::from(limit.window_seconds) * 1000,
        },
        mark: CountRule::of(spec, &limit.by).mark(),
        rejects: limit.on_limit == OnRate::Reject,
    })
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
