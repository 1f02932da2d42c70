//! Completions on their way out, kept until they are settled, and how they are fitted into messages.
//!
//! A broker's confirm settles nothing: a queue is purged or deleted by hand, or a broker dies with
//! what it had confirmed. So a completion is kept until its owner has written it down, and told
//! again when that takes long, or when the owner asks for it.
//!
//! That is why it need not outlive the broker while it is young: then it goes the quick way. One that
//! is not settled after a while, or whose worker will not keep it any longer, goes the lasting way,
//! once on each connection: its owner may be away for long, and the worker may end before it is back.

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
/// Whoever asks for a completion gets it when it was told last so large a part of the time ago for which it
/// has waited. An owner that is behind asks again for what it has received and not read: large ends that were
/// told each time would leave it further behind.
const PART: u32 = 4;

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;

type Key = (ExecutionId, Attempt);

/// How a completion travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To where messages end with the broker, in one attempt.
    Quick,
    /// To where they outlive it, until that is confirmed.
    Lasting,
}

/// What has ended and is not settled.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// How long a completion goes the quick way only, and how long after its confirm it is told
    /// again for the first time.
    retell_after: Duration,
    /// Wakes the reporter of each way: something to send, or the end.
    filled: [Notify; 2],
    /// Wakes whoever waits for room.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// To be sent each way, in order; also some that were settled meanwhile.
    waiting: [VecDeque<Letter>; 2],
    /// What is not settled.
    kept: HashMap<Key, Kept>,
    /// Waiting, with the reporter, or told and not settled.
    held: usize,
    held_bytes: usize,
    /// Waiting or with the reporter.
    unconfirmed: usize,
    /// How often the connection was made anew.
    link: u64,
    closed: bool,
}

/// A completion, and how long it is waited for its settlement after the next confirm.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) item: ExecutionCompleted,
    since: Instant,
    wait: Duration,
    /// On which connection it went the lasting way.
    lasts: Option<u64>,
}

/// Where a completion is that is not settled.
#[derive(Debug)]
enum Kept {
    /// Waiting or with the reporter.
    OnItsWay {
        /// Nobody will keep it after this: it goes the lasting way, and that is all.
        last: bool,
    },
    /// Confirmed then, and to be told again when it is due.
    Told {
        letter: Box<Letter>,
        at: Instant,
        due: Instant,
    },
}

/// What goes out together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) letters: Vec<Letter>,
    way: Way,
    /// Its size when it was taken.
    bytes: usize,
}

/// What was put on its way again because it was due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Overdue {
    pub(crate) count: usize,
    /// For how long the oldest of them is not settled.
    pub(crate) longest: Duration,
}

impl State {
    fn release(&mut self, bytes: usize) {
        self.held -= 1;
        self.held_bytes -= bytes;
    }

    fn put(&mut self, letter: Letter, way: Way) {
        self.waiting[way as usize].push_back(letter);
    }

    fn put_lasting(&mut self, mut letter: Letter) {
        letter.lasts = Some(self.link);
        self.put(letter, Way::Lasting);
    }

    /// Puts one on its way again, if this holds of it and of when it was told.
    fn send_again(
        &mut self,
        key: Key,
        young: Duration,
        is_due: impl FnOnce(&mut Letter, Instant) -> bool,
    ) -> bool {
        let due = match self.kept.get_mut(&key) {
            Some(Kept::Told { letter, at, .. }) => is_due(letter, *at),
            _ => false,
        };
        if !due {
            return false;
        }
        let on_its_way = Kept::OnItsWay { last: false };
        let Some(Kept::Told { letter, .. }) = self.kept.insert(key, on_its_way) else {
            return false;
        };
        self.unconfirmed += 1;
        if letter.since.elapsed() >= young && letter.lasts != Some(self.link) {
            self.put_lasting(*letter);
        } else {
            self.put(*letter, Way::Quick);
        }
        true
    }

    /// The keys of what was told, in an order that is always the same.
    fn told(&self, is_wanted: impl Fn(Instant) -> bool) -> Vec<Key> {
        let told = self.kept.iter().filter_map(|(key, kept)| match kept {
            Kept::Told { due, .. } if is_wanted(*due) => Some(*key),
            _ => None,
        });
        let mut told: Vec<Key> = told.collect();
        told.sort_unstable();
        told
    }

    /// Takes at most `max` that are to be sent, and drops what was settled while it waited.
    fn take(&mut self, way: Way, max: usize) -> Batch {
        let (mut letters, mut bytes) = (Vec::new(), 0);
        while letters.len() < max
            && let Some(letter) = self.waiting[way as usize].pop_front()
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
        Batch {
            letters,
            way,
            bytes,
        }
    }

    /// Sends what did not go the lasting way yet that way, and keeps nothing after that.
    fn let_go(&mut self) {
        for key in self.told(|_| true) {
            let last = Kept::OnItsWay { last: true };
            let Some(Kept::Told { letter, .. }) = self.kept.insert(key, last) else {
                continue;
            };
            if letter.lasts.is_some() {
                self.kept.remove(&key);
                self.release(weight(&letter.item));
            } else {
                self.unconfirmed += 1;
                self.put_lasting(*letter);
            }
        }
        for kept in self.kept.values_mut() {
            *kept = Kept::OnItsWay { last: true };
        }
        let [quick, lasting] = &mut self.waiting;
        lasting.append(quick);
    }
}

impl Outbox {
    pub(crate) fn new(retell_after: Duration) -> Self {
        Self {
            state: Mutex::default(),
            retell_after,
            filled: Default::default(),
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
        let letter = Letter {
            item,
            since: Instant::now(),
            wait: self.retell_after,
            lasts: None,
        };
        state.put(letter, Way::Quick);
        drop(state);
        self.filled[Way::Quick as usize].notify_one();
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

    /// Nothing more will come, and whoever has kept it ends.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.let_go();
        state.closed = true;
        drop(state);
        self.emptied.notify_one();
        self.wake();
    }

    fn wake(&self) {
        for filled in &self.filled {
            filled.notify_one();
        }
    }

    /// The next `max` at most that go this way, as soon as there is one; `None` when it is closed and
    /// no more can come. For one reader of each way.
    pub(crate) async fn next(&self, way: Way, max: usize) -> Option<Batch> {
        loop {
            {
                let mut state = self.lock();
                let before = state.held;
                let batch = state.take(way, max);
                let dropped = before != state.held;
                // What is under way the quick way may go the lasting one after that.
                let is_over = state.closed && (way == Way::Quick || state.unconfirmed == 0);
                drop(state);
                if dropped {
                    self.emptied.notify_one();
                }
                if !batch.letters.is_empty() {
                    return Some(batch);
                }
                if is_over {
                    return None;
                }
            }
            // A notification sent since the look above is kept for us.
            self.filled[way as usize].notified().await;
        }
    }

    /// A batch is confirmed, or may have arrived the quick way: what is not settled yet is kept.
    pub(crate) fn confirmed(&self, batch: Batch) {
        self.sent(batch, false);
    }

    /// The quick way is closed to a batch: it goes the other one, if it has not on this connection.
    pub(crate) fn refused(&self, batch: Batch) {
        self.sent(batch, true);
    }

    fn sent(&self, batch: Batch, is_refused: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        state.unconfirmed -= batch.letters.len();
        state.held -= batch.letters.len();
        state.held_bytes -= batch.bytes;
        for letter in batch.letters {
            let key = key(&letter.item);
            let last = match state.kept.get(&key) {
                Some(Kept::OnItsWay { last }) => *last,
                // Settled meanwhile.
                _ => continue,
            };
            let goes_on = match batch.way {
                Way::Quick => last || (is_refused && letter.lasts != Some(state.link)),
                Way::Lasting => false,
            };
            if last && !goes_on {
                state.kept.remove(&key);
                continue;
            }
            state.held += 1;
            state.held_bytes += weight(&letter.item);
            if goes_on {
                state.unconfirmed += 1;
                state.put_lasting(letter);
            } else {
                let (at, due) = (now, now + letter.wait);
                let letter = Box::new(letter);
                state.kept.insert(key, Kept::Told { letter, at, due });
            }
        }
        drop(state);
        self.emptied.notify_one();
        self.filled[Way::Lasting as usize].notify_one();
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

    /// Sends these again, as far as they were not told just now; says how many.
    pub(crate) fn send_again(&self, keys: &[Key]) -> usize {
        let mut state = self.lock();
        let is_due =
            |letter: &mut Letter, told: Instant| told.elapsed() * PART >= letter.since.elapsed();
        let again = keys.iter();
        let again = again.filter(|key| state.send_again(**key, self.retell_after, is_due));
        let count = again.count();
        drop(state);
        if count > 0 {
            self.wake();
        }
        count
    }

    /// Sends again what was confirmed long ago and is not settled.
    pub(crate) fn send_overdue(&self) -> Overdue {
        let now = Instant::now();
        let mut overdue = Overdue::default();
        let mut state = self.lock();
        for key in state.told(|due| due <= now) {
            let is_due = |letter: &mut Letter, _| {
                letter.wait = (letter.wait * 2).min(SLOWEST);
                overdue.count += 1;
                overdue.longest = overdue.longest.max(letter.since.elapsed());
                true
            };
            state.send_again(key, self.retell_after, is_due);
        }
        drop(state);
        if overdue.count > 0 {
            self.wake();
        }
        overdue
    }

    /// The connection is a new one, perhaps because the broker has ended with what it had: everything that
    /// was told is sent again; says how many.
    pub(crate) fn link_is_new(&self) -> usize {
        let mut state = self.lock();
        state.link += 1;
        let told = state.told(|_| true);
        for key in &told {
            state.send_again(*key, self.retell_after, |_, _| true);
        }
        drop(state);
        self.wake();
        told.len()
    }

    /// The life that ran all of this is over: what has not gone the lasting way does so, and nothing is
    /// kept.
    pub(crate) fn let_go(&self) {
        self.lock().let_go();
        self.emptied.notify_one();
        self.wake();
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
