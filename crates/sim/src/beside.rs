//! What is stored beside the executions: dead letters, and entries of the audit log.

use std::collections::BTreeSet;

use attune_core::{Promise, RequestId};
use attune_executor::round::Commit;
use attune_executor::stored::{Audit, Batch};

use crate::bus::Body;
use crate::oracle::{Rule, Violation};
use crate::plan::Time;
use crate::world::World;

/// A submission by its request and the digest of its body.
type Submitted = (RequestId, i64);

/// What is there, and what must be.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Until then the store takes nothing of it.
    pub(crate) refused_until: Time,
    letters: BTreeSet<Submitted>,
    /// The requests that entries of the audit log name.
    entries: BTreeSet<RequestId>,
    /// What the broker has taken for good, whose senders wait for no answer.
    promised: BTreeSet<Submitted>,
}

/// Whether nothing was decided in a commit about executions, or acknowledged: it only keeps what stands
/// beside those of an earlier one.
pub(crate) fn stands_beside(commit: &Commit) -> bool {
    let keeps = !commit.batch.letters.is_empty() || !commit.batch.audit.is_empty();
    keeps && commit.decided.is_empty() && commit.executions().next().is_none()
}

impl World {
    /// The broker has this for good, as its sender may know.
    pub(crate) fn promise(&mut self, body: &Body) {
        if let Body::Submit(submit) = body {
            let submitted = (submit.request_id, submit.submission.digest());
            self.beside.promised.insert(submitted);
        }
    }

    /// Whether the store does not take a batch because of what stands beside its executions.
    pub(crate) fn refuses_beside(&self, batch: &Batch) -> bool {
        let nothing = batch.letters.is_empty() && batch.audit.is_empty();
        !nothing && self.now < self.beside.refused_until
    }

    /// A batch was written.
    pub(crate) fn keep_beside(&mut self, batch: &Batch) {
        let letters = batch.letters.iter();
        let letters = letters.map(|(_, letter)| (letter.request_id, letter.digest));
        self.beside.letters.extend(letters);
        let entries = batch.audit.iter().filter_map(|entry| match entry {
            Audit::ForceRelease { request_id, .. } | Audit::ReleaseRefused { request_id, .. } => {
                Some(*request_id)
            }
            Audit::Violation(_) => None,
        });
        self.beside.entries.extend(entries);
    }

    /// What the broker took is an execution or a letter, and whatever an operator was answered is in
    /// the audit log.
    pub(crate) fn end_beside(&mut self) {
        let beside = &self.beside;
        let is_execution = |(request, digest): &Submitted| {
            let stored = self.store.requests.get(request);
            stored.is_some_and(|(_, of)| of == digest)
        };
        let mut promised = beside.promised.iter();
        let lost = promised.find(|it| !is_execution(it) && !beside.letters.contains(it));
        let lost = lost.map(|(request, _)| {
            let words = format!("{request}: the broker took a body that is nowhere");
            Violation::of(Promise::I1, words)
        });
        let mut asks = self.asks.iter();
        let unwritten = asks.find(|ask| {
            let is_release = matches!(ask.body, Body::Release(..));
            is_release && ask.done && !beside.entries.contains(&ask.request_id)
        });
        let unwritten = unwritten.map(|ask| {
            let request = ask.request_id;
            let words = format!("{request} of an operator was answered and is in no audit log");
            Violation::of(Rule::Audit, words)
        });
        for violation in lost.into_iter().chain(unwritten) {
            self.oracle.blame(self.now, violation);
        }
    }
}
