//! Ends of runs, as workers report them.

use std::sync::Arc;

use attune_core::{ActionId, Attempt, ExecutionId, RawValue, Status, WorkerId};
use attune_executor::partition::Completion;

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
