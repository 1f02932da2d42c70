//! What the load asks for, when, and what it notes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attune_bench::doubling::repeated;
use attune_bench::{Delays, Doubling, Load, LoadOptions, Pace, Scenario, SubmitOutcome, load};
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Outgoing, Subscription, Topic};
use attune_commands::{ClientOptions, CommandClient};
use attune_core::{Attempt, ExecutionId, PartitionId, Reject, RequestId, Status};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome, ExecutionCompleted, Submit};
use attune_messages::{decode, encode};
use attune_record::{Record, now_ns};
use chrono::Utc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Requests as the owner saw them: the ref and how often it came.
type Seen = Arc<Mutex<HashMap<RequestId, (String, usize)>>>;

/// How the owner answers the n-th command it sees.
type Answers = fn(i64) -> Option<AnswerOutcome>;

fn accepted(n: i64) -> Option<AnswerOutcome> {
    Some(AnswerOutcome::Accepted(Accepted {
        execution_id: Some(ExecutionId(n)),
        status: Some(Status::Queued),
        position: Some(0),
        repeated: false,
        priority: None,
        explanation: None,
    }))
}

/// Answers the commands of the only partition.
async fn own(bus: Arc<dyn Bus>, seen: Seen, answers: Answers) {
    let topic = Topic::Calls(PartitionId(0));
    let mut commands = bus
        .subscribe(Subscription {
            topic,
            prefetch: 100,
        })
        .await
        .unwrap();
    let mut n = 0;
    while let Some(delivery) = commands.next().await {
        commands.settler().ack(&[delivery.tag]).await;
        let mut replies = Vec::new();
        let (message_id, commands) = decode::<Submit>(&delivery.body, 1 << 20).unwrap();
        for command in commands {
            n += 1;
            let request_id = command.submission.request_id.unwrap();
            let mut seen = seen.lock().unwrap();
            seen.entry(request_id)
                .or_insert((command.submission.action_ref, 0))
                .1 += 1;
            replies.extend(answers(n).map(|outcome| Answer {
                request_id,
                message_id: Some(message_id),
                outcome,
            }));
        }
        if !replies.is_empty() {
            let id = Uuid::now_v7();
            let topic = Topic::Reply(delivery.reply_to.clone().unwrap());
            let reply = Outgoing::new(topic, id, encode(id, Utc::now(), &replies));
            bus.publish(vec![reply]).await.unwrap();
        }
    }
}

/// Runs a load against an owner; returns what both saw.
async fn run(scenario: &Scenario, options: LoadOptions, answers: Answers) -> (Load, Seen, usize) {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let seen = Seen::default();
    bus.declare(&Topic::Calls(PartitionId(0))).await.unwrap();
    let owner = tokio::spawn(own(Arc::clone(&bus), Arc::clone(&seen), answers));
    let client = CommandClient::start(Arc::clone(&bus), ClientOptions::new(1))
        .await
        .unwrap();
    let progress = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let load = load::run(&client, scenario, options, &stop, &progress);
    let load = tokio::time::timeout(Duration::from_secs(20), load)
        .await
        .expect("bounded");
    bus.close().await;
    owner.await.unwrap();
    (load, seen, progress.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_closed_loop_asks_for_everything_once() {
    let scenario = Scenario {
        name: "spread",
        executions: 103,
        actions: 5,
        limit: 1,
        pace: Pace::Closed {
            in_flight: 40,
            pack: 10,
        },
        ..Scenario::spread()
    };
    let before = now_ns();
    let (load, seen, progress) = run(&scenario, LoadOptions::default(), accepted).await;
    let after = now_ns();
    assert_eq!(
        (load.submitted.len(), load.accepted().count(), progress),
        (103, 103, 103)
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 103);
    for (index, submitted) in load.submitted.iter().enumerate() {
        assert_eq!(submitted.index, index);
        assert_eq!(
            seen[&submitted.request_id],
            (scenario.action_ref(index % 5), 1)
        );
        assert!(before <= submitted.invoked_ns && submitted.invoked_ns <= submitted.answered_ns);
        assert!(submitted.answered_ns <= after);
    }
    let records: Vec<_> = load.records(&scenario).collect();
    assert_eq!(records.len(), 206);
    assert!(
        matches!(&records[0], Record::SubmitInvoke { action_ref, .. }
        if action_ref == "bench.spread-001")
    );
    assert!(matches!(records[1], Record::SubmitOk { .. }));
}

#[tokio::test]
async fn an_open_loop_counts_from_its_schedule() {
    let scenario = Scenario {
        name: "steady",
        executions: 20,
        actions: 3,
        limit: 1,
        pace: Pace::Open { per_second: 400 },
        ..Scenario::spread()
    };
    let (load, ..) = run(&scenario, LoadOptions::default(), accepted).await;
    assert_eq!(load.accepted().count(), 20);
    let begin = load.submitted[0].invoked_ns;
    for submitted in &load.submitted {
        let due = scenario.due(submitted.index).unwrap().as_nanos() as i64;
        assert_eq!(submitted.invoked_ns - begin, due);
        assert!(submitted.answered_ns >= submitted.invoked_ns);
    }
}

/// How long the owner of the next test stands still.
const STALL: Duration = Duration::from_millis(200);

#[tokio::test]
async fn in_an_open_loop_all_that_a_stall_delayed_pay_for_it() {
    let scenario = Scenario {
        executions: 60,
        actions: 1,
        pace: Pace::Open { per_second: 400 },
        ..Scenario::steady()
    };
    // At the third command the only thread stands still, and with it whoever asks.
    let (load, ..) = run(&scenario, LoadOptions::default(), |n| {
        if n == 3 {
            std::thread::sleep(STALL); // stall
        }
        accepted(n)
    })
    .await;
    assert_eq!(load.accepted().count(), 60);
    let due = |index| scenario.due(index).unwrap();
    let over = (due(2) + STALL).as_nanos() as i64;
    let begin = load.submitted[0].invoked_ns;
    for submitted in &load.submitted[2..] {
        let due_ns = due(submitted.index).as_nanos() as i64;
        assert_eq!(submitted.invoked_ns - begin, due_ns);
        let waited_ns = submitted.answered_ns - submitted.invoked_ns;
        assert!(waited_ns >= over - due_ns, "{submitted:?}");
    }
    // The delays are not those of one request: half of those due meanwhile waited for half of it.
    let answers = load.submitted.iter();
    let answers = answers.map(|submitted| submitted.answered_ns - submitted.invoked_ns);
    let found = Delays::of(answers);
    assert!(
        found.max >= Some(195.0) && found.p50 >= Some(100.0),
        "{found:?}"
    );
}

/// Completions of these executions, in one message.
fn completed(ids: std::ops::Range<i64>) -> Outgoing {
    let items: Vec<_> = ids
        .map(|id| {
            let text = serde_json::json!({
                "execution_id": ExecutionId(id), "attempt": 1, "action_id": 1, "status": "succeeded",
            });
            serde_json::from_value::<ExecutionCompleted>(text).unwrap()
        })
        .collect();
    let id = Uuid::now_v7();
    Outgoing::new(Topic::CompletedKept, id, encode(id, Utc::now(), &items))
}

#[tokio::test]
async fn one_of_so_many_completions_is_sent_twice() {
    let memory: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let topic = Topic::CompletedKept;
    let mut listener = memory
        .subscribe(Subscription {
            topic,
            prefetch: 100,
        })
        .await
        .unwrap();
    let doubling = Doubling::new(Arc::clone(&memory), 10, 1 << 20);
    memory.declare(&Topic::DeadLetters).await.unwrap();
    doubling.publish(vec![completed(1..16)]).await.unwrap();
    // Other messages and what cannot be read go through once.
    let other = |topic| Outgoing::new(topic, Uuid::now_v7(), "[");
    let others = vec![other(Topic::CompletedKept), other(Topic::DeadLetters)];
    doubling.publish(others).await.unwrap();
    let more = vec![completed(16..18), completed(18..31)];
    doubling.publish(more).await.unwrap();
    let mut received = Vec::new();
    while let Some(delivery) = listener.try_next() {
        let items = decode::<ExecutionCompleted>(&delivery.body, 1 << 20);
        let items = items.map(|(_, items)| items).unwrap_or_default();
        received.push(
            items
                .iter()
                .map(|one| one.0.execution_id.0)
                .collect::<Vec<_>>(),
        );
    }
    let range = |range: std::ops::Range<i64>| range.collect::<Vec<_>>();
    assert_eq!(
        received,
        [
            range(1..16),
            vec![10],
            vec![],
            range(16..18),
            range(18..31),
            vec![20, 30]
        ]
    );
    assert_eq!(doubling.again().load(Ordering::Relaxed), 3);
    let once_more = [1, 2, 1, 1].map(|id| (ExecutionId(id), Attempt(1)));
    assert_eq!(repeated(once_more), 2);
}

#[tokio::test]
async fn a_refusal_is_final_and_silence_is_not() {
    let scenario = Scenario {
        name: "serial",
        executions: 3,
        actions: 1,
        limit: 1,
        pace: Pace::Closed {
            in_flight: 1,
            pack: 1,
        },
        ..Scenario::spread()
    };
    let patience = LoadOptions {
        answer_within: Duration::from_millis(100),
        give_up_after: Duration::from_secs(10),
    };
    // The first is refused; the second is not answered before its third delivery.
    let (load, seen, _) = run(&scenario, patience, |n| match n {
        1 => Some(AnswerOutcome::Rejected(Reject::queue_full(7))),
        2 | 3 => None,
        n => accepted(n),
    })
    .await;
    let outcomes: Vec<_> = load
        .submitted
        .iter()
        .map(|submitted| &submitted.outcome)
        .collect();
    assert_eq!(
        outcomes[0],
        &SubmitOutcome::Refused("Queue full (max length: 7)".to_owned())
    );
    assert_eq!(outcomes[1], &SubmitOutcome::Accepted(ExecutionId(4)));
    assert_eq!(outcomes[2], &SubmitOutcome::Accepted(ExecutionId(5)));
    assert_eq!(seen.lock().unwrap()[&load.submitted[1].request_id].1, 3);
}

#[tokio::test]
async fn who_is_never_answered_gives_up() {
    let scenario = Scenario {
        name: "serial",
        executions: 1,
        actions: 1,
        limit: 1,
        pace: Pace::Closed {
            in_flight: 1,
            pack: 1,
        },
        ..Scenario::spread()
    };
    let patience = LoadOptions {
        answer_within: Duration::from_millis(50),
        give_up_after: Duration::from_millis(100),
    };
    let (load, ..) = run(&scenario, patience, |_| None).await;
    assert!(
        matches!(load.submitted[0].outcome, SubmitOutcome::Undecided(_)),
        "{load:?}"
    );
    let records: Vec<Record> = load.records(&scenario).collect();
    assert!(
        matches!(records[1], Record::SubmitInfo { .. }),
        "{records:?}"
    );
}

#[tokio::test]
async fn a_stopped_load_begins_nothing_more() {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let client = CommandClient::start(bus, ClientOptions::new(1))
        .await
        .unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    for scenario in [Scenario::spread(), Scenario::steady()] {
        let progress = Arc::default();
        let load = load::run(&client, &scenario, LoadOptions::default(), &stop, &progress).await;
        assert_eq!(load, Load::default());
    }
}
