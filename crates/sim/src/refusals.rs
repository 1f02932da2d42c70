//! What clients were told is refused: a message whose sender knows that comes to nothing, however
//! often the broker brings it.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{Promise, RequestId, Status};
use attune_executor::partition::Answer;
use attune_executor::stored::Batch;

use crate::bus::{Body, Party};
use crate::client::asker;
use crate::oracle::Violation;
use crate::plan::Plant;
use crate::world::{Ev, Word, World};

/// One copy of a submission: who asks, and which of his tries it is.
type Copy = (usize, u32);

/// What is remembered of it.
#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<RequestId, Copies>);

/// The copies of one submission. Its owner decides about them in the order in which the broker was
/// given them: when the last is refused, so was each before it.
#[derive(Debug, Default)]
struct Copies {
    /// So many are on their way to the broker.
    under_way: u32,
    /// How often the broker was given each, and the last that it was given.
    given: BTreeMap<Copy, u32>,
    last: Option<Copy>,
    /// How many refusals of each its client has heard.
    told: BTreeMap<Copy, u32>,
    /// Whether it also comes as a firing, which has a way of its own to its owner.
    is_fired: bool,
}

impl Copies {
    /// Whether nothing is left that an owner may accept, as the client knows.
    fn is_final(&self) -> bool {
        let times = |of: &BTreeMap<Copy, u32>, copy| of.get(copy).copied().unwrap_or(0);
        let is_refused = |copy| times(&self.told, copy) >= times(&self.given, copy);
        !self.is_fired && self.under_way == 0 && self.last.as_ref().is_some_and(is_refused)
    }
}

impl Refusals {
    fn of(&mut self, body: &Body) -> Option<(&mut Copies, Option<Copy>)> {
        let Body::Submit(submit) = body else {
            return None;
        };
        let copies = self.0.entry(submit.request_id).or_default();
        Some((copies, submit.reply_to.as_deref().and_then(asker)))
    }

    /// A client sends a message.
    pub(crate) fn sent(&mut self, body: &Body) {
        if let Some((copies, _)) = self.of(body) {
            copies.under_way += 1;
        }
    }

    /// A client wants it to be recorded, and waits for no answer.
    pub(crate) fn fired(&mut self, request: RequestId) {
        self.0.entry(request).or_default().is_fired = true;
    }

    /// It is on its way no more, whatever the broker does with it.
    pub(crate) fn came(&mut self, body: &Body) {
        if let Some((copies, _)) = self.of(body) {
            copies.under_way = copies.under_way.saturating_sub(1);
        }
    }

    /// The broker is given a message. One that nobody waits for is a copy that nobody refuses.
    pub(crate) fn arrived(&mut self, body: &Body) {
        if let Some((copies, copy)) = self.of(body) {
            let copy = copy.unwrap_or((usize::MAX, 0));
            *copies.given.entry(copy).or_default() += 1;
            copies.last = Some(copy);
        }
    }

    fn is_final(&self, request: RequestId) -> bool {
        self.0.get(&request).is_some_and(Copies::is_final)
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

    /// A client hears that a copy of its request is refused; it does not ask again.
    pub(crate) fn heard_refusal(&mut self, request: RequestId, copy: Copy) {
        let copies = self.refusals.0.entry(request).or_default();
        *copies.told.entry(copy).or_default() += 1;
        if self.store.is_execution(request) {
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
