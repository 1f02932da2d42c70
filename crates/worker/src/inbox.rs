//! What was delivered and waits to be claimed. Pure: it does nothing but keep books.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use attune_bus::DeliveryTag;
use attune_core::{Attempt, ExecutionId};
use attune_messages::v1::ExecutionRequested;
use tokio::time::Instant;

/// What is claimed, run and reported: one attempt of an execution.
pub(crate) type Key = (ExecutionId, Attempt);

/// How many finished and how many cancelled attempts are remembered. A redelivery comes within
/// seconds; at 20,000 a second this holds the last few of them, in about 1 MB. One that comes
/// later costs a claim, which the store refuses.
const REMEMBERED: usize = 16_384;
/// How long one that the store refuses to have claimed is set aside at first, and at last.
const FIRST_ASIDE: Duration = Duration::from_secs(1);
const LONGEST_ASIDE: Duration = Duration::from_secs(60);
/// How often one that is set aside is tried while others wait: a lock costs all claims its time.
const ASIDE_EVERY: Duration = Duration::from_secs(10);

/// Deliveries that are not settled and the executions in them, first come first out. Its size
/// is bounded by the prefetch of the subscription.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// What waits, in order of arrival; the rest of `items` is being claimed.
    order: VecDeque<Key>,
    items: HashMap<Key, Item>,
    /// How many items each delivery still has.
    deliveries: HashMap<DeliveryTag, usize>,
    /// The life of the subscription; tags of older ones mean nothing any more.
    generation: u64,
    /// Claimed here not long ago.
    claimed: Recent<Key>,
    /// Those that wait and that the store refused by themselves.
    aside: HashMap<Key, Aside>,
    /// When one of them may be claimed again while others wait.
    aside_at: Instant,
    /// How many were claimed, or were not to be had.
    claims: u64,
    /// How many were claimed.
    wins: u64,
    /// Cancelled not long ago: the word may come before its run has begun here.
    cancelled: Recent<Key>,
}

/// One that the store refused by itself.
#[derive(Debug)]
struct Aside {
    /// It is not claimed before.
    until: Instant,
    pause: Duration,
    /// How many had been claimed, or were not to be had, when it was refused last.
    claims: u64,
    /// How many had been claimed when it was refused first.
    wins: u64,
}

#[derive(Debug)]
struct Item {
    request: ExecutionRequested,
    /// The deliveries that brought it.
    tags: Vec<DeliveryTag>,
}

/// What became of a delivery on arrival.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Items that were here already.
    pub(crate) duplicates: usize,
    /// Nothing of it waits: it can be acknowledged.
    pub(crate) done: bool,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            order: VecDeque::new(),
            items: HashMap::new(),
            deliveries: HashMap::new(),
            generation: 0,
            claimed: Recent::new(REMEMBERED),
            aside: HashMap::new(),
            aside_at: Instant::now(),
            claims: 0,
            wins: 0,
            cancelled: Recent::new(REMEMBERED),
        }
    }

    /// Takes in a delivery. What is waiting, was claimed a while ago or `is_running` is a
    /// duplicate; a delivery with something that still waits is not done before that is.
    pub(crate) fn accept(
        &mut self,
        tag: DeliveryTag,
        requests: Vec<ExecutionRequested>,
        is_running: impl Fn(&Key) -> bool,
    ) -> Arrival {
        if tag.generation > self.generation {
            self.forget_older_than(tag.generation);
        }
        let mut arrival = Arrival::default();
        let mut waiting = 0;
        for request in requests {
            let key = (request.execution_id, request.attempt);
            if let Some(item) = self.items.get_mut(&key) {
                arrival.duplicates += 1;
                // What is set aside may wait for long, and its owner sends it again and again: each
                // copy would take a place in the window. The delivery that is held comes again when
                // the connection is lost.
                let mut held = item.tags.iter();
                if self.aside.contains_key(&key)
                    && held.any(|held| held.generation == tag.generation)
                {
                    continue;
                }
                item.tags.push(tag);
            } else if self.claimed.contains(&key) || is_running(&key) {
                arrival.duplicates += 1;
                continue;
            } else {
                self.items.insert(
                    key,
                    Item {
                        request,
                        tags: vec![tag],
                    },
                );
                self.order.push_back(key);
            }
            waiting += 1;
        }
        arrival.done = waiting == 0;
        if waiting > 0 {
            self.deliveries.insert(tag, waiting);
        }
        arrival
    }

    /// The next `max` that wait and are not set aside, or one alone that was; they count as being
    /// claimed until they are settled or put back.
    pub(crate) fn take(&mut self, max: usize) -> Vec<Key> {
        if self.aside.is_empty() {
            let count = max.min(self.order.len());
            return self.order.drain(..count).collect();
        }
        let now = Instant::now();
        let others_wait = self.order.len() > self.aside.len();
        if !others_wait || now >= self.aside_at {
            let is_due = |key: &Key| self.aside.get(key).is_some_and(|aside| aside.until <= now);
            if let Some(place) = self.order.iter().position(is_due) {
                self.aside_at = now + ASIDE_EVERY;
                return self.order.remove(place).into_iter().collect();
            }
        }
        let mut taken = Vec::new();
        let aside = &self.aside;
        self.order.retain(|key| {
            let is_next = taken.len() < max && !aside.contains_key(key);
            if is_next {
                taken.push(*key);
            }
            !is_next
        });
        taken
    }

    /// The store refuses to have this one claimed, which may be about it alone: it waits behind all
    /// others, for longer each time that others were claimed since it was refused last.
    pub(crate) fn set_aside(&mut self, key: Key) {
        self.order.push_back(key);
        let claims = self.claims;
        let aside = self.aside.entry(key).or_insert(Aside {
            until: Instant::now(),
            pause: FIRST_ASIDE,
            claims,
            wins: self.wins,
        });
        if aside.claims != claims {
            aside.claims = claims;
            aside.pause = (aside.pause * 2).min(LONGEST_ASIDE);
        }
        aside.until = Instant::now() + aside.pause;
    }

    /// Whether this one was refused by itself, and others were claimed since.
    pub(crate) fn is_to_blame(&self, key: &Key) -> bool {
        self.aside
            .get(key)
            .is_some_and(|aside| aside.wins < self.wins)
    }

    /// They were not claimed and wait again, before all others, in the same order.
    pub(crate) fn put_back(&mut self, keys: Vec<Key>) {
        for key in keys.into_iter().rev() {
            self.order.push_front(key);
        }
    }

    /// One that was taken is claimed by this worker (`won`) or not to be had. Adds to `done` the
    /// deliveries that have nothing left, and returns the request.
    pub(crate) fn settle(
        &mut self,
        key: Key,
        won: bool,
        done: &mut Vec<DeliveryTag>,
    ) -> Option<ExecutionRequested> {
        if won {
            self.claimed.insert(key);
            self.wins += 1;
        }
        if self.aside.remove(&key).is_some() {
            // What was refused in the same time was refused for the same reason, which is over.
            let claims = self.claims;
            self.aside.retain(|_, aside| aside.claims != claims);
        }
        self.claims += 1;
        let item = self.items.remove(&key)?;
        for tag in item.tags {
            if let Some(left) = self.deliveries.get_mut(&tag) {
                *left -= 1;
                if *left == 0 {
                    self.deliveries.remove(&tag);
                    done.push(tag);
                }
            }
        }
        Some(item.request)
    }

    /// Remembers that an attempt is cancelled.
    pub(crate) fn cancel(&mut self, key: Key) {
        self.cancelled.insert(key);
    }

    pub(crate) fn is_cancelled(&self, key: &Key) -> bool {
        self.cancelled.contains(key)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.order.is_empty()
    }

    /// How many have been set aside.
    pub(crate) fn set_aside_count(&self) -> usize {
        self.aside.len()
    }

    /// Forgets what waits: its messages go back to the bus. What is being claimed stays.
    pub(crate) fn give_up_waiting(&mut self) {
        for key in self.order.drain(..) {
            self.items.remove(&key);
        }
        self.aside.clear();
    }

    /// Forgets every delivery, for a new subscription; nothing is being claimed.
    pub(crate) fn start_over(&mut self) {
        self.order.clear();
        self.aside.clear();
        self.items.clear();
        self.deliveries.clear();
        self.generation = 0;
    }

    fn forget_older_than(&mut self, generation: u64) {
        self.generation = generation;
        self.deliveries
            .retain(|tag, _| tag.generation >= generation);
        for item in self.items.values_mut() {
            item.tags.retain(|tag| tag.generation >= generation);
        }
    }
}

/// The last few things that were put into it.
#[derive(Debug)]
struct Recent<T> {
    order: VecDeque<T>,
    set: HashSet<T>,
    max: usize,
}

impl<T: Copy + Eq + Hash> Recent<T> {
    fn new(max: usize) -> Self {
        Self {
            order: VecDeque::new(),
            set: HashSet::new(),
            max,
        }
    }

    fn insert(&mut self, value: T) {
        if !self.set.insert(value) {
            return;
        }
        self.order.push_back(value);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }

    fn contains(&self, value: &T) -> bool {
        self.set.contains(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::{ActionId, Builtin, Run};

    fn tag(generation: u64, number: u64) -> DeliveryTag {
        DeliveryTag { generation, number }
    }

    fn key(id: i64) -> Key {
        (ExecutionId(id), Attempt(1))
    }

    fn requests(ids: &[i64]) -> Vec<ExecutionRequested> {
        let request = |id: &i64| ExecutionRequested {
            execution_id: ExecutionId(*id),
            attempt: Attempt(1),
            action_id: ActionId(1),
            action_ref: "core.noop".to_owned(),
            parameters: serde_json::value::to_raw_value("{}").unwrap(),
            run: Run::Builtin(Builtin::Noop),
            timeout_seconds: 1,
            env: std::collections::BTreeMap::new(),
        };
        ids.iter().map(request).collect()
    }

    fn idle(_: &Key) -> bool {
        false
    }

    #[test]
    fn a_delivery_is_done_when_all_of_its_items_are_settled() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        assert!(!inbox.accept(tag(1, 1), requests(&[1, 2, 3]), idle).done);
        assert!(!inbox.accept(tag(1, 2), requests(&[4]), idle).done);
        assert_eq!(inbox.take(2), [key(1), key(2)]);
        assert!(inbox.settle(key(2), true, &mut done).is_some());
        assert!(inbox.settle(key(1), false, &mut done).is_some());
        assert_eq!(done, []);
        assert_eq!(inbox.take(9), [key(3), key(4)]);
        inbox.settle(key(4), true, &mut done);
        inbox.settle(key(3), true, &mut done);
        assert_eq!(done, [tag(1, 2), tag(1, 1)]);
        assert!(!inbox.is_waiting());
    }

    #[test]
    fn what_is_not_claimed_keeps_its_place() {
        let mut inbox = Inbox::new();
        inbox.accept(tag(1, 1), requests(&[1, 2, 3, 4]), idle);
        let taken = inbox.take(3);
        inbox.put_back(taken);
        assert_eq!(inbox.take(9), [key(1), key(2), key(3), key(4)]);
    }

    #[test]
    fn what_is_refused_while_others_are_claimed_is_to_blame() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        inbox.accept(tag(1, 1), requests(&[1, 2, 3]), idle);
        let taken = inbox.take(3);
        assert_eq!(taken, [key(1), key(2), key(3)]);
        inbox.set_aside(key(1));
        // Who was not to be had was not written: that says nothing.
        inbox.settle(key(2), false, &mut done);
        inbox.set_aside(key(1));
        assert!(!inbox.is_to_blame(&key(1)));
        inbox.settle(key(3), true, &mut done);
        inbox.set_aside(key(1));
        assert!(inbox.is_to_blame(&key(1)) && !inbox.is_to_blame(&key(2)));
    }

    #[test]
    fn duplicates_wait_for_the_one_that_is_here() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        inbox.accept(tag(1, 1), requests(&[1, 1]), idle);
        let again = inbox.accept(tag(1, 2), requests(&[1]), idle);
        assert_eq!(
            again,
            Arrival {
                duplicates: 1,
                done: false
            }
        );
        assert_eq!(inbox.take(9), [key(1)]);
        inbox.settle(key(1), true, &mut done);
        assert_eq!(done, [tag(1, 1), tag(1, 2)]);
        let late = inbox.accept(tag(1, 3), requests(&[1]), idle);
        assert_eq!(
            late,
            Arrival {
                duplicates: 1,
                done: true
            }
        );
        let running = inbox.accept(tag(1, 4), requests(&[8]), |other| *other == key(8));
        assert_eq!(
            running,
            Arrival {
                duplicates: 1,
                done: true
            }
        );
    }

    #[test]
    fn a_lost_claim_may_come_again() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        inbox.accept(tag(1, 1), requests(&[1]), idle);
        inbox.take(1);
        inbox.settle(key(1), false, &mut done);
        assert_eq!(
            inbox.accept(tag(1, 2), requests(&[1]), idle),
            Arrival::default()
        );
    }

    #[test]
    fn a_reconnection_makes_older_tags_worthless() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        inbox.accept(tag(1, 1), requests(&[1, 2]), idle);
        inbox.accept(tag(2, 1), requests(&[1, 2]), idle);
        inbox.take(2);
        inbox.settle(key(1), true, &mut done);
        inbox.settle(key(2), true, &mut done);
        assert_eq!(done, [tag(2, 1)]);
    }

    #[test]
    fn giving_up_leaves_what_is_being_claimed() {
        let mut inbox = Inbox::new();
        let mut done = Vec::new();
        inbox.accept(tag(1, 1), requests(&[1, 2]), idle);
        inbox.take(1);
        inbox.give_up_waiting();
        assert!(!inbox.is_waiting());
        assert!(inbox.settle(key(1), true, &mut done).is_some());
        assert!(inbox.settle(key(2), true, &mut done).is_none());
    }

    #[test]
    fn memory_of_the_past_is_bounded() {
        let mut recent = Recent::new(2);
        for value in [1, 2, 2, 3] {
            recent.insert(value);
        }
        assert!(!recent.contains(&1) && recent.contains(&2) && recent.contains(&3));
        assert_eq!(recent.order.len(), recent.set.len());
    }
}
