//! Completions that were confirmed and may be lost all the same: a queue is purged or deleted by
//! hand, or a broker dies with what it had confirmed. Nobody else knows of them, and their slots
//! would stay taken for as long as this worker lives.
//!
//! So what was told is kept for a while. Then the worker claims it again: the store answers with
//! what it still runs as far as is known, and that is told once more, under the same message id.
//! Whoever receives it twice takes no notice.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_bus::{Bus, Outgoing};
use attune_core::WorkerId;
use attune_runtime::error_chain;
use attune_store::{StoreError, WorkerStore};
use tokio::time::Instant;

use crate::counters::WorkerCounters;
use crate::inbox::Key;
use crate::lease::answer;

/// What is kept, in bytes; beyond it the oldest are forgotten, and the end of this worker's lease
/// is what frees their slots.
const MAX_BYTES: usize = 32 << 20;
/// How many executions one claim asks for.
const MAX_KEYS: usize = 1_000;
/// The longest wait between two looks at the same message: its partition may have no owner.
const SLOWEST: Duration = Duration::from_secs(600);
/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that were confirmed not long ago.
#[derive(Debug)]
pub(crate) struct Told {
    after: Duration,
    /// Held for single statements. Written by the reporter and the reminder.
    state: Mutex<State>,
    counters: Arc<WorkerCounters>,
}

#[derive(Debug, Default)]
struct State {
    /// In no certain order of `due`.
    letters: VecDeque<Letter>,
    bytes: usize,
}

/// One message, and what it tells of.
#[derive(Debug)]
struct Letter {
    message: Outgoing,
    ended: Vec<(WorkerId, Key)>,
    due: Instant,
    wait: Duration,
}

impl Told {
    pub(crate) fn new(after: Duration, counters: Arc<WorkerCounters>) -> Self {
        Self {
            after,
            state: Mutex::default(),
            counters,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message that was confirmed.
    pub(crate) fn keep(&self, message: Outgoing, ended: Vec<(WorkerId, Key)>) {
        self.put(Letter {
            message,
            ended,
            due: Instant::now() + self.after,
            wait: self.after,
        });
    }

    fn put(&self, letter: Letter) {
        let mut state = self.state();
        state.bytes += letter.message.body.len();
        state.letters.push_back(letter);
        while state.bytes > MAX_BYTES
            && let Some(oldest) = state.letters.pop_front()
        {
            state.bytes -= oldest.message.body.len();
        }
        self.counters.told.set(state.letters.len());
    }

    /// Takes what is due, as much as fits one claim.
    fn take_due(&self, now: Instant) -> Vec<Letter> {
        let mut state = self.state();
        let (mut due, mut keys) = (Vec::new(), 0);
        let mut left = VecDeque::with_capacity(state.letters.len());
        for letter in std::mem::take(&mut state.letters) {
            if letter.due <= now && (keys == 0 || keys + letter.ended.len() <= MAX_KEYS) {
                keys += letter.ended.len();
                state.bytes -= letter.message.body.len();
                due.push(letter);
            } else {
                left.push_back(letter);
            }
        }
        state.letters = left;
        self.counters.told.set(state.letters.len());
        due
    }
}

/// Asks what became of what was told.
pub(crate) struct Reminder {
    told: Arc<Told>,
    store: Arc<dyn WorkerStore>,
    bus: Arc<dyn Bus>,
    counters: Arc<WorkerCounters>,
}

impl Reminder {
    pub(crate) fn new(
        told: &Arc<Told>,
        store: &Arc<dyn WorkerStore>,
        bus: &Arc<dyn Bus>,
        counters: &Arc<WorkerCounters>,
    ) -> Self {
        Self {
            told: Arc::clone(told),
            store: Arc::clone(store),
            bus: Arc::clone(bus),
            counters: Arc::clone(counters),
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let look = (self.told.after / 4).max(Duration::from_millis(10));
        loop {
            tokio::time::sleep(look).await;
            loop {
                let due = self.told.take_due(Instant::now());
                if due.is_empty() {
                    break;
                }
                self.ask(due).await;
            }
        }
    }

    async fn ask(&self, due: Vec<Letter>) {
        let mut wanted: BTreeMap<WorkerId, Vec<Key>> = BTreeMap::new();
        for (worker, key) in due.iter().flat_map(|letter| &letter.ended) {
            wanted.entry(*worker).or_default().push(*key);
        }
        let (mut held, mut unknown) = (HashSet::new(), HashSet::new());
        for (worker, keys) in wanted {
            match self.claim(worker, &keys).await {
                Ok(keys) => held.extend(keys),
                // The lease is over: whoever takes the slots back decides what becomes of them.
                Err(StoreError::Conflict(_)) => {}
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::debug!(error, "what became of completions cannot be asked now");
                    unknown.extend(keys);
                }
            }
        }
        for mut letter in due {
            let is_in = |set: &HashSet<Key>| letter.ended.iter().any(|(_, key)| set.contains(key));
            if is_in(&held) {
                self.tell_again(&letter, &held).await;
            } else if !is_in(&unknown) {
                continue;
            }
            letter.wait = (letter.wait * 2).min(SLOWEST);
            letter.due = Instant::now() + letter.wait;
            self.told.put(letter);
        }
    }

    /// Which of these the store still shows as run by this worker.
    async fn claim(&self, worker: WorkerId, keys: &[Key]) -> Result<Vec<Key>, StoreError> {
        let (store, wanted) = (Arc::clone(&self.store), keys.to_vec());
        let call = tokio::spawn(async move { store.claim(worker, &wanted).await });
        let claims = answer(call, Instant::now() + PATIENCE).await?;
        let claims = claims.into_iter();
        Ok(claims.map(|one| (one.execution_id, one.attempt)).collect())
    }

    async fn tell_again(&self, letter: &Letter, held: &HashSet<Key>) {
        let ended = letter.ended.iter().map(|(_, key)| key);
        let lost_count = ended.filter(|key| held.contains(key)).count();
        self.counters.retold.add(lost_count);
        tracing::warn!(
            message.id = %letter.message.message_id,
            lost_count,
            "completions were confirmed, but their executions still count as running; they are \
             told again (does a completion listener run?)"
        );
        if let Err(error) = self.bus.publish(vec![letter.message.clone()]).await {
            tracing::debug!(%error, "not now; it is tried again");
        }
    }
}
