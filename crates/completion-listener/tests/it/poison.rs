//! What is no completion goes to the dead letters; what is one goes through, whatever it carries.

use anyhow::Result;
use attune_bus::Topic;
use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_messages::{decode_batch, encode};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::support::{
    Fate, FaultyBus, Listening, MAX_BYTES, completion, next_letter, next_release, numbers, options,
    report, report_raw, subscribe,
};

fn control(partition: u16) -> Topic {
    Topic::Control(PartitionId(partition))
}

#[tokio::test]
async fn each_bad_item_goes_alone_and_the_good_ones_go_on() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let bad = [
        (
            Completion {
                status: Status::Queued,
                ..completion(2, 10)
            },
            "`status` is queued",
        ),
        (
            Completion {
                attempt: Attempt(0),
                ..completion(2, 11)
            },
            "`attempt` is 0",
        ),
        (
            Completion {
                partition: Some(PartitionId(3)),
                ..completion(2, 12)
            },
            "`partition` is 3",
        ),
        (
            Completion {
                execution_id: ExecutionId(0),
                ..completion(2, 14)
            },
            "not the id",
        ),
        (
            Completion {
                worker: None,
                ..completion(2, 15)
            },
            "`worker` is missing",
        ),
    ];
    let mut items = vec![completion(2, 1)];
    items.extend(bad.iter().map(|(item, _)| item.clone()));
    items.push(completion(2, 2));
    report(&bus.inner, items).await?;

    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1, 2]);
    for (item, said) in bad {
        let (body, reason) = next_letter(&mut letters).await?;
        assert!(reason.contains(said), "{reason}");
        // It can be put back as it is once the fault is mended.
        let [ExecutionCompleted(letter)] = &decode_batch(&body, MAX_BYTES)?[..] else {
            panic!("not one item")
        };
        assert_eq!(
            serde_json::to_string(letter)?,
            serde_json::to_string(&item)?
        );
    }
    bus.acked(1).await?;
    let counters = listening.handle.counters();
    assert_eq!(
        (
            counters.received.get(),
            counters.forwarded.get(),
            counters.poisoned.get()
        ),
        (7, 2, 5)
    );
    listening.stop().await
}

#[tokio::test]
async fn an_item_that_cannot_be_read_does_not_take_the_others_with_it() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let pack = [1, 2].map(|n| ExecutionCompleted(completion(2, n)));
    let body = String::from_utf8(encode(Uuid::now_v7(), chrono::Utc::now(), &pack))?;
    let broken = body.replacen(r#""attempt":1"#, r#""attempt":"one""#, 1);
    report_raw(&bus.inner, broken.into_bytes()).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [2]);
    let (body, reason) = next_letter(&mut letters).await?;
    assert!(
        reason.starts_with("the item is not a completion: "),
        "{reason}"
    );
    let body = String::from_utf8(body)?;
    assert!(
        body.contains(r#""message_type":"execution.completed""#),
        "{body}"
    );
    assert!(body.contains(r#""attempt":"one""#), "{body}");
    bus.acked(1).await?;
    listening.stop().await
}

#[tokio::test]
async fn a_message_that_cannot_be_read_goes_whole_and_the_listener_goes_on() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let good = encode(
        Uuid::now_v7(),
        chrono::Utc::now(),
        &[ExecutionCompleted(completion(2, 1))],
    );
    let good = String::from_utf8(good)?;
    let cases = [
        (vec![0xff, 0], "not a message envelope"),
        (b"{}".to_vec(), "not a message envelope"),
        (
            good.replace("execution.completed", "queue.stats")
                .into_bytes(),
            "is not one of those",
        ),
        (
            good.replace("\"version\":1", "\"version\":0").into_bytes(),
            "version 0",
        ),
        (
            good.replace("succeeded", "won").into_bytes(),
            "the payload is not a",
        ),
        (vec![b' '; MAX_BYTES + 1], "at most 65536 are allowed"),
    ];
    for (body, said) in &cases {
        report_raw(&bus.inner, body.clone()).await?;
        let (letter, reason) = next_letter(&mut letters).await?;
        assert!(reason.contains(said), "{reason}");
        assert!(letter == *body, "the letter is the message as it came");
    }
    report(&bus.inner, vec![completion(2, 1)]).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1]);
    bus.acked(cases.len() + 1).await?;
    let counters = listening.handle.counters();
    assert_eq!(
        (
            counters.received.get(),
            counters.forwarded.get(),
            counters.poisoned.get()
        ),
        (7, 1, 6)
    );
    listening.stop().await
}

#[tokio::test]
async fn an_outcome_is_never_lost_for_what_it_carries() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let raw = |text: &str| RawValue::from_string(text.to_owned());
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let hostile = vec![
        Completion {
            stdout: Some("a\0b".to_owned()),
            ..completion(2, 1)
        },
        Completion {
            result: Some(raw(r#"{"k": "\u0000"}"#)?),
            ..completion(2, 2)
        },
        Completion {
            result: Some(raw(&deep)?),
            ..completion(2, 3)
        },
    ];
    report(&bus.inner, hostile).await?;
    // It fits as it came, but not together with the note that its result is left out.
    let mut brim = Completion {
        result: Some(raw("1e999")?),
        ..completion(2, 4)
    };
    let now = chrono::Utc::now();
    let size =
        |item: &Completion| encode(Uuid::nil(), now, &[ExecutionCompleted(item.clone())]).len();
    brim.stderr = Some("x".to_owned());
    brim.stderr = Some("x".repeat(1 + MAX_BYTES - size(&brim)));
    assert_eq!(size(&brim), MAX_BYTES);
    report(&bus.inner, vec![brim]).await?;

    let mut items = Vec::new();
    while items.len() < 4 {
        items.extend(next_release(&mut owner).await?.1);
    }
    assert_eq!(numbers(&items), [1, 2, 3, 4]);
    assert_eq!(items[0].stdout.as_deref(), Some("a\u{fffd}b"));
    for (item, said) in items[1..]
        .iter()
        .zip(["NUL", "nested deeper", "out of range"])
    {
        let error = item.error.as_deref().unwrap_or_default();
        assert!(item.result.is_none() && error.contains(said), "{error}");
        assert_eq!(item.status, Status::Succeeded);
    }
    assert!(
        items[3]
            .stderr
            .as_deref()
            .unwrap_or_default()
            .ends_with("bytes more]")
    );
    bus.acked(2).await?;
    let counters = listening.handle.counters();
    assert_eq!(
        (
            counters.forwarded.get(),
            counters.mended.get(),
            counters.poisoned.get()
        ),
        (4, 4, 0)
    );
    listening.stop().await
}
