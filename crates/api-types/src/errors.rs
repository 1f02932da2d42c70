//! Answers that are not a success.

use std::borrow::Cow;

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

impl From<Reject> for ErrorDetail {
    fn from(reject: Reject) -> Self {
        Self {
            code: Cow::Borrowed(reject.code.as_str()),
            message: reject.message,
            field: reject.field,
            retry_after_seconds: reject.retry_after_seconds,
            request_id: None,
        }
    }
}
