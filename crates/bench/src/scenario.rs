//! What is asked for, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use attune_core::policy::{Fairness, OnRate, RateLimit, Retry};
use attune_core::{ActionPolicy, ActionRef, ActionSpec, Builtin, Priority, Run};

/// When executions are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as they are accepted: the next pack goes out when an earlier one is answered.
    Closed {
        /// Requests without an answer, at most.
        in_flight: usize,
        /// Requests that are handed to the client together.
        pack: usize,
    },
    /// On schedule, whatever the answers: a system that falls behind is not spared. Delays count
    /// from the scheduled time.
    Open {
        /// Requests in a second.
        per_second: u32,
    },
}

/// A load: so many no-op executions, over so many actions, under a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name, part of the refs of its actions.
    pub name: &'static str,
    /// Executions in all.
    pub executions: usize,
    /// Actions over which they go in turn.
    pub actions: usize,
    /// How many executions of each action may hold a slot at once.
    pub limit: u32,
    /// When they are asked for.
    pub pace: Pace,
    /// Whether executions differ in who asks for them and every policy of an action is on.
    pub policies: bool,
}

/// How many different keys, and users, there are in a scenario with policies.
const KEYS: usize = 1_000;
const USERS: usize = 100;

/// For whom an execution is asked for, in a scenario with policies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asker {
    /// With which priority.
    pub priority: Priority,
    /// By whom.
    pub user: String,
    /// The key by which it is grouped.
    pub key: String,
}

impl Scenario {
    /// 20,000 executions over 100 actions with limit 10, as fast as they are accepted: what the
    /// system moves when many queues are busy at once.
    pub const fn spread() -> Self {
        Self {
            name: "spread",
            executions: 20_000,
            actions: 100,
            limit: 10,
            pace: Pace::Closed {
                in_flight: 4096,
                pack: 512,
            },
            policies: false,
        }
    }

    /// The same with every policy of an action on: 1,000 keys by which executions are grouped, five
    /// priorities that age, a rate limit that nothing reaches, retry, slots shared by 100 users. What it is slower than
    /// [`spread`](Self::spread) by is what policies cost.
    pub const fn policies() -> Self {
        Self {
            name: "policies",
            policies: true,
            ..Self::spread()
        }
    }

    /// 2,000 executions of one action with limit 1, as fast as they are accepted: the time of a
    /// hand-off, end to end, is all that counts.
    pub const fn serial() -> Self {
        Self {
            name: "serial",
            executions: 2_000,
            actions: 1,
            limit: 1,
            pace: Pace::Closed {
                in_flight: 1024,
                pack: 256,
            },
            policies: false,
        }
    }

    /// 200 executions a second for 20 seconds over 20 actions with limit 10: the delays of a
    /// system that is not busy.
    pub const fn steady() -> Self {
        Self {
            name: "steady",
            executions: 4_000,
            actions: 20,
            limit: 10,
            pace: Pace::Open { per_second: 200 },
            policies: false,
        }
    }

    /// The same with another number of executions, at least one.
    #[must_use]
    pub fn with_executions(self, executions: usize) -> Self {
        Self {
            executions: executions.max(1),
            ..self
        }
    }

    /// The ref of an action, counted from 0: `bench.spread-001` is the first.
    pub fn action_ref(&self, action: usize) -> String {
        format!("bench.{}-{:03}", self.name, action + 1)
    }

    /// Which action the execution with this index is of.
    pub fn action_of(&self, index: usize) -> usize {
        index % self.actions
    }

    /// For whom the execution with this index is asked for; `None` where nobody is told apart.
    pub fn asker(&self, index: usize) -> Option<Asker> {
        // Of one action the executions go through all priorities, users and keys.
        let turn = index / self.actions;
        self.policies.then(|| Asker {
            priority: Priority::ALL[turn % Priority::ALL.len()],
            user: format!("user-{:02}", (turn / 2) % USERS),
            key: format!("key-{:03}", (turn + self.action_of(index) * 10) % KEYS),
        })
    }

    /// How many executions of one [`Asker`] and action may hold a slot at once.
    pub fn limit_of_key(&self) -> u32 {
        if self.policies {
            self.limit.div_ceil(2)
        } else {
            self.limit
        }
    }

    /// Switches on every policy that an action has.
    fn add_policies(&self, policy: &mut ActionPolicy) {
        let by_key = "labels.key".parse().expect("it is a path");
        policy.concurrency.group_by = vec![by_key];
        policy.concurrency.group_limit = Some(self.limit_of_key());
        policy.priority.ageing_seconds = Some(300);
        policy.rate_limit = Some(RateLimit {
            max_executions: 1_000_000,
            window_seconds: 60,
            by: Vec::new(),
            on_limit: OnRate::Wait,
        });
        policy.retry = Some(Retry::default());
        policy.fairness = Some(Fairness {
            by: vec!["user".parse().expect("it is a path")],
            weights: BTreeMap::new(),
            default_weight: None,
        });
    }

    /// The definitions of its actions. Their queues take every execution of the scenario, so
    /// that none is refused for the length of a queue.
    pub fn specs(&self) -> Vec<ActionSpec> {
        (0..self.actions)
            .map(|action| {
                let action_ref = ActionRef::try_from(self.action_ref(action))
                    .expect("names of scenarios are well formed");
                let mut spec = ActionSpec::new(action_ref, Run::Builtin(Builtin::Noop));
                spec.policy.concurrency.limit = Some(self.limit);
                spec.policy.queue.max_length =
                    Some(u32::try_from(self.executions).unwrap_or(1 << 30));
                if self.policies {
                    self.add_policies(&mut spec.policy);
                }
                spec
            })
            .collect()
    }

    /// When the execution with this index is to be asked for, counted from the begin; `None`
    /// when only the answers decide that.
    pub fn due(&self, index: usize) -> Option<Duration> {
        match self.pace {
            Pace::Closed { .. } => None,
            Pace::Open { per_second } => {
                // In whole nanoseconds from the index, so that no error adds up.
                let nanos = index as u128 * 1_000_000_000 / u128::from(per_second.max(1));
                Some(Duration::from_nanos(
                    u64::try_from(nanos).unwrap_or(u64::MAX),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shape(scenario: Scenario) -> (&'static str, usize, usize, u32) {
        let Scenario {
            name,
            executions,
            actions,
            limit,
            ..
        } = scenario;
        (name, executions, actions, limit)
    }

    #[test]
    fn the_scenarios_are_those_that_are_documented() {
        assert_eq!(shape(Scenario::spread()), ("spread", 20_000, 100, 10));
        assert_eq!(shape(Scenario::serial()), ("serial", 2_000, 1, 1));
        assert_eq!(shape(Scenario::steady()), ("steady", 4_000, 20, 10));
        assert_eq!(Scenario::serial().with_executions(7).executions, 7);
    }

    #[test]
    fn with_policies_each_action_has_all_priorities_and_many_users_and_keys() {
        let policies = Scenario::policies();
        assert_eq!(shape(Scenario::policies()), ("policies", 20_000, 100, 10));
        for spec in policies.specs() {
            assert_eq!(spec.check(), Ok(()), "{}", spec.action_ref);
        }
        let of_first = (0..policies.executions).filter(|index| policies.action_of(*index) == 0);
        let askers: Vec<Asker> = of_first.filter_map(|index| policies.asker(index)).collect();
        let different =
            |of: fn(&Asker) -> String| askers.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!(different(|asker| asker.priority.to_string()), 5);
        assert_eq!(different(|asker| asker.user.clone()), 100);
        assert_eq!(different(|asker| asker.key.clone()), 200);
        assert_eq!(Scenario::spread().asker(7), None);
    }

    #[test]
    fn an_open_loop_keeps_its_schedule_to_the_nanosecond() {
        let steady = Scenario::steady();
        let due = |index| steady.due(index).unwrap();
        assert_eq!(due(0), Duration::ZERO);
        assert_eq!(due(1), Duration::from_millis(5));
        assert_eq!(due(3_999), Duration::from_millis(19_995));
        let thirds = Scenario {
            pace: Pace::Open { per_second: 3 },
            ..Scenario::steady()
        };
        assert_eq!(thirds.due(1), Some(Duration::from_nanos(333_333_333)));
        assert_eq!(thirds.due(3_000_000), Some(Duration::from_secs(1_000_000)));
        assert_eq!(Scenario::spread().due(5), None);
    }

    #[test]
    fn actions_take_turns_and_take_everything() {
        let spread = Scenario::spread();
        assert_eq!(spread.action_of(0), spread.action_of(100));
        assert_eq!(spread.action_ref(spread.action_of(99)), "bench.spread-100");
        let specs = spread.specs();
        assert_eq!(specs.len(), 100);
        for spec in &specs {
            assert_eq!(spec.check(), Ok(()), "{}", spec.action_ref);
            assert_eq!(spec.policy.concurrency.limit, Some(10));
            assert_eq!(spec.policy.queue.max_length, Some(20_000));
        }
        assert_eq!(specs[0].action_ref.as_str(), "bench.spread-001");
    }
}
