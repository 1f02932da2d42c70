//! Connections that break, queues that vanish, brokers that fall silent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use attune_bus::{Bus, BusError, DeliveryTag, PublishError, Refusal, Topic};
use attune_bus_rabbitmq::{QueueType, RabbitOptions};
use attune_core::PartitionId;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::support::{
    Prefix, Proxy, Vhost, connect, number, numbered, publish_until_confirmed, receive, services,
    stranger, subscribe, until_check, within,
};

const STREAM: Topic = Topic::Commands(PartitionId(5));

/// Messages flow before and while `disturb` goes on: nothing that was confirmed is
/// lost, and whatever comes for the first time comes in order. `disturb` is told how many lives of
/// the subscription have brought something.
async fn a_stream_survives(bus: &Arc<dyn Bus>, disturb: impl AsyncFnOnce(watch::Receiver<usize>)) {
    let mut subscriber = subscribe(&**bus, STREAM, 50).await;
    let enough = Arc::new(AtomicBool::new(false));
    let publishing = async {
        let (mut next, mut again) = (0, 0);
        while !enough.load(Ordering::SeqCst) {
            let pack = next % 7 + 1;
            let messages = (next..next + pack).map(|n| numbered(STREAM, n)).collect();
            again += publish_until_confirmed(&**bus, messages).await;
            next += pack;
        }
        (next, again)
    };
    let flowing = Notify::new();
    let (lives, seen_lives) = watch::channel(0);
    let disturbing = async {
        flowing.notified().await;
        disturb(seen_lives).await;
        enough.store(true, Ordering::SeqCst);
    };
    let publishing = async { tokio::join!(publishing, disturbing).0 };
    let mut publishing = std::pin::pin!(publishing);
    let (mut seen, mut repeated, mut generations) = (0, 0, BTreeSet::new());
    let mut total = None;
    while total != Some(seen) {
        tokio::select! {
            (published, again) = &mut publishing, if total.is_none() => {
                println!("{published} confirmed, {again} calls repeated");
                total = Some(published);
            }
            delivery = within("a delivery", subscriber.next()) => {
                let delivery = delivery.expect("a subscriber never notices");
                generations.insert(delivery.tag.generation);
                lives.send_replace(generations.len());
                if seen == 50 {
                    flowing.notify_one();
                }
                match number(&delivery) {
                    new if new == seen => seen += 1,
                    old if old < seen => repeated += 1,
                    gap => panic!("{gap} came when {seen} was next"),
                }
                // Some at once and the rest later, so that connections break with a few held.
                let number = delivery.tag.number;
                let first = if number % 20 == 0 { number - 19 } else { number };
                if number % 3 == 0 || number % 20 == 0 {
                    let tags: Vec<_> = (first..=number)
                        .map(|number| DeliveryTag { number, ..delivery.tag })
                        .collect();
                    subscriber.settler().ack(&tags).await;
                }
            }
        }
    }
    println!("{seen} seen, {repeated} repeated, generations {generations:?}");
    until_check(&**bus, true).await;
}

/// Waits until a life after the first `before` has brought something.
async fn next_life(lives: &mut watch::Receiver<usize>, before: usize) {
    within(
        "a delivery of the next life",
        lives.wait_for(|&lives| lives > before),
    )
    .await
    .expect("the stream flows until the disturbance is over");
}

/// The broker throws everybody out, several times; each time from connections that carry
/// messages, for between two lives there is nobody to throw out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_closed_in_mid_stream() {
    const CLOSINGS: usize = 3;
    let vhost = Vhost::new().await;
    let bus = connect(vhost.options()).await;
    let close = [
        "rabbitmqctl",
        "close_all_connections",
        "--vhost",
        &vhost.0,
        "test",
    ];
    a_stream_survives(&bus, async |mut lives| {
        for closing in 1..=CLOSINGS {
            services(&close).await;
            next_life(&mut lives, closing).await;
        }
    })
    .await;
    bus.close().await;
    vhost.delete().await;
}

/// The broker is killed and started again. Everybody feels that, so it runs only when asked for,
/// on a broker that nobody else uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "kills the broker"]
async fn a_broker_that_crashes() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let prefix = Prefix::new();
        let bus = connect(RabbitOptions {
            queue_type,
            ..prefix.options()
        })
        .await;
        bus.declare(&STREAM).await.unwrap();
        // RabbitMQ 3.10 writes down a little later which data belongs to a new quorum queue; one
        // that was declared within the last three seconds comes back from a crash without.
        services(&["restart", "rabbitmq"]).await;
        until_check(&*bus, true).await;
        a_stream_survives(&bus, async |mut lives| {
            services(&["kill", "rabbitmq"]).await;
            println!("{}", until_check(&*bus, false).await.unwrap());
            services(&["start", "rabbitmq"]).await;
            until_check(&*bus, true).await;
            next_life(&mut lives, 1).await;
        })
        .await;
        bus.close().await;
    }
}

/// Somebody deletes a queue: the subscription finds out, declares it again and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 8).await;
    let mut bystander = subscribe(&*bus, Topic::Enforcements, 8).await;
    bus.publish(vec![numbered(Topic::Completed, 1)])
        .await
        .unwrap();
    let first = receive(&mut subscriber).await;
    subscriber.settler().ack(&[first.tag]).await;
    let (connection, channel) = stranger().await;
    let queue = prefix.name("attune.completed");
    channel
        .queue_delete(queue.into(), QueueDeleteOptions::default())
        .await
        .unwrap();
    // Refused as long as the queue is away; never confirmed into nothing.
    let messages = vec![
        numbered(Topic::Completed, 2),
        numbered(Topic::Enforcements, 3),
    ];
    publish_until_confirmed(&*bus, messages).await;
    let second = receive(&mut subscriber).await;
    assert_eq!(number(&second), 2);
    assert!(second.tag.generation > first.tag.generation);
    assert_eq!(number(&receive(&mut bystander).await), 3);
    // A tag of the life before settles nothing of this one, although the number is the same.
    assert_eq!(first.tag.number, second.tag.number);
    subscriber.settler().ack(&[first.tag]).await;
    drop(subscriber);
    let mut next = subscribe(&*bus, Topic::Completed, 8).await;
    assert_eq!(number(&receive(&mut next).await), 2, "it comes again");
    connection.close(200, "done".into()).await.unwrap();
    bus.close().await;
}

/// Somebody puts another queue in the place of ours: that subscription says so and keeps trying,
/// the others go on, and when the place is free again all is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_replaced() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 8).await;
    let mut bystander = subscribe(&*bus, Topic::Enforcements, 8).await;
    let queue = prefix.name("attune.completed");
    let name = || queue.as_str().into();
    // It has to be faster than our renewal; when it is not, again.
    let connection = loop {
        let (connection, channel) = stranger().await;
        channel
            .queue_delete(name(), QueueDeleteOptions::default())
            .await
            .unwrap();
        let options = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        if channel
            .queue_declare(name(), options, FieldTable::default())
            .await
            .is_ok()
        {
            break connection;
        }
    };
    let why = until_check(&*bus, false).await.unwrap();
    let why = if why.contains("other arguments") {
        why
    } else {
        // That was the connection, which is made anew first.
        within("the refusal", async {
            let mut look = tokio::time::interval(Duration::from_millis(5));
            loop {
                look.tick().await;
                match bus.check().await {
                    Err(BusError::Refused(why)) => break why,
                    Ok(()) | Err(BusError::Unavailable(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        })
        .await
    };
    assert!(
        why.contains(&queue) && why.contains("other arguments"),
        "{why}"
    );
    publish_until_confirmed(&*bus, vec![numbered(Topic::Enforcements, 1)]).await;
    let delivery = receive(&mut bystander).await;
    assert_eq!(number(&delivery), 1);

    let channel = connection.create_channel().await.unwrap();
    channel
        .queue_delete(name(), QueueDeleteOptions::default())
        .await
        .unwrap();
    publish_until_confirmed(&*bus, vec![numbered(Topic::Completed, 2)]).await;
    assert_eq!(number(&receive(&mut subscriber).await), 2);
    until_check(&*bus, true).await;
    bystander.settler().ack(&[delivery.tag]).await;
    connection.close(200, "done".into()).await.unwrap();
    bus.close().await;
}

/// A call is finished or not begun when the bus closes under it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_sends_calls_completely_or_not_at_all() {
    const CALLS: u64 = 4;
    const EACH: u64 = 1_000;
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    bus.declare(&Topic::Completed).await.unwrap();
    let mut calls: Vec<_> = (0..CALLS)
        .map(|call| {
            let numbers = call * EACH..(call + 1) * EACH;
            bus.publish(numbers.map(|n| numbered(Topic::Completed, n)).collect())
        })
        .collect();
    for call in &mut calls {
        assert!(futures_util::poll!(call.as_mut()).is_pending());
    }
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), bus.close());
    let mut sent = Vec::new();
    for (call, answer) in (0..).zip(answers) {
        match answer {
            Ok(()) => sent.extend(call * EACH..(call + 1) * EACH),
            Err(PublishError::Closed) => {}
            Err(other) => panic!("{other}"),
        }
    }
    println!("{} of {} sent", sent.len(), CALLS * EACH);

    let bus = connect(prefix.options()).await;
    let last = CALLS * EACH;
    bus.publish(vec![numbered(Topic::Completed, last)])
        .await
        .unwrap();
    let mut subscriber = subscribe(&*bus, Topic::Completed, 500).await;
    sent.push(last);
    for expected in sent {
        let delivery = receive(&mut subscriber).await;
        assert_eq!(number(&delivery), expected);
        subscriber.settler().ack(&[delivery.tag]).await;
    }
    bus.close().await;
}

/// The exchange is deleted: publishing closes the channel. The next connection declares it again,
/// and what then finds no binding has it made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 8).await;
    let (connection, channel) = stranger().await;
    let exchange = prefix.name("attune.executions");
    channel
        .exchange_delete(exchange.into(), Default::default())
        .await
        .unwrap();
    let message = numbered(Topic::Completed, 1);
    match within("an answer", bus.publish(vec![message.clone()])).await {
        Err(PublishError::Unconfirmed(_)) => {}
        other => panic!("{other:?}"),
    }
    match within("an answer", bus.publish(vec![message.clone()])).await {
        Err(error @ PublishError::Refused(_)) => {
            let why = error.refusal_of(message.message_id);
            assert_eq!(why, Some(&Refusal::Unroutable), "no binding");
        }
        other => panic!("{other:?}"),
    }
    publish_until_confirmed(&*bus, vec![message]).await;
    assert_eq!(number(&receive(&mut subscriber).await), 1);
    connection.close(200, "done".into()).await.unwrap();
    bus.close().await;
}

/// The peer is silent and closes nothing: publishing ends at its deadline with an unknown
/// outcome, and both connections are replaced when the way is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection() {
    let prefix = Prefix::new();
    let proxy = Proxy::new().await;
    let mut options = RabbitOptions {
        prefix: prefix.name(""),
        ..RabbitOptions::new(proxy.url())
    };
    options.heartbeat = Duration::from_secs(1);
    options.publish_timeout = Duration::from_secs(1);
    options.connect_timeout = Duration::from_secs(1);
    let bus = connect(options).await;
    let topic = Topic::Control(PartitionId(9));
    let mut subscriber = subscribe(&*bus, topic.clone(), 8).await;
    bus.publish(vec![numbered(topic.clone(), 0)]).await.unwrap();
    let held = receive(&mut subscriber).await;
    proxy.freeze(true);

    let started = Instant::now();
    let message = numbered(topic.clone(), 1);
    match within("an answer", bus.publish(vec![message.clone()])).await {
        Err(PublishError::Unconfirmed(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    // Acknowledging does not wait for the connection.
    within("an acknowledgement", subscriber.settler().ack(&[held.tag])).await;
    println!("{}", until_check(&*bus, false).await.unwrap());
    let second = numbered(topic.clone(), 2);
    let late = within("an answer", bus.publish(vec![second.clone()])).await;
    assert!(
        matches!(late, Err(PublishError::Unconfirmed(_))),
        "{late:?}"
    );

    proxy.freeze(false);
    publish_until_confirmed(&*bus, vec![message, second]).await;
    // 0 was settled into the void, so it comes again; 1 and 2 once, or more often.
    let mut seen = Vec::new();
    while seen.last() != Some(&2) {
        let delivery = receive(&mut subscriber).await;
        subscriber.settler().ack(&[delivery.tag]).await;
        seen.push(number(&delivery));
    }
    seen.dedup();
    assert_eq!(seen, [0, 1, 2]);
    until_check(&*bus, true).await;
    bus.close().await;
}

/// A connection that was lost several times in a row can be used while it stands, and does not count
/// as one that reaches the broker until it has lasted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_never_lasts_does_not_reach_the_broker() {
    let prefix = Prefix::new();
    let proxy = Proxy::new().await;
    let mut options = RabbitOptions {
        prefix: prefix.name(""),
        ..RabbitOptions::new(proxy.url())
    };
    options.heartbeat = Duration::from_secs(1);
    options.publish_timeout = Duration::from_secs(1);
    options.connect_timeout = Duration::from_secs(1);
    let bus = connect(options).await;
    for lost in 0..3 {
        assert!(bus.reach().is_ok(), "it was lost {lost} times");
        proxy.freeze(true);
        let message = numbered(Topic::Control(PartitionId(10)), lost);
        let published = within("an answer", bus.publish(vec![message])).await;
        assert!(published.is_err(), "{published:?}");
        until_check(&*bus, false).await;
        proxy.freeze(false);
        until_check(&*bus, true).await;
    }
    let error = bus.reach().unwrap_err().to_string();
    assert!(error.contains("lost 3 times in a row"), "{error}");
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let lasting = within("trust", async {
        while bus.reach().is_err() {
            look.tick().await;
        }
    });
    lasting.await;
    until_check(&*bus, true).await;
    bus.close().await;
}

/// The order of one task's calls is kept, whatever becomes of the callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gives_up_unsends_nothing() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let topic = Topic::Control(PartitionId(2));
    let mut subscriber = subscribe(&*bus, topic.clone(), 64).await;
    for number in 0..40 {
        let publishing = bus.publish(vec![numbered(topic.clone(), number)]);
        if number % 2 == 0 {
            // Polled once: handed over, and dropped.
            let mut publishing = publishing;
            assert!(futures_util::poll!(publishing.as_mut()).is_pending());
        } else {
            publishing.await.unwrap();
        }
    }
    for expected in 0..40 {
        let delivery = receive(&mut subscriber).await;
        assert_eq!(number(&delivery), expected);
    }
    bus.close().await;
}

/// Acknowledgements that were given before are told before the subscription ends. (Fewer
/// than 32: a quorum queue takes so many at a time, and what still waits its turn in the broker
/// is lost with the channel, so that those messages come again.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_tells_what_was_acknowledged() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 200).await;
    let messages = (0..25)
        .map(|number| numbered(Topic::Completed, number))
        .collect();
    bus.publish(messages).await.unwrap();
    for expected in 0..25 {
        let delivery = receive(&mut subscriber).await;
        assert_eq!(number(&delivery), expected);
        if expected != 11 {
            subscriber.settler().ack(&[delivery.tag]).await;
        }
    }
    bus.close().await;
    assert!(subscriber.next().await.is_none());

    let bus = connect(prefix.options()).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 200).await;
    bus.publish(vec![numbered(Topic::Completed, 25)])
        .await
        .unwrap();
    let left = [
        receive(&mut subscriber).await,
        receive(&mut subscriber).await,
    ];
    assert_eq!(left.each_ref().map(number), [11, 25]);
    bus.close().await;
}

/// A memory alarm blocks publishing: deadlines hold, acknowledgements get through, the check
/// says why, and all is well afterwards. It blocks everybody on that broker, so it runs only when
/// asked for, on a broker that nobody else uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "raises an alarm on the broker"]
async fn a_blocked_broker() {
    let prefix = Prefix::new();
    let options = RabbitOptions {
        publish_timeout: Duration::from_secs(2),
        ..prefix.options()
    };
    let bus = connect(options).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 8).await;
    bus.publish(vec![numbered(Topic::Completed, 0)])
        .await
        .unwrap();
    let held = receive(&mut subscriber).await;
    services(&["rabbitmqctl", "set_vm_memory_high_watermark", "0.00000001"]).await;
    let message = numbered(Topic::Completed, 1);
    let why = loop {
        // The alarm needs a moment to reach the connection.
        match within("an answer", bus.publish(vec![message.clone()])).await {
            Ok(()) => {}
            Err(PublishError::Unconfirmed(why)) => break why,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(
        why.contains("blocked by the broker: low on memory"),
        "{why}"
    );
    assert!(
        until_check(&*bus, false)
            .await
            .unwrap()
            .contains("low on memory")
    );
    // It reaches the broker although publishing is blocked: the message is gone for good.
    subscriber.settler().ack(&[held.tag]).await;
    drop(subscriber);
    services(&["rabbitmqctl", "set_vm_memory_high_watermark", "0.4"]).await;
    publish_until_confirmed(&*bus, vec![message]).await;
    until_check(&*bus, true).await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 8).await;
    assert_eq!(number(&receive(&mut subscriber).await), 1);
    bus.close().await;
}
