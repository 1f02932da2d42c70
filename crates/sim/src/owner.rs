//! An owner process: the machine that production runs, and the little that drives it. It brings
//! the machine what happens in the run, does what it says, and has what it decides judged.

mod dispatching;
mod judging;
mod plants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attune_core::{ExecutionId, OwnerId, PartitionId, RequestId, Status};
use attune_executor::owner::{
    Call, CallId, Delivered, DeliveryId, Dispatch, PublishId, Published, Reply, Send,
    SubscriptionId, Work,
};
use attune_executor::partition::{ClusterBounds, ReconcileBounds};
use attune_executor::round::Commit;
use attune_executor::{
    Counter, Decided, Fact, Input, Notice, Output, Owner as Machine, OwnerOptions, QueueConfig,
};

use crate::bus::{Body, Delivery, Name, Party, is_call};
use crate::oracle::{Rule, Violation, WRONG_BY};
use crate::plan::{GRACE, OWNER_TTL, Plan, Plant, RECONCILE_EVERY, Time};
use crate::routing::requests;
use crate::shadow::Shadow;
use crate::trace::Note;
use crate::world::{Ev, StoreCall, StoreReply, Word, World, Written};

/// How many messages of a queue an owner holds unacknowledged.
const PREFETCH: usize = 10;
/// The subscriptions of an owner that has no way to the broker.
const NOWHERE: [u64; 4] = [0; 4];
/// How long before its acknowledgement a refusal is told when that bug is planted.
const REFUSED_BEFORE: Time = 500;
/// How many executions an owner loads at a time, and how many it compares with the store.
const PAGE: u32 = 200;
const SLICE: u32 = 100;
/// How long one may wait in a queue that says nothing about it, in seconds.
pub(crate) const QUEUE_TIMEOUT_SECONDS: u32 = 60;
/// How many may wait where an action does not say it.
pub(crate) const MAX_QUEUE_LENGTH: u32 = 10_000;
/// What the monotonic clocks of owners show when a run begins, besides their skew.
pub(crate) const BOOT: Time = 1_000_000;

/// The topics of a partition, as an owner receives them.
struct Subscribed {
    partition: PartitionId,
    /// The subscriptions at the broker; others whenever the connection was built anew.
    at_broker: [u64; 4],
}

/// One owner process.
pub(crate) struct Owner {
    life: u32,
    alive: bool,
    /// It was asked to end, and has not yet.
    pub(crate) leaves: bool,
    pub(crate) paused_until: Time,
    /// Its clock stands still: since when, and until when.
    pub(crate) blind: Option<(Time, Time)>,
    /// The next commit is refused for good.
    pub(crate) break_commit: bool,
    id: OwnerId,
    pub(crate) skew: Time,
    machine: Machine,
    subscriptions: BTreeMap<SubscriptionId, Subscribed>,
    /// Where each delivery that is not acknowledged lies at the broker.
    deliveries: BTreeMap<DeliveryId, ((u64, u64), Vec<RequestId>)>,
    delivered: u64,
    /// Where the submissions of a request lie at the broker that were delivered. After a cut the
    /// same message is delivered again, and acknowledging it through the old connection does nothing.
    places: BTreeMap<RequestId, BTreeSet<(u64, DeliveryId)>>,
    /// Requests of which nobody knows where they lay.
    unplaced: BTreeSet<RequestId>,
    /// Since when each execution waits that was loaded.
    since: BTreeMap<ExecutionId, Time>,
    /// What it had received of a partition in earlier epochs, when that bug is planted.
    stale: BTreeMap<PartitionId, BTreeMap<DeliveryId, Body>>,
    wake_at: Time,
}

impl Owner {
    pub(crate) fn new(skew: Time, plan: &Plan) -> Self {
        let nobody = OwnerId(uuid::Uuid::nil());
        Self {
            life: 0,
            alive: false,
            leaves: false,
            paused_until: 0,
            blind: None,
            break_commit: false,
            id: nobody,
            skew,
            machine: machine(nobody, plan),
            subscriptions: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            delivered: 0,
            places: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            since: BTreeMap::new(),
            stale: BTreeMap::new(),
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

    pub(crate) fn id(&self) -> OwnerId {
        self.id
    }

    /// What its monotonic clock shows.
    pub(crate) fn clock(&self, now: Time) -> Time {
        let now = match self.blind {
            Some((since, until)) if now < until => since,
            _ => now,
        };
        BOOT + self.skew + now
    }

    /// Whether that goes.
    pub(crate) fn is_on_time(&self, now: Time) -> bool {
        self.blind.is_none_or(|(_, until)| now >= until)
    }

    /// The time by which it decides.
    pub(crate) fn wall(&self, now: Time) -> Time {
        self.machine.store_time(self.clock(now))
    }

    /// The broker has lost all calls: what is here may be decided, or what comes again, elsewhere.
    pub(crate) fn forget_calls(&mut self) {
        let is_call = |places: &BTreeSet<(u64, _)>| places.iter().any(|it| is_call(it.0));
        let lost = self.places.iter().filter(|(_, places)| is_call(places));
        self.unplaced.extend(lost.map(|(request, _)| *request));
    }

    /// Where the submissions lay that were accepted.
    fn places_of(&self, facts: &[Fact]) -> Vec<(ExecutionId, RequestId, u64)> {
        let places = facts.iter().filter_map(|fact| match fact {
            Fact::Accepted {
                execution_id,
                request_id,
                ..
            } => {
                let is_placed = !self.unplaced.contains(request_id);
                let places = self.places.get(request_id).filter(|_| is_placed)?;
                let ((place, _), (other, _)) = (places.first()?, places.last()?);
                // Nobody knows which of two queues it was taken from.
                if is_call(*place) != is_call(*other) {
                    return None;
                }
                Some((*execution_id, *request_id, *place))
            }
            _ => None,
        });
        places.collect()
    }
}

fn machine(id: OwnerId, plan: &Plan) -> Machine {
    Machine::new(OwnerOptions {
        id,
        cluster: ClusterBounds {
            partitions: plan.partitions,
            max_message_bytes: 1 << 20,
            lane_length: plan.lane_length,
        },
        queue: QueueConfig {
            max_queue_length: MAX_QUEUE_LENGTH,
            queue_timeout_seconds: QUEUE_TIMEOUT_SECONDS,
        },
        lease_ttl: OWNER_TTL,
        round_max_items: plan.round_items,
        step_items: plan.step_items,
        round_max_bytes: 1 << 20,
        stats_interval: 250,
        stats_refresh: 60_000,
        page_rows: PAGE,
        slice_rows: SLICE,
        operation_rows: 4,
        reconcile: ReconcileBounds {
            worker_grace: GRACE,
            interval: RECONCILE_EVERY,
        },
        keep_log: true,
        secrets: Default::default(),
    })
}

impl World {
    /// Which of them this is, if its process is still there.
    pub(crate) fn owner_of(&self, id: OwnerId) -> Option<usize> {
        self.owners.iter().position(|owner| owner.id == id)
    }

    pub(crate) fn owner_party(&self, o: usize) -> Party {
        Party::Owner(o, self.owners[o].life)
    }

    /// A fresh process.
    pub(crate) fn start_owner(&mut self, o: usize) {
        let id = OwnerId(self.fresh());
        let machine = machine(id, &self.plan);
        let owner = &mut self.owners[o];
        let (life, skew) = (owner.life + 1, owner.skew);
        *owner = Owner {
            life,
            alive: true,
            id,
            machine,
            ..Owner::new(skew, &self.plan)
        };
        let party = self.owner_party(o);
        self.note(Note::Started(party));
        self.soon(Ev::To(party, Word::Wake));
    }

    /// The process dies; the broker notices, the store does not.
    pub(crate) fn crash_owner(&mut self, o: usize) {
        let party = self.owner_party(o);
        self.note(Note::Stopped(party));
        self.owners[o].alive = false;
        self.close_all(party);
    }

    pub(crate) fn tell_owner(&mut self, o: usize, word: Word) {
        let input = match word {
            Word::Deliver(delivery) => self.delivered(o, &delivery),
            Word::Reply(number, StoreReply::Owner(reply)) => {
                self.note_rows(o, &reply);
                self.charge(o, &reply);
                if let Reply::Looked(looked) = &*reply {
                    let differ = (looked.store_now - looked.own_now).abs() > WRONG_BY;
                    let id = self.owners[o].id();
                    if self.lasting.looked_at_the_clocks(id, differ) {
                        self.flow.may_load_again(id);
                    }
                }
                Some(Input::Answered(CallId(number), *reply))
            }
            Word::Taken(answers) => {
                self.send(o, Send::Answers(answers));
                None
            }
            Word::Published(id, published) => Some(Input::Published(id, published)),
            Word::SnapshotsLost(queues) => Some(Input::SnapshotsLost(queues)),
            Word::Unsubscribed(subscription) => Some(Input::Unsubscribed(subscription)),
            Word::HandedOver(partition) => Some(Input::HandedOver(vec![partition])),
            Word::Bring(delivered) => Some(Input::Delivered(vec![*delivered])),
            Word::Reported(report) => Some(Input::Reported(vec![report])),
            Word::Hello(worker) => Some(Input::Hello(vec![worker])),
            Word::Wake => Some(Input::Timer),
            Word::Leave => Some(Input::Leave),
            Word::Cut => {
                self.reconnect(o);
                None
            }
            Word::Bus => {
                let reachable = self.has_bus(o);
                Some(Input::Bus { reachable })
            }
            // It is said to others.
            _ => None,
        };
        if let Some(input) = input {
            self.step_owner(o, input);
        }
    }

    fn step_owner(&mut self, o: usize, input: Input) {
        let clock = self.owners[o].clock(self.now);
        for output in self.owners[o].machine.step(clock, input) {
            if self.owners[o].alive {
                self.carry_out(o, output);
            }
        }
        let owner = &mut self.owners[o];
        if !owner.alive {
            return;
        }
        if let Some(words) = owner.machine.miscounted() {
            let violation = Violation::of(Rule::Progress, words);
            self.oracle.blame(self.now, violation);
        }
        let mut wait = owner.machine.wake_at(clock) - clock;
        if let Some((_, until)) = owner.blind.filter(|(_, until)| self.now < *until) {
            wait = until - self.now;
        }
        let at = self.now + wait.max(1);
        if owner.wake_at <= self.now || owner.wake_at > at {
            owner.wake_at = at;
            let party = self.owner_party(o);
            self.push(at, Ev::To(party, Word::Wake));
        }
    }

    /// A message has come, if it comes through a subscription that is still wanted.
    fn delivered(&mut self, o: usize, delivery: &Delivery) -> Option<Input> {
        let subscriptions = self.owners[o].subscriptions.iter();
        let mut subscriptions =
            subscriptions.filter(|(_, of)| of.at_broker.contains(&delivery.subscription));
        let (subscription, partition) = subscriptions.next().map(|(id, of)| (*id, of.partition))?;
        if !self.bus.is_open(delivery.subscription) || !self.has_bus(o) {
            return None;
        }
        if self.has(Plant::AckFirst) {
            self.push(self.now, Ev::Ack(delivery.subscription, delivery.place));
        }
        let at_broker = (delivery.subscription, delivery.place);
        let delivered = self.receive(o, subscription, partition, &delivery.body, at_broker)?;
        if self.has(Plant::StaleInbox) {
            let kept = self.owners[o].stale.entry(partition).or_default();
            kept.insert(delivered.id, delivery.body.clone());
        }
        Some(Input::Delivered(vec![delivered]))
    }

    fn receive(
        &mut self,
        o: usize,
        subscription: SubscriptionId,
        partition: PartitionId,
        body: &Body,
        at_broker: (u64, u64),
    ) -> Option<Delivered> {
        let (work, reply_to) = work_of(body)?;
        let work = self.as_taken(work);
        let owner = &mut self.owners[o];
        owner.delivered += 1;
        let id = DeliveryId(owner.delivered);
        let requests = requests(&work);
        for request in &requests {
            let places = owner.places.entry(*request).or_default();
            places.insert((at_broker.1, id));
        }
        owner.deliveries.insert(id, (at_broker, requests));
        Some(Delivered {
            id,
            subscription,
            partition,
            bytes: 100,
            reply_to,
            work,
        })
    }

    fn carry_out(&mut self, o: usize, output: Output) {
        let party = self.owner_party(o);
        match output {
            Output::Call(id, call) => self.owner_call(o, id, call),
            Output::Dispatch {
                id,
                worker,
                sections,
                ..
            } => self.dispatch(o, id, worker, &sections),
            Output::Send(send) => self.send(o, send),
            Output::Ack(deliveries) => {
                let acks: Vec<(u64, u64)> = self.settled(o, deliveries).collect();
                if self.has_bus(o) {
                    for (subscription, place) in acks {
                        self.soon(Ev::Ack(subscription, place));
                    }
                }
            }
            Output::Refuse {
                deliveries,
                answers,
            } => {
                let acks = self.settled(o, deliveries).collect();
                let is_told = self.has(Plant::RefuseFirst);
                let wait = if is_told { REFUSED_BEFORE } else { 0 };
                if is_told {
                    self.send(o, Send::Answers(answers.clone()));
                }
                if self.has_bus(o) {
                    let at = self.now + wait + self.delay();
                    self.push(at, Ev::Refuse(party, acks, answers));
                }
            }
            Output::Subscribe(subscription, partition) => {
                self.subscribe(o, subscription, partition);
                self.go_on_with_the_old_inbox(o, subscription, partition);
            }
            Output::Unsubscribe(subscription) => {
                if let Some(subscribed) = self.owners[o].subscriptions.remove(&subscription) {
                    self.note(Note::SteppedDown(party, subscribed.partition));
                    // Otherwise the broker does not hear of it.
                    if self.has_bus(o) {
                        for at_broker in subscribed.at_broker {
                            self.close(at_broker);
                        }
                    }
                }
                self.soon(Ev::To(party, Word::Unsubscribed(subscription)));
            }
            Output::Noted(decided) | Output::Loaded(decided) => self.noted(o, &decided),
            Output::Count(counter, times) => {
                for _ in 0..times {
                    self.counted(o, counter);
                }
            }
            Output::Notice(Notice::GaveBack) => {
                let id = self.owners[o].id();
                self.flow.may_load_again(id);
            }
            Output::Notice(_) | Output::Waited(_) => {}
            Output::Ended => self.crash_owner(o),
        }
    }

    /// These deliveries are done with; which they are at the broker.
    fn settled(
        &mut self,
        o: usize,
        deliveries: Vec<DeliveryId>,
    ) -> impl Iterator<Item = (u64, u64)> {
        let owner = &mut self.owners[o];
        deliveries.into_iter().filter_map(|delivery| {
            for kept in owner.stale.values_mut() {
                kept.remove(&delivery);
            }
            let ((subscription, place), requests) = owner.deliveries.remove(&delivery)?;
            for request in requests {
                if let Some(places) = owner.places.get_mut(&request) {
                    places.remove(&(place, delivery));
                }
            }
            Some((subscription, place))
        })
    }

    /// Whether an owner has a way to the broker.
    pub(crate) fn has_bus(&self, o: usize) -> bool {
        self.lasting.without_bus(o, self.now).is_none()
    }

    fn subscribe(&mut self, o: usize, subscription: SubscriptionId, partition: PartitionId) {
        let party = self.owner_party(o);
        let names = [
            Name::Control(partition.0),
            Name::ControlKept(partition.0),
            Name::Commands(partition.0),
            Name::Calls(partition.0),
        ];
        let at_broker = if self.has_bus(o) {
            names.map(|name| self.bus.subscribe(name, party, PREFETCH))
        } else {
            NOWHERE
        };
        let subscribed = Subscribed {
            partition,
            at_broker,
        };
        self.owners[o]
            .subscriptions
            .insert(subscription, subscribed);
        for name in names {
            self.pump(name);
        }
    }

    /// The broker has closed the connection: it is built anew, below the machine.
    fn reconnect(&mut self, o: usize) {
        let open: Vec<(SubscriptionId, PartitionId)> = self.owners[o]
            .subscriptions
            .iter()
            .map(|(subscription, of)| (*subscription, of.partition))
            .collect();
        for (subscription, partition) in open {
            if let Some(old) = self.owners[o].subscriptions.remove(&subscription) {
                for at_broker in old.at_broker {
                    self.close(at_broker);
                }
            }
            self.subscribe(o, subscription, partition);
        }
    }

    // ---- the store ----

    fn owner_call(&mut self, o: usize, id: CallId, call: Call) {
        let party = self.owner_party(o);
        let call = match call {
            Call::Commit(commit) => {
                self.numbers += 1;
                let written = self.judged(o, commit);
                self.note(Note::Decided(party, written.number));
                if self.has(Plant::TellFirst) {
                    self.tell_first(&written.commit);
                }
                StoreCall::Commit(Box::new(written))
            }
            call => StoreCall::Owner(self.owners[o].id, Arc::new(call)),
        };
        self.call(party, id.0, call);
    }
}

/// The work in a message, and who waits for the answer.
fn work_of(body: &Body) -> Option<(Work, Option<Arc<str>>)> {
    Some(match body {
        Body::Submit(submit) => (Work::Submits(vec![submit.item()]), submit.reply_to.clone()),
        Body::Cancel(request_id, execution_id, reply_to) => {
            let work = Work::Cancels(vec![(*request_id, *execution_id)]);
            (work, Some(Arc::clone(reply_to)))
        }
        Body::Explain(request_id, execution_id, reply_to) => {
            let work = Work::Explains(vec![(*request_id, *execution_id)]);
            (work, Some(Arc::clone(reply_to)))
        }
        Body::Completed(completion) => (Work::Completions(vec![(**completion).clone()]), None),
        Body::Changed(request_id, action_ref, reply_to) => {
            let change = (*request_id, action_ref.to_string());
            (Work::Changes(vec![change]), Some(Arc::clone(reply_to)))
        }
        Body::Pauses(request_id, reply_to) => {
            (Work::Pauses(vec![*request_id]), Some(Arc::clone(reply_to)))
        }
        Body::Policies(request_id, reply_to) => (
            Work::Policies(vec![*request_id]),
            Some(Arc::clone(reply_to)),
        ),
        Body::Operations(request_id, reply_to) => {
            let work = Work::Operations(vec![*request_id]);
            (work, Some(Arc::clone(reply_to)))
        }
        Body::Release(command, reply_to) => {
            let work = Work::Releases(vec![(**command).clone()]);
            (work, Some(Arc::clone(reply_to)))
        }
        Body::Wire(wire) => (wire.work()?, None),
    })
}
