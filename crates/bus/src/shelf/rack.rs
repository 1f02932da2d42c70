//! Which messages wait, and which of them go back next: pure.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::Held;

/// How many are held, at most.
const MAX_HELD: usize = 64;
/// How many bytes of bodies are held before nothing more is taken; one is always taken.
const MAX_BYTES: usize = 4 << 20;
/// How many bytes of bodies go back in one round, unless one alone has more.
const ROUND_BYTES: usize = 1 << 20;

/// The messages that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Rack {
    /// How many may be held until they are due.
    room: usize,
    held: VecDeque<Held>,
    bytes: usize,
}

impl Rack {
    pub(super) fn new(room: usize) -> Self {
        Self {
            room,
            held: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether another one may be added.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < MAX_HELD && self.bytes < MAX_BYTES
    }

    /// Whether more is held than may be.
    pub(super) fn is_pressed(&self) -> bool {
        self.surplus() > 0
    }

    /// Adds a message. Another copy of it that is held is given out in exchange.
    pub(super) fn add(&mut self, held: Held) -> Option<Held> {
        let mut copies = self.held.iter();
        let twin = copies.position(|other| other.copy.is_twin_of(&held.copy));
        let twin = twin.and_then(|place| self.held.remove(place));
        self.bytes -= twin.as_ref().map_or(0, Held::bytes);
        self.bytes += held.bytes();
        self.held.push_back(held);
        twin
    }

    /// When something has to go back: now, where more is held than may be.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        match self.surplus() {
            0 => self.held.iter().map(|held| held.due).min(),
            _ => Some(now),
        }
    }

    /// How many of the oldest go back before they are due, so that others get past.
    fn surplus(&self) -> usize {
        match self.has_room() {
            true => self.held.len().saturating_sub(self.room),
            false => self.held.len(),
        }
    }

    /// Takes what goes back now, in its order.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Held> {
        let surplus = self.surplus();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let mut rest = VecDeque::new();
        for (place, held) in std::mem::take(&mut self.held).into_iter().enumerate() {
            let fits = taken.is_empty() || bytes + held.bytes() <= ROUND_BYTES;
            if fits && (place < surplus || held.due <= now) {
                bytes += held.bytes();
                taken.push(held);
            } else {
                rest.push_back(held);
            }
        }
        self.bytes -= bytes;
        self.held = rest;
        taken
    }

    /// Takes back what could not go.
    pub(super) fn return_to(&mut self, rest: Vec<Held>) {
        for held in rest.into_iter().rev() {
            self.bytes += held.bytes();
            self.held.push_front(held);
        }
    }

    /// Forgets what is held: it comes again.
    pub(super) fn forget_held(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use uuid::Uuid;

    use super::super::INTERVAL;
    use super::*;
    use crate::port::{Delivery, DeliveryTag, Topic};

    /// A message with this number as its id, and as its delivery tag as well.
    fn held(number: u64, bytes: usize, now: Instant) -> Held {
        let delivery = Delivery {
            tag: DeliveryTag {
                generation: 1,
                number,
            },
            body: Bytes::from(vec![0; bytes]),
            message_id: Some(Uuid::from_u64_pair(0, number).to_string()),
            reply_to: None,
            redelivered: false,
            user_id: None,
            headers: Vec::new(),
        };
        Held::new(&Topic::Completed, delivery, now)
    }

    fn numbers(held: &[Held]) -> Vec<u64> {
        held.iter().map(|held| held.tag.number).collect()
    }

    #[test]
    fn what_is_more_than_there_is_room_for_goes_back_first_and_in_order() {
        let now = Instant::now();
        let mut rack = Rack::new(2);
        for number in 0..5 {
            assert!(rack.add(held(number, 10, now)).is_none());
        }
        assert_eq!(rack.next(now), Some(now));
        assert!(rack.is_pressed());
        assert_eq!(numbers(&rack.take(now)), [0, 1, 2]);
        assert!(!rack.is_pressed());
        assert_eq!(rack.next(now), Some(now + INTERVAL));
        assert!(rack.take(now).is_empty());
    }

    #[test]
    fn one_copy_of_a_message_is_held_the_last_that_came() {
        let now = Instant::now();
        let mut rack = Rack::new(2);
        assert!(rack.add(held(1, 10, now)).is_none());
        assert!(rack.add(held(2, 10, now)).is_none());
        let mut again = held(1, 10, now);
        again.tag.number = 3;
        let twin = rack.add(again).unwrap();
        assert_eq!((twin.tag.number, rack.bytes), (1, 20));
        let due = rack.take(now + INTERVAL);
        assert_eq!(numbers(&due), [2, 3]);
    }

    #[test]
    fn bytes_are_bounded_and_what_could_not_go_keeps_its_place() {
        let now = Instant::now();
        let mut rack = Rack::new(16);
        let mut count = 0;
        while rack.has_room() {
            rack.add(held(count, ROUND_BYTES * 2 / 3, now));
            count += 1;
        }
        assert_eq!(count, 7);
        let back = rack.take(now);
        assert_eq!(back.len(), 1, "one round has its bound");
        assert!(rack.has_room());
        rack.return_to(back);
        assert!(!rack.has_room());
        assert_eq!(numbers(&rack.take(now)), [0]);
        rack.forget_held();
        assert!(rack.is_empty() && rack.next(now).is_none());
        assert_eq!(rack.bytes, 0);
    }
}
