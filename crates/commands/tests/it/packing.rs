//! The command client packs what gathers behind a publish, in order and within bounds.

use std::sync::Arc;

use attune_bus::Bus;
use attune_commands::{ClientError, ClientOptions, CommandClient};
use attune_core::{ExecutionId, PartitionId, RejectCode, Submission};
use serde_json::value::RawValue;

use crate::support::{
    Fate, GatedBus, LONG, Owner, SHORT, accepted, client, id_of, memory_bus, rejected, submit,
    until_in_flight, within,
};

fn numbered(number: usize) -> Submission {
    Submission::new(format!("test.n{number}"))
}

fn refs(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("test.n{number}")).collect()
}

#[tokio::test]
async fn what_gathers_behind_a_publish_goes_in_full_packs() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let mut tasks = vec![submit(&client, numbered(0), LONG)];
    within("the first publish", arrivals.recv()).await;
    let rest = client.clone();
    let many = tokio::spawn(async move {
        rest.submit_many((1..=200).map(numbered).collect(), LONG)
            .await
    });
    until_in_flight(&client, 201).await;
    gated.open(100);
    let mut seen = Vec::new();
    for expected in [1, 64, 64, 64, 8] {
        let pack = owner.next().await;
        assert_eq!(pack.about.len(), expected);
        owner
            .answer(&pack, |index| accepted((seen.len() + index) as i64))
            .await;
        seen.extend(pack.about);
    }
    assert_eq!(seen, refs(0..201));
    assert_eq!(id_of(tasks.remove(0).await.unwrap()), 0);
    let many = many.await.unwrap();
    let ids: Vec<_> = many.into_iter().map(id_of).collect();
    assert_eq!(ids, (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn questions_go_a_few_at_a_time_because_each_is_much_work() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let first = submit(&client, numbered(0), LONG);
    within("the first publish", arrivals.recv()).await;
    let asked = (1..=40).map(|n| {
        let (client, id) = (client.clone(), ExecutionId(256 * n));
        tokio::spawn(async move { client.explain(id, LONG).await })
    });
    let asked: Vec<_> = asked.collect();
    until_in_flight(&client, 41).await;
    gated.open(100);
    for expected in [1, 16, 16, 8] {
        let pack = owner.next().await;
        assert_eq!(pack.about.len(), expected);
        owner.answer(&pack, |_| accepted(1)).await;
    }
    assert!(first.await.unwrap().is_ok());
    for asked in asked {
        assert!(asked.await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn packs_are_bounded_in_bytes_and_a_large_command_goes_alone() {
    let (gated, _arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let sized = |number: usize, kib: usize| {
        let mut submission = numbered(number);
        let parameters = format!(r#"{{"data":"{}"}}"#, "x".repeat(kib * 1024));
        submission.parameters = RawValue::from_string(parameters).unwrap();
        submission
    };
    let submissions = [200, 200, 200, 900, 1, 1].into_iter().enumerate();
    let submissions = submissions
        .map(|(number, kib)| sized(number, kib))
        .collect();
    let sender = client.clone();
    let many = tokio::spawn(async move { sender.submit_many(submissions, LONG).await });
    gated.open(100);
    for numbers in [0..2, 2..3, 3..4, 4..6] {
        let pack = owner.next().await;
        assert_eq!(pack.about, refs(numbers));
        assert!(pack.bytes <= 1024 * 1024, "{} bytes", pack.bytes);
        owner.answer(&pack, |_| accepted(1)).await;
    }
    assert!(many.await.unwrap().iter().all(Result::is_ok));

    // What no owner would read is refused here, by name.
    match client.submit(sized(0, 1024), LONG).await {
        Err(ClientError::Rejected(reject)) => {
            assert_eq!(reject.code, RejectCode::InvalidInput);
            assert_eq!(reject.field.as_deref(), Some("parameters"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn order_holds_over_kinds_of_commands() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let mut tasks = vec![submit(&client, numbered(0), LONG)];
    within("the first publish", arrivals.recv()).await;
    let mut taken = 1;
    let mut queue = |task| {
        tasks.push(task);
        taken += 1;
        taken
    };
    for number in 1..=3 {
        let sender = client.clone();
        let task = match number {
            2 => tokio::spawn(async move { sender.cancel(ExecutionId(0x200), LONG).await }),
            _ => submit(&client, numbered(number), LONG),
        };
        let taken = queue(task);
        until_in_flight(&client, taken).await;
    }
    gated.open(100);
    for (kind, about) in [
        ("partition.submit", "test.n0"),
        ("partition.submit", "test.n1"),
        ("partition.cancel", "512"),
        ("partition.submit", "test.n3"),
    ] {
        let pack = owner.next().await;
        assert_eq!(
            (pack.kind.as_str(), &*pack.about),
            (kind, &[about.to_owned()][..])
        );
        owner.answer(&pack, |_| accepted(1)).await;
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn order_holds_when_the_bus_was_away() {
    let (gated, _arrivals) = GatedBus::new(100);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    gated.fates([Fate::Lost, Fate::Lost]);
    let sender = client.clone();
    let many = tokio::spawn(async move {
        sender
            .submit_many((0..130).map(numbered).collect(), LONG)
            .await
    });
    let mut seen = Vec::new();
    while seen.len() < 130 {
        let pack = owner.next().await;
        owner.answer(&pack, |_| accepted(1)).await;
        seen.extend(pack.about);
    }
    assert_eq!(seen, refs(0..130));
    assert!(many.await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn results_have_the_order_of_the_submissions() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = CommandClient::start(Arc::clone(&bus), ClientOptions::new(2))
        .await
        .unwrap();
    // Partition 1 has no owner.
    let (here, nowhere): (Vec<_>, Vec<_>) = refs(0..40)
        .into_iter()
        .partition(|name| PartitionId::of(name, 2) == PartitionId(0));
    assert!(here.len() > 5 && nowhere.len() > 5);
    let sender = client.clone();
    let submissions = (0..40).map(numbered).collect();
    let many = tokio::spawn(async move { sender.submit_many(submissions, LONG).await });
    let pack = owner.next().await;
    assert_eq!(pack.about, here);
    owner
        .answer(&pack, |index| {
            if index == 1 {
                rejected()
            } else {
                accepted(index as i64)
            }
        })
        .await;
    for (name, result) in refs(0..40).into_iter().zip(many.await.unwrap()) {
        match (here.iter().position(|other| *other == name), result) {
            (None, Err(ClientError::Unroutable(PartitionId(1)))) => {}
            (Some(1), Err(ClientError::Rejected(_))) => {}
            (Some(index), result) => assert_eq!(id_of(result), index as i64),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(client.submit_many(Vec::new(), LONG).await.is_empty());
}

#[tokio::test]
async fn callers_above_the_bound_are_told_so() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let options = ClientOptions {
        max_in_flight: 3,
        ..ClientOptions::new(1)
    };
    let client = CommandClient::start(Arc::clone(&bus), options)
        .await
        .unwrap();
    let sender = client.clone();
    let many = tokio::spawn(async move {
        sender
            .submit_many((0..5).map(numbered).collect(), LONG)
            .await
    });
    let pack = owner.next().await;
    assert_eq!(pack.about, refs(0..3));
    let overloaded = ClientError::Overloaded {
        max_in_flight: 3,
        retry_after_seconds: 1,
    };
    assert_eq!(
        client.submit(numbered(9), LONG).await,
        Err(overloaded.clone())
    );
    owner.answer(&pack, |_| accepted(1)).await;
    let results = many.await.unwrap();
    assert!(results[..3].iter().all(Result::is_ok), "{results:?}");
    assert!(
        results[3..]
            .iter()
            .all(|result| *result == Err(overloaded.clone())),
        "{results:?}"
    );
    until_in_flight(&client, 0).await;
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_sent() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let first = submit(&client, numbered(0), LONG);
    within("the first publish", arrivals.recv()).await;
    let given_up = client.submit(numbered(1), SHORT).await;
    assert!(
        matches!(given_up, Err(ClientError::NotConfirmed { .. })),
        "{given_up:?}"
    );
    // It is in its lane until the publish before it returns, and counts that long.
    assert_eq!(client.stats().in_flight, 2);
    gated.open(100);
    let pack = owner.next().await;
    owner.answer(&pack, |_| accepted(1)).await;
    first.await.unwrap().unwrap();
    let last = submit(&client, numbered(2), LONG);
    let pack = owner.next().await;
    assert_eq!(pack.about, refs(2..3));
    owner.answer(&pack, |_| accepted(2)).await;
    last.await.unwrap().unwrap();
    until_in_flight(&client, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_are_all_answered() {
    let bus = memory_bus();
    let mut owners = Vec::new();
    for partition in 0..4 {
        owners.push(tokio::spawn(
            Owner::start(&bus, partition).await.accept_all(),
        ));
    }
    let client = CommandClient::start(Arc::clone(&bus), ClientOptions::new(4))
        .await
        .unwrap();
    let callers: Vec<_> = (0..20)
        .map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..100 {
                    client
                        .submit(numbered(caller * 100 + number), LONG)
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        within("a caller ends", caller).await.unwrap();
    }
    // An answer can overtake the confirm of its command, which holds the permit that long.
    until_in_flight(&client, 0).await;
    let stats = client.stats();
    assert_eq!((stats.unmatched_answers, stats.unreadable_answers), (0, 0));
    owners.into_iter().for_each(|owner| owner.abort());
}
