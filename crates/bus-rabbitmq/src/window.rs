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
//! - lapin hands out one waiting return with each confirm, oldest first; so among the first n
//!   messages published there are never more returns waiting than unroutable messages whose
//!   confirm is outstanding;
//! - hence, when all of the first n messages have their confirm, all their returns have been
//!   handed out, with the confirms of any messages that were completed by then.
//!
//! So calls are answered in the order of publishing, when everything up to their end is confirmed
//! *and* every confirm that lapin has completed by then has been reported here (the publisher sees
//! to the second). Pure.

use std::collections::VecDeque;

use attune_bus::{Refusal, Refused};
use lapin::types::ShortString;
use tokio::time::Instant;
use uuid::Uuid;

/// How many messages may wait for their confirm. More in flight gains nothing measurable.
pub(crate) const MAX_MESSAGES: usize = 1_024;
/// How many bytes of bodies may; lapin holds a copy of each until it is written.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// What the broker said about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Kept, unless it was sent back.
    Acked,
    /// Not kept: its queue is at its bound.
    Nacked,
}

struct Slot {
    id: Uuid,
    routing_key: ShortString,
    bytes: usize,
    sent: Instant,
    confirmed: bool,
    refused: Option<Refusal>,
}

struct Call<T> {
    owner: T,
    /// The sequence number after its last message; `None` while it is being written.
    end: Option<u64>,
    refused: Vec<Refused>,
}

/// The messages of one connection that are not settled. `T` is who asked.
pub(crate) struct Window<T> {
    /// In the order of publishing; the front is the oldest that is not settled.
    slots: VecDeque<Slot>,
    /// The sequence number of the front.
    first: u64,
    /// In the order of publishing.
    calls: VecDeque<Call<T>>,
    bytes: usize,
}

impl<T> Window<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            calls: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Whether another message may be sent now. One is always allowed, whatever its size.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.is_empty() || (self.slots.len() < MAX_MESSAGES && self.bytes < MAX_BYTES)
    }

    /// Whether everything is settled.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Begins a call; its messages follow.
    pub(crate) fn begin(&mut self, owner: T) {
        self.calls.push_back(Call {
            owner,
            end: None,
            refused: Vec::new(),
        });
    }

    /// Adds a message to the call that was begun last; answers its sequence number.
    pub(crate) fn push(
        &mut self,
        id: Uuid,
        routing_key: ShortString,
        bytes: usize,
        sent: Instant,
    ) -> u64 {
        let sequence = self.first + self.slots.len() as u64;
        self.bytes += bytes;
        self.slots.push_back(Slot {
            id,
            routing_key,
            bytes,
            sent,
            confirmed: false,
            refused: None,
        });
        sequence
    }

    /// Says that the call that was begun last has all its messages.
    pub(crate) fn finish(&mut self) {
        let end = self.first + self.slots.len() as u64;
        if let Some(call) = self.calls.back_mut() {
            call.end = Some(end);
        }
    }

    /// Notes the confirm of a message. The return that lapin attached to it has to be given to
    /// [`returned`](Self::returned): it may belong to another one.
    pub(crate) fn confirmed(&mut self, sequence: u64, verdict: Verdict) {
        let slot = sequence
            .checked_sub(self.first)
            .and_then(|index| self.slots.get_mut(usize::try_from(index).ok()?));
        if let Some(slot) = slot {
            slot.confirmed = true;
            if verdict == Verdict::Nacked {
                slot.refused = Some(Refusal::Full);
            }
        }
    }

    /// Notes that a message was sent back; answers whether it is known. Should the same message
    /// be in flight twice (it was published again after its outcome had become unknown), both
    /// count as refused: too often is harmless, it is published again; too rarely loses it.
    pub(crate) fn returned(&mut self, id: Uuid, routing_key: &str) -> bool {
        let mut known = false;
        for slot in &mut self.slots {
            if slot.id == id && slot.routing_key.as_str() == routing_key {
                slot.refused = Some(Refusal::Unroutable);
                known = true;
            }
        }
        known
    }

    /// Takes the calls that are settled, oldest first, each with what was refused of it.
    /// Only to be called when every completed confirm has been reported.
    pub(crate) fn settled(&mut self) -> Vec<(T, Vec<Refused>)> {
        let mut settled = Vec::new();
        loop {
            // A call ends where its last message ends; calls without a confirmed front wait.
            while let Some(call) = self.calls.pop_front_if(|call| call.end == Some(self.first)) {
                settled.push((call.owner, call.refused));
            }
            let Some(slot) = self.slots.pop_front_if(|slot| slot.confirmed) else {
                return settled;
            };
            self.first += 1;
            self.bytes -= slot.bytes;
            if let Some(why) = slot.refused
                && let Some(call) = self.calls.front_mut()
            {
                let message_id = slot.id;
                call.refused.push(Refused { message_id, why });
            }
        }
    }

    /// When the oldest message that is not settled was sent.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.slots.front().map(|slot| slot.sent)
    }

    /// Ends the window; what is left is unknown.
    pub(crate) fn into_owners(self) -> impl Iterator<Item = T> {
        self.calls.into_iter().map(|call| call.owner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn refused(message_id: Uuid, why: Refusal) -> Refused {
        Refused { message_id, why }
    }

    fn window(calls: &[usize]) -> (Window<usize>, Vec<Uuid>) {
        let mut window = Window::new();
        let mut ids = Vec::new();
        for (owner, &size) in calls.iter().enumerate() {
            window.begin(owner);
            for _ in 0..size {
                ids.push(Uuid::now_v7());
                window.push(ids[ids.len() - 1], "key".into(), 1, Instant::now());
            }
            window.finish();
        }
        (window, ids)
    }

    #[test]
    fn calls_settle_in_order_when_everything_before_is_confirmed() {
        let (mut window, ids) = window(&[2, 1, 1]);
        for sequence in [3, 2, 1] {
            window.confirmed(sequence, Verdict::Acked);
            assert_eq!(window.settled(), []);
        }
        window.confirmed(0, Verdict::Nacked);
        assert!(window.returned(ids[3], "key"));
        assert!(!window.returned(ids[2], "another key"));
        assert!(!window.returned(Uuid::now_v7(), "key"));
        assert_eq!(
            window.settled(),
            [
                (0, vec![refused(ids[0], Refusal::Full)]),
                (1, vec![]),
                (2, vec![refused(ids[3], Refusal::Unroutable)])
            ]
        );
        assert!(window.is_empty());
    }

    #[test]
    fn a_call_that_is_still_being_written_is_not_settled() {
        let mut window = Window::new();
        window.begin("half");
        let sequence = window.push(Uuid::now_v7(), "key".into(), MAX_BYTES, Instant::now());
        assert!(!window.has_room());
        window.confirmed(sequence, Verdict::Acked);
        assert_eq!(window.settled(), []);
        assert!(window.has_room());
        window.push(Uuid::now_v7(), "key".into(), 1, Instant::now());
        window.finish();
        assert_eq!(window.settled(), []);
        window.confirmed(1, Verdict::Acked);
        assert_eq!(window.settled(), [("half", vec![])]);
    }

    #[test]
    fn the_same_message_twice_in_flight_is_refused_twice() {
        let mut window = Window::new();
        let id = Uuid::now_v7();
        for owner in ["first", "again"] {
            window.begin(owner);
            let sequence = window.push(id, "key".into(), 1, Instant::now());
            window.finish();
            window.confirmed(sequence, Verdict::Acked);
        }
        assert!(window.returned(id, "key"));
        let both = ["first", "again"].map(|call| (call, vec![refused(id, Refusal::Unroutable)]));
        assert_eq!(window.settled(), both);
    }

    #[test]
    fn room_is_bounded_by_number() {
        let (window, _) = window(&[MAX_MESSAGES - 1]);
        assert!(window.has_room());
        let (window, _) = self::window(&[MAX_MESSAGES]);
        assert!(!window.has_room());
    }

    /// lapin's side: returns queue up, and each confirm takes the oldest along.
    #[derive(Default)]
    struct Lapin {
        waiting: VecDeque<Uuid>,
        /// Completed and not yet seen by the publisher.
        completed: Vec<(u64, Option<Uuid>)>,
    }

    /// A broker that returns in order and confirms routable messages whenever it likes, and a
    /// publisher that sees confirms in any order, in bunches: what is refused is exactly what was
    /// unroutable.
    #[test]
    fn misattributed_returns_never_hide_a_refusal_and_never_cause_one() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let sizes: Vec<usize> = (0..30).map(|_| random.random_range(1..=8)).collect();
            let (mut window, ids) = window(&sizes);
            let unroutable: HashSet<Uuid> = ids
                .iter()
                .filter(|_| random.random_bool(0.15))
                .copied()
                .collect();
            let mut lapin = Lapin::default();
            let mut confirmable = Vec::new();
            let mut refused = HashSet::new();
            let mut settled = Vec::new();
            let mut sent = 0;
            while settled.len() < sizes.len() {
                // The broker takes some messages, in order …
                for _ in 0..random.random_range(0..=6) {
                    if let Some(id) = ids.get(sent) {
                        if unroutable.contains(id) {
                            lapin.waiting.push_back(*id);
                        }
                        confirmable.push(sent as u64);
                        sent += 1;
                    }
                }
                // … and confirms some of those it took, in any order.
                confirmable.shuffle(&mut random);
                for _ in 0..random.random_range(0..=confirmable.len()) {
                    let sequence = confirmable.pop().unwrap();
                    lapin.completed.push((sequence, lapin.waiting.pop_front()));
                }
                // The publisher sees all that is completed, in any order, before it settles.
                lapin.completed.shuffle(&mut random);
                for (sequence, returned) in lapin.completed.drain(..) {
                    window.confirmed(sequence, Verdict::Acked);
                    if let Some(id) = returned {
                        assert!(
                            window.returned(id, "key"),
                            "seed {seed}: not settled too early"
                        );
                    }
                }
                for (owner, returned) in window.settled() {
                    settled.push(owner);
                    refused.extend(returned.into_iter().map(|refused| refused.message_id));
                }
            }
            assert_eq!(settled, (0..sizes.len()).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(refused, unroutable, "seed {seed}");
        }
    }
}
