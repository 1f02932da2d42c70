//! What can go wrong with a store.

/// The reason below a [`StoreError`].
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A store could not do what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, is shutting down or gave up waiting; whether a write happened is
    /// unknown. Trying again is right: every write can be repeated.
    #[error("the store cannot be reached")]
    Unavailable(#[source] Source),
    /// It answered and would not carry the statement out now: no room on its disk, out of memory,
    /// slower than a statement may be, a lock that did not come free. Nothing was written. Trying
    /// again is right, and may help only once somebody has helped the store.
    #[error("the store refuses for now")]
    Refused(#[source] Source),
    /// Its schema is missing, older or newer than this program needs.
    #[error("the schema does not fit: {0}")]
    Schema(String),
    /// What was asked conflicts with what is stored; trying again does not help.
    #[error("{0}")]
    Conflict(String),
    /// The login lacks a right, which the source names. Nothing was written; trying again helps once
    /// somebody has given the right.
    #[error("the store refuses for want of a right")]
    Forbidden(#[source] Source),
    /// The statement itself failed; trying again does not help.
    #[error("the store refused a statement")]
    Statement(#[source] Source),
}

impl StoreError {
    /// Whether the same call may succeed later, without a change to what is asked.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Refused(_))
    }

    /// Whether a write that failed with this is certain to have changed nothing. Only of one that
    /// got no answer is that unknown.
    pub fn wrote_nothing(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }
}
