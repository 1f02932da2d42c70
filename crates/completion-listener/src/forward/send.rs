//! What goes out, and what its answers mean.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use attune_bus::{Outgoing, PublishError, Refusal, Topic};
use attune_messages::v1::{ExecutionCompleted, SlotRelease};
use attune_messages::{Envelope, Pack, Packer, encode_raw};
use uuid::Uuid;

use super::{Carries, Forwarder, MAX_CALLS, Now, Outcome, Output, Parcel, Target};

/// How often a dead letter may be refused before it is given up: nothing can be done with it,
/// and dead letters that are full must not keep completions from their owners.
const LETTER_TRIES: u32 = 3;
/// How often what is stuck may be sent back to the end.
const SEND_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Messages of one lane in one publish, at most.
const MAX_MESSAGES: usize = 64;

impl Forwarder {
    /// Publishes what may go now: completions in one call, dead letters in another, so that
    /// neither waits for the other.
    pub(super) fn publish(&mut self, now: Now, outputs: &mut Vec<Output>) {
        let ready: Vec<Target> = self
            .lanes
            .iter()
            .filter(|(target, lane)| {
                let due = !lane.in_flight && lane.not_before <= now.elapsed;
                due && !lane.is_empty() && self.may_publish(**target)
            })
            .map(|(target, _)| *target)
            .collect();
        let (letters, owners): (Vec<_>, Vec<_>) = ready
            .into_iter()
            .partition(|target| *target == Target::Letters);
        for targets in [owners, letters] {
            if !targets.is_empty() && self.calls.len() < MAX_CALLS {
                self.call(now, &targets, outputs);
            }
        }
    }

    /// Sends what is stuck back to the end of the completions when it takes up the window.
    pub(super) fn send_back(&mut self, now: Now, outputs: &mut Vec<Output>) {
        if !self.is_crowded() || now.elapsed < self.next_send_back || self.calls.len() >= MAX_CALLS
        {
            return;
        }
        let stuck: Vec<Target> = self
            .lanes
            .iter()
            .filter(|lane| self.may_send_back(*lane))
            .map(|(target, _)| *target)
            .collect();
        if stuck.is_empty() {
            return;
        }
        self.next_send_back = now.elapsed + SEND_BACK_INTERVAL;
        for target in &stuck {
            self.pack(now, *target);
            for parcel in self.lanes.entry(*target).or_default().parcels.iter_mut() {
                turn_back(parcel, now, (self.ids)());
            }
        }
        self.call(now, &stuck, outputs);
    }

    /// Publishes the first messages of these lanes together.
    fn call(&mut self, now: Now, targets: &[Target], outputs: &mut Vec<Output>) {
        let (mut declare, mut messages, mut parcels) = (BTreeSet::new(), Vec::new(), Vec::new());
        let call = self.next;
        self.next += 1;
        for &target in targets {
            self.pack(now, target);
            let lane = self.lanes.entry(target).or_default();
            lane.in_flight = true;
            let count = lane.parcels.len().min(MAX_MESSAGES);
            for parcel in lane.parcels.drain(..count) {
                if std::mem::take(&mut lane.declare) {
                    declare.insert(parcel.message.topic.routing_key());
                }
                messages.push(parcel.message.clone());
                parcels.push((target, parcel));
            }
        }
        let declare = messages
            .iter()
            .map(|message: &Outgoing| &message.topic)
            .filter(|topic| declare.remove(&topic.routing_key()))
            .cloned()
            .collect();
        self.calls.insert(call, parcels);
        outputs.push(Output::Publish {
            call,
            declare,
            messages,
        });
    }

    /// Makes messages of the items that wait in a lane.
    fn pack(&mut self, now: Now, target: Target) {
        let bounds = self.bounds();
        let Target::Owner(partition) = target else {
            return;
        };
        let lane = self.lanes.entry(target).or_default();
        let mut packer = Packer::<SlotRelease, (Outcome, u64)>::new(bounds);
        for (item, outcome, number) in lane.items.drain(..) {
            // Completions are mended until they fit.
            packer.add_raw(item, (outcome, number)).ok();
        }
        for pack in packer.finish() {
            let id = (self.ids)();
            let parcel = parcel(Topic::Control(partition), id, now, pack);
            lane.parcels.push_back(parcel);
        }
    }

    /// Takes the answer to a publish into account.
    pub(super) fn answered(
        &mut self,
        now: Now,
        call: u64,
        answer: Result<(), PublishError>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(parcels) = self.calls.remove(&call) else {
            return;
        };
        let refused: HashMap<Uuid, Refusal> = match &answer {
            Err(PublishError::Refused(refused)) => refused
                .iter()
                .map(|refused| (refused.message_id, refused.why.clone()))
                .collect(),
            _ => HashMap::new(),
        };
        self.closed |= matches!(answer, Err(PublishError::Closed));
        let unknown = !matches!(answer, Ok(()) | Err(PublishError::Refused(_)));
        for (target, _) in &parcels {
            self.lanes.entry(*target).or_default().in_flight = false;
        }
        let mut failed = BTreeSet::new();
        // From the end, so that what goes back to the front of its lane keeps its order.
        for (target, parcel) in parcels.into_iter().rev() {
            match refused.get(&parcel.message.message_id) {
                Some(why) => self.refused(now, target, parcel, why, &mut failed, outputs),
                None if unknown => self.again(now, target, parcel, &mut failed),
                None => {
                    self.lanes.entry(target).or_default().failures = 0;
                    self.settle(parcel, None, outputs);
                }
            }
        }
    }

    fn refused(
        &mut self,
        now: Now,
        target: Target,
        mut parcel: Parcel,
        why: &Refusal,
        failed: &mut BTreeSet<Target>,
        outputs: &mut Vec<Output>,
    ) {
        parcel.refusals += 1;
        let hopeless = why.is_final() || parcel.refusals >= LETTER_TRIES;
        if hopeless && matches!(parcel.carries, Carries::Letter(_)) {
            return self.settle(parcel, Some(why.clone()), outputs);
        }
        self.lanes.entry(target).or_default().declare |= *why == Refusal::Unroutable;
        self.again(now, target, parcel, failed);
    }

    /// Puts a message back to the front of its lane, which waits.
    fn again(&mut self, now: Now, target: Target, parcel: Parcel, failed: &mut BTreeSet<Target>) {
        let lane = self.lanes.entry(target).or_default();
        if failed.insert(target) {
            lane.back_off(now, parcel.message.message_id);
        }
        lane.parcels.push_front(parcel);
    }

    /// A message needs nothing more: counts it, and acknowledges what is done with it.
    fn settle(&mut self, parcel: Parcel, given_up: Option<Refusal>, outputs: &mut Vec<Output>) {
        for number in &parcel.deliveries {
            if let Some(held) = self.held.get_mut(number) {
                held.open -= 1;
                if held.open == 0
                    && let Some(held) = self.held.remove(number)
                {
                    self.held_bytes -= held.bytes;
                    self.done.push(held.tag);
                }
            }
        }
        match parcel.carries {
            Carries::Completions(outcomes) => outputs.push(Output::Forwarded(outcomes)),
            Carries::Letter(reason) => outputs.push(Output::Buried { reason, given_up }),
            Carries::Unread => {}
        }
    }
}

/// A pack as a message to its owner.
fn parcel(topic: Topic, id: Uuid, now: Now, pack: Pack<SlotRelease, (Outcome, u64)>) -> Parcel {
    let message = Outgoing::new(topic, id, pack.encode(id, now.wall));
    let (outcomes, deliveries) = pack.into_tags().into_iter().unzip();
    Parcel {
        message,
        carries: Carries::Completions(outcomes),
        deliveries,
        refusals: 0,
    }
}

/// Makes a message to an owner one of completions again, which some listener gets once more.
fn turn_back(parcel: &mut Parcel, now: Now, id: Uuid) {
    if let Topic::Control(_) = parcel.message.topic
        && let Ok(envelope) = Envelope::parse(&parcel.message.body, usize::MAX)
    {
        let body = encode_raw::<ExecutionCompleted>(id, now.wall, &[envelope.payload]);
        parcel.message = Outgoing::new(Topic::Completed, id, body);
        parcel.carries = Carries::Unread;
    }
}
