//! Who waits for which answer.

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::collections::HashMap;

use attune_core::{PartitionId, RequestId};
use attune_messages::v1::{Answer, AnswerOutcome};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::lane::{Command, Ticket};
use attune_bus::port::Refusal;

/// How the wait for a command ends.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The owner has answered.
    Answered(AnswerOutcome),
    /// The bus did not take it, so that nothing was done.
    Refused(Refusal),
    /// It may have been carried out or not, for this reason, and waiting longer is of no use.
    Unknown(&'static str),
}

/// All commands that someone waits for.
#[derive(Default)]
pub(super) struct Pending {
    table: Arc<Mutex<Table>>,
}

type Table = HashMap<RequestId, Entry>;

/// Callers that repeat a request while it is under way have one entry together: as their bodies
/// are equal, whichever answer comes first is right for all of them. A refusal is right only when
/// no copy of the request is left that its owner may accept.
struct Entry {
    /// What is asked for.
    item: Arc<RawValue>,
    is_submission: bool,
    /// The messages that hold it, the last one last; its owner decides about each by itself, in this
    /// order.
    copies: Vec<MessageCopy>,
    waiters: Vec<(Arc<Ticket>, oneshot::Sender<Outcome>)>,
}

/// One message with a command.
struct MessageCopy {
    message_id: Uuid,
    /// How often it was sent: without a confirm the broker may have it twice.
    attempts: u32,
    /// How often it was refused.
    refused: u32,
}

impl MessageCopy {
    /// Whether every attempt that the broker may have is refused.
    fn is_refused(&self) -> bool {
        self.refused >= self.attempts
    }
}

impl Entry {
    /// Notes the refusal of a copy; whether it is the last word.
    ///
    /// Of a submission that is the refusal of its last copy: those before it are decided by then, and
    /// had one of them been accepted, so would this one have been. What else is asked for is done once,
    /// so that its second copy is refused when the first has done it: there all copies count, as they
    /// do for an owner of an earlier release, which does not say what it refuses.
    fn is_refused(&mut self, message_id: Option<Uuid>) -> bool {
        let is_it = |copy: &&mut MessageCopy| match message_id {
            Some(message_id) => copy.message_id == message_id,
            None => !copy.is_refused(),
        };
        if let Some(copy) = self.copies.iter_mut().find(is_it) {
            copy.refused += 1;
        }
        if self.is_submission && message_id.is_some() {
            self.copies.last().is_some_and(MessageCopy::is_refused)
        } else {
            self.copies.iter().all(MessageCopy::is_refused)
        }
    }

    /// Whether it has sent this message.
    fn knows(&self, message_id: Uuid) -> bool {
        self.copies.iter().any(|copy| copy.message_id == message_id)
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the waiter with this ticket out of the table, if it is still there; with the last waiter
/// goes the entry.
fn remove(
    table: &mut Table,
    request_id: RequestId,
    ticket: &Arc<Ticket>,
) -> Option<oneshot::Sender<Outcome>> {
    let entry = table.get_mut(&request_id)?;
    let index = entry
        .waiters
        .iter()
        .position(|(other, _)| Arc::ptr_eq(other, ticket))?;
    let (_, sender) = entry.waiters.remove(index);
    if entry.waiters.is_empty() {
        table.remove(&request_id);
    }
    Some(sender)
}

impl Pending {
    /// Adds a waiter; `None` when the request id is in use with a different body.
    pub(super) fn add(&self, partition: PartitionId, command: &Command) -> Option<Waiter> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut table = lock(&self.table);
            let entry = table.entry(command.request_id).or_insert_with(|| Entry {
                item: Arc::clone(&command.item),
                is_submission: command.is_submission(),
                copies: Vec::with_capacity(1),
                waiters: Vec::with_capacity(1),
            });
            if entry.item.get() != command.item.get() {
                return None;
            }
            entry.waiters.push((Arc::clone(&command.ticket), sender));
        }
        let table = Arc::clone(&self.table);
        Some(Waiter {
            table,
            partition,
            command: command.again(),
            receiver,
        })
    }

    /// A command is about to be sent in this message; `false` when nobody waits for it any more, and
    /// then it must not be: its refusal may have been told.
    pub(super) fn sending(&self, command: &Command, message_id: Uuid) -> bool {
        let mut table = lock(&self.table);
        let entry = table.get_mut(&command.request_id);
        let waits = |entry: &&mut Entry| {
            let mut tickets = entry.waiters.iter().map(|(ticket, _)| ticket);
            tickets.any(|ticket| Arc::ptr_eq(ticket, &command.ticket))
        };
        let Some(entry) = entry.filter(waits) else {
            return false;
        };
        entry.copies.push(MessageCopy {
            message_id,
            attempts: 1,
            refused: 0,
        });
        true
    }

    /// The message is sent once more: the broker may have it already.
    pub(super) fn sending_again(&self, request_id: RequestId, message_id: Uuid) {
        if let Some(entry) = lock(&self.table).get_mut(&request_id) {
            let mut copies = entry.copies.iter_mut();
            if let Some(copy) = copies.find(|copy| copy.message_id == message_id) {
                copy.attempts += 1;
            }
        }
    }

    /// The bus has not taken the message, in none of its attempts.
    pub(super) fn not_sent(&self, request_id: RequestId, message_id: Uuid) {
        if let Some(entry) = lock(&self.table).get_mut(&request_id) {
            entry.copies.retain(|copy| copy.message_id != message_id);
        }
    }

    /// Ends the wait of everyone under this request id, unless a copy may still be accepted;
    /// `false` when nobody waits for it.
    pub(super) fn answer(&self, answer: &Answer) -> bool {
        let entry = {
            let mut table = lock(&self.table);
            let Some(entry) = table.get_mut(&answer.request_id) else {
                return false;
            };
            // To a message of somebody who has given up, maybe with another body.
            if answer.message_id.is_some_and(|id| !entry.knows(id)) {
                return false;
            }
            let is_refusal = matches!(answer.outcome, AnswerOutcome::Rejected(_));
            if is_refusal && !entry.is_refused(answer.message_id) {
                return true;
            }
            table.remove(&answer.request_id)
        };
        let waiters = entry.into_iter().flat_map(|entry| entry.waiters);
        for (index, (_, waiter)) in waiters.enumerate() {
            let mut outcome = answer.outcome.clone();
            if let (1.., AnswerOutcome::Accepted(accepted)) = (index, &mut outcome) {
                accepted.repeated = true;
            }
            // One that has just given up needs no answer.
            drop(waiter.send(Outcome::Answered(outcome)));
        }
        true
    }

    /// Ends the wait for one command, if someone still waits for it. A refusal by the bus says nothing
    /// of the copies that it took.
    pub(super) fn fail(&self, command: &Command, outcome: Outcome) {
        let mut table = lock(&self.table);
        let entry = table.get(&command.request_id);
        let is_with_owner = entry.is_some_and(|entry| !entry.copies.is_empty());
        let outcome = match outcome {
            Outcome::Refused(_) if is_with_owner => {
                Outcome::Unknown("the bus refused one copy of it, and has another")
            }
            outcome => outcome,
        };
        let waiter = remove(&mut table, command.request_id, &command.ticket);
        drop(table);
        if let Some(waiter) = waiter {
            drop(waiter.send(outcome));
        }
    }

    /// Ends the wait of everyone.
    pub(super) fn fail_all(&self, outcome: &Outcome) {
        let all = std::mem::take(&mut *lock(&self.table));
        for (_, waiter) in all.into_values().flat_map(|entry| entry.waiters) {
            drop(waiter.send(outcome.clone()));
        }
    }
}

/// The wait for one command. Dropping it ends the wait: a command that is still in its lane is
/// then not sent at all.
pub(super) struct Waiter {
    table: Arc<Mutex<Table>>,
    partition: PartitionId,
    command: Command,
    receiver: oneshot::Receiver<Outcome>,
}

impl Waiter {
    pub(super) fn partition(&self) -> PartitionId {
        self.partition
    }

    pub(super) fn request_id(&self) -> RequestId {
        self.command.request_id
    }

    /// Whether the bus has confirmed the command.
    pub(super) fn is_confirmed(&self) -> bool {
        self.command.ticket.is_confirmed()
    }

    /// How the wait ends. Cancel safe; not to be asked again once it has.
    pub(super) async fn outcome(&mut self) -> Outcome {
        // The sender is dropped unused only together with the table.
        (&mut self.receiver)
            .await
            .unwrap_or(Outcome::Unknown("the client has ended"))
    }

    /// The same command, to be sent once more.
    pub(super) fn command(&self) -> Command {
        self.command.again()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.command.ticket.abandon();
        drop(remove(
            &mut lock(&self.table),
            self.command.request_id,
            &self.command.ticket,
        ));
    }
}
