//! What is asked for, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use attune_core::policy::{Fairness, OnRate, RateLimit, Retry};
use attune_core::{ActionPolicy, ActionRef, ActionSpec, Builtin, Priority, Run};
use serde_json::value::RawValue;

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

/// A load: so many executions, over so many actions, under a limit.
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
    /// How long a run works. None does nothing and ends at once.
    pub work: Option<Duration>,
    /// How many executions all workers together run at once; not given, more than is ever needed.
    pub slots: Option<usize>,
    /// Whether nothing may start before everything was asked for.
    pub held: bool,
    /// Of so many completions one is sent twice.
    pub doubled: Option<u64>,
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

/// What scenarios have in common: as fast as it goes, and nothing but a limit.
const PLAIN: Scenario = Scenario {
    name: "plain",
    executions: 20_000,
    actions: 100,
    limit: 10,
    pace: Pace::Closed {
        in_flight: 4096,
        pack: 512,
    },
    policies: false,
    work: None,
    slots: None,
    held: false,
    doubled: None,
};

/// The pace where the queue of one action is all that is looked at.
const ONE_QUEUE: Pace = Pace::Closed {
    in_flight: 1024,
    pack: 256,
};

impl Scenario {
    /// 20,000 executions over 100 actions with limit 10, as fast as they are accepted: what the
    /// system moves when many queues are busy at once.
    pub const fn spread() -> Self {
        Self {
            name: "spread",
            ..PLAIN
        }
    }

    /// The same with every policy of an action on: 1,000 keys by which executions are grouped, five
    /// priorities that age, a rate limit that nothing reaches, retry, slots shared by 100 users. What it is slower than
    /// [`spread`](Self::spread) by is what policies cost.
    pub const fn policies() -> Self {
        Self {
            name: "policies",
            policies: true,
            ..PLAIN
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
            pace: ONE_QUEUE,
            ..PLAIN
        }
    }

    /// 200 executions a second for 20 seconds over 20 actions with limit 10: the delays of a
    /// system that is not busy.
    pub const fn steady() -> Self {
        Self {
            name: "steady",
            executions: 4_000,
            actions: 20,
            pace: Pace::Open { per_second: 200 },
            ..PLAIN
        }
    }

    /// One action, with limits 1, 10 and 100, one after the other on a system of its own: what a
    /// single queue moves, and how much of it is the wait for the hand-off.
    pub const fn hot() -> [Self; 3] {
        const fn with(name: &'static str, executions: usize, limit: u32) -> Scenario {
            Scenario {
                name,
                executions,
                actions: 1,
                limit,
                pace: ONE_QUEUE,
                ..PLAIN
            }
        }
        [
            with("hot-1", 2_000, 1),
            with("hot-10", 10_000, 10),
            with("hot-100", 20_000, 100),
        ]
    }

    /// 100,000 actions with limit 1, two executions of each: what a queue costs that hardly
    /// anything goes through.
    pub const fn keys() -> Self {
        Self {
            name: "keys",
            executions: 200_000,
            actions: 100_000,
            limit: 1,
            ..PLAIN
        }
    }

    /// 1,000,000 executions that all wait before the first may start, and then all go: whether a
    /// long queue is slower than a short one.
    pub const fn backlog() -> Self {
        Self {
            name: "backlog",
            executions: 1_000_000,
            held: true,
            ..PLAIN
        }
    }

    /// [`spread`](Self::spread), of whose completions every tenth is sent twice: a slot that is
    /// released twice would be a violation of the limit.
    pub const fn duplicates() -> Self {
        Self {
            name: "duplicates",
            doubled: Some(10),
            ..PLAIN
        }
    }

    /// 16,000 executions of one action that work for 50 ms each, with limit 40 and workers that
    /// run 40 at once: how much of the workers' time goes into work.
    pub const fn busy() -> Self {
        Self {
            name: "busy",
            executions: 16_000,
            actions: 1,
            limit: 40,
            pace: ONE_QUEUE,
            work: Some(Duration::from_millis(50)),
            slots: Some(40),
            ..PLAIN
        }
    }

    /// The two loads for which figures to be beaten are known: 1,000 executions at limit 5 (200 a
    /// second) and 10,000 at limit 10 (500 a second).
    pub const fn seed() -> [Self; 2] {
        const fn with(name: &'static str, executions: usize, limit: u32) -> Scenario {
            Scenario {
                name,
                executions,
                actions: 1,
                limit,
                pace: ONE_QUEUE,
                ..PLAIN
            }
        }
        [with("seed-1000", 1_000, 5), with("seed-10000", 10_000, 10)]
    }

    /// The same with another number of executions, at least one, and no more actions than have
    /// two of them.
    #[must_use]
    pub fn with_executions(self, executions: usize) -> Self {
        let executions = executions.max(1);
        Self {
            executions,
            actions: self.actions.min(executions.div_ceil(2)),
            ..self
        }
    }

    /// The same over another number of actions, at least one, and at most half as many as executions.
    #[must_use]
    pub fn with_actions(self, actions: usize) -> Self {
        Self {
            actions: actions.clamp(1, self.executions.div_ceil(2)),
            ..self
        }
    }

    /// The same with another limit of each action.
    #[must_use]
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit, ..self }
    }

    /// The same as an open loop: so many executions arrive in a second.
    #[must_use]
    pub fn with_rate(self, per_second: u32) -> Self {
        Self {
            pace: Pace::Open { per_second },
            ..self
        }
    }

    /// The ref of an action, counted from 0: `bench.spread-001` is the first.
    pub fn action_ref(&self, action: usize) -> String {
        format!("bench.{}-{:03}", self.name, action + 1)
    }

    /// Which action has this ref; `None` when it is none of the scenario's.
    pub fn action_named(&self, action_ref: &str) -> Option<usize> {
        let number = action_ref
            .strip_prefix("bench.")?
            .strip_prefix(self.name)?
            .strip_prefix('-')?;
        let action = number.parse::<usize>().ok()?.checked_sub(1)?;
        (action < self.actions && self.action_ref(action) == action_ref).then_some(action)
    }

    /// What an execution is given.
    pub fn parameters(&self) -> Option<Box<RawValue>> {
        let seconds = self.work?.as_secs_f64();
        RawValue::from_string(format!("{{\"seconds\":{seconds}}}")).ok()
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
                let run = self.work.map_or(Builtin::Noop, |_| Builtin::Sleep);
                let mut spec = ActionSpec::new(action_ref, Run::Builtin(run));
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
#[path = "scenario_tests.rs"]
mod tests;
