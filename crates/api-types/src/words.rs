//! The words of `attune-core` that the reference describes. The core itself knows nothing of
//! schemas; a test compares the two.

mod env;
mod explained;
mod fairness;
mod identity;
mod policies;
mod rates;
mod resources;
mod shapes;
mod told;
mod tries;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{BatchItem, Submitted};

pub use env::{EnvValue, NamedSecret};
pub use explained::{Basis, Estimate, Lack, LimitHolder, NoEstimate, OrderKey, Reason};
pub use fairness::Fairness;
pub use identity::{Rate, Rates, Role};
pub use policies::{
    ActionDefaults, ConcurrencyDefaults, PolicyDocument, PolicyScope, RetryDefaults,
};
pub use rates::{Calendar, OnRate, Quota, RateLimit};
pub use resources::Resources;
pub use shapes::{Argv, Levels, Places, Weights, When};
pub use told::EventName;
pub use tries::{Backoff, Retry, TryEnd};

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Accepted; waits for a slot.
    Queued,
    /// Holds a slot; its worker has not said yet that it runs.
    Requested,
    /// Holds a slot; its worker has said that it runs.
    Running,
    /// Ended as it should.
    Succeeded,
    /// Ended with an error of its own.
    Failed,
    /// Ran longer than it may and was ended.
    TimedOut,
    /// Cancelled before or while it ran.
    Cancelled,
    /// Waited longer than its queue allows.
    Expired,
    /// Refused, but recorded because its sender had been told that the message is safe.
    Rejected,
    /// Its worker died and the policy does not try again.
    Abandoned,
}

/// A higher priority goes first; within one, order is first in, first out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Goes before everything else.
    Critical,
    /// Goes before normal work.
    High,
    /// What a submission has unless it says otherwise.
    Normal,
    /// Goes after normal work.
    Low,
    /// Goes when nothing else waits.
    Background,
}

/// How queues are held. The stronger one counts when several cover a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Executions are accepted, and nobody is given a slot.
    Pause,
    /// Nobody is given a slot, and no execution is accepted; done when nothing runs.
    Drain,
}

/// One submission, or an array of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Submissions {
    /// One.
    One(Submission),
    /// From 1 to 1000. Each is accepted or refused by itself; the answer has one item for each, in
    /// their order.
    Several(Vec<Submission>),
}

/// The answer to one submission, or to an array of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SubmitAnswer {
    /// To one.
    One(Submitted),
    /// To an array, one item for each submission, in their order.
    Several(Vec<BatchItem>),
}

/// A request to run an action once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Names the request, so that repeating it within 24 hours gives the same execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// The action to run.
    #[schema(max_length = 128, pattern = r"^[a-z0-9_-]+(\.[a-z0-9_-]+)+$")]
    pub action_ref: String,
    /// What the action is given: a JSON object, kept as it was written; checked against the
    /// action's schema if it has one.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// Who goes first; without it, as the policy of the action says, else `normal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub priority: Option<Priority>,
    /// Where it comes from: policies can give it a priority by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub source: Option<Source>,
    /// The rule firing that asks, in the client's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub enforcement_id: Option<String>,
    /// The user for whom it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub requested_by: Option<String>,
    /// A key that policies can group by, and by which it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub group: Option<String>,
    /// Labels, by which policies can group, count and rank; at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// It does not start before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// How long it may run, in seconds, in place of what the action says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub timeout_seconds: Option<u32>,
    /// The ended execution that this one runs again; kept beside it and not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub requeue_of: Option<i64>,
}

/// An action as its author writes it, in a file or in a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionSpec {
    /// Its name: its pack, a dot, and its name in the pack.
    #[serde(rename = "ref")]
    #[schema(max_length = 128, pattern = r"^[a-z0-9_-]+(\.[a-z0-9_-]+)+$")]
    pub action_ref: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What a worker runs.
    pub run: Run,
    /// The JSON schema of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// How long a run may take, in seconds.
    #[serde(default = "run_timeout")]
    #[schema(minimum = 1, maximum = 2_592_000, default = 3600)]
    pub timeout_seconds: u32,
    /// The workers that may run it.
    #[serde(default = "pool")]
    #[schema(default = "default", pattern = "^[a-z0-9_-]{1,64}$")]
    pub pool: String,
    /// What happens when a worker dies while running it: whether `policy.retry.on` has `worker_lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, default = "retry")]
    pub on_worker_lost: Option<OnWorkerLost>,
    /// How often it may be tried in all: `policy.retry.max_attempts` where that is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64, default = 3)]
    pub max_attempts: Option<u32>,
    /// Variables that its program sees beside those that the worker lets through: texts, and `{secret: NAME}` for
    /// what the worker has under that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// What a run of it may take of its machine.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Its limits.
    #[serde(default)]
    pub policy: ActionPolicy,
}

fn run_timeout() -> u32 {
    3600
}

fn pool() -> String {
    "default".to_owned()
}

/// What a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Run {
    /// A program and its arguments; never a shell line built from parameters.
    Program(Argv),
    /// Something the worker knows how to do itself.
    Builtin(Builtin),
}

/// The actions of the pack `core`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Builtin {
    /// `core.noop`: does nothing.
    #[serde(rename = "noop")]
    Noop,
    /// `core.echo`: returns its parameters.
    #[serde(rename = "echo")]
    Echo,
    /// `core.sleep`: waits for `seconds`.
    #[serde(rename = "sleep")]
    Sleep,
    /// `core.fail`: fails with `message`.
    #[serde(rename = "fail")]
    Fail,
    /// `core.command`: runs the program and arguments in `argv`.
    #[serde(rename = "command")]
    Command,
    /// `core.http.get`: fetches `url`.
    #[serde(rename = "http.get")]
    HttpGet,
}

/// What happens to an execution whose worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnWorkerLost {
    /// It takes its place in the queue again, until its attempts are used up.
    #[default]
    Retry,
    /// It ends as abandoned.
    Fail,
}

/// The policy of one action.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionPolicy {
    /// How many may run at once.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// How many may wait, how long, and in which order.
    #[serde(default)]
    pub queue: QueueBounds,
    /// Which priority executions have, and what priorities are worth.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priorities,
    /// What is tried again; without it what lost workers ran, at once, three times in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How many executions of one user may wait or hold a slot; the next is refused with
    /// `USER_LIMIT_REACHED`. What names no user is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub per_user_limit: Option<u32>,
    /// How often executions may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// The shortest time between two starts, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_678_400_000_i64)]
    pub min_interval_ms: Option<u32>,
    /// How many are accepted in an hour, a day or a month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 8)]
    pub quotas: Vec<Quota>,
    /// By what the slots are shared among those who wait; without it who came first goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness: Option<Fairness>,
    /// What is told of the action as it happens, to whoever listens (`attune events`); nothing without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventName>,
}

fn is_default(priority: &Priorities) -> bool {
    *priority == Priorities::default()
}

/// How many executions of an action may hold a slot at once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The limit; without one it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub limit: Option<u32>,
    /// By what executions are grouped: those with the same values share `group_limit`. Places in a
    /// submission: `user`, `group`, `labels.NAME` or `parameters.NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Places)]
    pub group_by: Vec<String>,
    /// The limit of each group; not above `limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub group_limit: Option<u32>,
    /// How much of the limits an execution takes; without it, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// What becomes of an execution that comes when its limit is reached; `wait` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

/// What becomes of an execution that comes when the limit of its action, or of its group, is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// It waits.
    #[default]
    Wait,
    /// It is refused with `LIMIT_REACHED`.
    Reject,
    /// It waits; whoever of its group waits ends as `REPLACED`, and the oldest of those who run are asked
    /// to end, as many as it takes for it to have room.
    CancelRunning,
    /// It waits, and whoever of its group waits ends as `REPLACED`.
    ReplaceWaiting,
}

/// What becomes of an execution that comes when the queue of its action is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// It is refused with `QUEUE_FULL`.
    #[default]
    Reject,
    /// It is accepted, and who has waited longest of the lowest priority ends as `DROPPED`; nobody of a
    /// higher priority than its own.
    DropOldest,
}

/// How much of the limits an execution takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The place in a submission that says it, as in `group_by`. A submission that says something else
    /// than a whole number from 1 to `max` there is refused.
    pub path: String,
    /// What it is where nothing is said.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 65_535, default = 1)]
    pub default: u16,
    /// The most that may be said; not above the lowest of the limits.
    #[schema(minimum = 1, maximum = 65_535)]
    pub max: u16,
}

fn one() -> u16 {
    1
}

/// Bounds of an action's queue; what is not set follows the executor's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueBounds {
    /// How many executions may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub max_length: Option<u32>,
    /// How long an execution may wait, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub timeout_seconds: Option<u32>,
    /// By what executions stand in line; `priority` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<Ordering>,
    /// What becomes of an execution that comes when as many wait as may; `reject` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
}

/// The priority of some executions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityRule {
    /// What a submission must say, all of it: places, as in `concurrency.group_by`, `source` and `user.tier`,
    /// each with the value that must stand there, a list of which it must be one, or `{exists: true}`.
    #[schema(value_type = When)]
    pub when: BTreeMap<String, Value>,
    /// The priority that it has then.
    pub then: Priority,
}

/// By what the executions of an action stand in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// A higher priority goes first; within one, first in, first out.
    #[default]
    Priority,
    /// First in, first out, whatever the priority.
    Fifo,
}

/// Where a submission comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A person who waits for it.
    Interactive,
    /// A program.
    Api,
    /// Work that nobody waits for.
    Background,
}

/// Which priority executions have, and what priorities are worth.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Priorities {
    /// The priority of whatever asks for none and no rule is for; `normal` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Priority>,
    /// The highest priority that may be asked for: what asks for more has this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Priority>,
    /// The priority of what asks for none, by what it says: that of the first rule that is for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub rules: Vec<PriorityRule>,
    /// After how many seconds of waiting an execution stands where one of the next higher priority
    /// stands that comes then. Without it a lower priority waits as long as there is a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_678_400)]
    pub ageing_seconds: Option<u32>,
}
