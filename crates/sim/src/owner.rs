//! An owner: the real core and the real folding, in a shell that does what the journal and the
//! lease keeper of the executor do, in the same order, one event at a time.

mod decide;
mod journal;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use attune_bus::{DeliveryTag, Settle, Settler};
use attune_core::{ActionId, Epoch, ExecutionId, OwnerId, PartitionId, RequestId, Status};
use attune_executor::draft::{Draft, Round, Tell};
use attune_executor::{Counter, Effect, Event, ExecutionQueueManager, PartitionCore, QueueConfig};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome};

use crate::bus::{Body, Delivery, Name, Party};
use crate::oracle::{Rule, Violation};
use crate::plan::{GRACE, MARGIN, OWNER_TTL, Plant, RECONCILE_EVERY, REPUBLISH_AFTER, Time};
use crate::shadow::{Shadow, reported};
use crate::trace::Note;
use crate::world::{Call, Ev, Loaded, Reply, WALL, Word, World, Written};

/// How many messages one round takes.
const MAX_ROUND: usize = 8;
/// How many messages of a queue an owner holds unacknowledged.
const PREFETCH: usize = 10;
/// How long one may wait in a queue that says nothing about it, in seconds.
const QUEUE_TIMEOUT_SECONDS: u32 = 60;

/// The simulator acknowledges by the tags in [`Tell::acks`]; nothing is done here.
struct ByTag;

#[async_trait::async_trait]
impl Settle for ByTag {
    async fn ack(&self, _tags: &[DeliveryTag]) {}
}

/// A partition that an owner serves.
struct Owned {
    core: PartitionCore,
    subscriptions: [u64; 2],
    /// Slots that a planted counter believes to be free and are not.
    extra: BTreeMap<ActionId, u32>,
}

/// A message that waits to be decided on.
struct Inbound {
    partition: PartitionId,
    epoch: Epoch,
    subscription: u64,
    place: u64,
    body: Body,
}

/// What an owner is told about its leases.
enum LeaseEvent {
    Acquired(Vec<(PartitionId, Epoch)>),
    Lost(Vec<PartitionId>),
}

/// What the loop of an owner waits for.
enum Stage {
    Idle,
    LookUp(Vec<Inbound>),
    Load(Vec<(PartitionId, Epoch)>),
    Slots,
    Write(Box<Writing>),
}

struct Writing {
    round: Round,
    number: u64,
    places: Vec<(ExecutionId, RequestId, u64)>,
    found: Vec<(PartitionId, Violation)>,
}

/// One owner process.
pub(crate) struct Owner {
    life: u32,
    alive: bool,
    pub(crate) paused_until: Time,
    pub(crate) blind_until: Time,
    /// The next commit is refused for good.
    pub(crate) break_commit: bool,
    /// Partitions that it does not want before a time.
    pub(crate) shunned: BTreeMap<PartitionId, Time>,
    id: OwnerId,
    skew: Time,
    settler: Settler,
    queues: ExecutionQueueManager,
    held: BTreeMap<PartitionId, Epoch>,
    trusted_until: Time,
    lease_sent: Time,
    lease_call: u64,
    owned: BTreeMap<PartitionId, Owned>,
    lease_events: VecDeque<LeaseEvent>,
    control: VecDeque<Inbound>,
    commands: VecDeque<Inbound>,
    stage: Stage,
    /// What the oracle says of the decisions of this round. It counts when they are stored: what
    /// a stale owner decides and cannot store does no harm.
    found: Vec<(PartitionId, Violation)>,
    calls: u64,
    current_call: u64,
    reconcile_at: Time,
    wake_at: Time,
}

impl Owner {
    pub(crate) fn new(skew: Time) -> Self {
        Self {
            life: 0,
            alive: false,
            paused_until: 0,
            blind_until: 0,
            break_commit: false,
            shunned: BTreeMap::new(),
            id: OwnerId(uuid::Uuid::nil()),
            skew,
            settler: Arc::new(ByTag),
            queues: queues(),
            held: BTreeMap::new(),
            trusted_until: 0,
            lease_sent: 0,
            lease_call: 0,
            owned: BTreeMap::new(),
            lease_events: VecDeque::new(),
            control: VecDeque::new(),
            commands: VecDeque::new(),
            stage: Stage::Idle,
            found: Vec::new(),
            calls: 0,
            current_call: 0,
            reconcile_at: 0,
            wake_at: 0,
        }
    }

    pub(crate) fn is_in(&self, life: u32) -> bool {
        self.alive && self.life == life
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }
}

fn queues() -> ExecutionQueueManager {
    ExecutionQueueManager::new(QueueConfig {
        max_queue_length: 10_000,
        queue_timeout_seconds: QUEUE_TIMEOUT_SECONDS,
    })
}

impl World {
    fn owner_party(&self, o: usize) -> Party {
        Party::Owner(o, self.owners[o].life)
    }

    /// What the wall clock of an owner shows.
    fn wall(&self, o: usize) -> i64 {
        WALL + self.now + self.owners[o].skew
    }

    /// A fresh process.
    pub(crate) fn start_owner(&mut self, o: usize) {
        let id = OwnerId(self.fresh());
        let owner = &mut self.owners[o];
        let (life, skew) = (owner.life + 1, owner.skew);
        *owner = Owner {
            life,
            alive: true,
            id,
            ..Owner::new(skew)
        };
        let party = self.owner_party(o);
        self.note(Note::Started(party));
        self.soon(Ev::To(party, Word::Lease));
    }

    /// The process dies; the broker notices, the store does not.
    pub(crate) fn crash_owner(&mut self, o: usize) {
        let party = self.owner_party(o);
        self.note(Note::Stopped(party));
        self.owners[o].alive = false;
        self.close_all(party);
    }

    pub(crate) fn tell_owner(&mut self, o: usize, word: Word) {
        match word {
            Word::Deliver(delivery) => self.receive(o, delivery),
            Word::Reply(0, _) => {}
            Word::Reply(number, reply) if number == self.owners[o].lease_call => {
                self.lease_reply(o, reply);
            }
            Word::Reply(number, reply) if number == self.owners[o].current_call => {
                self.owners[o].current_call = 0;
                self.journal_reply(o, reply);
            }
            Word::Retry if self.owners[o].current_call == 0 => self.issue(o),
            Word::Lease => self.lease_round(o),
            Word::Tell(tell) => self.publish_round(*tell),
            Word::Cut => self.reconnect(o),
            Word::Reply(..) | Word::Retry | Word::Wake | Word::CancelRun(_) | Word::Report(..) => {}
        }
        self.drive(o);
    }

    fn receive(&mut self, o: usize, delivery: Delivery) {
        if !self.bus.is_open(delivery.subscription) {
            return;
        }
        let owner = &mut self.owners[o];
        let holder = owner
            .owned
            .iter()
            .find(|(_, owned)| owned.subscriptions.contains(&delivery.subscription));
        let Some((partition, owned)) = holder else {
            return;
        };
        let inbound = Inbound {
            partition: *partition,
            epoch: owned.core.epoch(),
            subscription: delivery.subscription,
            place: delivery.place,
            body: delivery.body,
        };
        if owned.subscriptions[0] == delivery.subscription {
            owner.control.push_back(inbound);
        } else {
            owner.commands.push_back(inbound);
        }
        if self.has(Plant::AckFirst) {
            self.push(self.now, Ev::Ack(delivery.subscription, delivery.place));
        }
    }

    // ---- leases ----

    /// Renews what is held, or asks for what nobody owns.
    fn lease_round(&mut self, o: usize) {
        let party = self.owner_party(o);
        let next = self.now + OWNER_TTL / 3;
        self.push(next, Ev::To(party, Word::Lease));
        if self.now < self.owners[o].blind_until {
            return;
        }
        let now = self.now;
        let owner = &mut self.owners[o];
        owner.lease_sent = now;
        if owner.held.is_empty() {
            return self.acquire(o);
        }
        let held = owner.held.iter().map(|(p, epoch)| (*p, *epoch)).collect();
        let number = owner.next_call();
        owner.lease_call = number;
        let call = Call::Renew(owner.id, held);
        self.call(party, number, call);
    }

    fn acquire(&mut self, o: usize) {
        let (now, party) = (self.now, self.owner_party(o));
        let partitions = self.plan.partitions;
        let owner = &mut self.owners[o];
        let missing: Vec<PartitionId> = (0..partitions)
            .map(PartitionId)
            .filter(|p| !owner.held.contains_key(p))
            .filter(|p| owner.shunned.get(p).is_none_or(|until| *until <= now))
            .collect();
        if missing.is_empty() {
            return;
        }
        let number = owner.next_call();
        owner.lease_call = number;
        let call = Call::Acquire(owner.id, missing);
        self.call(party, number, call);
    }

    fn lease_reply(&mut self, o: usize, reply: Reply) {
        let owner = &mut self.owners[o];
        owner.lease_call = 0;
        let trusted = owner.lease_sent + OWNER_TTL - MARGIN;
        match reply {
            Reply::Renewed(renewed) => {
                let held = owner.held.keys().copied();
                let lost: Vec<_> = held.filter(|p| !renewed.contains(p)).collect();
                owner.held.retain(|p, _| renewed.contains(p));
                owner.trusted_until = trusted;
                if !lost.is_empty() {
                    owner.lease_events.push_back(LeaseEvent::Lost(lost));
                }
                self.acquire(o);
            }
            Reply::Acquired(acquired) if !acquired.is_empty() => {
                if owner.held.is_empty() {
                    owner.trusted_until = trusted;
                }
                owner.held.extend(acquired.iter().copied());
                owner.lease_events.push_back(LeaseEvent::Acquired(acquired));
            }
            _ => {}
        }
    }

    /// Lets a partition go; its unacknowledged messages go to whoever owns it.
    pub(crate) fn step_down(&mut self, o: usize, partition: PartitionId) {
        let party = self.owner_party(o);
        let Some(owned) = self.owners[o].owned.remove(&partition) else {
            return;
        };
        self.note(Note::SteppedDown(party, partition));
        let epoch = owned.core.epoch();
        owned.core.step_down();
        for subscription in owned.subscriptions {
            self.close(subscription);
        }
        let owner = &mut self.owners[o];
        if owner.held.get(&partition) == Some(&epoch) {
            owner.held.remove(&partition);
            // Nobody waits for the answer.
            let call = Call::GiveUp(owner.id, vec![(partition, epoch)]);
            self.call(party, 0, call);
            self.soon(Ev::To(party, Word::Lease));
        }
    }

    /// The broker has closed the connection: subscribes again to what is served.
    fn reconnect(&mut self, o: usize) {
        let partitions: Vec<PartitionId> = self.owners[o].owned.keys().copied().collect();
        for partition in partitions {
            self.subscribe(o, partition);
        }
    }

    fn subscribe(&mut self, o: usize, partition: PartitionId) {
        let party = self.owner_party(o);
        let old = self.owners[o]
            .owned
            .get(&partition)
            .map(|owned| owned.subscriptions);
        for subscription in old.into_iter().flatten() {
            self.close(subscription);
        }
        let names = [Name::Control(partition.0), Name::Commands(partition.0)];
        let subscriptions = names.map(|name| self.bus.subscribe(name, party, PREFETCH));
        if let Some(owned) = self.owners[o].owned.get_mut(&partition) {
            owned.subscriptions = subscriptions;
        }
        for name in names {
            self.pump(name);
        }
    }
}
