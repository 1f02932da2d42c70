//! Who waits for which answer.

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use attune_core::{PartitionId, Reject, RequestId};
use attune_messages::v1::{Answer, AnswerOutcome};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::copies::Copies;
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

/// How long it is remembered that a call has left a message that may still come: far longer than a
/// broker or a network holds one back.
const STRAYS_FOR: Duration = Duration::from_mins(10);
/// How many such requests are remembered at most.
const MAX_STRAYS: usize = 100_000;

/// All commands that someone waits for.
#[derive(Default)]
pub(super) struct Pending {
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<RequestId, Entry>,
    /// Requests of which a message may still come, and when that was noted last.
    strays: HashMap<RequestId, Instant>,
    /// The same in the order in which they were noted.
    noted: VecDeque<(RequestId, Instant)>,
}

/// Callers that repeat a request while it is under way have one entry together: as their bodies
/// are equal, whichever answer comes first is right for all of them. A refusal is right only when
/// no copy of the request is left that its owner may accept.
struct Entry {
    /// What is asked for.
    item: Arc<RawValue>,
    is_submission: bool,
    copies: Copies,
    waiters: Vec<(Arc<Ticket>, oneshot::Sender<Outcome>)>,
}

impl Entry {
    /// Whether somebody waits for this very command.
    fn awaits(&self, command: &Command) -> bool {
        let mut tickets = self.waiters.iter().map(|(ticket, _)| ticket);
        tickets.any(|ticket| Arc::ptr_eq(ticket, &command.ticket))
    }

    /// Ends the wait of everyone.
    fn tell(self, outcome: &AnswerOutcome) {
        for (index, (_, waiter)) in self.waiters.into_iter().enumerate() {
            let mut outcome = outcome.clone();
            if let (1.., AnswerOutcome::Accepted(accepted)) = (index, &mut outcome) {
                accepted.repeated = true;
            }
            // One that has just given up needs no answer.
            drop(waiter.send(Outcome::Answered(outcome)));
        }
    }
}

impl Table {
    /// The entry of a command that somebody waits for.
    fn awaited(&mut self, command: &Command) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&command.request_id)?;
        entry.awaits(command).then_some(entry)
    }

    /// Takes the waiter with this ticket out, if it is still there; with the last waiter goes the
    /// entry.
    fn remove(
        &mut self,
        request_id: RequestId,
        ticket: &Arc<Ticket>,
    ) -> Option<oneshot::Sender<Outcome>> {
        let entry = self.entries.get_mut(&request_id)?;
        let index = entry
            .waiters
            .iter()
            .position(|(other, _)| Arc::ptr_eq(other, ticket))?;
        let (_, sender) = entry.waiters.remove(index);
        if entry.waiters.is_empty()
            && let Some(entry) = self.entries.remove(&request_id)
            && entry.is_submission
            && entry.copies.leaves_stray()
        {
            self.note_stray(request_id);
        }
        Some(sender)
    }

    fn note_stray(&mut self, request_id: RequestId) {
        let now = Instant::now();
        self.strays.insert(request_id, now);
        self.noted.push_back((request_id, now));
        self.forget_strays(now);
    }

    /// Forgets what was noted too long ago, and the oldest where there are too many.
    fn forget_strays(&mut self, now: Instant) {
        while let Some((request_id, noted)) = self.noted.front().copied()
            && (self.noted.len() > MAX_STRAYS || now.duration_since(noted) > STRAYS_FOR)
        {
            self.noted.pop_front();
            // It may have been noted again since.
            if self.strays.get(&request_id) == Some(&noted) {
                self.strays.remove(&request_id);
            }
        }
    }

    /// Whether an earlier call has left a message that may still come.
    fn has_stray(&mut self, request_id: RequestId) -> bool {
        self.forget_strays(Instant::now());
        self.strays.contains_key(&request_id)
    }

    /// The entry, when all that is left of it is a refusal to be told.
    fn take_refused(&mut self, request_id: RequestId) -> Option<(Entry, Reject)> {
        let entry = self.entries.get(&request_id)?;
        let reject = entry.copies.last_word(entry.is_submission)?.clone();
        Some((self.entries.remove(&request_id)?, reject))
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Adds a waiter; `None` when the request id is in use with a different body.
    pub(super) fn add(&self, partition: PartitionId, command: &Command) -> Option<Waiter> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut table = lock(&self.table);
            if !table.entries.contains_key(&command.request_id) {
                let has_stray = table.has_stray(command.request_id);
                let entry = Entry {
                    item: Arc::clone(&command.item),
                    is_submission: command.is_submission(),
                    copies: Copies::new(has_stray),
                    waiters: Vec::with_capacity(1),
                };
                table.entries.insert(command.request_id, entry);
            }
            let entry = table.entries.get_mut(&command.request_id)?;
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

    /// Commands are about to be sent in this message, maybe another way than those before it; gives those
    /// that somebody still waits for. The others must not be: their refusal may have been told.
    pub(super) fn sending(
        &self,
        mut pack: Vec<Command>,
        message_id: Uuid,
        is_aside: bool,
    ) -> Vec<Command> {
        let mut table = lock(&self.table);
        pack.retain(|command| {
            let entry = table.awaited(command);
            entry
                .map(|entry| entry.copies.sending(message_id, is_aside))
                .is_some()
        });
        pack
    }

    /// The message is to be sent once more, of which the broker may have the first attempt; `false`
    /// when somebody waits no more, and then it must not be.
    pub(super) fn sending_again(&self, pack: &[Command], message_id: Uuid) -> bool {
        let mut table = lock(&self.table);
        if !pack.iter().all(|command| table.awaited(command).is_some()) {
            return false;
        }
        for command in pack {
            if let Some(entry) = table.awaited(command) {
                entry.copies.sending(message_id, false);
            }
        }
        true
    }

    /// The bus has confirmed the message, after so many attempts.
    pub(super) fn confirmed(&self, pack: &[Command], message_id: Uuid, attempts: u32) {
        let mut table = lock(&self.table);
        for command in pack {
            if let Some(entry) = table.entries.get_mut(&command.request_id) {
                entry.copies.confirmed(message_id, attempts);
            }
        }
    }

    /// The bus has not taken the message, in none of its attempts.
    pub(super) fn not_sent(&self, request_id: RequestId, message_id: Uuid) {
        let over = {
            let mut table = lock(&self.table);
            if let Some(entry) = table.entries.get_mut(&request_id) {
                entry.copies.not_sent(message_id);
            }
            table.take_refused(request_id)
        };
        if let Some((entry, reject)) = over {
            entry.tell(&AnswerOutcome::Rejected(reject));
        }
    }

    /// Ends the wait of everyone under this request id, unless a copy may still be accepted;
    /// `false` when nobody waits for it.
    pub(super) fn answer(&self, answer: &Answer) -> bool {
        let over = {
            let mut table = lock(&self.table);
            let Some(entry) = table.entries.get_mut(&answer.request_id) else {
                return false;
            };
            // To a message of somebody who has given up, maybe with another body.
            if answer.message_id.is_some_and(|id| !entry.copies.knows(id)) {
                return false;
            }
            match &answer.outcome {
                AnswerOutcome::Accepted(_) => table.entries.remove(&answer.request_id),
                AnswerOutcome::Rejected(reject) => {
                    entry.copies.refused(answer.message_id, reject);
                    let over = table.take_refused(answer.request_id);
                    over.map(|(entry, _)| entry)
                }
            }
        };
        if let Some(entry) = over {
            entry.tell(&answer.outcome);
        }
        true
    }

    /// Ends the wait for one command, if someone still waits for it. A refusal by the bus says nothing
    /// of the copies that it took.
    pub(super) fn fail(&self, command: &Command, outcome: Outcome) {
        let mut table = lock(&self.table);
        let entry = table.entries.get(&command.request_id);
        let is_with_owner = entry.is_some_and(|entry| !entry.copies.is_empty());
        let outcome = match outcome {
            Outcome::Refused(_) if is_with_owner => {
                Outcome::Unknown("the bus refused one copy of it, and has another")
            }
            outcome => outcome,
        };
        let waiter = table.remove(command.request_id, &command.ticket);
        drop(table);
        if let Some(waiter) = waiter {
            drop(waiter.send(outcome));
        }
    }

    /// Ends the wait of everyone.
    pub(super) fn fail_all(&self, outcome: &Outcome) {
        let all = std::mem::take(&mut lock(&self.table).entries);
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

    /// The same command, to be sent once more; none while a copy of it waits to be sent.
    pub(super) fn again(&self) -> Option<Command> {
        let goes_out = self.command.ticket.goes_out();
        goes_out.then(|| self.command.again())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.command.ticket.abandon();
        let (request_id, ticket) = (self.command.request_id, &self.command.ticket);
        drop(lock(&self.table).remove(request_id, ticket));
    }
}
