//! Listens at the reply address.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use attune_messages::v1::Answer;
use attune_messages::{DecodeError, decode_batch};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::pending::Outcome;
use attune_bus::port::{Delivery, Subscriber};

/// How many messages of answers are acknowledged together at most.
const ANSWERS_AT_ONCE: usize = 64;
/// How large a message of answers may be. Owners pack what one commit has decided: thousands of
/// answers of a few hundred bytes at most.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Brings answers to those who wait, until the client is dropped or the bus is closed.
pub(super) async fn listen(shared: Arc<Shared>, mut answers: Subscriber, stop: CancellationToken) {
    let settler = answers.settler();
    let mut tags = Vec::with_capacity(ANSWERS_AT_ONCE);
    loop {
        let first = tokio::select! {
            () = stop.cancelled() => return,
            first = answers.next() => first,
        };
        if first.is_none() {
            // Nobody will be answered any more; waiting for deadlines would only be slower.
            shared
                .pending
                .fail_all(&Outcome::Unknown("the bus was closed"));
            return;
        }
        let mut next = first;
        while let Some(delivery) = next {
            if let Err(error) = take(&shared, &delivery) {
                let times = shared.unreadable_answers.fetch_add(1, Ordering::Relaxed) + 1;
                // Whoever may write there shall not fill the log.
                if times.is_power_of_two() {
                    tracing::warn!(%error, times, "a message at the reply address is not an answer");
                }
            }
            tags.push(delivery.tag);
            next = if tags.len() < ANSWERS_AT_ONCE {
                answers.try_next()
            } else {
                None
            };
        }
        settler.ack(&tags).await;
        tags.clear();
    }
}

fn take(shared: &Shared, delivery: &Delivery) -> Result<(), DecodeError> {
    for answer in decode_batch::<Answer>(&delivery.body, MAX_BYTES)? {
        if !shared.pending.answer(&answer) {
            shared.unmatched_answers.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(request.id = %answer.request_id, "nobody waits for this answer");
        }
    }
    Ok(())
}
