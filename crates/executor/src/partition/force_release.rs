//! An operator takes a slot from an attempt that will not give it back by itself.

use std::sync::Arc;

use attune_core::input::check_text;
use attune_core::{Action, Reject, RejectCode};

use super::holders::Lost;
use super::{Accepted, Effect, ForceRelease, Partition, submit};
use crate::counters::Counter;
use crate::notice::Notice;
use crate::queue::{Holder, Millis};
use crate::stored::Audit;

/// How many commands are remembered, for those that are delivered twice.
const REMEMBERED: usize = 100;

impl Partition {
    pub(super) fn force_release(
        &mut self,
        now: Millis,
        command: ForceRelease,
        reply_to: Option<Arc<str>>,
        out: &mut Vec<Effect>,
    ) {
        let request_id = command.request_id;
        let outcome = self.take_from_holder(now, command, out);
        submit::answer(reply_to, request_id, outcome, out);
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
        if let Some((_, accepted, entry)) = earlier.find(|(id, ..)| *id == command.request_id) {
            // The first copy may wait for its entry still: this one may not be done with before it.
            out.push(Effect::Audit(entry.clone()));
            return Ok(Accepted {
                repeated: true,
                ..*accepted
            });
        }
        check_text("who", &command.who)?;
        check_text("reason", &command.reason)?;
        let (execution_id, attempt) = (command.execution_id, command.attempt);
        if execution_id.partition() != self.id {
            let words = format!(
                "execution {execution_id} does not belong to partition {}",
                self.id
            );
            return Err(Reject::new(RejectCode::WrongPartition, words));
        }
        let Some((action, holder)) = self.holding(&command) else {
            let words = format!(
                "attempt {attempt} of execution {execution_id} holds no slot: it has ended, was \
                 released before, or waits"
            );
            // Also because it may be the second time that the command is decided: the first owner may
            // have released the slot and died before the entry about it was stored.
            out.push(Effect::Audit(Audit::ReleaseRefused {
                request_id: command.request_id,
                who: command.who,
                reason: command.reason,
                execution_id,
                attempt,
            }));
            return Err(Reject::new(RejectCode::AlreadyEnded, words));
        };
        let why = format!(
            "its slot was taken back by {}: {}",
            command.who, command.reason
        );
        let lost = Lost {
            begun: !command.never_begun,
            // An operator wants the slot free; a worker wants the attempt to go elsewhere.
            keeps: command.never_begun,
            why: &why,
        };
        let status = self.take_back(now, &action, execution_id, holder, &lost, out);
        // Whatever still runs ends, and nothing is reported of it.
        if let Some(worker) = holder.worker {
            let grant = (execution_id, attempt);
            out.push(Effect::Settled { worker, grant });
        }
        out.push(Effect::Count(Counter::ForceReleased));
        let action_ref = action.spec.action_ref.as_str().to_owned();
        out.push(Effect::Notice(Notice::ForceReleased {
            execution_id,
            attempt,
            action_ref: action_ref.clone(),
            status,
        }));
        let entry = Audit::ForceRelease {
            request_id: command.request_id,
            who: command.who,
            reason: command.reason,
            execution_id,
            attempt,
            action_ref,
            worker: command.worker,
            cancel_requested: holder.cancel_requested,
            status,
        };
        out.push(Effect::Audit(entry.clone()));
        let accepted = Accepted {
            execution_id: Some(execution_id),
            status: Some(status),
            position: None,
            repeated: false,
            priority: None,
        };
        if self.released.len() == REMEMBERED {
            self.released.pop_front();
        }
        let remembered = (command.request_id, accepted, entry);
        self.released.push_back(remembered);
        self.serve(now, action.id, out);
        Ok(accepted)
    }

    /// The action of the slot that a command names, and who holds it.
    fn holding(&self, command: &ForceRelease) -> Option<(Arc<Action>, Holder)> {
        let action = self.actions.get(self.index.get(&command.execution_id)?)?;
        let holder = self
            .queues
            .with_existing(action.id, |queue| queue.holder(command.execution_id))??;
        // Who stands ahead holds no slot that could be taken back; its worker may give it back all the same.
        let is_meant =
            holder.attempt == command.attempt && (!holder.is_ahead() || command.never_begun);
        is_meant.then(|| (Arc::clone(action), holder))
    }
}
