//! The owner of partitions: one machine that decides everything an executor decides.
//!
//! [`Owner::step`] takes what happened and says what to do. It does no I/O, reads no clock and no
//! random numbers: production and the simulator drive the same machine, and the same inputs give
//! the same outputs. It is the only writer of the queues of a running system.
//!
//! - `keeper` keeps the leases: renews, takes its share; `leaving` hands partitions over, one or all of them.
//! - `looks` watches the leases of the others, and says whose are over; `cut_off` makes way for them without a bus.
//! - `loading` rebuilds the queues of partitions that were taken.
//! - `rounds` gathers what was delivered, looks up, decides, commits.
//! - `rewriting` writes again what the store refuses.
//! - `beside` keeps dead letters and entries of the audit log that the store does not take.
//! - `telling` says what was committed: grants, answers, snapshots, acknowledgements.
//! - `links` tells the lives of workers, `reports` and `speakers` hear them, `silence` asks who says nothing.
//! - `sweep` compares memory with the store, beside the rounds.
//! - `following` reads what operators hold and the policy documents, and brings them to the partitions.
//! - `grouping` reads by what executions are grouped, when that has changed; `operating` carries bulk operations out, a page at a time.
//! - `workers` watches the leases of the workers, and ends those that are over; `speakers` says whose word counts.

mod again;
mod backoff;
mod beside;
mod clock;
mod cut_off;
mod doubts;
mod following;
mod grouping;
mod keeper;
mod leaving;
mod links;
mod loading;
mod look_ups;
mod looks;
mod operating;
mod pace;
mod port;
mod renewing;
mod reports;
mod rewriting;
mod rounds;
mod silence;
mod slow;
mod snapshots;
mod speakers;
mod steps;
mod sweep;
mod telling;
mod trouble;
mod watch;
#[cfg(test)]
mod watching_tests;
mod workers;

use std::collections::{BTreeMap, VecDeque};

use attune_core::{Epoch, OwnerId, PartitionId, Pauses, PolicySet};

use crate::counters::Counter;
use crate::fact::{Decided, Fact};
use crate::notice::Notice;
use crate::partition::{ClusterBounds, Event, Page, Partition, ReconcileBounds};
use crate::queue::{ExecutionQueueManager, Millis, QueueConfig, QueuesView};
use crate::roster::SharedRoster;
use backoff::Chance;
use beside::Beside;
use clock::StoreClock;
use cut_off::BusReach;
use following::Following;
use grouping::Grouping;
use keeper::Keeper;
use links::Links;
use loading::Load;
use look_ups::LookUps;
use looks::Looks;
use operating::Operating;
pub use reports::Reported;
use rewriting::Rewrite;
use rounds::Rounds;
use slow::Slow;
use steps::Steps;
use sweep::Sweep;
use telling::Telling;
use trouble::FailingReads;
pub use trouble::Trouble;
use workers::Workers;

pub use port::{
    Call, CallId, Delivered, DeliveryId, Dispatch, Failure, Input, Looked, Output, PublishId,
    Published, Reply, Send, SubscriptionId, Work,
};

/// How an owner works; times in milliseconds.
#[derive(Debug, Clone)]
pub struct OwnerOptions {
    /// Under which id it owns partitions, fresh at every start.
    pub id: OwnerId,
    /// What it must know of the cluster.
    pub cluster: ClusterBounds,
    /// Bounds of queues that have none of their own.
    pub queue: QueueConfig,
    /// How long a lease holds without renewal.
    pub lease_ttl: Millis,
    /// How many items one round takes at most.
    pub round_max_items: usize,
    /// How many executions one step of a partition wakes, ends or grants at most.
    pub step_items: usize,
    /// How many bytes of messages one round takes at most, but always one message.
    pub round_max_bytes: usize,
    /// How often the snapshot of a changing queue is published, at most.
    pub stats_interval: Millis,
    /// How old the snapshot of a queue may become in which somebody waits or runs; of an idle one 60 times that.
    pub stats_refresh: Millis,
    /// What the reconciler takes for lost, and how often it looks.
    pub reconcile: ReconcileBounds,
    /// How many executions one page of a partition that was taken loads: what restoring them costs
    /// is a pause for everybody else.
    pub page_rows: u32,
    /// How many executions one slice compares with the store; likewise.
    pub slice_rows: u32,
    /// How many executions one page of a bulk operation has: what doing it to them costs is a pause for
    /// everybody else, likewise.
    pub operation_rows: usize,
    /// Whether what is decided is logged.
    pub keep_log: bool,
    /// What is secret is sealed with these.
    pub secrets: attune_secrets::Keyring,
}

/// A partition that this owner holds.
#[derive(Debug)]
struct Place {
    epoch: Epoch,
    subscription: SubscriptionId,
    stage: Stage,
    mailbox: Mailbox,
    /// How many dispatches of it are not confirmed.
    untold: usize,
}

/// What is being done with a partition.
#[derive(Debug)]
enum Stage {
    /// Its queues are rebuilt.
    Loading(Box<Load>),
    /// It is served.
    Serving(Box<Partition>),
    /// It is let go: nothing is decided any more, and what was decided is told until a time.
    Leaving { until: Millis, unsubscribing: bool },
}

/// What was delivered for a partition and not decided on yet.
#[derive(Debug, Default)]
struct Mailbox {
    /// Completions come before commands: a flood of requests never delays a release.
    control: VecDeque<Delivered>,
    commands: VecDeque<Delivered>,
    items: usize,
    bytes: usize,
}

impl Mailbox {
    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.commands.is_empty()
    }

    fn line(&mut self, delivered: &Delivered) -> &mut VecDeque<Delivered> {
        self.items += delivered.work.len();
        self.bytes += delivered.bytes;
        match delivered.work {
            Work::Completions(_) => &mut self.control,
            _ => &mut self.commands,
        }
    }

    fn push_back(&mut self, delivered: Delivered) {
        self.line(&delivered).push_back(delivered);
    }

    fn push_front(&mut self, delivered: Delivered) {
        self.line(&delivered).push_front(delivered);
    }

    /// Takes the first completion, or the first command.
    fn pop(&mut self, is_control: bool) -> Option<Delivered> {
        let line = if is_control {
            &mut self.control
        } else {
            &mut self.commands
        };
        let delivered = line.pop_front()?;
        self.items -= delivered.work.len();
        self.bytes -= delivered.bytes;
        Some(delivered)
    }
}

/// What is asked of the store, and for what.
#[derive(Debug)]
enum Purpose {
    Keep,
    Look,
    Free(PartitionId, Epoch, Option<OwnerId>),
    Load(PartitionId, Epoch),
    Round,
    Rewrite(PartitionId, Epoch),
    Beside(PartitionId, Epoch),
    Sweep(sweep::Asked),
    Pauses,
    Policies,
    Workers,
    EndWorkers,
    Bodies,
    Words(PartitionId),
    Operations,
    OperationWords((PartitionId, Epoch), Box<Page>),
    /// Nobody waits for the answer.
    Nothing,
}

/// Decides for every partition that it holds.
#[derive(Debug)]
pub struct Owner {
    options: OwnerOptions,
    queues: ExecutionQueueManager,
    clock: StoreClock,
    chance: Chance,
    keeper: Keeper,
    looks: Looks,
    reach: BusReach,
    places: BTreeMap<PartitionId, Place>,
    rounds: Rounds,
    look_ups: LookUps,
    /// Rounds that the store refused, by partition; nothing else is decided about these.
    rewrites: BTreeMap<PartitionId, Rewrite>,
    /// What the store refused of them that is no execution; everything else is decided.
    beside: Beside,
    /// What must be decided in the next round and was not delivered.
    pending: VecDeque<(PartitionId, Event)>,
    telling: Telling,
    links: Links,
    roster: SharedRoster,
    /// The partition that was served last of those that stand in line for workers.
    line_turn: Option<PartitionId>,
    sweep: Sweep,
    pausing: Following<Pauses>,
    policing: Following<PolicySet>,
    grouping: Grouping,
    operating: Operating,
    workers: Workers,
    calls: BTreeMap<CallId, (Purpose, &'static str)>,
    failing: FailingReads,
    slow: Slow,
    steps: Steps,
    numbers: u64,
    out: Vec<Output>,
}

impl Owner {
    /// An owner that holds nothing yet. It begins with the first step.
    pub fn new(options: OwnerOptions) -> Self {
        let (high, low) = options.id.0.as_u64_pair();
        Self {
            queues: ExecutionQueueManager::new(options.queue),
            clock: StoreClock::default(),
            chance: Chance::new(high ^ low),
            keeper: Keeper::default(),
            looks: Looks::default(),
            reach: BusReach::default(),
            places: BTreeMap::new(),
            rounds: Rounds::default(),
            look_ups: LookUps::default(),
            rewrites: BTreeMap::new(),
            beside: Beside::default(),
            pending: VecDeque::new(),
            telling: Telling::default(),
            links: Links::default(),
            roster: SharedRoster::default(),
            line_turn: None,
            sweep: Sweep::default(),
            pausing: Following::default(),
            policing: Following::default(),
            grouping: Grouping::default(),
            operating: Operating::default(),
            workers: Workers::default(),
            calls: BTreeMap::new(),
            failing: FailingReads::default(),
            slow: Slow::default(),
            steps: Steps::default(),
            numbers: 0,
            out: Vec::new(),
            options,
        }
    }

    /// The queues that it serves, to be looked at.
    pub fn queues(&self) -> QueuesView {
        QueuesView::of(&self.queues)
    }

    /// How many partitions it serves.
    pub fn served(&self) -> usize {
        let places = self.places.values();
        places
            .filter(|place| matches!(place.stage, Stage::Serving(_)))
            .count()
    }

    /// Which partitions it has, in which epochs.
    pub fn places(&self) -> impl Iterator<Item = (PartitionId, Epoch)> + '_ {
        self.places.iter().map(|(id, place)| (*id, place.epoch))
    }

    /// What it takes the store's clock to show at `now`, in milliseconds since 1970: the time by
    /// which it decides.
    pub fn store_time(&self, now: Millis) -> Millis {
        self.clock.at(now)
    }

    /// Takes what happened at `now`, by a clock that only measures durations, and says what to
    /// do about it, in order.
    pub fn step(&mut self, now: Millis, input: Input) -> Vec<Output> {
        match input {
            Input::Delivered(delivered) => self.receive(delivered),
            Input::Answered(call, reply) => self.answered(now, call, reply),
            Input::Published(id, published) => self.published(now, id, published),
            Input::Reported(reports) => self.reported(now, reports),
            Input::Hello(workers) => self.greeted(now, &workers),
            Input::Unsubscribed(subscription) => self.unsubscribed(now, subscription),
            // Nothing is decided before the store's time is known: what was accepted until then would
            // look as if it had waited since 1970. The first look finds what is free.
            Input::HandedOver(_) if !self.clock.is_known() => {}
            Input::HandedOver(partitions) => self.keeper.hint(partitions),
            Input::Bus { reachable } => self.reach_bus(now, reachable),
            Input::SnapshotsLost(queues) => self.snapshots_were_lost(&queues),
            Input::Timer => {}
            Input::Leave => self.leave(now),
        }
        self.settle_reach(now);
        self.keep_leases(now);
        self.go_on_looking(now);
        self.go_on_leaving(now);
        self.go_on_loading(now);
        self.go_on_watching(now);
        self.go_on_sweeping(now);
        self.go_on_following::<Pauses>(now);
        self.go_on_following::<PolicySet>(now);
        self.go_on_grouping(now);
        self.go_on_operating(now);
        self.go_on_rewriting(now);
        self.go_on_with_beside(now);
        self.go_on_telling(now);
        self.begin_round(now);
        std::mem::take(&mut self.out)
    }

    /// When it must be told that time has passed, at the latest.
    pub fn wake_at(&self, now: Millis) -> Millis {
        let mut at = now + 1_000;
        let mut by = |time: Option<Millis>| at = at.min(time.unwrap_or(Millis::MAX)).max(now);
        by(self.rounds.wake_at(now));
        by(self.keeper.wake_at(self.options.lease_ttl));
        by(self.looks.wake_at());
        by(self.reach.wake_at(self.options.lease_ttl));
        by(self.sweep.wake_at());
        by(self.pausing.wake_at());
        by(self.policing.wake_at());
        if self.rounds.under_way().is_none() {
            by(self.operating.wake_at());
        }
        by(self.workers.wake_at());
        by(self.links.wake_at());
        by(self.roster.lock().wake_at());
        if !self.links.is_full() {
            by(self.telling.again.wake_at());
        }
        if self.may_begin() {
            by(self.telling.snapshots.wake_at());
        }
        if self.is_trusted(now) {
            for rewrite in self.rewrites.values() {
                by(rewrite.wake_at());
            }
            by(self.beside_at());
        }
        let may_begin = self.may_begin() && self.is_trusted(now);
        if may_begin && !self.links.is_full() {
            by(self.look_up_at());
        }
        for (id, place) in &self.places {
            match &place.stage {
                Stage::Serving(partition) if may_begin && self.is_open(*id) => {
                    let deadline = partition.next_deadline();
                    by(deadline.map(|time| self.clock.when(time)));
                }
                // It may have to wait until others are loaded.
                Stage::Loading(load) => by(load.wake_at().map(|at| at.max(now + 10))),
                Stage::Leaving {
                    until,
                    unsubscribing: false,
                } => by(Some((*until).max(now + 10))),
                Stage::Leaving { .. } | Stage::Serving(_) => {}
            }
        }
        at
    }

    /// Whether messages should be delivered to it now: what waits is bounded by what one round
    /// takes. A partition about which nothing can be decided now holds up no other: what waits
    /// for it is bounded by its own subscription.
    pub fn wants_messages(&self) -> bool {
        let open = self.places.iter();
        let open = open.filter(|(id, _)| self.is_open(**id) && !self.look_ups.is_unread(**id));
        let (items, bytes) = open.fold((0, 0), |(items, bytes), (_, place)| {
            (items + place.mailbox.items, bytes + place.mailbox.bytes)
        });
        items < 2 * self.options.round_max_items && bytes < 2 * self.options.round_max_bytes
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn call(&mut self, purpose: Purpose, call: Call) {
        let id = CallId(self.number());
        self.calls.insert(id, (purpose, call.name()));
        self.out.push(Output::Call(id, call));
    }

    fn say(&mut self, notice: Notice) {
        self.out.push(Output::Notice(notice));
    }

    /// Says something for whoever checks the promises that no commit carries.
    fn note(&mut self, partition: PartitionId, epoch: Epoch, fact: Fact) {
        if self.options.keep_log {
            self.out.push(Output::Noted(Decided {
                partition,
                epoch,
                number: 0,
                facts: vec![fact],
                goes_on: false,
            }));
        }
    }

    fn count(&mut self, counter: Counter) {
        self.out.push(Output::Count(counter, 1));
    }

    fn answered(&mut self, now: Millis, call: CallId, reply: Reply) {
        let Some((purpose, name)) = self.calls.remove(&call) else {
            return;
        };
        self.note_answer(now, &purpose, name, &reply);
        match purpose {
            Purpose::Keep => self.kept(now, reply),
            Purpose::Look => self.looked(now, reply),
            Purpose::Free(partition, epoch, to) => self.freed(now, partition, epoch, to),
            Purpose::Load(partition, epoch) => self.loaded(now, partition, epoch, reply),
            Purpose::Round => self.round_answered(now, reply),
            Purpose::Rewrite(partition, epoch) => self.rewritten(now, partition, epoch, reply),
            Purpose::Beside(partition, epoch) => self.beside_written(now, partition, epoch, reply),
            Purpose::Sweep(asked) => self.swept(now, asked, reply),
            Purpose::Pauses => self.set_read::<Pauses>(now, reply),
            Purpose::Policies => self.set_read::<PolicySet>(now, reply),
            Purpose::Workers => self.watched(now, reply),
            Purpose::EndWorkers => self.ended_workers(now, reply),
            Purpose::Bodies => self.bodies_loaded(now, reply),
            Purpose::Words(partition) => self.words_loaded(now, partition, reply),
            Purpose::Operations => self.operations_read(now, reply),
            Purpose::OperationWords(of, page) => self.operation_words_read(now, of, *page, reply),
            Purpose::Nothing => {}
        }
    }

    /// Puts what was delivered where it waits for its round. What belongs to a partition that is
    /// not held through this subscription comes again, to its owner.
    fn receive(&mut self, delivered: Vec<Delivered>) {
        for delivered in delivered {
            if !self.is_wanted(&delivered) {
                continue;
            }
            if matches!(delivered.work, Work::Operations(_)) {
                self.operating.ask();
            }
            match delivered.work {
                Work::Pauses(_) => self.pausing.ask(delivered),
                Work::Policies(_) => self.policing.ask(delivered),
                _ => {
                    if let Some(place) = self.places.get_mut(&delivered.partition) {
                        place.mailbox.push_back(delivered);
                    }
                }
            }
        }
    }

    /// Whether a delivery is for a partition that is held through its subscription and not let go.
    fn is_wanted(&self, delivered: &Delivered) -> bool {
        let place = self.places.get(&delivered.partition);
        place.is_some_and(|place| {
            place.subscription == delivered.subscription
                && !matches!(place.stage, Stage::Leaving { .. })
        })
    }

    fn partition_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        match &mut self.places.get_mut(&id)?.stage {
            Stage::Serving(partition) => Some(partition),
            _ => None,
        }
    }

    fn partition(&self, id: PartitionId) -> Option<&Partition> {
        match &self.places.get(&id)?.stage {
            Stage::Serving(partition) => Some(partition),
            _ => None,
        }
    }

    /// Forgets what is known of a partition. Its messages that are not acknowledged go back.
    fn forget(&mut self, id: PartitionId) {
        let Some(place) = self.places.remove(&id) else {
            return;
        };
        match place.stage {
            Stage::Serving(partition) => {
                self.note(id, place.epoch, Fact::Lost);
                partition.step_down();
            }
            Stage::Leaving {
                unsubscribing: true,
                ..
            } => return,
            _ => {}
        }
        self.rewrites.remove(&id);
        self.beside.forget(id);
        self.pending.retain(|(partition, _)| *partition != id);
        self.telling.forget(id);
        self.links.forget(id);
        self.roster.lock().forget_partition(id);
        self.sweep.forget(id);
        self.pausing.forget(id);
        self.policing.forget(id);
        self.look_ups.forget(id);
        self.out.push(Output::Unsubscribe(place.subscription));
    }
}
