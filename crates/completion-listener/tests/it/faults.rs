//! The bus fails: nothing is acknowledged before it is confirmed, and nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use attune_bus::{Bus as _, Topic};
use attune_completion_listener::ListenerOptions;
use attune_core::PartitionId;

use crate::support::{
    Event, Fate, FaultyBus, Listening, completion, next_letter, next_release, numbers, options,
    report, report_raw, subscribe,
};

fn control(partition: u16) -> Topic {
    Topic::Control(PartitionId(partition))
}

#[tokio::test]
async fn what_is_not_confirmed_is_published_again_and_acknowledged_last() -> Result<()> {
    let bus = FaultyBus::new(|call| match call {
        0 => Fate::Lose,
        1 => Fate::KeepUnconfirmed,
        _ => Fate::Keep,
    });
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    report(&bus.inner, vec![completion(2, 1)]).await?;
    let (first, again) = (
        next_release(&mut owner).await?,
        next_release(&mut owner).await?,
    );
    assert_eq!((numbers(&first.1), numbers(&again.1)), (vec![1], vec![1]));
    assert_eq!(first.0, again.0, "it is the same message");
    let ids = vec![first.0];
    let expected = [
        Event::Failed(ids.clone()),
        Event::Failed(ids.clone()),
        Event::Confirmed(ids),
        Event::Acked(1),
    ];
    assert_eq!(bus.acked(1).await?, expected);
    assert_eq!(listening.handle.counters().forwarded.get(), 1);
    listening.stop().await
}

#[tokio::test]
async fn only_what_was_refused_is_tried_again() -> Result<()> {
    let bus = FaultyBus::new(|call| match call {
        0..=2 => Fate::Refuse(Topic::Control(PartitionId(3))),
        _ => Fate::Keep,
    });
    let (mut two, mut three) = (
        subscribe(&bus.inner, control(2)).await?,
        subscribe(&bus.inner, control(3)).await?,
    );
    bus.inner.declare(&Topic::Completed).await?;
    // The second delivery has items for both partitions, the others for one.
    report(&bus.inner, vec![completion(2, 1)]).await?;
    report(&bus.inner, vec![completion(2, 2), completion(3, 2)]).await?;
    report(&bus.inner, vec![completion(3, 3)]).await?;
    // All three are in the first round: they were ready before the listener was.
    let listening = Listening::start(options(), bus.clone()).await?;
    assert_eq!(numbers(&next_release(&mut two).await?.1), [1, 2]);
    assert_eq!(numbers(&next_release(&mut three).await?.1), [2, 3]);
    let seen = bus.acked(3).await?;
    let published = seen
        .iter()
        .filter(|event| !matches!(event, Event::Acked(_)));
    let published: Vec<&Event> = published.collect();
    let [
        Event::Confirmed(other),
        Event::Failed(one),
        Event::Failed(again),
        Event::Confirmed(last),
    ] = &published[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!((other.len(), one, again), (1, last, last));
    assert_eq!(seen.last(), Some(&Event::Acked(2)));
    listening.stop().await?;
    assert!(two.try_next().is_none() && three.try_next().is_none());
    Ok(())
}

#[tokio::test]
async fn a_partition_that_never_had_an_owner_keeps_its_completions_for_the_first() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let listening = Listening::start(options(), bus.clone()).await?;
    report(&bus.inner, vec![completion(9, 1)]).await?;
    bus.acked(1).await?;
    let mut owner = subscribe(&bus.inner, control(9)).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1]);
    listening.stop().await
}

/// More garbage than the prefetch, and nowhere to put it: completions pass, and nothing is lost.
#[tokio::test]
async fn dead_letters_that_are_full_do_not_stop_completions() -> Result<()> {
    const GARBAGE: usize = 20;
    let full = Arc::new(AtomicBool::new(true));
    let is_full = Arc::clone(&full);
    let bus = FaultyBus::new(move |_| match is_full.load(Ordering::Relaxed) {
        true => Fate::Refuse(Topic::DeadLetters),
        false => Fate::Keep,
    });
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    bus.inner.declare(&Topic::Completed).await?;
    for n in 0..GARBAGE {
        report_raw(&bus.inner, format!("nonsense {n}").into_bytes()).await?;
    }
    report(&bus.inner, vec![completion(2, 1)]).await?;
    let few = ListenerOptions {
        prefetch: 8,
        ..options()
    };
    let listening = Listening::start(few, bus.clone()).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1]);
    assert!(letters.try_next().is_none());
    assert_eq!(listening.handle.counters().poisoned.get(), 0);

    full.store(false, Ordering::Relaxed);
    let mut kept = BTreeSet::new();
    while kept.len() < GARBAGE {
        kept.insert(next_letter(&mut letters).await?.0);
    }
    listening.stop().await
}

#[tokio::test]
async fn a_stop_in_an_outage_gives_everything_to_the_next_listener() -> Result<()> {
    let down = Arc::new(AtomicBool::new(true));
    let outage = Arc::clone(&down);
    let bus = FaultyBus::new(move |_| match outage.load(Ordering::Relaxed) {
        true => Fate::Lose,
        false => Fate::Keep,
    });
    let mut owner = subscribe(&bus.inner, control(2)).await?;
    let mut letters = subscribe(&bus.inner, Topic::DeadLetters).await?;
    let first = Listening::start(options(), bus.clone()).await?;
    report(&bus.inner, vec![completion(2, 1)]).await?;
    report_raw(&bus.inner, b"nonsense".to_vec()).await?;
    let failed = |events: &Vec<Event>| {
        events
            .iter()
            .filter(|event| matches!(event, Event::Failed(_)))
            .count()
    };
    bus.seen("two failed tries", |events| failed(events) >= 2)
        .await?;
    first.stop().await?;
    let acked = |event: &Event| matches!(event, Event::Acked(_));
    let seen = bus.seen("anything", |_| true).await?;
    assert!(!seen.iter().any(acked), "{seen:?}");

    down.store(false, Ordering::Relaxed);
    let second = Listening::start(options(), bus.clone()).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [1]);
    assert_eq!(next_letter(&mut letters).await?.0, b"nonsense");
    bus.acked(2).await?;
    second.stop().await
}
