//! Small stand-ins for the ports.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_api::{ApiFigures, Commands, Ports};
use attune_bus::MemoryBus;
use attune_commands::ClientError;
use attune_core::{
    Action, ActionId, ActionPolicy, ActionRef, ActionSpec, Attempt, Builtin, Epoch, ExecutionId,
    Explanation, PartitionId, Priority, Reject, RejectCode, RequestId, Run, Seq, Status,
    Submission, WaitBound, WorkerId,
};
use attune_messages::v1::{Accepted, ForceRelease};
use attune_store::{
    ActionStore, Applied, AuditEntry, Cursor, DeadLetter, ExecutionFilter, ExecutionPage,
    ExecutionRecord, ExecutionStore, ExecutorRow, HistoryRetention, Lease, OperationRecord,
    PauseChange, PauseSet, PolicyChange, Requeue, SlotHolder, Standing, Stock, StoreError,
    StoredStats, Violations, WorkerLease, WorkerRow,
};
use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Notify;

/// Which grants had begun, where that was said.
pub(crate) type Begun = Option<Vec<(ExecutionId, Attempt)>>;

/// What the fakes hold.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) actions: BTreeMap<ActionRef, Action>,
    pub(crate) executions: BTreeMap<ExecutionId, ExecutionRecord>,
    pub(crate) stats: Vec<StoredStats>,
    pub(crate) submitted: Vec<Submission>,
    /// Execution and digest by request.
    pub(crate) requests: HashMap<RequestId, (ExecutionId, i64)>,
    pub(crate) told: Vec<String>,
    pub(crate) leases: Vec<WorkerLease>,
    /// Who has retired, and what they said had begun.
    pub(crate) retired: Vec<(WorkerId, Begun)>,
    /// Slots taken back by force.
    pub(crate) released: Vec<ForceRelease>,
    /// How many executions wait of whoever is asked about.
    pub(crate) waiting: u32,
    pub(crate) holders: Vec<SlotHolder>,
    pub(crate) violations: Vec<Violations>,
    pub(crate) audit: Vec<AuditEntry>,
    pub(crate) partition_leases: Vec<Lease>,
    pub(crate) executors: Vec<ExecutorRow>,
    pub(crate) workers: Vec<WorkerRow>,
    /// How many executions a list asked for at once, at most.
    pub(crate) longest_step: u32,
    /// How often actions were read.
    pub(crate) action_reads: usize,
    /// What every command is answered instead of being carried out.
    pub(crate) commands_fail: Option<ClientError>,
    /// What owners say of why an execution does not run yet; without it, that they do not know it.
    pub(crate) explanation: Option<Explanation>,
    /// What an execution is by the time its owner's answer is read.
    pub(crate) after_explain: Option<Status>,
    /// What owners call an execution that they do not know.
    pub(crate) forgotten: Option<RejectCode>,
    /// The store cannot be reached.
    pub(crate) store_down: bool,
    /// Executions whose parameters cannot be read.
    pub(crate) unreadable: Vec<ExecutionId>,
    /// Every store call panics.
    pub(crate) store_panics: bool,
    /// The lease of every worker has expired.
    pub(crate) leases_expired: bool,
    /// What the probe says.
    pub(crate) probe: Option<String>,
    /// Owners take no submissions and no news of actions before this is notified.
    pub(crate) hold: Option<Arc<Notify>>,
    /// Owners answer no news of actions before the deadline.
    pub(crate) silent: bool,
    /// How many executions each action's queue takes.
    pub(crate) room: Option<usize>,
    /// The first answer of the owner is lost: who asks is asked again, and answered that it was accepted before.
    pub(crate) is_asked_twice: bool,
    pub(crate) letters: Vec<(DeadLetter, Vec<u8>)>,
    /// Letters that were about to be put back.
    pub(crate) begun: Vec<Requeue>,
    pub(crate) requeues: Vec<Requeue>,
    pub(crate) bus: MemoryBus,
    pub(crate) keys: Vec<attune_store::KeyRecord>,
    pub(crate) chain: Vec<attune_store::ChainLink>,
    /// What was written down by itself.
    pub(crate) noted: Vec<attune_store::NewAudit>,
    /// How often the store was asked for a key.
    pub(crate) key_reads: usize,
    pub(crate) pauses: PauseSet,
    pub(crate) pause_changes: Vec<PauseChange>,
    pub(crate) policies: crate::policies::Kept,
    pub(crate) operations: Vec<OperationRecord>,
    /// Nobody carries operations out.
    pub(crate) no_owner: bool,
    pub(crate) unreadable_operations: bool,
    /// What the server counts.
    pub(crate) figures: Arc<ApiFigures>,
}

/// All ports on one state; a clone is the same.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// Runs `f` on the state.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    pub(crate) fn store<T>(&self, f: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        // The panic comes outside of the lock, so that the state stays usable.
        if self.with(|state| state.store_panics) {
            panic!("secret words of a panic");
        }
        self.with(|state| {
            if state.store_down {
                return Err(StoreError::Unavailable("secret address".into()));
            }
            Ok(f(state))
        })
    }

    pub(crate) fn ports(&self) -> Ports {
        let all = Arc::new(self.clone());
        Ports {
            keys: all.clone(),
            actions: all.clone(),
            executions: all.clone(),
            workers: all.clone(),
            stats: all.clone(),
            audit: all.clone(),
            partitions: all.clone(),
            pauses: all.clone(),
            policies: all.clone(),
            operations: all.clone(),
            letters: all.clone(),
            bus: Arc::new(self.with(|state| state.bus.clone())),
            commands: all.clone(),
            probes: vec![all],
            health: None,
            live: None,
            figures: self.with(|state| Arc::clone(&state.figures)),
            spans: Default::default(),
            recorder: None,
        }
    }

    pub(crate) fn add_action(&self, action_ref: &str, change: impl FnOnce(&mut ActionSpec)) {
        let mut spec = ActionSpec::new(action_ref.parse().unwrap(), Run::Builtin(Builtin::Echo));
        change(&mut spec);
        self.with(|state| state.apply(&spec));
    }
}

impl State {
    pub(crate) fn apply(&mut self, spec: &ActionSpec) -> Applied {
        let old = self.actions.get(&spec.action_ref).cloned();
        let changed = old.as_ref().is_none_or(|old| old.spec != *spec);
        let next_id = i64::try_from(self.actions.len()).unwrap() + 1;
        let action = Action {
            id: old.as_ref().map_or(ActionId(next_id), |old| old.id),
            partition: PartitionId(0),
            version: old.as_ref().map_or(0, |old| old.version) + i64::from(changed),
            spec: spec.clone(),
        };
        self.actions.insert(spec.action_ref.clone(), action.clone());
        Applied {
            action,
            created: old.is_none(),
            changed,
        }
    }

    fn accept(
        &mut self,
        submission: Submission,
        wait_bound: Option<WaitBound>,
    ) -> Result<Accepted, Reject> {
        let request_id = submission.request_id.expect("the API names every request");
        if let Some((id, digest)) = self.requests.get(&request_id) {
            if *digest != submission.digest() {
                return Err(Reject::new(
                    RejectCode::Conflict,
                    "used before with another body",
                ));
            }
            return Ok(accepted(*id, true));
        }
        if let Some(bound) = wait_bound {
            bound.admits(0)?;
        }
        let waiting = self
            .submitted
            .iter()
            .filter(|other| other.action_ref == submission.action_ref)
            .count();
        if self.room.is_some_and(|room| waiting >= room) {
            return Err(Reject::queue_full(u32::try_from(waiting).unwrap()));
        }
        let id = execution_id(u32::try_from(self.submitted.len()).unwrap());
        self.requests.insert(request_id, (id, submission.digest()));
        self.submitted.push(submission);
        Ok(accepted(id, self.is_asked_twice))
    }
}

pub(crate) fn execution_id(n: u32) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq::new(Epoch(1), n))
}

pub(crate) fn accepted(id: ExecutionId, repeated: bool) -> Accepted {
    Accepted {
        execution_id: Some(id),
        status: Some(Status::Queued),
        position: Some(0),
        repeated,
        priority: None,
        explanation: None,
    }
}

/// A stored execution, `age` seconds old.
pub(crate) fn record(n: u32, status: Status, age: i64) -> ExecutionRecord {
    ExecutionRecord {
        id: execution_id(n),
        action_id: ActionId(1),
        action_ref: "core.echo".to_owned(),
        status,
        priority: Priority::Normal,
        attempt: Attempt(1),
        grant_no: None,
        request_id: RequestId::fresh(),
        enforcement_id: None,
        requested_by: None,
        group: None,
        labels: BTreeMap::new(),
        parameters: serde_json::json!({}),
        not_before: None,
        timeout_seconds: None,
        cancel_requested: false,
        worker: None,
        created: DateTime::from_timestamp(1_800_000_000, 0).unwrap() - TimeDelta::seconds(age),
        requested_at: None,
        started_at: None,
        finished_at: None,
        result: None,
        end_code: None,
        error: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        requeue_of: None,
        last_error: None,
        trace: None,
    }
}

#[async_trait]
impl Commands for Fake {
    async fn submit(
        &self,
        submissions: Vec<Submission>,
        wait_bound: Option<WaitBound>,
        _deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let hold = self.with(|state| state.hold.clone());
        if let Some(hold) = hold {
            hold.notified().await;
        }
        self.with(|state| {
            submissions
                .into_iter()
                .map(|submission| match &state.commands_fail {
                    Some(error) => Err(error.clone()),
                    None => state
                        .accept(submission, wait_bound)
                        .map_err(ClientError::Rejected),
                })
                .collect()
        })
    }

    async fn cancel(
        &self,
        execution_id: ExecutionId,
        _deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        self.with(|state| {
            if let Some(error) = &state.commands_fail {
                return Err(error.clone());
            }
            let known = state.executions.get_mut(&execution_id);
            match known.filter(|record| !record.status.is_terminal()) {
                // As an owner does: its worker will say how it ended.
                Some(record) if record.status == Status::Running => {
                    record.cancel_requested = true;
                    Ok(Accepted {
                        status: None,
                        ..accepted(execution_id, false)
                    })
                }
                Some(record) => {
                    record.status = Status::Cancelled;
                    Ok(Accepted {
                        status: Some(Status::Cancelled),
                        ..accepted(execution_id, false)
                    })
                }
                // As an owner does, who has forgotten what ended.
                None => Err(ClientError::Rejected(Reject::new(
                    state.forgotten.unwrap_or(RejectCode::AlreadyEnded),
                    "neither waits nor runs",
                ))),
            }
        })
    }

    async fn explain(
        &self,
        execution_id: ExecutionId,
        _deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        self.with(|state| state.explain(execution_id))
    }

    async fn force_release(
        &self,
        command: ForceRelease,
        _deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        self.with(|state| match &state.commands_fail {
            Some(error) => Err(error.clone()),
            None => {
                let id = command.execution_id;
                state.released.push(command);
                Ok(accepted(id, false))
            }
        })
    }

    async fn action_changed(
        &self,
        action_ref: &str,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        if self.with(|state| state.silent) {
            let never = std::future::pending::<()>();
            tokio::time::timeout(deadline, never).await.unwrap_err();
            return Err(ClientError::NotConfirmed {
                request_id: RequestId::fresh(),
                reason: "silence".to_owned(),
            });
        }
        let hold = self.with(|state| state.hold.clone());
        if let Some(hold) = hold {
            hold.notified().await;
        }
        self.with(|state| match &state.commands_fail {
            Some(error) => Err(error.clone()),
            None => {
                state.told.push(action_ref.to_owned());
                Ok(Accepted {
                    execution_id: None,
                    status: None,
                    position: None,
                    repeated: false,
                    priority: None,
                    explanation: None,
                })
            }
        })
    }

    async fn pauses_changed(
        &self,
        partitions: &[PartitionId],
        _deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        self.with(|state| state.tell_pauses(partitions))
    }

    async fn policies_changed(
        &self,
        set_version: i64,
        partitions: &[PartitionId],
        _deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        self.with(|state| state.tell_policies(set_version, partitions))
    }

    async fn operations_changed(
        &self,
        partitions: &[PartitionId],
        _deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        self.with(|state| state.carry_out(partitions))
    }
}

#[async_trait]
impl ActionStore for Fake {
    async fn apply_action(
        &self,
        spec: &ActionSpec,
        _partition_count: u16,
        _changed_by: &str,
    ) -> Result<Applied, StoreError> {
        self.store(|state| state.apply(spec))
    }

    async fn find_action(&self, action_ref: &ActionRef) -> Result<Option<Action>, StoreError> {
        self.store(|state| {
            state.action_reads += 1;
            state.actions.get(action_ref).cloned()
        })
    }

    async fn list_actions(
        &self,
        after: Option<&ActionRef>,
        limit: u32,
    ) -> Result<Vec<Action>, StoreError> {
        self.store(|state| {
            let after = after.map_or("", |after| after.as_str());
            let later = state
                .actions
                .values()
                .filter(|it| it.spec.action_ref.as_str() > after);
            later.take(limit as usize).cloned().collect()
        })
    }

    async fn policy_changes(&self, _action: ActionId) -> Result<Vec<PolicyChange>, StoreError> {
        self.store(|_| {
            vec![PolicyChange {
                version: 1,
                policy: ActionPolicy::default(),
                changed_by: "api".to_owned(),
                changed_at: Utc::now(),
            }]
        })
    }
}

#[async_trait]
impl ExecutionStore for Fake {
    async fn find_execution(&self, id: ExecutionId) -> Result<Option<ExecutionRecord>, StoreError> {
        if self.with(|state| state.unreadable.contains(&id)) {
            return Err(StoreError::Statement("missing chunk number 0".into()));
        }
        self.store(|state| state.executions.get(&id).cloned())
    }

    async fn find_standing(&self, id: ExecutionId) -> Result<Option<Standing>, StoreError> {
        self.store(|state| {
            let record = state.executions.get(&id)?;
            Some(Standing {
                status: record.status,
                attempt: record.attempt,
                worker: record.worker,
            })
        })
    }

    async fn find_parameters(&self, id: ExecutionId) -> Result<Option<String>, StoreError> {
        self.store(|state| Some(state.executions.get(&id)?.parameters.to_string()))
    }

    async fn list_executions(
        &self,
        filter: &ExecutionFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ExecutionPage, StoreError> {
        self.store(|state| {
            state.longest_step = state.longest_step.max(limit);
            let mut found: Vec<_> = state
                .executions
                .values()
                .filter(|it| filter.statuses.is_empty() || filter.statuses.contains(&it.status))
                .filter(|it| {
                    filter
                        .action_ref
                        .as_ref()
                        .is_none_or(|only| *only == it.action_ref)
                })
                .filter(|it| {
                    filter.requested_by.is_none() || filter.requested_by == it.requested_by
                })
                .filter(|it| after.is_none_or(|c| (it.created, it.id) < (c.created, c.id)))
                .cloned()
                .collect();
            found.sort_by_key(|it| std::cmp::Reverse((it.created, it.id)));
            let more = found.len() > limit as usize;
            found.truncate(limit as usize);
            let next = found.last().filter(|_| more);
            let next = next.map(|it| Cursor {
                created: it.created,
                id: it.id,
            });
            ExecutionPage {
                executions: found,
                next,
            }
        })
    }

    async fn slot_holders(
        &self,
        _action: ActionId,
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<Vec<SlotHolder>, StoreError> {
        self.store(|state| {
            let later = state.holders.iter();
            let later = later.filter(|it| after.is_none_or(|after| it.id > after));
            later.take(limit as usize).cloned().collect()
        })
    }

    async fn maintain_history(&self, _keep: HistoryRetention) -> Result<(), StoreError> {
        self.store(|_| ())
    }

    async fn stock(&self) -> Result<Stock, StoreError> {
        Err(StoreError::Statement("nobody asks".into()))
    }
}
