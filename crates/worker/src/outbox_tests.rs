use super::*;
use attune_core::{ActionId, Status};
use attune_messages::decode_batch;
use attune_messages::v1::Completion;
use uuid::Uuid;

fn completion(id: i64) -> Completion {
    Completion {
        execution_id: ExecutionId(id),
        attempt: Attempt(1),
        action_id: ActionId(1),
        status: Status::Succeeded,
        result: None,
        error: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        partition: Some(ExecutionId(id).partition()),
        worker: Some(attune_core::WorkerId::fresh()),
        started_at: Some(chrono::Utc::now()),
        finished_at: Some(chrono::Utc::now()),
    }
}

/// Packs, sends and reads back; says how many items each message had.
fn pack(items: Vec<Completion>, max_bytes: usize) -> (Vec<usize>, Vec<Completion>) {
    let letters = items.into_iter().map(|item| Letter {
        item: ExecutionCompleted(item),
        wait: Duration::ZERO,
    });
    let mut batch = Batch {
        letters: letters.collect(),
        bytes: 0,
    };
    let mut counts = Vec::new();
    let mut read = Vec::new();
    for pack in batch.packs(max_bytes) {
        let body = pack.encode(Uuid::new_v4(), chrono::Utc::now());
        counts.push(pack.tags().len());
        let items = decode_batch::<ExecutionCompleted>(&body, max_bytes).unwrap();
        read.extend(items.into_iter().map(|item| item.0));
    }
    (counts, read)
}

#[test]
fn small_completions_travel_together_in_order() {
    let (counts, read) = pack((1..=250).map(completion).collect(), 1024 * 1024);
    assert_eq!(counts, [100, 100, 50]);
    assert!(read.iter().map(|item| item.execution_id.0).eq(1..=250));
}

#[test]
fn a_message_never_exceeds_its_bound() {
    let with_output = |id, length: usize| Completion {
        stdout: Some("\u{1}é".repeat(length)),
        ..completion(id)
    };
    let items = vec![with_output(1, 600), with_output(2, 600), with_output(3, 30)];
    let (counts, read) = pack(items, 8192);
    assert_eq!(counts, [1, 2]);
    assert_eq!(read[0].stdout.as_ref().unwrap().chars().count(), 1200);
}

#[test]
fn one_that_is_too_large_is_cut_and_says_so() {
    let text = "\u{1}".repeat(100_000);
    let large = Completion {
        stdout: Some(text.clone()),
        stderr: Some(text.clone()),
        error: Some(text.clone()),
        result: Some(serde_json::value::to_raw_value(&text).unwrap()),
        ..completion(1)
    };
    let (_, read) = pack(vec![large], 4096);
    let cut = &read[0];
    assert_eq!(cut.status, Status::Succeeded);
    assert!(cut.result.is_none());
    assert!(cut.stdout.as_ref().unwrap().ends_with("bytes more]"));
    let error = cut.error.as_ref().unwrap();
    assert!(
        error.ends_with("it has 600002 bytes, more than a message may hold]"),
        "{error}"
    );

    // When cutting the output is enough, the result stays.
    let chatty = Completion {
        stdout: Some(text),
        result: Some(serde_json::value::to_raw_value("kept").unwrap()),
        ..completion(2)
    };
    let (_, read) = pack(vec![chatty], 4096);
    assert_eq!(read[0].result.as_ref().unwrap().get(), "\"kept\"");
    assert_eq!(read[0].error, None);
}

const HOUR: Duration = Duration::from_secs(3600);

fn key_of(id: i64) -> Key {
    (ExecutionId(id), Attempt(1))
}

fn ids(batch: &Batch) -> Vec<i64> {
    let letters = batch.letters.iter();
    letters.map(|letter| letter.item.0.execution_id.0).collect()
}

#[tokio::test]
async fn room_ends_and_comes_back_when_it_is_settled_not_when_it_is_confirmed() {
    let outbox = Outbox::new(HOUR);
    for id in 0..4096 {
        assert!(outbox.has_room());
        outbox.push(ExecutionCompleted(completion(id)));
    }
    assert!(!outbox.has_room());
    let batch = outbox.next(10).await.unwrap();
    assert_eq!(batch.len(), 10);
    outbox.confirmed(batch);
    assert!(!outbox.has_room());
    assert_eq!((outbox.unconfirmed(), outbox.unsettled()), (4086, 4096));
    outbox.settle(&[key_of(3)]);
    outbox.emptied().await;
    assert!(outbox.has_room());
    // Settled before it was sent: it is not sent at all.
    outbox.settle(&[key_of(10), key_of(11)]);
    outbox.close();
    let batch = outbox.next(10_000).await.unwrap();
    assert_eq!(batch.len(), 4084);
    assert!(outbox.next(1).await.is_none());
    outbox.confirmed(batch);
    outbox.settle(&(0..4096).map(key_of).collect::<Vec<_>>());
    let state = outbox.lock();
    assert_eq!((state.held, state.held_bytes, state.kept.len()), (0, 0, 0));
}

#[tokio::test]
async fn what_is_not_settled_is_sent_again_and_what_is_settled_is_not() {
    let outbox = Outbox::new(Duration::ZERO);
    for id in 1..=3 {
        let with_output = Completion {
            stdout: Some("text".repeat(100)),
            ..completion(id)
        };
        outbox.push(ExecutionCompleted(with_output));
    }
    assert_eq!(outbox.send_again(&[key_of(1)]), 0, "it is on its way");
    let batch = outbox.next(9).await.unwrap();
    // Its owner may know of it before the confirm is here.
    outbox.settle(&[key_of(2)]);
    assert_eq!(
        (outbox.send_again(&[key_of(1)]), outbox.send_overdue()),
        (0, 0)
    );
    outbox.confirmed(batch);
    assert_eq!(outbox.send_overdue(), 2);
    let batch = outbox.next(9).await.unwrap();
    assert_eq!(ids(&batch), [1, 3]);
    outbox.confirmed(batch);
    outbox.settle(&[key_of(1)]);
    assert_eq!(outbox.send_again(&[key_of(1), key_of(3), key_of(9)]), 1);
    let batch = outbox.next(9).await.unwrap();
    assert_eq!(ids(&batch), [3]);
    // The life that ran it is over.
    outbox.forget_told();
    outbox.confirmed(batch);
    assert_eq!((outbox.send_overdue(), outbox.unsettled()), (0, 0));
    let state = outbox.lock();
    assert_eq!((state.held, state.held_bytes), (0, 0));
}

#[tokio::test]
async fn a_life_that_is_over_keeps_nothing_but_what_is_on_its_way() {
    let outbox = Outbox::new(HOUR);
    outbox.push(ExecutionCompleted(completion(1)));
    let batch = outbox.next(1).await.unwrap();
    outbox.confirmed(batch);
    outbox.push(ExecutionCompleted(completion(2)));
    outbox.forget_told();
    let batch = outbox.next(9).await.unwrap();
    assert_eq!(ids(&batch), [2]);
    outbox.confirmed(batch);
    assert_eq!((outbox.unsettled(), outbox.lock().held), (0, 0));
}
