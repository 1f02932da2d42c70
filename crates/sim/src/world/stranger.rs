//! Ends of runs: as workers report them, and as somebody forges them.

use std::sync::Arc;

use attune_core::{ActionId, Attempt, ExecutionId, RawValue, Status, WorkerId};
use attune_executor::partition::Completion;

use super::{Ev, World};
use crate::bus::{Body, Name};

/// Who forges them.
const STRANGER: &str = "stranger";

/// A completion as a worker reports it.
pub(crate) fn completion(
    (execution_id, attempt): (ExecutionId, Attempt),
    action_id: ActionId,
    (status, worker): (Status, WorkerId),
    result: &str,
) -> Completion {
    let mut outcome = attune_core::Outcome::of(status, None);
    outcome.result = RawValue::from_string(result.to_owned()).ok();
    Completion {
        execution_id,
        attempt,
        action_id,
        outcome: Arc::new(outcome),
        worker,
        user: None,
        ran: None,
    }
}

impl World {
    /// Another user of the broker says of everything that is granted to a worker that it has ended. It guesses well:
    /// ids follow one another, and who has been granted something stands in many places.
    pub(crate) fn forge_ends(&mut self) {
        let granted = self.store.active.iter();
        let granted = granted
            .filter_map(|(id, row)| Some(((*id, row.attempt), row.action, row.worker?)))
            .collect::<Vec<_>>();
        for (key, action, worker) in granted {
            let mut forged = completion(key, action, (Status::Succeeded, worker), "\"forged\"");
            forged.user = Some(Arc::from(STRANGER));
            let name = Name::Control(key.0.partition().0);
            let body = Body::Completed(Arc::new(forged));
            self.push(self.now, Ev::Arrive(name, body, None));
        }
    }
}
