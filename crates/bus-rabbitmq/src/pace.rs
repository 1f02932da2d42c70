//! How much may be in flight to each queue, so that one that confirms nothing holds up no other. Pure.
//!
//! A quorum queue that has lost its majority confirms nothing, for as long as it takes. A broker
//! that has more than some dozens of messages for such a queue stops reading from the connection
//! that sent them (its flow control), and then nobody's messages get through. So what is in flight
//! to a queue, known by its routing key, begins with few on each connection and grows with every
//! confirm. When a confirm does not come, nothing more is sent there until it does, and what is in
//! flight there takes no room from others.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lapin::types::ShortString;
use tokio::time::Instant;

/// How many messages may wait for their confirm. More in flight gains nothing measurable.
pub(crate) const MAX_MESSAGES: usize = 1_024;
/// How many bytes of bodies may; lapin holds a copy of each until it is written.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// How many may be in flight to a queue that has not confirmed anything yet: half of what a quorum
/// queue may have before the broker stops reading.
const FIRST: usize = 16;
/// A queue whose oldest message waits for its confirm for so long gets no more.
const SLOW: Duration = Duration::from_secs(1);
/// How many queues without anything in flight are remembered.
const REMEMBERED: usize = 1_024;

/// What is in flight to one queue.
struct Queue {
    /// By sequence number: when it was sent, and its bytes.
    in_flight: BTreeMap<u64, (Instant, usize)>,
    bytes: usize,
    allowed: usize,
    is_slow: bool,
}

/// What is in flight to all queues of one connection.
#[derive(Default)]
pub(crate) struct Pace {
    queues: HashMap<ShortString, Queue>,
    /// In flight to queues that are not slow.
    messages: usize,
    bytes: usize,
}

impl Pace {
    /// Notes that a message was sent.
    pub(crate) fn sent(&mut self, key: &ShortString, sequence: u64, bytes: usize, now: Instant) {
        let queue = self.queues.entry(key.clone()).or_insert_with(|| Queue {
            in_flight: BTreeMap::new(),
            bytes: 0,
            allowed: FIRST,
            is_slow: false,
        });
        queue.in_flight.insert(sequence, (now, bytes));
        queue.bytes += bytes;
        self.messages += 1;
        self.bytes += bytes;
    }

    /// Notes that a message was confirmed, one way or the other.
    pub(crate) fn confirmed(&mut self, key: &ShortString, sequence: u64) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        let Some((_, bytes)) = queue.in_flight.remove(&sequence) else {
            return;
        };
        queue.bytes -= bytes;
        queue.allowed = (queue.allowed + 1).min(MAX_MESSAGES);
        if !queue.is_slow {
            self.messages -= 1;
            self.bytes -= bytes;
        }
    }

    /// Sees which queues are slow; to be called before the next messages are sent.
    pub(crate) fn look(&mut self, now: Instant) {
        (self.messages, self.bytes) = (0, 0);
        for queue in self.queues.values_mut() {
            let oldest = queue.in_flight.first_key_value();
            queue.is_slow = oldest.is_some_and(|(_, (sent, _))| *sent + SLOW <= now);
            if !queue.is_slow {
                self.messages += queue.in_flight.len();
                self.bytes += queue.bytes;
            }
        }
        if self.queues.len() > REMEMBERED {
            self.queues.retain(|_, queue| !queue.in_flight.is_empty());
        }
    }

    /// Whether another message may be sent at all. One is always allowed, whatever its size.
    pub(crate) fn has_room(&self) -> bool {
        self.messages == 0 || (self.messages < MAX_MESSAGES && self.bytes < MAX_BYTES)
    }

    /// Whether this queue may get another message.
    pub(crate) fn takes(&self, key: &ShortString) -> bool {
        let queue = self.queues.get(key);
        queue.is_none_or(|queue| !queue.is_slow && queue.in_flight.len() < queue.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ShortString {
        name.into()
    }

    /// Sends to a queue until it takes no more.
    fn fill(pace: &mut Pace, name: &str, next: &mut u64, now: Instant) -> usize {
        let before = *next;
        while pace.has_room() && pace.takes(&key(name)) {
            pace.sent(&key(name), *next, 1, now);
            *next += 1;
        }
        usize::try_from(*next - before).unwrap()
    }

    #[test]
    fn a_queue_gets_more_with_every_confirm_up_to_all_there_is() {
        let (mut pace, now, mut next) = (Pace::default(), Instant::now(), 0);
        let mut rounds = 0;
        loop {
            let first = next;
            let sent = fill(&mut pace, "quick", &mut next, now);
            if sent == MAX_MESSAGES {
                break;
            }
            assert_eq!(sent, FIRST << rounds);
            for sequence in first..next {
                pace.confirmed(&key("quick"), sequence);
            }
            rounds += 1;
            pace.look(now);
        }
        assert!(!pace.has_room());
    }

    #[test]
    fn a_queue_that_confirms_nothing_takes_room_from_nobody() {
        let (mut pace, mut now, mut next) = (Pace::default(), Instant::now(), 0);
        assert_eq!(fill(&mut pace, "stuck", &mut next, now), FIRST);
        assert_eq!(fill(&mut pace, "other", &mut next, now), FIRST);
        for sequence in FIRST as u64..next {
            pace.confirmed(&key("other"), sequence);
        }
        now += SLOW;
        pace.look(now);
        assert_eq!(pace.messages, 0);
        assert!(!pace.takes(&key("stuck")) && pace.takes(&key("other")));
        // It confirms: it goes on.
        for sequence in 0..FIRST as u64 {
            pace.confirmed(&key("stuck"), sequence);
        }
        assert_eq!(pace.messages, 0);
        pace.look(now);
        assert!(fill(&mut pace, "stuck", &mut next, now) <= 2 * FIRST);
    }

    #[test]
    fn room_is_bounded_by_bytes_and_what_is_remembered_by_number() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.sent(&key("large"), 0, MAX_BYTES, now);
        assert!(!pace.has_room());
        pace.confirmed(&key("large"), 0);
        for number in 1..=REMEMBERED as u64 {
            let name = key(&number.to_string());
            pace.sent(&name, number, 1, now);
            pace.confirmed(&name, number);
        }
        pace.look(now);
        assert!(pace.queues.is_empty() && pace.has_room());
    }
}
