//! What goes out, and what its answers mean.

use std::collections::HashMap;
use std::time::Duration;

use attune_core::{Bug, Refusal};
use attune_messages::{PackBounds, PackSize, Traces, encode_traced};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::lane::{Carries, Lane, Parcel};
use super::{Forwarder, Sent, most_on_the_way};
use crate::port::{Answer, CallId, Message, Now, Output, Target};
use crate::router::Ids;
use crate::rules::Rules;

/// Messages of one lane in one publish, at most, and how many bytes of bodies they fill it to.
const MAX_MESSAGES: usize = 64;
const MAX_BYTES: usize = 4 << 20;

impl<R: Rules> Forwarder<R> {
    /// Publishes what may go now: calls for each target alone, so that none waits for another.
    pub(super) fn publish(&mut self, now: Now, ids: &mut Ids, outputs: &mut Vec<Output<R::Note>>) {
        let bounds = self.pack_bounds();
        for (target, lane) in &mut self.lanes {
            if self.looping.is_some_and(|only| only != *target) {
                continue;
            }
            let may_send = lane.may_send(most_on_the_way::<R>(*target));
            if !may_send || lane.not_before > now.elapsed || lane.is_empty() {
                continue;
            }
            // The second of two messages may be kept when the first is refused.
            let in_order = R::ORDERED && matches!(target, Target::Partition(_));
            let most = if in_order { 1 } else { MAX_MESSAGES };
            let parcels = take::<R>(lane, most, bounds, now, ids);
            self.calls += 1;
            let call = CallId(self.calls);
            lane.sent(call, now.elapsed);
            outputs.push(Output::Publish {
                call,
                to: *target,
                declare: std::mem::take(&mut lane.declare),
                messages: parcels.iter().map(|one| one.message.clone()).collect(),
            });
            let to = *target;
            self.sent.insert(call, Sent { to, parcels });
        }
    }

    /// Takes the answer to a publish into account.
    pub(crate) fn answered(
        &mut self,
        now: Now,
        call: CallId,
        answer: Answer,
        ids: &mut Ids,
        outputs: &mut Vec<Output<R::Note>>,
    ) {
        let Some(Sent { to, parcels }) = self.sent.remove(&call) else {
            return;
        };
        let sent_at = self.lane(to).answered(call);
        if Bug::RefusedLoop.is_planted() {
            self.looping = matches!(answer, Answer::Refused(_)).then_some(to);
            if self.looping.is_some() {
                self.lane(to).parcels.extend(parcels);
                return;
            }
        }
        self.closed |= answer == Answer::Closed;
        let unknown = matches!(answer, Answer::Unknown | Answer::Closed);
        let mut refused: HashMap<Uuid, Refusal> = match answer {
            Answer::Refused(refused) => refused.into_iter().collect(),
            _ => HashMap::new(),
        };
        let mut failed = false;
        // From the end, so that what goes back to the front of its lane keeps its order.
        for parcel in parcels.into_iter().rev() {
            match refused.remove(&parcel.message.message_id) {
                Some(why) if why.is_final() => {
                    self.hopeless((now, sent_at), to, parcel, &why, ids, &mut failed);
                }
                Some(why) => {
                    self.lane(to).declare |= why == Refusal::Unroutable;
                    self.again((now, sent_at), to, parcel, true, &mut failed);
                }
                None if unknown => self.again((now, sent_at), to, parcel, false, &mut failed),
                None => self.kept(to, parcel, outputs),
            }
        }
    }

    /// Puts a message that was sent then back to the front of its lane, which waits.
    fn again(
        &mut self,
        (now, sent_at): (Now, Duration),
        to: Target,
        parcel: Parcel<R::Note>,
        refuses: bool,
        failed: &mut bool,
    ) {
        let lane = self.lane(to);
        if !std::mem::replace(failed, true) {
            lane.back_off(now, sent_at, parcel.message.message_id, refuses);
        }
        lane.parcels.push_front(parcel);
    }

    fn kept(&mut self, to: Target, parcel: Parcel<R::Note>, outputs: &mut Vec<Output<R::Note>>) {
        self.lane(to).reset();
        self.settle(&parcel.deliveries);
        match parcel.carries {
            Carries::Items(items) => {
                let notes = items.into_iter().map(|(_, note)| note).collect();
                outputs.push(Output::Forwarded(notes));
            }
            Carries::Letter(_) => {
                let reason = parcel.message.reason.unwrap_or_default();
                outputs.push(Output::Buried { reason });
            }
            Carries::Unread(copy) => {
                if let Some(copy) = copy {
                    self.copies.went_back(copy);
                }
            }
        }
    }

    /// The bus will never carry a message. Items become dead letters. What is one, or goes back, is
    /// tried without the headers that it came with, but for how often it went back; should even that be
    /// refused, it waits as if there were no room.
    fn hopeless(
        &mut self,
        (now, sent_at): (Now, Duration),
        to: Target,
        mut parcel: Parcel<R::Note>,
        why: &Refusal,
        ids: &mut Ids,
        failed: &mut bool,
    ) {
        if matches!(parcel.carries, Carries::Items(_)) {
            return self.bury_items(now, ids, parcel, &why.to_string());
        }
        let mut headers = Vec::new();
        if let Carries::Unread(Some(copy)) = &parcel.carries {
            copy.mark(&mut headers);
        }
        let had_headers = std::mem::replace(&mut parcel.message.headers, headers);
        let had_reply_to = parcel.message.reply_to.take();
        if had_headers == parcel.message.headers && had_reply_to.is_none() {
            return self.again((now, sent_at), to, parcel, true, failed);
        }
        self.lane(to).parcels.push_front(parcel);
    }
}

/// Takes the first messages of a lane, packing items where there are not enough.
fn take<R: Rules>(
    lane: &mut Lane<R::Note>,
    most: usize,
    bounds: PackBounds,
    now: Now,
    ids: &mut Ids,
) -> Vec<Parcel<R::Note>> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < most && bytes < MAX_BYTES {
        // Answers name messages by their ids, and senders may give one id to different messages.
        let next = lane.parcels.front().map(|next| next.message.message_id);
        let is_taken = |taken: &Parcel<_>| Some(taken.message.message_id) == next;
        if taken.iter().any(is_taken) {
            break;
        }
        let next = lane.parcels.pop_front();
        let Some(parcel) = next.or_else(|| pack::<R>(lane, bounds, now, ids)) else {
            break;
        };
        bytes += parcel.message.body.len();
        taken.push(parcel);
    }
    taken
}

/// Makes a message of the first items of a lane, as far as they fit together and their answers go
/// to the same place.
fn pack<R: Rules>(
    lane: &mut Lane<R::Note>,
    bounds: PackBounds,
    now: Now,
    ids: &mut Ids,
) -> Option<Parcel<R::Note>> {
    let reply_to = lane.items.front()?.reply_to.clone();
    let mut size = PackSize::of::<R::Out>(bounds);
    let (mut items, mut deliveries) = (Vec::new(), Vec::new());
    while let Some(next) = lane.items.pop_front_if(|next| {
        let trace = R::trace(&next.note).map_or(0, |_| Traces::BYTES);
        let bytes = next.item.get().len() + trace;
        // The rules forward nothing that does not fit alone.
        next.reply_to == reply_to && size.add(bytes).unwrap_or(items.is_empty())
    }) {
        deliveries.push(next.delivery);
        items.push((next.item, next.note));
    }
    let raw: Vec<&RawValue> = items.iter().map(|(item, _)| item.as_ref()).collect();
    let message_id = ids();
    let traces = Traces::of(items.iter().map(|(_, note)| R::trace(note)));
    let body = encode_traced::<R::Out>(message_id, now.wall, &raw, &traces).into();
    let message = Message {
        message_id,
        body,
        reply_to,
        headers: Vec::new(),
        reason: None,
    };
    Some(Parcel {
        message,
        carries: Carries::Items(items),
        deliveries,
    })
}
