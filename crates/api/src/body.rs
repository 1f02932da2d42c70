//! Reading JSON bodies, with errors that name the place.

use std::time::Duration;

use attune_core::foreign::cut;
use attune_core::input::MAX_DEPTH;
use attune_core::plain;
use attune_core::strict::{self, Strict};
use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::budget::{Budget, SMALL_BODY, Share};
use crate::error::ApiError;
use crate::options::ApiOptions;

/// So much of a body that is too large is still taken off the wire, in bytes: a connection that
/// is closed while the client sends makes most clients report a broken pipe and not our answer.
const DRAIN_BYTES: usize = 8 * 1024 * 1024;
/// How long that may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the whole body of a request that must be JSON.
///
/// # Errors
/// 415 for another content type and for one that is encoded, 413 for more bytes than allowed, as soon as that is known, 408
/// for a body that does not arrive in time, 400 for one that breaks off, 503 when `bodies` has no
/// room for it. The bytes count against `bodies` until they are dropped.
pub(crate) async fn read(
    request: Request,
    options: &ApiOptions,
    bodies: &Budget,
) -> Result<Bytes, ApiError> {
    check_content_type(request.headers())?;
    check_encoding(request.headers())?;
    let asks_before_sending = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    let max_bytes = options.max_body_bytes;
    if body.size_hint().lower() > max_bytes as u64 {
        if !asks_before_sending {
            drain(body.into_data_stream());
        }
        return Err(too_large(max_bytes));
    }
    // What says no length can still become as long as allowed; that is seen once it is not small.
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let share = match announced <= SMALL_BODY {
        true => Share::free(),
        false => match bodies.try_take(announced) {
            Some(share) => share,
            None => {
                if !asks_before_sending {
                    drain(body.into_data_stream());
                }
                return Err(too_many());
            }
        },
    };
    let kept = Kept {
        bytes: BytesMut::with_capacity(announced),
        share,
    };
    tokio::time::timeout(options.body_timeout, collect(body, max_bytes, kept, bodies))
        .await
        .unwrap_or_else(|_| Err(too_slow(options.body_timeout)))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    let essence = essence.to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "UNSUPPORTED_MEDIA_TYPE",
        "the body must be JSON, sent with `Content-Type: application/json`",
    ))
}

/// Refuses a body that says to be encoded. Nothing here decodes one: whoever sends it without the encoding that it
/// names would be served, until something on the way takes the header at its word.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let is_plain = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    let encoded = values
        .map(|value| value.to_str().unwrap_or("?"))
        .find(|value| !value.split(',').map(str::trim).all(is_plain));
    encoded.map_or(Ok(()), |value| {
        let words = format!(
            "the body must be sent as it is: `Content-Encoding: {}` is not taken here, leave it out",
            cut(value, 64)
        );
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Err(ApiError::new(status, "UNSUPPORTED_MEDIA_TYPE", words))
    })
}

/// What has come of a body, and what it counts against.
struct Kept {
    bytes: BytesMut,
    share: Share,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn collect(
    body: Body,
    max_bytes: usize,
    mut kept: Kept,
    bodies: &Budget,
) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "BODY_INCOMPLETE",
                "the body breaks off",
            )
        })?;
        let len = kept.bytes.len() + chunk.len();
        if len > max_bytes {
            drain(stream);
            return Err(too_large(max_bytes));
        }
        if len > SMALL_BODY && !kept.share.counts() {
            let Some(share) = bodies.try_take(max_bytes) else {
                drain(stream);
                return Err(too_many());
            };
            kept.share = share;
        }
        kept.bytes.extend_from_slice(&chunk);
    }
    Ok(Bytes::from_owner(kept))
}

/// Takes the rest of a refused body off the wire while its refusal goes out.
fn drain(mut stream: BodyDataStream) {
    let rest = async move {
        let mut seen = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            seen += chunk.len();
            if seen > DRAIN_BYTES {
                break;
            }
        }
    };
    // The end of the time is the end of the connection, which is all that can be done.
    tokio::spawn(async move { drop(tokio::time::timeout(DRAIN_TIMEOUT, rest).await) });
}

fn too_large(max_bytes: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "TOO_LARGE",
        format!("the body is larger than {max_bytes} bytes (api.max_body_bytes)"),
    )
    .closing()
}

fn too_many() -> ApiError {
    ApiError::unavailable(
        "OVERLOADED",
        "the server works on as many bytes of large bodies as it may; nothing was done, send it \
         again",
    )
    .closing()
}

fn too_slow(limit: Duration) -> ApiError {
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        "BODY_TIMEOUT",
        format!(
            "the body did not arrive within {} s; nothing was done, send it again",
            limit.as_secs()
        ),
    )
    .closing()
}

/// Whether the body is a JSON array, if it is JSON.
pub(crate) fn is_array(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Reads a `T`, which is an object.
///
/// # Errors
/// 400 with line and column when it is not JSON, 422 with the field when it is not a `T`.
pub(crate) fn parse<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, ApiError> {
    if is_array(text) {
        // It would be read as the object's fields, one after the other.
        let problem = "an object is expected here, not an array";
        let read = serde_json::from_slice::<IgnoredAny>(text);
        return Err(read.map_or_else(|error| explain("", &error), |_| wrong_form("", problem)));
    }
    parse_any(text)
}

/// Reads the items of an array.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_list(text: &[u8]) -> Result<Vec<&RawValue>, ApiError> {
    parse_any(text)
}

fn parse_any<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(Strict(&mut deserializer)).map_err(|error| {
        let path = strict::place(error.path());
        match error.inner().classify() {
            // It says so as well where one of several words is expected and a number stands.
            Category::Syntax if is_json(text) => {
                let problem = error.inner().to_string();
                if problem.starts_with("recursion limit exceeded") {
                    let words = format!("it is nested deeper than {MAX_DEPTH} levels");
                    return wrong_form(&path, &words);
                }
                let words = if problem.starts_with("number out of range") {
                    "the number is out of range"
                } else {
                    plain::half_pair(&problem)
                        .unwrap_or("a text, or an object with one member, is expected here")
                };
                wrong_form(&path, words)
            }
            _ => explain(&path, error.inner()),
        }
    })?;
    deserializer.end().map_err(|error| explain("", &error))?;
    Ok(value)
}

/// The refusal for what the parser said about the place `path`.
fn explain(path: &str, error: &serde_json::Error) -> ApiError {
    let said = error.to_string();
    let problem = said.split(" at line ").next().unwrap_or(&said);
    match error.classify() {
        Category::Syntax | Category::Eof | Category::Io => ApiError::new(
            StatusCode::BAD_REQUEST,
            "MALFORMED_JSON",
            format!(
                "not JSON: {problem} at line {}, column {}",
                error.line(),
                error.column()
            ),
        ),
        Category::Data => wrong_form(&field_of(path, problem), &plain::plain(problem)),
    }
}

/// The refusal of JSON that is something else than it should be, at a field or as a whole.
fn wrong_form(field: &str, problem: &str) -> ApiError {
    if field.is_empty() {
        let mut refusal = ApiError::field("", problem);
        refusal.detail.field = None;
        return refusal;
    }
    ApiError::field(field, format!("`{field}`: {problem}"))
}

fn is_json(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// The place of a problem: where the parser stood, and the field it missed or did not know there.
fn field_of(path: &str, problem: &str) -> String {
    match strict::named(problem) {
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) if path != name && !path.ends_with(&format!(".{name}")) => {
            format!("{path}.{name}")
        }
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{ActionSpec, Submission};

    use super::*;

    fn post(body: Body) -> Request {
        Request::post("/")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .unwrap()
    }

    #[tokio::test]
    async fn large_bodies_that_find_no_room_are_refused_and_small_ones_are_not() {
        let options = ApiOptions::new(([127, 0, 0, 1], 0).into(), 1);
        let bodies = Budget::of_bodies();
        let text = |bytes: usize| "x".repeat(bytes);
        let mut held = Vec::new();
        // Some that end, one that does not, and whatever fits beside them.
        loop {
            match read(post(Body::from(text(1_000_000))), &options, &bodies).await {
                Ok(body) => held.push(body),
                Err(error) => {
                    assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
                    assert!(error.detail.retry_after_seconds.is_some());
                    break;
                }
            }
        }
        assert_eq!(held.len(), 64 * 1024 / 977);
        let unknown_length = || {
            let chunks = (0..50).map(|_| Ok::<_, std::io::Error>("x".repeat(1000)));
            Body::from_stream(futures_util::stream::iter(chunks))
        };
        assert!(
            read(post(unknown_length()), &options, &bodies)
                .await
                .is_err()
        );
        let small = read(post(Body::from(text(SMALL_BODY))), &options, &bodies).await;
        assert_eq!(small.unwrap().len(), SMALL_BODY);
        held.truncate(held.len() - 2);
        let taken = read(post(unknown_length()), &options, &bodies).await;
        assert_eq!(taken.unwrap().len(), 50_000);
    }

    fn refusal<'de, T: Deserialize<'de>>(text: &'de str) -> (u16, String, String) {
        let error = parse::<T>(text.as_bytes()).err().unwrap();
        (
            error.status.as_u16(),
            error.detail.field.unwrap_or_default(),
            error.detail.message,
        )
    }

    #[test]
    fn what_is_not_json_has_line_and_column() {
        for (text, place) in [
            ("", "line 1, column 0"),
            ("{", "line 1, column 1"),
            ("{\"action_ref\": \"a.b\",\n oops}", "line 2, column 2"),
            ("{\"action_ref\": \"a.b\"} {}", "line 1, column 23"),
            (
                "{\"action_ref\": \"a.b\", \"parameters\": {\"a\": 1,}}",
                "column",
            ),
        ] {
            let (status, field, message) = refusal::<Submission>(text);
            assert_eq!((status, &*field), (400, ""), "{text}");
            assert!(message.contains(place), "{text}: {message}");
        }
    }

    #[test]
    fn what_has_the_wrong_form_names_its_field() {
        for (text, field) in [
            (r#"{"parameters":{}}"#, "action_ref"),
            (r#"{"action_ref":7}"#, "action_ref"),
            (r#"{"action_ref":"a.b","priorty":"high"}"#, "priorty"),
            (r#"{"action_ref":"a.b","priority":"urgent"}"#, "priority"),
            (r#"{"action_ref":"a.b","priority":5}"#, "priority"),
            (r#"{"action_ref":"a.b","labels":{"k":1}}"#, "labels.k"),
            (r#"["a.b"]"#, ""),
            (
                r#"{"action_ref":"a.b","timeout_seconds":-1}"#,
                "timeout_seconds",
            ),
            (
                r#"{"action_ref":"a.b","timeout_seconds":99999999999}"#,
                "timeout_seconds",
            ),
            (r#"{"action_ref":"a.b","request_id":"x"}"#, "request_id"),
            (r#"{"action_ref":"a.b","not_before":"soon"}"#, "not_before"),
            (r#"{"action_ref":"a.b","action_ref":"a.b"}"#, "action_ref"),
            ("7", ""),
        ] {
            let (status, found, message) = refusal::<Submission>(text);
            assert_eq!((status, &*found), (422, field), "{text}: {message}");
        }
        for (text, field) in [
            (r#"{"ref":"a.b"}"#, "run"),
            (r#"{"ref":"A","run":{"builtin":"noop"}}"#, "ref"),
            (r#"{"ref":"a.b","run":{"shell":"x"}}"#, "run"),
            (r#"{"ref":"a.b","run":{"builtin":5}}"#, "run"),
            (
                r#"{"ref":"a.b","run":{"builtin":"noop"},"policy":{"concurrency":{"limt":1}}}"#,
                "policy.concurrency.limt",
            ),
            (
                r#"{"ref":"a.b","run":{"builtin":"noop"},"policy":{"concurrency":{"limit":"2"}}}"#,
                "policy.concurrency.limit",
            ),
        ] {
            let (status, found, message) = refusal::<ActionSpec>(text);
            assert_eq!(status, 422, "{text}");
            assert!(found.starts_with(field), "{text}: {found}: {message}");
        }
    }

    #[test]
    fn a_number_for_a_priority_is_told_which_words_there_are() {
        let (_, _, message) = refusal::<Submission>(r#"{"action_ref":"a.b","priority":5}"#);
        assert_eq!(
            message,
            "`priority`: 5 does not fit; expected one of `critical`, `high`, `normal`, `low`, `background`"
        );
        let (_, _, message) = refusal::<Submission>(r#"[{"action_ref":"a.b"}]"#);
        assert_eq!(message, "an object is expected here, not an array");
    }

    #[test]
    fn parameters_stay_as_they_were_written() {
        let text = br#"{"action_ref":"a.b","parameters":{"big": 12345678901234567890123, "a" :1}}"#;
        let submission: Submission = parse(text).unwrap();
        assert_eq!(
            submission.parameters.get(),
            r#"{"big": 12345678901234567890123, "a" :1}"#
        );
    }
}
