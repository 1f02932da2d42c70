//! Publishes with confirms: one task, one channel, many messages in flight.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use attune_bus::{Outgoing, PublishError, Refused};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::cause::Cause;
use crate::link::{Life, Link};
use crate::message::{Prepared, prepare};
use crate::options::RabbitOptions;
use crate::pace::Pace;
use crate::topology::Topology;
use crate::window::{CallId, Verdict, Window};

/// How many calls may wait to be taken up; further callers wait for room until their deadline.
const CALLS_WAITING: usize = 256;
/// How many calls may have been taken up and wait for a queue that takes nothing at the moment.
const CALLS_HELD: usize = 2_048;
/// How often it is seen whether calls that wait may be written now, whatever is confirmed.
const LOOK: Duration = Duration::from_millis(100);
/// After so many times the time in which it should have been confirmed, a message that was not
/// ends its connection, although others are confirmed: perhaps the next one serves it.
const STUCK: u32 = 10;
/// How often a blocked connection is looked at whose oldest call is over its deadline.
const PATIENCE: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<(), PublishError>>;

/// One call of `publish`.
struct Job {
    /// Those that are not written yet.
    messages: VecDeque<Prepared>,
    /// Where they go, each named once.
    keys: HashSet<ShortString>,
    deadline: Instant,
    /// Taken when the first message is written; then a lost connection makes the outcome
    /// unknown. While it is there, the call can wait for the next connection.
    answer: Option<Answer>,
    /// How the window knows it, once it has begun.
    call: Option<CallId>,
}

/// The callers' side.
pub(crate) struct Publisher {
    jobs: mpsc::Sender<Job>,
    link: Link,
    topology: Arc<Topology>,
    timeout: Duration,
    max_bytes: usize,
}

impl Publisher {
    pub(crate) fn new(
        link: Link,
        topology: Arc<Topology>,
        options: &RabbitOptions,
        closing: CancellationToken,
    ) -> (Self, PublisherTask) {
        let (jobs, received) = mpsc::channel(CALLS_WAITING);
        let task = PublisherTask {
            jobs: received,
            held: VecDeque::new(),
            link: link.clone(),
            topology: Arc::clone(&topology),
            closing,
            setup_timeout: options.connect_timeout,
            timeout: options.publish_timeout,
        };
        let (timeout, max_bytes) = (options.publish_timeout, options.max_message_bytes);
        (
            Self {
                jobs,
                link,
                topology,
                timeout,
                max_bytes,
            },
            task,
        )
    }

    /// See [`attune_bus::Bus::publish`].
    pub(crate) async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let mut refused = Vec::new();
        let mut prepared = VecDeque::with_capacity(messages.len());
        for message in messages {
            let message_id = message.message_id;
            match prepare(&self.topology, message, self.max_bytes) {
                Ok(message) => prepared.push_back(message),
                Err(why) => refused.push(Refused { message_id, why }),
            }
        }
        let sent = if prepared.is_empty() {
            Ok(())
        } else {
            self.send(prepared).await
        };
        match sent {
            Ok(()) => {}
            Err(PublishError::Refused(more)) => refused.extend(more),
            Err(other) => return Err(other),
        }
        if refused.is_empty() {
            Ok(())
        } else {
            Err(PublishError::Refused(refused))
        }
    }

    async fn send(&self, messages: VecDeque<Prepared>) -> Result<(), PublishError> {
        let deadline = Instant::now() + self.timeout;
        let (answer, answered) = oneshot::channel();
        let keys = messages.iter().map(|message| message.routing_key.clone());
        let job = Job {
            keys: keys.collect(),
            messages,
            deadline,
            answer: Some(answer),
            call: None,
        };
        match timeout_at(deadline, self.jobs.send(job)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(PublishError::Closed),
            Err(_) => return Err(self.unconfirmed()),
        }
        // The task goes on with the job whatever becomes of this future. A blocked or half-open
        // connection sends it perhaps much later: the outcome is unknown, it has not failed.
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(PublishError::Closed),
            Err(_) => Err(self.unconfirmed()),
        }
    }

    fn unconfirmed(&self) -> PublishError {
        let why = match self.link.check() {
            Ok(()) => "the broker does not answer".to_owned(),
            Err(error) => error.to_string(),
        };
        PublishError::Unconfirmed(format!("within {:?}: {why}", self.timeout))
    }
}

/// The task that owns the publishing connection's channels.
pub(crate) struct PublisherTask {
    jobs: mpsc::Receiver<Job>,
    /// Taken up and not completely written, in the order in which they came.
    held: VecDeque<Job>,
    link: Link,
    topology: Arc<Topology>,
    closing: CancellationToken,
    setup_timeout: Duration,
    timeout: Duration,
}

impl PublisherTask {
    /// Publishes on one connection after the other until the bus closes.
    pub(crate) async fn run(mut self) {
        let mut seen = 0;
        loop {
            let life = tokio::select! {
                () = self.closing.cancelled() => break,
                life = self.link.life_after(seen) => life,
            };
            let Some(life) = life else { break };
            seen = life.generation;
            match self.open(&life).await {
                Ok(channel) => {
                    let mut session = Session::new(channel, Arc::clone(&life));
                    if let Err(cause) = session.run(&mut self).await {
                        life.fail(cause.as_str());
                        session.abandon(&cause);
                    }
                    // Of a call that was written in part nothing more must follow later, after
                    // newer messages.
                    self.held.retain(|job| job.answer.is_some());
                }
                Err(cause) => life.fail(cause.to_string()),
            }
        }
    }

    async fn open(&self, life: &Life) -> Result<Channel, Cause> {
        let opening = async {
            let failed = |error| Cause::of(&error).during("opening a channel to publish");
            let channel = life.connection().create_channel().await.map_err(failed)?;
            // Publishing to an exchange that does not exist closes the channel.
            self.topology.declare_base(&channel).await?;
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await
                .map_err(failed)?;
            Ok(channel)
        };
        tokio::select! {
            cause = life.failed() => Err(Cause::unavailable(cause)),
            opened = timeout(self.setup_timeout, opening) => opened.unwrap_or_else(|_| {
                Err(Cause::unavailable("no answer while opening a channel to publish"))
            }),
        }
    }

    /// Takes up what is there, and passes over calls whose caller has given up. When the bus
    /// closes, only those that have begun are finished.
    fn take_up(&mut self, closing: bool) {
        if closing {
            self.held.retain(|job| job.answer.is_none());
            return;
        }
        while self.held.len() < CALLS_HELD
            && let Ok(job) = self.jobs.try_recv()
        {
            self.held.push_back(job);
        }
        let now = Instant::now();
        self.held.retain_mut(|job| {
            let late = job.answer.take_if(|_| job.deadline <= now);
            let Some(answer) = late else { return true };
            let late = PublishError::Unconfirmed("it was not sent in time".to_owned());
            answer.send(Err(late)).ok();
            false
        });
    }
}

type Confirming = Pin<Box<dyn Future<Output = (u64, lapin::Result<Confirmation>)> + Send>>;

/// Publishing on one channel, which lives as long as its connection.
struct Session {
    channel: Channel,
    life: Arc<Life>,
    window: Window<Answer>,
    pace: Pace,
    confirming: FuturesUnordered<Confirming>,
    /// A confirm was observed since calls were last settled.
    news: bool,
    /// When something was confirmed last.
    confirmed: Instant,
}

impl Session {
    fn new(channel: Channel, life: Arc<Life>) -> Self {
        Self {
            channel,
            life,
            window: Window::new(),
            pace: Pace::default(),
            confirming: FuturesUnordered::new(),
            news: false,
            confirmed: Instant::now(),
        }
    }

    /// Writes and collects confirms until the bus closes and everything is confirmed (`Ok`) or
    /// something is wrong with the connection.
    async fn run(&mut self, task: &mut PublisherTask) -> Result<(), String> {
        let life = Arc::clone(&self.life);
        let mut closing = None;
        let mut look = Instant::now();
        loop {
            task.take_up(closing.is_some());
            self.write_held(&mut task.held).await?;
            if std::mem::take(&mut self.news) {
                self.settle()?;
                // There may be room now, and what was woken meanwhile is seen below.
                continue;
            }
            if closing.is_some() && self.window.is_empty() {
                return Ok(());
            }
            // When nothing gets a confirm for so long, this connection is ill one way or the
            // other. Blocked ones are kept (the next would be blocked as well): they recover, and
            // what is held is bounded.
            let overdue = self.overdue(task.timeout).map(|at| look.max(at));
            tokio::select! {
                biased;
                cause = life.failed() => return Err(cause),
                () = task.closing.cancelled(), if closing.is_none() => {
                    task.jobs.close();
                    closing = Some(Instant::now() + task.timeout);
                }
                () = sleep_until(closing.unwrap_or(look)), if closing.is_some() => {
                    return Err("closed before everything was confirmed".to_owned());
                }
                Some(done) = self.confirming.next(), if !self.confirming.is_empty() => {
                    self.observe(done)?;
                }
                Some(job) = task.jobs.recv(),
                    if closing.is_none() && task.held.len() < CALLS_HELD =>
                {
                    task.held.push_back(job);
                }
                () = sleep(LOOK), if !task.held.is_empty() => {}
                () = sleep_until(overdue.unwrap_or(look)), if overdue.is_some() => {
                    if life.blocked().is_none() {
                        return Err("the broker has not confirmed in time".to_owned());
                    }
                    look = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// Until when something must be confirmed.
    fn overdue(&self, timeout: Duration) -> Option<Instant> {
        let oldest = self.window.oldest()?;
        Some((oldest.max(self.confirmed) + timeout).min(oldest + STUCK * timeout))
    }

    /// Writes what may be written now, in the order in which the calls came. One that has to wait
    /// for a queue holds up only those behind it that go there as well.
    async fn write_held(&mut self, held: &mut VecDeque<Job>) -> Result<(), String> {
        self.pace.look(Instant::now());
        let mut waited_for: HashSet<ShortString> = HashSet::new();
        let mut place = 0;
        while self.pace.has_room()
            && let Some(job) = held.get_mut(place)
        {
            self.write(job, &waited_for).await?;
            if job.messages.is_empty() {
                held.remove(place);
            } else {
                waited_for.extend(job.keys.iter().cloned());
                place += 1;
            }
        }
        Ok(())
    }

    /// Writes messages of a call as long as there is room, and as their queues take them.
    async fn write(
        &mut self,
        job: &mut Job,
        waited_for: &HashSet<ShortString>,
    ) -> Result<(), String> {
        let may_go = |pace: &Pace, message: &Prepared| {
            let key = &message.routing_key;
            pace.has_room() && pace.takes(key) && !waited_for.contains(key)
        };
        while let Some(message) = job.messages.pop_front_if(|next| may_go(&self.pace, next)) {
            if !self.channel.status().connected() {
                // The call has not begun, or its outcome is unknown anyway.
                job.messages.push_front(message);
                return Err("the channel was closed".to_owned());
            }
            let call = self.begin(job);
            let (key, bytes, now) = (
                message.routing_key.clone(),
                message.body.len(),
                Instant::now(),
            );
            let sequence = self.window.push(call, message.id, key.clone(), now);
            self.pace.sent(&key, sequence, bytes, now);
            if job.messages.is_empty() {
                self.window.finish(call);
            }
            let mut confirming: Confirming =
                Box::pin(publish_one(self.channel.clone(), message, sequence));
            // lapin takes the frames in the first poll, so polling here, one by one, is what
            // keeps the order. That they are written, and confirmed, is awaited later and
            // concurrently: waiting for one confirm at a time costs a sync to disk each.
            match futures_util::poll!(confirming.as_mut()) {
                // Seldom, but a fast broker can have confirmed it before this poll is over.
                Poll::Ready(done) => self.observe(done)?,
                Poll::Pending => self.confirming.push(confirming),
            }
        }
        Ok(())
    }

    /// Begins a call, unless it has begun.
    fn begin(&mut self, job: &mut Job) -> CallId {
        match job.answer.take() {
            Some(answer) => *job.call.insert(self.window.begin(answer)),
            None => job
                .call
                .expect("a call gives its answer away when it begins"),
        }
    }

    fn observe(
        &mut self,
        (sequence, confirmation): (u64, lapin::Result<Confirmation>),
    ) -> Result<(), String> {
        let confirmation = confirmation.map_err(|error| error.to_string())?;
        // An unroutable message is acked as well: `is_ack` alone means nothing.
        let verdict = if confirmation.is_ack() {
            Verdict::Acked
        } else {
            Verdict::Nacked
        };
        let returned = confirmation.take_message();
        let key = self.window.confirmed(sequence, verdict, returned.is_none());
        if let Some(key) = key {
            self.pace.confirmed(&key, sequence);
        }
        self.news = true;
        self.confirmed = Instant::now();
        if let Some(returned) = returned {
            self.observe_return(&returned);
        }
        Ok(())
    }

    fn observe_return(&mut self, returned: &BasicReturnMessage) {
        let id = returned
            .properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str());
        let known = id
            .and_then(|id| id.parse::<Uuid>().ok())
            .is_some_and(|id| self.window.returned(id, returned.routing_key.as_str()));
        if !known {
            tracing::error!(
                message.id = id.unwrap_or("none"),
                bus.routing_key = %returned.routing_key,
                "the broker returned a message that is not in flight"
            );
        }
    }

    /// Answers the calls that are settled.
    fn settle(&mut self) -> Result<(), String> {
        self.observe_all_completed()?;
        self.news = false;
        for (answer, refused) in self.window.settled() {
            let result = match refused.is_empty() {
                true => Ok(()),
                false => Err(PublishError::Refused(refused)),
            };
            // Fails when the caller has gone, which is its right.
            answer.send(result).ok();
        }
        Ok(())
    }

    /// Observes every confirm that lapin has completed so far, so that no return hides behind
    /// one that is not looked at yet; see [`crate::window`].
    ///
    /// `FuturesUnordered` says `Pending` also when it only wants to yield, and then wakes its
    /// waker at once. So it is polled with a waker of our own until it says `Pending` and has not
    /// woken: then its list of woken futures was empty. lapin completes confirms on one thread
    /// and wakes on the spot, so whatever it completed before one that was seen is on that list.
    fn observe_all_completed(&mut self) -> Result<(), String> {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        loop {
            match self.confirming.poll_next_unpin(&mut context) {
                Poll::Ready(Some(done)) => self.observe(done)?,
                Poll::Ready(None) => return Ok(()),
                Poll::Pending if woken.0.swap(false, Ordering::SeqCst) => {}
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Tells everybody who still waits that the outcome is unknown.
    fn abandon(self, cause: &str) {
        for answer in self.window.into_owners() {
            answer
                .send(Err(PublishError::Unconfirmed(cause.to_owned())))
                .ok();
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn publish_one(
    channel: Channel,
    message: Prepared,
    sequence: u64,
) -> (u64, lapin::Result<Confirmation>) {
    let options = BasicPublishOptions {
        mandatory: message.mandatory,
        immediate: false,
    };
    let publish = channel.basic_publish(
        message.exchange,
        message.routing_key,
        options,
        &message.body,
        message.properties,
    );
    let confirmation = match publish.await {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    (sequence, confirmation)
}
