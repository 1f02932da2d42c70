//! The event loop of a run: one queue of events by virtual time, one stream of chance, and the
//! processes, the store and the broker that the events are for.

mod calls;
mod ends;
mod words;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use attune_core::{
    Action, ActionId, ActionSpec, Builtin, Epoch, ExecutionId, OwnerId, PartitionId, RequestId,
    Run, Status, WorkerId,
};
use attune_dispatch::Section;
use attune_executor::owner::{
    Call, Delivered, Failure, Looked, PublishId, Published, Reply, Reported, SubscriptionId,
};
use attune_executor::partition::{Answer, Completion};
use attune_executor::round::Commit;
use uuid::Uuid;

use crate::beside::Beside;
use crate::bus::{Body, Bus, Delivery, Name, Party};
use crate::client::Ask;
use crate::flow::Flow;
use crate::holds::Holds;
use crate::lasting::Lasting;
use crate::operations::Operations;
use crate::oracle::{Key, Oracle, Rule, Violation};
use crate::owner::Owner;
use crate::plan::{self, Noise, PATIENCE, Plan, Plant, Time};
use crate::policies::Policies;
use crate::rates::Rates;
use crate::refusals::Refusals;
use crate::results::Reports;
use crate::retries::Retries;
use crate::rng::Rng;
use crate::routing::{Routing, RoutingEv};
use crate::shadow::Shadow;
use crate::store::{Lease, Store};
use crate::trace::{Note, Trace};
use crate::ways::Ways;
use crate::worker::{Grant, Worker};

pub(crate) use ends::completion;
pub(crate) use words::{Ev, Fate, StoreCall, StoreReply, Word, Written};
pub use words::{Outcome, Seen};

/// What the wall clocks show when a run begins, in milliseconds.
pub(crate) const WALL: i64 = 1_700_000_000_000;

struct Due(Time, u64, Box<Ev>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A run under way.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    events: BinaryHeap<Reverse<Due>>,
    pushed: u64,
    pub(crate) rng: Rng,
    pub(crate) noise: Noise,
    pub(crate) store: Store,
    pub(crate) store_down_until: Time,
    /// Until then the store refuses every commit, and nothing else.
    pub(crate) refuse_until: Time,
    /// Who has a connection that was left inside a transaction, when that bug is planted.
    left_open: BTreeSet<Party>,
    pub(crate) bus: Bus,
    pub(crate) owners: Vec<Owner>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) asks: Vec<Ask>,
    /// When the last message of each client reaches the broker: a channel keeps its order.
    pub(crate) client_at: BTreeMap<usize, Time>,
    pub(crate) confirmed: BTreeSet<RequestId>,
    /// What is stored beside the executions.
    pub(crate) beside: Beside,
    /// What operators were told is held.
    pub(crate) holds: Holds,
    pub(crate) policies: Policies,
    pub(crate) operations: Operations,
    /// What clients were told is refused.
    pub(crate) refusals: Refusals,
    pub(crate) completions: Vec<Arc<Completion>>,
    /// What workers have said of runs.
    pub(crate) reports: Reports,
    pub(crate) retries: Retries,
    pub(crate) rates: Rates,
    pub(crate) lasting: Lasting,
    pub(crate) flow: Flow,
    /// Whether somebody sits on what others could serve.
    pub(crate) ways: Ways,
    pub(crate) routing: Routing,
    /// Slots that a planted counter believes to be free and are not.
    pub(crate) extra: BTreeMap<ActionId, u32>,
    pub(crate) oracle: Oracle,
    pub(crate) shadows: BTreeMap<(PartitionId, Epoch), Shadow>,
    pub(crate) seen: Seen,
    pub(crate) trace: Trace,
    pub(crate) numbers: u64,
    /// What was said to processes that stand still.
    waiting: BTreeMap<Party, VecDeque<Word>>,
    pub(crate) healed: bool,
}

/// Runs a plan to its end.
pub fn run(plan: Plan, keep_lines: bool) -> Outcome {
    run_until(plan, keep_lines, None)
}

/// Likewise, but no further than to where a rule is broken.
pub(crate) fn run_until(plan: Plan, keep_lines: bool, rule: Option<Rule>) -> Outcome {
    let mut world = World::new(plan, keep_lines);
    world.run(rule);
    let World {
        oracle,
        seen,
        trace,
        pushed,
        ..
    } = world;
    Outcome {
        steps: pushed,
        hash: trace.hash(),
        seen,
        violations: oracle.violations,
        lines: trace.into_lines(),
    }
}

impl World {
    fn new(plan: Plan, keep_lines: bool) -> Self {
        let actions = (0..plan.actions.len()).map(|n| action(&plan, n)).collect();
        let mut store = Store::default();
        store.leases = vec![Lease::default(); usize::from(plan.partitions)];
        store.actions = actions;
        store.fenced = plan.plant != Some(Plant::NoFence);
        let mut bus = Bus::default();
        bus.requeue_last = plan.plant == Some(Plant::RequeueLast);
        let mut world = Self {
            now: 0,
            events: BinaryHeap::new(),
            pushed: 0,
            rng: Rng::new(plan.seed ^ 0xa5a5_0000_0000_5a5a),
            noise: plan.noise,
            store,
            store_down_until: 0,
            refuse_until: 0,
            left_open: BTreeSet::new(),
            bus,
            owners: plan
                .owner_skews
                .iter()
                .map(|skew| Owner::new(*skew, &plan))
                .collect(),
            workers: plan
                .worker_slots
                .iter()
                .map(|slots| Worker::new(*slots))
                .collect(),
            asks: Vec::new(),
            client_at: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            beside: Beside::default(),
            holds: Holds::default(),
            policies: Policies::default(),
            operations: Operations::default(),
            refusals: Refusals::default(),
            completions: Vec::new(),
            reports: Reports::default(),
            rates: Rates::default(),
            retries: Retries::of((0..plan.actions.len()).map(|number| {
                let action = action(&plan, number);
                (action.id, action.spec.retry())
            })),
            lasting: Lasting::new(plan.pools),
            flow: Flow::default(),
            ways: Ways::default(),
            routing: Routing::default(),
            extra: BTreeMap::new(),
            oracle: Oracle::default(),
            shadows: BTreeMap::new(),
            seen: Seen::default(),
            trace: Trace::new(keep_lines),
            numbers: 0,
            waiting: BTreeMap::new(),
            healed: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.begin_routing();
        for owner in 0..self.owners.len() {
            self.push(0, Ev::Restart(Party::Owner(owner, 0)));
        }
        for worker in 0..self.workers.len() {
            self.push(0, Ev::Restart(Party::Worker(worker, 0)));
        }
        for n in 0..self.plan.ops.len() {
            self.push(self.plan.ops[n].at, Ev::Op(n));
        }
        for n in 0..self.plan.faults.len() {
            self.push(self.plan.faults[n].at, Ev::Fault(n));
        }
        for action in self.store.actions.clone() {
            let limit = action.spec.policy.concurrency.limit;
            self.oracle.said.stored(action.id, action.version, limit);
        }
        self.push(self.plan.heal_at, Ev::Heal);
        self.push(0, Ev::Watch);
    }

    /// A number that no other thing of this run has.
    pub(crate) fn fresh(&mut self) -> Uuid {
        self.numbers += 1;
        Uuid::from_u128(u128::from(self.plan.seed) << 64 | u128::from(self.numbers))
    }

    pub(crate) fn has(&self, plant: Plant) -> bool {
        self.plan.plant == Some(plant)
    }

    pub(crate) fn push(&mut self, at: Time, event: Ev) {
        self.pushed += 1;
        self.events
            .push(Reverse(Due(at.max(self.now), self.pushed, Box::new(event))));
    }

    /// The usual delay of anything.
    pub(crate) fn delay(&mut self) -> Time {
        self.rng.between(0, self.noise.delay)
    }

    pub(crate) fn soon(&mut self, event: Ev) {
        let at = self.now + self.delay();
        self.push(at, event);
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.trace.note(self.now, note);
    }

    fn run(&mut self, until: Option<Rule>) {
        let end = self.plan.heal_at + PATIENCE;
        while let Some(Reverse(Due(at, _, event))) = self.events.pop() {
            self.now = at;
            if at >= end {
                break;
            }
            if matches!(*event, Ev::Look) {
                if self.is_done() {
                    break;
                }
                self.push(self.now + 500, Ev::Look);
                continue;
            }
            self.handle(*event);
            if until.is_some_and(|rule| self.oracle.violations.contains_key(&rule)) {
                return;
            }
        }
        let asks = self
            .asks
            .iter()
            .filter(|ask| !ask.done && !ask.confirm_only);
        let unanswered: Vec<RequestId> = asks.map(|ask| ask.request_id).collect();
        self.oracle
            .end(self.now, &self.store, &self.confirmed, &unanswered);
        if let Some(open) = Operations::end(&self.store) {
            self.oracle.blame(self.now, open);
        }
        self.end_routing();
        self.end_beside();
        if !self.bus.is_empty() {
            let words = "the broker still keeps messages".to_owned();
            self.oracle
                .blame(self.now, Violation::of(attune_core::Promise::I1, words));
        }
        for violation in self.oracle.violations.clone().into_values() {
            self.note(Note::Broken(violation.rule));
        }
        self.seen.most_returned = u64::from(self.bus.most_returned);
        self.seen.executions = (self.store.history.len() + self.store.active.len()) as u64;
    }

    /// Whether nothing is left that could happen by itself.
    fn is_done(&self) -> bool {
        self.healed
            && self.store.active.is_empty()
            && Operations::end(&self.store).is_none()
            && self.bus.is_empty()
            && self.routing_is_done()
            && self.oracle.is_quiet(&self.store)
            && self.asks.iter().all(|ask| ask.done)
    }

    fn handle(&mut self, event: Ev) {
        match event {
            Ev::Op(n) => self.op(n),
            Ev::Fault(n) => self.fault(n),
            Ev::Heal => self.heal(),
            Ev::To(party, word) => self.to(party, word),
            Ev::Resume(party) => self.resume(party),
            Ev::Arrive(name, body, ask) => self.arrive(name, body, ask),
            Ev::Ack(subscription, place) => {
                if let Some(name) = self.bus.ack(subscription, place) {
                    self.pump(name);
                }
            }
            Ev::Refuse(party, acks, answers) => self.refuse(party, &acks, answers),
            Ev::BusIsBack(owner) => self.find_bus(owner),
            Ev::Silent(party) => {
                if self.stands_still(party).is_some() || self.is_without_bus(party) {
                    self.note(Note::Silent(party));
                    self.close_all(party);
                    self.push(self.now, Ev::To(party, Word::Cut));
                }
            }
            Ev::Store(party, number, call, fate, reply_at) => {
                let reply_at = reply_at + self.held_up(&call);
                let reply = self.perform(party, call, fate);
                self.push(reply_at, Ev::To(party, Word::Reply(number, reply)));
            }
            Ev::Answer(ask, copy, is_refused) => self.answered(ask, copy, is_refused),
            Ev::Ask(ask) => self.ask(ask),
            Ev::Watch => self.watch_flow(),
            Ev::Restart(party) => self.restart(party),
            Ev::Routing(event) => self.routing_event(event),
            Ev::LifeEnds(worker, id) => self.life_ends(worker, id),
            Ev::RunEnds(worker, key, id, status) => self.run_ends(worker, key, id, status),
            Ev::Look => {}
        }
    }

    /// Passes a word on, later and in order when the process stands still.
    fn to(&mut self, party: Party, word: Word) {
        if let Some(waiting) = self.waiting.get_mut(&party) {
            waiting.push_back(word);
        } else if let Some(until) = self.stands_still(party) {
            self.waiting.insert(party, VecDeque::from([word]));
            self.push(until, Ev::Resume(party));
        } else {
            self.tell(party, word);
        }
    }

    fn resume(&mut self, party: Party) {
        if let Some(until) = self.stands_still(party) {
            return self.push(until, Ev::Resume(party));
        }
        if let Party::Owner(owner, _) = party {
            self.judge_pause(owner);
        }
        let mut waiting = self.waiting.remove(&party).unwrap_or_default();
        while let Some(word) = waiting.pop_front() {
            self.tell(party, word);
            // One of them may have kept it busy.
            if let Some(until) = self.stands_still(party).filter(|_| !waiting.is_empty()) {
                self.waiting.insert(party, waiting);
                return self.push(until, Ev::Resume(party));
            }
        }
    }

    /// Tells a process, if it still is the one that is meant.
    fn tell(&mut self, party: Party, word: Word) {
        match party {
            Party::Owner(owner, life) if self.owners[owner].is_in(life) => {
                self.tell_owner(owner, word);
            }
            Party::Worker(worker, life) if self.workers[worker].is_in(life) => {
                self.tell_worker(worker, word);
            }
            Party::Relay(relay, life) if self.routing.relays[relay].is_in(life) => {
                self.tell_relay(relay, word);
            }
            Party::Owner(..) | Party::Worker(..) | Party::Relay(..) => {}
        }
    }

    fn is_without_bus(&self, party: Party) -> bool {
        let Party::Owner(owner, _) = party else {
            return false;
        };
        self.lasting.without_bus(owner, self.now).is_some()
    }

    fn stands_still(&self, party: Party) -> Option<Time> {
        let until = match party {
            Party::Owner(owner, life) => {
                let owner = &self.owners[owner];
                owner.is_in(life).then_some(owner.paused_until)
            }
            Party::Worker(worker, life) => {
                let worker = &self.workers[worker];
                worker.is_in(life).then_some(worker.paused_until)
            }
            Party::Relay(relay, life) => {
                let relay = &self.routing.relays[relay];
                relay.is_in(life).then_some(relay.paused_until)
            }
        };
        until.filter(|until| *until > self.now)
    }

    pub(crate) fn arrive(&mut self, name: Name, body: Body, ask: Option<usize>) {
        if let Some(ask) = ask {
            self.confirm(ask);
        }
        self.refusals.came(&body);
        if let Some((name, body)) = self.by_relays(name, body) {
            self.arrive_at(name, body);
        }
    }

    /// A message comes to a queue.
    pub(crate) fn arrive_at(&mut self, name: Name, body: Body) {
        self.note_arrival(name, &body);
        self.refusals.arrived(&body);
        let place = self.bus.arrive(name, body);
        self.note(Note::Arrived(name, place));
        self.routing.note_place(name, place, self.now);
        self.pump(name);
    }

    /// Lets the broker send what it can.
    pub(crate) fn pump(&mut self, name: Name) {
        let (now, delay) = (self.now, self.noise.delay);
        for (at, delivery) in self.bus.pump(name, now, delay, &mut self.rng) {
            self.push(at, Ev::To(delivery.to, Word::Deliver(delivery)));
        }
    }

    /// Publishes, maybe twice.
    pub(crate) fn publish(&mut self, name: Name, body: &Body) {
        self.soon(Ev::Arrive(name, body.clone(), None));
        if self.rng.chance(self.noise.doubled) {
            let at = self.now + self.rng.between(0, self.noise.delay * 10);
            self.push(at, Ev::Arrive(name, body.clone(), None));
        }
    }

    /// Ends every subscription of a party.
    pub(crate) fn close_all(&mut self, party: Party) {
        for subscription in self.bus.subscriptions_of(party) {
            self.close(subscription);
        }
    }

    pub(crate) fn close(&mut self, subscription: u64) {
        if let Some(name) = self.bus.close(subscription) {
            self.pump(name);
        }
        for (name, body) in self.bus.take_dead() {
            let words = format!("{name:?} gave this back too often: {body:?}");
            let violation = Violation::of(attune_core::Promise::I1, words);
            self.oracle.blame(self.now, violation);
        }
    }

    fn heal(&mut self) {
        self.note(Note::Healed);
        self.healed = true;
        self.noise = self.noise.healed();
        (self.store_down_until, self.refuse_until) = (0, 0);
        self.beside.refused_until = 0;
        self.store.hidden.clear();
        self.lasting.heal();
        self.resume_all();
        self.heal_routing();
        for o in 0..self.owners.len() {
            let owner = &mut self.owners[o];
            owner.break_commit = false;
            if owner.blind.take().is_some() {
                // Its clock goes again.
                let party = self.owner_party(o);
                self.push(self.now, Ev::To(party, Word::Wake));
            }
        }
        self.push(self.now + 500, Ev::Look);
    }
}

fn action(plan: &Plan, number: usize) -> Action {
    let shape = &plan.actions[number];
    let action_ref = shape.name.parse().expect("the names of a plan are refs");
    let mut spec = ActionSpec::new(action_ref, Run::Builtin(Builtin::Noop));
    spec.policy.concurrency.limit = shape.limit;
    spec.policy.queue.max_length = shape.max_length;
    spec.policy.queue.timeout_seconds = shape.timeout_seconds;
    plan::set_order(&mut spec.policy, shape.order);
    let (grouping, group_limit) = shape.grouping;
    grouping.write(&mut spec.policy, group_limit);
    shape.starts.write(&mut spec.policy);
    shape.ranks.write(&mut spec.policy);
    shape.overflow.write(&mut spec.policy);
    spec.on_worker_lost = Some(shape.on_worker_lost);
    spec.max_attempts = Some(shape.max_attempts);
    (spec.policy.retry, spec.policy.events) = (shape.retry, shape.events);
    spec.pool = pool_name(shape.pool);
    Action {
        id: ActionId(i64::try_from(number).unwrap_or(0) + 1),
        partition: plan.partition_of(number),
        version: 1,
        spec,
    }
}

/// The name of a pool of workers.
pub(crate) fn pool_name(pool: usize) -> String {
    format!("pool{pool}")
}
