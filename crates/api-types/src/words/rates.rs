//! How often executions of an action may start, and how many of them are accepted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Places;

/// At most so many starts in any so many seconds: a window that slides, so never twice as many around a
/// full minute. A start is the grant of a slot, of a retry as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// How many may start.
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub max_executions: u32,
    /// Within how many seconds.
    #[schema(minimum = 1, maximum = 2_678_400)]
    pub window_seconds: u32,
    /// For whom starts are counted: those that say the same in these places share the limit. Places as in
    /// `concurrency.group_by`; without any all executions of the action share it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Places)]
    pub by: Vec<String>,
    /// What becomes of who comes when the limit is used up; `wait` unless set.
    #[serde(default, skip_serializing_if = "OnRate::is_default")]
    pub on_limit: OnRate,
}

/// What becomes of a submission whose rate is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnRate {
    /// It is accepted, and waits.
    #[default]
    Wait,
    /// It is refused with `RATE_LIMITED`.
    Reject,
}

impl OnRate {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// At most so many acceptances in each hour, day or month; the next is refused with `QUOTA_EXCEEDED`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Of which window of the calendar, by UTC.
    pub per: Calendar,
    /// How many.
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub max: u32,
    /// For whom they are counted, as in `rate_limit`; `source` as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Places)]
    pub by: Vec<String>,
}

/// A window of the calendar, by UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Calendar {
    /// From minute 0 on.
    Hour,
    /// From midnight on.
    Day,
    /// From midnight of its first day on.
    Month,
}
