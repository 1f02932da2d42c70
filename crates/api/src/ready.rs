//! Whether the server can do its work right now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::Bus;
use attune_store::{Lease, PartitionStore, Store};

/// How long one component may take to say how it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Something without which the server is not ready.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Its name in the answer of `/readyz`.
    fn name(&self) -> &'static str;

    /// Looks at it.
    ///
    /// # Errors
    /// Words that say what is missing.
    async fn probe(&self) -> Result<(), String>;
}

/// The store can be reached and its schema fits.
pub struct StoreProbe(Arc<dyn Store>);

impl StoreProbe {
    /// A probe of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Probe for StoreProbe {
    fn name(&self) -> &'static str {
        "store"
    }

    async fn probe(&self) -> Result<(), String> {
        self.0.check().await.map_err(|error| error.to_string())
    }
}

/// The bus can be used.
pub struct BusProbe(Arc<dyn Bus>);

impl BusProbe {
    /// A probe of this bus.
    pub fn new(bus: Arc<dyn Bus>) -> Self {
        Self(bus)
    }
}

#[async_trait]
impl Probe for BusProbe {
    fn name(&self) -> &'static str {
        "bus"
    }

    async fn probe(&self) -> Result<(), String> {
        self.0.check().await.map_err(|error| error.to_string())
    }
}

/// Every partition has a live owner, without whom its commands are not answered.
pub struct PartitionsProbe {
    store: Arc<dyn PartitionStore>,
    partitions: u16,
}

impl PartitionsProbe {
    /// A probe of the leases of a cluster with so many partitions.
    pub fn new(store: Arc<dyn PartitionStore>, partitions: u16) -> Self {
        Self { store, partitions }
    }
}

#[async_trait]
impl Probe for PartitionsProbe {
    fn name(&self) -> &'static str {
        "partitions"
    }

    async fn probe(&self) -> Result<(), String> {
        match self.store.leases().await {
            Ok(leases) => owned(&leases, self.partitions),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether each of `partitions` partitions has a live owner.
fn owned(leases: &[Lease], partitions: u16) -> Result<(), String> {
    let beyond = leases
        .iter()
        .filter(|lease| lease.partition.0 >= partitions)
        .count();
    if beyond > 0 {
        return Err(format!(
            "the store has {} partitions and this server's settings say {partitions}; make \
             cluster.partitions the same",
            leases.len()
        ));
    }
    let live: BTreeSet<u16> = leases
        .iter()
        .filter(|lease| lease.owner.is_some() && !lease.remaining.is_zero())
        .map(|lease| lease.partition.0)
        .collect();
    let missing: Vec<String> = (0..partitions)
        .filter(|partition| !live.contains(partition))
        .map(|partition| partition.to_string())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} of {partitions} partitions have no live owner: {}",
        missing.len(),
        missing.join(", ")
    ))
}

/// Asks one component, for a bounded time. Dropping the question is fine: stores and buses do
/// their work in tasks of their own.
pub(crate) async fn ask(probe: &dyn Probe) -> Result<(), String> {
    tokio::time::timeout(PROBE_TIMEOUT, probe.probe())
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())))
}

#[cfg(test)]
mod tests {
    use attune_core::{Epoch, OwnerId, PartitionId};

    use super::*;

    fn lease(partition: u16, live: bool) -> Lease {
        Lease {
            partition: PartitionId(partition),
            owner: live.then(OwnerId::fresh),
            owner_name: None,
            epoch: Epoch(1),
            remaining: Duration::from_secs(if live { 10 } else { 0 }),
            free_for: Duration::ZERO,
            wanted_owner: None,
            holder: None,
            renewals: 0,
            ttl: Duration::ZERO,
            trouble: None,
        }
    }

    #[test]
    fn every_partition_needs_a_live_owner() {
        assert_eq!(owned(&[lease(0, true), lease(1, true)], 2), Ok(()));
        let problem = owned(&[lease(0, true), lease(1, false), lease(3, true)], 4).unwrap_err();
        assert_eq!(problem, "2 of 4 partitions have no live owner: 1, 2");
        assert!(owned(&[], 1).is_err());
    }

    #[test]
    fn a_different_number_of_partitions_is_named() {
        let problem = owned(&[lease(0, true), lease(1, true)], 1).unwrap_err();
        assert!(problem.contains("cluster.partitions"), "{problem}");
    }
}
