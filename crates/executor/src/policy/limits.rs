//! Which bounds and which order apply to an action: its own policy first, the executor's settings
//! otherwise.

use attune_core::{ActionSpec, OrderRule};

use crate::queue::QueueConfig;

/// The bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// How many executions may hold a slot; `None` is unlimited.
    pub max_concurrent: Option<u32>,
    /// How many may wait.
    pub max_length: u32,
    /// How long one may wait, in seconds.
    pub timeout_seconds: u32,
    /// By what those who wait stand in line.
    pub order: OrderRule,
}

/// The bounds of an action's queue.
pub fn limits_of(spec: &ActionSpec, config: QueueConfig) -> QueueLimits {
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
        };
        assert_eq!(limits_of(&spec, config), plain);
        spec.policy.concurrency.limit = Some(2);
        spec.policy.queue.max_length = Some(3);
        let own = QueueLimits {
            max_concurrent: Some(2),
            max_length: 3,
            timeout_seconds: 8,
            order: OrderRule::Priority,
        };
        assert_eq!(limits_of(&spec, config), own);
    }
}
