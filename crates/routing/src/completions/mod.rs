//! Completions: checked, mended so that they can be stored, and sent to the owners of their
//! partitions. Their order has no meaning.
//!
//! A completion is never refused for what it carries. Output with NUL characters, a result that
//! cannot be stored: they are mended, and the error text says so. A refused completion would keep
//! its slot until somebody looks.

mod mend;
#[cfg(test)]
mod tests;

use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use attune_messages::v1::{Completion, ExecutionCompleted, SlotRelease};
use attune_messages::{DecodeError, Envelope, message_bytes, words};
use serde_json::value::{RawValue, to_raw_value};

use crate::port::Arrived;
use crate::rules::{Item, Read, Rules};
use crate::senders::{Sender, Senders};

pub use mend::MIN_ITEM_BYTES;

/// Which attempt of which execution, and how it ended.
pub type Outcome = (ExecutionId, Attempt, Status);

/// The rules for completions.
#[derive(Debug, Clone)]
pub struct Completions {
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// Who may report.
    pub senders: Senders,
}

impl Rules for Completions {
    type In = ExecutionCompleted;
    type Out = SlotRelease;
    type Note = Outcome;
    const ORDERED: bool = false;
    const NAME: &'static str = "completion";

    fn senders(&self) -> &Senders {
        &self.senders
    }

    fn read(&self, arrived: &Arrived, max_bytes: usize) -> Read<Outcome> {
        let sender = match self.senders.judge(arrived.user.as_deref()) {
            // Somebody has looked at what is put back, and says that it counts. Beside that the API speaks for
            // its own workers alone.
            Ok(Sender::Impersonator(_)) if arrived.is_put_back() => Sender::Unknown,
            Ok(Sender::Impersonator(user)) => Sender::User(user),
            Ok(sender) => sender,
            Err(missing) => return Read::Garbage(missing.to_owned()),
        };
        match read(&arrived.body, max_bytes) {
            Err(error) if error.is_newer() => Read::Newer,
            Err(error) => Read::Garbage(error.to_string()),
            Ok(items) => {
                let room = max_bytes - message_bytes::<ExecutionCompleted>(0);
                let items = items.into_iter();
                Read::Items(
                    items
                        .map(|item| judge(item, sender, self.partitions, room))
                        .collect(),
                )
            }
        }
    }

    fn turn_back(item: &RawValue) -> Box<RawValue> {
        item.to_owned()
    }
}

fn judge(item: Completed, sender: Sender<'_>, partitions: u16, room: usize) -> Item<Outcome> {
    let completion = match item {
        Ok(completion) => completion,
        Err(bad) => {
            return Item::Refuse {
                item: bad.item,
                reason: bad.reason,
            };
        }
    };
    let to = match decide(&completion, partitions) {
        Ok(partition) => partition,
        Err(refusal) => {
            return Item::Refuse {
                item: to_raw_value(&completion)
                    .expect("completions have string keys and finite numbers"),
                reason: refusal.to_string(),
            };
        }
    };
    let note = (
        completion.execution_id,
        completion.attempt,
        completion.status,
    );
    let mended = mend::mend(for_owner(completion, sender), room);
    Item::Forward {
        to,
        item: mended.item,
        note,
        changed: mended.changed,
    }
}

/// Without what an owner does not need, and with who has reported it: by that the owner knows whether it
/// comes from whoever ran it.
fn for_owner(completion: Completion, sender: Sender<'_>) -> Completion {
    Completion {
        partition: None,
        broker_user: match sender {
            Sender::User(user) | Sender::Impersonator(user) => Some(user.to_owned()),
            Sender::Oneself => completion.broker_user,
            Sender::Unknown => None,
        },
        ..completion
    }
}

/// One item of a message: a completion, or what is there instead and why it is none.
type Completed = Result<Completion, Unreadable>;

/// An item that is not a completion.
#[derive(Debug)]
struct Unreadable {
    item: Box<RawValue>,
    reason: String,
}

/// The items of a message of at most `max_bytes`, at least one. Each stands for itself: one
/// that cannot be read does not take the others with it, whose slots would never be released.
///
/// # Errors
/// When the message as a whole cannot be read.
fn read(body: &[u8], max_bytes: usize) -> Result<Vec<Completed>, DecodeError> {
    let envelope = Envelope::parse(body, max_bytes)?;
    match envelope.items::<ExecutionCompleted>() {
        Ok(items) => Ok(items
            .into_iter()
            .map(|ExecutionCompleted(item)| Ok(item))
            .collect()),
        Err(error @ DecodeError::Payload { .. }) => {
            match serde_json::from_str::<Vec<Box<RawValue>>>(envelope.payload.get()) {
                Ok(items) => Ok(items.into_iter().map(read_item).collect()),
                // A single item, and that is not one.
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn read_item(item: Box<RawValue>) -> Completed {
    match serde_json::from_str(item.get()) {
        Ok(ExecutionCompleted(completion)) => Ok(completion),
        Err(error) => {
            let reason = format!("the item is not a completion: {}", words(&error));
            Err(Unreadable { item, reason })
        }
    }
}

/// Why a completion goes to the dead letters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum BadCompletion {
    #[error("`execution_id` {0} is not the id of an execution; take it from the request")]
    ExecutionId(ExecutionId),
    #[error("`execution_id` {id} is of partition {}, and the cluster has {partitions} of them", .id.partition().0)]
    NoPartition { id: ExecutionId, partitions: u16 },
    #[error("`attempt` is {0}; attempts count from 1, take it from the request")]
    Attempt(Attempt),
    #[error("`worker` is missing; it is the id under which the worker was granted the attempt")]
    Worker,
    #[error("`status` is {0}; a run ends as succeeded, failed, timed_out or cancelled")]
    Status(Status),
    #[error("`partition` is {given}, but `execution_id` {id} belongs to {actual}; leave it out")]
    OtherPartition {
        id: ExecutionId,
        given: PartitionId,
        actual: PartitionId,
    },
}

/// The partition whose owner must be told. Whether the execution exists, runs, and has this attempt
/// is not asked: only its owner knows, and it ignores what does not fit.
fn decide(completion: &Completion, partitions: u16) -> Result<PartitionId, BadCompletion> {
    let id = completion.execution_id;
    if id.0 <= 0 {
        return Err(BadCompletion::ExecutionId(id));
    }
    if completion.attempt < Attempt(1) {
        return Err(BadCompletion::Attempt(completion.attempt));
    }
    if !completion.status.is_reportable() {
        return Err(BadCompletion::Status(completion.status));
    }
    if completion.worker.is_none() {
        return Err(BadCompletion::Worker);
    }
    let actual = id.partition();
    if actual.0 >= partitions {
        return Err(BadCompletion::NoPartition { id, partitions });
    }
    match completion.partition {
        Some(given) if given != actual => Err(BadCompletion::OtherPartition { id, given, actual }),
        _ => Ok(actual),
    }
}
