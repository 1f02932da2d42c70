//! What tests of a partition have happen in it.

use std::sync::Arc;

use attune_core::{Attempt, ExecutionId, Outcome, Priority, RequestId, Submission};

use super::test_world::{ACTION, WORKER};
use super::{Completion, Event, OnReject, Submit};
use crate::stored::StoredSlot;

/// What the comparison of the slots is told, when nothing changed meanwhile.
pub(super) fn reconcile(slots: Vec<StoredSlot>) -> Event {
    Event::Reconcile {
        slots,
        changed: Arc::default(),
    }
}

pub(super) fn submit_event(request_id: RequestId, priority: Priority) -> Event {
    let submission = Submission {
        priority: Some(priority),
        ..Submission::new("core.noop")
    };
    submitted(request_id, submission, OnReject::Answer)
}

pub(super) fn submitted(
    request_id: RequestId,
    submission: Submission,
    on_reject: OnReject,
) -> Event {
    Event::Submit {
        submit: Submit::new(request_id, submission, on_reject),
        known: None,
        reply_to: Some(Arc::from("asker")),
    }
}

pub(super) fn cancel(execution_id: ExecutionId) -> Event {
    Event::Cancel {
        request_id: RequestId::fresh(),
        execution_id,
        reply_to: Some(Arc::from("asker")),
    }
}

pub(super) fn completed(id: ExecutionId, attempt: i32) -> Event {
    Event::Completed(completion(id, attempt))
}

pub(super) fn completion(id: ExecutionId, attempt: i32) -> Completion {
    Completion {
        execution_id: id,
        attempt: Attempt(attempt),
        action_id: ACTION,
        outcome: Arc::new(Outcome::succeeded(None)),
        worker: WORKER,
        user: None,
        ran: Some(5),
    }
}
