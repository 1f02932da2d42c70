//! Publishing until it is known what became of each message.

use std::collections::HashMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::port::{Bus, Outgoing, PublishError, Refusal, Refused};

/// How long to go on with a message that finds no subscriber or no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes.
    UntilStopped,
    /// It may be refused so often, at least once; then it is given back as refused.
    Refusals(u32),
}

/// What became of the messages of one [`publish_until_confirmed`]. Whatever is in neither list
/// was confirmed.
#[derive(Debug, Default)]
pub struct Published {
    /// Refused for good, or as often as the caller's patience allows.
    pub refused: Vec<Gone>,
    /// Told to stop, given up by the caller, or the bus was closed: these may have been kept or
    /// not.
    pub unknown: Vec<Outgoing>,
    /// The bus was closed.
    pub closed: bool,
}

/// A message that was refused.
#[derive(Debug)]
pub struct Gone {
    /// The message.
    pub message: Outgoing,
    /// Why, the last time.
    pub why: Refusal,
    /// Whether an attempt before was not confirmed: it may have been kept all the same.
    pub maybe_kept: bool,
}

impl Published {
    /// Whether every message was confirmed.
    pub fn is_all(&self) -> bool {
        self.refused.is_empty() && self.unknown.is_empty()
    }
}

/// Publishes messages until each of them has an end, always under the same ids, so that whoever
/// receives one twice knows it:
///
/// - *confirmed*: done with;
/// - *too large* or *invalid*: given back as refused, at once;
/// - *unroutable* or *full*: published again as long as `patience` allows. The other messages of
///   the call are not held up, so that it may arrive after them;
/// - *not confirmed*: published again;
/// - the bus is *closed*: ends with what is left as unknown.
///
/// After each failure `pause` is asked how long to wait, with what is left; `None` gives up. It is
/// the place to log and to count. `stop` ends the wait. A publish under way is never dropped.
pub async fn publish_until_confirmed(
    bus: &dyn Bus,
    mut messages: Vec<Outgoing>,
    patience: Patience,
    stop: &CancellationToken,
    mut pause: impl FnMut(&PublishError, &[Outgoing]) -> Option<Duration>,
) -> Published {
    let mut published = Published::default();
    let mut refusals: HashMap<Uuid, u32> = HashMap::new();
    let mut maybe_kept = false;
    while !messages.is_empty() {
        let error = match bus.publish(messages.clone()).await {
            Ok(()) => return published,
            Err(error) => error,
        };
        match &error {
            PublishError::Closed => {
                published.closed = true;
                break;
            }
            PublishError::Unconfirmed(_) => maybe_kept = true,
            PublishError::Refused(refused) => {
                let (again, gone) = sort(messages, refused, patience, &mut refusals);
                messages = again;
                published
                    .refused
                    .extend(gone.into_iter().map(|(message, why)| Gone {
                        message,
                        why,
                        maybe_kept,
                    }));
            }
        }
        if messages.is_empty() {
            return published;
        }
        let Some(wait) = pause(&error, &messages) else {
            break;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(wait) => {}
        }
    }
    published.unknown = messages;
    published
}

/// Parts what was refused into what is published again and what is given up; the rest was
/// confirmed.
fn sort(
    messages: Vec<Outgoing>,
    refused: &[Refused],
    patience: Patience,
    refusals: &mut HashMap<Uuid, u32>,
) -> (Vec<Outgoing>, Vec<(Outgoing, Refusal)>) {
    let why: HashMap<Uuid, &Refusal> = refused
        .iter()
        .map(|refused| (refused.message_id, &refused.why))
        .collect();
    let (mut again, mut gone) = (Vec::new(), Vec::new());
    for message in messages {
        let Some(why) = why.get(&message.message_id) else {
            continue;
        };
        let count = refusals.entry(message.message_id).or_default();
        *count += 1;
        let over = matches!(patience, Patience::Refusals(most) if *count >= most);
        if over || why.is_final() {
            gone.push((message, (*why).clone()));
        } else {
            again.push(message);
        }
    }
    (again, gone)
}
