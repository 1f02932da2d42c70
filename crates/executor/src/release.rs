//! An operator takes a slot from an attempt that will not give it back by itself.

use std::sync::Arc;

use attune_core::input::check_text;
use attune_core::{Action, Reject, RejectCode};
use attune_messages::v1::{Accepted, AnswerOutcome, ForceRelease};
use attune_store::NewAudit;
use attune_store::audit::what;
use serde_json::json;

use crate::action_queue::{Holder, Millis};
use crate::event::{Counter, Effect};
use crate::partition_core::PartitionCore;
use crate::requests::answer;

/// How many commands are remembered, for those that are delivered twice.
const REMEMBERED: usize = 100;

impl PartitionCore {
    pub(crate) fn force_release(
        &mut self,
        now: Millis,
        command: ForceRelease,
        reply_to: Option<Arc<str>>,
        out: &mut Vec<Effect>,
    ) {
        let request_id = command.request_id;
        let outcome = match self.take_from_holder(now, command, out) {
            Ok(accepted) => AnswerOutcome::Accepted(accepted),
            Err(reject) => AnswerOutcome::Rejected(reject),
        };
        answer(reply_to, request_id, outcome, out);
    }

    /// The command names the attempt, so that it never takes the slot of a later one, however
    /// often it is delivered.
    fn take_from_holder(
        &mut self,
        now: Millis,
        command: ForceRelease,
        out: &mut Vec<Effect>,
    ) -> Result<Accepted, Reject> {
        let mut earlier = self.released.iter();
        if let Some((_, accepted)) = earlier.find(|(id, _)| *id == command.request_id) {
            return Ok(Accepted {
                repeated: true,
                ..accepted.clone()
            });
        }
        check_text("who", &command.who)?;
        check_text("reason", &command.reason)?;
        let (execution_id, attempt) = (command.execution_id, command.attempt);
        let Some((action, holder)) = self.holding(&command) else {
            let words = format!(
                "attempt {attempt} of execution {execution_id} holds no slot: it has ended, was \
                 released before, or waits"
            );
            return Err(Reject::new(RejectCode::AlreadyEnded, words));
        };
        let why = format!(
            "its slot was taken back by {}: {}",
            command.who, command.reason
        );
        let status = self.take_back(&action, execution_id, holder, &why, out);
        // Whatever still runs ends; its report finds no holder.
        out.push(Effect::CancelRun {
            execution_id,
            attempt,
        });
        out.push(Effect::Count(Counter::ForceReleased));
        out.push(Effect::Audit(Box::new(NewAudit {
            request_id: command.request_id,
            who: command.who,
            what: what::FORCE_RELEASE,
            target: execution_id.to_string(),
            reason: Some(command.reason),
            before: Some(json!({
                "action_ref": action.spec.action_ref,
                "attempt": attempt,
                "worker": command.worker,
                "cancel_requested": holder.cancel_requested,
            })),
            after: Some(json!({"status": status})),
        })));
        tracing::warn!(
            execution.id = %execution_id,
            execution.attempt = %attempt,
            "action.ref" = %action.spec.action_ref,
            status = %status,
            "an operator took a slot back"
        );
        let accepted = Accepted {
            execution_id: Some(execution_id),
            status: Some(status),
            position: None,
            repeated: false,
        };
        if self.released.len() == REMEMBERED {
            self.released.pop_front();
        }
        let remembered = (command.request_id, accepted.clone());
        self.released.push_back(remembered);
        self.serve(now, action.id, out);
        Ok(accepted)
    }

    /// The action of the slot that a command names, and who holds it.
    fn holding(&self, command: &ForceRelease) -> Option<(Arc<Action>, Holder)> {
        self.actions.values().find_map(|action| {
            let holder = self
                .queues
                .with_existing(action.id, |queue| queue.holder(command.execution_id))??;
            (holder.attempt == command.attempt).then(|| (Arc::clone(action), holder))
        })
    }
}
