//! What waits for one target.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use attune_messages::MessageCopy;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::port::{CallId, DeliveryId, Message, Now};

/// The first and the longest pause of a lane before it publishes again.
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(2);
/// After so many failures in a row a lane counts as stuck.
const STUCK_AFTER: u32 = 3;
/// So does one whose publish was not answered for so long.
const SLOW: Duration = Duration::from_secs(3);

/// An item that is not packed into a message yet.
pub(super) struct Waiting<N> {
    pub(super) item: Box<RawValue>,
    pub(super) note: N,
    pub(super) delivery: DeliveryId,
    pub(super) reply_to: Option<String>,
}

/// A message on its way, with what it carries.
pub(super) struct Parcel<N> {
    pub(super) message: Message,
    pub(super) carries: Carries<N>,
    /// The delivery of each part.
    pub(super) deliveries: Vec<DeliveryId>,
}

/// What is in a message.
pub(super) enum Carries<N> {
    /// Items for an owner: as they are written, and what is told of them.
    Items(Vec<(Box<RawValue>, N)>),
    /// A dead letter; answers to what it came from would go there.
    Letter(Option<String>),
    /// As it came, for somebody else: a copy of this, if it may go back again and again.
    Unread(Option<MessageCopy>),
}

/// What waits for one target, and how that is doing.
pub(super) struct Lane<N> {
    /// Not packed yet.
    pub(super) items: VecDeque<Waiting<N>>,
    /// To be published, the oldest first.
    pub(super) parcels: VecDeque<Parcel<N>>,
    /// The publishes on their way, and since when.
    on_the_way: BTreeMap<CallId, Duration>,
    /// Publishes in a row that brought nothing on, and when the last of them was answered.
    failures: u32,
    failed_at: Duration,
    refused_since: Option<Duration>,
    pub(super) not_before: Duration,
    /// Nobody had declared the target.
    pub(super) declare: bool,
}

impl<N> Default for Lane<N> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            parcels: VecDeque::new(),
            on_the_way: BTreeMap::new(),
            failures: 0,
            failed_at: Duration::ZERO,
            refused_since: None,
            not_before: Duration::ZERO,
            declare: false,
        }
    }
}

impl<N> Lane<N> {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.parcels.is_empty()
    }

    /// How many parts wait.
    pub(super) fn count(&self) -> usize {
        let packed: usize = self.parcels.iter().map(|one| one.deliveries.len()).sum();
        self.items.len() + packed
    }

    /// Whether another publish may go, when so many may be on their way at once. Where the last one
    /// failed, one shows whether that is over.
    pub(super) fn may_send(&self, most: usize) -> bool {
        let most = if self.failures > 0 { 1 } else { most };
        self.on_the_way.len() < most
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.on_the_way.is_empty()
    }

    /// A publish goes.
    pub(super) fn sent(&mut self, call: CallId, now: Duration) {
        self.on_the_way.insert(call, now);
    }

    /// A publish is answered; tells since when it was on its way.
    pub(super) fn answered(&mut self, call: CallId) -> Duration {
        self.on_the_way.remove(&call).unwrap_or_default()
    }

    pub(super) fn is_stuck(&self, now: Duration) -> bool {
        let slow = self.slow_at().is_some_and(|at| now >= at);
        slow || self.failures >= STUCK_AFTER
    }

    /// When a publish that is on its way makes it count as stuck.
    pub(super) fn slow_at(&self) -> Option<Duration> {
        let oldest = self.on_the_way.first_key_value();
        oldest.map(|(_, at)| *at + SLOW)
    }

    /// When its target has refused everything for so long. A broker that does not answer at all
    /// says nothing about the target: then everything waits where it is, in its order.
    pub(super) fn failing_for(&self, patience: Duration) -> Option<Duration> {
        let since = self.refused_since?;
        (self.failures >= STUCK_AFTER).then(|| since + patience)
    }

    /// Waits longer with each failure of what was sent at `sent_at`; those that were on their way together
    /// are one. The pause is spread by the id of the message, so that relays that failed together do not
    /// return together.
    pub(super) fn back_off(&mut self, now: Now, sent_at: Duration, id: Uuid, refuses: bool) {
        if refuses {
            self.refused_since.get_or_insert(now.elapsed);
        }
        if self.failures > 0 && sent_at <= self.failed_at {
            return;
        }
        self.failed_at = now.elapsed;
        let ceiling = RETRY_CAP.min(RETRY_BASE * (1 << self.failures.min(10)));
        self.failures = self.failures.saturating_add(1);
        let share = f64::from(u16::from_be_bytes([id.as_bytes()[14], id.as_bytes()[15]]));
        self.not_before = now.elapsed + ceiling.mul_f64(0.5 + share / (2.0 * f64::from(u16::MAX)));
    }

    /// Something was kept.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
        self.refused_since = None;
    }
}
