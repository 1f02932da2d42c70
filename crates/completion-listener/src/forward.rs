//! The forwarder: what a listener does with each message, without any I/O.
//!
//! It is given deliveries and the answers to what it published, and says what to publish and what
//! to acknowledge. Time, ids and the outcome of everything come from outside, so that the same
//! inputs always lead to the same outputs: the service drives it in production, a simulator can
//! drive it as well.
//!
//! - Each partition has a *lane*, with at most one publish on its way; what comes meanwhile
//!   gathers. A partition that takes nothing (its control queue is full, or this listener believes
//!   that it does not exist) holds up its own lane and no other.
//! - A delivery is acknowledged when all that came out of it is confirmed.
//! - What cannot be forwarded for long would fill the window of deliveries in the end. When it
//!   holds most of it, it is sent back to the *end* of the completions, at most once a second, and
//!   only then acknowledged: the others get past it.
//! - What a newer program wrote waits in a lane of its own, which is only ever sent back: a newer
//!   listener may get it. It is never buried.

mod send;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use attune_bus::{Delivery, DeliveryTag, Outgoing, PublishError, Refusal, Topic, letter};
use attune_core::{Attempt, ExecutionId, PartitionId, RequestId, Status};
use attune_messages::v1::{ExecutionCompleted, SlotRelease};
use attune_messages::{PackBounds, encode_raw, message_bytes};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::decide::decide;
use crate::mend::mend;
use crate::read::{Item, read};

/// The first and the longest pause of a lane before it publishes again.
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(5);
/// After so many refusals in a row a lane counts as stuck.
const STUCK_AFTER: u32 = 3;
/// Publishes on their way, at most: while they are, deliveries gather, so that a slow broker gets
/// larger messages and not more of them.
const MAX_CALLS: usize = 4;
/// What is kept of a reason, in bytes; it may quote what was wrong, of any length.
const REASON_BYTES: usize = 400;

/// Which attempt of which execution, and how it ended.
pub type Outcome = (ExecutionId, Attempt, Status);

/// Bounds of a [`Forwarder`].
#[derive(Debug, Clone, Copy)]
pub struct ForwarderOptions {
    /// How many partitions the cluster has, 1 to 256.
    pub partitions: u16,
    /// Completions in one message, at most.
    pub max_batch: usize,
    /// The largest message that is read or sent, in bytes.
    pub max_message_bytes: usize,
    /// Deliveries that may be unacknowledged: the prefetch.
    pub window: usize,
    /// Bytes of bodies that may be unacknowledged before nothing more is wanted.
    pub window_bytes: usize,
}

/// The moment of a step.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Since some start, by a clock that never steps back.
    pub elapsed: Duration,
    /// What messages are stamped with.
    pub wall: DateTime<Utc>,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A message of completions arrived.
    Delivered(Delivery),
    /// What became of a publish, by its number.
    Answered(u64, Result<(), PublishError>),
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Output {
    /// Count and record these: the bus has taken them for their owners.
    Forwarded(Vec<Outcome>),
    /// Count and record a dead letter, kept or given up, with its reason.
    Buried {
        /// Why it could not be used.
        reason: String,
        /// Why not even the dead letters took it, if so.
        given_up: Option<Refusal>,
    },
    /// Acknowledge these deliveries.
    Ack(Vec<DeliveryTag>),
    /// Declare the topics, then publish the messages in one call and answer with its number.
    Publish {
        /// By which it is answered.
        call: u64,
        /// Topics that nobody had declared.
        declare: Vec<Topic>,
        /// What to publish.
        messages: Vec<Outgoing>,
    },
}

/// What came in so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Completions; a message that cannot be read at all counts as one.
    pub received: usize,
    /// Completions that were changed so that they can be stored.
    pub mended: usize,
}

/// Where something goes, and what it waits behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Owner(PartitionId),
    Letters,
    Newer,
}

/// A message on its way, with what it carries.
#[derive(Debug)]
struct Parcel {
    message: Outgoing,
    carries: Carries,
    /// The delivery of each part.
    deliveries: Vec<u64>,
    refusals: u32,
}

/// What cannot be used, as a message, and why.
struct Bad {
    body: Bytes,
    reason: String,
}

#[derive(Debug)]
enum Carries {
    Completions(Vec<Outcome>),
    Letter(String),
    /// As it came, for somebody else.
    Unread,
}

#[derive(Debug, Default)]
struct Lane {
    /// Not packed yet.
    items: VecDeque<(Box<RawValue>, Outcome, u64)>,
    /// To be published, the oldest first.
    parcels: VecDeque<Parcel>,
    in_flight: bool,
    /// Publishes in a row that brought nothing on.
    failures: u32,
    not_before: Duration,
    declare: bool,
}

#[derive(Debug)]
struct Held {
    tag: DeliveryTag,
    bytes: usize,
    /// Parts that are not settled.
    open: usize,
}

/// Decides what a listener does; see the [module](self).
pub struct Forwarder {
    options: ForwarderOptions,
    ids: Box<dyn FnMut() -> Uuid + Send>,
    held: HashMap<u64, Held>,
    held_bytes: usize,
    lanes: BTreeMap<Target, Lane>,
    calls: HashMap<u64, Vec<(Target, Parcel)>>,
    next: u64,
    next_send_back: Duration,
    taken: Taken,
    stopping: bool,
    closed: bool,
    done: Vec<DeliveryTag>,
}

impl Forwarder {
    /// Nothing yet. `ids` makes the ids of messages, a new one each time.
    pub fn new(options: ForwarderOptions, ids: impl FnMut() -> Uuid + Send + 'static) -> Self {
        Self {
            options,
            ids: Box::new(ids),
            held: HashMap::new(),
            held_bytes: 0,
            lanes: BTreeMap::new(),
            calls: HashMap::new(),
            next: 0,
            next_send_back: Duration::ZERO,
            taken: Taken::default(),
            stopping: false,
            closed: false,
            done: Vec::new(),
        }
    }

    /// Takes what happened into account and says what to do.
    pub fn step(&mut self, now: Now, inputs: Vec<Input>) -> Vec<Output> {
        let mut outputs = Vec::new();
        for input in inputs {
            match input {
                Input::Delivered(delivery) => self.take(now.wall, &delivery),
                Input::Answered(call, answer) => self.answered(now, call, answer, &mut outputs),
            }
        }
        if !self.done.is_empty() {
            outputs.push(Output::Ack(std::mem::take(&mut self.done)));
        }
        if !self.stopping && !self.closed {
            self.publish(now, &mut outputs);
            self.send_back(now, &mut outputs);
        }
        outputs
    }

    /// Publishes nothing more: what is not confirmed comes again, to somebody else.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether everything that was published is answered.
    pub fn is_quiet(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether the bus was closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether more deliveries should be given to it.
    pub fn wants_more(&self) -> bool {
        self.held_bytes < self.options.window_bytes
    }

    /// What came in since this was asked last.
    pub fn take_counts(&mut self) -> Taken {
        std::mem::take(&mut self.taken)
    }

    /// When it wants to be stepped next without anything having happened.
    pub fn wake(&self) -> Option<Duration> {
        if self.calls.len() >= MAX_CALLS {
            // The next answer wakes it.
            return None;
        }
        let lanes = self.lanes.iter();
        let waiting = lanes
            .filter(|(target, lane)| {
                self.may_publish(**target) && !lane.in_flight && !lane.is_empty()
            })
            .map(|(_, lane)| lane.not_before);
        let back = self.is_crowded() && self.lanes.iter().any(|lane| self.may_send_back(lane));
        waiting.chain(back.then_some(self.next_send_back)).min()
    }

    /// What an operator must know, if anything.
    pub fn trouble(&self) -> Option<String> {
        let count = |lane: &Lane| {
            let packed: usize = lane.parcels.iter().map(|one| one.deliveries.len()).sum();
            lane.items.len() + packed
        };
        let words = self
            .lanes
            .iter()
            .filter(|lane| self.is_stuck(*lane) && !lane.1.is_empty());
        let words: Vec<String> = words
            .map(|(target, lane)| match target {
                Target::Newer => format!(
                    "{} message(s) of a newer version wait: update this listener",
                    count(lane)
                ),
                Target::Letters => "the dead letters take nothing".to_owned(),
                Target::Owner(partition) if !self.may_publish(*target) => format!(
                    "{} completion(s) for partition {} wait: `cluster.partitions` is {} here",
                    count(lane),
                    partition.0,
                    self.options.partitions
                ),
                Target::Owner(partition) => format!(
                    "partition {} takes no completions: its queue is full, or has no owner",
                    partition.0
                ),
            })
            .collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    fn may_publish(&self, target: Target) -> bool {
        match target {
            Target::Owner(partition) => partition.0 < self.options.partitions,
            Target::Letters => true,
            Target::Newer => false,
        }
    }

    fn is_stuck(&self, (target, lane): (&Target, &Lane)) -> bool {
        !self.may_publish(*target) || lane.failures >= STUCK_AFTER
    }

    /// Whether something of a lane is stuck that another listener, or this one later, may take.
    fn may_send_back(&self, (target, lane): (&Target, &Lane)) -> bool {
        let idle = !lane.in_flight && !lane.is_empty();
        idle && *target != Target::Letters && self.is_stuck((target, lane))
    }

    /// Whether what is held leaves little room for anything else.
    fn is_crowded(&self) -> bool {
        self.held.len() * 4 >= self.options.window * 3
            || self.held_bytes / 3 * 4 >= self.options.window_bytes
    }
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.parcels.is_empty()
    }

    /// Waits longer with each failure. The pause is spread by the id of the message, so that
    /// listeners that failed together do not return together.
    fn back_off(&mut self, now: Now, id: Uuid) {
        let ceiling = RETRY_CAP.min(RETRY_BASE * (1 << self.failures.min(10)));
        self.failures = self.failures.saturating_add(1);
        let share = f64::from(u16::from_be_bytes([id.as_bytes()[14], id.as_bytes()[15]]));
        self.not_before = now.elapsed + ceiling.mul_f64(0.5 + share / (2.0 * f64::from(u16::MAX)));
    }
}

/// Taking deliveries apart.
impl Forwarder {
    fn take(&mut self, wall: DateTime<Utc>, delivery: &Delivery) {
        let number = self.next;
        self.next += 1;
        self.held_bytes += delivery.body.len();
        self.held.insert(
            number,
            Held {
                tag: delivery.tag,
                bytes: delivery.body.len(),
                open: 0,
            },
        );
        let items = match read(&delivery.body, self.options.max_message_bytes) {
            Ok(items) => items,
            Err(error) if error.is_newer() => return self.keep_unread(number, delivery),
            Err(error) => {
                self.taken.received += 1;
                let (body, reason) = (delivery.body.clone(), error.to_string());
                return self.bury(number, delivery, None, Bad { body, reason });
            }
        };
        self.taken.received += items.len();
        let alone = items.len() == 1;
        for (index, item) in items.into_iter().enumerate() {
            if let Err(mut bad) = self.take_item(wall, number, item) {
                if alone {
                    bad.body = delivery.body.clone();
                }
                self.bury(number, delivery, (!alone).then_some(index), bad);
            }
        }
    }

    /// Puts an item into its lane, or gives it back as a message of its own with the reason.
    fn take_item(&mut self, wall: DateTime<Utc>, number: u64, item: Item) -> Result<(), Bad> {
        let mut alone = |item: &RawValue, reason| {
            let body = encode_raw::<ExecutionCompleted>((self.ids)(), wall, &[item]).into();
            Bad { body, reason }
        };
        let completion = item.map_err(|bad| alone(&bad.item, bad.reason))?;
        let partition = decide(&completion).map_err(|refusal| {
            let item = serde_json::value::to_raw_value(&completion)
                .expect("completions have string keys and finite numbers");
            alone(&item, refusal.to_string())
        })?;
        let outcome = (
            completion.execution_id,
            completion.attempt,
            completion.status,
        );
        let room = self.bounds().max_bytes - message_bytes::<SlotRelease>(0);
        let mended = mend(completion, room);
        self.taken.mended += usize::from(mended.changed);
        self.open(number);
        let lane = self.lanes.entry(Target::Owner(partition)).or_default();
        lane.items.push_back((mended.item, outcome, number));
        Ok(())
    }

    /// Makes a dead letter of a whole message (`item` is none) or of one item of it. Its id
    /// follows from that of the message, so that a message which comes twice has one letter.
    fn bury(&mut self, number: u64, delivery: &Delivery, item: Option<usize>, bad: Bad) {
        let Bad { body, reason } = bad;
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES)];
        let mut message = letter(&Topic::Completed, delivery, body, reason);
        let id = self.id_of(delivery);
        message.message_id = item.map_or(id, |index| RequestId(id).of_item(index).0);
        let carries = Carries::Letter(reason.to_owned());
        self.put(Target::Letters, number, message, carries);
    }

    fn keep_unread(&mut self, number: u64, delivery: &Delivery) {
        let id = self.id_of(delivery);
        let mut message = Outgoing::new(Topic::Completed, id, delivery.body.clone());
        message.headers.clone_from(&delivery.headers);
        self.put(Target::Newer, number, message, Carries::Unread);
    }

    fn id_of(&mut self, delivery: &Delivery) -> Uuid {
        let id = delivery.message_id.as_deref();
        id.and_then(|id| id.parse().ok())
            .unwrap_or_else(|| (self.ids)())
    }

    fn put(&mut self, target: Target, number: u64, message: Outgoing, carries: Carries) {
        self.open(number);
        let parcel = Parcel {
            message,
            carries,
            deliveries: vec![number],
            refusals: 0,
        };
        let lane = self.lanes.entry(target).or_default();
        lane.parcels.push_back(parcel);
    }

    fn open(&mut self, number: u64) {
        if let Some(held) = self.held.get_mut(&number) {
            held.open += 1;
        }
    }

    /// Messages to owners: as large as they may be when they must be sent back as completions.
    fn bounds(&self) -> PackBounds {
        let longer = message_bytes::<ExecutionCompleted>(0) - message_bytes::<SlotRelease>(0);
        PackBounds::new(
            self.options.max_batch,
            self.options.max_message_bytes - longer,
        )
    }
}
