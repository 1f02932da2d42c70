//! What has happened, as it is told on the bus.

use std::collections::BTreeMap;

use attune_core::policy::EventKind;
use attune_executor::{ActionEvent, Happened};
use attune_messages::v1;
use chrono::DateTime;

/// The messages of these events, those of each kind together and in order.
pub(crate) fn by_kind(events: Vec<ActionEvent>) -> BTreeMap<EventKind, Vec<v1::ActionEvent>> {
    let mut kinds: BTreeMap<EventKind, Vec<v1::ActionEvent>> = BTreeMap::new();
    for event in events {
        kinds
            .entry(event.what.kind())
            .or_default()
            .push(told(event));
    }
    kinds
}

fn told(event: ActionEvent) -> v1::ActionEvent {
    let what = event.what;
    let at = DateTime::from_timestamp_millis(event.at).unwrap_or_default();
    let mut told = v1::ActionEvent::new(what.kind(), at, event.action_id, event.action_ref);
    if let Some((execution_id, attempt)) = what.execution() {
        (told.execution_id, told.attempt) = (Some(execution_id), Some(attempt));
    }
    match what {
        Happened::Accepted { position, .. } => told.position = Some(position),
        Happened::Rejected { request_id, code } => {
            told.request_id = Some(request_id);
            told.code = Some(code.as_str().to_owned());
        }
        Happened::Finished { status, code, .. } => {
            told.status = Some(status);
            told.code = code.map(|code| code.as_str().to_owned());
        }
        Happened::Retried { not_before, .. } => {
            told.not_before = DateTime::from_timestamp_millis(not_before);
        }
        Happened::Dropped { newcomer, .. } | Happened::Replaced { newcomer, .. } => {
            told.newcomer = Some(newcomer);
        }
        Happened::LimitChanged { earlier, limit } => {
            (told.limit, told.earlier_limit) = (limit, earlier);
        }
        Happened::Paused { mode } => told.mode = Some(mode),
        Happened::OperationFinished {
            operation,
            done,
            skipped,
        } => {
            told.operation = Some(operation);
            (told.done, told.skipped) = (Some(done), Some(skipped));
        }
        Happened::Started { .. } | Happened::Resumed => {}
    }
    told
}
