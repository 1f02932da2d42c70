//! The actions of the rig.

use std::path::Path;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

/// How many ordinary actions there are.
const COUNT: usize = 50;
/// How many executions of one action may wait; more are refused, which clients must cope with.
const MAX_WAITING: u32 = 300;
/// How many partitions the cluster has.
pub(crate) const PARTITIONS: u16 = 8;
/// Runs in a pool of its own.
pub(crate) const LONELY: &str = "chaos.lonely";
/// Its submissions are as large as they may be, and its dispatches larger.
pub(crate) const LARGE: &str = "chaos.large";
/// Is not to start before a time.
pub(crate) const DELAYED: &str = "chaos.delayed";
/// How long an execution may wait, in seconds: longer than any run of the rig, so that nothing
/// ever expires while clocks go right.
const WAIT_SECONDS: u32 = 3600;
/// Some of each label may start in any two seconds.
const RATED: &str = "chaos.rated";
/// The actions of this pack leave it to policy documents how many may wait.
pub(crate) const BOUND_PACK: &str = "bound";
/// How many there are.
const BOUND_COUNT: u64 = 4;
/// Users of whom documents say something.
pub(crate) const USERS: [&str; 2] = ["user0", "user1"];
/// Kills the worker that runs it.
pub(crate) const POISON: &str = "chaos.poison";

/// What an action runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Noop,
    /// Waits inside the worker.
    Sleep,
    /// A program that records itself.
    Program,
    /// A program that records itself and takes seconds, sometimes many.
    Long,
    /// Fails.
    Fail,
    /// A program that fails until its third attempt, and is tried again.
    Flaky,
    /// Kills its worker.
    Poison,
    /// Nothing, and its dispatch is larger than what was asked for.
    Large,
    /// Nothing, to see whether the rest goes on.
    Probe,
}

/// By what those who wait stand in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// A higher priority goes first, as without a word about it.
    Priority,
    /// The priority counts for nothing.
    Fifo,
    /// So many seconds of waiting are worth a priority.
    Ageing(u32),
}

impl Order {
    /// One of them; the steps are about as long as executions wait.
    fn numbered(number: usize) -> Self {
        [Self::Priority, Self::Ageing(1), Self::Fifo, Self::Ageing(5)][number % 4]
    }

    fn add_to(self, policy: &mut Value) {
        match self {
            Self::Priority => {}
            Self::Fifo => policy["queue"]["ordering"] = json!("fifo"),
            Self::Ageing(seconds) => policy["priority"] = json!({"ageing_seconds": seconds}),
        }
    }
}

/// The limits of an action, and the order under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) limit: Option<u32>,
    order: Order,
    grouping: Grouping,
    overflow: Overflow,
}

/// What becomes of who comes when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    /// It waits, or is refused by a full queue, as without a word about it.
    Wait,
    /// A short queue drops the oldest.
    DropOldest,
    /// It takes the place of those of its group that wait.
    ReplaceWaiting,
    /// And of those that run.
    CancelRunning,
    /// It is refused at the limit.
    Reject,
    /// Its user has so many and no more.
    PerUser,
}

impl Overflow {
    /// Most have none: what is replaced or refused is no load.
    fn numbered(number: usize) -> Self {
        match number % 16 {
            3 => Self::DropOldest,
            6 => Self::ReplaceWaiting,
            9 => Self::CancelRunning,
            12 => Self::Reject,
            14 => Self::PerUser,
            _ => Self::Wait,
        }
    }

    fn add_to(self, policy: &mut Value) {
        let on_limit = match self {
            Self::Wait => return,
            Self::DropOldest => {
                policy["queue"]["max_length"] = json!(5);
                policy["queue"]["on_full"] = json!("drop_oldest");
                return;
            }
            Self::PerUser => {
                policy["per_user_limit"] = json!(4);
                return;
            }
            Self::ReplaceWaiting => "replace_waiting",
            Self::CancelRunning => "cancel_running",
            Self::Reject => "reject",
        };
        let concurrency = &mut policy["concurrency"];
        // Without a limit there is none to reach.
        if !concurrency["limit"].is_null() || !concurrency["group_limit"].is_null() {
            concurrency["on_limit"] = json!(on_limit);
        }
    }
}

impl Policy {
    /// One of them.
    pub(crate) fn numbered(limit: Option<u32>, number: usize) -> Self {
        Self {
            limit,
            order: Order::numbered(number),
            grouping: [
                Grouping::None,
                Grouping::None,
                Grouping::ByLabel,
                Grouping::ByUserAndLabel,
                Grouping::ByCost,
            ][number % 5],
            overflow: Overflow::numbered(number),
        }
    }

    /// Only a limit.
    fn plain(limit: Option<u32>) -> Self {
        Self {
            limit,
            order: Order::Priority,
            grouping: Grouping::None,
            overflow: Overflow::Wait,
        }
    }

    fn to_json(self) -> Value {
        let mut policy = json!({
            "concurrency": {"limit": self.limit},
            "queue": {"max_length": MAX_WAITING, "timeout_seconds": WAIT_SECONDS},
        });
        self.order.add_to(&mut policy);
        let most = self.limit.unwrap_or(2);
        self.grouping.add_to(&mut policy["concurrency"], most);
        self.overflow.add_to(&mut policy);
        if policy["queue"]["ordering"] != json!("fifo") {
            match self.grouping {
                Grouping::ByUserAndLabel => {
                    policy["fairness"] =
                        json!({"by": ["user", "labels.k"], "weights": {"labels.k:k1": 3}});
                }
                Grouping::ByCost => {
                    policy["fairness"] = json!({"by": ["labels.k"], "default_weight": 2});
                }
                Grouping::None | Grouping::ByLabel => {}
            }
        }
        policy
    }
}

/// By what executions are grouped, and whether some take more than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grouping {
    None,
    ByLabel,
    ByUserAndLabel,
    ByCost,
}

impl Grouping {
    /// Under an action's limit of `most`.
    fn add_to(self, concurrency: &mut Value, most: u32) {
        match self {
            Self::None => return,
            Self::ByLabel => concurrency["group_by"] = json!(["labels.k"]),
            Self::ByUserAndLabel => concurrency["group_by"] = json!(["user", "labels.k"]),
            Self::ByCost => {
                concurrency["cost"] = json!({"path": "parameters.cost", "max": most.min(3)});
                concurrency["limit"] = json!(most);
                return;
            }
        }
        concurrency["group_limit"] = json!(most.min(2));
    }
}

/// An action.
#[derive(Debug, Clone)]
pub(crate) struct Action {
    pub(crate) action_ref: String,
    /// What it begins with.
    pub(crate) policy: Policy,
    kind: Kind,
    /// How often it is asked for, next to the others.
    weight: u32,
}

impl Action {
    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        let ordinary = (0..COUNT).map(|number| {
            let (kind, weight) = match number % 10 {
                0..6 => (Kind::Noop, 24),
                6..8 => (Kind::Sleep, 8),
                _ => (Kind::Program, 8),
            };
            Self {
                action_ref: format!("chaos.a{number:02}"),
                policy: Policy::numbered(
                    (number != COUNT - 1).then_some(1 + (number % 6) as u32),
                    number,
                ),
                kind,
                weight,
            }
        });
        let special = [
            ("chaos.long", Kind::Long, 1),
            ("chaos.fail", Kind::Fail, 8),
            ("chaos.flaky", Kind::Flaky, 8),
            (RATED, Kind::Program, 16),
            (POISON, Kind::Poison, 0),
        ];
        let special = special.map(|(action_ref, kind, weight)| Self {
            action_ref: action_ref.to_owned(),
            policy: Policy::plain(Some(2)),
            kind,
            weight,
        });
        let bound = (0..BOUND_COUNT).map(|number| Self {
            action_ref: format!("{BOUND_PACK}.a{number}"),
            policy: Policy::plain(Some(2)),
            kind: Kind::Sleep,
            weight: 24,
        });
        let special = ordinary.chain(special).chain(bound);
        let lasting = [
            (LONELY.to_owned(), Kind::Noop, None),
            (LARGE.to_owned(), Kind::Large, Some(5)),
            (DELAYED.to_owned(), Kind::Program, Some(3)),
        ];
        let probes = super::probe::action_refs();
        let probes = probes.into_iter().map(|name| (name, Kind::Probe, None));
        let lasting = lasting.into_iter().chain(probes);
        let lasting = lasting.map(|(action_ref, kind, limit)| Self {
            action_ref,
            policy: Policy::plain(limit),
            kind,
            weight: 0,
        });
        special.chain(lasting).collect()
    }

    /// Whether it only shows that the rest goes on.
    pub(crate) fn is_probe(&self) -> bool {
        self.kind == Kind::Probe
    }

    /// Whether it leaves it to policy documents how many may wait.
    pub(crate) fn is_bound(&self) -> bool {
        self.action_ref.starts_with(BOUND_PACK)
    }

    /// The action as the API takes it. `program` is this very program, `history` the folder of
    /// its records.
    pub(crate) fn spec(&self, program: &Path, history: &Path, policy: Policy) -> Value {
        let run = match self.kind {
            Kind::Noop | Kind::Large | Kind::Probe => json!({"builtin": "noop"}),
            Kind::Sleep => json!({"builtin": "sleep"}),
            Kind::Fail => json!({"builtin": "fail"}),
            Kind::Program | Kind::Long => json!({"program": [program, "program", history]}),
            Kind::Poison => json!({"program": ["/bin/sh", "-c", "kill -9 $PPID"]}),
            Kind::Flaky => json!({"program": ["/bin/sh", "-c", "[ $ATTUNE_ATTEMPT -ge 3 ]"]}),
        };
        // A fault of the rig may hit the same execution several times; poison shall end.
        let max_attempts = if self.kind == Kind::Poison { 2 } else { 100 };
        let pool = if self.action_ref == LONELY {
            super::fleet::LONELY_POOL
        } else {
            "default"
        };
        let mut spec = json!({
            "ref": self.action_ref, "run": run, "max_attempts": max_attempts, "pool": pool,
            "policy": policy.to_json(),
        });
        if self.kind == Kind::Flaky {
            spec["policy"]["retry"] = json!({"backoff": {
                "initial_ms": 200, "factor": 3, "max_ms": 2000, "jitter": 0.5,
            }});
        }
        if self.action_ref == RATED {
            spec["policy"]["rate_limit"] = json!({
                "max_executions": 6, "window_seconds": 2, "by": ["labels.k"],
            });
            spec["policy"]["min_interval_ms"] = json!(20);
        }
        if self.is_bound()
            && let Some(queue) = spec["policy"]["queue"].as_object_mut()
        {
            queue.remove("max_length");
        }
        if self.kind == Kind::Large {
            spec["env"] = json!({"PAD": "x".repeat(20_000)});
        }
        spec
    }

    /// What an execution is given.
    fn parameters(&self, random: &mut StdRng) -> Value {
        match self.kind {
            Kind::Noop | Kind::Poison | Kind::Flaky | Kind::Large | Kind::Probe => json!({}),
            Kind::Sleep => json!({"seconds": random.random_range(0.0..0.3)}),
            Kind::Program => json!({"work_ms": random.random_range(0..300)}),
            // Some take longer than the broker lets a delivery be.
            Kind::Long if random.random_bool(0.25) => {
                json!({"work_ms": random.random_range(14_000..18_000)})
            }
            Kind::Long => json!({"work_ms": random.random_range(1000..3000)}),
            Kind::Fail => json!({"message": "as it was asked to"}),
        }
    }

    /// A submission under this request id.
    pub(crate) fn submission(&self, request_id: uuid::Uuid, random: &mut StdRng) -> Value {
        let priorities = ["critical", "high", "normal", "low", "background"];
        let priority = priorities[random.random_range(0..priorities.len())];
        let mut submission = json!({
            "request_id": request_id, "action_ref": self.action_ref,
            "parameters": self.parameters(random), "priority": priority,
        });
        // Some say nothing, and are in a group together. What takes more than there is is refused,
        // which clients must cope with.
        let some = random.random_range(0..18_u32);
        if some % 3 > 0 {
            submission["labels"] = json!({"k": format!("k{}", some % 3)});
        }
        if some % 2 > 0 {
            submission["requested_by"] = json!(format!("user{}", some / 9));
        }
        if some < 4 {
            submission["parameters"]["cost"] = json!(some % 3 + 1);
        }
        submission
    }

    /// One of them, as often as its weight says.
    pub(crate) fn pick<'a>(actions: &'a [Self], random: &mut StdRng) -> &'a Self {
        let total: u32 = actions.iter().map(|action| action.weight).sum();
        let mut left = random.random_range(0..total);
        let found = actions.iter().find(|action| {
            let hit = left < action.weight;
            left = left.saturating_sub(action.weight);
            hit
        });
        found.unwrap_or(&actions[0])
    }
}
