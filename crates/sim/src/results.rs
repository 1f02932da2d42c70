//! What clients read as the result of an execution: what the program of that attempt said, and
//! nothing else.

use std::collections::BTreeMap;

use attune_core::{Attempt, ExecutionId, Status};

use crate::lasting::Lasting;
use crate::oracle::{Key, Rule, Violation};
use crate::store::Ended;

/// What workers have said of runs: how each ended, and with which result.
#[derive(Debug, Default)]
pub(crate) struct Reports(BTreeMap<Key, (Status, String)>);

impl Reports {
    /// A worker says how a run has ended.
    pub(crate) fn add(&mut self, key: Key, status: Status, result: String) {
        self.0.insert(key, (status, result));
    }

    /// Whether a worker has said so of this attempt.
    pub(crate) fn contains(&self, id: ExecutionId, attempt: Attempt, status: Status) -> bool {
        let report = self.0.get(&(id, attempt));
        report.is_some_and(|(said, _)| *said == status)
    }

    /// Judges what stands in the history.
    pub(crate) fn judge(
        &self,
        id: ExecutionId,
        ended: &Ended,
        lasting: &Lasting,
    ) -> Option<Violation> {
        let attempt = ended.attempt;
        let by_run = matches!(
            ended.status,
            Status::Succeeded | Status::Failed | Status::TimedOut
        );
        if by_run && lasting.unsendable.contains_key(&id) {
            let is_clear = ended.status == Status::Failed && ended.error.is_some();
            let words = format!("{id} could not be sent, and ended as {ended:?}");
            return (!is_clear).then(|| Violation::of(Rule::Result, words));
        }
        let said = self.0.get(&(id, attempt));
        let said = said.filter(|(status, _)| *status == ended.status);
        let said = said.map(|(_, result)| result);
        // Whoever is cancelled may have said so itself, or never have run.
        let is_due = by_run || (ended.status == Status::Cancelled && ended.result.is_some());
        if (is_due && said != ended.result.as_ref()) || (!is_due && ended.result.is_some()) {
            let words = format!(
                "attempt {attempt} of {id} ended as {ended:?}, and its program said {said:?}"
            );
            return Some(Violation::of(Rule::Result, words));
        }
        None
    }
}
