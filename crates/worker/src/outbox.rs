//! Completions on their way out, kept until they are settled, and how they are fitted into messages.
//!
//! A broker's confirm settles nothing: a queue is purged or deleted by hand, or a broker dies with
//! what it had confirmed. So a completion is kept until its owner has written it down, and told
//! again when that takes long, or when the owner asks for it.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use attune_core::{Attempt, ExecutionId};
use attune_messages::v1::ExecutionCompleted;
use attune_messages::{ItemTooLarge, Pack, PackBounds, Packer, message_bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Completions of one message, at most.
pub(crate) const MAX_ITEMS: usize = 100;
/// With so many completions that are not settled, nothing more is begun: what cannot be reported
/// must not pile up without bound. What runs already may still add to it.
const MAX_HELD: usize = 4096;
/// The same for their size, in bytes.
const MAX_HELD_BYTES: usize = 64 * 1024 * 1024;
/// The longest wait before a completion is told again: its partition may have no owner.
const SLOWEST: Duration = Duration::from_secs(600);

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;

type Key = (ExecutionId, Attempt);

/// What has ended and is not settled.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// How long after its confirm a completion is told again for the first time.
    retell_after: Duration,
    /// Wakes the reporter: something to send, or the end.
    filled: Notify,
    /// Wakes whoever waits for room.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// To be sent, in order; also some that were settled meanwhile.
    waiting: VecDeque<Letter>,
    /// What is not settled.
    kept: HashMap<Key, Kept>,
    /// Waiting, with the reporter, or told and not settled.
    held: usize,
    held_bytes: usize,
    /// Waiting or with the reporter.
    unconfirmed: usize,
    closed: bool,
}

/// A completion, and how long it is waited for its settlement after the next confirm.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) item: ExecutionCompleted,
    wait: Duration,
}

/// Where a completion is that is not settled.
#[derive(Debug)]
enum Kept {
    /// Waiting or with the reporter.
    OnItsWay {
        /// Its life is over: it is not kept after its confirm.
        last: bool,
    },
    /// Confirmed, and to be told again from then on.
    Told { letter: Letter, due: Instant },
}

/// What goes out together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) letters: Vec<Letter>,
    /// Its size when it was taken.
    bytes: usize,
}

impl State {
    fn release(&mut self, bytes: usize) {
        self.held -= 1;
        self.held_bytes -= bytes;
    }

    /// Puts one that was told on its way again.
    fn send_again(&mut self, key: Key, slower: bool) -> bool {
        let Some(kept) = self.kept.get_mut(&key) else {
            return false;
        };
        match std::mem::replace(kept, Kept::OnItsWay { last: false }) {
            Kept::Told { mut letter, .. } => {
                if slower {
                    letter.wait = (letter.wait * 2).min(SLOWEST);
                }
                self.unconfirmed += 1;
                self.waiting.push_back(letter);
                true
            }
            on_its_way @ Kept::OnItsWay { .. } => {
                *kept = on_its_way;
                false
            }
        }
    }

    /// Takes at most `max` that are to be sent, and drops what was settled while it waited.
    fn take(&mut self, max: usize) -> Batch {
        let (mut letters, mut bytes) = (Vec::new(), 0);
        while letters.len() < max
            && let Some(letter) = self.waiting.pop_front()
        {
            let weight = weight(&letter.item);
            if self.kept.contains_key(&key(&letter.item)) {
                bytes += weight;
                letters.push(letter);
            } else {
                self.unconfirmed -= 1;
                self.release(weight);
            }
        }
        Batch { letters, bytes }
    }
}

impl Outbox {
    pub(crate) fn new(retell_after: Duration) -> Self {
        Self {
            state: Mutex::default(),
            retell_after,
            filled: Notify::new(),
            emptied: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a completion on its way. Never waits: its size is bounded by not beginning anything
    /// while [`has_room`](Self::has_room) says no.
    pub(crate) fn push(&self, item: ExecutionCompleted) {
        let mut state = self.lock();
        state.held += 1;
        state.held_bytes += weight(&item);
        state.unconfirmed += 1;
        let on_its_way = Kept::OnItsWay { last: false };
        state.kept.insert(key(&item), on_its_way);
        let wait = self.retell_after;
        state.waiting.push_back(Letter { item, wait });
        drop(state);
        self.filled.notify_one();
    }

    /// Whether more may be begun.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.lock();
        state.held < MAX_HELD && state.held_bytes < MAX_HELD_BYTES
    }

    /// Waits until there may be more room. For one waiter.
    pub(crate) async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// How many are not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.lock().unconfirmed
    }

    /// How many are not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.lock().kept.len()
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
                let before = state.held;
                let batch = state.take(max);
                let (dropped, closed) = (before != state.held, state.closed);
                drop(state);
                if dropped {
                    self.emptied.notify_one();
                }
                if !batch.letters.is_empty() {
                    return Some(batch);
                }
                if closed {
                    return None;
                }
            }
            // A notification sent since the look above is kept for us.
            self.filled.notified().await;
        }
    }

    /// All of a batch is confirmed: what is not settled yet is kept.
    pub(crate) fn confirmed(&self, batch: Batch) {
        let now = Instant::now();
        let mut state = self.lock();
        state.unconfirmed -= batch.letters.len();
        state.held -= batch.letters.len();
        state.held_bytes -= batch.bytes;
        for letter in batch.letters {
            let key = key(&letter.item);
            match state.kept.get(&key) {
                Some(Kept::OnItsWay { last: false }) => {
                    state.held += 1;
                    state.held_bytes += weight(&letter.item);
                    let due = now + letter.wait;
                    state.kept.insert(key, Kept::Told { letter, due });
                }
                _ => {
                    state.kept.remove(&key);
                }
            }
        }
        drop(state);
        self.emptied.notify_one();
    }

    /// These are written down: nobody need be told of them any more.
    pub(crate) fn settle(&self, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        let mut state = self.lock();
        for key in keys {
            // What is on its way is dropped when it comes by.
            if let Some(Kept::Told { letter, .. }) = state.kept.remove(key) {
                state.release(weight(&letter.item));
            }
        }
        drop(state);
        self.emptied.notify_one();
    }

    /// Sends these again, as far as they are not on their way; says how many.
    pub(crate) fn send_again(&self, keys: &[Key]) -> usize {
        let mut state = self.lock();
        let again = keys.iter().filter(|key| state.send_again(**key, false));
        let count = again.count();
        drop(state);
        self.filled.notify_one();
        count
    }

    /// Sends again what was confirmed long ago and is not settled; says how many.
    pub(crate) fn send_overdue(&self) -> usize {
        let now = Instant::now();
        let mut state = self.lock();
        let overdue = state.kept.iter().filter_map(|(key, kept)| match kept {
            Kept::Told { due, .. } if *due <= now => Some(*key),
            _ => None,
        });
        let mut overdue: Vec<Key> = overdue.collect();
        overdue.sort_unstable();
        let again = overdue.iter().filter(|key| state.send_again(**key, true));
        let count = again.count();
        drop(state);
        if count > 0 {
            self.filled.notify_one();
        }
        count
    }

    /// The life that ran all of this is over: what is on its way goes out, and nothing is kept.
    pub(crate) fn forget_told(&self) {
        let mut state = self.lock();
        let (mut count, mut bytes) = (0, 0);
        state.kept.retain(|_, kept| match kept {
            Kept::OnItsWay { last } => {
                *last = true;
                true
            }
            Kept::Told { letter, .. } => {
                count += 1;
                bytes += weight(&letter.item);
                false
            }
        });
        state.held -= count;
        state.held_bytes -= bytes;
        drop(state);
        self.emptied.notify_one();
    }
}

impl Batch {
    /// How many completions it holds.
    pub(crate) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Fits the items into as few messages of at most `max_bytes` as their order allows.
    pub(crate) fn packs(&mut self, max_bytes: usize) -> Vec<Pack<ExecutionCompleted>> {
        let mut packer = Packer::new(PackBounds::new(MAX_ITEMS, max_bytes));
        for letter in &mut self.letters {
            if let Err(error) = add(&mut packer, &mut letter.item, max_bytes) {
                // Not with the smallest bound that a worker's options allow.
                let id = letter.item.0.execution_id;
                tracing::error!(execution.id = %id, %error, "a completion cannot be reported");
            }
        }
        packer.finish()
    }
}

fn key(item: &ExecutionCompleted) -> Key {
    (item.0.execution_id, item.0.attempt)
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
    packer: &mut Packer<ExecutionCompleted>,
    item: &mut ExecutionCompleted,
    max_bytes: usize,
) -> Result<(), ItemTooLarge> {
    let mut try_to_add = |item: &ExecutionCompleted| packer.add(item, ()).map_err(|(why, ())| why);
    if try_to_add(item).is_ok() {
        return Ok(());
    }
    // With three texts of a 32nd each, at most 18/32 are used even when all is escaped.
    let share = max_bytes.saturating_sub(message_bytes::<ExecutionCompleted>(0)) / 32;
    cut(&mut item.0.stdout, share);
    cut(&mut item.0.stderr, share);
    if try_to_add(item).is_ok() {
        return Ok(());
    }
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
    try_to_add(item)
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
