//! What is told of an action as it happens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happens to an action or its executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventName {
    /// Every event.
    All,
    /// An execution was accepted.
    Accepted,
    /// A submission was refused by the owner of the action.
    Rejected,
    /// An execution was given a slot.
    Started,
    /// An execution has ended, other than by making room for a later one.
    Finished,
    /// A try has ended, and there is another.
    Retried,
    /// An execution has ended because the queue was full and a later one took its place.
    Dropped,
    /// An execution has ended because a later one of its group took its place.
    Replaced,
    /// The limit of the action is another one.
    LimitChanged,
    /// Operators hold the queue of the action.
    Paused,
    /// Nobody holds it any more.
    Resumed,
    /// A bulk operation about the action is over.
    OperationFinished,
}
