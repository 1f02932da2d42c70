//! Answers that are not a success.

use std::borrow::Cow;

use attune_core::foreign::cut;
use attune_core::{Reject, RequestId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// What programs act on, such as `QUEUE_FULL`.
    #[schema(value_type = String)]
    pub code: Cow<'static, str>,
    /// What is wrong and what would be right, for people.
    pub message: String,
    /// The field that is wrong, as a path like `parameters.message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// When trying again may help, in seconds; also in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// The request id of a submission, by which it can be repeated safely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub request_id: Option<RequestId>,
}

/// How many bytes of JSON an error may have: its words, and the name of a field. Both may quote what
/// was sent.
const MOST_WORDS: usize = 1_200;
const MOST_NAME: usize = 300;

impl ErrorDetail {
    /// A code and words, which are cut where they are too long.
    #[must_use]
    pub fn new(code: &'static str, message: &str) -> Self {
        Self {
            code: Cow::Borrowed(code),
            message: cut(message, MOST_WORDS).into_owned(),
            field: None,
            retry_after_seconds: None,
            request_id: None,
        }
    }
}

impl From<Reject> for ErrorDetail {
    fn from(reject: Reject) -> Self {
        let field = reject.field.as_deref();
        Self {
            field: field.map(|field| cut(field, MOST_NAME).into_owned()),
            retry_after_seconds: reject.retry_after_seconds,
            ..Self::new(reject.code.as_str(), &reject.message)
        }
    }
}
