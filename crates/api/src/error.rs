//! Refusals and how they are told.

use std::borrow::Cow;

use attune_commands::ClientError;
use attune_core::{Reject, RejectCode, RequestId};
use attune_store::StoreError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tracing::{error, warn};

use attune_api_types::{ErrorBody, ErrorDetail};

/// When a client is told to try again after something that mends itself, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The code of what may have been done.
const UNKNOWN: &str = "OUTCOME_UNKNOWN";

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// Its body.
    pub detail: ErrorDetail,
    /// Whether the connection ends with it, because the rest of the request is not read.
    pub closes: bool,
}

impl ApiError {
    /// An error with a code and words.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            detail: ErrorDetail::new(code, &message.into()),
            closes: false,
        }
    }

    /// The same with another code.
    #[must_use]
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.detail.code = code.into();
        self
    }

    /// The connection ends with this answer.
    #[must_use]
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// One field of the input is wrong.
    pub(crate) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Reject::field(field, message).into()
    }

    /// What a path is about is no text.
    pub(crate) fn unreadable_target() -> Self {
        let words = "`target` cannot be read: escape the bytes of its UTF-8, such as %C3%A4 for ä";
        Self::field("target", words)
    }

    /// What is wrong with one of the `documents` of a list, with its place.
    pub(crate) fn in_document(self, number: usize) -> Self {
        self.in_item("documents", number)
    }

    /// What is wrong with an item of a list of the input, with its place.
    pub(crate) fn in_item(mut self, list: &str, number: usize) -> Self {
        let place = format!("{list}.{number}");
        self.detail.field = Some(match self.detail.field {
            Some(field) if !field.is_empty() => format!("{place}.{field}"),
            _ => place,
        });
        self
    }

    /// Trying again may help.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        error.detail.retry_after_seconds = Some(RETRY_AFTER_SECONDS);
        error
    }

    /// A fault of the server; its cause belongs into the log and not into the answer.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL",
            "the server failed on this request; its log says why",
        )
    }

    /// No such resource, where the path names the action.
    pub(crate) fn no_action(action_ref: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            detail: Reject::unknown_action(action_ref).into(),
            closes: false,
        }
    }

    /// No such resource, where the path names the execution.
    pub(crate) fn no_execution(id: attune_core::ExecutionId) -> Self {
        let message = format!("there is no execution {id}");
        Reject::new(RejectCode::UnknownExecution, message).into()
    }

    /// The error of a submission, with the id by which it can be repeated.
    #[must_use]
    pub(crate) fn of_request(mut self, request_id: Option<RequestId>) -> Self {
        if self.detail.code == UNKNOWN
            && let Some(id) = request_id
        {
            // Only a submission has such an id; all else may be repeated as it is.
            let message = &mut self.detail.message;
            message.push_str(&format!(" under the same request id, {id}"));
        }
        self.detail.request_id = request_id;
        self
    }
}

/// The code of an answer that is an error, for who counts answers.
#[derive(Debug, Clone)]
pub(crate) struct ErrorCode(pub(crate) Cow<'static, str>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (retry_after, closes) = (self.detail.retry_after_seconds, self.closes);
        let code = ErrorCode(self.detail.code.clone());
        let mut response = (self.status, Json(ErrorBody { error: self.detail })).into_response();
        response.extensions_mut().insert(code);
        if let Some(seconds) = retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if closes {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }
}

impl From<Reject> for ApiError {
    fn from(reject: Reject) -> Self {
        let status = match reject.code {
            RejectCode::QueueFull
            | RejectCode::LimitReached
            | RejectCode::UserLimitReached
            | RejectCode::RateLimited
            | RejectCode::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            RejectCode::QueueDraining => StatusCode::SERVICE_UNAVAILABLE,
            RejectCode::UnknownAction | RejectCode::InvalidInput => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            RejectCode::UnknownExecution => StatusCode::NOT_FOUND,
            RejectCode::Conflict
            | RejectCode::AlreadyEnded
            | RejectCode::AlreadyRejected
            | RejectCode::Other => StatusCode::CONFLICT,
            // The client did nothing wrong: this server and the cluster disagree on the number of
            // partitions, which only the operator can mend.
            RejectCode::WrongPartition => {
                error!(
                    error.message = %reject.message,
                    "an owner refused a command as not its own; is cluster.partitions the same everywhere?"
                );
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let mut detail = ErrorDetail::from(reject);
        if matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            detail
                .retry_after_seconds
                .get_or_insert(RETRY_AFTER_SECONDS);
        }
        Self {
            status,
            detail,
            closes: false,
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable(source) => {
                warn!(error.source = %source, "a request failed: the store cannot be reached");
                Self::unavailable("STORE_UNAVAILABLE", "the store cannot be reached")
            }
            StoreError::Refused(source) => {
                error!(error.source = %source, "a request failed: the store refuses for now");
                Self::unavailable("STORE_UNAVAILABLE", "the store refuses for now")
            }
            StoreError::Forbidden(source) => {
                error!(
                    error.source = %source,
                    "a request failed: the login of the store lacks a right; `attune migrate --grants` \
                     gives each part what it needs"
                );
                let words = "the store refuses for want of a right, which the operator of this server has \
                             to give; its log names it";
                Self::unavailable("STORE_UNAVAILABLE", words)
            }
            StoreError::Schema(problem) => {
                error!(error.message = %problem, "a request failed: the store's schema does not fit");
                // It names the row, where it is about one: nothing else says what is to be mended.
                let problem: String = problem.to_string().chars().take(300).collect();
                let words = format!("the store is not ready for this server: {problem}");
                Self::unavailable("STORE_UNAVAILABLE", words)
            }
            StoreError::Conflict(message) => {
                Self::new(StatusCode::CONFLICT, "CONFLICT", message.clone())
            }
            StoreError::Statement(source) => {
                error!(error.source = %source, "a request failed: the store refused a statement");
                Self::internal()
            }
        }
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Rejected(reject) => reject.into(),
            ClientError::NotConfirmed { reason, .. } => Self::unavailable(
                UNKNOWN,
                format!(
                    "no answer in time ({reason}), so whether it was done is unknown; see whether \
                     an executor owns the partition (`attune cluster`, /readyz), and repeat it"
                ),
            ),
            ClientError::Unroutable(partition) => Self::unavailable(
                "NO_OWNER",
                format!(
                    "partition {partition} takes no commands now: no executor has started yet \
                     (`attune cluster`, /readyz), or it is full"
                ),
            ),
            // What this server may do on the broker concerns its operator, who finds it in the log.
            ClientError::Forbidden(why) => {
                error!(reason = %why, "a request failed: the broker refuses its command");
                Self::unavailable(
                    "OVERLOADED",
                    "the broker does not let this server send the command; nothing was done, and its \
                     operator finds why in its log",
                )
            }
            ClientError::Overloaded {
                retry_after_seconds,
                ..
            } => {
                let mut error = Self::unavailable(
                    "OVERLOADED",
                    "too many commands wait for an answer; nothing was done",
                );
                error.detail.retry_after_seconds = Some(retry_after_seconds);
                error
            }
        }
    }
}
