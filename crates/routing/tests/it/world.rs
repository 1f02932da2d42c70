//! A relay, and a bus that answers as it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use attune_core::Refusal;
use attune_routing::{
    Answer, Arrived, Bounds, CallId, DeliveryId, Input, Message, Now, Output, Relay, Rules,
    Senders, Target,
};
use bytes::Bytes;
use chrono::DateTime;
use uuid::Uuid;

/// The broker vouches for nobody.
pub(crate) const NOBODY: Senders = Senders {
    required: false,
    own: None,
    impersonators: BTreeSet::new(),
    parts: BTreeSet::new(),
};
/// The cluster's partitions.
pub(crate) const PARTITIONS: u16 = 4;
pub(crate) const MAX_BYTES: usize = 8_192;
pub(crate) const BOUNDS: Bounds = Bounds {
    max_items: 5,
    pack_bytes: MAX_BYTES,
    max_message_bytes: MAX_BYTES,
    window: 20,
    window_bytes: 1 << 20,
};

/// What the bus says to a publish.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    Confirm,
    /// It is not confirmed; it was kept or not.
    Unconfirmed(bool),
    /// What goes to this target is refused, or what goes anywhere else.
    Refuse(Target, bool, Refusal),
}

/// What the bus has kept.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) to: Target,
    pub(crate) message: Message,
}

pub(crate) struct World<R: Rules> {
    pub(crate) relay: Relay<R>,
    pub(crate) now: Duration,
    pub(crate) calls: BTreeMap<CallId, (Target, Vec<Message>)>,
    pub(crate) kept: Vec<Kept>,
    /// Deliveries that are not acknowledged.
    pub(crate) open: BTreeSet<u64>,
    pub(crate) acked: BTreeSet<u64>,
    pub(crate) buried: usize,
    pub(crate) log: Vec<String>,
    tags: u64,
}

impl<R: Rules<Note: std::fmt::Debug>> World<R> {
    pub(crate) fn new(rules: R, bounds: Bounds) -> Self {
        let mut ids = 0_u128;
        let ids = move || {
            ids += 1;
            Uuid::from_u128(ids)
        };
        Self {
            relay: Relay::new(rules, bounds, ids),
            now: Duration::ZERO,
            calls: BTreeMap::new(),
            kept: Vec::new(),
            open: BTreeSet::new(),
            acked: BTreeSet::new(),
            buried: 0,
            log: Vec::new(),
            tags: 0,
        }
    }

    /// Delivers a message, if the relay wants one; gives its number.
    pub(crate) fn deliver(&mut self, body: impl Into<Bytes>) -> Option<u64> {
        let message_id = Uuid::from_u128(u128::from(self.tags + 1) << 64);
        self.deliver_as(message_id, body)
    }

    pub(crate) fn deliver_as(&mut self, message_id: Uuid, body: impl Into<Bytes>) -> Option<u64> {
        self.deliver_with(message_id, body, vec![header("x-own", "yes")])
    }

    pub(crate) fn deliver_with(
        &mut self,
        message_id: Uuid,
        body: impl Into<Bytes>,
        headers: Vec<(String, String)>,
    ) -> Option<u64> {
        if !self.relay.wants_more() {
            return None;
        }
        self.tags += 1;
        self.open.insert(self.tags);
        let arrived = Arrived {
            id: DeliveryId(self.tags),
            body: body.into(),
            message_id: Some(message_id.to_string()),
            reply_to: None,
            user: None,
            headers,
        };
        self.step(Input::Delivered(vec![arrived]));
        Some(self.tags)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.step(Input::Timer);
    }

    /// Answers the oldest publish; false when there is none.
    pub(crate) fn answer(&mut self, say: &Say) -> bool {
        let Some((call, (to, messages))) = self.calls.pop_first() else {
            return false;
        };
        let answer = match say {
            Say::Unconfirmed(kept) => {
                if *kept {
                    self.keep(to, messages);
                }
                Answer::Unknown
            }
            Say::Refuse(target, others, why) if (to == *target) != *others => {
                let refused = messages.iter().map(|one| (one.message_id, why.clone()));
                Answer::Refused(refused.collect())
            }
            _ => {
                self.keep(to, messages);
                Answer::Confirmed
            }
        };
        self.step(Input::Answered(call, answer));
        true
    }

    /// Answers all publishes until none is left or so many were answered.
    pub(crate) fn answer_all(&mut self, say: &Say) {
        for _ in 0..1_000 {
            if !self.answer(say) {
                return;
            }
        }
        panic!("it publishes without end, and without a pause");
    }

    fn keep(&mut self, to: Target, messages: Vec<Message>) {
        let kept = messages.into_iter().map(|message| Kept { to, message });
        self.kept.extend(kept);
    }

    pub(crate) fn kept_by(&self, target: Target) -> Vec<&Message> {
        let kept = self.kept.iter().filter(|kept| kept.to == target);
        kept.map(|kept| &kept.message).collect()
    }

    pub(crate) fn step(&mut self, input: Input) {
        let now = Now {
            elapsed: self.now,
            wall: DateTime::UNIX_EPOCH,
        };
        let outputs = self.relay.step(now, input);
        self.log.push(format!("{outputs:?}"));
        for output in outputs {
            match output {
                Output::Publish {
                    call, to, messages, ..
                } => {
                    assert!(!messages.is_empty());
                    for message in &messages {
                        assert!(message.body.len() <= MAX_BYTES, "larger than it may be");
                    }
                    self.calls.insert(call, (to, messages));
                }
                Output::Ack(deliveries) => {
                    for DeliveryId(number) in deliveries {
                        assert!(self.open.remove(&number), "acknowledged twice");
                        self.acked.insert(number);
                    }
                }
                Output::Buried { .. } => self.buried += 1,
                Output::Taken { .. } | Output::Forwarded(_) => {}
            }
        }
    }
}

pub(crate) fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
