//! Publishes with confirms: one task, one channel, many messages in flight.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Outgoing, PublishError, Refused};
use attune_runtime::Backoff;
use lapin::Channel;
use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::barred::Barred;
use crate::cause::{Cause, Closed};
use crate::link::{Life, Link};
use crate::message::{Prepared, prepare};
use crate::options::RabbitOptions;
use crate::session::{End, Session};
use crate::topology::Topology;
use crate::window::CallId;

/// How many calls may wait to be taken up; further callers wait for room until their deadline.
const CALLS_WAITING: usize = 256;
/// How many calls may have been taken up and wait for a queue that takes nothing at the moment.
pub(crate) const CALLS_HELD: usize = 2_048;
/// So many channels may be closed for reasons that are not understood, one after the other, before the
/// connection is made anew.
const CHANNELS: u32 = 3;
/// A channel of at least this length counts as a success.
const STABLE: Duration = Duration::from_secs(10);

pub(crate) type Answer = oneshot::Sender<Result<(), PublishError>>;

/// One call of `publish`.
pub(crate) struct Job {
    /// Those that are not written yet.
    pub(crate) messages: VecDeque<Prepared>,
    /// Where they go, each named once.
    pub(crate) keys: HashSet<ShortString>,
    deadline: Instant,
    /// Taken when the first message is written; then a lost connection makes the outcome
    /// unknown. While it is there, the call can wait for the next connection.
    pub(crate) answer: Option<Answer>,
    /// How the window knows it, once it has begun.
    pub(crate) call: Option<CallId>,
}

/// The callers' side.
pub(crate) struct Publisher {
    jobs: mpsc::Sender<Job>,
    link: Link,
    topology: Arc<Topology>,
    barred: Arc<Barred>,
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
        let user = options.user().ok().flatten();
        let user = user.unwrap_or_else(|| "of its certificate".to_owned());
        let barred = Arc::new(Barred::new(user));
        let task = PublisherTask {
            jobs: received,
            held: VecDeque::new(),
            link: link.clone(),
            topology: Arc::clone(&topology),
            barred: Arc::clone(&barred),
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
                barred,
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

    /// What the broker does not let this process publish although somebody misses it, if there is such a
    /// thing.
    pub(crate) fn problem(&self) -> Option<String> {
        self.barred.problem(Instant::now())
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
    pub(crate) jobs: mpsc::Receiver<Job>,
    /// Taken up and not completely written, in the order in which they came.
    pub(crate) held: VecDeque<Job>,
    link: Link,
    topology: Arc<Topology>,
    pub(crate) barred: Arc<Barred>,
    pub(crate) closing: CancellationToken,
    setup_timeout: Duration,
    pub(crate) timeout: Duration,
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
            self.publish_on(&life).await;
        }
    }

    /// Publishes on one channel after the other until the connection or the bus ends. What the broker
    /// closes a channel for is as a rule one message, which is told so; the next channel goes on with the
    /// others.
    async fn publish_on(&mut self, life: &Arc<Life>) {
        let (mut backoff, mut strays) = (Backoff::default(), 0);
        loop {
            let channel = match self.open(life).await {
                Ok(channel) => channel,
                Err(cause) => return life.fail(cause.to_string()),
            };
            let born = Instant::now();
            let mut session = Session::new(channel, Arc::clone(life), self);
            let ended = session.run(self).await;
            let closed = match ended {
                Ok(()) => return,
                Err(End::Life(cause)) => {
                    life.fail(cause.as_str());
                    session.abandon(&cause);
                    return self.drop_begun();
                }
                Err(End::Channel(closed)) => closed,
            };
            let is_understood = closed.as_ref().is_some_and(|closed| session.close(closed));
            let cause = closed.map_or_else(
                || "the channel was closed".to_owned(),
                |Closed { text, .. }| format!("the channel was closed: {text}"),
            );
            session.abandon(&cause);
            self.drop_begun();
            if is_understood {
                continue;
            }
            if born.elapsed() >= STABLE {
                (backoff, strays) = (Backoff::default(), 0);
            }
            strays += 1;
            if strays >= CHANNELS {
                return life.fail(cause);
            }
            tracing::warn!(
                cause,
                "a channel to publish was closed; opening another one"
            );
            tokio::select! {
                () = self.closing.cancelled() => {}
                _ = life.failed() => {}
                () = sleep(backoff.next_delay()) => {}
            }
            if life.is_broken() {
                return;
            }
        }
    }

    /// Of a call that was written in part nothing more must follow later, after newer messages.
    fn drop_begun(&mut self) {
        self.held.retain(|job| job.answer.is_some());
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
    pub(crate) fn take_up(&mut self, closing: bool) {
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
