//! How much is looked at where many groups wait for one rate.

use attune_core::{
    ActionId, Attempt, Demand, ExecutionId, Flow, GroupKey, OrderRule, PartitionId, Priority,
    QueueTotals, Seq,
};

use super::*;
use crate::policy::{Extra, QueueLimits, Rate, RateBound, Share};

const RULE: i64 = 5;
const BEGIN: Millis = 1_000_000;

fn waiting(n: i64) -> Waiting {
    Waiting {
        execution_id: ExecutionId::new(PartitionId(0), Seq(n)),
        seq: Seq(n),
        enqueued_at: BEGIN,
        eligible_at: BEGIN,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        front: false,
        share: Share::default(),
    }
}

/// However many groups wait for one rate, one of them comes back at a time.
#[test]
fn of_many_groups_that_wait_for_a_rate_one_is_next() {
    const GROUPS: i64 = 500;
    let mut queue = queue_of_many_groups(GROUPS, 2);
    let mut now = BEGIN;
    let mut started = Vec::new();
    for _ in 0..GROUPS / 2 {
        queue.pass(now);
        let seen = queue.groups_with_room();
        assert!(
            started.is_empty() || seen == 1,
            "{seen} groups stand among those with room"
        );
        let granted = std::iter::from_fn(|| queue.grant_next(now).granted());
        started.extend(granted.map(|it| it.execution_id.seq().0));
        assert_eq!(queue.groups_with_room(), 0);
        queue.settle_counted(now);
        now = queue.next_deadline().unwrap_or(now);
    }
    assert_eq!(started, (0..GROUPS).collect::<Vec<_>>());
}

/// Each of so many groups has one that waits, and all of them one rate, of which so many may start in a second.
fn queue_of_many_groups(groups: i64, max: u32) -> ActionQueue {
    let limits = QueueLimits {
        max_concurrent: None,
        max_length: 1_000_000,
        timeout_seconds: 86_400,
        order: OrderRule::Priority,
        extra: Extra {
            demands: Some(RULE),
            group_limit: Some(1),
            rate: Some(RateBound {
                rate: Rate { max, window: 1_000 },
                mark: 9,
                rejects: false,
            }),
            ..Extra::default()
        }
        .boxed(),
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    for n in 0..groups {
        let mut key = [1; 16];
        key[..8].copy_from_slice(&n.to_be_bytes());
        let demand = Demand {
            rule: RULE,
            group: GroupKey(key),
            cost: 1,
            user: None,
            rate: GroupKey([7; 16]),
            flow: Flow::default(),
        };
        let entered = queue.enter(Priority::Normal, waiting(n), Some(&demand));
        entered.unwrap();
    }
    queue
}
