//! What is told of what happens, for the actions whose policies ask for it.

use attune_core::policy::EventKind;
use attune_core::{Action, ActionId, Attempt, EndCode, ExecutionId, Reject, RequestId, Status};

use super::operating::Part;
use super::{Effect, Partition};
use crate::happened::{ActionEvent, Happened};

impl Partition {
    /// Tells something of an action, if that is wanted.
    pub(super) fn happened(&self, action: &Action, what: Happened, out: &mut Vec<Effect>) {
        if action.spec.policy.events.contains(what.kind()) {
            out.push(Effect::Event(Box::new(ActionEvent {
                at: self.now,
                action_id: action.id,
                action_ref: action.spec.action_ref.as_str().to_owned(),
                what,
            })));
        }
    }

    /// The same, of an action that is known by its number.
    pub(super) fn happened_to(&self, action_id: ActionId, what: Happened, out: &mut Vec<Effect>) {
        if let Some(action) = self.actions.get(&action_id) {
            self.happened(action, what, out);
        }
    }

    /// Tells that an execution has been given its slot.
    pub(super) fn has_started(
        &self,
        action: &Action,
        (execution_id, attempt): (ExecutionId, Attempt),
        out: &mut Vec<Effect>,
    ) {
        let what = Happened::Started {
            execution_id,
            attempt,
        };
        self.happened(action, what, out);
    }

    /// Tells that an execution has ended, in whose place `newcomer` is there if that is why.
    pub(super) fn has_ended(
        &self,
        action_id: ActionId,
        (execution_id, attempt): (ExecutionId, Attempt),
        (status, code): (Status, Option<EndCode>),
        newcomer: Option<ExecutionId>,
        out: &mut Vec<Effect>,
    ) {
        let what = match (code, newcomer) {
            (Some(EndCode::Dropped), Some(newcomer)) => Happened::Dropped {
                execution_id,
                attempt,
                newcomer,
            },
            (Some(EndCode::Replaced), Some(newcomer)) => Happened::Replaced {
                execution_id,
                attempt,
                newcomer,
            },
            _ => Happened::Finished {
                execution_id,
                attempt,
                status,
                code,
            },
        };
        self.happened_to(action_id, what, out);
    }

    /// Tells that a submission was refused.
    pub(super) fn was_refused(
        &self,
        action_id: Option<ActionId>,
        request_id: RequestId,
        reject: &Reject,
        out: &mut Vec<Effect>,
    ) {
        let code = reject.code;
        if let Some(action_id) = action_id {
            self.happened_to(action_id, Happened::Rejected { request_id, code }, out);
        }
    }

    /// Tells those actions of the partition that an operation is about that it is over here.
    pub(super) fn operation_is_over(&self, part: &Part, out: &mut Vec<Effect>) {
        // Of one that names its executions it is not known whose actions' they are.
        if !part.progress.finished || !part.operation.filter.ids.is_empty() {
            return;
        }
        let what = Happened::OperationFinished {
            operation: part.operation.id,
            done: part.progress.done,
            skipped: part.progress.skipped,
        };
        let wanted = |action: &Action| {
            let events = action.spec.policy.events;
            events.contains(EventKind::OperationFinished)
        };
        for action in self.actions.values().filter(|action| wanted(action)) {
            if part.operation.filter.covers(&action.spec.action_ref) {
                self.happened(action, what, out);
            }
        }
    }
}

#[cfg(test)]
#[path = "happening_tests.rs"]
mod tests;
