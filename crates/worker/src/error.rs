//! What can keep a worker from working.

use attune_bus::BusError;
use attune_store::StoreError;

/// A worker could not start, or had to stop without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its options are impossible.
    #[error("{0}")]
    Options(String),
    /// The store refuses its lease for good.
    #[error("the store refuses the worker's lease")]
    Store(#[source] StoreError),
    /// The bus refuses its subscriptions for good.
    #[error("the bus refuses the worker's subscription to `{topic}`")]
    Bus {
        /// To what.
        topic: String,
        /// Why.
        source: BusError,
    },
    /// It was asked to stop before it was ready.
    #[error("the worker was stopped before it was ready")]
    Stopped,
    /// The bus was closed below it.
    #[error("the bus was closed while the worker was running")]
    BusClosed,
    /// A fault of its own; what it ran was killed.
    #[error("the worker failed by a fault of its own: {0}")]
    Fault(String),
}
