//! Query strings and cursors.

use std::str::FromStr;

use attune_core::plain::unparsed;
use attune_core::{ActionId, ExecutionId};
use attune_store::{Cursor, StatsCursor};
use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use chrono::DateTime;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;

/// What a list shows unless it is told how much, in rows.
const DEFAULT_PAGE: u32 = 50;

/// A query string of which nothing is taken: a parameter that is overlooked, such as `dry_run`, would be
/// taken for heeded.
pub(crate) struct NoParams;

impl<S: Sync> FromRequestParts<S> for NoParams {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Params::of(&parts.uri)?.end("no parameters")?;
        Ok(Self)
    }
}

/// The parameters of a query string; each must be taken, what is left is unknown.
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads the query string of a request.
    ///
    /// # Errors
    /// 422 when it is not one.
    pub(crate) fn of(uri: &Uri) -> Result<Self, ApiError> {
        // What is read below would have other letters in the place of these, and be stored so.
        let escaped = percent_decode_str(uri.query().unwrap_or_default());
        if escaped.decode_utf8().is_err() {
            let words =
                "the query string is not UTF-8: escape the bytes of its UTF-8 (%C3%A9 for é)";
            return Err(ApiError::field("query", words));
        }
        Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|Query(pairs)| Self(pairs))
            .map_err(|error| ApiError::field("query", format!("the query string: {error}")))
    }

    /// Takes a parameter that may be given once.
    ///
    /// # Errors
    /// 422 when it is given twice or empty.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut found = self
            .0
            .extract_if(.., |(key, _)| key == name)
            .map(|(_, value)| value);
        let value = found.next();
        if found.next().is_some() {
            return Err(ApiError::field(name, format!("`{name}` is given twice")));
        }
        drop(found);
        if let Some(value) = &value {
            attune_core::input::check_text(name, value)?;
        }
        Ok(value)
    }

    /// Takes a parameter and reads it.
    ///
    /// # Errors
    /// 422 when it is not a `T`.
    pub(crate) fn parse<T>(&mut self, name: &str) -> Result<Option<T>, ApiError>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        self.take(name)?.map(|text| parsed(name, &text)).transpose()
    }

    /// Takes a comma-separated list.
    ///
    /// # Errors
    /// 422 when an element is not a `T`.
    pub(crate) fn list<T>(&mut self, name: &str) -> Result<Vec<T>, ApiError>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let text = self.take(name)?.unwrap_or_default();
        text.split(',')
            .map(str::trim)
            .filter(|element| !element.is_empty())
            .map(|element| parsed(name, element))
            .collect()
    }

    /// Takes `limit`: from 1 to `max`.
    ///
    /// # Errors
    /// 422 when it is out of range.
    pub(crate) fn limit(&mut self, max: u32) -> Result<u32, ApiError> {
        let limit = match self.take("limit")? {
            None => Some(DEFAULT_PAGE.min(max)),
            Some(text) => text.parse().ok(),
        };
        limit
            .filter(|limit| (1..=max).contains(limit))
            .ok_or_else(|| {
                let problem = format!("`limit` must be a whole number from 1 to {max}");
                ApiError::field("limit", problem)
            })
    }

    /// Refuses what nobody took, so that a misspelt filter does not show everything.
    ///
    /// # Errors
    /// 422 that names the parameter and those that exist.
    pub(crate) fn end(self, known: &str) -> Result<(), ApiError> {
        let Some((name, _)) = self.0.into_iter().next() else {
            return Ok(());
        };
        let shown: String = name.chars().take(64).collect();
        Err(ApiError::field(
            &*shown,
            format!("there is no parameter `{shown}` here; there are: {known}"),
        ))
    }
}

fn parsed<T>(name: &str, text: &str) -> Result<T, ApiError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| {
        let said = error.to_string();
        ApiError::field(name, format!("`{name}`: {}", unparsed(&said)))
    })
}

/// The words of a cursor. Clients must not look inside.
pub(crate) fn encode_cursor(cursor: Cursor) -> String {
    format!("{:x}-{:x}", cursor.created.timestamp_micros(), cursor.id.0)
}

/// The cursor behind the words.
///
/// # Errors
/// 422 when they are not ours.
pub(crate) fn decode_cursor(text: &str) -> Result<Cursor, ApiError> {
    let decoded = text.split_once('-').and_then(|(created, id)| {
        Some(Cursor {
            created: DateTime::from_timestamp_micros(i64::from_str_radix(created, 16).ok()?)?,
            id: ExecutionId(i64::from_str_radix(id, 16).ok()?),
        })
    });
    decoded.ok_or_else(foreign_cursor)
}

/// A cursor in the list of queues, as [`encode_cursor`] does for executions.
pub(crate) fn encode_queue_cursor(cursor: StatsCursor) -> String {
    format!("{:x}-{:x}", cursor.queue_length, cursor.action_id.0)
}

/// The cursor behind the words.
///
/// # Errors
/// 422 when they are not ours.
pub(crate) fn decode_queue_cursor(text: &str) -> Result<StatsCursor, ApiError> {
    let decoded = text.split_once('-').and_then(|(length, action)| {
        Some(StatsCursor {
            queue_length: u64::from_str_radix(length, 16).ok()?,
            action_id: ActionId(i64::from_str_radix(action, 16).ok()?),
        })
    });
    decoded.ok_or_else(foreign_cursor)
}

fn foreign_cursor() -> ApiError {
    ApiError::field(
        "cursor",
        "`cursor` must be the `next` of an earlier page, unchanged",
    )
}

#[cfg(test)]
mod tests {
    use attune_core::Status;

    use super::*;

    fn params(query: &str) -> Params {
        Params::of(&format!("/x?{query}").parse().unwrap())
            .ok()
            .unwrap()
    }

    #[test]
    fn cursors_round_trip_and_nothing_else_does() {
        let cursor = Cursor {
            created: DateTime::from_timestamp_micros(1_800_000_000_123_456).unwrap(),
            id: ExecutionId(1 << 40 | 7),
        };
        assert_eq!(decode_cursor(&encode_cursor(cursor)).ok(), Some(cursor));
        for bad in [
            "",
            "-",
            "zz-1",
            "1",
            "7fffffffffffffff-1",
            "1-1-1",
            "1-fffffffffffffffff",
        ] {
            assert!(decode_cursor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_limits_and_leftovers() {
        let mut given = params("status=queued,%20running&limit=5&x=1");
        assert_eq!(
            given.list::<Status>("status").unwrap(),
            [Status::Queued, Status::Running]
        );
        assert_eq!(given.limit(10).unwrap(), 5);
        let left = given.end("status, limit").unwrap_err();
        assert_eq!(left.detail.field.as_deref(), Some("x"));

        assert_eq!(params("").limit(10).unwrap(), 10);
        assert_eq!(params("").limit(1000).unwrap(), DEFAULT_PAGE);
        for bad in [
            "limit=0",
            "limit=11",
            "limit=x",
            "limit=",
            "limit=1&limit=2",
        ] {
            let error = params(bad).limit(10).unwrap_err();
            assert!(!error.detail.message.contains("digit"), "{bad}: {error:?}");
        }
        assert!(
            params("status=queued,gone")
                .list::<Status>("status")
                .is_err()
        );
    }
}
