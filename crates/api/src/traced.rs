//! Of which trace a request is a part, and the span that says how it was answered.

use std::time::SystemTime;

use attune_core::trace::TRACEPARENT;
use attune_core::{TraceId, TraceParent};
use attune_runtime::{EndedSpan, Label, SpanKind, Spans};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::error::ApiError;

/// The trace that a request names. What is malformed, or given twice, names none: nobody is refused for it.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next()?.to_str().ok()?;
    match values.next() {
        None => TraceParent::parse(value.trim()),
        Some(_) => None,
    }
}

/// A request for executions, until it is answered. Where nobody is there any more to be answered, its span says so.
pub(crate) struct Traced {
    spans: Spans,
    route: &'static str,
    began: SystemTime,
    named: Option<TraceParent>,
    /// Where somebody wants to know of it.
    span: Option<TraceParent>,
    answer: Option<(StatusCode, Option<i64>)>,
}

impl Traced {
    /// A request that begins now.
    pub(crate) fn begin(headers: &HeaderMap, spans: &Spans, route: &'static str) -> Self {
        let named = trace_of(headers);
        Self {
            spans: spans.clone(),
            route,
            began: SystemTime::now(),
            named,
            span: spans.of_request(named),
            answer: None,
        }
    }

    /// What stands above all that the request leads to.
    pub(crate) fn trace(&self) -> Option<TraceParent> {
        self.span.or(self.named)
    }

    /// It is answered.
    pub(crate) fn answered(mut self, answer: Result<Response, ApiError>) -> Response {
        let mut response = answer.unwrap_or_else(ApiError::into_response);
        let location = response.headers().get(header::LOCATION);
        let location = location.and_then(|path| path.to_str().ok());
        let id = location.and_then(|path| path.rsplit('/').next()?.parse().ok());
        self.answer = Some((response.status(), id));
        if let Some(trace) = self.trace() {
            response.extensions_mut().insert(trace.trace_id());
        }
        response
    }
}

/// Of which trace an answered request was a part.
pub(crate) fn trace_of_answer(response: &Response) -> Option<TraceId> {
    response.extensions().get().copied()
}

impl Drop for Traced {
    fn drop(&mut self) {
        let Some(span) = self.span else { return };
        let mut attributes = vec![
            Label::new("http.request.method", "POST"),
            Label::new("http.route", self.route),
        ];
        let failed = match self.answer {
            None => {
                Some("the client has not waited for the answer, or it took too long".to_owned())
            }
            Some((status, id)) => {
                let code = i64::from(status.as_u16());
                attributes.push(Label::new("http.response.status_code", code));
                attributes.extend(id.map(|id| Label::new("attune.execution.id", id)));
                status.is_server_error().then(|| status.to_string())
            }
        };
        self.spans.ended(EndedSpan {
            name: "submit",
            kind: SpanKind::Server,
            span,
            parent: self.named,
            began: self.began,
            ended: SystemTime::now(),
            attributes,
            failed,
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_request_names_one_trace_or_none() {
        let named = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = HeaderValue::from_bytes(value).unwrap();
                headers.append(TRACEPARENT, value);
            }
            trace_of(&headers).map(|trace| trace.to_string())
        };
        let given = GIVEN.as_bytes();
        assert_eq!(named(&[given]).as_deref(), Some(GIVEN));
        assert_eq!(
            named(&[format!(" {GIVEN}\t").as_bytes()]).as_deref(),
            Some(GIVEN)
        );
        let wrong: [&[&[u8]]; 5] = [&[], &[b""], &[b"\xff"], &[&given[..54]], &[given, given]];
        for wrong in wrong {
            assert_eq!(named(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn where_no_spans_are_sent_what_was_named_is_passed_on() {
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(TRACEPARENT),
            HeaderValue::from_static(GIVEN),
        )]);
        let traced = Traced::begin(&headers, &Spans::default(), "/api/v1/executions");
        let trace = traced.trace();
        assert_eq!(trace, TraceParent::parse(GIVEN));
        let response = traced.answered(Ok(StatusCode::CREATED.into_response()));
        let said = trace_of_answer(&response);
        assert_eq!(said, trace.map(|trace| trace.trace_id()));
    }
}
