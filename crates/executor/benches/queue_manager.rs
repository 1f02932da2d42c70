//! The queue manager beside the figures it has to beat: enqueue with capacity below 1 µs,
//! release and wake below 10 µs, a stats look-up below 1 µs, 128 B per queue and 80 B per
//! waiting execution. `cargo bench -p attune-executor`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use attune_core::{ActionId, Attempt, ExecutionId, OrderRule, Priority, QueueTotals, Seq};
use attune_executor::policy::{QueueLimits, Share};
use attune_executor::queue::{ActionQueue, Waiting};
use attune_executor::{ExecutionQueueManager, QueueConfig};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const ACTION: ActionId = ActionId(1);

fn manager() -> ExecutionQueueManager {
    let config = QueueConfig {
        max_queue_length: 10_000_000,
        queue_timeout_seconds: 3600,
    };
    ExecutionQueueManager::new(config)
}

/// How many queues take part where many are used in turn.
const QUEUES: i64 = 64;

fn enqueue_with_capacity(c: &mut Criterion) {
    c.bench_function("enqueue with capacity", |bencher| {
        // Into queues that are idle and have been used; the releases between are not counted.
        let manager = manager();
        let mut next = 0;
        bencher.iter_custom(|iterations| {
            let mut took = Duration::ZERO;
            for round in 0..iterations.div_ceil(QUEUES.unsigned_abs()) {
                let rest = iterations - round * QUEUES.unsigned_abs();
                let ids = next..next + QUEUES.min(rest.try_into().expect("fits"));
                next = ids.end;
                let began = Instant::now();
                for id in ids.clone() {
                    let admission = manager.enqueue(ActionId(id % QUEUES), ExecutionId(id), 10);
                    black_box(admission).expect("room");
                }
                took += began.elapsed();
                for id in ids {
                    manager.release(ActionId(id % QUEUES), ExecutionId(id));
                }
            }
            took
        });
    });
    c.bench_function("enqueue with capacity, the first of a manager", |bencher| {
        let mut next = 0;
        bencher.iter_batched_ref(
            manager,
            |manager| {
                next += 1;
                manager.enqueue(ACTION, ExecutionId(next), u32::MAX)
            },
            BatchSize::NumIterations(10_000),
        );
    });
    c.bench_function("enqueue with capacity, released at once", |bencher| {
        let manager = manager();
        let mut next = 0;
        bencher.iter(|| {
            next += 1;
            let admission = manager.enqueue(ACTION, ExecutionId(next), 10);
            manager.release(ACTION, ExecutionId(next));
            black_box(admission)
        });
    });
}

fn release_and_wake(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O");
    c.bench_function("release and wake", |bencher| {
        // Each iteration releases the holder and waits until the next waiter runs.
        bencher
            .to_async(&runtime)
            .iter_custom(|iterations| async move {
                let manager = manager();
                manager
                    .enqueue_and_wait(ACTION, ExecutionId(0), 1)
                    .await
                    .expect("a free slot");
                let (woken, mut wakes) = tokio::sync::mpsc::unbounded_channel();
                let count = i64::try_from(iterations).expect("fits");
                for id in 1..=count {
                    let (manager, woken) = (manager.clone(), woken.clone());
                    tokio::spawn(async move {
                        if manager
                            .enqueue_and_wait(ACTION, ExecutionId(id), 1)
                            .await
                            .is_ok()
                        {
                            woken.send(id).ok();
                        }
                    });
                }
                let waiting = |stats: attune_core::QueueStats| stats.queue_length;
                while manager.get_queue_stats(ACTION).map(waiting) != Some(iterations) {
                    tokio::task::yield_now().await;
                }
                let began = Instant::now();
                let mut running = 0;
                while running < count {
                    manager.release(ACTION, ExecutionId(running));
                    running = wakes.recv().await.expect("a waiter was woken");
                }
                began.elapsed()
            });
    });
}

fn stats_lookup(c: &mut Criterion) {
    let manager = manager();
    for id in 0..1000 {
        manager.enqueue(ACTION, ExecutionId(id), 5).expect("room");
    }
    c.bench_function("stats look-up", |bencher| {
        bencher.iter(|| black_box(manager.get_queue_stats(ACTION)));
    });
}

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("a number");
    pages * 4096
}

/// Printed, not timed: what a million waiting executions and a million queues take. First of all, while
/// nothing that was freed is still resident; not where only some benchmarks are asked for.
fn memory(_: &mut Criterion) {
    if std::env::args().skip(1).any(|word| !word.starts_with('-')) {
        return;
    }
    const COUNT: usize = 1_000_000;
    let count = i64::try_from(COUNT).expect("fits");
    let before = resident();
    let limits = QueueLimits {
        max_concurrent: Some(1),
        max_length: u32::MAX,
        timeout_seconds: 3600,
        order: OrderRule::Priority,
        extra: None,
    };
    let mut queue = ActionQueue::new(ACTION, limits, QueueTotals::default());
    for id in 0..=count {
        let waiting = Waiting {
            front: false,
            execution_id: ExecutionId(id),
            seq: Seq(id),
            enqueued_at: id,
            eligible_at: id,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            share: Share::default(),
        };
        queue.enter(Priority::Normal, waiting, None).expect("room");
    }
    black_box(queue.grant_next(0));
    let per_waiting = (resident() - before) / COUNT;
    println!("bytes per waiting execution, {COUNT} in one queue: {per_waiting}");
    drop(queue);
    let before = resident();
    let manager = manager();
    let enqueue = |action, execution| {
        manager
            .enqueue(ActionId(action), ExecutionId(execution), 1)
            .expect("room");
    };
    for action in 0..count {
        enqueue(action, action);
        manager.release(ActionId(action), ExecutionId(action));
    }
    let per_queue = (resident() - before) / COUNT;
    println!("bytes per idle queue, {COUNT} queues: {per_queue}");
    for action in 0..count {
        enqueue(action, action);
        enqueue(action, action + count);
    }
    let per_queue = (resident() - before) / COUNT;
    println!("bytes per queue in which one runs and one waits, {COUNT} queues: {per_queue}");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(3))
        .warm_up_time(Duration::from_secs(1));
    targets = memory, enqueue_with_capacity, release_and_wake, stats_lookup
}
criterion_main!(benches);
