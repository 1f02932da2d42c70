//! What waits: for room, for a newer listener. None of it is buried, and
//! none of it holds up the rest.

use anyhow::{Context as _, Result};
use attune_bus::{Bus as _, Room, Topic};
use attune_completion_listener::ListenerOptions;
use attune_core::PartitionId;
use attune_messages::encode;
use attune_messages::v1::ExecutionCompleted;
use uuid::Uuid;

use crate::support::{
    Event, Fate, FaultyBus, Listening, completion, next_letter, next_release, numbers, options,
    report, report_kept, report_raw, subscribe, within,
};

fn control(partition: u16) -> Topic {
    Topic::Control(PartitionId(partition))
}

/// Waits until the listener says what is wrong, and that it contains these words.
async fn trouble(listening: &Listening, words: &str) -> Result<()> {
    let mut troubles = listening.handle.troubles();
    let said = troubles.wait_for(|said| said.as_ref().is_some_and(|said| said.contains(words)));
    within(words, said).await??;
    Ok(())
}

/// A partition whose control queue is full, with more for it than the window holds: the others
/// get theirs all the same, and when there is room again it gets all of its own.
#[tokio::test]
async fn a_full_control_queue_holds_up_no_other_partition() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let room = Room {
        messages: 1,
        bytes: 1 << 20,
    };
    bus.inner.set_room(&control(1), room);
    bus.inner.declare(&Topic::Completed).await?;
    let mut other = subscribe(&bus.inner, control(2)).await?;
    let kept = Topic::ControlKept(PartitionId(2));
    let mut other_of_kept = subscribe(&bus.inner, kept).await?;
    let few = ListenerOptions {
        prefetch: 8,
        max_batch: 1,
        ..options()
    };
    // More than the prefetch for the full one before anything for the other.
    for n in 0..20 {
        report(&bus.inner, vec![completion(1, n)]).await?;
    }
    for n in 0..5 {
        report(&bus.inner, vec![completion(2, n)]).await?;
    }
    let listening = Listening::start(few, bus.clone()).await?;
    let mut seen = Vec::new();
    while seen.len() < 5 {
        seen.extend(numbers(&next_release(&mut other).await?.1));
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    trouble(&listening, "partition 1 takes no completions").await?;
    // What goes well elsewhere takes nothing of that back.
    report_kept(&bus.inner, vec![completion(2, 5)]).await?;
    assert_eq!(numbers(&next_release(&mut other_of_kept).await?.1), [5]);
    trouble(&listening, "partition 1 takes no completions").await?;

    bus.inner.set_room(&control(1), Room::default());
    let mut full = subscribe(&bus.inner, control(1)).await?;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 20 {
        seen.extend(numbers(&next_release(&mut full).await?.1));
    }
    assert!(seen.into_iter().eq(0..20));
    let mut troubles = listening.handle.troubles();
    within("all is well", troubles.wait_for(Option::is_none)).await??;
    listening.stop().await
}

/// A newer worker and an older listener: the message waits, the rest goes on, and who listens
/// next has it as it came.
#[tokio::test]
async fn a_message_of_a_newer_version_waits() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let good = [ExecutionCompleted(completion(2, 1))];
    let good = String::from_utf8(encode(Uuid::now_v7(), chrono::Utc::now(), &good))?;
    let newer = good.replace("\"version\":1", "\"version\":2").into_bytes();
    report_raw(&bus.inner, newer.clone()).await?;
    report(&bus.inner, vec![completion(2, 2)]).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [2]);
    trouble(&listening, "messages of a newer version wait").await?;
    bus.acked(1).await?;
    listening.stop().await?;
    assert!(letters.try_next().is_none());
    let mut next = subscribe(&bus.inner, Topic::Completed).await?;
    let delivery = within("it comes again", next.next()).await?;
    assert_eq!(delivery.context("the bus is open")?.body, newer);
    Ok(())
}

/// Nobody will ever take a completion for a partition that the cluster does not have.
#[tokio::test]
async fn a_partition_that_does_not_exist_is_no_poison() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let mut owner = subscribe(&bus.inner, control(3)).await?;
    let few = ListenerOptions {
        partitions: 8,
        ..options()
    };
    let listening = Listening::start(few, bus.clone()).await?;
    report(&bus.inner, vec![completion(9, 1), completion(3, 1)]).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1]);
    let (_, reason) = next_letter(&mut letters).await?;
    assert!(reason.contains("is of partition 9"), "{reason}");
    let seen = bus.acked(1).await?;
    assert_eq!(seen.last(), Some(&Event::Acked(1)));
    assert_eq!(*listening.handle.troubles().borrow(), None);
    listening.stop().await
}
