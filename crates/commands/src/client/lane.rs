//! One lane per partition: at most one publish is outstanding, the rest gathers behind it.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, PoisonError};
use std::collections::VecDeque;
use std::time::Duration;

use attune_core::{PartitionId, RequestId, TraceParent};
use attune_messages::v1::{
    ActionChanged, Cancel, Explain, ForceRelease, OperationsChanged, PausesChanged,
    PoliciesChanged, Submit,
};
use attune_messages::{PackBounds, PackSize, Traces, encode_raw, encode_traced};
use chrono::Utc;
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Shared;
use super::pending::Outcome;
use attune_bus::confirm::{Patience, publish_until_confirmed};
use attune_bus::port::{Outgoing, Refusal, Topic};

/// The first pause after a publish that was not confirmed; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a command asks; a message holds commands of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Submit,
    Cancel,
    Explain,
    ForceRelease,
    ActionChanged,
    PausesChanged,
    PoliciesChanged,
    OperationsChanged,
}

impl Kind {
    /// An empty message of this kind.
    fn size(self, bounds: PackBounds) -> PackSize {
        match self {
            Self::Submit => PackSize::of::<Submit>(bounds),
            Self::Cancel => PackSize::of::<Cancel>(bounds),
            Self::Explain => PackSize::of::<Explain>(PackBounds {
                items: bounds.items.min(Explain::MAX_PACK),
                ..bounds
            }),
            Self::ForceRelease => PackSize::of::<ForceRelease>(bounds),
            Self::ActionChanged => PackSize::of::<ActionChanged>(bounds),
            Self::PausesChanged => PackSize::of::<PausesChanged>(bounds),
            Self::PoliciesChanged => PackSize::of::<PoliciesChanged>(bounds),
            Self::OperationsChanged => PackSize::of::<OperationsChanged>(bounds),
        }
    }

    fn encode(self, message_id: Uuid, items: &[&RawValue], traces: &Traces) -> Vec<u8> {
        let now = Utc::now();
        match self {
            Self::Submit => encode_traced::<Submit>(message_id, now, items, traces),
            Self::Cancel => encode_raw::<Cancel>(message_id, now, items),
            Self::Explain => encode_raw::<Explain>(message_id, now, items),
            Self::ForceRelease => encode_raw::<ForceRelease>(message_id, now, items),
            Self::ActionChanged => encode_raw::<ActionChanged>(message_id, now, items),
            Self::PausesChanged => encode_raw::<PausesChanged>(message_id, now, items),
            Self::PoliciesChanged => encode_raw::<PoliciesChanged>(message_id, now, items),
            Self::OperationsChanged => encode_raw::<OperationsChanged>(message_id, now, items),
        }
    }
}

/// What the caller and the lane know of each other.
pub(super) struct Ticket {
    /// Set by the caller when it stops waiting.
    abandoned: AtomicBool,
    /// Set by the lane when the bus has confirmed the command.
    confirmed: AtomicBool,
    /// Whether it is in the lane, for the first time or once more.
    is_under_way: AtomicBool,
    /// Returned when neither holds the ticket any more, so that callers who give up early
    /// cannot pile up commands behind a publish that hangs.
    _permit: OwnedSemaphorePermit,
}

impl Ticket {
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Puts it into the lane; `false` when it is there.
    pub(super) fn goes_out(&self) -> bool {
        !self.is_under_way.swap(true, Ordering::AcqRel)
    }

    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

/// An encoded command on its way.
pub(super) struct Command {
    kind: Kind,
    pub(super) request_id: RequestId,
    pub(super) item: Arc<RawValue>,
    /// Of which trace it is a part.
    trace: Option<TraceParent>,
    pub(super) ticket: Arc<Ticket>,
    /// Whether it was sent before: then its failure says nothing about the first.
    again: bool,
}

impl Command {
    pub(super) fn first(
        kind: Kind,
        request_id: RequestId,
        (item, trace): (Arc<RawValue>, Option<TraceParent>),
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let ticket = Arc::new(Ticket {
            abandoned: AtomicBool::new(false),
            confirmed: AtomicBool::new(false),
            is_under_way: AtomicBool::new(true),
            _permit: permit,
        });
        Self {
            kind,
            request_id,
            item,
            trace,
            ticket,
            again: false,
        }
    }

    pub(super) fn again(&self) -> Self {
        Self {
            kind: self.kind,
            request_id: self.request_id,
            item: Arc::clone(&self.item),
            trace: self.trace,
            ticket: Arc::clone(&self.ticket),
            again: true,
        }
    }

    pub(super) fn is_submission(&self) -> bool {
        self.kind == Kind::Submit
    }

    /// How many bytes of a message it takes.
    fn bytes(&self) -> usize {
        self.item.get().len() + self.trace.map_or(0, |_| Traces::BYTES)
    }

    fn is_wanted(&self) -> bool {
        !self.ticket.abandoned.load(Ordering::Acquire)
    }
}

/// Commands that wait for the publish before them.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Command>,
    /// Whether a task is sending; it looks here again before it ends.
    sending: bool,
}

impl Lane {
    /// The oldest commands of one kind that fit into one message, without those that nobody
    /// waits for. `None` when there are none, and then the sender is done.
    fn take_pack(&self, bounds: PackBounds) -> Option<Vec<Command>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pack: Vec<Command> = Vec::new();
        let mut size: Option<PackSize> = None;
        while let Some(next) = state.waiting.pop_front() {
            if !next.is_wanted() {
                continue;
            }
            let same_kind = pack.first().is_none_or(|first| first.kind == next.kind);
            let fits = size
                .get_or_insert_with(|| next.kind.size(bounds))
                .add(next.bytes());
            // One that no message can hold goes alone: the bus says what is wrong with it.
            let fits = match fits {
                Ok(fits) => fits && same_kind,
                Err(_) => pack.is_empty(),
            };
            if !fits {
                state.waiting.push_front(next);
                break;
            }
            pack.push(next);
        }
        if pack.is_empty() {
            state.sending = false;
            return None;
        }
        Some(pack)
    }
}

/// Puts commands into the lane of a partition and sees to it that they are sent.
pub(super) fn push(shared: &Arc<Shared>, partition: PartitionId, commands: Vec<Command>) {
    if commands.is_empty() {
        return;
    }
    {
        let lane = &shared.lanes[usize::from(partition.0)];
        let mut state = lane.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.extend(commands);
        if std::mem::replace(&mut state.sending, true) {
            return;
        }
    }
    tokio::spawn(send_all(Arc::clone(shared), partition));
}

/// Sends what is in a lane, pack after pack, until it is empty.
async fn send_all(shared: Arc<Shared>, partition: PartitionId) {
    let lane = &shared.lanes[usize::from(partition.0)];
    let bounds = PackBounds {
        items: shared.options.max_pack,
        bytes: shared.options.max_pack_bytes,
        max_bytes: shared.options.max_message_bytes,
    };
    while let Some(pack) = lane.take_pack(bounds) {
        send(&shared, partition, pack).await;
    }
}

/// What became of a message of commands.
enum Sent {
    /// It is confirmed, or refused, which was told.
    Over,
    /// It must not be sent once more, because somebody waits for a part of it no longer: the rest needs a
    /// message of its own.
    Rest(Vec<Command>),
    /// Nobody keeps calls of this partition now.
    Nowhere(Vec<Command>),
}

/// Publishes one pack until it is confirmed or refused, or until nobody waits for it. Later
/// commands stay behind it, so that order holds when the broker was away.
///
/// Calls end with the broker. Where their queue is gone with one of several brokers, they go where commands
/// are kept by all of them.
async fn send(shared: &Shared, partition: PartitionId, mut pack: Vec<Command>) {
    let mut pause = FIRST_PAUSE;
    let mut topic = Topic::Calls(partition);
    loop {
        match send_message(shared, &topic, pack, &mut pause).await {
            Sent::Over => return,
            Sent::Rest(rest) => {
                tokio::time::sleep(next(&mut pause)).await;
                pack = rest;
            }
            Sent::Nowhere(all) => {
                topic = Topic::Commands(partition);
                pack = all;
            }
        }
    }
}

/// The pause now; the next one is longer.
fn next(pause: &mut Duration) -> Duration {
    let now = *pause;
    *pause = LONGEST_PAUSE.min(now * 2);
    now
}

/// Publishes one message until it is confirmed or refused, or until it must not be sent once more.
async fn send_message(
    shared: &Shared,
    topic: &Topic,
    pack: Vec<Command>,
    pause: &mut Duration,
) -> Sent {
    let message_id = Uuid::now_v7();
    let is_call = matches!(topic, Topic::Calls(_));
    let pack = shared.pending.sending(pack, message_id, !is_call);
    let Some(kind) = pack.first().map(|command| command.kind) else {
        return Sent::Over;
    };
    let items: Vec<_> = pack.iter().map(|command| &*command.item).collect();
    let traces = Traces::of(pack.iter().map(|command| command.trace));
    let body = kind.encode(message_id, &items, &traces);
    let mut message = Outgoing::new(topic.clone(), message_id, body);
    message.reply_to = Some(shared.reply_address.clone());
    let mut attempts = 1;
    // Nobody stops it but those who wait for it.
    let never = CancellationToken::new();
    let published = publish_until_confirmed(
        &*shared.bus,
        vec![message],
        Patience::Refusals(1),
        &never,
        |error, _| {
            if !shared.pending.sending_again(&pack, message_id) {
                return None;
            }
            attempts += 1;
            tracing::warn!(
                bus.topic = %topic,
                commands = pack.len(),
                %error,
                "commands were not confirmed; sending them again"
            );
            Some(next(pause))
        },
    )
    .await;
    if published.is_all() {
        shared.pending.confirmed(&pack, message_id, attempts);
        for command in &pack {
            command.ticket.confirmed.store(true, Ordering::Release);
            command.ticket.is_under_way.store(false, Ordering::Release);
        }
        return Sent::Over;
    }
    let failure = match published.refused.into_iter().next() {
        Some(gone) if is_call && gone.why == Refusal::Unroutable => {
            if !gone.maybe_kept {
                for command in &pack {
                    shared.pending.not_sent(command.request_id, message_id);
                }
            }
            return Sent::Nowhere(pack);
        }
        // A refusal says nothing about an attempt before it.
        Some(gone) if gone.maybe_kept => {
            Outcome::Unknown("the bus refused it after an attempt that it did not confirm")
        }
        Some(gone) => Outcome::Refused(gone.why),
        None if published.closed => Outcome::Unknown("the bus was closed"),
        None => return Sent::Rest(pack),
    };
    for command in &pack {
        command.ticket.is_under_way.store(false, Ordering::Release);
        if let Outcome::Refused(_) = failure {
            shared.pending.not_sent(command.request_id, message_id);
        }
        if !command.again {
            shared.pending.fail(command, failure.clone());
        }
    }
    Sent::Over
}
