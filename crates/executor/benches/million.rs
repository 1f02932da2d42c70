//! A partition in which a million wait, each for its time or all for a slot: what one more, one fewer
//! and a due million cost. Printed, not sampled: `cargo bench -p attune-executor --bench million`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_core::{
    Action, ActionId, ActionSpec, Attempt, Epoch, ExecutionId, OrderRule, Outcome, PartitionId,
    Priority, QueueTotals, RequestId, Seq, Status, WorkerId,
};
use attune_dispatch::Life;
use attune_executor::partition::{ClusterBounds, Completion, Event, Partition};
use attune_executor::policy::{QueueLimits, Share};
use attune_executor::queue::{ActionQueue, Waiting};
use attune_executor::roster::SharedRoster;
use attune_executor::stored::{Sets, StoredExecution};
use attune_executor::{ExecutionQueueManager, QueueConfig};

const COUNT: u32 = 1_000_000;
const PARTITION: PartitionId = PartitionId(0);

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from((self.0 >> 33) % u64::from(most)).expect("it is below")
    }
}

/// The median, the 99th percentile and the most of what was measured.
fn say(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    let most = times[times.len() - 1];
    println!("{what}: p50 {:?}, p99 {:?}, most {most:?}", at(50), at(99));
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    times.push(began.elapsed());
    done
}

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    pages.unwrap_or(0_usize) * 4096
}

fn id(place: u32) -> ExecutionId {
    ExecutionId::new(PARTITION, Seq::new(Epoch(1), place))
}

fn waiting(place: u32) -> Waiting {
    Waiting {
        front: false,
        execution_id: id(place),
        seq: id(place).seq(),
        enqueued_at: 0,
        eligible_at: 0,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: true,
        share: Share::default(),
    }
}

/// One queue: what each of a million takes, and how long entering and cancelling takes.
fn one_queue(name: &str, mut time: impl FnMut(u32) -> i64) -> ActionQueue {
    let limits = QueueLimits {
        max_concurrent: Some(1),
        max_length: u32::MAX,
        timeout_seconds: 3600,
        order: OrderRule::Priority,
        extra: None,
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let before = resident();
    for place in 0..COUNT {
        queue
            .enter_delayed(Priority::Normal, waiting(place), None, time(place))
            .expect("room");
    }
    let bytes = (resident() - before) / COUNT as usize;
    println!("bytes for each of {COUNT} delayed, {name}: {bytes}");
    let (mut inserts, mut cancels, mut stats) = (Vec::new(), Vec::new(), Vec::new());
    let mut numbers = Numbers(1);
    for place in COUNT..COUNT + 500_000 {
        let at = time(place);
        timed(&mut inserts, || {
            queue.enter_delayed(Priority::Normal, waiting(place), None, at)
        })
        .expect("room");
        let some = id(numbers.below(place)).seq();
        timed(&mut cancels, || queue.cancel_waiting(some));
        timed(&mut stats, || queue.stats());
    }
    say(&format!("enter delayed, {name}"), inserts);
    say(&format!("cancel delayed, {name}"), cancels);
    say(&format!("stats, {name}"), stats);
    queue
}

/// The life of a worker that has room for everybody.
const WORKER: WorkerId = WorkerId(uuid::Uuid::from_u128(9));

fn roster() -> SharedRoster {
    let roster = SharedRoster::default();
    roster.lock().set([Life {
        worker: WORKER,
        pool: ActionSpec::core_pack().remove(0).pool,
        slots: u32::MAX,
        draining: false,
    }]);
    roster
}

/// A partition with `actions` actions in which a million wait, until `not_before` if they are delayed.
fn partition(actions: u32, limit: Option<u32>, not_before: Option<i64>) -> Partition {
    let config = QueueConfig {
        max_queue_length: u32::MAX,
        queue_timeout_seconds: 1_000_000,
    };
    let cluster = ClusterBounds {
        partitions: 1,
        max_message_bytes: 1 << 20,
        lane_length: 0,
    };
    let queues = ExecutionQueueManager::new(config);
    let mut partition = Partition::new(PARTITION, Epoch(1), cluster, queues, roster());
    let action = |n: u32| {
        let mut spec = ActionSpec::core_pack().remove(0);
        spec.action_ref = format!("test.a{n}").parse().expect("a ref");
        spec.policy.concurrency.limit = limit;
        Action {
            id: ActionId(i64::from(n)),
            partition: PARTITION,
            version: 1,
            spec,
        }
    };
    let actions_of = (0..actions).map(action).collect();
    partition.step(
        0,
        Event::Recover {
            actions: actions_of,
            totals: Vec::new(),
            sets: Sets::default(),
        },
    );
    let row = |place: u32| StoredExecution {
        front: false,
        id: id(place),
        action_id: ActionId(i64::from(place % actions)),
        priority: Priority::Normal,
        status: Status::Queued,
        attempt: Attempt(0),
        grant_no: None,
        unbegun: 0,
        retried: false,
        created: 0,
        not_before,
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
        worker: None,
    };
    partition.step(0, Event::RecoverRows((0..COUNT).map(row).collect()));
    partition
}

/// A million whose time comes at once: how long each step takes until all of them have a slot.
fn due_at_once(actions: u32) {
    let mut partition = partition(actions, None, Some(1_000));
    while partition.next_deadline().is_some_and(|time| time < 1_000) {
        partition.step(0, Event::Tick);
    }
    let mut steps = Vec::new();
    while partition.next_deadline().is_some_and(|time| time <= 1_000) {
        timed(&mut steps, || partition.step(1_000, Event::Tick));
    }
    let count = steps.len();
    say(
        &format!("a step of {count} in which {COUNT} of {actions} actions are due"),
        steps,
    );
}

/// A cancellation, and a completion that names a wrong action, beside a million that wait.
fn beside_a_million(actions: u32) {
    let mut partition = partition(actions, Some(1), None);
    while partition.next_deadline().is_some_and(|time| time <= 0) {
        partition.step(0, Event::Tick);
    }
    let (mut cancels, mut stale) = (Vec::new(), Vec::new());
    let mut numbers = Numbers(2);
    for _ in 0..200_000 {
        let execution_id = id(numbers.below(COUNT));
        let outcome = Arc::new(Outcome::succeeded(None));
        let wrong = Completion {
            execution_id,
            attempt: Attempt(9),
            action_id: ActionId(-1),
            outcome,
            worker: WORKER,
            user: None,
            ran: None,
        };
        timed(&mut stale, || partition.step(0, Event::Completed(wrong)));
        let cancel = Event::Cancel {
            request_id: RequestId::from_key("cancel"),
            execution_id,
            reply_to: None,
        };
        timed(&mut cancels, || partition.step(0, cancel));
    }
    say(&format!("cancel, {actions} actions, {COUNT} wait"), cancels);
    say(
        &format!("completion with a wrong action, {actions} actions, {COUNT} wait"),
        stale,
    );
}

fn main() {
    // Somebody who only wants to see whether benchmarks compile.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    // Both are kept for as long: what one gives back the other would take without being seen.
    let one = one_queue("times that rise", i64::from);
    let mut numbers = Numbers(3);
    let other = one_queue("times at random", |_| i64::from(numbers.below(u32::MAX)));
    drop((one, other));
    for actions in [1, 1_000, 100_000] {
        due_at_once(actions);
        beside_a_million(actions);
    }
}
