//! All action queues of a process, and waiting for a slot without polling.
//!
//! The manager works alone, as a library: [`enqueue_and_wait`](ExecutionQueueManager::enqueue_and_wait)
//! returns when the execution may run, [`release`](ExecutionQueueManager::release) hands its slot
//! to the next. The executor's core uses the same queues through
//! [`with_queue`](ExecutionQueueManager::with_queue), so that there is one place where order and
//! limits are kept.
//!
//! ```
//! # use attune_executor::{ExecutionQueueManager, QueueConfig};
//! # use attune_core::{ActionId, ExecutionId};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = ExecutionQueueManager::new(QueueConfig::default());
//! let action = ActionId(1);
//! // Limit 1: the first runs at once, the second waits for it.
//! manager.enqueue_and_wait(action, ExecutionId(1), 1).await?;
//! let second = tokio::spawn({
//!     let manager = manager.clone();
//!     async move { manager.enqueue_and_wait(action, ExecutionId(2), 1).await }
//! });
//! while manager.get_queue_stats(action).is_none_or(|stats| stats.queue_length == 0) {
//!     tokio::task::yield_now().await;
//! }
//! assert_eq!(manager.release(action, ExecutionId(1)), Some(ExecutionId(2)));
//! second.await??;
//! # Ok(())
//! # }
//! ```

use crate::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use attune_core::{
    ActionId, Attempt, ExecutionId, OrderRule, Priority, QueueStats, QueueTotals, Seq,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ActionQueue, Millis, QueueFull, QueueLook, Waiting};
use crate::SharedById;
use crate::policy::{QueueLimits, Share};

/// Bounds of queues that have none of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// How many executions of one action may wait (`executor.queue.max_queue_length`).
    pub max_queue_length: u32,
    /// How long one may wait, in seconds (`executor.queue.queue_timeout_seconds`).
    pub queue_timeout_seconds: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_queue_length: 10_000,
            queue_timeout_seconds: 3600,
        }
    }
}

/// An execution did not get a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many wait already.
    #[error(transparent)]
    Full(#[from] QueueFull),
    /// It waited longer than it may.
    #[error("Queue timeout (waited {waited_seconds} s for a slot)")]
    Timeout {
        /// How long it may wait, in seconds.
        waited_seconds: u32,
    },
    /// It was cancelled, or its queue cleared.
    #[error("execution {0} was cancelled while it waited")]
    Cancelled(ExecutionId),
    /// The same execution waits or runs already.
    #[error("execution {0} waits or runs already")]
    Duplicate(ExecutionId),
}

/// A ticket for an execution that entered with [`ExecutionQueueManager::enqueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It holds a slot.
    Granted,
    /// It waits, with this many before it.
    Queued {
        /// How many wait before it.
        position: u64,
    },
}

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const CANCELLED: u8 = 2;

/// What a waiting caller is woken through. Written under the lock of its queue.
#[derive(Debug)]
struct Waiter {
    seq: Seq,
    state: AtomicU8,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Shared {
    /// By action id. The value is cloned out and the map's guard dropped before the queue is
    /// locked, so that a slow queue never holds a shard of the map.
    queues: SharedById<i64, Arc<Mutex<ActionQueue>>>,
    /// By execution id: those that entered through this manager's own methods.
    waiters: SharedById<i64, Arc<Waiter>>,
    next_seq: AtomicI64,
}

/// All action queues of a process. Cheap to clone; clones share the queues.
#[derive(Debug, Clone)]
pub struct ExecutionQueueManager {
    config: QueueConfig,
    shared: Arc<Shared>,
}

impl ExecutionQueueManager {
    /// A manager without queues.
    pub fn new(config: QueueConfig) -> Self {
        Self {
            config,
            shared: Arc::default(),
        }
    }

    /// The bounds of queues that have none of their own.
    pub fn config(&self) -> QueueConfig {
        self.config
    }

    /// Waits until the execution may run: at once when fewer than `max_concurrent` executions of
    /// the action hold a slot and nobody waits, in order otherwise. Whoever returns `Ok` must
    /// [`release`](Self::release). Dropping the future gives up the place, or the slot.
    ///
    /// # Errors
    /// [`QueueError::Full`], [`QueueError::Timeout`], [`QueueError::Cancelled`],
    /// [`QueueError::Duplicate`].
    pub async fn enqueue_and_wait(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        max_concurrent: u32,
    ) -> Result<(), QueueError> {
        let Some((waiter, _)) = self.admit(action_id, execution_id, max_concurrent)? else {
            return Ok(());
        };
        let guard = GiveUp {
            manager: self,
            action_id,
            execution_id,
            waiter: &waiter,
            armed: true,
        };
        let timeout = Duration::from_secs(u64::from(self.config.queue_timeout_seconds));
        let deadline = Instant::now() + timeout;
        // The state is written before the wake-up, and a wake-up without a listener is kept, so
        // looking first and waiting second misses nothing.
        loop {
            match waiter.state.load(Ordering::Acquire) {
                GRANTED => {
                    guard.disarm();
                    return Ok(());
                }
                CANCELLED => {
                    guard.disarm();
                    return Err(QueueError::Cancelled(execution_id));
                }
                _ => {}
            }
            if tokio::time::timeout_at(deadline, waiter.wake.notified())
                .await
                .is_err()
                && self.withdraw(action_id, execution_id, &waiter, Withdraw::Expired)
            {
                guard.disarm();
                let waited_seconds = self.config.queue_timeout_seconds;
                return Err(QueueError::Timeout { waited_seconds });
            }
        }
    }

    /// Lets an execution enter without waiting for its turn; look at
    /// [`get_queue_stats`](Self::get_queue_stats) or [`position`](Self::position) later.
    ///
    /// # Errors
    /// [`QueueError::Full`], [`QueueError::Duplicate`].
    pub fn enqueue(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        max_concurrent: u32,
    ) -> Result<Admission, QueueError> {
        let queued = self.admit(action_id, execution_id, max_concurrent)?;
        Ok(match queued {
            Some((_, position)) => Admission::Queued { position },
            None => Admission::Granted,
        })
    }

    /// Lets an execution in. Where it must wait: what it is woken through, and how many wait before it.
    fn admit(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        max_concurrent: u32,
    ) -> Result<Option<(Arc<Waiter>, u64)>, QueueError> {
        let queue = self.queue(action_id, || self.default_limits());
        let mut queue = lock(&queue);
        if self.shared.waiters.contains_key(&execution_id.0) || queue.holder(execution_id).is_some()
        {
            return Err(QueueError::Duplicate(execution_id));
        }
        if queue.limits().max_concurrent != Some(max_concurrent) {
            let limits = QueueLimits {
                max_concurrent: Some(max_concurrent),
                ..queue.limits().clone()
            };
            queue.set_limits(limits);
        }
        let seq = Seq(self.shared.next_seq.fetch_add(1, Ordering::Relaxed));
        let accepted_at = now();
        let entry = Waiting {
            execution_id,
            seq,
            enqueued_at: accepted_at,
            eligible_at: accepted_at,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            front: false,
            share: Share::default(),
        };
        let position = queue.enter(Priority::Normal, entry, None)?;
        self.grant(&mut queue, accepted_at, Some(execution_id));
        if queue.holder(execution_id).is_some() {
            return Ok(None);
        }
        let waiter = Arc::new(Waiter {
            seq,
            state: AtomicU8::new(WAITING),
            wake: Notify::new(),
        });
        // Under the lock of the queue, so that whoever gives it the slot finds it.
        self.shared
            .waiters
            .insert(execution_id.0, Arc::clone(&waiter));
        Ok(Some((waiter, position)))
    }

    /// Gives the slot of an execution to the next in order, and tells which that is. Releasing
    /// what holds no slot, or a second time, does nothing.
    pub fn release(&self, action_id: ActionId, execution_id: ExecutionId) -> Option<ExecutionId> {
        let queue = self.existing(action_id)?;
        let mut queue = lock(&queue);
        let holder = queue.holder(execution_id)?;
        if !queue.finish(execution_id, holder.attempt, false) {
            return None;
        }
        if queue.is_empty() {
            return None;
        }
        self.grant(&mut queue, now(), None)
    }

    /// Takes a waiting execution out; its caller gets [`QueueError::Cancelled`]. False when it
    /// does not wait.
    pub fn cancel(&self, action_id: ActionId, execution_id: ExecutionId) -> bool {
        let waiter = self
            .shared
            .waiters
            .get(&execution_id.0)
            .map(|entry| Arc::clone(&entry));
        waiter.is_some_and(|waiter| {
            self.withdraw(action_id, execution_id, &waiter, Withdraw::Cancelled)
        })
    }

    /// How many wait before this execution; `None` when it does not wait.
    pub fn position(&self, action_id: ActionId, execution_id: ExecutionId) -> Option<u64> {
        let seq = self
            .shared
            .waiters
            .get(&execution_id.0)
            .map(|waiter| waiter.seq)?;
        let queue = self.existing(action_id)?;
        lock(&queue).position(seq)
    }

    /// The queue of an action as it is now; `None` when it has never been used.
    pub fn get_queue_stats(&self, action_id: ActionId) -> Option<QueueStats> {
        let queue = self.existing(action_id)?;
        Some(lock(&queue).stats())
    }

    /// Every queue as it is now, by action id. The map is not held while queues are read.
    pub fn get_all_queue_stats(&self) -> Vec<QueueStats> {
        let mut stats: Vec<QueueStats> =
            self.all().iter().map(|queue| lock(queue).stats()).collect();
        stats.sort_unstable_by_key(|stats| stats.action_id);
        stats
    }

    /// Every queue with its bound, and why nobody of it is given a slot; otherwise likewise.
    pub(super) fn look_at_all(&self) -> Vec<QueueLook> {
        let look = |queue: &Arc<Mutex<ActionQueue>>| {
            let queue = lock(queue);
            QueueLook {
                stats: queue.stats(),
                max_length: queue.limits().max_length,
                blocked: queue.blocked(),
            }
        };
        self.all().iter().map(look).collect()
    }

    /// Takes out everyone who waits, in every queue, and tells how many that were. Their callers
    /// get [`QueueError::Cancelled`]; slots that are held stay held.
    pub fn clear_all_queues(&self) -> usize {
        let mut cleared = 0;
        for queue in self.all() {
            for waiting in lock(&queue).clear() {
                cleared += 1;
                self.wake(waiting.execution_id, CANCELLED);
            }
        }
        cleared
    }

    /// Works on the queue of an action under its lock; it is made with `limits` and no past when
    /// it does not exist.
    pub(crate) fn with_queue<T>(
        &self,
        action_id: ActionId,
        limits: impl FnOnce() -> QueueLimits,
        work: impl FnOnce(&mut ActionQueue) -> T,
    ) -> T {
        let queue = self.queue(action_id, limits);
        let mut queue = lock(&queue);
        work(&mut queue)
    }

    /// Works on the queue of an action if there is one.
    pub(crate) fn with_existing<T>(
        &self,
        action_id: ActionId,
        work: impl FnOnce(&mut ActionQueue) -> T,
    ) -> Option<T> {
        let queue = self.existing(action_id)?;
        let mut queue = lock(&queue);
        Some(work(&mut queue))
    }

    /// Puts a queue in place of what was there.
    pub(crate) fn put(&self, action_id: ActionId, queue: ActionQueue) {
        self.shared
            .queues
            .insert(action_id.0, Arc::new(Mutex::new(queue)));
    }

    /// Moves the queue of an action to another manager, in place of what was there.
    pub(crate) fn move_to(&self, other: &Self, action_id: ActionId) {
        if let Some((_, queue)) = self.shared.queues.remove(&action_id.0) {
            other.shared.queues.insert(action_id.0, queue);
        }
    }

    /// Forgets the queue of an action that another executor owns from now on.
    pub(crate) fn forget(&self, action_id: ActionId) {
        self.shared.queues.remove(&action_id.0);
    }

    fn default_limits(&self) -> QueueLimits {
        QueueLimits {
            max_concurrent: None,
            max_length: self.config.max_queue_length,
            timeout_seconds: self.config.queue_timeout_seconds,
            order: OrderRule::default(),
            extra: None,
        }
    }

    fn existing(&self, action_id: ActionId) -> Option<Arc<Mutex<ActionQueue>>> {
        self.shared
            .queues
            .get(&action_id.0)
            .map(|entry| Arc::clone(&entry))
    }

    fn queue(
        &self,
        action_id: ActionId,
        limits: impl FnOnce() -> QueueLimits,
    ) -> Arc<Mutex<ActionQueue>> {
        if let Some(queue) = self.existing(action_id) {
            return queue;
        }
        let entry = self.shared.queues.entry(action_id.0).or_insert_with(|| {
            Arc::new(Mutex::new(ActionQueue::new(
                action_id,
                limits(),
                QueueTotals::default(),
            )))
        });
        Arc::clone(&entry)
    }

    fn all(&self) -> Vec<Arc<Mutex<ActionQueue>>> {
        self.shared
            .queues
            .iter()
            .map(|entry| Arc::clone(entry.value()))
            .collect()
    }

    /// Hands out every free slot and tells who got the first. Of the newcomer nobody has a waiter yet.
    fn grant(
        &self,
        queue: &mut ActionQueue,
        now: Millis,
        newcomer: Option<ExecutionId>,
    ) -> Option<ExecutionId> {
        let mut first = None;
        while let Some(granted) = queue.grant_next(now).granted() {
            first = first.or(Some(granted.execution_id));
            if newcomer != Some(granted.execution_id) {
                self.wake(granted.execution_id, GRANTED);
            }
        }
        first
    }

    fn wake(&self, execution_id: ExecutionId, state: u8) {
        if let Some((_, waiter)) = self.shared.waiters.remove(&execution_id.0) {
            waiter.state.store(state, Ordering::Release);
            waiter.wake.notify_one();
        }
    }

    /// Takes a waiting execution out; false when its turn came first.
    fn withdraw(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        waiter: &Waiter,
        why: Withdraw,
    ) -> bool {
        let Some(queue) = self.existing(action_id) else {
            return false;
        };
        let mut queue = lock(&queue);
        let gone = match why {
            Withdraw::Cancelled => queue.cancel_waiting(waiter.seq),
            Withdraw::Expired => queue.expire_waiting(waiter.seq),
        };
        if gone.is_some() {
            self.wake(execution_id, CANCELLED);
        }
        gone.is_some()
    }
}

#[derive(Debug, Clone, Copy)]
enum Withdraw {
    Cancelled,
    Expired,
}

/// Gives up the place, or the slot, of a caller that stopped waiting.
struct GiveUp<'a> {
    manager: &'a ExecutionQueueManager,
    action_id: ActionId,
    execution_id: ExecutionId,
    waiter: &'a Waiter,
    armed: bool,
}

impl GiveUp<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        let Self {
            manager,
            action_id,
            execution_id,
            waiter,
            armed,
        } = self;
        if *armed && !manager.withdraw(*action_id, *execution_id, waiter, Withdraw::Cancelled) {
            // Its turn came while the caller went away: the slot goes on to the next.
            manager.release(*action_id, *execution_id);
        }
    }
}

/// A panic while a queue is locked cannot leave it half changed: every method of the queue
/// either returns before it writes or writes without calling out.
fn lock(queue: &Mutex<ActionQueue>) -> MutexGuard<'_, ActionQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Millis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
