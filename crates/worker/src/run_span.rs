//! The span `run`: an attempt at its worker, from its start to its end.

use attune_core::{SpanOf, Status, TraceParent};
use attune_dispatch::Key;
use attune_messages::v2::Grant;
use attune_runtime::{EndedSpan, Label, SpanKind, Spans};
use chrono::{DateTime, Utc};

/// A run of which a span is told when it has ended.
#[derive(Debug)]
pub(crate) struct RunSpan {
    spans: Spans,
    parent: TraceParent,
    span: TraceParent,
    action_ref: String,
}

impl RunSpan {
    /// The span of a run, where somebody wants it. Whatever the run does stands below it from now on.
    pub(crate) fn of(request: &mut Grant, spans: &Spans) -> Option<Self> {
        let parent = request.traceparent.filter(|trace| spans.wants(trace))?;
        let span = parent.span_of(SpanOf::Run, request.key());
        request.traceparent = Some(span);
        Some(Self {
            spans: spans.clone(),
            parent,
            span,
            action_ref: request.action_ref.clone(),
        })
    }

    /// Tells it: how the run ended, or that it was killed and nobody knows.
    pub(crate) fn tell(
        &self,
        (execution_id, attempt): Key,
        (began, ended): (DateTime<Utc>, DateTime<Utc>),
        (status, exit_code): (Option<Status>, Option<i32>),
    ) {
        let words = status.map_or("killed", Status::as_str);
        let mut attributes = vec![
            Label::new("attune.action.ref", self.action_ref.clone()),
            Label::new("attune.execution.id", execution_id.0),
            Label::new("attune.attempt", i64::from(attempt.0)),
            Label::new("attune.status", words),
        ];
        attributes.extend(exit_code.map(|code| Label::new("process.exit.code", i64::from(code))));
        self.spans.ended(EndedSpan {
            name: "run",
            kind: SpanKind::Internal,
            span: self.span,
            parent: Some(self.parent),
            began: began.into(),
            ended: ended.into(),
            attributes,
            failed: (status != Some(Status::Succeeded)).then(|| words.to_owned()),
        });
    }
}
