//! Valid completions reach their owners, grouped, from however many listeners.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Topic};
use attune_completion_listener::{CompletionListener, ListenerError, ListenerOptions};
use attune_core::{Attempt, PartitionId, Status};
use attune_messages::v1::Completion;
use attune_record::{Record, Recorder, read_dir};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Event, Fate, FaultyBus, Listening, completion, next_release, numbers, options, report,
    report_kept, subscribe, within,
};

fn control(partition: u16) -> Topic {
    Topic::Control(PartitionId(partition))
}

#[tokio::test]
async fn a_completion_reaches_the_owner_of_its_partition_with_all_that_it_needs() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(7)).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    let sent = Completion {
        status: Status::Failed,
        result: Some(RawValue::from_string(r#"{"a":1.50}"#.to_owned())?),
        error: Some("exit code 3".to_owned()),
        code: None,
        exit_code: Some(3),
        stdout: Some("out\n".to_owned()),
        stderr: Some("err".to_owned()),
        partition: Some(PartitionId(7)),
        finished_at: Some("2026-11-21T10:00:00.123456Z".parse()?),
        ..completion(7, 1)
    };
    report(&bus.inner, vec![sent.clone()]).await?;
    let (_, items) = next_release(&mut owner).await?;
    // What an owner does not need stays behind.
    let needed = Completion {
        partition: None,
        ..sent
    };
    assert_eq!(
        serde_json::to_string(&items)?,
        serde_json::to_string(&[needed])?
    );

    bus.acked(1).await?;
    let counters = listening.handle.counters();
    assert_eq!((counters.received.get(), counters.forwarded.get()), (1, 1));
    assert_eq!((counters.poisoned.get(), counters.mended.get()), (0, 0));
    listening.stop().await
}

/// Of what its worker keeps and of what nobody keeps the same becomes.
#[tokio::test]
async fn both_kinds_of_completions_are_passed_on() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(3)).await?;
    // What its worker keeps need not outlive the broker here either.
    let kept = Topic::ControlKept(PartitionId(3));
    assert!(!kept.is_lasting());
    let mut owner_of_kept = subscribe(&bus.inner, kept).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    report_kept(&bus.inner, vec![completion(3, 1)]).await?;
    let (_, kept) = next_release(&mut owner_of_kept).await?;
    report(&bus.inner, vec![completion(3, 1)]).await?;
    let (_, again) = next_release(&mut owner).await?;
    assert_eq!(numbers(&kept), [1]);
    assert_eq!(
        serde_json::to_string(&kept)?,
        serde_json::to_string(&again)?
    );
    bus.acked(2).await?;
    for topic in [Topic::CompletedKept, Topic::Completed] {
        assert_eq!(bus.inner.unsettled(&topic), 0, "{topic}");
    }
    assert_eq!(listening.handle.counters().forwarded.get(), 2);
    listening.stop().await
}

#[tokio::test]
async fn what_is_ready_is_grouped_by_partition() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let (mut three, mut five) = (
        subscribe(&bus.inner, control(3)).await?,
        subscribe(&bus.inner, control(5)).await?,
    );
    bus.inner.declare(&Topic::Completed).await?;
    for n in 0..10 {
        report(&bus.inner, vec![completion(3, n), completion(5, n)]).await?;
    }
    let listening = Listening::start(options(), bus.clone()).await?;
    let expected: Vec<u32> = (0..10).collect();
    let (first, items) = next_release(&mut three).await?;
    assert_eq!(numbers(&items), expected);
    let (second, items) = next_release(&mut five).await?;
    assert_eq!(numbers(&items), expected);
    // A publish for each, so that neither waits for the other.
    let seen = bus.acked(10).await?;
    assert_eq!(seen.len(), 3, "{seen:?}");
    for id in [first, second] {
        assert!(seen.contains(&Event::Confirmed(vec![id])), "{seen:?}");
    }
    assert_eq!(seen.last(), Some(&Event::Acked(10)));
    listening.stop().await
}

#[tokio::test]
async fn packs_stay_within_items_and_bytes() -> Result<()> {
    let bus = FaultyBus::new(|_| Fate::Keep);
    let mut owner = subscribe(&bus.inner, control(0)).await?;
    let listening = Listening::start(options(), bus.clone()).await?;
    // More items than a pack may have, then more bytes.
    report(&bus.inner, (0..120).map(|n| completion(0, n)).collect()).await?;
    for n in 120..124 {
        let stdout = Some("x".repeat(40_000));
        report(
            &bus.inner,
            vec![Completion {
                stdout,
                ..completion(0, n)
            }],
        )
        .await?;
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 124 {
        let (_, items) = next_release(&mut owner).await?;
        assert!(items.len() <= 50);
        seen.extend(numbers(&items));
    }
    assert!(seen.into_iter().eq(0..124));
    bus.acked(5).await?;
    listening.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_listeners_share_and_lose_nothing() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let mut owner = subscribe(&*bus, control(1)).await?;
    let few = ListenerOptions {
        prefetch: 3,
        ..options()
    };
    let first = Listening::start(few.clone(), Arc::clone(&bus)).await?;
    let second = Listening::start(few, Arc::clone(&bus)).await?;
    for n in 0..1000 {
        report(&*bus, vec![completion(1, n)]).await?;
    }
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        seen.extend(numbers(&next_release(&mut owner).await?.1));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..1000));
    let (a, b) = (first.handle.counters(), second.handle.counters());
    first.stop().await?;
    second.stop().await?;
    assert_eq!(a.forwarded.get() + b.forwarded.get(), 1000);
    assert!(a.forwarded.get() > 0 && b.forwarded.get() > 0);
    Ok(())
}

#[tokio::test]
async fn what_is_confirmed_is_recorded_and_nothing_else() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // Nobody knows of the first try, which arrives all the same.
    let bus = FaultyBus::new(|call| match call {
        0 => Fate::KeepUnconfirmed,
        _ => Fate::Keep,
    });
    let mut owner = subscribe(&bus.inner, control(1)).await?;
    let recording = ListenerOptions {
        recorder: Some(Recorder::create(dir.path(), "listener")?),
        ..options()
    };
    let listening = Listening::start(recording, bus.clone()).await?;
    let failed = Completion {
        status: Status::Failed,
        ..completion(1, 4)
    };
    let nothing = Completion {
        attempt: Attempt(0),
        ..completion(1, 5)
    };
    report(&bus.inner, vec![failed.clone(), nothing]).await?;
    for _ in 0..2 {
        assert_eq!(numbers(&next_release(&mut owner).await?.1), [4]);
    }
    bus.acked(1).await?;
    listening.stop().await?;
    drop(bus);
    let mut records: Vec<Record> = read_dir(dir.path())?.collect::<Result<_, _>>()?;
    // Dead letters travel apart, so that either may be confirmed first.
    records.sort_by_key(|record| matches!(record, Record::DeadLettered { .. }));
    let [
        Record::Forwarded {
            execution_id,
            attempt,
            status,
            ..
        },
        Record::DeadLettered { reason, .. },
    ] = &records[..]
    else {
        anyhow::bail!("{records:?}")
    };
    assert_eq!(
        (*execution_id, *attempt, *status),
        (failed.execution_id, failed.attempt, Status::Failed)
    );
    assert!(reason.contains("attempt"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn duplicates_are_passed_on() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let mut owner = subscribe(&*bus, control(1)).await?;
    let listening = Listening::start(options(), Arc::clone(&bus)).await?;
    report(&*bus, vec![completion(1, 4), completion(1, 4)]).await?;
    assert_eq!(numbers(&next_release(&mut owner).await?.1), [4, 4]);
    listening.stop().await
}

#[tokio::test]
async fn a_closed_bus_ends_it_with_an_error() -> Result<()> {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new());
    let listening = Listening::start(options(), Arc::clone(&bus)).await?;
    bus.close().await;
    let ended = within("it ends", listening.handle.stopped()).await?;
    assert!(matches!(ended, Err(ListenerError::BusClosed)));
    let again = Listening::start(options(), bus).await;
    assert!(again.is_err());
    Ok(())
}

#[tokio::test]
async fn impossible_options_are_refused() {
    let good = options();
    for bad in [
        ListenerOptions {
            partitions: 0,
            ..good.clone()
        },
        ListenerOptions {
            partitions: 257,
            ..good.clone()
        },
        ListenerOptions {
            prefetch: 0,
            ..good.clone()
        },
        ListenerOptions {
            max_batch: 0,
            ..good.clone()
        },
        ListenerOptions {
            max_message_bytes: 4095,
            ..good
        },
    ] {
        let bus = Arc::new(MemoryBus::new());
        let started = CompletionListener::start(bad, bus, CancellationToken::new()).await;
        assert!(matches!(started, Err(ListenerError::Options(_))));
    }
}
