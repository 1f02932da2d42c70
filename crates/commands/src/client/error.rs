//! Why a command has no outcome that is known, or a bad one.

use attune_core::{PartitionId, Reject, RequestId};

/// Why a command was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The owner refused it; nothing was stored.
    #[error("the command was refused")]
    Rejected(#[source] Reject),
    /// Neither an answer nor a refusal came in time: it may have been carried out, or may still
    /// be. Repeat it under the same request id.
    #[error("the outcome of request {request_id} is not known: {reason}")]
    NotConfirmed {
        /// Under which it is to be repeated.
        request_id: RequestId,
        /// What was missing.
        reason: String,
    },
    /// No executor has ever served this partition, or it holds as many commands as it may.
    /// Nothing was stored by this call; one before it under the same id, of which nothing is known, may
    /// have. Trying again later is right.
    #[error("partition {0} takes no commands now: no executor has started, or it is full")]
    Unroutable(PartitionId),
    /// The bus does not let this process send commands to the partition, for this reason. Nothing was sent;
    /// trying again helps once somebody has given the right.
    #[error("the command may not be sent: {0}")]
    Forbidden(String),
    /// This client has as many commands without an answer as it may. Nothing was sent.
    #[error("{max_in_flight} commands wait for an answer; try again in {retry_after_seconds} s")]
    Overloaded {
        /// The bound that was reached.
        max_in_flight: usize,
        /// When trying again may help, in seconds.
        retry_after_seconds: u32,
    },
}
