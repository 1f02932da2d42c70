//! Waits for answers, and has sent once more what has none.

use crate::sync::Arc;
use std::time::Duration;

use attune_core::{Refusal, Reject};
use attune_messages::v1::{Accepted, AnswerOutcome};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::ClientError;
use super::pending::{Outcome, Waiter};
use super::{Shared, lane};

/// After how long a command without an answer is sent once more, or after half of its deadline if that is
/// sooner; then after twice as long, and so on.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// When a caller stops waiting, and when it sends once more.
pub(super) struct Deadline {
    began: Instant,
    /// After how long it sends once more for the first time.
    first: Duration,
    end: Instant,
    /// Has changed when the address for answers was made anew since then.
    renewals: watch::Receiver<u64>,
}

impl Deadline {
    /// One so long from now.
    pub(super) fn after(shared: &Shared, duration: Duration) -> Self {
        let began = Instant::now();
        let mut renewals = shared.renewals.clone();
        renewals.mark_unchanged();
        Self {
            began,
            first: ASK_AGAIN.min(duration / 2),
            end: later(began, duration),
            renewals,
        }
    }
}

/// A later moment; one that the clock cannot hold is as good as none: thirty years.
fn later(now: Instant, duration: Duration) -> Instant {
    let far = now + Duration::from_secs(30 * 365 * 24 * 3600);
    now.checked_add(duration).unwrap_or(far)
}

/// The wait for a command, if there is one, and how it has ended, if it has.
type Wait = (Result<Waiter, ClientError>, Option<Outcome>);

/// Waits for the outcomes of commands that are on their way, and sends those once more that have none,
/// from time to time and when calls and answers may have been lost.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    waiters: Vec<Result<Waiter, ClientError>>,
    deadline: Deadline,
) -> Vec<Result<Accepted, ClientError>> {
    let mut waits: Vec<_> = waiters.into_iter().map(|waiter| (waiter, None)).collect();
    let mut renewals = deadline.renewals;
    let (mut pause, mut again_at) = (deadline.first, deadline.began + deadline.first);
    loop {
        tokio::select! {
            biased;
            () = answered(&mut waits) => break,
            () = tokio::time::sleep_until(deadline.end) => break,
            // The other end is with whoever listens at the address.
            Ok(()) = renewals.changed() => {}
            () = tokio::time::sleep_until(again_at) => {
                pause = pause.saturating_mul(2);
                again_at = later(again_at, pause);
            }
        }
        send_again(shared, &waits);
    }
    let results = waits.into_iter().map(|(waiter, outcome)| {
        let waiter = waiter?;
        result(&waiter, outcome)
    });
    results.collect()
}

/// Waits until every wait has ended. Cancel safe.
async fn answered(waits: &mut [Wait]) {
    for (waiter, outcome) in waits {
        if let (Ok(waiter), None) = (waiter, &outcome) {
            *outcome = Some(waiter.outcome().await);
        }
    }
}

/// Sends what has no outcome once more.
fn send_again(shared: &Arc<Shared>, waits: &[Wait]) {
    for (waiter, outcome) in waits {
        if let (Ok(waiter), None) = (waiter, outcome)
            && let Some(command) = waiter.again()
        {
            tracing::debug!(request.id = %waiter.request_id(), "no answer yet; sending again");
            lane::push(shared, waiter.partition(), vec![command]);
        }
    }
}

/// What a caller is told about an outcome, or about the lack of one.
fn result(waiter: &Waiter, outcome: Option<Outcome>) -> Result<Accepted, ClientError> {
    let reason = match outcome {
        Some(Outcome::Answered(AnswerOutcome::Accepted(accepted))) => return Ok(accepted),
        Some(Outcome::Answered(AnswerOutcome::Rejected(reject))) => {
            return Err(ClientError::Rejected(reject));
        }
        Some(Outcome::Refused(why)) if why.is_final() => {
            let reject = Reject::field("parameters", format!("the command is refused: {why}"));
            return Err(ClientError::Rejected(reject));
        }
        Some(Outcome::Refused(Refusal::Forbidden(why))) => {
            return Err(ClientError::Forbidden(why));
        }
        Some(Outcome::Refused(_)) => return Err(ClientError::Unroutable(waiter.partition())),
        Some(Outcome::Unknown(reason)) => reason,
        None if waiter.is_confirmed() => "its owner has not answered",
        None => "the bus has not confirmed it",
    };
    let (request_id, reason) = (waiter.request_id(), reason.to_owned());
    Err(ClientError::NotConfirmed { request_id, reason })
}
