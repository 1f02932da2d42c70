//! What can keep a listener from working.

use attune_bus::BusError;

/// A listener could not start, or had to stop without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// Its options are impossible.
    #[error("{0}")]
    Options(String),
    /// The subscription could not be made; with [`BusError::Unavailable`], trying again is right.
    #[error("the completion listener cannot subscribe to completions")]
    Subscribe(#[from] BusError),
    /// The bus was closed below it.
    #[error("the bus was closed while the completion listener was running")]
    BusClosed,
}
