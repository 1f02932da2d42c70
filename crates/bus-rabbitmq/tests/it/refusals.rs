//! What cannot work is said, in words that help, and never with the password.

use std::time::Duration;

use attune_bus::{Bus as _, BusError, PublishError, Refusal, Refused, Subscription, Topic};
use attune_bus_rabbitmq::{QueueType, RabbitBus, RabbitOptions};
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use crate::support::{
    Prefix, Vhost, connect, number, numbered, receive, services, subscribe, url, url_of_vhost,
    within,
};

async fn connecting(url: &str) -> BusError {
    let connecting = RabbitBus::connect(RabbitOptions::new(url));
    match within("an answer", connecting).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

fn refusal(error: BusError) -> String {
    match error {
        BusError::Refused(text) => text,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_wrong_password() {
    let mut url = url::Url::parse(&url()).unwrap();
    url.set_password(Some("hunter2")).unwrap();
    let text = refusal(connecting(url.as_str()).await);
    for part in [
        "user `",
        "password",
        url.host_str().unwrap(),
        "ACCESS_REFUSED",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn an_unknown_virtual_host() {
    let text = refusal(connecting(&url_of_vhost("no-such-place")).await);
    for part in ["virtual host `no-such-place`", "does not exist"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn nobody_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let place = format!("127.0.0.1:{port}");
    match connecting(&format!("amqp://u:hunter2@{place}/")).await {
        BusError::Unavailable(text) => {
            assert!(text.contains(&place) && text.contains("refused"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        other => panic!("{other}"),
    }
}

/// Something that accepts connections and says nothing.
#[tokio::test]
async fn somebody_silent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut options = RabbitOptions::new(format!("amqp://u:hunter2@{address}/"));
    options.connect_timeout = Duration::from_millis(200);
    match within("an answer", RabbitBus::connect(options)).await {
        Err(BusError::Unavailable(text)) => assert!(text.contains("no answer in time"), "{text}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("connected"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_exists_with_other_arguments() {
    let prefix = Prefix::new();
    let quorum = connect(prefix.options()).await;
    quorum.declare(&Topic::Completed).await.unwrap();
    let mut other = prefix.options();
    other.queue_type = QueueType::Classic;
    // Already the dead letters' queue is of the other type.
    let text = match RabbitBus::connect(other).await {
        Err(error) => refusal(error),
        Ok(_) => panic!("connected"),
    };
    assert!(
        text.contains("attune.dead-letters") && text.contains("other arguments"),
        "{text}"
    );

    // A single queue: the subscription fails, and only that.
    let mut other = prefix.options();
    other.max_queue_bytes += 1;
    let mut subscriber = subscribe(&*quorum, Topic::Completed, 4).await;
    drop(crate::support::stranger().await);
    let text = match RabbitBus::connect(other).await {
        Err(error) => refusal(error),
        Ok(_) => panic!("connected"),
    };
    assert!(text.contains("PRECONDITION_FAILED"), "{text}");
    quorum
        .publish(vec![numbered(Topic::Completed, 5)])
        .await
        .unwrap();
    assert_eq!(number(&receive(&mut subscriber).await), 5);
    quorum.close().await;
}

/// An earlier release declared its queues with another delivery limit. They go on being used:
/// declared, subscribed to, published to, and what they held is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_an_earlier_release() {
    let prefix = Prefix::new();
    let commands = Topic::Commands(attune_core::PartitionId(3));
    let options = prefix.options();
    let (connection, channel) = crate::support::stranger().await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        (
            "x-max-length-bytes",
            AMQPValue::LongLongInt(options.max_queue_bytes as i64),
        ),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", AMQPValue::LongLongInt(1_000)),
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
        (
            "x-dead-letter-exchange",
            text(&prefix.name("attune.dead-letters")),
        ),
        ("x-dead-letter-strategy", text("at-least-once")),
    ] {
        arguments.insert(name.into(), value);
    }
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let name = prefix.name("attune.partition.03.commands");
    channel
        .queue_declare(name.as_str().into(), durable, arguments)
        .await
        .unwrap();
    connection.close(200, "done".into()).await.unwrap();

    let bus = connect(options.clone()).await;
    bus.declare(&commands).await.unwrap();
    let published = bus.publish(vec![numbered(commands.clone(), 1)]).await;
    published.unwrap();
    bus.close().await;
    // The first thing that another process does is to subscribe.
    let bus = connect(options.clone()).await;
    let mut subscriber = subscribe(&*bus, commands.clone(), 4).await;
    assert_eq!(number(&receive(&mut subscriber).await), 1);
    bus.close().await;

    // Any other argument that differs is refused as ever.
    let other = RabbitOptions {
        max_queue_bytes: options.max_queue_bytes + 1,
        ..options
    };
    assert!(RabbitBus::connect(other).await.is_err());
}

/// Two systems with databases of their own do not meet in one place: the second is told so, whether it
/// comes to stay or was there before, and gets nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_has_one_system() {
    let prefix = Prefix::new();
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    let bus = RabbitBus::connect(prefix.options()).await.unwrap();
    bus.leave_mark(one).await.unwrap();
    let second = RabbitBus::connect(prefix.options()).await.unwrap();
    second.leave_mark(one).await.unwrap();
    let stranger = RabbitBus::connect(prefix.options()).await.unwrap();
    let words = |error: BusError| match error {
        BusError::Refused(words) => words,
        error => panic!("{error}"),
    };
    let refused = words(stranger.leave_mark(other).await.unwrap_err());
    let queue = prefix.name("attune.cluster");
    for part in [
        queue.as_str(),
        &other.to_string(),
        &one.to_string(),
        "rabbitmqctl",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let commands = Topic::Commands(attune_core::PartitionId(3));
    let asked = Subscription {
        topic: commands.clone(),
        prefetch: 4,
    };
    let refused = words(stranger.subscribe(asked).await.map(drop).unwrap_err());
    assert!(refused.contains("another system"), "{refused}");
    let mut subscriber = subscribe(&bus, commands.clone(), 4).await;
    let published = second.publish(vec![numbered(commands, 1)]).await;
    published.unwrap();
    assert_eq!(number(&receive(&mut subscriber).await), 1);
    for bus in [bus, second, stranger] {
        bus.close().await;
    }
}

/// A refused subscription leaves the others, on the same connection, alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_taken() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let other = connect(prefix.options()).await;
    let mine = Topic::Reply(prefix.name("mine"));
    let mut subscriber = subscribe(&*bus, mine.clone(), 4).await;
    let mut work = subscribe(&*other, Topic::Completed, 4).await;
    let taken = Subscription {
        topic: mine.clone(),
        prefetch: 4,
    };
    match other.subscribe(taken).await {
        Err(BusError::Refused(text)) => assert!(text.contains("another connection"), "{text}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("two subscribers with one address"),
    }
    let too_long = Subscription {
        topic: Topic::Reply("x".repeat(300)),
        prefetch: 4,
    };
    assert!(matches!(
        other.subscribe(too_long).await,
        Err(BusError::Refused(_))
    ));
    other
        .publish(vec![numbered(mine, 1), numbered(Topic::Completed, 2)])
        .await
        .unwrap();
    assert_eq!(number(&receive(&mut subscriber).await), 1);
    let delivery = receive(&mut work).await;
    assert_eq!(
        (number(&delivery), delivery.tag.generation),
        (2, 1),
        "nothing was rebuilt"
    );
    other.check().await.unwrap();
    bus.close().await;
    other.close().await;
}

/// Beyond its bound a queue takes nothing, and says so; what it took is all there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let prefix = Prefix::new();
        let options = RabbitOptions {
            queue_type,
            max_queue_bytes: 10_000,
            ..prefix.options()
        };
        let bus = connect(options).await;
        bus.declare(&Topic::Completed).await.unwrap();
        let mut accepted = 0;
        let refused = loop {
            let mut message = numbered(Topic::Completed, accepted);
            message.body = format!("{accepted:01000}").into();
            let id = message.message_id;
            match within("an answer", bus.publish(vec![message])).await {
                Ok(()) => accepted += 1,
                Err(PublishError::Refused(refused)) => {
                    let why = Refusal::Full;
                    break refused
                        == [Refused {
                            message_id: id,
                            why,
                        }];
                }
                Err(other) => panic!("{other}"),
            }
            assert!(accepted < 1_000, "the bound holds at some point");
        };
        assert!(refused);
        let mut subscriber = subscribe(&*bus, Topic::Completed, 64).await;
        for expected in 0..accepted {
            let delivery = receive(&mut subscriber).await;
            assert_eq!(number(&delivery), expected);
            subscriber.settler().ack(&[delivery.tag]).await;
        }
        let more = vec![numbered(Topic::Completed, 77)];
        crate::support::publish_until_confirmed(&*bus, more).await;
        assert_eq!(
            number(&receive(&mut subscriber).await),
            77,
            "there is room again"
        );
        bus.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large() {
    let prefix = Prefix::new();
    let bus = connect(RabbitOptions {
        max_message_bytes: 10,
        ..prefix.options()
    })
    .await;
    let mut subscriber = subscribe(&*bus, Topic::Completed, 4).await;
    let mut large = numbered(Topic::Completed, 1);
    large.body = "12345678901".into();
    let id = large.message_id;
    let messages = vec![large, numbered(Topic::Completed, 2)];
    match bus.publish(messages).await {
        Err(PublishError::Refused(refused)) => {
            let why = Refusal::TooLarge { bytes: 11, max: 10 };
            assert_eq!(
                refused,
                [Refused {
                    message_id: id,
                    why
                }]
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        number(&receive(&mut subscriber).await),
        2,
        "the other one was sent"
    );
    bus.close().await;
}

/// The right to answer is one of its own: that it lacks is said before anything is decided, and a bus
/// that loses it later is not well, although it reaches the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_right_to_answer() {
    let vhost = Vhost::new().await;
    let bus = connect(vhost.options()).await;
    let answers = Topic::Reply(String::new());
    bus.declare(&answers).await.expect("it may answer");
    let user = url::Url::parse(&url()).unwrap().username().to_owned();
    let (own, all) = ("^attune[.]", ".*");
    services(&[
        "rabbitmqctl",
        "set_permissions",
        "-p",
        &vhost.0,
        &user,
        own,
        own,
        all,
    ])
    .await;
    let text = refusal(bus.declare(&answers).await.unwrap_err());
    for part in ["sending answers", "amq.default", "permission"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let answer = Topic::Reply("attune.reply.somebody".to_owned());
    for _ in 0..3 {
        let told = bus.publish(vec![numbered(answer.clone(), 0)]).await;
        let told = told.unwrap_err();
        assert!(matches!(told, PublishError::Refused(_)), "{told}");
    }
    bus.reach().unwrap();
    let trouble = refusal(bus.check().await.unwrap_err());
    for part in ["amq.default", "attune topology permissions"] {
        assert!(trouble.contains(part), "{part} in {trouble}");
    }
    // Nobody else has to do with it.
    let event = Topic::Event(attune_core::policy::EventKind::Accepted);
    bus.publish(vec![numbered(event, 0)]).await.unwrap();
    bus.close().await;
    vhost.delete().await;
}
