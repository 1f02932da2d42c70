//! Completions on their way out, and how they are fitted into messages.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use std::collections::VecDeque;

use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_messages::v1::ExecutionCompleted;
use attune_messages::{ItemTooLarge, Pack, PackBounds, Packer, message_bytes};
use tokio::sync::Notify;

/// Completions of one message, at most.
pub(crate) const MAX_ITEMS: usize = 100;
/// With so many completions unconfirmed, nothing more is claimed: what cannot be reported must
/// not pile up without bound. What runs already may still add to it.
const MAX_HELD: usize = 4096;
/// The same for their size, in bytes.
const MAX_HELD_BYTES: usize = 64 * 1024 * 1024;

/// What has ended and is not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Wakes the reporter: something to send, or the end.
    filled: Notify,
    /// Wakes whoever waits for room.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<ExecutionCompleted>,
    /// Waiting or sent and not confirmed.
    held: usize,
    held_bytes: usize,
    closed: bool,
}

/// Which attempt a completion ends, and under whose lease.
pub(crate) type Ended = Option<(WorkerId, (ExecutionId, Attempt))>;

/// What goes out together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) items: Vec<ExecutionCompleted>,
    bytes: usize,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a completion on its way. Never waits: its size is bounded by not claiming while
    /// [`has_room`](Self::has_room) says no.
    pub(crate) fn push(&self, item: ExecutionCompleted) {
        let mut state = self.lock();
        state.held += 1;
        state.held_bytes += weight(&item);
        state.waiting.push_back(item);
        drop(state);
        self.filled.notify_one();
    }

    /// Whether more may be claimed.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.lock();
        state.held < MAX_HELD && state.held_bytes < MAX_HELD_BYTES
    }

    /// Waits until something was confirmed. For one waiter.
    pub(crate) async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// How many are not confirmed.
    pub(crate) fn held(&self) -> usize {
        self.lock().held
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// The next `max` at most, as soon as there is one; `None` when it is closed and empty. For
    /// one reader.
    pub(crate) async fn next(&self, max: usize) -> Option<Batch> {
        loop {
            {
                let mut state = self.lock();
                if !state.waiting.is_empty() {
                    let count = max.min(state.waiting.len());
                    let items: Vec<_> = state.waiting.drain(..count).collect();
                    let bytes = items.iter().map(weight).sum();
                    return Some(Batch { items, bytes });
                }
                if state.closed {
                    return None;
                }
            }
            // A notification sent since the look above is kept for us.
            self.filled.notified().await;
        }
    }

    /// `count` of `bytes` are confirmed.
    pub(crate) fn confirmed(&self, count: usize, bytes: usize) {
        let mut state = self.lock();
        state.held -= count;
        state.held_bytes -= bytes;
        drop(state);
        self.emptied.notify_one();
    }
}

impl Batch {
    /// Its size as the outbox counts it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fits the items into as few messages of at most `max_bytes` as their order allows.
    pub(crate) fn into_packs(self, max_bytes: usize) -> Vec<Pack<ExecutionCompleted, Ended>> {
        let mut packer = Packer::new(PackBounds::new(MAX_ITEMS, max_bytes));
        for mut item in self.items {
            let id = item.0.execution_id;
            let key = (item.0.execution_id, item.0.attempt);
            let ended = item.0.worker.map(|worker| (worker, key));
            if let Err((error, _)) = add(&mut packer, &mut item, ended, max_bytes) {
                // Not with the smallest bound that a worker's options allow.
                tracing::error!(execution.id = %id, %error, "a completion cannot be reported");
            }
        }
        packer.finish()
    }
}

/// The bytes of text in a completion.
fn weight(item: &ExecutionCompleted) -> usize {
    let item = &item.0;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let result = item.result.as_ref().map_or(0, |result| result.get().len());
    result + text(&item.error) + text(&item.stdout) + text(&item.stderr)
}

/// Adds a completion, cut until a message can hold it. Output goes first, then the result; the
/// status always stays as it is.
fn add(
    packer: &mut Packer<ExecutionCompleted, Ended>,
    item: &mut ExecutionCompleted,
    ended: Ended,
    max_bytes: usize,
) -> Result<(), (ItemTooLarge, Ended)> {
    let Err((_, ended)) = packer.add(item, ended) else {
        return Ok(());
    };
    // With three texts of a 32nd each, at most 18/32 are used even when all is escaped.
    let share = max_bytes.saturating_sub(message_bytes::<ExecutionCompleted>(0)) / 32;
    cut(&mut item.0.stdout, share);
    cut(&mut item.0.stderr, share);
    let Err((_, ended)) = packer.add(item, ended) else {
        return Ok(());
    };
    let completion = &mut item.0;
    cut(&mut completion.error, share);
    if let Some(result) = completion.result.take() {
        let note = format!(
            "[the result was cut: it has {} bytes, more than a message may hold]",
            result.get().len()
        );
        let error = completion.error.take();
        completion.error = Some(error.map_or(note.clone(), |error| format!("{error} {note}")));
    }
    packer.add(item, ended)
}

fn cut(text: &mut Option<String>, max: usize) {
    if let Some(text) = text
        && text.len() > max
    {
        let kept = text.floor_char_boundary(max);
        let mark = format!("… [cut: {} bytes more]", text.len() - kept);
        text.truncate(kept);
        text.push_str(&mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::{ActionId, Status};
    use attune_messages::decode_batch;
    use attune_messages::v1::Completion;
    use uuid::Uuid;

    fn completion(id: i64) -> Completion {
        Completion {
            execution_id: ExecutionId(id),
            attempt: Attempt(1),
            action_id: ActionId(1),
            status: Status::Succeeded,
            result: None,
            error: None,
            exit_code: None,
            stdout: None,
            stderr: None,
            partition: Some(ExecutionId(id).partition()),
            worker: Some(attune_core::WorkerId::fresh()),
            started_at: Some(chrono::Utc::now()),
            finished_at: Some(chrono::Utc::now()),
        }
    }

    /// Packs, sends and reads back; says how many items each message had.
    fn pack(items: Vec<Completion>, max_bytes: usize) -> (Vec<usize>, Vec<Completion>) {
        let items: Vec<_> = items.into_iter().map(ExecutionCompleted).collect();
        let bytes = items.iter().map(weight).sum();
        let mut counts = Vec::new();
        let mut read = Vec::new();
        for pack in (Batch { items, bytes }).into_packs(max_bytes) {
            let body = pack.encode(Uuid::new_v4(), chrono::Utc::now());
            counts.push(pack.tags().len());
            let items = decode_batch::<ExecutionCompleted>(&body, max_bytes).unwrap();
            read.extend(items.into_iter().map(|item| item.0));
        }
        (counts, read)
    }

    #[test]
    fn small_completions_travel_together_in_order() {
        let (counts, read) = pack((1..=250).map(completion).collect(), 1024 * 1024);
        assert_eq!(counts, [100, 100, 50]);
        assert!(read.iter().map(|item| item.execution_id.0).eq(1..=250));
    }

    #[test]
    fn a_message_never_exceeds_its_bound() {
        let with_output = |id, length: usize| Completion {
            stdout: Some("\u{1}é".repeat(length)),
            ..completion(id)
        };
        let items = vec![with_output(1, 600), with_output(2, 600), with_output(3, 30)];
        let (counts, read) = pack(items, 8192);
        assert_eq!(counts, [1, 2]);
        assert_eq!(read[0].stdout.as_ref().unwrap().chars().count(), 1200);
    }

    #[test]
    fn one_that_is_too_large_is_cut_and_says_so() {
        let text = "\u{1}".repeat(100_000);
        let large = Completion {
            stdout: Some(text.clone()),
            stderr: Some(text.clone()),
            error: Some(text.clone()),
            result: Some(serde_json::value::to_raw_value(&text).unwrap()),
            ..completion(1)
        };
        let (_, read) = pack(vec![large], 4096);
        let cut = &read[0];
        assert_eq!(cut.status, Status::Succeeded);
        assert!(cut.result.is_none());
        assert!(cut.stdout.as_ref().unwrap().ends_with("bytes more]"));
        let error = cut.error.as_ref().unwrap();
        assert!(
            error.ends_with("it has 600002 bytes, more than a message may hold]"),
            "{error}"
        );

        // When cutting the output is enough, the result stays.
        let chatty = Completion {
            stdout: Some(text),
            result: Some(serde_json::value::to_raw_value("kept").unwrap()),
            ..completion(2)
        };
        let (_, read) = pack(vec![chatty], 4096);
        assert_eq!(read[0].result.as_ref().unwrap().get(), "\"kept\"");
        assert_eq!(read[0].error, None);
    }

    #[tokio::test]
    async fn room_ends_and_comes_back_with_confirmation() {
        let outbox = Outbox::default();
        for id in 0..4096 {
            assert!(outbox.has_room());
            outbox.push(ExecutionCompleted(completion(id)));
        }
        assert!(!outbox.has_room());
        let batch = outbox.next(10).await.unwrap();
        assert_eq!(batch.items.len(), 10);
        assert!(!outbox.has_room());
        outbox.confirmed(batch.items.len(), batch.bytes());
        outbox.emptied().await;
        assert!(outbox.has_room());
        assert_eq!(outbox.held(), 4086);
        outbox.close();
        assert_eq!(outbox.next(10_000).await.unwrap().items.len(), 4086);
        assert!(outbox.next(1).await.is_none());
    }
}
