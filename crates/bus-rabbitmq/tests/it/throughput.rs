//! How fast it is. Run with
//! `cargo nextest run --release -p attune-bus-rabbitmq --run-ignored only throughput --no-capture`.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Outgoing, Topic};
use attune_bus_rabbitmq::{QueueType, RabbitOptions};
use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;
use uuid::Uuid;

use crate::support::{Prefix, connect, receive, subscribe, within};

const BODY: usize = 300;
const MESSAGES: usize = 20_000;

fn message() -> Outgoing {
    Outgoing::new(Topic::Completed, Uuid::now_v7(), vec![b'x'; BODY])
}

fn rate(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// Publishes with so many calls of one message in flight.
async fn publish(bus: &Arc<dyn Bus>, count: usize, in_flight: usize) -> f64 {
    let started = Instant::now();
    let publishing = stream::iter(0..count)
        .map(|_| bus.publish(vec![message()]))
        .buffered(in_flight)
        .for_each(|answer| async { answer.unwrap() });
    within("publishing", publishing).await;
    rate(count, started.elapsed())
}

/// Consumes, acknowledging so many at a time.
async fn consume(bus: &Arc<dyn Bus>, count: usize, pack: usize) -> f64 {
    let started = Instant::now();
    let mut subscriber = subscribe(&**bus, Topic::Completed, 200).await;
    let settler = subscriber.settler();
    let mut tags = Vec::with_capacity(pack);
    for number in 1..=count {
        tags.push(receive(&mut subscriber).await.tag);
        if tags.len() == pack || number == count {
            settler.ack(&tags).await;
            tags.clear();
        }
    }
    rate(count, started.elapsed())
}

async fn measure(queue_type: QueueType) {
    let prefix = Prefix::new();
    let bus = connect(RabbitOptions {
        queue_type,
        ..prefix.options()
    })
    .await;
    bus.declare(&Topic::Completed).await.unwrap();
    let one = publish(&bus, 2_000, 1).await;
    let many = publish(&bus, MESSAGES - 2_000, 256).await;
    let packs = consume(&bus, MESSAGES / 2, 100).await;
    let single = consume(&bus, MESSAGES / 2, 1).await;
    let packed = Instant::now();
    for _ in 0..MESSAGES / 200 {
        bus.publish((0..200).map(|_| message()).collect())
            .await
            .unwrap();
    }
    let packed = rate(MESSAGES, packed.elapsed());
    println!(
        "{queue_type:?}: publish+confirm {one:.0}/s with 1 in flight, {many:.0}/s with 256, \
         {packed:.0}/s in calls of 200; consume {packs:.0}/s acknowledging by 100, {single:.0}/s \
         one by one"
    );
    assert!(
        one > 0.0 && many > one,
        "windows are faster than waiting for each confirm"
    );
    bus.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn classic() {
    measure(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn quorum() {
    measure(QueueType::Quorum).await;
}
