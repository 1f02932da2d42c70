//! Why something that was asked for is refused.

use serde::{Deserialize, Serialize};

use crate::ExecutionId;
use crate::policy::{Path, Quota, RateLimit};

/// A reason that programs can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RejectCode {
    /// The queue of the action holds as many waiting executions as it may.
    QueueFull,
    /// Operators drain the queue of the action: it takes nothing new.
    QueueDraining,
    /// The limit of the action, or of the group, is reached, and nobody is to wait for it.
    LimitReached,
    /// As many executions of the user wait or hold a slot as may.
    UserLimitReached,
    /// The rate of the action is used up, and its policy refuses what would have to wait for it.
    RateLimited,
    /// As many were accepted as the policy of the action allows in the hour, the day or the month.
    QuotaExceeded,
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
    /// The same request was refused before, and that is recorded under its request id.
    AlreadyRejected,
    /// A reason of a later release. What it says stands in the message.
    #[serde(other)]
    Other,
}

impl RejectCode {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "QUEUE_FULL",
            Self::QueueDraining => "QUEUE_DRAINING",
            Self::LimitReached => "LIMIT_REACHED",
            Self::UserLimitReached => "USER_LIMIT_REACHED",
            Self::RateLimited => "RATE_LIMITED",
            Self::QuotaExceeded => "QUOTA_EXCEEDED",
            Self::UnknownAction => "UNKNOWN_ACTION",
            Self::UnknownExecution => "UNKNOWN_EXECUTION",
            Self::InvalidInput => "INVALID_INPUT",
            Self::Conflict => "CONFLICT",
            Self::AlreadyEnded => "ALREADY_ENDED",
            Self::WrongPartition => "WRONG_PARTITION",
            Self::AlreadyRejected => "ALREADY_REJECTED",
            Self::Other => "OTHER",
        }
    }

    /// Whether the first release can read it: it cannot read a message with another code in it.
    pub fn is_of_first_release(self) -> bool {
        !matches!(
            self,
            Self::AlreadyRejected
                | Self::QueueDraining
                | Self::LimitReached
                | Self::UserLimitReached
                | Self::RateLimited
                | Self::QuotaExceeded
                | Self::Other
        )
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

    /// A text that begins like a sealed value, from somebody who cannot have one.
    pub fn sealed(field: String) -> Self {
        let words = format!(
            "`{field}` begins with `{}`, with which only what Attune has sealed begins; send what is meant, or \
             another text",
            crate::secret::PREFIX
        );
        Self::field(field, words)
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

    /// When trying again may help where somebody has to decide, in seconds: asking every second would be for
    /// nothing.
    pub const HELD_RETRY_AFTER: u32 = 30;

    /// The queue of an action is full. Whoever knows when a place comes free says so.
    pub fn queue_full(max_length: u32) -> Self {
        Self {
            code: RejectCode::QueueFull,
            message: format!("Queue full (max length: {max_length})"),
            field: None,
            retry_after_seconds: Some(1),
        }
    }

    /// A limit is reached, and by the policy of the action nobody waits for it.
    pub fn limit_reached(words: impl Into<String>) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(RejectCode::LimitReached, words)
        }
    }

    /// As many executions of a user wait or hold a slot as may.
    pub fn user_limit_reached(user: &str, limit: u32) -> Self {
        let words = format!(
            "{limit} executions of the user `{user}` wait or hold a slot, as many as \
             `policy.per_user_limit` ({limit}) allows"
        );
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(RejectCode::UserLimitReached, words)
        }
    }

    /// Operators drain the queue of an action.
    pub fn queue_draining(action_ref: &str) -> Self {
        let words = format!(
            "the queue of `{action_ref}` is being drained: it takes nothing new until an operator \
             resumes it (`attune queues pauses` says who drains it, and why)"
        );
        Self {
            retry_after_seconds: Some(Self::HELD_RETRY_AFTER),
            ..Self::new(RejectCode::QueueDraining, words)
        }
    }

    /// The rate of an action is used up until a time that is so many milliseconds away.
    pub fn rate_limited(rate: &RateLimit, wait: i64) -> Self {
        let whose = for_each(&rate.by);
        let words = format!(
            "the rate is used up (max {} in {} s{whose})",
            rate.max_executions, rate.window_seconds
        );
        Self {
            retry_after_seconds: Some(seconds(wait)),
            ..Self::new(RejectCode::RateLimited, words)
        }
    }

    /// A quota of an action is used up until its window ends, in so many milliseconds.
    pub fn quota_exceeded(quota: &Quota, wait: i64) -> Self {
        let whose = for_each(&quota.by);
        let words = format!(
            "the quota is used up (max {} a {}{whose})",
            quota.max, quota.per
        );
        Self {
            retry_after_seconds: Some(seconds(wait)),
            ..Self::new(RejectCode::QuotaExceeded, words)
        }
    }

    /// The same request was refused before, as this execution records.
    pub fn already_rejected(execution_id: ExecutionId) -> Self {
        let words = format!(
            "the request was refused before, and execution {execution_id} records why \
             (`attune executions show {execution_id}`): it will not run; to ask again, use a new \
             request id"
        );
        Self::new(RejectCode::AlreadyRejected, words)
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

/// For whom a limit counts, where it does not count all together.
fn for_each(by: &[Path]) -> String {
    let by: Vec<String> = by.iter().map(ToString::to_string).collect();
    match by.is_empty() {
        true => String::new(),
        false => format!(" for each {}", by.join(", ")),
    }
}

/// Whole seconds, no fewer than so many milliseconds, and at least one.
fn seconds(millis: i64) -> u32 {
    let seconds = millis.max(1).saturating_add(999) / 1000;
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_a_later_release_is_read() {
        let text = r#"{"code":"OF_TOMORROW","message":"no"}"#;
        let reject: Reject = serde_json::from_str(text).unwrap();
        assert_eq!(
            (reject.code, reject.message.as_str()),
            (RejectCode::Other, "no")
        );
        let known: RejectCode = serde_json::from_str(r#""ALREADY_REJECTED""#).unwrap();
        assert_eq!(known, RejectCode::AlreadyRejected);
    }
}
