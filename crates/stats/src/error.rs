//! What can keep a stats persister from working.

use attune_bus::BusError;

/// A stats persister could not start, or had to stop without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// Its options are impossible.
    #[error("{0}")]
    Options(String),
    /// The subscription could not be made; with [`BusError::Unavailable`], trying again is right.
    #[error("the stats persister cannot subscribe to snapshots")]
    Subscribe(#[from] BusError),
    /// The bus was closed below it.
    #[error("the bus was closed while the stats persister was running")]
    BusClosed,
}
