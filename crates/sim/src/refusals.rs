//! What clients were told is refused: a message whose sender knows that comes to nothing, however
//! often the broker brings it.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{Promise, RequestId, Status};
use attune_executor::partition::Answer;
use attune_executor::stored::Batch;

use crate::bus::{Body, Party};
use crate::oracle::Violation;
use crate::plan::Plant;
use crate::world::{Ev, Word, World};

/// What is remembered of it.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// How many messages of each request the broker was given: every one may be decided anew.
    messages: BTreeMap<RequestId, u32>,
    /// How many refusals of each request its client has heard: one of each message at most.
    told: BTreeMap<RequestId, u32>,
}

impl Refusals {
    /// The broker is given a message.
    pub(crate) fn arrived(&mut self, body: &Body) {
        if let Body::Submit(submit) = body {
            *self.messages.entry(submit.request_id).or_default() += 1;
        }
    }

    /// Whether every message of this request was refused, as its client knows.
    fn is_final(&self, request: RequestId) -> bool {
        let messages = self.messages.get(&request).copied().unwrap_or(0);
        self.told
            .get(&request)
            .is_some_and(|told| *told >= messages)
    }
}

impl World {
    /// The broker is given acknowledgements whose sender waits until it has taken them. Those of a
    /// connection that is gone it never takes.
    pub(crate) fn refuse(
        &mut self,
        party: Party,
        acks: &[(u64, u64)],
        answers: Vec<(Arc<str>, Answer)>,
    ) {
        let mut is_taken = true;
        for (subscription, place) in acks {
            match self.bus.ack(*subscription, *place) {
                Some(name) => self.pump(name),
                None => is_taken = false,
            }
        }
        if is_taken && !self.has(Plant::RefuseFirst) {
            self.soon(Ev::To(party, Word::Taken(answers)));
        }
    }

    /// A client hears that its request is refused; it does not ask again.
    pub(crate) fn heard_refusal(&mut self, request: RequestId) {
        *self.refusals.told.entry(request).or_default() += 1;
        if self.store.requests.contains_key(&request) {
            self.judge_refusal(request);
        }
    }

    /// These executions are stored.
    pub(crate) fn judge_refusals(&mut self, batch: &Batch) {
        let instant = batch.instant.iter().map(|(new, _)| new);
        let new = batch.inserts.iter().chain(instant);
        let accepted = new.filter(|new| new.status != Status::Rejected);
        let requests: Vec<RequestId> = accepted.map(|new| new.request_id).collect();
        for request in requests {
            self.judge_refusal(request);
        }
    }

    fn judge_refusal(&mut self, request: RequestId) {
        if self.refusals.is_final(request) {
            let words =
                format!("{request} is refused, as its client was told, and is an execution");
            self.oracle
                .blame(self.now, Violation::of(Promise::I1, words));
        }
    }
}
