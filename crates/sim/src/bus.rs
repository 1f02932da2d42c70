//! A plain model of the broker: queues that keep their order, consumers with a prefetch, and
//! what was not acknowledged coming back first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use attune_core::{ExecutionId, RequestId, Submission};
use attune_executor::partition::{self, Completion, ForceRelease, OnReject};

use crate::groups::Words;
use crate::plan::Time;
use crate::rng::Rng;
use crate::routing::{Wire, is_shared};

/// How often a message may be given back; then it becomes a dead letter. Far more often than what
/// dies and stands still in a run gives anything back, and far less than a loop would.
const DELIVERY_LIMIT: u32 = 100;

/// Places of calls are above this, so that they can be told from those of commands.
const CALLS: u64 = 1 << 40;

/// Whether this is the place of a call.
pub(crate) fn is_call(place: u64) -> bool {
    place > CALLS
}

/// A queue of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    /// Completions of a partition.
    Control(u16),
    /// Likewise, of workers that keep them until they are settled; they end with the broker.
    ControlKept(u16),
    /// Commands of a partition.
    Commands(u16),
    /// Likewise, of clients that wait for the answer and ask again without one; they end with the broker.
    Calls(u16),
    /// Rule firings, for one relay at a time.
    Firings,
    /// Completions, for all relays that take them.
    Completed,
    /// Likewise, of workers that keep them until they are settled; they end with the broker.
    Kept,
}

/// A message.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// A client asks for an execution.
    Submit(Arc<Submit>),
    /// A client asks to end one.
    Cancel(RequestId, ExecutionId, Arc<str>),
    /// Why does one not run yet? Who asks stands last.
    Explain(RequestId, ExecutionId, Arc<str>),
    /// This action has changed; who asks stands last.
    Changed(RequestId, Arc<str>, Arc<str>),
    /// What operators hold has changed; who asks stands last.
    Pauses(RequestId, Arc<str>),
    /// The policy documents have changed; who asks stands last.
    Policies(RequestId, Arc<str>),
    /// There are bulk operations that are new; who asks stands last.
    Operations(RequestId, Arc<str>),
    /// An operator takes a slot back.
    Release(Arc<ForceRelease>, Arc<str>),
    /// A run has ended.
    Completed(Arc<Completion>),
    /// What goes through a relay, as it is on the wire.
    Wire(Arc<Wire>),
}

/// A submission on its way.
#[derive(Debug, Clone)]
pub(crate) struct Submit {
    /// Names the request.
    pub(crate) request_id: RequestId,
    /// What is asked for.
    pub(crate) submission: Submission,
    /// What happens when it is refused.
    pub(crate) on_reject: OnReject,
    /// Who waits for the answer.
    pub(crate) reply_to: Option<Arc<str>>,
}

impl Submit {
    /// What its owner reads. Whoever asks and is answered may have so many waiting only.
    pub(crate) fn item(&self) -> partition::Submit {
        let is_asked = self.on_reject == OnReject::Answer;
        let bound = Words::of(self.request_id).wait_bound;
        partition::Submit {
            wait_bound: bound.filter(|_| is_asked),
            ..partition::Submit::new(self.request_id, self.submission.clone(), self.on_reject)
        }
    }
}

/// One of those that receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// An owner, in one life of its process.
    Owner(usize, u32),
    /// A worker, in one life of its process.
    Worker(usize, u32),
    /// A relay of firings or completions, in one life of its process.
    Relay(usize, u32),
}

/// A message at its place in a queue.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// Who receives it.
    pub(crate) to: Party,
    /// Through which subscription.
    pub(crate) subscription: u64,
    /// Its place in the queue, given when it first came there.
    pub(crate) place: u64,
    /// What it says.
    pub(crate) body: Body,
}

#[derive(Debug)]
struct Consumer {
    id: u64,
    to: Party,
    prefetch: usize,
    unacked: BTreeMap<u64, Body>,
    /// Deliveries of one subscription do not overtake each other.
    last_at: Time,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<(u64, Body)>,
    consumers: Vec<Consumer>,
    places: u64,
    /// How often each message was given back.
    returned: BTreeMap<u64, u32>,
}

/// The broker.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    queues: BTreeMap<Name, Queue>,
    subscriptions: u64,
    /// True when giving back behind what waits is planted.
    pub(crate) requeue_last: bool,
    /// What was given back too often, since it was last asked for.
    dead: Vec<(Name, Body)>,
    /// How often the message was given back that was given back most.
    pub(crate) most_returned: u32,
}

impl Bus {
    /// A message has come; the broker keeps it from now on. Gives its place.
    pub(crate) fn arrive(&mut self, name: Name, body: Body) -> u64 {
        let queue = self.queues.entry(name).or_default();
        if matches!(name, Name::Calls(_)) {
            queue.places = queue.places.max(CALLS);
        }
        queue.places += 1;
        queue.ready.push_back((queue.places, body));
        queue.places
    }

    /// Begins a subscription. A partition's queue serves the oldest one alone.
    pub(crate) fn subscribe(&mut self, name: Name, to: Party, prefetch: usize) -> u64 {
        self.subscriptions += 1;
        self.queues
            .entry(name)
            .or_default()
            .consumers
            .push(Consumer {
                id: self.subscriptions,
                to,
                prefetch,
                unacked: BTreeMap::new(),
                last_at: 0,
            });
        self.subscriptions
    }

    /// Ends a subscription; what it had not acknowledged goes back in order. Gives the queue.
    pub(crate) fn close(&mut self, subscription: u64) -> Option<Name> {
        for (name, queue) in &mut self.queues {
            let Some(index) = queue.consumers.iter().position(|c| c.id == subscription) else {
                continue;
            };
            let mut back = queue.consumers.remove(index).unacked;
            // The broker counts for every message that was on its way, whoever is to blame.
            back.retain(|place, body| {
                let times = queue.returned.entry(*place).or_default();
                *times += 1;
                self.most_returned = self.most_returned.max(*times);
                let is_dead = *times > DELIVERY_LIMIT;
                if is_dead {
                    self.dead.push((*name, body.clone()));
                }
                !is_dead
            });
            if self.requeue_last {
                queue.ready.extend(back);
            } else {
                for entry in back.into_iter().rev() {
                    // Competing consumers give back at the places that the messages had.
                    let at = queue.ready.partition_point(|(place, _)| *place < entry.0);
                    queue.ready.insert(at, entry);
                }
            }
            return Some(*name);
        }
        None
    }

    /// Takes what has become dead letters.
    pub(crate) fn take_dead(&mut self) -> Vec<(Name, Body)> {
        std::mem::take(&mut self.dead)
    }

    /// The subscriptions of a party.
    pub(crate) fn subscriptions_of(&self, party: Party) -> Vec<u64> {
        let consumers = self.queues.values().flat_map(|queue| &queue.consumers);
        consumers.filter(|c| c.to == party).map(|c| c.id).collect()
    }

    /// Acknowledges; what is not there any more does not matter. Gives the queue.
    pub(crate) fn ack(&mut self, subscription: u64, place: u64) -> Option<Name> {
        for (name, queue) in &mut self.queues {
            for consumer in &mut queue.consumers {
                if consumer.id == subscription {
                    consumer.unacked.remove(&place);
                    return Some(*name);
                }
            }
        }
        None
    }

    /// Who has messages of a partition's queue that are not acknowledged.
    pub(crate) fn holder(&self, name: Name) -> Option<Party> {
        let consumers = self.queues.get(&name)?.consumers.iter();
        let mut holders = consumers.filter(|consumer| !consumer.unacked.is_empty());
        holders.next().map(|consumer| consumer.to)
    }

    /// Whether a subscription is still open.
    pub(crate) fn is_open(&self, subscription: u64) -> bool {
        let mut consumers = self.queues.values().flat_map(|queue| &queue.consumers);
        consumers.any(|c| c.id == subscription)
    }

    /// Sends what can be sent now; each with the time at which it is received.
    pub(crate) fn pump(
        &mut self,
        name: Name,
        now: Time,
        delay: Time,
        rng: &mut Rng,
    ) -> Vec<(Time, Delivery)> {
        let mut sent = Vec::new();
        let Some(queue) = self.queues.get_mut(&name) else {
            return sent;
        };
        while !queue.ready.is_empty() {
            let candidates: Vec<usize> = if is_shared(name) {
                (0..queue.consumers.len())
                    .filter(|n| queue.consumers[*n].unacked.len() < queue.consumers[*n].prefetch)
                    .collect()
            } else {
                let first = queue.consumers.first();
                let has_room = first.is_some_and(|c| c.unacked.len() < c.prefetch);
                if has_room { vec![0] } else { Vec::new() }
            };
            if candidates.is_empty() {
                break;
            }
            let consumer = &mut queue.consumers[candidates[rng.index(candidates.len())]];
            let Some((place, body)) = queue.ready.pop_front() else {
                break;
            };
            consumer.unacked.insert(place, body.clone());
            consumer.last_at = consumer.last_at.max(now + rng.between(0, delay));
            let delivery = Delivery {
                to: consumer.to,
                subscription: consumer.id,
                place,
                body,
            };
            sent.push((consumer.last_at, delivery));
        }
        sent
    }

    /// What a queue has, in its places.
    pub(crate) fn kept(&self, name: Name) -> impl Iterator<Item = (u64, &Body)> {
        let queue = self.queues.get(&name).into_iter();
        queue.flat_map(|queue| {
            let unacked = queue.consumers.iter().flat_map(|c| &c.unacked);
            let unacked = unacked.map(|(place, body)| (*place, body));
            unacked.chain(queue.ready.iter().map(|(place, body)| (*place, body)))
        })
    }

    /// The broker ends with what a queue has.
    pub(crate) fn empty(&mut self, name: Name) {
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.ready.clear();
            queue.consumers.iter_mut().for_each(|c| c.unacked.clear());
        }
    }

    /// Changes what waits in a queue.
    pub(crate) fn rewrite(&mut self, name: Name, change: impl Fn(&mut Body)) {
        let queue = self.queues.entry(name).or_default();
        queue.ready.iter_mut().for_each(|(_, body)| change(body));
    }

    /// Whether nothing waits and nothing is unacknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        let idle = |queue: &Queue| {
            queue.ready.is_empty() && queue.consumers.iter().all(|c| c.unacked.is_empty())
        };
        self.queues.values().all(idle)
    }
}
