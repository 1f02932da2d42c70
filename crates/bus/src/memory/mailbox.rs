//! What is kept for a topic, and who receives from it.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use std::collections::{BTreeMap, VecDeque};

use tokio::sync::mpsc;

use super::Room;
use crate::port::{Delivery, DeliveryTag, Outgoing, PublishError, Refusal, Refused};

/// How several subscribers stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// The oldest receives everything; the others wait until it is gone.
    InTurn,
    /// They take turns, message by message.
    Together,
}

/// What happens to a message for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// It is refused.
    Refuse,
    /// The one that has waited longest makes room for it.
    DropOldest,
}

/// Messages that wait or are unsettled, and their subscribers.
pub(super) struct Mailbox {
    sharing: Sharing,
    overflow: Overflow,
    state: Mutex<State>,
}

struct State {
    room: Room,
    /// What waits to be delivered, by rising `place`.
    waiting: VecDeque<Kept>,
    /// The bodies of what waits or is unsettled, in bytes.
    bytes: usize,
    /// In the order in which they came.
    receivers: Vec<Receiver>,
    /// Where the next turn begins, when subscribers share.
    turn: usize,
    /// How many messages are with receivers, unsettled.
    unsettled: usize,
    /// The place of the next message.
    next_place: u64,
    /// Its one subscriber is gone, for good.
    abandoned: bool,
    closed: bool,
}

struct Kept {
    /// Where it stands in the order of the mailbox; it keeps its place when it is given back.
    place: u64,
    redelivered: bool,
    message: Outgoing,
}

struct Receiver {
    generation: u64,
    prefetch: usize,
    next_number: u64,
    /// What was delivered and not settled, by its number.
    unsettled: BTreeMap<u64, Kept>,
    /// Has room for `prefetch` deliveries.
    deliveries: mpsc::Sender<Delivery>,
}

impl Mailbox {
    pub(super) fn new(sharing: Sharing, overflow: Overflow, room: Room) -> Self {
        let state = State {
            room,
            waiting: VecDeque::new(),
            bytes: 0,
            receivers: Vec::new(),
            turn: 0,
            unsettled: 0,
            next_place: 0,
            abandoned: false,
            closed: false,
        };
        Self {
            sharing,
            overflow,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps messages and delivers what can be delivered; those that find no room are added to
    /// `refused`.
    pub(super) fn post(
        &self,
        run: &mut dyn Iterator<Item = Outgoing>,
        refused: &mut Vec<Refused>,
    ) -> Result<(), PublishError> {
        let mut state = self.lock();
        if state.closed {
            return Err(PublishError::Closed);
        }
        if state.abandoned {
            let unroutable = run.map(super::unroutable);
            match self.overflow {
                Overflow::Refuse => refused.extend(unroutable),
                Overflow::DropOldest => unroutable.for_each(drop),
            }
            return Ok(());
        }
        for message in run {
            if self.overflow == Overflow::DropOldest {
                state.make_room(message.body.len());
            }
            if !state.has_room(message.body.len()) {
                // Even where messages may go nowhere the bound holds: when everything kept is
                // unsettled, it is the new message that goes.
                if self.overflow == Overflow::Refuse {
                    refused.push(Refused {
                        message_id: message.message_id,
                        why: Refusal::Full,
                    });
                }
                continue;
            }
            let place = state.next_place;
            state.next_place += 1;
            state.bytes += message.body.len();
            state.waiting.push_back(Kept {
                place,
                redelivered: false,
                message,
            });
        }
        state.deliver(self.sharing);
        Ok(())
    }

    /// Adds a subscriber; `None` when the bus is closed.
    pub(super) fn attach(
        &self,
        generation: u64,
        prefetch: u16,
    ) -> Option<mpsc::Receiver<Delivery>> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let (sender, deliveries) = mpsc::channel(usize::from(prefetch));
        state.receivers.push(Receiver {
            generation,
            prefetch: usize::from(prefetch),
            next_number: 1,
            unsettled: BTreeMap::new(),
            deliveries: sender,
        });
        state.deliver(self.sharing);
        Some(deliveries)
    }

    /// Removes a subscriber; what it did not settle takes its old place again.
    pub(super) fn detach(&self, generation: u64) {
        let mut state = self.lock();
        let Some(index) = state
            .receivers
            .iter()
            .position(|r| r.generation == generation)
        else {
            return;
        };
        let gone = state.receivers.remove(index);
        state.unsettled -= gone.unsettled.len();
        state.take_back(gone.unsettled.into_values());
        state.deliver(self.sharing);
    }

    /// The messages with these numbers are done with; unknown numbers are skipped.
    pub(super) fn settle(&self, generation: u64, numbers: impl Iterator<Item = u64>) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(receiver) = state
            .receivers
            .iter_mut()
            .find(|r| r.generation == generation)
        else {
            return false;
        };
        for number in numbers {
            if let Some(kept) = receiver.unsettled.remove(&number) {
                state.unsettled -= 1;
                state.bytes -= kept.message.body.len();
            }
        }
        state.deliver(self.sharing);
        true
    }

    /// Bounds it anew; what is kept already stays.
    pub(super) fn set_room(&self, room: Room) {
        self.lock().room = room;
    }

    /// How many messages wait or are with receivers, unsettled.
    pub(super) fn kept(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.unsettled
    }

    /// Ends its subscriber and what it keeps; from now on nobody is there.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.clear();
    }

    /// Ends all subscribers and takes nothing any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.clear();
    }
}

impl State {
    fn clear(&mut self) {
        self.receivers.clear();
        self.waiting.clear();
        self.unsettled = 0;
        self.bytes = 0;
    }

    /// Whether one more message of so many bytes may be kept. An empty mailbox has room for one
    /// of any size, as a queue of a broker has.
    fn has_room(&self, bytes: usize) -> bool {
        let kept = self.waiting.len() + self.unsettled;
        kept < self.room.messages && (kept == 0 || self.bytes + bytes <= self.room.bytes)
    }

    /// Drops what has waited longest until so many bytes find room, as far as that helps.
    fn make_room(&mut self, bytes: usize) {
        while !self.has_room(bytes)
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.bytes -= oldest.message.body.len();
        }
    }

    /// Hands out what waits, as far as receivers have room for it.
    fn deliver(&mut self, sharing: Sharing) {
        while !self.waiting.is_empty() {
            let count = self.receivers.len();
            let candidates = match sharing {
                Sharing::InTurn => count.min(1),
                Sharing::Together => count,
            };
            let start = self.turn;
            let free = (0..candidates)
                .map(|offset| (start + offset) % candidates)
                .find(|&index| self.receivers[index].has_room());
            let Some(index) = free else { return };
            let Some(kept) = self.waiting.pop_front() else {
                return;
            };
            self.turn = index + 1;
            self.receivers[index].deliver(kept);
            self.unsettled += 1;
        }
    }

    /// Puts messages back to where they stood, marked as delivered before.
    fn take_back(&mut self, messages: impl DoubleEndedIterator<Item = Kept>) {
        // Everything that was delivered stood before everything that waits, so that this puts
        // them to the front. Only another subscriber's returns can stand before them.
        for mut kept in messages.rev() {
            kept.redelivered = true;
            let index = self
                .waiting
                .partition_point(|waiting| waiting.place < kept.place);
            if index == 0 {
                self.waiting.push_front(kept);
            } else {
                self.waiting.insert(index, kept);
            }
        }
    }
}

impl Receiver {
    /// Whether it may be given one more. The channel has room whenever the prefetch has, unless
    /// someone settled a delivery before it was received; one that is closed belongs to a
    /// subscriber that is being dropped, whose lease delivers again in a moment.
    fn has_room(&self) -> bool {
        self.unsettled.len() < self.prefetch
            && self.deliveries.capacity() > 0
            && !self.deliveries.is_closed()
    }

    fn deliver(&mut self, kept: Kept) {
        let number = self.next_number;
        self.next_number += 1;
        let delivery = Delivery {
            tag: DeliveryTag {
                generation: self.generation,
                number,
            },
            body: kept.message.body.clone(),
            message_id: Some(kept.message.message_id.to_string()),
            reply_to: kept.message.reply_to.clone(),
            redelivered: kept.redelivered,
            user_id: None,
            headers: kept.message.headers.clone(),
        };
        self.unsettled.insert(number, kept);
        // Room was checked, and only the holder of the mailbox's lock sends. A receiver that
        // was dropped since then gives the message back when its lease ends.
        drop(self.deliveries.try_send(delivery));
    }
}

#[cfg(test)]
mod tests {
    use attune_core::WorkerId;
    use uuid::Uuid;

    use super::*;
    use crate::port::Topic;

    fn room(messages: usize) -> Room {
        Room {
            messages,
            bytes: usize::MAX,
        }
    }

    fn post(mailbox: &Mailbox, bodies: std::ops::Range<u8>) -> usize {
        let mut refused = Vec::new();
        let mut run =
            bodies.map(|body| Outgoing::new(Topic::Completed, Uuid::now_v7(), vec![body]));
        mailbox.post(&mut run, &mut refused).unwrap();
        refused.len()
    }

    fn bodies(deliveries: &mut mpsc::Receiver<Delivery>) -> Vec<u8> {
        std::iter::from_fn(|| deliveries.try_recv().ok())
            .map(|delivery| delivery.body[0])
            .collect()
    }

    #[test]
    fn returns_of_several_subscribers_take_their_old_places() {
        let mailbox = Mailbox::new(Sharing::Together, Overflow::Refuse, room(100));
        let mut first = mailbox.attach(1, 3).unwrap();
        let mut second = mailbox.attach(2, 3).unwrap();
        assert_eq!(post(&mailbox, 0..10), 0);
        assert_eq!(
            (bodies(&mut first), bodies(&mut second)),
            (vec![0, 2, 4], vec![1, 3, 5])
        );
        // The even ones go back while the second subscriber has no room, then the odd ones.
        mailbox.detach(1);
        mailbox.detach(2);
        let mut third = mailbox.attach(3, 100).unwrap();
        assert_eq!(bodies(&mut third), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_unsettled_counts_against_the_bound() {
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::Refuse, room(4));
        let mut deliveries = mailbox.attach(1, 2).unwrap();
        assert_eq!(post(&mailbox, 0..6), 2);
        assert_eq!(bodies(&mut deliveries), [0, 1]);
        assert_eq!(post(&mailbox, 6..7), 1);
        mailbox.settle(1, [1, 1, 77].into_iter());
        assert_eq!(post(&mailbox, 7..9), 1);
        mailbox.settle(1, [2].into_iter());
        assert_eq!(bodies(&mut deliveries), [2, 3]);
        mailbox.settle(1, [3, 4].into_iter());
        assert_eq!(bodies(&mut deliveries), [7]);
    }

    #[test]
    fn the_oldest_makes_room_where_messages_may_go_nowhere() {
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::DropOldest, room(3));
        let mut deliveries = mailbox.attach(1, 1).unwrap();
        assert_eq!(post(&mailbox, 0..6), 0);
        let mut seen = bodies(&mut deliveries);
        for number in 1..=2 {
            mailbox.settle(1, [number].into_iter());
            seen.extend(bodies(&mut deliveries));
        }
        // A run is taken in before anything of it is delivered: its last three were left.
        assert_eq!(seen, [3, 4, 5]);
    }

    #[test]
    fn bytes_are_bounded_as_well() {
        let room = Room {
            messages: 100,
            bytes: 10,
        };
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::Refuse, room);
        let message = |bytes| Outgoing::new(Topic::Completed, Uuid::now_v7(), vec![0; bytes]);
        let mut refused = Vec::new();
        // One alone may be larger than the room.
        let large = [message(11), message(1)];
        let expected = Refused {
            message_id: large[1].message_id,
            why: Refusal::Full,
        };
        mailbox.post(&mut large.into_iter(), &mut refused).unwrap();
        assert_eq!(refused, [expected]);
        let mut deliveries = mailbox.attach(1, 2).unwrap();
        assert_eq!(deliveries.try_recv().unwrap().body.len(), 11);
        mailbox.settle(1, [1].into_iter());
        refused.clear();
        let run = [message(6), message(4), message(1)];
        mailbox.post(&mut run.into_iter(), &mut refused).unwrap();
        assert_eq!((mailbox.kept(), refused.len()), (2, 1));

        let own = Mailbox::new(Sharing::InTurn, Overflow::DropOldest, room);
        let run = [message(6), message(4), message(5)];
        own.post(&mut run.into_iter(), &mut Vec::new()).unwrap();
        assert_eq!(own.kept(), 2, "the first made room for the last");
    }

    #[test]
    fn settling_what_was_not_received_yet_does_not_overfill_the_channel() {
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::Refuse, room(100));
        let mut deliveries = mailbox.attach(1, 2).unwrap();
        post(&mailbox, 0..5);
        mailbox.settle(1, [1, 2].into_iter());
        assert_eq!(bodies(&mut deliveries), [0, 1]);
        // Nothing was lost: what had no room is delivered with the next settlement.
        mailbox.settle(1, std::iter::empty());
        assert_eq!(bodies(&mut deliveries), [2, 3]);
    }

    #[test]
    fn an_abandoned_mailbox_has_nobody() {
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::Refuse, room(100));
        let mut deliveries = mailbox.attach(1, 1).unwrap();
        assert_eq!(post(&mailbox, 0..3), 0);
        mailbox.abandon();
        assert_eq!((bodies(&mut deliveries), mailbox.kept()), (vec![0], 0));
        let mut refused = Vec::new();
        let message = Outgoing::new(
            Topic::link("default", WorkerId::fresh()),
            Uuid::now_v7(),
            vec![],
        );
        let expected = super::super::unroutable(message.clone());
        mailbox
            .post(&mut std::iter::once(message), &mut refused)
            .unwrap();
        assert_eq!(refused, [expected]);
    }

    #[test]
    fn a_closed_mailbox_takes_nothing() {
        let mailbox = Mailbox::new(Sharing::InTurn, Overflow::Refuse, room(100));
        let mut deliveries = mailbox.attach(1, 2).unwrap();
        mailbox.close();
        assert!(deliveries.try_recv().is_err());
        assert!(mailbox.attach(2, 2).is_none());
        let mut run = std::iter::once(Outgoing::new(Topic::Completed, Uuid::nil(), vec![]));
        assert!(matches!(
            mailbox.post(&mut run, &mut Vec::new()),
            Err(PublishError::Closed)
        ));
    }
}
