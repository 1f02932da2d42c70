//! Sends commands to the owners of partitions and waits for their answers.
//!
//! *Packing without delay.* A command that finds its partition idle is published at once. What
//! arrives while that publish is outstanding gathers and goes as one message when the confirm
//! returns. Order is kept per partition, over kinds of commands too.
//!
//! *What is known when.* A broker's confirm says that a command is on its way, an owner's answer says
//! what became of it. When neither came in time the outcome is unknown, and the caller repeats
//! the command under the same request id: the owner gives the first outcome again.
//!
//! *Commands and answers may get lost*: whoever waits for an answer has no need of a broker that writes
//! the question down, so that a call ends with the broker; the address for answers lives only as long
//! as a connection, and an owner may die between its commit and its answer. So a command without an
//! answer is sent once more under its request id, at once when the connection was made anew and else
//! ever more rarely; if it had been carried out, the owner says so (with `repeated`, even though this
//! caller has not seen the first answer). What was lost with the broker comes after what was sent
//! meanwhile.

mod answers;
mod copies;
mod error;
mod lane;
mod pending;
mod wait;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::time::Duration;

use attune_core::input::DEFAULT_MAX_BYTES;
use attune_core::{
    ExecutionId, PartitionId, Reject, RejectCode, RequestId, Submission, TraceParent, WaitBound,
};
use attune_messages::v1::{
    Accepted, ActionChanged, Cancel, Explain, ForceRelease, OnReject, OperationsChanged,
    PausesChanged, PoliciesChanged, Submit,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use attune_bus::port::{Bus, BusError, REPLY_PREFIX, Subscription, Topic};
pub use error::ClientError;
use lane::{Command, Kind, Lane};
use pending::{Pending, Waiter};
use wait::Deadline;

/// How many messages of answers may be on their way to one client.
const ANSWER_PREFETCH: u16 = 512;
/// What the frame around one item takes at most, in bytes; the frame alone has about 200.
const FRAME_BYTES: usize = 1024;

/// Bounds of a [`CommandClient`].
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// How many commands one message holds at most.
    pub max_pack: usize,
    /// How many bytes of commands one message holds at most; a larger command goes alone.
    pub max_pack_bytes: usize,
    /// How large a message may be that owners read, in bytes; a larger command is refused.
    pub max_message_bytes: usize,
    /// How many commands may be without an answer; above it: [`ClientError::Overloaded`].
    pub max_in_flight: usize,
}

impl ClientOptions {
    /// The usual bounds for a cluster of `partitions`.
    pub fn new(partitions: u16) -> Self {
        Self {
            partitions,
            max_pack: 64,
            max_pack_bytes: 512 * 1024,
            max_message_bytes: DEFAULT_MAX_BYTES,
            max_in_flight: 16_384,
        }
    }
}

/// What a client can tell about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientStats {
    /// Commands without an answer.
    pub in_flight: usize,
    /// Answers that nobody waited for any more: late ones and second ones.
    pub unmatched_answers: u64,
    /// Messages at the reply address that were not answers.
    pub unreadable_answers: u64,
}

/// Sends commands and waits for answers. A clone is the same client; when the last is dropped,
/// its reply address ends.
#[derive(Clone)]
pub struct CommandClient {
    shared: Arc<Shared>,
    _stop: Arc<DropGuard>,
}

impl fmt::Debug for CommandClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandClient")
            .field("reply_address", &self.shared.reply_address)
            .field("stats", &self.stats())
            .finish()
    }
}

struct Shared {
    bus: Arc<dyn Bus>,
    options: ClientOptions,
    reply_address: String,
    /// Commands that may still be taken; a permit is held until a command is neither waited
    /// for nor on its way.
    in_flight: Arc<Semaphore>,
    pending: Pending,
    lanes: Vec<Lane>,
    /// How often the address for answers was made anew.
    renewals: watch::Receiver<u64>,
    unmatched_answers: AtomicU64,
    unreadable_answers: AtomicU64,
}

impl CommandClient {
    /// Subscribes to an address of its own and starts to listen for answers.
    ///
    /// # Errors
    /// When the subscription cannot be made.
    ///
    /// # Panics
    /// When a bound of `options` is 0; settings refuse that before anything starts.
    pub async fn start(bus: Arc<dyn Bus>, options: ClientOptions) -> Result<Self, BusError> {
        assert!(
            options.partitions > 0,
            "a cluster has at least one partition"
        );
        assert!(options.max_pack > 0, "a message holds at least one command");
        assert!(
            options.max_in_flight > 0,
            "at least one command may be sent"
        );
        let reply_address = format!("{REPLY_PREFIX}{}", Uuid::now_v7());
        let answers = bus
            .subscribe(Subscription {
                topic: Topic::Reply(reply_address.clone()),
                prefetch: ANSWER_PREFETCH,
            })
            .await?;
        let shared = Arc::new(Shared {
            bus,
            reply_address,
            in_flight: Arc::new(Semaphore::new(options.max_in_flight)),
            pending: Pending::default(),
            lanes: (0..options.partitions).map(|_| Lane::default()).collect(),
            renewals: answers.renewals(),
            unmatched_answers: AtomicU64::new(0),
            unreadable_answers: AtomicU64::new(0),
            options,
        });
        let stop = CancellationToken::new();
        tokio::spawn(answers::listen(Arc::clone(&shared), answers, stop.clone()));
        Ok(Self {
            shared,
            _stop: Arc::new(stop.drop_guard()),
        })
    }

    /// Asks for an execution and waits until it is durably accepted, or refused. A request id
    /// is made where there is none. Dropping the future does not take the request back.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn submit(
        &self,
        submission: Submission,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        let deadline = Deadline::after(&self.shared, deadline);
        let (partition, prepared) = self.shared.prepare_submission(submission, None)?;
        self.send(partition, prepared, deadline).await
    }

    /// Asks for several executions, in their order per action, and waits for all outcomes,
    /// which have the order of the submissions. When [`ClientOptions::max_in_flight`] is
    /// reached, the rest of them is [`ClientError::Overloaded`].
    pub async fn submit_many(
        &self,
        submissions: Vec<Submission>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        self.submit_bounded(submissions, None, deadline).await
    }

    /// The same, where only so many executions of whoever asks may wait: each owner keeps it in its partition.
    pub async fn submit_bounded(
        &self,
        submissions: Vec<Submission>,
        wait_bound: Option<WaitBound>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let deadline = Deadline::after(&self.shared, deadline);
        let mut overloaded = false;
        let mut by_partition: Vec<_> = self.shared.lanes.iter().map(|_| Vec::new()).collect();
        let waiters = submissions
            .into_iter()
            .map(|submission| {
                let (partition, prepared) =
                    self.shared.prepare_submission(submission, wait_bound)?;
                if overloaded {
                    // One that is let in after another was not would change their order.
                    return Err(self.shared.overloaded());
                }
                let (waiter, command) =
                    self.shared
                        .register(partition, prepared)
                        .inspect_err(|error| {
                            overloaded = matches!(error, ClientError::Overloaded { .. });
                        })?;
                by_partition[usize::from(partition.0)].push(command);
                Ok(waiter)
            })
            .collect();
        for (partition, commands) in (0..).map(PartitionId).zip(by_partition) {
            lane::push(&self.shared, partition, commands);
        }
        wait::wait(&self.shared, waiters, deadline).await
    }

    /// Asks for the end of an execution, waiting or running. Its status afterwards says whether
    /// it has ended or is being ended.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        let deadline = Deadline::after(&self.shared, deadline);
        let partition = execution_id.partition();
        self.check_partition(execution_id)?;
        let request_id = RequestId::fresh();
        let item = Cancel {
            request_id,
            execution_id,
        };
        self.send(
            partition,
            Prepared::new(Kind::Cancel, request_id, &item),
            deadline,
        )
        .await
    }

    /// Asks why an execution does not run yet; nothing changes by it. Its owner refuses with `ALREADY_ENDED`
    /// when it neither waits nor holds a slot.
    ///
    /// # Errors
    /// See [`ClientError`]. An owner of an earlier release does not answer.
    pub async fn explain(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        let deadline = Deadline::after(&self.shared, deadline);
        self.check_partition(execution_id)?;
        let request_id = RequestId::fresh();
        let item = Explain {
            request_id,
            execution_id,
        };
        let prepared = Prepared::new(Kind::Explain, request_id, &item);
        self.send(execution_id.partition(), prepared, deadline)
            .await
    }

    /// Takes the slot from an attempt, whatever its worker says. Its status afterwards says what
    /// became of the execution.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn force_release(
        &self,
        command: ForceRelease,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        let deadline = Deadline::after(&self.shared, deadline);
        let (partition, request_id) = (command.execution_id.partition(), command.request_id);
        self.check_partition(command.execution_id)?;
        let prepared = Prepared::new(Kind::ForceRelease, request_id, &command);
        self.send(partition, prepared, deadline).await
    }

    /// Tells the owner of an action that its definition or policy has changed, and waits until
    /// the change is in force.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn action_changed(
        &self,
        action_ref: &str,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        let deadline = Deadline::after(&self.shared, deadline);
        let partition = PartitionId::of(action_ref, self.shared.options.partitions);
        let request_id = RequestId::fresh();
        let item = ActionChanged {
            request_id,
            action_ref: action_ref.to_owned(),
        };
        self.send(
            partition,
            Prepared::new(Kind::ActionChanged, request_id, &item),
            deadline,
        )
        .await
    }

    /// Tells the owners of these partitions that what operators hold has changed, and waits until
    /// each goes by it. The outcomes come in the order of the partitions.
    pub async fn pauses_changed(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let item = |request_id| PausesChanged { request_id };
        self.tell(Kind::PausesChanged, item, partitions, deadline)
            .await
    }

    /// Likewise of the policy documents, which have this version by now.
    pub async fn policies_changed(
        &self,
        set_version: i64,
        partitions: impl IntoIterator<Item = PartitionId>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let kind = Kind::PoliciesChanged;
        let item = |request_id| PoliciesChanged {
            request_id,
            set_version,
        };
        self.tell(kind, item, partitions, deadline).await
    }

    /// Tells the owners of these partitions that there are bulk operations that are new, and waits until
    /// each has heard it. The outcomes come in the order of the partitions.
    pub async fn operations_changed(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let item = |request_id| OperationsChanged { request_id };
        self.tell(Kind::OperationsChanged, item, partitions, deadline)
            .await
    }

    async fn tell<T: Serialize>(
        &self,
        kind: Kind,
        item: impl Fn(RequestId) -> T,
        partitions: impl IntoIterator<Item = PartitionId>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let deadline = Deadline::after(&self.shared, deadline);
        let tell = |partition| {
            let request_id = RequestId::fresh();
            let prepared = Prepared::new(kind, request_id, &item(request_id));
            let (waiter, command) = self.shared.register(partition, prepared)?;
            lane::push(&self.shared, partition, vec![command]);
            Ok(waiter)
        };
        let waiters = partitions.into_iter().map(tell).collect();
        wait::wait(&self.shared, waiters, deadline).await
    }

    /// What it can tell about itself now.
    pub fn stats(&self) -> ClientStats {
        let shared = &self.shared;
        ClientStats {
            in_flight: shared.options.max_in_flight - shared.in_flight.available_permits(),
            unmatched_answers: shared.unmatched_answers.load(Ordering::Relaxed),
            unreadable_answers: shared.unreadable_answers.load(Ordering::Relaxed),
        }
    }

    /// No owner would ever answer for a partition that the cluster does not have.
    fn check_partition(&self, execution_id: ExecutionId) -> Result<(), ClientError> {
        if execution_id.partition().0 < self.shared.options.partitions {
            return Ok(());
        }
        Err(ClientError::Rejected(Reject::new(
            RejectCode::UnknownExecution,
            format!("there is no execution {execution_id}"),
        )))
    }

    async fn send(
        &self,
        partition: PartitionId,
        prepared: Prepared,
        deadline: Deadline,
    ) -> Result<Accepted, ClientError> {
        let (waiter, command) = self.shared.register(partition, prepared)?;
        lane::push(&self.shared, partition, vec![command]);
        let mut outcomes = wait::wait(&self.shared, vec![Ok(waiter)], deadline).await;
        outcomes.pop().expect("one waiter has one outcome")
    }
}

/// A command in its encoded form.
struct Prepared {
    kind: Kind,
    request_id: RequestId,
    item: Arc<RawValue>,
    trace: Option<TraceParent>,
}

impl Prepared {
    fn new<T: Serialize>(kind: Kind, request_id: RequestId, item: &T) -> Self {
        let item = serde_json::value::to_raw_value(item)
            .expect("commands have string keys and finite numbers");
        Self {
            kind,
            request_id,
            item: Arc::from(item),
            trace: None,
        }
    }
}

impl Shared {
    fn prepare_submission(
        &self,
        mut submission: Submission,
        wait_bound: Option<WaitBound>,
    ) -> Result<(PartitionId, Prepared), ClientError> {
        let request_id = *submission.request_id.get_or_insert_with(RequestId::fresh);
        let partition = PartitionId::of(&submission.action_ref, self.options.partitions);
        let trace = submission.trace;
        let item = Submit {
            submission,
            on_reject: OnReject::Answer,
            wait_bound,
        };
        let prepared = Prepared {
            trace,
            ..Prepared::new(Kind::Submit, request_id, &item)
        };
        let bytes = prepared.item.get().len();
        let max = self.options.max_message_bytes.saturating_sub(FRAME_BYTES);
        if bytes > max {
            // Its owner could not read it, and would have no request id to answer to.
            return Err(ClientError::Rejected(Reject::field(
                "parameters",
                format!("the request has {bytes} bytes; at most {max} are allowed"),
            )));
        }
        Ok((partition, prepared))
    }

    /// Takes a command into account: from here on an answer finds its waiter.
    fn register(
        &self,
        partition: PartitionId,
        prepared: Prepared,
    ) -> Result<(Waiter, Command), ClientError> {
        let permit = Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| self.overloaded())?;
        let Prepared {
            kind,
            request_id,
            item,
            trace,
        } = prepared;
        let command = Command::first(kind, request_id, (item, trace), permit);
        let waiter = self.pending.add(partition, &command).ok_or_else(|| {
            ClientError::Rejected(Reject::new(
                RejectCode::Conflict,
                format!("request id {request_id} is in use with a different body"),
            ))
        })?;
        Ok((waiter, command))
    }

    fn overloaded(&self) -> ClientError {
        ClientError::Overloaded {
            max_in_flight: self.options.max_in_flight,
            retry_after_seconds: 1,
        }
    }
}
