//! From rows to the types of the port, and back.

use std::time::Duration;

use attune_core::{
    Action, ActionId, Demand, ExecutionId, PartitionId, Priority, Status, TraceParent,
};
use attune_store::GrantedBody;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use crate::error::unreadable;

/// The items as a JSON array, in the form in which the statements take lists.
pub(crate) fn list<T: Serialize>(items: impl IntoIterator<Item = T>) -> String {
    text_of(&items.into_iter().collect::<Vec<T>>())
}

/// As [`list`], or nothing when there are no items and so nothing to run.
pub(crate) fn list_unless_empty<T: Serialize>(items: Vec<T>) -> Option<String> {
    (!items.is_empty()).then(|| list(items))
}

/// One value as JSON.
pub(crate) fn text_of<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("what the adapter writes has only text keys")
}

pub(crate) fn partition_list(partitions: &[PartitionId]) -> String {
    list(partitions)
}

/// A time in the one form in which text compares like time.
pub(crate) fn time_text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(crate) fn time(text: &str) -> Result<DateTime<Utc>, sqlx::Error> {
    text.parse()
        .map_err(|error| unreadable(format_args!("the time `{text}`: {error}")))
}

/// Bytes in hexadecimal digits: lists are JSON, which has no bytes.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that a text shows in hexadecimal digits, if it shows any.
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok())
        .collect()
}

pub(crate) fn demand_text(demand: &Demand) -> String {
    digits(&demand.to_bytes())
}

/// The demand that a text shows, if it shows one.
pub(crate) fn demand(text: &str) -> Option<Demand> {
    Demand::from_bytes(&bytes(text)?)
}

pub(crate) fn optional_time(
    row: &SqliteRow,
    column: &str,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    row.try_get::<Option<&str>, _>(column)?
        .map(time)
        .transpose()
}

/// Seconds as SQLite computes them; what is past counts as zero. Its clock has milliseconds, and
/// the difference of two such numbers is off by far less, so rounding gives the exact value.
pub(crate) fn duration(seconds: f64) -> Duration {
    // The cast saturates, and what is negative or not a number becomes zero.
    Duration::from_millis((seconds * 1000.0).round() as u64)
}

pub(crate) fn uuid(text: &str) -> Result<Uuid, sqlx::Error> {
    Uuid::parse_str(text).map_err(|error| unreadable(format_args!("the id `{text}`: {error}")))
}

pub(crate) fn status(text: &str) -> Result<Status, sqlx::Error> {
    text.parse().map_err(unreadable)
}

pub(crate) fn priority(rank: i64) -> Result<Priority, sqlx::Error> {
    u8::try_from(rank)
        .ok()
        .and_then(Priority::from_rank)
        .ok_or_else(|| unreadable(format_args!("the priority {rank}")))
}

pub(crate) fn partition(number: i64) -> Result<PartitionId, sqlx::Error> {
    unsigned(number).map(PartitionId)
}

/// A number that the adapter only writes when it fits.
pub(crate) fn unsigned<T: TryFrom<i64>>(number: i64) -> Result<T, sqlx::Error> {
    T::try_from(number).map_err(|_| unreadable(format_args!("the number {number}")))
}

/// JSON that the adapter wrote from a type of its own.
pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text).map_err(unreadable)
}

/// JSON that a client or a program wrote. It was kept as it came, so it may be nested deeper or
/// have larger numbers than a value can hold; then people get to see the text.
pub(crate) fn foreign_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The columns `id, partition, version, spec`.
pub(crate) fn action(row: &SqliteRow) -> Result<Action, sqlx::Error> {
    let id = row.try_get(0)?;
    let named = |error| unreadable(format_args!("the action with id {id}: {error}"));
    Ok(Action {
        id: ActionId(id),
        partition: partition(row.try_get(1)?)?,
        version: row.try_get(2)?,
        spec: serde_json::from_str(row.try_get(3)?).map_err(named)?,
    })
}

/// The columns `id, parameters, timeout_seconds, traceparent`.
pub(crate) fn body(row: &SqliteRow) -> Result<GrantedBody, sqlx::Error> {
    Ok(GrantedBody {
        id: ExecutionId(row.try_get(0)?),
        parameters: RawValue::from_string(row.try_get(1)?).map_err(unreadable)?,
        timeout_seconds: row
            .try_get::<Option<i64>, _>(2)?
            .map(unsigned)
            .transpose()?,
        trace: row
            .try_get::<Option<&str>, _>(3)?
            .and_then(TraceParent::parse),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_milliseconds_and_never_negative() {
        assert_eq!(duration(1.499_999_9), Duration::from_millis(1500));
        assert_eq!(duration(-3.0), Duration::ZERO);
        assert_eq!(duration(f64::NAN), Duration::ZERO);
    }

    #[test]
    fn every_time_that_can_be_written_can_be_read() {
        for text in ["2026-11-21T10:00:00.123456Z", "1969-12-31T23:59:59Z"] {
            let parsed: DateTime<Utc> = text.parse().unwrap();
            assert_eq!(time(&time_text(parsed)).unwrap(), parsed);
        }
        for extreme in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            let read = time(&time_text(extreme)).unwrap();
            assert_eq!(read.timestamp_micros(), extreme.timestamp_micros());
        }
    }
}
