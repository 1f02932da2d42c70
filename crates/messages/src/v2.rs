//! Messages whose form has changed once: version 2, and what came with it.

use std::collections::BTreeMap;

use attune_core::trace::trace_or_nothing;
use attune_core::{
    ActionId, Attempt, EnvValue, Epoch, ExecutionId, OwnerId, PartitionId, Resources, Run,
    TraceParent, WorkerId, or_null,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::envelope::Message;

/// Names a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GrantKey {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
}

impl GrantKey {
    /// The same as a pair.
    pub fn pair(self) -> (ExecutionId, Attempt) {
        (self.execution_id, self.attempt)
    }
}

impl From<(ExecutionId, Attempt)> for GrantKey {
    fn from((execution_id, attempt): (ExecutionId, Attempt)) -> Self {
        Self {
            execution_id,
            attempt,
        }
    }
}

/// An execution that a worker may begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grant {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Its action.
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// What it is given; what is secret is sealed.
    pub parameters: Box<RawValue>,
    /// What to run.
    pub run: Run,
    /// How long it may run, in seconds.
    pub timeout_seconds: u32,
    /// Variables its program sees; what is secret is named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// What it may take of its machine; what is not said is the worker's to say.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Where it is granted ahead of its slot: how many executions of its action may run at once at this life. It
    /// begins when fewer do, after those of its action that were granted before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Of which trace it is a part: whoever runs it goes on with it.
    #[serde(
        default,
        deserialize_with = "trace_or_nothing",
        skip_serializing_if = "Option::is_none"
    )]
    pub traceparent: Option<TraceParent>,
}

impl Grant {
    /// Names it.
    pub fn key(&self) -> (ExecutionId, Attempt) {
        (self.execution_id, self.attempt)
    }
}

/// A part of what the owner of a partition tells one life of a worker: what it may begin, what is settled,
/// what it is to end. Owner → the worker's link. Its parts come true in the order in which they stand here.
#[derive(Debug, Clone, Serialize, Deserialize)]
// The next release of `scripts/try-upgrade` says more than earlier ones know: a worker is replaced after the executors,
// so a section can have new fields and no new version.
#[cfg_attr(attune_next, serde(tag = "of_the_next_release"))]
pub struct Section {
    /// For which life.
    pub worker: WorkerId,
    /// Who says it: reports about the partition go there.
    pub owner: OwnerId,
    /// Of which partition.
    pub partition: PartitionId,
    /// In which epoch of it.
    pub epoch: Epoch,
    /// Its place in the stream of the partition and epoch to this life, from 0 on.
    pub number: u64,
    /// Everything of the partition that the life holds, but for what this section and later ones grant, where
    /// that is to be compared; the first section of an epoch has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Vec<GrantKey>>,
    /// The sync is of executions after this one: it is a later part of one that no section could hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_after: Option<ExecutionId>,
    /// The sync is of executions up to this one, with it; the next section has the next part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_to: Option<ExecutionId>,
    /// What became of these is written down: they can be forgotten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<GrantKey>,
    /// These may begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// These are to be ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<GrantKey>,
    /// Of these actions everything that has not begun is to be given back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recall: Vec<ActionId>,
}

impl Message for Section {
    const TYPE: &'static str = "execution.requested";
    const VERSION: u32 = 2;
    // The first one named no worker.
    const OLDEST: u32 = 2;
}

/// A grant that never began at its worker, and never will.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnedGrant {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Why, for people.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub why: String,
    /// The id of the key that its worker lacks, where it comes back for want of that: its parameters are sealed
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks_key: Option<String>,
}

/// A run that has lasted for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartedGrant {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// For how long it has been running when this was written, in milliseconds.
    pub age_ms: u64,
}

/// What a worker tells an executor. Worker → `attune.reports`, with the executor's id as the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// Which life says it.
    pub worker: WorkerId,
    /// How many grants of other executors it has that have not ended.
    #[serde(default, deserialize_with = "or_null")]
    pub elsewhere: u32,
    /// Everything of this executor's partitions that is given back and not settled.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub returned: Vec<ReturnedGrant>,
    /// What runs.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub started: Vec<StartedGrant>,
    /// Of which partitions a section is missing.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resync: Vec<PartitionId>,
}

impl Message for WorkerReport {
    const TYPE: &'static str = "worker.report";
    // The next release of `scripts/try-upgrade` says it in a new version.
    const VERSION: u32 = if cfg!(attune_next) { 2 } else { 1 };
}

/// A worker has come, or is about to stop: a hint to look at the workers' leases. Worker → every executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerHello {
    /// Which life.
    pub worker: WorkerId,
    /// The pool that it serves.
    pub pool: String,
}

impl Message for WorkerHello {
    const TYPE: &'static str = "worker.hello";
    const VERSION: u32 = 1;
}
