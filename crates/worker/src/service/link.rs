//! What owners tell a life: its link, and what follows from a section.

use std::sync::Arc;

use attune_bus::{Bus, Delivery, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{ActionId, WorkerId};
use attune_dispatch::{Granted, Key, Section};
use attune_messages::v2::{self, Grant, GrantKey, WorkerHello};
use attune_messages::{DecodeError, decode_batch, encode};
use attune_runtime::{Backoff, LogPace, error_chain};
use chrono::Utc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::wait::Heard;
use super::{Phase, Service};
use crate::error::WorkerError;
use crate::lease::{Leases, Life, Registered};
use crate::runs::not_run;
use crate::worker::subscribe;

/// How many messages from owners may be delivered and not yet acknowledged, which happens as soon as
/// they are read.
const PREFETCH: u16 = 64;
/// How many grants are written down together before they begin, at most.
const TOGETHER: usize = 64;

/// A grant, as it is held until it is settled.
#[derive(Debug)]
pub(crate) struct Held(pub(super) Grant);

impl Granted for Held {
    fn key(&self) -> Key {
        self.0.key()
    }

    fn action_id(&self) -> ActionId {
        self.0.action_id
    }

    fn slots(&self) -> Option<u32> {
        self.0.slots
    }
}

/// Where one life hears from owners.
pub(crate) struct Link {
    worker: WorkerId,
    subscriber: Subscriber,
    renewals: watch::Receiver<u64>,
}

impl Link {
    /// Subscribes a life; tries for as long as the bus cannot be reached.
    ///
    /// # Errors
    /// When the bus refuses for good, or `shutdown` came first.
    async fn open(
        bus: &Arc<dyn Bus>,
        (pool, worker): (&str, WorkerId),
        shutdown: &CancellationToken,
    ) -> Result<Self, WorkerError> {
        let subscription = Subscription {
            topic: Topic::link(pool, worker),
            prefetch: PREFETCH,
        };
        let subscriber = subscribe(bus, subscription, shutdown).await?;
        Ok(Self {
            worker,
            renewals: subscriber.renewals(),
            subscriber,
        })
    }

    /// The next thing that happens on it. Cancel safe.
    pub(super) async fn hear(&mut self) -> Heard {
        // It rises before anything of the new connection is delivered.
        tokio::select! {
            biased;
            Ok(()) = self.renewals.changed() => Heard::Renewed,
            delivery = self.subscriber.next() => Heard::Message(delivery),
        }
    }
}

/// A fresh life with its link, of which owners are told; `None` when `shutdown` came first. The link comes
/// first: whoever sees the lease may grant something at once, and what nobody receives comes back. It is closed
/// while nobody knows whether there is a lease: what would wait in it is lost with a lease that ends so, and
/// counts as begun.
///
/// # Errors
/// When the store or the bus refuses for good.
pub(crate) async fn begin(
    leases: &Arc<Leases>,
    bus: &Arc<dyn Bus>,
    pool: &str,
    shutdown: &CancellationToken,
) -> Result<Option<(Arc<Life>, Link)>, WorkerError> {
    loop {
        let worker = WorkerId::fresh();
        let link = match Link::open(bus, (pool, worker), shutdown).await {
            Ok(link) => link,
            Err(WorkerError::Stopped) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut link = Some(link);
        let registered = leases.register(worker, shutdown, || link = None).await;
        match registered.map_err(WorkerError::Store)? {
            Registered::Life(life) => {
                let opened = match link {
                    Some(link) => Ok(link),
                    None => Link::open(bus, (pool, worker), shutdown).await,
                };
                let link = match opened {
                    Ok(link) => link,
                    Err(error) => {
                        leases.retire(&life, Vec::new()).await;
                        return match error {
                            WorkerError::Stopped => Ok(None),
                            error => Err(error),
                        };
                    }
                };
                say_hello(bus, worker, pool);
                return Ok(Some((life, link)));
            }
            Registered::Over => {}
            Registered::Stopped => return Ok(None),
        }
    }
}

/// Begins as [`begin`], and tries again whatever the store says: a worker that has worked before does not
/// give up.
///
/// # Errors
/// When the bus refuses for good.
pub(super) async fn begin_anew(
    leases: Arc<Leases>,
    bus: Arc<dyn Bus>,
    pool: String,
    shutdown: CancellationToken,
) -> Result<Option<(Arc<Life>, Link)>, WorkerError> {
    let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
    loop {
        match begin(&leases, &bus, &pool, &shutdown).await {
            Err(WorkerError::Store(error)) => {
                if log.is_due() {
                    let error = error_chain(&error);
                    tracing::error!(error, "the store refuses the worker's lease");
                }
                if backoff.wait(&shutdown).await.is_err() {
                    return Ok(None);
                }
            }
            begun => return begun,
        }
    }
}

/// Has every executor look at the workers now. Nobody waits for it: they look by themselves as
/// well.
pub(crate) fn say_hello(bus: &Arc<dyn Bus>, worker: WorkerId, pool: &str) {
    let id = Uuid::now_v7();
    let hello = WorkerHello {
        worker,
        pool: pool.to_owned(),
    };
    let message = Outgoing::new(Topic::Hello, id, encode(id, Utc::now(), &[hello]));
    let bus = Arc::clone(bus);
    tokio::spawn(async move {
        if let Err(error) = bus.publish(vec![message]).await {
            tracing::debug!(worker.id = %worker, %error, "executors were not told of a worker");
        }
    });
}

fn section_of(section: v2::Section) -> Section<Held> {
    let pairs = |keys: Vec<GrantKey>| keys.into_iter().map(GrantKey::pair).collect();
    Section {
        partition: section.partition,
        epoch: section.epoch,
        number: section.number,
        owner: section.owner,
        sync: section.sync.map(pairs),
        sync_after: section.sync_after,
        sync_to: section.sync_to,
        settled: pairs(section.settled),
        cancel: pairs(section.cancel),
        recall: section.recall,
        grants: section.grants.into_iter().map(Held).collect(),
    }
}

impl Service {
    /// Takes a message from owners, and those that are there already.
    pub(super) fn received(&mut self, delivery: Option<Delivery>) {
        let Some(delivery) = delivery else {
            return self.bus_is_closed();
        };
        let mut tags = Vec::new();
        let mut next = Some(delivery);
        while let Some(delivery) = next {
            tags.push(delivery.tag);
            self.read(&delivery);
            let link = self.link.as_mut();
            next = link.and_then(|link| link.subscriber.try_next());
        }
        if let Some(link) = &self.link {
            // In a task of its own: a slow broker must not keep the loop from killing.
            let settler = link.subscriber.settler();
            tokio::spawn(async move { settler.ack(&tags).await });
        }
    }

    fn read(&mut self, delivery: &Delivery) {
        let sections = decode_batch::<v2::Section>(&delivery.body, self.options.max_message_bytes);
        match sections {
            Ok(sections) => {
                for section in sections {
                    self.take(section);
                }
            }
            Err(error) => self.cannot_read(&error),
        }
    }

    /// Nothing goes to the dead letters: what was in it is repeated by its owner, as everything
    /// that is lost on a link.
    fn cannot_read(&mut self, error: &DecodeError) {
        if !error.is_newer() {
            self.counters.unreadable.add(1);
        }
        if self.pending.unread_log.is_due() {
            let times = self.pending.unread_log.tries();
            tracing::warn!(%error, times, "a message from an owner is dropped");
        }
    }

    fn take(&mut self, section: v2::Section) {
        let link = self.link.as_ref();
        if link.is_none_or(|link| link.worker != section.worker) {
            return;
        }
        let now = self.now();
        let taken = self.entries.take(now, section_of(section));
        self.pending.has_changed = true;
        if !taken.taken {
            self.counters.passed_over.add(1);
        }
        for key in &taken.kill {
            self.runs.kill(key);
        }
        for key in &taken.cancel {
            self.runs.cancel(key);
        }
        if let Some(life) = self.life.as_ref().filter(|life| !life.is_over()) {
            for Held(grant) in &taken.cancelled {
                self.outbox.push(not_run(grant, life));
            }
        }
        self.outbox.settle(&taken.settled);
        if !taken.again.is_empty() {
            let count = self.outbox.send_again(&taken.again);
            self.counters.retold.add(count);
        }
    }

    /// Begins what waits, while there are free slots.
    pub(super) fn begin(&mut self) {
        let Some(life) = self.life.clone() else {
            return;
        };
        let serving = matches!(self.phase, Phase::Serving) && !self.stuck.is_stuck();
        let mut grants = Vec::new();
        while serving && self.outbox.has_room() {
            let now = self.now();
            // Runs of a life before may still be on their way out.
            let room = self.options.slots.saturating_sub(self.runs.len());
            let next = std::iter::from_fn(|| self.entries.begin_next(now));
            grants.extend(next.take(room.min(TOGETHER)).map(|Held(grant)| grant));
            if grants.is_empty() {
                return;
            }
            self.pending.has_changed = true;
            self.note_begun(&life, &grants);
            for grant in grants.drain(..) {
                // Looked at right before each start: nothing begins under a lease that may be over. Then
                // the others are forgotten with everything else that the life held.
                if life.is_over() {
                    return;
                }
                self.counters.runs.add(1);
                self.runs.record_taken(grant.key(), life.worker());
                if let Some(finished) = self.runs.start(grant, &life) {
                    self.finished(finished);
                }
            }
        }
    }

    /// Writes down that these begin. Where that cannot be done, nobody shall believe what is written
    /// there already.
    fn note_begun(&mut self, life: &Life, grants: &[Grant]) {
        let entries = &self.entries;
        let Some(map) = &mut self.begun else { return };
        let keys: Vec<Key> = grants.iter().map(Grant::key).collect();
        if let Err(error) = map.begin(&keys, |key| entries.holds(key)) {
            let path = map.path().display();
            tracing::warn!(
                %path,
                %error,
                "what begins is not written down; should this worker be killed, its slots come \
                 back with the end of its lease"
            );
            self.guard.begun(life.worker(), None);
            self.begun = None;
        }
    }

    /// What was on its way may have been lost: owners are asked, and told that messages arrive
    /// again.
    pub(super) fn link_is_new(&mut self) {
        self.entries.link_is_new();
        self.counters.retold.add(self.outbox.link_is_new());
        if let Some(link) = &self.link {
            say_hello(&self.bus, link.worker, &self.options.pool);
        }
    }
}
