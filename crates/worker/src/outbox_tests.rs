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
        code: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        partition: Some(ExecutionId(id).partition()),
        worker: Some(attune_core::WorkerId::fresh()),
        broker_user: None,
        started_at: Some(chrono::Utc::now()),
        finished_at: Some(chrono::Utc::now()),
    }
}

/// Packs, sends and reads back; says how many items each message had.
fn pack(items: Vec<Completion>, max_bytes: usize) -> (Vec<usize>, Vec<Completion>) {
    let letters = items.into_iter().map(|item| Letter {
        item: ExecutionCompleted(item),
        since: Instant::now(),
        wait: Duration::ZERO,
        lasts: None,
    });
    let mut batch = Batch {
        letters: letters.collect(),
        way: Way::Quick,
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

fn push(outbox: &Outbox, ids: impl IntoIterator<Item = i64>) {
    for id in ids {
        let with_output = Completion {
            stdout: Some("text".repeat(100)),
            ..completion(id)
        };
        outbox.push(ExecutionCompleted(with_output));
    }
}

fn ids(batch: &Batch) -> Vec<i64> {
    let letters = batch.letters.iter();
    letters.map(|letter| letter.item.0.execution_id.0).collect()
}

/// What goes this way now, all of it.
async fn next(outbox: &Outbox, way: Way, expected: &[i64]) -> Batch {
    let batch = outbox.next(way, 10_000).await.unwrap();
    assert_eq!(ids(&batch), expected, "{way:?}");
    batch
}

/// All of it goes this way and is confirmed.
async fn goes(outbox: &Outbox, way: Way, expected: &[i64]) {
    let batch = next(outbox, way, expected).await;
    outbox.confirmed(batch);
}

fn nothing_waits(outbox: &Outbox) {
    let state = outbox.lock();
    let waiting = state.waiting.iter().map(VecDeque::len);
    assert_eq!((waiting.sum::<usize>(), state.unconfirmed), (0, 0));
}

fn nothing_is_kept(outbox: &Outbox) {
    nothing_waits(outbox);
    let state = outbox.lock();
    assert_eq!((state.held, state.held_bytes, state.kept.len()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn room_ends_and_comes_back_when_it_is_settled_not_when_it_is_confirmed() {
    let outbox = Outbox::new(HOUR);
    for id in 0..4096 {
        assert!(outbox.has_room());
        outbox.push(ExecutionCompleted(completion(id)));
    }
    assert!(!outbox.has_room());
    let batch = outbox.next(Way::Quick, 10).await.unwrap();
    assert_eq!(batch.len(), 10);
    outbox.confirmed(batch);
    assert!(!outbox.has_room());
    assert_eq!((outbox.unconfirmed(), outbox.unsettled()), (4086, 4096));
    outbox.settle(&[key_of(3)]);
    outbox.emptied().await;
    assert!(outbox.has_room());
    // Settled before it was sent: it is not sent at all.
    outbox.settle(&[key_of(10), key_of(11)]);
    let batch = outbox.next(Way::Quick, 10_000).await.unwrap();
    assert_eq!(batch.len(), 4084);
    outbox.confirmed(batch);
    outbox.settle(&(0..4096).map(key_of).collect::<Vec<_>>());
    nothing_is_kept(&outbox);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_settled_is_sent_again_and_what_is_settled_is_not() {
    let outbox = Outbox::new(HOUR);
    push(&outbox, 1..=3);
    assert_eq!(outbox.send_again(&[key_of(1)]), 0, "it is on its way");
    let batch = next(&outbox, Way::Quick, &[1, 2, 3]).await;
    // Its owner may know of it before the confirm is here.
    outbox.settle(&[key_of(2)]);
    assert_eq!(outbox.send_again(&[key_of(1)]), 0);
    outbox.confirmed(batch);
    assert_eq!(outbox.send_again(&[1, 2, 3, 9].map(key_of)), 2);
    goes(&outbox, Way::Quick, &[1, 3]).await;
    outbox.settle(&[key_of(1), key_of(3)]);
    nothing_is_kept(&outbox);
}

#[tokio::test(start_paused = true)]
async fn after_a_while_it_goes_the_lasting_way_once_on_each_connection() {
    const WHILE: Duration = Duration::from_secs(2);
    let outbox = Outbox::new(WHILE);
    push(&outbox, [1]);
    goes(&outbox, Way::Quick, &[1]).await;
    assert_eq!(outbox.send_overdue(), Overdue::default());
    for (wait, way) in [
        (WHILE, Way::Lasting),
        (2 * WHILE, Way::Quick),
        (4 * WHILE, Way::Quick),
    ] {
        tokio::time::advance(wait / 2).await;
        assert_eq!(outbox.send_overdue().count, 0);
        tokio::time::advance(wait / 2).await;
        assert_eq!(outbox.send_overdue().count, 1);
        goes(&outbox, way, &[1]).await;
    }
    // One that has just ended is not kept elsewhere for that.
    push(&outbox, [2]);
    goes(&outbox, Way::Quick, &[2]).await;
    assert_eq!(outbox.link_is_new(), 2);
    goes(&outbox, Way::Quick, &[2]).await;
    goes(&outbox, Way::Lasting, &[1]).await;
    outbox.settle(&[key_of(1), key_of(2)]);
    nothing_is_kept(&outbox);
}

/// An owner that is behind asks for what it has received and not read.
#[tokio::test(start_paused = true)]
async fn whoever_asks_gets_it_ever_more_rarely() {
    let outbox = Outbox::new(HOUR);
    push(&outbox, [1]);
    goes(&outbox, Way::Quick, &[1]).await;
    let mut times = 0;
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(1)).await;
        let again = outbox.send_again(&[key_of(1)]);
        if again > 0 {
            goes(&outbox, Way::Quick, &[1]).await;
        }
        times += again;
    }
    assert!((10..=20).contains(&times), "{times} times in 100 s");
}

#[tokio::test(start_paused = true)]
async fn where_the_quick_way_is_closed_it_goes_the_lasting_one_once() {
    let outbox = Outbox::new(HOUR);
    push(&outbox, 1..=2);
    let batch = next(&outbox, Way::Quick, &[1, 2]).await;
    outbox.settle(&[key_of(2)]);
    outbox.refused(batch);
    goes(&outbox, Way::Lasting, &[1]).await;
    assert_eq!(outbox.send_again(&[key_of(1)]), 1);
    let batch = next(&outbox, Way::Quick, &[1]).await;
    outbox.refused(batch);
    nothing_waits(&outbox);
    assert_eq!(outbox.unsettled(), 1);
    outbox.settle(&[key_of(1)]);
    nothing_is_kept(&outbox);
}

/// Of three one waits, one is under way, and one was told; another has gone the lasting way.
#[tokio::test(start_paused = true)]
async fn what_nobody_keeps_any_longer_goes_the_lasting_way() {
    let outbox = Outbox::new(HOUR);
    push(&outbox, [1]);
    let batch = next(&outbox, Way::Quick, &[1]).await;
    outbox.refused(batch);
    goes(&outbox, Way::Lasting, &[1]).await;
    push(&outbox, [2]);
    goes(&outbox, Way::Quick, &[2]).await;
    push(&outbox, [3]);
    let under_way = next(&outbox, Way::Quick, &[3]).await;
    push(&outbox, [4]);
    outbox.let_go();
    goes(&outbox, Way::Lasting, &[2, 4]).await;
    assert_eq!(outbox.unsettled(), 1);
    outbox.confirmed(under_way);
    goes(&outbox, Way::Lasting, &[3]).await;
    nothing_is_kept(&outbox);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_under_way() {
    let outbox = Outbox::new(HOUR);
    push(&outbox, [1]);
    let batch = next(&outbox, Way::Quick, &[1]).await;
    outbox.close();
    assert!(outbox.next(Way::Quick, 1).await.is_none());
    let rest = async {
        goes(&outbox, Way::Lasting, &[1]).await;
        outbox.next(Way::Lasting, 1).await.is_none()
    };
    let (is_over, ()) = tokio::join!(rest, async { outbox.confirmed(batch) });
    assert!(is_over);
    nothing_is_kept(&outbox);
}
