//! Tests of waiting for a slot.

use std::sync::Mutex as StdMutex;

use super::*;

const ACTION: ActionId = ActionId(1);

fn manager(max_queue_length: u32, queue_timeout_seconds: u32) -> ExecutionQueueManager {
    ExecutionQueueManager::new(QueueConfig {
        max_queue_length,
        queue_timeout_seconds,
    })
}

async fn until(manager: &ExecutionQueueManager, what: impl Fn(&QueueStats) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !manager
        .get_queue_stats(ACTION)
        .is_some_and(|stats| what(&stats))
    {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            manager.get_queue_stats(ACTION)
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn starts_follow_the_order_in_which_they_were_enqueued() {
    let manager = manager(10_000, 60);
    let order = Arc::new(StdMutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for id in 0..1000 {
        // Entering in a known order needs each to be in before the next comes.
        tasks.push(tokio::spawn({
            let (manager, order) = (manager.clone(), Arc::clone(&order));
            async move {
                manager
                    .enqueue_and_wait(ACTION, ExecutionId(id), 1)
                    .await
                    .unwrap();
                order.lock().unwrap().push(id);
            }
        }));
        until(&manager, |stats| stats.total_enqueued > id.unsigned_abs()).await;
    }
    for id in 0..1000 {
        let (manager, order) = (manager.clone(), Arc::clone(&order));
        let deadline = Instant::now() + Duration::from_secs(10);
        while order.lock().unwrap().last() != Some(&id) {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        manager.release(ACTION, ExecutionId(id));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..1000).collect::<Vec<_>>());
    let stats = manager.get_queue_stats(ACTION).unwrap();
    assert_eq!(
        (
            stats.total_completed,
            stats.active_count,
            stats.queue_length
        ),
        (1000, 0, 0)
    );
}

#[tokio::test]
async fn a_full_queue_is_a_typed_error_with_the_known_words() {
    let manager = manager(1, 60);
    assert_eq!(
        manager.enqueue(ACTION, ExecutionId(1), 1),
        Ok(Admission::Granted)
    );
    assert_eq!(
        manager.enqueue(ACTION, ExecutionId(2), 1),
        Ok(Admission::Queued { position: 0 })
    );
    let full = manager
        .enqueue_and_wait(ACTION, ExecutionId(3), 1)
        .await
        .unwrap_err();
    assert_eq!(full, QueueError::Full(QueueFull { max_length: 1 }));
    assert_eq!(full.to_string(), "Queue full (max length: 1)");
    assert_eq!(
        manager.enqueue(ACTION, ExecutionId(2), 1),
        Err(QueueError::Duplicate(ExecutionId(2)))
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_too_long_is_a_typed_error_and_frees_the_place() {
    let manager = manager(10, 5);
    manager
        .enqueue_and_wait(ACTION, ExecutionId(1), 1)
        .await
        .unwrap();
    let error = manager
        .enqueue_and_wait(ACTION, ExecutionId(2), 1)
        .await
        .unwrap_err();
    assert_eq!(error, QueueError::Timeout { waited_seconds: 5 });
    let stats = manager.get_queue_stats(ACTION).unwrap();
    assert_eq!((stats.queue_length, stats.total_expired), (0, 1));
    assert_eq!(manager.release(ACTION, ExecutionId(1)), None);
}

#[tokio::test]
async fn a_caller_that_goes_away_loses_its_place_and_never_a_slot() {
    let manager = manager(10, 60);
    manager
        .enqueue_and_wait(ACTION, ExecutionId(1), 1)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.enqueue_and_wait(ACTION, ExecutionId(2), 1).await }
    });
    until(&manager, |stats| stats.queue_length == 1).await;
    // Its turn comes, and it is gone before it can look.
    assert_eq!(
        manager.release(ACTION, ExecutionId(1)),
        Some(ExecutionId(2))
    );
    waiting.abort();
    let outcome = waiting.await;
    if outcome.is_err() {
        until(&manager, |stats| stats.active_count == 0).await;
    }
    assert!(manager.shared.waiters.is_empty());
}

#[tokio::test]
async fn cancelling_and_clearing_tell_the_callers() {
    let manager = manager(10, 60);
    manager.enqueue(ACTION, ExecutionId(1), 1).unwrap();
    let spawn = |id| {
        let manager = manager.clone();
        tokio::spawn(async move { manager.enqueue_and_wait(ACTION, ExecutionId(id), 1).await })
    };
    let (second, third) = (spawn(2), spawn(3));
    until(&manager, |stats| stats.queue_length == 2).await;
    assert!(manager.cancel(ACTION, ExecutionId(2)));
    assert!(!manager.cancel(ACTION, ExecutionId(2)));
    assert_eq!(
        second.await.unwrap(),
        Err(QueueError::Cancelled(ExecutionId(2)))
    );
    assert_eq!(manager.clear_all_queues(), 1);
    assert_eq!(
        third.await.unwrap(),
        Err(QueueError::Cancelled(ExecutionId(3)))
    );
    assert_eq!(manager.get_all_queue_stats().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_holds_under_parallel_callers() {
    let manager = manager(10_000, 60);
    let running = Arc::new(AtomicI64::new(0));
    let most = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..1000)
        .map(|id| {
            let (manager, running, most) =
                (manager.clone(), Arc::clone(&running), Arc::clone(&most));
            tokio::spawn(async move {
                manager
                    .enqueue_and_wait(ACTION, ExecutionId(id), 5)
                    .await
                    .unwrap();
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                manager.release(ACTION, ExecutionId(id));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 5, "{most:?}");
    let stats = manager.get_queue_stats(ACTION).unwrap();
    assert_eq!(
        (
            stats.total_enqueued,
            stats.total_completed,
            stats.active_count
        ),
        (1000, 1000, 0)
    );
}
