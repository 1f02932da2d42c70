//! Who waits for which answer.

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use attune_core::{PartitionId, RequestId};
use attune_messages::v1::AnswerOutcome;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::lane::{Command, Ticket};
use attune_bus::port::Refusal;

/// How long it is remembered of a request that nobody waits for any more how many of its copies are
/// not answered: whoever repeats it must not take their refusals for that of the last one.
const REMEMBERED: Duration = Duration::from_mins(1);
/// How many such requests are remembered at most.
const MAX_REMEMBERED: usize = 100_000;

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

/// What is under way, and what was a moment ago.
#[derive(Default)]
struct Table {
    entries: HashMap<RequestId, Entry>,
    /// Requests that were left with copies that are not answered, the oldest first.
    left: VecDeque<(RequestId, Instant)>,
}

/// Callers that repeat a request while it is under way have one entry together: as their bodies
/// are equal, whichever answer comes first is right for all of them. A refusal is right only when
/// no copy of the request is left that its owner may accept.
struct Entry {
    /// What is asked for, while somebody waits.
    item: Option<Arc<RawValue>>,
    /// How often it was sent, or may have been.
    copies: u32,
    /// How many of them are refused.
    refused: u32,
    waiters: Vec<(Arc<Ticket>, oneshot::Sender<Outcome>)>,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the waiter with this ticket out of the table, if it is still there.
fn remove(
    table: &Mutex<Table>,
    request_id: RequestId,
    ticket: &Arc<Ticket>,
) -> Option<oneshot::Sender<Outcome>> {
    let mut table = lock(table);
    let entry = table.entries.get_mut(&request_id)?;
    let index = entry
        .waiters
        .iter()
        .position(|(other, _)| Arc::ptr_eq(other, ticket))?;
    let (_, sender) = entry.waiters.remove(index);
    if entry.waiters.is_empty() {
        entry.item = None;
        table.leave(request_id);
    }
    Some(sender)
}

impl Table {
    /// Nobody waits for a request any more.
    fn leave(&mut self, request_id: RequestId) {
        let now = Instant::now();
        self.left.push_back((request_id, now));
        while let Some((oldest, since)) = self.left.front().copied()
            && (self.left.len() > MAX_REMEMBERED || now.duration_since(since) > REMEMBERED)
        {
            self.left.pop_front();
            let is_left = |entry: &Entry| entry.waiters.is_empty();
            if self.entries.get(&oldest).is_some_and(is_left) {
                self.entries.remove(&oldest);
            }
        }
    }
}

impl Pending {
    /// Adds a waiter; `None` when the request id is in use with a different body.
    pub(super) fn add(&self, partition: PartitionId, command: &Command) -> Option<Waiter> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut table = lock(&self.table);
            let entry = table.entries.entry(command.request_id);
            let entry = entry.or_insert_with(|| Entry {
                item: None,
                copies: 0,
                refused: 0,
                waiters: Vec::with_capacity(1),
            });
            let item = entry.item.get_or_insert_with(|| Arc::clone(&command.item));
            if item.get() != command.item.get() {
                return None;
            }
            entry.copies += 1;
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

    /// One more copy of a command may be with its owner, who decides about each by itself.
    pub(super) fn copied(&self, request_id: RequestId) {
        if let Some(entry) = lock(&self.table).entries.get_mut(&request_id) {
            entry.copies += 1;
        }
    }

    /// Ends the wait of everyone under this request id, unless a copy may still be accepted;
    /// `false` when nobody waits.
    pub(super) fn answer(&self, request_id: RequestId, outcome: &AnswerOutcome) -> bool {
        let entry = {
            let entries = &mut lock(&self.table).entries;
            if let (Some(entry), AnswerOutcome::Rejected(_)) =
                (entries.get_mut(&request_id), outcome)
            {
                entry.refused += 1;
                if entry.refused < entry.copies {
                    return !entry.waiters.is_empty();
                }
            }
            entries.remove(&request_id)
        };
        let Some(entry) = entry.filter(|entry| !entry.waiters.is_empty()) else {
            return false;
        };
        for (index, (_, waiter)) in entry.waiters.into_iter().enumerate() {
            let mut outcome = outcome.clone();
            if let (1.., AnswerOutcome::Accepted(accepted)) = (index, &mut outcome) {
                accepted.repeated = true;
            }
            // One that has just given up needs no answer.
            drop(waiter.send(Outcome::Answered(outcome)));
        }
        true
    }

    /// Ends the wait for one command, if someone still waits for it.
    pub(super) fn fail(&self, command: &Command, outcome: Outcome) {
        if let Outcome::Refused(_) = outcome {
            self.not_sent(command.request_id);
        }
        if let Some(waiter) = remove(&self.table, command.request_id, &command.ticket) {
            drop(waiter.send(outcome));
        }
    }

    /// The bus has not taken a copy.
    fn not_sent(&self, request_id: RequestId) {
        if let Some(entry) = lock(&self.table).entries.get_mut(&request_id) {
            entry.copies = entry.copies.saturating_sub(1);
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

    /// The same command, to be sent once more.
    pub(super) fn command(&self) -> Command {
        self.command.again()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.command.ticket.abandon();
        drop(remove(
            &self.table,
            self.command.request_id,
            &self.command.ticket,
        ));
    }
}
