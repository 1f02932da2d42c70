//! Where lives that speak HTTP alone hear from owners.
//!
//! A life has a link on the bus, like any other, for as long as it asks what waits for it; a task holds
//! the link between two calls. Nothing here matters: what is lost with a link, or with an answer, its owners
//! tell again, as whatever is lost on any link. That it may be lost the life sees: its call has failed, or the
//! next answer names another link.
//!
//! *Ends.* A link ends when whoever waits for its sections has hung up, so that owners learn at once that
//! nobody hears them, and after [`IDLE`] without a call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_bus::{Bus, BusError, Delivery, Outgoing, Subscriber, Subscription, Topic};
use attune_core::WorkerId;
use attune_messages::v2::{Section, WorkerHello};
use attune_messages::{Message, decode_batch, encode};
use chrono::Utc;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::error::ApiError;

/// How many lives may have a link here.
const MAX_LINKS: usize = 256;
/// How many of them those of one key may be: others find some.
const MAX_LINKS_OF_OWNER: usize = MAX_LINKS / 4 * 3;
/// How long a link stays without a call.
const IDLE: Duration = Duration::from_secs(10);
/// Messages that wait here for the next call of a life; the others wait on the bus.
const PREFETCH: u16 = 4;
/// An answer with so many bytes of sections takes no more messages.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Calls of one life that may wait for their turn.
const MAX_CALLS: usize = 4;

/// What a life hears.
#[derive(Debug)]
pub(crate) struct Heard {
    /// Names the link: sections may be lost between two.
    pub(crate) link: Uuid,
    pub(crate) sections: Vec<Box<RawValue>>,
}

/// A call that waits.
struct Poll {
    until: Instant,
    answer: oneshot::Sender<Result<Heard, ApiError>>,
}

/// A section as it came: what is in it is between its owner and its life.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct AsItCame(Box<RawValue>);

impl Message for AsItCame {
    const TYPE: &'static str = Section::TYPE;
    const VERSION: u32 = Section::VERSION;
    const OLDEST: u32 = Section::OLDEST;
}

/// The way to the link of a life.
struct Calls {
    /// The pool for which it is told.
    pool: String,
    /// Whose life it is, where that is known.
    owner: Option<String>,
    sender: mpsc::Sender<Poll>,
}

/// The links of all lives that ask this process.
pub(crate) struct Polls {
    bus: Arc<dyn Bus>,
    max_message_bytes: usize,
    stop: CancellationToken,
    /// Added to by the first call of a life, taken from by the task of the link at its end.
    links: Mutex<HashMap<WorkerId, Calls>>,
}

impl Polls {
    /// No link yet. Whoever waits is answered when `stop` comes.
    pub(crate) fn new(
        bus: Arc<dyn Bus>,
        max_message_bytes: usize,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            bus,
            max_message_bytes,
            stop,
            links: Mutex::default(),
        })
    }

    /// What waits for a life, or comes until then. A later call of the same life ends this one.
    ///
    /// # Errors
    /// 503 when the bus cannot be reached, or as many lives have a link as may, of all or of their `owner`.
    pub(crate) async fn hear(
        self: &Arc<Self>,
        (worker, pool): (WorkerId, &str),
        owner: Option<String>,
        until: Instant,
    ) -> Result<Heard, ApiError> {
        // A link that is just ending drops the call, and then there is none.
        for _ in 0..2 {
            let (answer, heard) = oneshot::channel();
            let calls = self.link(worker, pool, owner.as_deref())?;
            if calls.send(Poll { until, answer }).await.is_ok()
                && let Ok(heard) = heard.await
            {
                return heard;
            }
        }
        Err(no_link("it is just ending"))
    }

    fn links(&self) -> MutexGuard<'_, HashMap<WorkerId, Calls>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(
        self: &Arc<Self>,
        worker: WorkerId,
        pool: &str,
        owner: Option<&str>,
    ) -> Result<mpsc::Sender<Poll>, ApiError> {
        let mut links = self.links();
        // A life that serves another pool now is told elsewhere.
        let is_its = |calls: &&Calls| calls.pool == pool && !calls.sender.is_closed();
        if let Some(calls) = links.get(&worker).filter(is_its) {
            return Ok(calls.sender.clone());
        }
        if links.len() >= MAX_LINKS && !links.contains_key(&worker) {
            let words = format!("{MAX_LINKS} workers ask this server already, as many as may");
            return Err(ApiError::unavailable("OVERLOADED", words));
        }
        let of_owner = links.values().filter(|it| it.owner.as_deref() == owner);
        if owner.is_some() && of_owner.count() >= MAX_LINKS_OF_OWNER && !links.contains_key(&worker)
        {
            let words = format!(
                "{MAX_LINKS_OF_OWNER} workers with this key ask this server already, as many as may"
            );
            return Err(ApiError::unavailable("OVERLOADED", words));
        }
        let (calls, asked) = mpsc::channel(MAX_CALLS);
        let its = Calls {
            pool: pool.to_owned(),
            owner: owner.map(str::to_owned),
            sender: calls.clone(),
        };
        links.insert(worker, its);
        tokio::spawn(Arc::clone(self).run(worker, pool.to_owned(), asked));
        Ok(calls)
    }

    async fn run(self: Arc<Self>, worker: WorkerId, pool: String, mut calls: mpsc::Receiver<Poll>) {
        let subscription = Subscription {
            topic: Topic::link(&*pool, worker),
            prefetch: PREFETCH,
        };
        match self.bus.subscribe(subscription).await {
            Ok(subscriber) => {
                let link = Link {
                    polls: &self,
                    hello: WorkerHello { worker, pool },
                    id: Uuid::now_v7(),
                    renewals: subscriber.renewals(),
                    subscriber,
                };
                link.say_hello().await;
                // Its subscription has ended before its calls do: the next one would be refused.
                link.serve(&mut calls).await;
            }
            Err(error) => refuse(&mut calls, &error).await,
        }
        drop(calls);
        self.links()
            .retain(|of, calls| *of != worker || !calls.sender.is_closed());
    }
}

/// The bus has no link for a life.
async fn refuse(calls: &mut mpsc::Receiver<Poll>, error: &BusError) {
    calls.close();
    while let Some(poll) = calls.recv().await {
        // Whoever asked may be gone.
        poll.answer.send(Err(no_link(&error.to_string()))).ok();
    }
}

fn no_link(why: &str) -> ApiError {
    let words = format!("there is no link to this worker: {why}; what it said is told, ask again");
    ApiError::unavailable("NO_LINK", words)
}

/// Where one life hears from owners.
struct Link<'a> {
    polls: &'a Polls,
    hello: WorkerHello,
    id: Uuid,
    renewals: watch::Receiver<u64>,
    subscriber: Subscriber,
}

impl Link<'_> {
    /// Answers one call after the other, until none comes or nobody is there to hear the answer.
    async fn serve(mut self, calls: &mut mpsc::Receiver<Poll>) {
        let mut newer = None;
        loop {
            let next = match newer.take() {
                Some(poll) => Some(poll),
                None => timeout(IDLE, calls.recv()).await.ok().flatten(),
            };
            let Some(mut poll) = next else { return };
            let mut sections = Vec::new();
            // It rises before anything of the new connection is delivered.
            tokio::select! {
                biased;
                () = self.polls.stop.cancelled() => {}
                later = calls.recv() => newer = later,
                () = poll.answer.closed() => return,
                Ok(()) = self.renewals.changed() => {
                    self.id = Uuid::now_v7();
                    self.say_hello().await;
                }
                delivery = self.subscriber.next() => match delivery {
                    Some(delivery) => sections = self.gather(delivery).await,
                    None => return,
                },
                () = sleep_until(poll.until) => {}
            }
            let link = self.id;
            let is_heard = poll.answer.send(Ok(Heard { link, sections })).is_ok();
            if !is_heard || self.polls.stop.is_cancelled() {
                return;
            }
        }
    }

    /// The sections of a message and of those that are there already.
    async fn gather(&mut self, first: Delivery) -> Vec<Box<RawValue>> {
        let (mut sections, mut tags, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(delivery) = next {
            tags.push(delivery.tag);
            bytes += delivery.body.len();
            match decode_batch::<AsItCame>(&delivery.body, self.polls.max_message_bytes) {
                Ok(items) => sections.extend(items.into_iter().map(|AsItCame(item)| item)),
                // Its numbers are missing to the life.
                Err(error) => warn!(%error, "a message from an owner is dropped"),
            }
            next = match bytes < MAX_ANSWER_BYTES {
                true => self.subscriber.try_next(),
                false => None,
            };
        }
        self.subscriber.settler().ack(&tags).await;
        sections
    }

    /// Has every executor look at the workers now. They look by themselves as well.
    async fn say_hello(&self) {
        let id = Uuid::now_v7();
        let body = encode(id, Utc::now(), std::slice::from_ref(&self.hello));
        let hello = Outgoing::new(Topic::Hello, id, body);
        if let Err(error) = self.polls.bus.publish(vec![hello]).await {
            debug!(worker.id = %self.hello.worker, %error, "executors were not told of a worker");
        }
    }
}
