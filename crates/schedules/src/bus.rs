//! The in-process bus: publishing, receiving, acknowledging and leaving, all at once.

use attune_core::PartitionId;
use shuttle::future::{block_on, spawn};
use uuid::Uuid;

use crate::memory::MemoryBus;
use crate::port::{Bus, Outgoing, Subscriber, Subscription, Topic};

const ORDERED: Topic = Topic::Commands(PartitionId(0));

async fn publish(bus: &MemoryBus, topic: Topic, bodies: std::ops::Range<u8>) {
    for body in bodies {
        let message = Outgoing::new(topic.clone(), Uuid::nil(), vec![body]);
        bus.publish(vec![message]).await.unwrap();
        shuttle::future::yield_now().await;
    }
}

async fn subscribe(bus: &MemoryBus, topic: Topic, prefetch: u16) -> Subscriber {
    let subscription = Subscription { topic, prefetch };
    bus.subscribe(subscription).await.unwrap()
}

/// Receives and acknowledges this many.
async fn take(subscriber: &mut Subscriber, count: usize) -> Vec<u8> {
    let settler = subscriber.settler();
    let mut bodies = Vec::new();
    while bodies.len() < count {
        let delivery = subscriber.next().await.unwrap();
        settler.ack(&[delivery.tag]).await;
        bodies.push(delivery.body[0]);
    }
    bodies
}

/// What one receiver did not acknowledge comes to the next first and in order, while messages
/// keep coming.
pub fn a_receiver_that_leaves_gives_back_in_order() {
    block_on(async {
        let bus = MemoryBus::new();
        bus.declare(&ORDERED).await.unwrap();
        let publisher = spawn({
            let bus = bus.clone();
            async move { publish(&bus, ORDERED, 0..4).await }
        });
        let first = spawn({
            let bus = bus.clone();
            async move {
                let mut first = subscribe(&bus, ORDERED, 3).await;
                let taken = take(&mut first, 1).await;
                // Received, and not acknowledged.
                first.try_next();
                taken
            }
        });
        let mut second = subscribe(&bus, ORDERED, 2).await;
        let mut bodies = Vec::new();
        // Which of the two is served first is open; the second must not keep the first from
        // its one message for ever.
        let mut firsts = take(&mut second, 3).await;
        bodies.append(&mut firsts);
        drop(second);
        bodies.append(&mut first.await.unwrap());
        publisher.await.unwrap();
        bodies.sort_unstable();
        assert_eq!(bodies, [0, 1, 2, 3]);
        assert_eq!(bus.unsettled(&ORDERED), 0);
    });
}

/// The next receiver sees exactly what the one before it did not acknowledge, in order.
pub fn the_next_receiver_continues_in_order() {
    block_on(async {
        let bus = MemoryBus::new();
        bus.declare(&ORDERED).await.unwrap();
        let publisher = spawn({
            let bus = bus.clone();
            async move { publish(&bus, ORDERED, 0..4).await }
        });
        let mut first = subscribe(&bus, ORDERED, 3).await;
        let mut bodies = take(&mut first, 1).await;
        first.try_next();
        let leaving = shuttle::thread::spawn(move || drop(first));
        let mut second = subscribe(&bus, ORDERED, 2).await;
        bodies.append(&mut take(&mut second, 3).await);
        leaving.join().unwrap();
        publisher.await.unwrap();
        assert_eq!(bodies, [0, 1, 2, 3]);
        assert_eq!(bus.unsettled(&ORDERED), 0);
    });
}

/// Receivers that share get every message once between them.
pub fn receivers_that_share_get_each_message_once() {
    block_on(async {
        let bus = MemoryBus::new();
        bus.declare(&Topic::Completed).await.unwrap();
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let bus = bus.clone();
                spawn(async move {
                    let topic = Topic::Completed;
                    let mut bodies = Vec::new();
                    // One that comes when the other has done everything finds the bus closed.
                    let subscribed = bus.subscribe(Subscription { topic, prefetch: 1 }).await;
                    let Ok(mut receiver) = subscribed else {
                        return bodies;
                    };
                    let settler = receiver.settler();
                    while let Some(delivery) = receiver.next().await {
                        settler.ack(&[delivery.tag]).await;
                        bodies.push(delivery.body[0]);
                    }
                    bodies
                })
            })
            .collect();
        publish(&bus, Topic::Completed, 0..4).await;
        while bus.unsettled(&Topic::Completed) > 0 {
            shuttle::future::yield_now().await;
        }
        bus.close().await;
        let mut bodies = Vec::new();
        for receiver in receivers {
            bodies.append(&mut receiver.await.unwrap());
        }
        bodies.sort_unstable();
        assert_eq!(bodies, [0, 1, 2, 3]);
    });
}

/// One who subscribes while the bus closes is refused, or told of the end.
pub fn subscribing_to_a_bus_that_closes_ends() {
    block_on(async {
        let bus = MemoryBus::new();
        let receiver = spawn({
            let bus = bus.clone();
            async move {
                let topic = ORDERED;
                if let Ok(mut receiver) = bus.subscribe(Subscription { topic, prefetch: 1 }).await {
                    assert!(receiver.next().await.is_none());
                }
            }
        });
        bus.close().await;
        receiver.await.unwrap();
    });
}
