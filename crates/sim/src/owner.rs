//! An owner: the real core and the real folding, in a shell that does what the journal and the
//! lease keeper of the executor do, in the same order, one event at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use attune_bus::{DeliveryTag, Settle, Settler};
use attune_core::{ActionId, Epoch, ExecutionId, OwnerId, PartitionId, RequestId, Status};
use attune_executor::draft::{Draft, Round, Tell};
use attune_executor::{
    Counter, Effect, Event, ExecutionQueueManager, PartitionCore, QueueConfig, ReconcileBounds,
};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome};

use crate::bus::{Body, Delivery, Name, Party};
use crate::oracle::{Promise, Violation};
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

    // ---- the loop ----

    /// Goes on for as long as nothing must be waited for.
    fn drive(&mut self, o: usize) {
        loop {
            let owner = &mut self.owners[o];
            if !owner.alive || !matches!(owner.stage, Stage::Idle) {
                return;
            }
            if let Some(event) = owner.lease_events.pop_front() {
                match event {
                    LeaseEvent::Acquired(acquired) => {
                        owner.stage = Stage::Load(acquired);
                        self.issue(o);
                    }
                    LeaseEvent::Lost(lost) => {
                        for partition in lost {
                            self.step_down(o, partition);
                        }
                    }
                }
                continue;
            }
            let due = self.next_timer(o) <= self.now;
            let owner = &mut self.owners[o];
            if owner.control.is_empty() && owner.commands.is_empty() && !due {
                return self.sleep(o);
            }
            let trusted = self.now < owner.trusted_until || self.now < owner.blind_until;
            if !trusted && !owner.owned.is_empty() {
                // A renewal or a loss wakes it.
                return;
            }
            if due && self.now >= owner.reconcile_at {
                owner.reconcile_at = self.now + RECONCILE_EVERY;
                if !owner.owned.is_empty() {
                    owner.stage = Stage::Slots;
                    self.issue(o);
                    continue;
                }
            }
            let mut work = Vec::new();
            for inbox in [&mut owner.control, &mut owner.commands] {
                let room = MAX_ROUND - work.len();
                work.extend(inbox.drain(..room.min(inbox.len())));
            }
            owner.stage = Stage::LookUp(work);
            self.issue(o);
        }
    }

    fn next_timer(&self, o: usize) -> Time {
        let owner = &self.owners[o];
        let deadlines = owner
            .owned
            .values()
            .filter_map(|owned| owned.core.next_deadline());
        let deadline = deadlines.min().map(|time| time - WALL - owner.skew);
        owner.reconcile_at.min(deadline.unwrap_or(Time::MAX))
    }

    fn sleep(&mut self, o: usize) {
        let at = self.next_timer(o).max(self.now + 1);
        let owner = &mut self.owners[o];
        if owner.wake_at <= self.now || owner.wake_at > at {
            owner.wake_at = at;
            let party = self.owner_party(o);
            self.push(at, Ev::To(party, Word::Wake));
        }
    }

    /// Makes the store call that the stage waits for, if it needs one.
    fn issue(&mut self, o: usize) {
        let party = self.owner_party(o);
        if matches!(self.owners[o].stage, Stage::Write(_)) {
            self.add_fences(o);
        }
        let owner = &mut self.owners[o];
        let call = match &owner.stage {
            Stage::Idle => return,
            Stage::Load(acquired) => Call::Load(acquired.iter().map(|(p, _)| *p).collect()),
            Stage::Slots => Call::Slots(owner.owned.keys().copied().collect()),
            Stage::LookUp(work) => {
                let (requests, refs) = questions(work);
                if requests.is_empty() && refs.is_empty() {
                    return self.journal_reply(o, Reply::Known(Vec::new(), Vec::new()));
                }
                Call::LookUp(requests, refs)
            }
            Stage::Write(writing) if writing.round.is_empty() => {
                return self.journal_reply(o, Reply::Committed);
            }
            Stage::Write(writing) => Call::Commit(Box::new(Written {
                number: writing.number,
                batch: writing.round.batch.clone(),
                places: writing.places.clone(),
                found: writing.found.clone(),
            })),
        };
        let number = owner.next_call();
        owner.current_call = number;
        self.call(party, number, call);
    }

    fn journal_reply(&mut self, o: usize, reply: Reply) {
        let stage = std::mem::replace(&mut self.owners[o].stage, Stage::Idle);
        match (stage, reply) {
            (stage, Reply::Failed) => {
                self.owners[o].stage = stage;
                let at = self.now + self.rng.between(20, 400);
                let party = self.owner_party(o);
                self.push(at, Ev::To(party, Word::Retry));
            }
            (Stage::LookUp(work), Reply::Known(known, actions)) => {
                let mut draft = Draft::default();
                let partitions: Vec<PartitionId> = self.owners[o].owned.keys().copied().collect();
                for partition in partitions {
                    self.step(o, partition, Event::Known(known.clone()), false, &mut draft);
                    for action in actions.iter().filter(|a| a.partition == partition) {
                        let event = Event::ActionKnown(action.clone());
                        self.step(o, partition, event, false, &mut draft);
                    }
                    self.step(o, partition, Event::Tick, true, &mut draft);
                }
                let mut places = Vec::new();
                for inbound in work {
                    self.decide(o, inbound, &mut draft, &mut places);
                }
                self.write(o, draft, places);
            }
            (Stage::Load(acquired), Reply::Loaded(loaded)) => self.take_over(o, acquired, *loaded),
            (Stage::Slots, Reply::Slots(slots)) => {
                let bounds = ReconcileBounds {
                    worker_grace: GRACE.unsigned_abs(),
                    republish_after: REPUBLISH_AFTER.unsigned_abs(),
                    interval: RECONCILE_EVERY.unsigned_abs(),
                };
                let mut draft = Draft::default();
                let partitions: Vec<PartitionId> = self.owners[o].owned.keys().copied().collect();
                for partition in partitions {
                    let mine = slots.iter().filter(|slot| slot.id.partition() == partition);
                    let slots = mine.cloned().collect();
                    self.step(
                        o,
                        partition,
                        Event::Reconcile { slots, bounds },
                        false,
                        &mut draft,
                    );
                }
                self.write(o, draft, Vec::new());
            }
            (Stage::Write(writing), Reply::Committed) => self.written(o, writing.round),
            (Stage::Write(mut writing), Reply::Fenced(lost)) => {
                for partition in lost {
                    writing.round.drop_partition(partition);
                    writing
                        .places
                        .retain(|(id, ..)| id.partition() != partition);
                    writing.found.retain(|(of, _)| *of != partition);
                    self.step_down(o, partition);
                }
                self.owners[o].stage = Stage::Write(writing);
                self.issue(o);
            }
            (Stage::Write(writing), Reply::Broken) => {
                let touched: Vec<PartitionId> = writing
                    .round
                    .touched()
                    .map(|(partition, _)| partition)
                    .collect();
                for partition in touched {
                    self.step_down(o, partition);
                }
            }
            (stage, _) => self.owners[o].stage = stage,
        }
    }

    fn take_over(&mut self, o: usize, acquired: Vec<(PartitionId, Epoch)>, mut loaded: Loaded) {
        let (now, party) = (self.wall(o), self.owner_party(o));
        let count = self.plan.partitions;
        let mut draft = Draft::default();
        for (partition, epoch) in &acquired {
            let queues = self.owners[o].queues.clone();
            let core = PartitionCore::new(*partition, count, *epoch, queues);
            self.shadows.insert((*partition, *epoch), Shadow::default());
            let owned = Owned {
                core,
                subscriptions: [0; 2],
                extra: BTreeMap::new(),
            };
            self.owners[o].owned.insert(*partition, owned);
            let mine = loaded
                .actions
                .iter()
                .filter(|action| action.partition == *partition);
            let actions: Vec<_> = mine.cloned().collect();
            let totals = loaded.totals.clone();
            self.step(
                o,
                *partition,
                Event::Recover { actions, totals },
                false,
                &mut draft,
            );
            let mut rows = loaded.rows.remove(partition).unwrap_or_default();
            if let Some(shadow) = self.shadows.get_mut(&(*partition, *epoch)) {
                shadow.recover(now, &rows);
            }
            // In two pages, as a large partition would be.
            let second = rows.split_off(rows.len() / 2);
            for rows in [rows, second] {
                self.step(o, *partition, Event::RecoverRows(rows), false, &mut draft);
            }
            self.subscribe(o, *partition);
            self.note(Note::TakenOver(party, *partition, *epoch));
        }
        for (partition, _) in acquired {
            self.step(o, partition, Event::Tick, true, &mut draft);
        }
        self.write(o, draft, Vec::new());
    }

    fn decide(
        &mut self,
        o: usize,
        inbound: Inbound,
        draft: &mut Draft,
        places: &mut Vec<(ExecutionId, RequestId, u64)>,
    ) {
        let Inbound {
            partition,
            epoch,
            subscription,
            place,
            body,
        } = inbound;
        let Some(owned) = self.owners[o].owned.get(&partition) else {
            return;
        };
        if owned.core.epoch() != epoch && !self.has(Plant::StaleInbox) {
            return;
        }
        let event = match body {
            Body::Submit(submit) => Some(Event::Submit {
                request_id: submit.request_id,
                submission: submit.submission.clone(),
                on_reject: submit.on_reject,
                reply_to: submit.reply_to.clone(),
            }),
            Body::Cancel(request_id, execution_id, reply_to) => Some(Event::Cancel {
                request_id,
                execution_id,
                reply_to: Some(reply_to),
            }),
            Body::Completed(completion) => Some(Event::Completed(Box::new((*completion).clone()))),
            Body::Changed(request_id, _, reply_to) => {
                draft.add(partition, vec![changed(request_id, reply_to)]);
                None
            }
            Body::Request(..) => None,
        };
        if let Some(event) = event {
            let inserted = self.step(o, partition, event, true, draft);
            places.extend(inserted.map(|(id, request)| (id, request, place)));
        }
        let tag = DeliveryTag {
            generation: subscription,
            number: place,
        };
        draft.add_ack(partition, &self.owners[o].settler, tag);
    }

    /// Lets the core decide, and judges it. Gives the execution that was accepted, if one was.
    fn step(
        &mut self,
        o: usize,
        partition: PartitionId,
        event: Event,
        settle: bool,
        draft: &mut Draft,
    ) -> Option<(ExecutionId, RequestId)> {
        let now = self.wall(o);
        let plant = self.plan.plant;
        let owned = self.owners[o].owned.get_mut(&partition)?;
        let epoch = owned.core.epoch();
        let said = reported(&event);
        let asked = match &event {
            Event::Submit { request_id, .. } => Some(*request_id),
            _ => None,
        };
        let is_tick = matches!(event, Event::Tick);
        let shadow = self.shadows.entry((partition, epoch)).or_default();
        let actions = match &event {
            Event::Recover { actions, .. } => actions.as_slice(),
            Event::ActionKnown(action) => std::slice::from_ref(action),
            _ => &[],
        };
        for action in actions {
            let policy = &action.spec.policy;
            let seconds = policy
                .queue
                .timeout_seconds
                .unwrap_or(QUEUE_TIMEOUT_SECONDS);
            let bounds = (policy.concurrency.limit, i64::from(seconds) * 1000);
            shadow.bounds.insert(action.id, bounds);
        }
        if let Event::Reconcile { slots, .. } = &event
            && shadow.mend(slots)
            && self.store.leases[usize::from(partition.0)].epoch == epoch.0
        {
            let words =
                format!("the holders of partition {partition} in memory are not the stored ones");
            self.oracle
                .blame(self.now, Violation::of(Promise::Stored, words));
        }
        let counted = match (&event, plant) {
            (Event::Completed(completion), Some(Plant::Counter)) => Some(completion.action_id),
            _ => None,
        };
        let mut effects = owned.core.step(now, event);
        let is_stale = |effect: &Effect| matches!(effect, Effect::Count(Counter::StaleCompletion));
        if let Some(action_id) = counted.filter(|_| effects.iter().any(is_stale)) {
            // A counter goes down with every completion: it is one slot short of the truth.
            *owned.extra.entry(action_id).or_default() += 1;
            let extra = owned.extra[&action_id];
            let stored = self
                .store
                .actions
                .iter()
                .find(|action| action.id == action_id);
            if let Some(mut action) = stored.cloned() {
                let limit = &mut action.spec.policy.concurrency.limit;
                *limit = limit.map(|limit| limit + extra);
                effects.extend(owned.core.step(now, Event::ActionKnown(action)));
            }
        }
        let mut found = Vec::new();
        shadow.judge(now, said, &effects, &mut found);
        if settle && plant != Some(Plant::Counter) {
            shadow.settle(now, &mut found);
        }
        if is_tick {
            shadow.pass(now, &mut found);
        }
        let found = found.into_iter().map(|violation| (partition, violation));
        self.owners[o].found.extend(found);
        let mut inserted = None;
        for effect in &effects {
            match effect {
                Effect::Insert(new) => {
                    inserted = Some((new.id, new.request_id));
                    self.note(Note::Accepted(new.id));
                }
                Effect::Update(update) => match update.status {
                    Some(Status::Requested) => self.note(Note::Granted(update.id, update.attempt)),
                    Some(_) => self.note(Note::Revoked(update.id, update.attempt)),
                    None => {}
                },
                Effect::End(end) => self.note(Note::Ended(end.id, end.outcome.status)),
                Effect::Dispatch(dispatch) if plant == Some(Plant::TellFirst) => {
                    self.dispatch(dispatch.execution_id, dispatch.attempt, dispatch.action.id);
                }
                Effect::Count(Counter::Rejected) => {
                    if let Some(request) = asked {
                        self.oracle.refuse(request);
                    }
                }
                _ => {}
            }
        }
        draft.add(partition, effects);
        inserted
    }

    fn write(&mut self, o: usize, draft: Draft, places: Vec<(ExecutionId, RequestId, u64)>) {
        let round = draft.into_round(self.owners[o].id);
        self.numbers += 1;
        let number = self.numbers;
        if !round.is_empty() {
            let party = self.owner_party(o);
            self.note(Note::Decided(party, number));
        }
        let found = std::mem::take(&mut self.owners[o].found);
        self.owners[o].stage = Stage::Write(Box::new(Writing {
            round,
            number,
            places,
            found,
        }));
        self.issue(o);
    }

    /// As the journal does: the epoch of every partition, the totals of every changed queue.
    fn add_fences(&mut self, o: usize) {
        let owner = &mut self.owners[o];
        let Stage::Write(writing) = &mut owner.stage else {
            return;
        };
        let round = &mut writing.round;
        let (mut fences, mut totals, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, touched) in round.touched() {
            let Some(owned) = owner.owned.get(&partition) else {
                foreign.push(partition);
                continue;
            };
            fences.push((partition, owned.core.epoch()));
            totals.extend(touched.iter().map(|id| (*id, owned.core.totals(*id))));
        }
        for partition in foreign {
            round.drop_partition(partition);
        }
        round.batch.fences = fences;
        round.batch.totals = totals;
    }

    fn written(&mut self, o: usize, round: Round) {
        let party = self.owner_party(o);
        let (tell, _) = round.into_tell();
        for counter in &tell.counts {
            let seen = &mut self.seen;
            match counter {
                Counter::StaleCompletion | Counter::Repeated => seen.duplicates_dropped += 1,
                Counter::Revoked => seen.revokes += 1,
                Counter::Redispatched => seen.redispatches += 1,
                Counter::Cancelled => seen.cancelled += 1,
                Counter::Expired => seen.expired += 1,
                Counter::Abandoned => seen.abandoned += 1,
                Counter::SlotLeakMended | Counter::SlotMissingMended => seen.mended += 1,
                _ => {}
            }
        }
        self.soon(Ev::To(party, Word::Tell(Box::new(tell))));
    }

    fn publish_round(&mut self, tell: Tell) {
        for dispatch in tell.dispatches.iter().chain(&tell.redispatches) {
            self.dispatch(dispatch.execution_id, dispatch.attempt, dispatch.action.id);
        }
        for (reply_to, answer) in tell.answers {
            if let AnswerOutcome::Accepted(Accepted {
                execution_id: Some(id),
                ..
            }) = &answer.outcome
            {
                self.told(&reply_to, *id);
            }
            let Ok(ask) = reply_to.parse() else { continue };
            if !self.rng.chance(self.noise.lost) {
                self.soon(Ev::Answer(ask, answer.outcome));
            }
        }
        for key in tell.cancels {
            for worker in 0..self.workers.len() {
                let party = Party::Worker(worker, self.workers[worker].life());
                if !self.rng.chance(self.noise.lost) {
                    self.soon(Ev::To(party, Word::CancelRun(key)));
                }
            }
        }
        for (_, tags) in tell.acks {
            for tag in tags {
                self.soon(Ev::Ack(tag.generation, tag.number));
            }
        }
    }

    fn dispatch(&mut self, id: ExecutionId, attempt: attune_core::Attempt, action: ActionId) {
        self.note(Note::Dispatched(id, attempt));
        self.oracle.dispatched(self.now, &self.store, (id, attempt));
        self.publish(Name::Requested, &Body::Request(id, attempt, action));
    }
}

/// What the store must be asked before these can be decided on.
fn questions(work: &[Inbound]) -> (Vec<RequestId>, Vec<String>) {
    let (mut requests, mut refs) = (Vec::new(), Vec::new());
    for inbound in work {
        match &inbound.body {
            Body::Submit(submit) => requests.push(submit.request_id),
            Body::Changed(_, action_ref, _) => refs.push(action_ref.to_string()),
            _ => {}
        }
    }
    (requests, refs)
}

/// The answer to a change, which the look-up has brought already.
fn changed(request_id: RequestId, reply_to: Arc<str>) -> Effect {
    let accepted = Accepted {
        execution_id: None,
        status: None,
        position: None,
        repeated: false,
    };
    let outcome = AnswerOutcome::Accepted(accepted);
    let answer = Answer {
        request_id,
        outcome,
    };
    Effect::Answer { reply_to, answer }
}
