//! Which published messages wait for their confirm, and which of them the broker sent back.
//!
//! An unroutable `mandatory` message is confirmed like any other; that it was not kept is said by
//! a `basic.return` before its confirm. lapin attaches the *oldest waiting* return to *whatever*
//! confirm it completes next, and completes a multiple confirm in the order of a hash map, so a
//! return may hang on the confirm of another message, earlier or later. Therefore returns are
//! attributed here, by message id and routing key, and nothing is called confirmed before every
//! return that could concern it has been seen:
//!
//! - the broker sends returns in the order of publishing, each before the confirm of its message;
//! - lapin hands out one waiting return with each confirm, oldest first. So a confirm that comes
//!   *bare*, without a return, says that none was waiting: whatever was confirmed up to then has
//!   had its return handed out, if it has one, with that confirm or an earlier one;
//! - and among the first n messages published there are never more returns waiting than unroutable
//!   messages whose confirm is outstanding; hence, when all of the first n messages have their
//!   confirm, all their returns have been handed out.
//!
//! So what became of a message is known when it is confirmed, every confirm that lapin has
//! completed by then has been reported here (the publisher sees to that before it asks for what is
//! settled), and one of these holds: its own confirm came bare; one that came later did; it was sent
//! back or refused itself; or everything before it is confirmed as well. Almost every confirm comes
//! bare. So each message is settled by itself, whatever becomes of those before it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use attune_bus::{Refusal, Refused};
use lapin::types::ShortString;
use tokio::time::Instant;
use uuid::Uuid;

use crate::barred::Route;

/// What the broker said about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Kept, unless it was sent back.
    Acked,
    /// Not kept: its queue is at its bound.
    Nacked,
}

/// What became of a message that went another way than those of the window.
#[derive(Debug)]
pub(crate) enum Became {
    Kept,
    Refused(Refused),
    Unknown(String),
}

/// Names a call.
pub(crate) type CallId = u64;

struct Slot {
    call: CallId,
    id: Uuid,
    to: Route,
    /// How large its body is.
    bytes: usize,
    /// Whether nobody misses it.
    is_hint: bool,
    sent: Instant,
    /// Its confirm came without a return.
    is_bare: bool,
    /// It was confirmed before what is reported now.
    is_earlier: bool,
    refused: Option<Refusal>,
}

struct Call<T> {
    owner: T,
    /// All its messages are written.
    is_whole: bool,
    /// How many of them are not settled.
    left: usize,
    refused: Vec<Refused>,
    /// Why of one of its messages nobody knows what became of it.
    unknown: Option<String>,
}

/// What is known of a message when it is published.
pub(crate) struct Sent {
    pub(crate) id: Uuid,
    pub(crate) to: Route,
    /// How large its body is.
    pub(crate) bytes: usize,
    /// Whether nobody misses it.
    pub(crate) is_hint: bool,
    pub(crate) at: Instant,
}

/// The messages of one connection that are not settled. `T` is who asked.
pub(crate) struct Window<T> {
    /// In the order of publishing.
    slots: BTreeMap<u64, Slot>,
    /// The next sequence number.
    next: u64,
    unconfirmed: BTreeSet<u64>,
    /// Confirmed and not settled.
    confirmed: BTreeSet<u64>,
    /// A confirm came bare since calls were last settled.
    saw_bare: bool,
    /// In the order in which they began.
    calls: BTreeMap<CallId, Call<T>>,
    next_call: CallId,
    /// Calls that may be settled now.
    touched: BTreeSet<CallId>,
    /// Calls that are over, with why their outcome is unknown.
    lost: Vec<(T, String)>,
}

impl<T> Window<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: BTreeMap::new(),
            next: 0,
            unconfirmed: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            saw_bare: false,
            calls: BTreeMap::new(),
            next_call: 0,
            touched: BTreeSet::new(),
            lost: Vec::new(),
        }
    }

    /// Whether everything is settled.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self, owner: T) -> CallId {
        let id = self.next_call;
        self.next_call += 1;
        let call = Call {
            owner,
            is_whole: false,
            left: 0,
            refused: Vec::new(),
            unknown: None,
        };
        self.calls.insert(id, call);
        id
    }

    /// Adds a message to a call; answers its sequence number.
    pub(crate) fn push(&mut self, call: CallId, sent: Sent) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let slot = Slot {
            call,
            id: sent.id,
            to: sent.to,
            bytes: sent.bytes,
            is_hint: sent.is_hint,
            sent: sent.at,
            is_bare: false,
            is_earlier: false,
            refused: None,
        };
        self.slots.insert(sequence, slot);
        self.unconfirmed.insert(sequence);
        if let Some(call) = self.calls.get_mut(&call) {
            call.left += 1;
        }
        sequence
    }

    /// Says that a call has all its messages.
    pub(crate) fn finish(&mut self, call: CallId) {
        if let Some(whole) = self.calls.get_mut(&call) {
            whole.is_whole = true;
            self.touched.insert(call);
        }
    }

    /// Adds a message to a call that goes another way; [`release`](Self::release) says what became of it.
    pub(crate) fn hold(&mut self, call: CallId) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.left += 1;
        }
    }

    /// What became of a message that went another way.
    pub(crate) fn release(&mut self, call: CallId, became: Became) {
        let Some(held) = self.calls.get_mut(&call) else {
            return;
        };
        held.left -= 1;
        match became {
            Became::Kept => {}
            Became::Refused(refused) => held.refused.push(refused),
            Became::Unknown(why) => held.unknown = Some(why),
        }
        self.touched.insert(call);
    }

    /// The broker closed the channel because of a message: what it says of those that are not confirmed, by
    /// `is_it`, which is asked for one after the other. It takes messages in their order and none after
    /// the one for which it closes the channel. So of those that it could be, the last was not taken for
    /// certain: it is that one, or comes after it. Of the others nobody knows: the user may have lost the
    /// right while they were on their way.
    pub(crate) fn refuse_last(&mut self, is_it: impl Fn(&Route) -> bool, why: Refusal) -> bool {
        let mut unconfirmed = self.unconfirmed.iter().rev();
        let last = unconfirmed.find(|sequence| {
            let slot = self.slots.get(sequence);
            slot.is_some_and(|slot| is_it(&slot.to))
        });
        let last = last.copied();
        if let Some(sequence) = last {
            self.refuse(sequence, why);
        }
        last.is_some()
    }

    /// Likewise for the size of a message: of so many bytes none is taken, whenever it comes.
    pub(crate) fn refuse_size(&mut self, size: usize, why: &Refusal) -> bool {
        let unconfirmed = self.unconfirmed.iter().copied();
        let of_size = unconfirmed.filter(|sequence| {
            let slot = self.slots.get(sequence);
            slot.is_some_and(|slot| slot.bytes == size)
        });
        let of_size: Vec<u64> = of_size.collect();
        for sequence in &of_size {
            self.refuse(*sequence, why.clone());
        }
        !of_size.is_empty()
    }

    fn refuse(&mut self, sequence: u64, why: Refusal) {
        self.unconfirmed.remove(&sequence);
        self.confirmed.remove(&sequence);
        if let Some(mut slot) = self.slots.remove(&sequence) {
            slot.refused = Some(why);
            self.count(slot);
        }
    }

    /// By which ways what is not confirmed goes, and whether nobody misses it, in the order of publishing.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (&Route, bool)> {
        let unconfirmed = self.unconfirmed.iter();
        let slots = unconfirmed.filter_map(|sequence| self.slots.get(sequence));
        slots.map(|slot| (&slot.to, slot.is_hint))
    }

    /// Notes the confirm of a message, and whether it came without a return; answers where the
    /// message went. The return that lapin attached has to be given to
    /// [`returned`](Self::returned): it may belong to another one.
    pub(crate) fn confirmed(
        &mut self,
        sequence: u64,
        verdict: Verdict,
        is_bare: bool,
    ) -> Option<ShortString> {
        self.saw_bare |= is_bare;
        if !self.unconfirmed.remove(&sequence) {
            return None;
        }
        self.confirmed.insert(sequence);
        let slot = self.slots.get_mut(&sequence)?;
        slot.is_bare = is_bare;
        if verdict == Verdict::Nacked {
            slot.refused = Some(Refusal::Full);
        }
        Some(slot.to.key.clone())
    }

    /// Notes that a message was sent back; answers whether it is known. Should the same message
    /// be in flight twice (it was published again after its outcome had become unknown), both
    /// count as refused: too often is harmless, it is published again; too rarely loses it.
    pub(crate) fn returned(&mut self, id: Uuid, routing_key: &str) -> bool {
        let mut known = false;
        for slot in self.slots.values_mut() {
            if slot.id == id && slot.to.key.as_str() == routing_key {
                slot.refused = Some(Refusal::Unroutable);
                known = true;
            }
        }
        known
    }

    /// Takes the calls that are settled, oldest first, each with what was refused of it, but for those of
    /// which [`lost`](Self::lost) says that nobody knows.
    /// Only to be called when every completed confirm has been reported.
    pub(crate) fn settled(&mut self) -> Vec<(T, Vec<Refused>)> {
        let bare_now = std::mem::take(&mut self.saw_bare);
        let all_before = self.unconfirmed.first().copied().unwrap_or(self.next);
        for sequence in std::mem::take(&mut self.confirmed) {
            let Some(slot) = self.slots.get_mut(&sequence) else {
                continue;
            };
            let is_known = slot.is_bare
                || (slot.is_earlier && bare_now)
                || slot.refused.is_some()
                || sequence < all_before;
            if !is_known {
                slot.is_earlier = true;
                self.confirmed.insert(sequence);
            } else if let Some(slot) = self.slots.remove(&sequence) {
                self.count(slot);
            }
        }
        let mut settled = Vec::new();
        for id in std::mem::take(&mut self.touched) {
            let call = self.calls.get(&id);
            if call.is_some_and(|call| call.is_whole && call.left == 0)
                && let Some(call) = self.calls.remove(&id)
            {
                match call.unknown {
                    None => settled.push((call.owner, call.refused)),
                    Some(why) => self.lost.push((call.owner, why)),
                }
            }
        }
        settled
    }

    /// Takes the calls that are over and of which nobody knows what became of every message, with why.
    /// They show once it was asked for what is settled.
    pub(crate) fn lost(&mut self) -> Vec<(T, String)> {
        std::mem::take(&mut self.lost)
    }

    /// Tells a call what became of one of its messages.
    fn count(&mut self, slot: Slot) {
        let Some(call) = self.calls.get_mut(&slot.call) else {
            return;
        };
        call.left -= 1;
        let message_id = slot.id;
        let refused = slot.refused.map(|why| Refused { message_id, why });
        call.refused.extend(refused);
        self.touched.insert(slot.call);
    }

    /// When the oldest message that is not confirmed was sent.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let oldest = self.slots.get(self.unconfirmed.first()?)?;
        Some(oldest.sent)
    }

    /// Ends the window; what is left is unknown.
    pub(crate) fn into_owners(self) -> impl Iterator<Item = T> {
        let lost = self.lost.into_iter().map(|(owner, _)| owner);
        lost.chain(self.calls.into_values().map(|call| call.owner))
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
