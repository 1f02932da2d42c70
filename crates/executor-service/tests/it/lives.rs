//! Lives of workers, as far as an executor meets them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::{Bus as _, MemoryBus, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{ActionId, Status, WorkerId};
use attune_dispatch::{Entries, Granted, Key, Millis, Report, Section};
use attune_messages::v1::{Completion, SlotRelease};
use attune_messages::v2::{self, Grant, WorkerHello, WorkerReport};
use attune_messages::{decode_batch, encode};
use attune_store::{WorkerLease, WorkerStore as _};
use attune_store_sqlite::SqliteStore;
use chrono::Utc;
use uuid::Uuid;

/// How often it looks at what it has to report.
const EVERY: Duration = Duration::from_millis(50);

/// What it was granted.
struct Given(Grant);

impl Granted for Given {
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

/// A life that keeps the rules, and of which a test says what it runs. Its lease is renewed while something is
/// waited for.
pub(crate) struct Life {
    lease: WorkerLease,
    store: Arc<SqliteStore>,
    bus: MemoryBus,
    link: Subscriber,
    entries: Entries<Given>,
    /// The ends that no owner has settled.
    unsettled: BTreeMap<Key, Completion>,
    /// What has begun and no test has seen.
    begun: VecDeque<Grant>,
    since: Instant,
    renewed: Instant,
}

impl Life {
    /// It listens, then it registers, then it says so.
    pub(crate) async fn begin(
        store: &Arc<SqliteStore>,
        bus: &MemoryBus,
        pool: &str,
        slots: u32,
        ttl: Duration,
    ) -> Self {
        let lease = lease_of(pool, slots, ttl);
        let link = listen(bus, &lease).await;
        store.renew_worker(&lease).await.unwrap();
        Self::greet(lease, store, bus, link).await
    }

    /// It listens, and says so, under a lease that it has already.
    pub(crate) async fn begin_late(
        lease: WorkerLease,
        store: &Arc<SqliteStore>,
        bus: &MemoryBus,
    ) -> Self {
        let link = listen(bus, &lease).await;
        Self::greet(lease, store, bus, link).await
    }

    async fn greet(
        lease: WorkerLease,
        store: &Arc<SqliteStore>,
        bus: &MemoryBus,
        link: Subscriber,
    ) -> Self {
        let (worker, pool) = (lease.worker, lease.pool.clone());
        publish(bus, Topic::Hello, &[WorkerHello { worker, pool }]).await;
        Self {
            entries: Entries::new(usize::try_from(lease.slots).unwrap()),
            lease,
            store: Arc::clone(store),
            bus: bus.clone(),
            link,
            unsettled: BTreeMap::new(),
            begun: VecDeque::new(),
            since: Instant::now(),
            renewed: Instant::now(),
        }
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.since.elapsed().as_millis()).unwrap()
    }

    /// Waits until something begins. It is safe to be cancelled.
    pub(crate) async fn next(&mut self) -> Grant {
        loop {
            if let Some(grant) = self.begun.pop_front() {
                return grant;
            }
            self.go_on().await;
        }
    }

    /// Its lease begins anew.
    pub(crate) async fn renew(&mut self) {
        self.renewed = Instant::now();
        self.store.renew_worker(&self.lease).await.unwrap();
    }

    /// Takes what comes, or reports what is due.
    async fn go_on(&mut self) {
        if self.renewed.elapsed() >= self.lease.ttl / 4 {
            self.renew().await;
        }
        let delivery = tokio::time::timeout(EVERY, self.link.next()).await;
        if let Ok(delivery) = delivery {
            let delivery = delivery.expect("the bus is there");
            let sections: Vec<v2::Section> = decode_batch(&delivery.body, 1 << 20).unwrap();
            self.link.settler().ack(&[delivery.tag]).await;
            for section in sections {
                self.take(section).await;
            }
        }
        let reports = self.entries.reports(self.now());
        for report in reports {
            self.report(report).await;
        }
    }

    async fn take(&mut self, section: v2::Section) {
        assert_eq!(section.worker, self.lease.worker, "it is for this life");
        let now = self.now();
        let taken = self.entries.take(now, inward(section));
        for key in taken.settled {
            self.unsettled.remove(&key);
        }
        for key in taken.again {
            self.say(self.unsettled[&key].clone()).await;
        }
        while let Some(Given(grant)) = self.entries.begin_next(now) {
            self.begun.push_back(grant);
        }
    }

    async fn report(&self, report: Report) {
        let topic = Topic::Reports(report.owner);
        let returned = report.returned.into_iter();
        let returned = returned.map(|it| v2::ReturnedGrant {
            execution_id: it.key.0,
            attempt: it.key.1,
            why: it.why.words.to_owned(),
            lacks_key: None,
        });
        let started = report.started.into_iter();
        let started = started.map(|it| v2::StartedGrant {
            execution_id: it.key.0,
            attempt: it.key.1,
            age_ms: u64::try_from(it.age).unwrap(),
        });
        let said = WorkerReport {
            worker: self.lease.worker,
            elsewhere: report.elsewhere,
            returned: returned.collect(),
            started: started.collect(),
            resync: report.resync,
        };
        let id = Uuid::now_v7();
        let message = Outgoing::new(topic, id, encode(id, Utc::now(), &[said]));
        // Whoever is gone has a follower, who compares.
        self.bus.publish(vec![message]).await.ok();
    }

    /// A run has ended well.
    pub(crate) async fn end(&mut self, grant: &Grant) {
        let completion = completion(self.lease.worker, grant);
        self.entries.end(grant.key());
        self.unsettled.insert(grant.key(), completion.clone());
        self.say(completion).await;
    }

    async fn say(&self, completion: Completion) {
        let topic = Topic::Control(completion.execution_id.partition());
        publish(&self.bus, topic, &[SlotRelease(completion)]).await;
    }
}

/// The lease of a fresh life.
pub(crate) fn lease_of(pool: &str, slots: u32, ttl: Duration) -> WorkerLease {
    WorkerLease {
        worker: WorkerId::fresh(),
        name: "worker".to_owned(),
        pool: pool.to_owned(),
        slots,
        draining: false,
        ttl,
        broker_user: None,
        principal: None,
    }
}

async fn listen(bus: &MemoryBus, lease: &WorkerLease) -> Subscriber {
    let subscription = Subscription {
        topic: Topic::link(&*lease.pool, lease.worker),
        prefetch: 100,
    };
    bus.subscribe(subscription).await.unwrap()
}

fn completion(worker: WorkerId, grant: &Grant) -> Completion {
    Completion {
        execution_id: grant.execution_id,
        attempt: grant.attempt,
        action_id: grant.action_id,
        status: Status::Succeeded,
        result: None,
        error: None,
        code: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        partition: None,
        worker: Some(worker),
        broker_user: None,
        started_at: None,
        finished_at: None,
    }
}

fn inward(section: v2::Section) -> Section<Given> {
    let keys = |keys: Vec<v2::GrantKey>| keys.into_iter().map(v2::GrantKey::pair).collect();
    Section {
        partition: section.partition,
        epoch: section.epoch,
        number: section.number,
        owner: section.owner,
        sync: section.sync.map(keys),
        sync_after: section.sync_after,
        sync_to: section.sync_to,
        settled: keys(section.settled),
        grants: section.grants.into_iter().map(Given).collect(),
        cancel: keys(section.cancel),
        recall: section.recall,
    }
}

pub(crate) async fn publish<M: attune_messages::Message>(
    bus: &MemoryBus,
    topic: Topic,
    items: &[M],
) {
    let id = Uuid::now_v7();
    let message = Outgoing::new(topic, id, encode(id, Utc::now(), items));
    bus.publish(vec![message]).await.unwrap();
}
