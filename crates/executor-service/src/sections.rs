//! What a worker is told, as it travels: sections, and what they grant.

use std::time::{Duration, SystemTime};

use attune_core::{SpanOf, TraceParent, WorkerId};
use attune_dispatch::{Key, Section};
use attune_executor::owner::Dispatch;
use attune_executor::queue::Millis;
use attune_messages::v2;
use attune_runtime::{EndedSpan, Label, SpanKind, Spans};

/// A section as its worker reads it. That what it grants has waited is told as spans.
pub(crate) fn section(worker: WorkerId, section: Section<Dispatch>, spans: &Spans) -> v2::Section {
    let keys = |keys: Vec<Key>| keys.into_iter().map(v2::GrantKey::from).collect();
    v2::Section {
        worker,
        owner: section.owner,
        partition: section.partition,
        epoch: section.epoch,
        number: section.number,
        sync: section.sync.map(keys),
        sync_after: section.sync_after,
        sync_to: section.sync_to,
        settled: keys(section.settled),
        cancel: keys(section.cancel),
        grants: section
            .grants
            .into_iter()
            .map(|it| grant(it, spans))
            .collect(),
        recall: section.recall,
    }
}

fn grant(dispatch: Dispatch, spans: &Spans) -> v2::Grant {
    let traceparent = queue_span(&dispatch, spans);
    let Dispatch { grantee, body } = dispatch;
    let spec = &grantee.action.spec;
    v2::Grant {
        execution_id: grantee.execution_id,
        attempt: grantee.attempt,
        action_id: grantee.action.id,
        action_ref: spec.action_ref.as_str().to_owned(),
        parameters: body.parameters,
        run: spec.run.clone(),
        timeout_seconds: body.timeout_seconds.unwrap_or(spec.timeout_seconds),
        env: spec.env.clone(),
        resources: spec.resources,
        slots: grantee.slots,
        traceparent,
    }
}

/// Tells as a span for how long an execution has waited for the grant of this attempt, and gives what stands above
/// whatever its worker does.
///
/// It is made when the grant is stored and goes to its worker, from times that the owner has noted, so that nothing
/// is held open while somebody waits.
fn queue_span(dispatch: &Dispatch, spans: &Spans) -> Option<TraceParent> {
    let parent = dispatch.body.trace?;
    if !spans.wants(&parent) {
        return Some(parent);
    }
    let grantee = &dispatch.grantee;
    let key = (grantee.execution_id, grantee.attempt);
    let span = parent.span_of(SpanOf::Queue, key);
    let spec = &grantee.action.spec;
    spans.ended(EndedSpan {
        name: "queue",
        kind: SpanKind::Internal,
        span,
        parent: Some(parent),
        began: time(grantee.at - grantee.waited.max(0)),
        ended: time(grantee.at),
        attributes: vec![
            Label::new("attune.action.ref", spec.action_ref.as_str().to_owned()),
            Label::new("attune.execution.id", grantee.execution_id.0),
            Label::new("attune.attempt", i64::from(grantee.attempt.0)),
            Label::new("attune.pool", spec.pool.clone()),
        ],
        failed: None,
    });
    Some(span)
}

/// A time of an owner; one before 1970 is none.
fn time(at: Millis) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(at).unwrap_or(0));
    SystemTime::UNIX_EPOCH + since
}
