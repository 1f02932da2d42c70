//! The queue manager: waiting, releasing, cancelling, clearing, giving up, all at once.

use std::time::Duration;

use attune_core::{ActionId, ExecutionId};
use shuttle::future::{block_on, spawn};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};

use crate::queue::{ExecutionQueueManager, QueueConfig, QueueError};
use crate::{thread, time};

const ACTION: ActionId = ActionId(1);
const HOLDER: ExecutionId = ExecutionId(1);

/// A manager with one execution that holds the only slot.
fn busy() -> ExecutionQueueManager {
    let manager = ExecutionQueueManager::new(QueueConfig::default());
    manager.enqueue(ACTION, HOLDER, 1).unwrap();
    manager
}

/// Waits for its turn and gives the slot back at once.
fn take_turn(
    manager: &ExecutionQueueManager,
    id: i64,
) -> shuttle::future::JoinHandle<Result<(), QueueError>> {
    let manager = manager.clone();
    spawn(async move {
        manager.enqueue_and_wait(ACTION, ExecutionId(id), 1).await?;
        manager.release(ACTION, ExecutionId(id));
        Ok(())
    })
}

/// Nobody waits, nobody holds, and everyone who came has gone one way or the other.
fn assert_idle(manager: &ExecutionQueueManager) {
    let stats = manager.get_queue_stats(ACTION).unwrap();
    assert_eq!(
        (stats.queue_length, stats.active_count),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(
        stats.total_enqueued,
        stats.total_completed + stats.total_cancelled + stats.total_expired
    );
}

/// Callers that enter together never run together, and all of them have their turn.
pub fn callers_take_turns() {
    let manager = ExecutionQueueManager::new(QueueConfig::default());
    let running = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (1..=3)
        .map(|id| {
            let (manager, running) = (manager.clone(), Arc::clone(&running));
            spawn(async move {
                let id = ExecutionId(id);
                manager.enqueue_and_wait(ACTION, id, 1).await.unwrap();
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                running.fetch_sub(1, Ordering::SeqCst);
                manager.release(ACTION, id);
            })
        })
        .collect();
    for caller in callers {
        block_on(caller).unwrap();
    }
    assert_idle(&manager);
}

/// A release and a cancellation race for one who waits: it is granted or cancelled, never both.
pub fn a_cancellation_races_a_release() {
    let manager = busy();
    let waiting = take_turn(&manager, 2);
    let canceller = thread::spawn({
        let manager = manager.clone();
        move || manager.cancel(ACTION, ExecutionId(2))
    });
    manager.release(ACTION, HOLDER);
    let cancelled = canceller.join().unwrap();
    let outcome = block_on(waiting).unwrap();
    assert_eq!(outcome.is_err(), cancelled, "{outcome:?}");
    assert_idle(&manager);
}

/// A caller goes away while its turn comes: the slot goes on to the next.
pub fn a_caller_that_goes_away_passes_its_slot_on() {
    let manager = busy();
    let (second, third) = (take_turn(&manager, 2), take_turn(&manager, 3));
    let releaser = thread::spawn({
        let manager = manager.clone();
        move || manager.release(ACTION, HOLDER)
    });
    second.abort();
    block_on(third).unwrap().unwrap();
    releaser.join().unwrap();
    // The end of a task that is aborted may come later than the word that it is.
    drop(block_on(second));
    assert_idle(&manager);
}

/// The time of one who waits is over in the moment of its turn.
pub fn a_timeout_races_a_release() {
    let manager = busy();
    let waiting = take_turn(&manager, 2);
    let clock = thread::spawn(|| time::advance(Duration::from_secs(3601)));
    manager.release(ACTION, HOLDER);
    clock.join().unwrap();
    let outcome = block_on(waiting).unwrap();
    assert!(
        matches!(outcome, Ok(()) | Err(QueueError::Timeout { .. })),
        "{outcome:?}"
    );
    assert_idle(&manager);
}

/// Everyone who waits is told when the queues are cleared, whatever is released meanwhile.
pub fn clearing_tells_everyone() {
    let manager = busy();
    let waiting = [take_turn(&manager, 2), take_turn(&manager, 3)];
    let clearer = thread::spawn({
        let manager = manager.clone();
        move || manager.clear_all_queues()
    });
    manager.release(ACTION, HOLDER);
    let cleared = clearer.join().unwrap();
    let cancelled = waiting
        .into_iter()
        .map(|caller| block_on(caller).unwrap())
        .filter(|outcome| matches!(outcome, Err(QueueError::Cancelled(_))))
        .count();
    assert_eq!(cancelled, cleared);
    assert_idle(&manager);
}

/// Looking at the queues from all sides while others change them never hangs.
pub fn looking_never_hangs() {
    let manager = busy();
    let other = ActionId(2);
    let looker = thread::spawn({
        let manager = manager.clone();
        move || {
            manager.get_all_queue_stats();
            manager.position(ACTION, ExecutionId(2));
        }
    });
    let stranger = thread::spawn({
        let manager = manager.clone();
        move || {
            manager.enqueue(other, ExecutionId(10), 1).unwrap();
            manager.enqueue(other, ExecutionId(11), 1).unwrap();
            manager.cancel(other, ExecutionId(11));
            manager.release(other, ExecutionId(10));
        }
    });
    let waiting = take_turn(&manager, 2);
    manager.release(ACTION, HOLDER);
    block_on(waiting).unwrap().unwrap();
    looker.join().unwrap();
    stranger.join().unwrap();
    assert_idle(&manager);
}
