//! Drives an owner: brings it what happens, and carries out what it decides.
//!
//! One task owns the machine. It never waits for a store call, a confirm or a subscription: each
//! runs beside it and comes back as an input.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use attune_bus::Subscriber;
use attune_core::{ActionId, PartitionId};
use attune_executor::owner::{
    self, Call, CallId, Delivered, Failure, Published, Reply, SubscriptionId,
};
use attune_executor::partition::Answer;
use attune_executor::queue::Millis;
use attune_executor::{Counter, Decided, Input, Output, Owner};
use attune_routing::Senders;
use attune_runtime::Progress;
use futures_util::FutureExt as _;
use futures_util::future::try_join_all;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::calls::Calls;
use crate::convert::duration;
use crate::counters::Counters;
use crate::feed::{Feed, Inbound};
use crate::figures::ExecutorFigures;
use crate::notices::Notices;
use crate::progress::ExecutorProgress;
use crate::publisher::Publisher;
use crate::records::Records;
use crate::refusals::{BusState, Refusals, Teller, lasting, watch_bus};
use crate::unsettled::{Settled, Unsettled};

/// How many messages one step brings at most.
pub(crate) const MAX_DELIVERED: usize = 1024;
/// How long a stopping executor waits for what is under way; the next owner finds the rest.
const DRAIN: Duration = Duration::from_secs(10);

/// What must happen to messages, in this order.
enum Settling {
    Ack(Settled),
    /// Likewise, and what is to be told when the broker has taken it.
    Refuse(Settled, Vec<(Arc<str>, Answer)>),
    End(CancellationToken),
}

/// An owner, and everything that carries out what it decides.
pub(crate) struct Driver {
    pub(crate) owner: Owner,
    pub(crate) calls: Calls,
    pub(crate) feed: Feed,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) records: Records,
    pub(crate) counters: Arc<Counters>,
    pub(crate) figures: Arc<ExecutorFigures>,
    pub(crate) control: mpsc::Receiver<Inbound>,
    pub(crate) commands: mpsc::Receiver<Inbound>,
    /// Partitions that were handed over to somebody. Empty when the bus is closed.
    pub(crate) hints: Option<Subscriber>,
    /// What workers say, and that some have come; likewise.
    pub(crate) reports: Option<Subscriber>,
    pub(crate) hellos: Option<Subscriber>,
    pub(crate) served: watch::Sender<usize>,
    pub(crate) trouble: watch::Sender<Option<attune_executor::owner::Trouble>>,
    /// The partitions that wait, for those who look at their queues.
    pub(crate) refusals: watch::Sender<Refusals>,
    pub(crate) max_message_bytes: usize,
    pub(crate) senders: Senders,
    pub(crate) progress: ExecutorProgress,
}

/// What a panic left.
type Panic = Box<dyn Any + Send>;

/// What is under way.
struct UnderWay {
    /// Where the panics go of what the driver cannot do without.
    died: mpsc::UnboundedSender<Panic>,
    inputs: mpsc::UnboundedSender<Input>,
    settling: mpsc::UnboundedSender<Settling>,
    tasks: TaskTracker,
    unsettled: Unsettled,
    subscriptions: HashMap<SubscriptionId, CancellationToken>,
    /// What the rounds that are being written decided.
    decided: HashMap<CallId, Vec<Decided>>,
    notices: Notices,
    bus: watch::Receiver<BusState>,
    ended: bool,
}

impl Driver {
    /// Drives until `stop`; then until everything is handed over.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (inputs, mut answers) = mpsc::unbounded_channel();
        let (settling, settle) = mpsc::unbounded_channel();
        let (died, mut deaths) = mpsc::unbounded_channel();
        let tasks = TaskTracker::new();
        let settler = Settlements {
            settling: settle,
            progress: self.progress.settling.clone(),
            publisher: Arc::clone(&self.publisher),
            tasks: tasks.clone(),
        };
        let settling_task = tokio::spawn(vital(died.clone(), settler.run()));
        let (state, bus) = watch::channel(BusState::default());
        let watching = tokio::spawn(watch_bus(self.publisher.bus(), state));
        let _watching = AbortOnDropHandle::new(watching);
        let ends = Arc::clone(&self.feed.ends).watch(self.publisher.bus());
        let _ends = AbortOnDropHandle::new(tokio::spawn(ends));
        let mut under_way = UnderWay {
            died,
            inputs,
            settling,
            tasks,
            unsettled: Unsettled::default(),
            subscriptions: HashMap::new(),
            decided: HashMap::new(),
            notices: Notices::default(),
            bus,
            ended: false,
        };
        let (store, refusals) = (Arc::clone(&self.calls.store), self.refusals.subscribe());
        let teller = Teller::new(store, self.calls.owner, refusals);
        let telling_task = under_way.tasks.spawn(teller.run());
        let mut leaving = false;
        while !under_way.ended {
            self.progress.owner.stamp();
            let now = boot_now();
            let wait = duration(self.owner.wake_at(now) - now);
            let wants = self.owner.wants_messages();
            let input = tokio::select! {
                biased;
                () = stop.cancelled(), if !leaving => {
                    leaving = true;
                    Input::Leave
                }
                // Messages before answers: the answer to a commit begins the next round, which shall
                // have all that came meanwhile. How many it takes is bounded, so answers come too.
                Some(inbound) = self.control.recv(), if wants => {
                    Input::Delivered(self.gather(&mut under_way, inbound))
                }
                Some(inbound) = self.commands.recv(), if wants => {
                    Input::Delivered(self.gather(&mut under_way, inbound))
                }
                report = next_hint(&mut self.reports) => self.report(report).await,
                Some(panic) = deaths.recv() => resume_unwind(panic),
                Some(input) = answers.recv() => input,
                Ok(()) = under_way.bus.changed() => {
                    let reachable = !under_way.bus.borrow_and_update().is_lost;
                    Input::Bus { reachable }
                }
                hint = next_hint(&mut self.hints) => self.hint(hint).await,
                hello = next_hint(&mut self.hellos) => self.hello(hello).await,
                () = tokio::time::sleep(wait) => Input::Timer,
            };
            self.step(input, &mut under_way);
        }
        self.progress.owner.rest();
        drop(self.control);
        drop(self.commands);
        drop(self.refusals);
        for token in under_way.subscriptions.values() {
            token.cancel();
        }
        under_way.tasks.close();
        if tokio::time::timeout(DRAIN, under_way.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("the executor ends before everything is confirmed");
        }
        drop(under_way);
        // What the store is still asked then may take as long as it does.
        let ended = telling_task.is_finished().then_some(telling_task);
        for task in [settling_task].into_iter().chain(ended) {
            if let Err(error) = task.await
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    fn step(&mut self, input: Input, under_way: &mut UnderWay) {
        if let Input::Answered(call, reply) = &input
            && let Some(decided) = under_way.decided.remove(call)
            && matches!(reply, Reply::Committed(_))
        {
            self.records.committed(&decided);
        }
        let now = boot_now();
        for output in self.owner.step(now, input) {
            self.carry_out(output, under_way);
        }
        let troubles = [self.owner.trouble(now), self.feed.newer.trouble(now)];
        let trouble = troubles.into_iter().flatten().max_by_key(|it| it.for_ms);
        let served = self.owner.served();
        self.served
            .send_if_modified(|known| std::mem::replace(known, served) != served);
        self.trouble.send_if_modified(|known| {
            let changed = *known != trouble;
            *known = trouble;
            changed
        });
        let ends = self.feed.ends.trouble(now);
        let refusals = lasting(&self.owner, now, (&under_way.bus.borrow(), ends));
        self.refusals.send_if_modified(|known| {
            let changed = *known != refusals;
            *known = refusals;
            changed
        });
    }

    /// Takes what has arrived beside the first message, completions first.
    fn gather(&mut self, under_way: &mut UnderWay, first: Inbound) -> Vec<Delivered> {
        let mut gathered = Vec::new();
        let mut next = Some(first);
        while let Some(inbound) = next {
            let subscription = inbound.delivered.subscription;
            if under_way.subscriptions.contains_key(&subscription) {
                under_way.unsettled.insert(&inbound);
                gathered.push(inbound.delivered);
            }
            if gathered.len() >= MAX_DELIVERED {
                break;
            }
            next = self
                .control
                .try_recv()
                .or_else(|_| self.commands.try_recv())
                .ok();
        }
        gathered
    }

    fn carry_out(&mut self, output: Output, under_way: &mut UnderWay) {
        match output {
            Output::Call(id, call) => self.call(id, call, under_way),
            Output::Dispatch {
                id,
                pool,
                worker,
                sections,
            } => {
                let (publisher, inputs) = (Arc::clone(&self.publisher), under_way.inputs.clone());
                let dispatch = self.figures.dispatch();
                under_way.tasks.spawn(async move {
                    let published = published(publisher.tell((pool, worker), sections)).await;
                    drop(dispatch);
                    back(&inputs, Input::Published(id, published));
                });
            }
            Output::Send(send) => {
                let (queues, inputs) = (queues_of(&send), under_way.inputs.clone());
                let (events, counters) = (events_of(&send), Arc::clone(&self.counters));
                self.publisher.send(send, move || {
                    counters.add(Counter::EventLost, events);
                    if !queues.is_empty() {
                        back(&inputs, Input::SnapshotsLost(queues));
                    }
                });
            }
            Output::Ack(deliveries) => {
                let (settled, _) = under_way.unsettled.settle(&deliveries, &self.figures);
                under_way.settle(Settling::Ack(settled));
            }
            Output::Refuse {
                deliveries,
                answers,
            } => {
                // What came by a subscription that has ended comes again.
                let (settled, are_all) = under_way.unsettled.settle(&deliveries, &self.figures);
                under_way.settle(if are_all {
                    Settling::Refuse(settled, answers)
                } else {
                    Settling::Ack(settled)
                });
            }
            Output::Subscribe(subscription, partition) => {
                self.subscribe(subscription, partition, under_way);
            }
            Output::Unsubscribe(subscription) => {
                under_way.unsettled.forget(subscription);
                if let Some(token) = under_way.subscriptions.remove(&subscription) {
                    under_way.settle(Settling::End(token));
                }
            }
            Output::Noted(decided) => self.records.committed(std::slice::from_ref(&decided)),
            Output::Loaded(decided) => self.records.loaded(decided),
            Output::Count(counter, times) => self.counters.add(counter, times),
            Output::Waited(waits) => self.figures.waited(&waits),
            Output::Notice(notice) => under_way.notices.say(&notice),
            Output::Ended => under_way.ended = true,
        }
    }

    fn call(&self, id: CallId, call: Call, under_way: &mut UnderWay) {
        if let Call::Commit(commit) = &call
            && !commit.decided.is_empty()
        {
            under_way.decided.insert(id, commit.decided.clone());
        }
        let (calls, inputs) = (self.calls.clone(), under_way.inputs.clone());
        under_way.tasks.spawn(async move {
            let reply = answered(calls.make(call)).await;
            back(&inputs, Input::Answered(id, reply));
        });
    }

    fn subscribe(
        &self,
        subscription: SubscriptionId,
        partition: PartitionId,
        under_way: &mut UnderWay,
    ) {
        let stop = CancellationToken::new();
        under_way.subscriptions.insert(subscription, stop.clone());
        let (feed, inputs) = (self.feed.clone(), under_way.inputs.clone());
        let died = under_way.died.clone();
        under_way.tasks.spawn(vital(died, async move {
            feed.run(subscription, partition, stop).await;
            back(&inputs, Input::Unsubscribed(subscription));
        }));
    }
}

impl UnderWay {
    fn settle(&self, settling: Settling) {
        if self.settling.send(settling).is_err() {
            tracing::error!("nobody settles messages any more");
        }
    }
}

/// The queues whose snapshots are sent: what else is told once is asked for again, or told again.
fn queues_of(send: &owner::Send) -> Vec<ActionId> {
    match send {
        owner::Send::Snapshots(snapshots) => snapshots.iter().map(|(_, it)| it.action_id).collect(),
        _ => Vec::new(),
    }
}

/// How many events are sent.
fn events_of(send: &owner::Send) -> u64 {
    match send {
        owner::Send::Events(events) => events.len() as u64,
        _ => 0,
    }
}

/// The answer of a store call. One that panicked may have been made: its outcome is unknown.
///
/// Nothing that the call borrows is looked at again but locks, which survive a panic.
async fn answered(call: impl Future<Output = Reply>) -> Reply {
    let answer = AssertUnwindSafe(call).catch_unwind().await;
    answer.unwrap_or_else(|panic| {
        let words = panic_words(&*panic);
        tracing::error!(
            error = words,
            "a store call panicked; its outcome is unknown"
        );
        Reply::Failed(Failure {
            refused: false,
            words: words.to_owned(),
        })
    })
}

/// What came of a publication; the same for one that panicked.
async fn published(publication: impl Future<Output = Published>) -> Published {
    let answer = AssertUnwindSafe(publication).catch_unwind().await;
    answer.unwrap_or_else(|panic| {
        let words = panic_words(&*panic);
        tracing::error!(
            error = words,
            "a publication panicked; its outcome is unknown"
        );
        Published::Unknown
    })
}

/// Runs what the driver cannot do without: a panic of it is the driver's.
///
/// What is left half done is the process's, which ends.
async fn vital(died: mpsc::UnboundedSender<Panic>, part: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(part).catch_unwind().await
        && died.send(panic).is_err()
    {
        tracing::debug!("a part of the driver panicked after its end");
    }
}

/// What a panic said.
fn panic_words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without words")
}

/// Settles messages in order, so that a subscription ends after what it delivered is settled.
struct Settlements {
    settling: mpsc::UnboundedReceiver<Settling>,
    progress: Progress,
    publisher: Arc<Publisher>,
    tasks: TaskTracker,
}

impl Settlements {
    async fn run(mut self) {
        loop {
            self.progress.rest();
            let Some(next) = self.settling.recv().await else {
                return;
            };
            self.progress.stamp();
            match next {
                Settling::Ack(settled) => {
                    for (settler, tags) in settled {
                        settler.ack(&tags).await;
                    }
                }
                Settling::Refuse(settled, answers) => self.refuse(settled, answers).await,
                Settling::End(subscription) => subscription.cancel(),
            }
        }
    }

    /// Acknowledges, and leaves to a task of its own to wait until the broker has taken it.
    async fn refuse(&self, settled: Settled, answers: Vec<(Arc<str>, Answer)>) {
        let mut confirmations = Vec::new();
        for (settler, tags) in settled {
            confirmations.push(settler.ack_confirmed(&tags).await);
        }
        let publisher = Arc::clone(&self.publisher);
        self.tasks.spawn(async move {
            if try_join_all(confirmations).await.is_ok() {
                publisher.send(owner::Send::Answers(answers), || {});
            } else {
                tracing::debug!("refusals are not told: their messages may come again");
            }
        });
    }
}

async fn next_hint(hints: &mut Option<Subscriber>) -> Option<attune_bus::Delivery> {
    match hints {
        Some(hints) => hints.next().await,
        None => std::future::pending().await,
    }
}

/// Brings something back to the owner; when it has ended, nobody wants it.
fn back(inputs: &mpsc::UnboundedSender<Input>, input: Input) {
    if inputs.send(input).is_err() {
        tracing::debug!("the owner has ended");
    }
}

/// A clock that only measures durations, and goes on while the machine sleeps, in milliseconds.
pub(crate) fn boot_now() -> Millis {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}
