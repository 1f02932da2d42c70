//! What cannot be routed is refused, exactly that, however much is in flight.

use std::collections::BTreeSet;

use attune_bus::{Bus, Outgoing, PublishError, Refusal, Topic};
use futures_util::future::join_all;
use rand::seq::index::sample;
use uuid::Uuid;

use crate::support::{Prefix, connect, numbered, within};

const MESSAGES: usize = 2_000;
const ROUNDS: usize = 4;

/// Numbered messages, four of which go nowhere, and the ids of those.
fn with_four_unroutable() -> (Vec<Outgoing>, BTreeSet<Uuid>) {
    let lost: BTreeSet<usize> = sample(&mut rand::rng(), MESSAGES, 4).into_iter().collect();
    let messages: Vec<_> = (0..MESSAGES)
        .map(|number| {
            let topic = match lost.contains(&number) {
                true => Topic::QueueStats,
                false => Topic::Completed,
            };
            numbered(topic, number as u64)
        })
        .collect();
    let lost = lost
        .iter()
        .map(|&number| messages[number].message_id)
        .collect();
    (messages, lost)
}

fn refused(answer: Result<(), PublishError>) -> Vec<Uuid> {
    match answer {
        Ok(()) => Vec::new(),
        Err(PublishError::Refused(refused)) => refused
            .into_iter()
            .map(|refused| {
                assert_eq!(refused.why, Refusal::Unroutable);
                refused.message_id
            })
            .collect(),
        Err(other) => panic!("{other}"),
    }
}

async fn bus() -> (std::sync::Arc<dyn Bus>, Prefix) {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    bus.declare(&Topic::Completed).await.unwrap();
    (bus, prefix)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_one_large_call() {
    let (bus, _prefix) = bus().await;
    for round in 0..ROUNDS {
        let (messages, lost) = with_four_unroutable();
        let ids = refused(within("an answer", bus.publish(messages)).await);
        assert_eq!(ids.len(), lost.len(), "round {round}");
        assert_eq!(
            ids.into_iter().collect::<BTreeSet<_>>(),
            lost,
            "round {round}"
        );
    }
    bus.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_many_calls_at_once() {
    let (bus, _prefix) = bus().await;
    for round in 0..ROUNDS {
        let (messages, lost) = with_four_unroutable();
        let calls = messages.into_iter().map(|message| {
            let bus = &bus;
            async move {
                let id = message.message_id;
                (id, refused(bus.publish(vec![message]).await))
            }
        });
        for (id, ids) in within("all answers", join_all(calls)).await {
            let expected: &[Uuid] = if lost.contains(&id) { &[id] } else { &[] };
            assert_eq!(ids, expected, "round {round}");
        }
    }
    bus.close().await;
}
