//! A relay process: the machine that production runs, and the little that drives it.

use std::collections::BTreeMap;
use std::time::Duration;

use attune_core::{PartitionId, Refusal};
use attune_routing::{
    Answer, Arrived, Bounds, CallId, Completions, DeliveryId, Firings, Input, Message, Now, Output,
    Relay as Machine, Senders, Target,
};
use chrono::DateTime;
use uuid::Uuid;

use super::SOURCES;
use super::plan::EACH;
use super::wire::{MAX_BYTES, Wire};
use crate::bus::{Body, Delivery, Name, Party};
use crate::forging::RELAY;
use crate::plan::Time;
use crate::trace::Note;
use crate::world::{Ev, WALL, Word, World};

/// How many messages a relay holds unacknowledged.
const PREFETCH: usize = 12;
/// How many items it packs into one message.
const MAX_ITEMS: usize = 4;
/// In what the bus never carries to a partition.
pub(super) const LARGE: &str = "large-";

enum Kind {
    Firings(Machine<Firings>),
    Completions(Machine<Completions>),
}

/// One relay process; the first ones route firings, the others completions.
pub(crate) struct Relay {
    life: u32,
    alive: bool,
    pub(crate) paused_until: Time,
    started: Time,
    kind: Option<Kind>,
    subscription: u64,
    /// Where each message that is not acknowledged lies at the broker.
    deliveries: BTreeMap<DeliveryId, (u64, u64)>,
    delivered: u64,
    wake_at: Time,
}

impl Relay {
    pub(super) fn new() -> Self {
        Self {
            life: 0,
            alive: false,
            paused_until: 0,
            started: 0,
            kind: None,
            subscription: 0,
            deliveries: BTreeMap::new(),
            delivered: 0,
            wake_at: 0,
        }
    }

    pub(crate) fn is_in(&self, life: u32) -> bool {
        self.alive && self.life == life
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }
}

/// From where a relay receives.
pub(super) fn source(relay: usize) -> Name {
    SOURCES[relay / EACH]
}

impl World {
    pub(super) fn relay_party(&self, r: usize) -> Party {
        Party::Relay(r, self.routing.relays[r].life)
    }

    /// A fresh process.
    pub(crate) fn start_relay(&mut self, r: usize) {
        let base = self.fresh().as_u128();
        let mut count = 0_u128;
        let ids = move || {
            count += 1;
            Uuid::from_u128(base | count << 40)
        };
        let partitions = self.plan.partitions;
        let bounds = Bounds {
            max_items: MAX_ITEMS,
            pack_bytes: MAX_BYTES,
            max_message_bytes: MAX_BYTES,
            window: PREFETCH,
            window_bytes: MAX_BYTES,
        };
        let firings = Firings {
            partitions,
            senders: Senders::default(),
        };
        // One message may have the ends of several workers here, and says of each who has reported it, as one
        // that a relay has sent itself.
        let own = self.plan.vouches.then(|| RELAY.to_owned());
        let completions = Completions {
            partitions,
            senders: Senders {
                own,
                ..Senders::default()
            },
        };
        let kind = match source(r) {
            Name::Firings => Kind::Firings(Machine::new(firings, bounds, ids)),
            _ => Kind::Completions(Machine::new(completions, bounds, ids)),
        };
        let life = self.routing.relays[r].life + 1;
        self.routing.relays[r] = Relay {
            life,
            alive: true,
            started: self.now,
            kind: Some(kind),
            ..Relay::new()
        };
        self.note(Note::Started(self.relay_party(r)));
        self.receive_anew(r);
    }

    /// The process dies; what it has not acknowledged goes back.
    pub(crate) fn crash_relay(&mut self, r: usize) {
        let party = self.relay_party(r);
        self.note(Note::Stopped(party));
        self.routing.relays[r].alive = false;
        self.close_all(party);
    }

    fn receive_anew(&mut self, r: usize) {
        let party = self.relay_party(r);
        self.close(self.routing.relays[r].subscription);
        let subscription = self.bus.subscribe(source(r), party, PREFETCH);
        self.routing.relays[r].subscription = subscription;
        self.pump(source(r));
    }

    pub(crate) fn tell_relay(&mut self, r: usize, word: Word) {
        match word {
            Word::Deliver(delivery) => {
                if let Some(arrived) = self.arrived_at(r, &delivery) {
                    self.step_relay(r, Input::Delivered(vec![arrived]));
                }
            }
            Word::Relayed(call, answer) => self.step_relay(r, Input::Answered(call, answer)),
            Word::Wake => self.step_relay(r, Input::Timer),
            Word::Cut => self.receive_anew(r),
            _ => {}
        }
    }

    fn arrived_at(&mut self, r: usize, delivery: &Delivery) -> Option<Arrived> {
        let Body::Wire(wire) = &delivery.body else {
            return None;
        };
        let is_vouched_for = self.plan.vouches && source(r) != Name::Firings;
        let relay = &mut self.routing.relays[r];
        // A program reads its subscriptions one after the other: what was on its way through an earlier one
        // comes before the first of a later one, or never.
        if delivery.subscription != relay.subscription {
            return None;
        }
        relay.delivered += 1;
        let id = DeliveryId(relay.delivered);
        let at_broker = (delivery.subscription, delivery.place);
        relay.deliveries.insert(id, at_broker);
        Some(Arrived {
            id,
            body: wire.body.clone(),
            message_id: wire.message_id.map(|id| id.to_string()),
            reply_to: None,
            user: is_vouched_for.then(|| RELAY.to_owned()),
            headers: wire.headers.clone(),
        })
    }

    fn step_relay(&mut self, r: usize, input: Input) {
        let relay = &mut self.routing.relays[r];
        let elapsed = u64::try_from(self.now - relay.started).unwrap_or(0);
        let now = Now {
            elapsed: Duration::from_millis(elapsed),
            wall: DateTime::from_timestamp_millis(WALL + self.now).unwrap_or_default(),
        };
        let (outputs, wake) = match &mut relay.kind {
            Some(Kind::Firings(machine)) => {
                let outputs = machine.step(now, input);
                (
                    outputs.into_iter().filter_map(said).collect(),
                    machine.wake_at(),
                )
            }
            Some(Kind::Completions(machine)) => {
                let outputs = machine.step(now, input);
                (
                    outputs.into_iter().filter_map(said).collect(),
                    machine.wake_at(),
                )
            }
            None => (Vec::new(), None),
        };
        for said in outputs {
            match said {
                Said::Ack(deliveries) => self.relay_acks(r, &deliveries),
                Said::Publish(call, to, declare, messages) => {
                    self.relay_publishes(r, call, to, declare, &messages);
                }
            }
        }
        let relay = &mut self.routing.relays[r];
        let Some(wake) = wake else { return };
        let wake = i64::try_from(wake.as_micros().div_ceil(1_000)).unwrap_or(Time::MAX);
        let at = (relay.started + wake).max(self.now + 1);
        if relay.wake_at <= self.now || at < relay.wake_at {
            relay.wake_at = at;
            let party = self.relay_party(r);
            self.push(at, Ev::To(party, Word::Wake));
        }
    }

    fn relay_acks(&mut self, r: usize, deliveries: &[DeliveryId]) {
        for delivery in deliveries {
            if let Some((sub, place)) = self.routing.relays[r].deliveries.remove(delivery) {
                self.soon(Ev::Ack(sub, place));
            }
        }
    }

    /// The bus keeps messages, refuses them, or loses its connection meanwhile.
    fn relay_publishes(
        &mut self,
        r: usize,
        call: CallId,
        to: Target,
        declare: bool,
        messages: &[Message],
    ) {
        let party = self.relay_party(r);
        let name = match (to, source(r)) {
            (Target::Partition(PartitionId(p)), Name::Firings) => Some(Name::Commands(p)),
            (Target::Partition(PartitionId(p)), Name::Kept) => Some(Name::ControlKept(p)),
            (Target::Partition(PartitionId(p)), _) => Some(Name::Control(p)),
            (Target::Back, source) => Some(source),
            (Target::Letters, _) => None,
        };
        if let Some(name) = name.filter(|_| declare) {
            self.routing.gone.remove(&name);
        }
        let unknown = self.rng.chance(self.noise.unknown);
        let at = self.now + self.delay().max(1);
        let mut refused = Vec::new();
        for message in messages {
            let wire = Wire::from_relay(message);
            if let Some(why) = self.refused_on_the_way(name, &wire) {
                refused.push((message.message_id, why));
            } else if unknown && self.rng.chance(500) {
                // Lost with the connection.
            } else if let Some(name) = name {
                self.push(at, Ev::Arrive(name, Body::Wire(wire.into()), None));
            } else {
                self.routing.bury(source(r), wire);
            }
        }
        let answer = match (unknown, refused.is_empty()) {
            (true, _) => Answer::Unknown,
            (false, true) => Answer::Confirmed,
            (false, false) => Answer::Refused(refused),
        };
        let answered_at = at + self.delay();
        self.push(answered_at, Ev::To(party, Word::Relayed(call, answer)));
    }

    /// Why the bus does not take a message, if it does not.
    fn refused_on_the_way(&self, name: Option<Name>, wire: &Wire) -> Option<Refusal> {
        let routing = &self.routing;
        let Some(name) = name else {
            return (self.now < routing.letters_full_until).then_some(Refusal::Full);
        };
        let is_owners = !SOURCES.contains(&name);
        if is_owners && wire.text().contains(LARGE) {
            let (bytes, max) = (MAX_BYTES + 1, MAX_BYTES);
            return Some(Refusal::TooLarge { bytes, max });
        }
        if routing.gone.contains(&name) {
            return Some(Refusal::Unroutable);
        }
        let full = routing
            .full
            .get(&name)
            .is_some_and(|until| self.now < *until);
        full.then_some(Refusal::Full)
    }
}

/// What a relay says, as far as the world has something to do.
enum Said {
    Ack(Vec<DeliveryId>),
    Publish(CallId, Target, bool, Vec<Message>),
}

fn said<N>(output: Output<N>) -> Option<Said> {
    match output {
        Output::Ack(deliveries) => Some(Said::Ack(deliveries)),
        Output::Publish {
            call,
            to,
            declare,
            messages,
        } => Some(Said::Publish(call, to, declare, messages)),
        Output::Taken { .. } | Output::Forwarded(_) | Output::Buried { .. } => None,
    }
}
