//! Which messages wait, and how long each: pure.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::INTERVAL;
use crate::port::Delivery;

/// The longest that one is held before it goes back. A broker closes the channel of whoever leaves a
/// delivery unacknowledged for longer than its `consumer_timeout` (30 minutes as a rule), and everything
/// else that came over that connection comes again. Going back more often would make more copies: one
/// whose publish was not answered, or that is given back before it is acknowledged, is there twice.
const LONGEST: Duration = Duration::from_secs(60);
/// How many are held, at most.
const MAX_HELD: usize = 64;
/// How many bytes of bodies are held before nothing more is taken; one is always taken.
const MAX_BYTES: usize = 4 << 20;
/// How many bytes of bodies go back in one round, unless one alone has more.
const ROUND_BYTES: usize = 1 << 20;
/// How many messages that went back are remembered.
const REMEMBERED: usize = 1024;

/// A message that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: Uuid,
    pub(super) delivery: Delivery,
    due: Instant,
}

/// The messages that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Rack {
    /// How many may be held until they are due.
    room: usize,
    held: VecDeque<Held>,
    bytes: usize,
    /// How often a message went back, and when it did last.
    went: HashMap<Uuid, (u32, Instant)>,
}

impl Rack {
    pub(super) fn new(room: usize) -> Self {
        Self {
            room,
            held: VecDeque::new(),
            bytes: 0,
            went: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether another one may be added.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < MAX_HELD && self.bytes < MAX_BYTES
    }

    /// Adds a message. It is held twice as long as the last time.
    pub(super) fn add(&mut self, id: Uuid, delivery: Delivery, now: Instant) {
        let times = self.went.get(&id).map_or(0, |(times, _)| *times);
        let pause = INTERVAL.saturating_mul(1 << times.min(16)).min(LONGEST);
        self.bytes += delivery.body.len();
        let due = now + pause;
        self.held.push_back(Held { id, delivery, due });
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
            let fits = taken.is_empty() || bytes + held.delivery.body.len() <= ROUND_BYTES;
            if fits && (place < surplus || held.due <= now) {
                bytes += held.delivery.body.len();
                taken.push(held);
            } else {
                rest.push_back(held);
            }
        }
        self.bytes -= bytes;
        self.held = rest;
        taken
    }

    /// Notes that messages went back.
    pub(super) fn went_back(&mut self, back: Vec<Held>, now: Instant) {
        if self.went.len() + back.len() > REMEMBERED {
            self.went.retain(|_, (_, last)| now - *last < 2 * LONGEST);
        }
        for held in back {
            if self.went.len() < REMEMBERED || self.went.contains_key(&held.id) {
                let (times, last) = self.went.entry(held.id).or_insert((0, now));
                *times += 1;
                *last = now;
            }
        }
    }

    /// Takes back what could not go.
    pub(super) fn return_to(&mut self, rest: Vec<Held>) {
        for held in rest.into_iter().rev() {
            self.bytes += held.delivery.body.len();
            self.held.push_front(held);
        }
    }

    /// Forgets what is held, not how often it was.
    pub(super) fn forget_held(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::port::DeliveryTag;

    pub(in super::super) fn delivery(bytes: usize) -> Delivery {
        Delivery {
            tag: DeliveryTag {
                generation: 1,
                number: 1,
            },
            body: Bytes::from(vec![0; bytes]),
            message_id: None,
            reply_to: None,
            redelivered: false,
            user_id: None,
            headers: Vec::new(),
        }
    }

    /// Lets what is added go back and come again at once, for two minutes.
    #[test]
    fn one_that_comes_again_is_held_longer_each_time() {
        let mut rack = Rack::new(1);
        let began = Instant::now();
        let (mut now, mut times) = (began, 0);
        while now - began < Duration::from_secs(120) {
            rack.add(Uuid::from_u128(7), delivery(10), now);
            now = rack.next(now).unwrap();
            let back = rack.take(now);
            assert_eq!(back.len(), 1);
            rack.went_back(back, now);
            times += 1;
        }
        // A quarter of a second, doubled up to a minute.
        assert_eq!(times, 9);
    }

    #[test]
    fn what_is_more_than_there_is_room_for_goes_back_first_and_in_order() {
        let now = Instant::now();
        let mut rack = Rack::new(2);
        for id in 0..5 {
            rack.add(Uuid::from_u128(id), delivery(10), now);
        }
        assert_eq!(rack.next(now), Some(now));
        let back: Vec<u128> = rack
            .take(now)
            .iter()
            .map(|held| held.id.as_u128())
            .collect();
        assert_eq!(back, [0, 1, 2]);
        assert_eq!(rack.next(now), Some(now + INTERVAL));
        assert!(rack.take(now).is_empty());
    }

    #[test]
    fn bytes_are_bounded_and_what_could_not_go_keeps_its_place() {
        let now = Instant::now();
        let mut rack = Rack::new(16);
        let mut count = 0;
        while rack.has_room() {
            rack.add(Uuid::from_u128(count), delivery(ROUND_BYTES * 2 / 3), now);
            count += 1;
        }
        assert_eq!(count, 7);
        let back = rack.take(now);
        assert_eq!(back.len(), 1, "one round has its bound");
        assert!(rack.has_room());
        rack.return_to(back);
        assert!(!rack.has_room());
        assert_eq!(rack.take(now)[0].id, Uuid::from_u128(0));
        rack.forget_held();
        assert!(rack.is_empty() && rack.next(now).is_none());
        assert_eq!(rack.bytes, 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut now = Instant::now();
        let mut rack = Rack::new(0);
        for id in 0..3 * REMEMBERED as u128 {
            rack.add(Uuid::from_u128(id), delivery(1), now);
            let back = rack.take(now);
            rack.went_back(back, now);
        }
        assert_eq!(rack.went.len(), REMEMBERED);
        now += 2 * LONGEST;
        rack.add(Uuid::nil(), delivery(1), now);
        let back = rack.take(now);
        rack.went_back(back, now);
        assert_eq!(rack.went.len(), 1);
    }
}
