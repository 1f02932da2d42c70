//! The owner's loop: gather → look up → decide → commit → tell.
//!
//! While one round commits, the next gathers in the inbox: rounds are small when little arrives
//! and large under load, without any delay of their own (group commit). Rounds follow one
//! another strictly, so that every decision is made on what is stored.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use attune_bus::Bus;
use attune_core::{ActionId, Epoch, OwnerId, PartitionId, RequestId};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome, QueueSnapshot};
use attune_record::Recorder;
use attune_runtime::Backoff;
use attune_store::{CommitError, Committed, Lookup, PartitionStore, StoreError};
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::action_queue::Millis;
use crate::counters::Counters;
use crate::dispatcher::Told;
use crate::draft::{Draft, Round};
use crate::event::{Dispatch, Effect, Event, ReconcileBounds};
use crate::inbox::{Feed, Inbound, Work};
use crate::ownership::{LeaseEvent, chain};
use crate::partition_core::PartitionCore;
use crate::queue_manager::ExecutionQueueManager;
use crate::takeover::{Feeds, Loaded};

/// What the loop is told once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JournalOptions {
    pub(crate) owner: OwnerId,
    pub(crate) partitions: u16,
    pub(crate) max_items: usize,
    pub(crate) prefetch: u16,
    pub(crate) stats_interval: Duration,
    pub(crate) reconcile_interval: Duration,
    pub(crate) bounds: ReconcileBounds,
}

/// A partition that this executor owns.
pub(crate) struct Owned {
    pub(crate) core: PartitionCore,
    pub(crate) feeds: Feeds,
    /// Its rounds that are committed and not told yet.
    pub(crate) telling: TaskTracker,
}

/// The loop and everything it touches.
pub(crate) struct Journal {
    pub(crate) options: JournalOptions,
    pub(crate) store: Arc<dyn PartitionStore>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) queues: ExecutionQueueManager,
    pub(crate) counters: Arc<Counters>,
    pub(crate) fenced: Arc<AtomicU64>,
    pub(crate) leases: mpsc::Receiver<LeaseEvent>,
    pub(crate) trusted: watch::Receiver<Instant>,
    pub(crate) dropped: mpsc::Sender<(PartitionId, Epoch)>,
    /// Completions come before commands: a flood of requests never delays a release.
    pub(crate) control: mpsc::Receiver<Inbound>,
    pub(crate) commands: mpsc::Receiver<Inbound>,
    pub(crate) control_feed: Feed,
    pub(crate) command_feed: Feed,
    /// Partitions whose queues are rebuilt.
    pub(crate) loaded: (mpsc::Sender<Loaded>, mpsc::Receiver<Loaded>),
    pub(crate) told: mpsc::Sender<Told>,
    pub(crate) owned_count: watch::Sender<usize>,
    /// A lost worker holds slots here: the reconciler shall not wait for its time.
    pub(crate) sweep: Arc<Notify>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) state: State,
}

/// What changes from round to round.
pub(crate) struct State {
    pub(crate) owned: BTreeMap<PartitionId, Owned>,
    /// Owned, and their queues are being rebuilt.
    pub(crate) loading: BTreeMap<PartitionId, Epoch>,
    /// What rebuilds queues, and what lets partitions go.
    pub(crate) tasks: TaskTracker,
    /// To be dispatched once more, a few at a time.
    pub(crate) again: VecDeque<Dispatch>,
    pub(crate) again_at: Instant,
    /// Queues whose snapshot is to be published.
    unpublished: BTreeSet<(PartitionId, ActionId)>,
    publish_at: Instant,
    snapshots: u32,
    pub(crate) reconcile_at: Instant,
    /// Rounds recorded.
    pub(crate) rounds: u64,
}

impl State {
    pub(crate) fn new() -> Self {
        Self {
            owned: BTreeMap::new(),
            loading: BTreeMap::new(),
            tasks: TaskTracker::new(),
            again: VecDeque::new(),
            again_at: Instant::now(),
            unpublished: BTreeSet::new(),
            publish_at: Instant::now(),
            snapshots: 0,
            rounds: 0,
            reconcile_at: Instant::now(),
        }
    }
}

/// What woke the loop.
enum Wake {
    Stop,
    Lease(LeaseEvent),
    Loaded(Loaded),
    Work(Vec<Inbound>),
    Timer,
}

impl Journal {
    /// Owns until told to stop; then finishes its round and gives back what it has not begun.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while self.step(&stop).await {}
        self.control.close();
        self.commands.close();
        for owned in self.state.owned.values() {
            owned.feeds.end().await;
        }
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }

    /// One round; false when it was the last.
    async fn step(&mut self, stop: &CancellationToken) -> bool {
        match self.wake(stop).await {
            Wake::Stop => return false,
            Wake::Lease(event) => self.follow(event, stop),
            Wake::Loaded(loaded) => {
                self.wait_for_trust(stop).await;
                self.adopt(loaded).await;
            }
            Wake::Work(work) => self.decide_on(work, stop).await,
            Wake::Timer => self.decide_on(Vec::new(), stop).await,
        }
        self.renew_exhausted();
        !stop.is_cancelled()
    }

    /// A round, and what its time has come for.
    async fn decide_on(&mut self, work: Vec<Inbound>, stop: &CancellationToken) {
        self.wait_for_trust(stop).await;
        if Instant::now() >= self.state.reconcile_at {
            self.reconcile(stop).await;
        }
        self.round(work, stop).await;
        if Instant::now() >= self.state.again_at {
            self.dispatch_again(stop).await;
        }
    }

    async fn wake(&mut self, stop: &CancellationToken) -> Wake {
        let timer = self.next_timer();
        let first = tokio::select! {
            biased;
            () = stop.cancelled() => return Wake::Stop,
            Some(event) = self.leases.recv() => return Wake::Lease(event),
            Some(loaded) = self.loaded.1.recv() => return Wake::Loaded(loaded),
            () = self.sweep.notified() => {
                self.state.reconcile_at = Instant::now();
                return Wake::Timer;
            }
            Some(work) = self.control.recv() => work,
            Some(work) = self.commands.recv() => work,
            () = tokio::time::sleep_until(timer.into()) => return Wake::Timer,
        };
        let mut items = first.work.len();
        let mut work = vec![first];
        for (inbox, share) in [(&mut self.control, 3), (&mut self.commands, 4)] {
            while items * 4 < self.options.max_items * share
                && let Ok(more) = inbox.try_recv()
            {
                items += more.work.len();
                work.push(more);
            }
        }
        Wake::Work(work)
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let mut timer = self.state.reconcile_at;
        if !self.state.unpublished.is_empty() {
            timer = timer.min(self.state.publish_at);
        }
        if !self.state.again.is_empty() {
            timer = timer.min(self.state.again_at);
        }
        let deadline = self
            .state
            .owned
            .values()
            .filter_map(|owned| owned.core.next_deadline());
        if let Some(time) = deadline.min() {
            let wait = u64::try_from(time.saturating_sub(unix_millis())).unwrap_or(0);
            timer = timer.min(now + Duration::from_millis(wait));
        }
        timer
    }

    /// Takes over what was acquired, forgets what was lost, lets go of what is to be handed over.
    pub(crate) fn follow(&mut self, event: LeaseEvent, stop: &CancellationToken) {
        match event {
            LeaseEvent::Acquired(acquired) => self.take_over(acquired, stop),
            LeaseEvent::Lost(lost) => {
                for partition in lost {
                    self.step_down(partition);
                }
            }
            LeaseEvent::HandOver(partition) => self.hand_over(partition),
        }
    }

    /// Beyond the time for which the leases can be trusted nothing is decided.
    async fn wait_for_trust(&mut self, stop: &CancellationToken) {
        while Instant::now() >= *self.trusted.borrow_and_update() {
            if self.state.owned.is_empty() {
                return;
            }
            tracing::warn!(
                "the leases were not renewed in time; nothing is decided until they are"
            );
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.trusted.changed() => if changed.is_err() { return },
                Some(event) = self.leases.recv() => self.follow(event, stop),
            }
        }
    }

    /// Decides on what was gathered, commits it, and passes on what is to be told.
    async fn round(&mut self, work: Vec<Inbound>, stop: &CancellationToken) {
        let Some(known) = self.look_up(&work, stop).await else {
            return;
        };
        let mut draft = Draft::default();
        let now = unix_millis();
        for (partition, owned) in &mut self.state.owned {
            let mut effects = owned.core.step(now, Event::Known(known.requests.clone()));
            for action in known
                .actions
                .iter()
                .filter(|action| action.partition == *partition)
            {
                effects.extend(owned.core.step(now, Event::ActionKnown(action.clone())));
            }
            effects.extend(owned.core.step(now, Event::Tick));
            draft.add(*partition, effects);
        }
        for inbound in work {
            self.decide(now, inbound, &mut draft);
        }
        self.write(draft).await;
    }

    fn decide(&mut self, now: Millis, inbound: Inbound, draft: &mut Draft) {
        let Inbound {
            partition,
            epoch,
            settler,
            tag,
            reply_to,
            work,
        } = inbound;
        // What belongs to a partition that was lost comes again to its owner, and in order: what
        // was received in an earlier epoch must not go before what was lost with that epoch.
        let owned = self.state.owned.get_mut(&partition);
        let Some(owned) = owned.filter(|owned| owned.core.epoch() == epoch) else {
            return;
        };
        let core = &mut owned.core;
        match work {
            Work::Completions(items) => {
                for item in items {
                    draft.add(partition, core.step(now, Event::Completed(Box::new(item))));
                }
            }
            Work::Submits(items) => {
                for (request_id, item) in items {
                    let event = Event::Submit {
                        request_id,
                        submission: item.submission,
                        on_reject: item.on_reject,
                        reply_to: reply_to.clone(),
                    };
                    draft.add(partition, core.step(now, event));
                }
            }
            Work::Cancels(items) => {
                for item in items {
                    let (request_id, execution_id) = (item.request_id, item.execution_id);
                    let reply_to = reply_to.clone();
                    let event = Event::Cancel {
                        request_id,
                        execution_id,
                        reply_to,
                    };
                    draft.add(partition, core.step(now, event));
                }
            }
            Work::Releases(items) => {
                for command in items {
                    let reply_to = reply_to.clone();
                    let event = Event::ForceRelease { command, reply_to };
                    draft.add(partition, core.step(now, event));
                }
            }
            // The look-up has brought the new definition already.
            Work::Changes(items) => {
                for item in items {
                    let Some(reply_to) = reply_to.clone() else {
                        continue;
                    };
                    let accepted = Accepted {
                        execution_id: None,
                        status: None,
                        position: None,
                        repeated: false,
                    };
                    let outcome = AnswerOutcome::Accepted(accepted);
                    let answer = Answer {
                        request_id: item.request_id,
                        outcome,
                    };
                    draft.add(partition, vec![Effect::Answer { reply_to, answer }]);
                }
            }
        }
        draft.add_ack(partition, &settler, tag);
    }

    /// Asks the store what must be known before deciding; `None` when told to stop.
    async fn look_up(&self, work: &[Inbound], stop: &CancellationToken) -> Option<Lookup> {
        let mut requests: Vec<RequestId> = Vec::new();
        let mut actions: HashSet<String> = HashSet::new();
        for inbound in work {
            match &inbound.work {
                Work::Submits(items) => {
                    let core = self
                        .state
                        .owned
                        .get(&inbound.partition)
                        .map(|owned| &owned.core);
                    for (request_id, item) in items {
                        requests.push(*request_id);
                        let action_ref = &item.submission.action_ref;
                        if core.is_some_and(|core| !core.knows_action(action_ref))
                            && attune_core::ActionRef::check(action_ref).is_ok()
                        {
                            actions.insert(action_ref.clone());
                        }
                    }
                }
                Work::Changes(items) => {
                    actions.extend(
                        items
                            .iter()
                            .map(|item| item.action_ref.clone())
                            .filter(|text| attune_core::ActionRef::check(text).is_ok()),
                    );
                }
                Work::Completions(_) | Work::Cancels(_) | Work::Releases(_) => {}
            }
        }
        if requests.is_empty() && actions.is_empty() {
            return Some(Lookup::default());
        }
        let actions: Vec<String> = actions.into_iter().collect();
        persist(stop, || self.store.look_up(&requests, &actions)).await
    }

    /// Commits a round and passes on what is to be told. Partitions that turn out to be lost
    /// are left out, and the rest is written again.
    pub(crate) async fn write(&mut self, draft: Draft) {
        let mut round = draft.into_round(self.options.owner);
        let log = self.take_log(&round);
        let committed = loop {
            if round.is_empty() {
                break Committed::default();
            }
            round.fence(|partition| self.state.owned.get(&partition).map(|owned| &owned.core));
            match self.store.commit(&round.batch).await {
                Ok(committed) => break committed,
                Err(CommitError::Fenced(lost)) => {
                    self.fenced.fetch_add(1, Ordering::Relaxed);
                    for partition in lost {
                        tracing::warn!(partition.id = %partition, "a partition has another owner");
                        self.record_fenced(partition);
                        round.drop_partition(partition);
                        self.step_down(partition);
                    }
                    continue;
                }
                Err(CommitError::Store(error)) => {
                    // Memory is ahead of the store now: only loading again brings them together.
                    // Writing the round again would do so as well when its outcome is unknown,
                    // but the first try may still be on its way, and come when what it wrote has
                    // moved on: it must find another epoch.
                    tracing::warn!(error = %chain(&error), "a round may not be committed; its partitions are loaded again");
                    let partitions: Vec<PartitionId> =
                        round.touched().map(|(partition, _)| partition).collect();
                    for partition in partitions {
                        self.step_down(partition);
                    }
                    return;
                }
            }
        };
        self.record_committed(log);
        self.tell(round, committed).await;
    }

    async fn tell(&mut self, round: Round, committed: Committed) {
        let mut telling = Vec::new();
        for (partition, touched) in round.touched() {
            self.state
                .unpublished
                .extend(touched.iter().map(|id| (partition, *id)));
            let owned = self.state.owned.get(&partition);
            telling.extend(owned.map(|owned| owned.telling.token()));
        }
        let (mut tell, submissions) = round.into_tell();
        for counter in &tell.counts {
            self.counters.add(*counter);
        }
        tracing::debug!(
            round.counts = tell.counts.len(),
            round.dispatches = tell.dispatches.len(),
            round.ended = committed.ended,
            "a round is committed"
        );
        self.state
            .again
            .extend(std::mem::take(&mut tell.redispatches));
        let mut told = Told::new(tell, &submissions, committed.granted);
        told.telling = telling;
        told.snapshots = self.snapshots();
        if self.told.send(told).await.is_err() {
            tracing::error!("the dispatcher has stopped");
        }
    }

    /// Snapshots of the queues that changed, at most once per interval.
    fn snapshots(&mut self) -> Vec<QueueSnapshot> {
        let now = Instant::now();
        if self.state.unpublished.is_empty() || now < self.state.publish_at {
            return Vec::new();
        }
        self.state.publish_at = now + self.options.stats_interval;
        self.state.snapshots = self.state.snapshots.wrapping_add(1);
        let number = self.state.snapshots;
        std::mem::take(&mut self.state.unpublished)
            .into_iter()
            .filter_map(|(partition, action_id)| {
                let core = &self.state.owned.get(&partition)?.core;
                let version = attune_core::Seq::new(core.epoch(), number).0;
                Some(QueueSnapshot {
                    version,
                    stats: core.stats(action_id)?,
                })
            })
            .collect()
    }
}

/// Repeats a store call until it succeeds; `None` when told to stop. A call under way is never
/// cut short.
pub(crate) async fn persist<'a, T>(
    stop: &CancellationToken,
    mut call: impl FnMut() -> BoxFuture<'a, Result<T, StoreError>> + Send,
) -> Option<T> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    loop {
        match call().await {
            Ok(value) => return Some(value),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the store does not answer; trying again");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// The wall clock, in milliseconds since 1970.
pub(crate) fn unix_millis() -> Millis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)
}
