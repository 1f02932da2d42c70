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

/// An error and what is below it, in one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
