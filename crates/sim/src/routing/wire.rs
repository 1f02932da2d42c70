//! Messages as they are on the wire, for what goes through a relay.

use std::sync::Arc;

use attune_core::{Outcome, RequestId, Submission};
use attune_executor::owner::Work;
use attune_executor::partition::{Completion, OnReject, Submit};
use attune_messages::v1::{self, EnforcementCreated, ExecutionCompleted, SlotRelease};
use attune_messages::{Envelope, Headers, decode_batch, encode};
use attune_routing::Message;
use bytes::Bytes;
use chrono::DateTime;
use uuid::Uuid;

/// No message of a run is larger.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// An encoded message, and what is around it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) body: Bytes,
    /// Clients set none.
    pub(crate) message_id: Option<Uuid>,
    pub(crate) headers: Headers,
}

/// Something that clients or workers publish.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    Firing(Box<Submission>),
    Completion(Completion),
}

impl Wire {
    /// A message with these items, of one kind.
    pub(super) fn of(message_id: Uuid, parts: Vec<Part>) -> Self {
        let (mut firings, mut completions) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Firing(submission) => firings.push(EnforcementCreated(*submission)),
                Part::Completion(completion) => {
                    completions.push(ExecutionCompleted(reported(completion)));
                }
            }
        }
        let body = if completions.is_empty() {
            encode(message_id, DateTime::UNIX_EPOCH, &firings)
        } else {
            encode(message_id, DateTime::UNIX_EPOCH, &completions)
        };
        Self::bare(body)
    }

    /// A message without anything around it.
    pub(super) fn bare(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            message_id: None,
            headers: Vec::new(),
        }
    }

    /// What a relay publishes.
    pub(super) fn from_relay(message: &Message) -> Self {
        Self {
            body: message.body.clone(),
            message_id: Some(message.message_id),
            headers: message.headers.clone(),
        }
    }

    /// A dead letter as an operator puts it back: no copy of any other.
    pub(super) fn put_back(self, arrival: Uuid) -> Self {
        Self {
            headers: vec![("put-back".to_owned(), arrival.to_string())],
            ..self
        }
    }

    /// The same as a newer program writes it.
    pub(super) fn newer(&self) -> Self {
        self.with_version(1, 2)
    }

    /// The same as a program of today writes it: a newer program reads both.
    pub(super) fn readable(&self) -> Self {
        self.with_version(2, 1)
    }

    fn with_version(&self, from: u32, to: u32) -> Self {
        let (from, to) = (format!("\"version\":{from}"), format!("\"version\":{to}"));
        Self {
            body: self.text().replacen(&from, &to, 1).into_bytes().into(),
            message_id: self.message_id,
            headers: self.headers.clone(),
        }
    }

    pub(super) fn is_newer(&self) -> bool {
        self.text().contains("\"version\":2")
    }

    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// What an owner reads in it.
    pub(crate) fn work(&self) -> Option<Work> {
        let envelope = Envelope::parse(&self.body, MAX_BYTES).ok()?;
        if envelope.is::<SlotRelease>() {
            let items = envelope.items::<SlotRelease>().ok()?.into_iter();
            let items = items.map(|SlotRelease(item)| completion(item));
            return Some(Work::Completions(items.collect()));
        }
        let id = RequestId(envelope.message_id);
        let items = envelope.items::<v1::Submit>().ok()?.into_iter().enumerate();
        let items = items.map(|(index, mut item)| {
            let own = item.submission.request_id.take();
            let request_id = own.unwrap_or_else(|| id.of_item(index));
            let on_reject = match item.on_reject {
                v1::OnReject::Answer => OnReject::Answer,
                v1::OnReject::Record => OnReject::Record,
            };
            Submit::new(request_id, item.submission, on_reject)
        });
        Some(Work::Submits(items.collect()))
    }

    /// The firings in a message to a relay or to the dead letters.
    pub(super) fn firings(&self) -> Vec<Submission> {
        let items = decode_batch::<EnforcementCreated>(&self.body, MAX_BYTES);
        items.into_iter().flatten().map(|item| item.0).collect()
    }
}

/// The requests in the work of an owner.
pub(crate) fn requests(work: &Work) -> Vec<RequestId> {
    match work {
        Work::Submits(items) => items.iter().map(|item| item.request_id).collect(),
        _ => Vec::new(),
    }
}

fn reported(completion: Completion) -> v1::Completion {
    let outcome = Arc::unwrap_or_clone(completion.outcome);
    v1::Completion {
        execution_id: completion.execution_id,
        attempt: completion.attempt,
        action_id: completion.action_id,
        status: outcome.status,
        result: outcome.result,
        error: outcome.error,
        code: outcome.code,
        exit_code: outcome.exit_code,
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        partition: None,
        worker: Some(completion.worker),
        // Where the broker vouches for nobody there is none.
        broker_user: completion.user.map(|user| user.to_string()),
        started_at: None,
        finished_at: None,
    }
}

fn completion(item: v1::Completion) -> Completion {
    Completion {
        worker: item
            .worker
            .unwrap_or(attune_core::WorkerId(uuid::Uuid::nil())),
        user: item.broker_user.map(Arc::from),
        ran: None,
        execution_id: item.execution_id,
        attempt: item.attempt,
        action_id: item.action_id,
        outcome: Arc::new(Outcome {
            status: item.status,
            code: item.code,
            result: item.result,
            error: item.error,
            exit_code: item.exit_code,
            stdout: item.stdout,
            stderr: item.stderr,
        }),
    }
}
