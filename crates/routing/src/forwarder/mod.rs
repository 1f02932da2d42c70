//! Brings what came out of messages to its targets, and says when a message is done with.

mod lane;
mod relief;
mod send;
mod waits;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use attune_messages::{Copies, MessageCopy, PackBounds, message_bytes};
use uuid::Uuid;

use crate::port::{Arrived, CallId, DeliveryId, Message, Now, Output, Target};
use crate::router::{Ids, Letter, Part};
use crate::rules::Rules;
use lane::{Carries, Lane, Parcel, Waiting};
use waits::Waits;

/// What is kept of a reason, in bytes; it may quote what was wrong, of any length.
const REASON_BYTES: usize = 400;

/// How many publishes to one partition may be on their way at once. With one, a completion would wait
/// until those before it are confirmed, and the slot that it frees with it.
const MAX_ON_THE_WAY: usize = 4;

/// Bounds of a relay.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Items in one message, at most.
    pub max_items: usize,
    /// Bytes that a message with several items is filled to.
    pub pack_bytes: usize,
    /// The largest message that is read or sent, in bytes.
    pub max_message_bytes: usize,
    /// Messages that may be unacknowledged: the prefetch.
    pub window: usize,
    /// Bytes of bodies that may be unacknowledged before nothing more is wanted.
    pub window_bytes: usize,
}

/// A message that is not acknowledged.
struct Held {
    bytes: usize,
    /// Parts that are not settled.
    open: usize,
}

/// A message that waits for a newer program, which is a copy of what it says.
struct Newer<N> {
    since: Duration,
    copy: MessageCopy,
    parcel: Parcel<N>,
}

/// A publish on its way.
struct Sent<N> {
    to: Target,
    parcels: Vec<Parcel<N>>,
}

/// See the [module](self).
pub(crate) struct Forwarder<R: Rules> {
    bounds: Bounds,
    held: HashMap<DeliveryId, Held>,
    held_bytes: usize,
    lanes: BTreeMap<Target, Lane<R::Note>>,
    /// What waits for a newer program, the oldest first.
    newer: VecDeque<Newer<R::Note>>,
    /// Which copies of such messages there were.
    copies: Copies,
    /// Which of them wait, here or in the topic.
    waits: Waits,
    /// When one of those was last seen.
    newer_seen: Option<Duration>,
    sent: BTreeMap<CallId, Sent<R::Note>>,
    calls: u64,
    /// Not before then is something put back to make room.
    next_relief: Duration,
    /// Not before then do messages of a newer version go back.
    next_back: Duration,
    /// The time of the last step.
    elapsed: Duration,
    stopping: bool,
    closed: bool,
    done: Vec<DeliveryId>,
    /// What is published again and again, before anything else, when that bug is planted.
    looping: Option<Target>,
}

impl<R: Rules> Forwarder<R> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            held: HashMap::new(),
            held_bytes: 0,
            lanes: BTreeMap::new(),
            newer: VecDeque::new(),
            copies: Copies::default(),
            waits: Waits::default(),
            newer_seen: None,
            sent: BTreeMap::new(),
            calls: 0,
            next_relief: Duration::ZERO,
            next_back: Duration::ZERO,
            elapsed: Duration::ZERO,
            stopping: false,
            closed: false,
            done: Vec::new(),
            looping: None,
        }
    }

    /// Puts what came out of a message where it waits.
    pub(crate) fn take(&mut self, now: Now, arrived: &Arrived, parts: Vec<Part<R::Note>>) {
        let bytes = arrived.body.len();
        let open = parts.len();
        self.held_bytes += bytes;
        self.held.insert(arrived.id, Held { bytes, open });
        for part in parts {
            match part {
                Part::Item(partition, item, note) => {
                    let waiting = Waiting {
                        item,
                        note,
                        delivery: arrived.id,
                        reply_to: arrived.reply_to.clone(),
                    };
                    self.lane(Target::Partition(partition))
                        .items
                        .push_back(waiting);
                }
                Part::Letter(letter) => self.bury(arrived, letter),
                Part::Newer(message_id) => self.keep_newer(now, arrived, message_id),
            }
        }
    }

    /// Keeps a message that only a newer program can read, unless a later copy of it was seen, or too many wait
    /// already: then it is a dead letter. Of two that went back equally often the one that came last stays,
    /// because the broker certainly has it; it counts as waiting as long as the other.
    fn keep_newer(&mut self, now: Now, arrived: &Arrived, message_id: Uuid) {
        self.newer_seen = Some(now.elapsed);
        let reply_to = arrived.reply_to.as_deref();
        let copy = MessageCopy::of(message_id, &arrived.body, reply_to, &arrived.headers);
        if self.copies.is_outdated(copy) {
            return self.settle(&[arrived.id]);
        }
        // Whoever sends thousands of them would hold up all others.
        if !self.waits.may_wait(copy.message(), now.elapsed) {
            let reason = format!(
                "its version is newer than this program knows, and {} such messages wait already: update the \
                 program, then put it back",
                waits::MOST
            );
            return self.bury(
                arrived,
                Letter::of(message_id, arrived.body.clone(), reason),
            );
        }
        let parcel = Parcel {
            message: Message {
                message_id,
                body: arrived.body.clone(),
                reply_to: arrived.reply_to.clone(),
                headers: arrived.headers.clone(),
                reason: None,
            },
            carries: Carries::Unread(Some(copy)),
            deliveries: vec![arrived.id],
        };
        let mut since = now.elapsed;
        let mut newer = self.newer.iter();
        let twin = newer.position(|other| other.copy.is_twin_of(&copy));
        if let Some(twin) = twin.and_then(|place| self.newer.remove(place)) {
            since = twin.since;
            self.settle(&twin.parcel.deliveries);
        }
        self.newer.push_back(Newer {
            since,
            copy,
            parcel,
        });
    }

    fn bury(&mut self, arrived: &Arrived, letter: Letter) {
        let message = Message {
            message_id: letter.message_id,
            body: letter.body,
            reply_to: None,
            headers: arrived.headers.clone(),
            reason: Some(cut(&letter.reason)),
        };
        let parcel = Parcel {
            message,
            carries: Carries::Letter(arrived.reply_to.clone()),
            deliveries: vec![arrived.id],
        };
        self.lane(Target::Letters).parcels.push_back(parcel);
    }

    fn lane(&mut self, target: Target) -> &mut Lane<R::Note> {
        self.lanes.entry(target).or_default()
    }

    /// Makes room, acknowledges what is done with and publishes what may go now.
    pub(crate) fn go_on(&mut self, now: Now, ids: &mut Ids, outputs: &mut Vec<Output<R::Note>>) {
        self.elapsed = now.elapsed;
        let goes_on = !self.stopping && !self.closed;
        if goes_on {
            self.relieve(now, ids);
        }
        if !self.done.is_empty() {
            outputs.push(Output::Ack(std::mem::take(&mut self.done)));
        }
        if goes_on {
            self.publish(now, ids, outputs);
        }
    }

    /// Publishes nothing more: what is not confirmed comes again, to somebody else.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.sent.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.held_bytes < self.bounds.window_bytes && self.held.len() < self.bounds.window
    }

    pub(crate) fn wake_at(&self) -> Option<Duration> {
        let lanes = self.lanes.iter();
        let due = lanes.filter(|(to, lane)| lane.may_send(most_on_the_way::<R>(**to)));
        let due = due.filter(|(_, lane)| !lane.is_empty());
        let due = due.map(|(_, lane)| lane.not_before).min();
        [due, self.next_newer(), self.next_relief()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What an operator must know, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        let mut words: Vec<String> = Vec::new();
        for (target, lane) in self.lanes.iter().filter(|(_, lane)| !lane.is_empty()) {
            let stuck = lane.is_stuck(self.elapsed);
            match target {
                Target::Partition(partition) if stuck => words.push(format!(
                    "partition {} takes no {}s: its queue is full, or has no owner",
                    partition.0,
                    R::NAME
                )),
                Target::Letters if stuck => words.push("the dead letters take nothing".to_owned()),
                Target::Back if stuck => words.push(format!(
                    "{} message(s) cannot be put back: their topic takes nothing",
                    lane.count()
                )),
                _ => {}
            }
        }
        if self.newer_is_seen() {
            // Those that were put back are not counted: they wait at the broker.
            words.push("messages of a newer version wait: update this program".to_owned());
        }
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Messages to owners: as large as they may be when they must be turned back.
    fn pack_bounds(&self) -> PackBounds {
        let longer = message_bytes::<R::In>(0).saturating_sub(message_bytes::<R::Out>(0));
        PackBounds {
            items: self.bounds.max_items,
            bytes: self.bounds.pack_bytes,
            max_bytes: self.bounds.max_message_bytes - longer,
        }
    }

    /// So many parts of messages are settled, one for each time that a message is named.
    fn settle(&mut self, deliveries: &[DeliveryId]) {
        for delivery in deliveries {
            let Some(held) = self.held.get_mut(delivery) else {
                continue;
            };
            held.open -= 1;
            if held.open == 0 {
                self.held_bytes -= held.bytes;
                self.held.remove(delivery);
                self.done.push(*delivery);
            }
        }
    }
}

/// How many publishes to one target may be on their way at once: one where the order counts, because the
/// second of two may be kept when the first is refused.
fn most_on_the_way<R: Rules>(to: Target) -> usize {
    match to {
        Target::Partition(_) if !R::ORDERED => MAX_ON_THE_WAY,
        _ => 1,
    }
}

/// As much of a reason as is kept.
fn cut(reason: &str) -> String {
    reason[..reason.floor_char_boundary(REASON_BYTES)].to_owned()
}
