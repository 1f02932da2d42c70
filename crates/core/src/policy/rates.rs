//! How often executions may start, and how many are accepted in an hour, a day or a month.

use std::fmt;

use chrono::{DateTime, Datelike as _, Days, Months, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::demand::{GroupKey, absent_value, key_of};
use super::path::{Path, Words, read_paths};
use super::places::{check_key, check_stored};
use crate::action::ActionSpec;
use crate::reject::Reject;

/// At most so many starts in any so many seconds. A start is a grant of a slot, of a retry as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// How many may start.
    pub max_executions: u32,
    /// Within how many seconds.
    pub window_seconds: u32,
    /// For whom starts are counted: those with the same values share the limit; without any, all
    /// executions of the action do.
    #[serde(
        default,
        deserialize_with = "read_paths",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub by: Vec<Path>,
    /// What becomes of who comes when the limit is used up.
    #[serde(default, skip_serializing_if = "OnRate::is_default")]
    pub on_limit: OnRate,
}

/// What becomes of a submission whose rate is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRate {
    /// It is accepted, and waits.
    #[default]
    Wait,
    /// It is refused.
    Reject,
}

impl OnRate {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A calendar window, by UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Calendar {
    /// From minute 0 on.
    Hour,
    /// From midnight on.
    Day,
    /// From midnight of its first day on.
    Month,
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        })
    }
}

impl Calendar {
    /// The window of a time, both in milliseconds since 1970: its beginning, and the end, which is the
    /// beginning of the next. Of a time that no calendar has, it is one without a length.
    #[must_use]
    pub fn window(self, at: i64) -> (i64, i64) {
        self.of(at).unwrap_or((at, at))
    }

    fn of(self, at: i64) -> Option<(i64, i64)> {
        let at = DateTime::<Utc>::from_timestamp_millis(at)?;
        let midnight = |date: NaiveDate| date.and_time(NaiveTime::MIN).and_utc();
        let (from, to) = match self {
            Self::Hour => {
                let hour = TimeDelta::milliseconds(at.timestamp_millis().rem_euclid(3_600_000));
                let from = at - hour;
                (from, from.checked_add_signed(TimeDelta::hours(1))?)
            }
            Self::Day => {
                let day = at.date_naive();
                (midnight(day), midnight(day.checked_add_days(Days::new(1))?))
            }
            Self::Month => {
                let first = at.date_naive().with_day(1)?;
                let next = first.checked_add_months(Months::new(1))?;
                (midnight(first), midnight(next))
            }
        };
        Some((from.timestamp_millis(), to.timestamp_millis()))
    }
}

/// At most so many acceptances in each hour, day or month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Of which window.
    pub per: Calendar,
    /// How many.
    pub max: u32,
    /// For whom they are counted, as [`RateLimit::by`].
    #[serde(
        default,
        deserialize_with = "read_paths",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub by: Vec<Path>,
}

/// How long a window or an interval may be, in seconds: a month.
pub(crate) const MAX_WINDOW_SECONDS: u32 = 31 * 86_400;
/// By how many values starts or acceptances can be counted.
const MAX_BY: usize = 4;
/// How many quotas an action can have.
const MAX_QUOTAS: usize = 8;

impl RateLimit {
    pub(super) fn check(&self, parameters: Option<&Value>) -> Result<(), Reject> {
        check_range(
            "policy.rate_limit.max_executions",
            self.max_executions,
            super::MAX_COUNT,
        )?;
        check_range(
            "policy.rate_limit.window_seconds",
            self.window_seconds,
            MAX_WINDOW_SECONDS,
        )?;
        let field = "policy.rate_limit.by";
        check_by(field, &self.by, parameters)?;
        self.by
            .iter()
            .try_for_each(|path| check_stored(field, path))
    }
}

/// Checks the shortest time between two starts, in milliseconds.
pub(super) fn check_interval(interval: Option<u32>) -> Result<(), Reject> {
    let Some(interval) = interval else {
        return Ok(());
    };
    check_range(
        "policy.min_interval_ms",
        interval,
        MAX_WINDOW_SECONDS * 1000,
    )
}

/// Checks the quotas of a policy.
pub(super) fn check_quotas(quotas: &[Quota], parameters: Option<&Value>) -> Result<(), Reject> {
    let field = "policy.quotas";
    if quotas.len() > MAX_QUOTAS {
        let words = format!(
            "`{field}` has {} quotas; at most {MAX_QUOTAS} are allowed",
            quotas.len()
        );
        return Err(Reject::field(field, words));
    }
    for (index, quota) in quotas.iter().enumerate() {
        check_range(&format!("{field}.{index}.max"), quota.max, super::MAX_COUNT)?;
        check_by(&format!("{field}.{index}.by"), &quota.by, parameters)?;
        let same = |other: &Quota| (other.per, &other.by) == (quota.per, &quota.by);
        if let Some(other) = quotas[..index].iter().position(same) {
            let words = format!(
                "`{field}.{index}` counts by the same as `{field}.{other}`, per {}; keep the one \
                 with the lower `max`",
                quota.per
            );
            return Err(Reject::field(format!("{field}.{index}"), words));
        }
    }
    Ok(())
}

fn check_range(field: &str, value: u32, most: u32) -> Result<(), Reject> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    let words = format!("`{field}` is {value}; it must be from 1 to {most}");
    Err(Reject::field(field, words))
}

fn check_by(field: &str, by: &[Path], parameters: Option<&Value>) -> Result<(), Reject> {
    if by.len() > MAX_BY {
        let words = format!(
            "`{field}` has {} places; at most {MAX_BY} are allowed",
            by.len()
        );
        return Err(Reject::field(field, words));
    }
    for (index, path) in by.iter().enumerate() {
        if by[..index].contains(path) {
            let words = format!("`{field}` names `{path}` twice; once is enough");
            return Err(Reject::field(field, words));
        }
        check_key(field, path, parameters)?;
    }
    Ok(())
}

/// For whom something is counted, for one action.
#[derive(Debug, Clone, PartialEq)]
pub struct CountRule {
    /// Each place and what counts where nothing stands there.
    by: Vec<(Path, Value)>,
    mark: i64,
}

impl CountRule {
    /// The rule of an action that counts `by` these places.
    #[must_use]
    pub fn of(spec: &ActionSpec, by: &[Path]) -> Self {
        let by: Vec<_> = by
            .iter()
            .map(|path| (path.clone(), absent_value(spec, path)))
            .collect();
        let mark = if by.is_empty() {
            0
        } else {
            // Of the places alone: what was counted stays counted when the schema says something else of
            // where nothing stands. The second of each pair is for the marks that are stored.
            let places: Vec<_> = by.iter().map(|(path, _)| (path, Value::Null)).collect();
            let hash = Sha256::digest(serde_json::to_vec(&places).unwrap_or_default());
            i64::from_be_bytes(hash[..8].try_into().unwrap_or_default()) | 1
        };
        Self { by, mark }
    }

    /// Tells this rule from others: what was counted by one says nothing under another. 0 where all are
    /// counted together.
    #[must_use]
    pub fn mark(&self) -> i64 {
        self.mark
    }

    /// Whether all are counted together.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.by.is_empty()
    }

    /// Checks that it can be told for whom a submission counts.
    ///
    /// # Errors
    /// A [`Reject`] that names a place, when what stands there is too long.
    pub fn check(&self, words: &Words<'_>) -> Result<(), Reject> {
        let mut places = self.by.iter();
        places.try_for_each(|(path, _)| path.check_length(words))
    }

    /// For whom a submission counts: all zeros where all are counted together.
    #[must_use]
    pub fn key(&self, words: &Words<'_>) -> GroupKey {
        key_of(&self.by, words)
    }

    /// Each place and what counts where nothing stands there.
    pub(super) fn places(&self) -> &[(Path, Value)] {
        &self.by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ActionPolicy;

    fn field(text: &str) -> Result<(), String> {
        let schema = serde_json::json!({"properties": {"host": {}}});
        let policy: ActionPolicy = serde_json::from_str(text).unwrap();
        let check = policy.check(Some(&schema));
        check.map_err(|reject| reject.field.unwrap())
    }

    #[test]
    fn what_cannot_be_meant_names_its_field() {
        for right in [
            r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1}}"#,
            r#"{"rate_limit": {"max_executions": 9, "window_seconds": 2678400, "by": ["user", "parameters.host"], "on_limit": "reject"}}"#,
            r#"{"min_interval_ms": 200}"#,
            r#"{"quotas": [{"per": "day", "max": 9}, {"per": "day", "max": 2, "by": ["source"]}, {"per": "hour", "max": 1}]}"#,
        ] {
            assert_eq!(field(right), Ok(()), "{right}");
        }
        for (wrong, named) in [
            (
                r#"{"rate_limit": {"max_executions": 0, "window_seconds": 1}}"#,
                "policy.rate_limit.max_executions",
            ),
            (
                r#"{"rate_limit": {"max_executions": 1, "window_seconds": 0}}"#,
                "policy.rate_limit.window_seconds",
            ),
            (
                r#"{"rate_limit": {"max_executions": 1, "window_seconds": 2678401}}"#,
                "policy.rate_limit.window_seconds",
            ),
            (
                r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["source"]}}"#,
                "policy.rate_limit.by",
            ),
            (
                r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["user", "user"]}}"#,
                "policy.rate_limit.by",
            ),
            (
                r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["parameters.port"]}}"#,
                "policy.rate_limit.by",
            ),
            (r#"{"min_interval_ms": 0}"#, "policy.min_interval_ms"),
            (
                r#"{"min_interval_ms": 2678400001}"#,
                "policy.min_interval_ms",
            ),
            (
                r#"{"quotas": [{"per": "day", "max": 0}]}"#,
                "policy.quotas.0.max",
            ),
            (
                r#"{"quotas": [{"per": "day", "max": 5}, {"per": "day", "max": 4}]}"#,
                "policy.quotas.1",
            ),
            (
                r#"{"quotas": [{"per": "day", "max": 5, "by": ["user", "group", "labels.a", "labels.b", "labels.c"]}]}"#,
                "policy.quotas.0.by",
            ),
        ] {
            assert_eq!(field(wrong), Err(named.to_owned()), "{wrong}");
        }
        let unknown = r#"{"quotas": [{"per": "week", "max": 5}]}"#;
        let said = serde_json::from_str::<ActionPolicy>(unknown).unwrap_err();
        assert!(
            said.to_string().contains("`hour`, `day`, `month`"),
            "{said}"
        );
    }

    #[test]
    fn a_window_of_the_calendar_has_its_times_and_no_others() {
        let time = |text: &str| text.parse::<DateTime<Utc>>().unwrap().timestamp_millis();
        let at = time("2028-02-29T23:59:59.999Z");
        for (per, from, to) in [
            (
                Calendar::Hour,
                "2028-02-29T23:00:00Z",
                "2028-03-01T00:00:00Z",
            ),
            (
                Calendar::Day,
                "2028-02-29T00:00:00Z",
                "2028-03-01T00:00:00Z",
            ),
            (
                Calendar::Month,
                "2028-02-01T00:00:00Z",
                "2028-03-01T00:00:00Z",
            ),
        ] {
            assert_eq!(per.window(at), (time(from), time(to)));
            assert_eq!(per.window(time(from)), (time(from), time(to)));
            assert_eq!(per.window(time(to)).0, time(to));
        }
        let before = time("1969-12-31T23:30:00Z");
        assert_eq!(
            Calendar::Hour.window(before).0,
            time("1969-12-31T23:00:00Z")
        );
        assert_eq!(Calendar::Day.window(i64::MAX), (i64::MAX, i64::MAX));
    }

    #[test]
    fn another_default_of_a_place_forgets_nothing_that_was_counted() {
        let rule = |property: Value| {
            let schema = serde_json::json!({"properties": {"host": property}});
            let spec =
                serde_json::json!({"ref": "a.b", "run": {"builtin": "noop"}, "parameters": schema});
            let spec: ActionSpec = serde_json::from_value(spec).unwrap();
            CountRule::of(&spec, &["parameters.host".parse().unwrap()])
        };
        let plain = rule(serde_json::json!({"type": "string"}));
        let other = rule(serde_json::json!({"type": "string", "default": "none"}));
        assert_eq!(plain.mark(), other.mark());
        assert_ne!(plain.places(), other.places());
    }

    #[test]
    fn equal_values_are_counted_together_whatever_the_rule_is_marked_by() {
        let mut spec = ActionSpec::core_pack().remove(1);
        spec.parameters = Some(serde_json::json!({"properties": {"host": {"default": "here"}}}));
        let rule = |by: &str| CountRule::of(&spec, &[by.parse().unwrap()]);
        let shared = CountRule::of(&spec, &[]);
        assert!(shared.is_shared() && shared.mark() == 0);
        let text = r#"{"action_ref":"a.b","requested_by":"ann","parameters":{}}"#;
        let silent: crate::Submission = serde_json::from_str(text).unwrap();
        let told = r#"{"action_ref":"a.b","parameters":{"host":"here"}}"#;
        let told: crate::Submission = serde_json::from_str(told).unwrap();
        let by_host = rule("parameters.host");
        assert_eq!(by_host.key(&silent.words()), by_host.key(&told.words()));
        assert_ne!(by_host.mark(), rule("user").mark());
        let by_user = rule("user");
        assert_ne!(by_user.key(&silent.words()), by_user.key(&told.words()));
        assert_eq!(shared.key(&told.words()), GroupKey::default());
    }
}
