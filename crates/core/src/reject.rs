//! Why something that was asked for is refused.

use serde::{Deserialize, Serialize};

/// A reason that programs can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RejectCode {
    /// The queue of the action holds as many waiting executions as it may.
    QueueFull,
    /// No action has this ref.
    UnknownAction,
    /// No execution has this id.
    UnknownExecution,
    /// The input is not what it should be; the message names the field.
    InvalidInput,
    /// The request id was used before with a different body.
    Conflict,
    /// The execution has ended already.
    AlreadyEnded,
    /// The message reached a partition that the action does not belong to.
    WrongPartition,
}

impl RejectCode {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "QUEUE_FULL",
            Self::UnknownAction => "UNKNOWN_ACTION",
            Self::UnknownExecution => "UNKNOWN_EXECUTION",
            Self::InvalidInput => "INVALID_INPUT",
            Self::Conflict => "CONFLICT",
            Self::AlreadyEnded => "ALREADY_ENDED",
            Self::WrongPartition => "WRONG_PARTITION",
        }
    }
}

/// A refusal: a code for programs, words for people, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Reject {
    /// What programs act on.
    pub code: RejectCode,
    /// What is wrong and what would be right.
    pub message: String,
    /// The field that is wrong, as a path like `parameters.message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// When trying again may help, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

impl Reject {
    /// A refusal without a field.
    pub fn new(code: RejectCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: None,
            retry_after_seconds: None,
        }
    }

    /// A refusal of one field of the input.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: RejectCode::InvalidInput,
            message: message.into(),
            field: Some(field.into()),
            retry_after_seconds: None,
        }
    }

    /// The queue of an action is full.
    pub fn queue_full(max_length: u32) -> Self {
        Self {
            code: RejectCode::QueueFull,
            message: format!("Queue full (max length: {max_length})"),
            field: None,
            retry_after_seconds: Some(1),
        }
    }

    /// No action has this ref.
    pub fn unknown_action(action_ref: &str) -> Self {
        Self {
            field: Some("action_ref".to_owned()),
            ..Self::new(
                RejectCode::UnknownAction,
                format!("there is no action `{action_ref}`"),
            )
        }
    }
}
