//! The owner of every partition, as far as a worker meets it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Outgoing, PublishError, Subscriber, Subscription, Topic};
use attune_core::{Epoch, OwnerId, PartitionId, WorkerId};
use attune_dispatch::{Key, Stream};
use attune_messages::v2::{Grant, GrantKey, Section, WorkerHello, WorkerReport};
use attune_messages::{decode_batch, encode};
use chrono::Utc;
use tokio::time::timeout;
use uuid::Uuid;

use crate::rig::PATIENCE;

/// An owner that keeps the rules. It says nothing by itself.
pub(crate) struct Owner {
    pub(crate) id: OwnerId,
    pub(crate) epoch: Epoch,
    bus: Arc<MemoryBus>,
    hellos: Subscriber,
    pub(crate) reports: Subscriber,
    streams: HashMap<(PartitionId, WorkerId), Stream>,
    /// What each life holds.
    holds: BTreeMap<WorkerId, BTreeSet<Key>>,
    /// The life that was heard of last.
    life: Option<WorkerId>,
}

impl Owner {
    pub(crate) async fn new(bus: &Arc<MemoryBus>) -> Self {
        let id = OwnerId::fresh();
        let listen = async |topic| {
            let prefetch = 1000;
            let subscription = Subscription { topic, prefetch };
            bus.subscribe(subscription).await.unwrap()
        };
        Self {
            id,
            epoch: Epoch(3),
            hellos: listen(Topic::Hello).await,
            reports: listen(Topic::Reports(id)).await,
            bus: Arc::clone(bus),
            streams: HashMap::new(),
            holds: BTreeMap::new(),
            life: None,
        }
    }

    /// Waits for the next hello.
    pub(crate) async fn hello(&mut self) -> WorkerId {
        let hello = timeout(PATIENCE, self.hellos.next()).await;
        let hello = hello.expect("no worker says hello").unwrap();
        self.hellos.settler().ack(&[hello.tag]).await;
        let hellos = decode_batch::<WorkerHello>(&hello.body, 1 << 20).unwrap();
        assert_eq!(hellos[0].pool, "default");
        self.life = Some(hellos[0].worker);
        hellos[0].worker
    }

    /// The life that said hello last.
    pub(crate) async fn life(&mut self) -> WorkerId {
        match self.life {
            Some(life) => life,
            None => self.hello().await,
        }
    }

    /// Waits for a life that is another one.
    pub(crate) async fn next_life(&mut self) -> WorkerId {
        let before = self.life().await;
        loop {
            let life = self.hello().await;
            if life != before {
                return life;
            }
        }
    }

    /// The next section to a life, with a sync where one is needed.
    pub(crate) fn next(&mut self, worker: WorkerId, partition: PartitionId) -> Section {
        let stream = self.streams.entry((partition, worker)).or_default();
        let needs_sync = stream.needs_sync();
        let number = stream.next::<()>(partition, self.epoch, self.id).number;
        let mut section = Section {
            worker,
            owner: self.id,
            partition,
            epoch: self.epoch,
            number,
            sync: None,
            sync_after: None,
            sync_to: None,
            settled: Vec::new(),
            cancel: Vec::new(),
            grants: Vec::new(),
            recall: Vec::new(),
        };
        if needs_sync {
            section.sync = Some(self.held(worker, partition));
        }
        section
    }

    fn held(&self, worker: WorkerId, partition: PartitionId) -> Vec<GrantKey> {
        let keys = self.holds.get(&worker).into_iter().flatten();
        let keys = keys.filter(|key| key.0.partition() == partition);
        keys.copied().map(GrantKey::from).collect()
    }

    /// A life holds this from now on.
    pub(crate) fn hold(&mut self, worker: WorkerId, key: Key) {
        self.holds.entry(worker).or_default().insert(key);
    }

    /// It is written down that a life holds this no more.
    pub(crate) fn free(&mut self, worker: WorkerId, key: Key) {
        if let Some(keys) = self.holds.get_mut(&worker) {
            keys.remove(&key);
        }
    }

    /// Something of a partition may be lost: the next section begins with a sync.
    pub(crate) fn has_lost(&mut self, worker: WorkerId, partition: PartitionId) {
        self.streams
            .entry((partition, worker))
            .or_default()
            .has_lost();
    }

    /// The section that grants these, which all belong to one partition.
    pub(crate) fn grant(&mut self, worker: WorkerId, grants: &[Grant]) -> Section {
        // What it grants is not in its sync.
        let mut section = self.next(worker, grants[0].execution_id.partition());
        for grant in grants {
            self.hold(worker, grant.key());
        }
        section.grants = grants.to_vec();
        section
    }

    /// Sends it to the life that it names.
    pub(crate) async fn send(&self, section: &Section) -> Result<(), PublishError> {
        self.send_to(section.worker, section).await
    }

    /// Sends it to a life, whatever it names.
    pub(crate) async fn send_to(
        &self,
        worker: WorkerId,
        section: &Section,
    ) -> Result<(), PublishError> {
        let id = Uuid::now_v7();
        let body = encode(id, Utc::now(), std::slice::from_ref(section));
        let message = Outgoing::new(Topic::link("default", worker), id, body);
        self.bus.publish(vec![message]).await
    }

    /// Tells a life that these are settled, if it is still there.
    pub(crate) async fn settle(&mut self, worker: WorkerId, keys: &[Key]) {
        let mut by_partition = BTreeMap::<PartitionId, Vec<Key>>::new();
        for key in keys {
            self.free(worker, *key);
            by_partition
                .entry(key.0.partition())
                .or_default()
                .push(*key);
        }
        for (partition, keys) in by_partition {
            let mut section = self.next(worker, partition);
            section.settled = keys.into_iter().map(GrantKey::from).collect();
            // A life that is over needs no answer.
            let _ = self.send(&section).await;
        }
    }
}

/// Reads what a worker has said.
pub(crate) fn reports_in(body: &[u8]) -> Vec<WorkerReport> {
    decode_batch(body, 1 << 20).unwrap()
}

/// What a report gives back.
pub(crate) fn returned(report: &WorkerReport) -> Vec<Key> {
    let returned = report.returned.iter();
    returned
        .map(|one| (one.execution_id, one.attempt))
        .collect()
}
