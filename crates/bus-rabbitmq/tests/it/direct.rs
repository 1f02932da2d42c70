//! Topics of one subscriber: its queue goes with its connection, and comes again with the next.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, BusError, PublishError, Refusal, Subscriber, Subscription, Topic};
use attune_bus_rabbitmq::{RabbitBus, RabbitOptions};
use attune_core::{OwnerId, WorkerId};
use lapin::options::QueueDeclareOptions;
use tokio::sync::watch;

use crate::support::{
    Prefix, Proxy, Vhost, connect, number, numbered, receive, services, stranger, subscribe,
    until_check, url, within,
};

fn direct_topics() -> [Topic; 2] {
    [
        Topic::link("default", WorkerId::fresh()),
        Topic::Reports(OwnerId::fresh()),
    ]
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Confirmed,
    Unroutable,
    /// The broker takes it back, as it does with what was on its way to a queue that ends just then.
    Nacked,
    Unknown,
}

async fn publish(bus: &dyn Bus, topic: &Topic, number: u64) -> Fate {
    let message = numbered(topic.clone(), number);
    let id = message.message_id;
    match within("an answer", bus.publish(vec![message])).await {
        Ok(()) => Fate::Confirmed,
        Err(PublishError::Unconfirmed(_)) => Fate::Unknown,
        Err(error) => match error.refusal_of(id) {
            Some(Refusal::Unroutable) => Fate::Unroutable,
            Some(Refusal::Full) => Fate::Nacked,
            other => panic!("{other:?}: {error}"),
        },
    }
}

/// Publishes until a message ends like this.
async fn until(bus: &dyn Bus, topic: &Topic, fate: Fate) {
    let mut again = tokio::time::interval(Duration::from_millis(5));
    within(&format!("{topic} {fate:?}"), async {
        while publish(bus, topic, 0).await != fate {
            again.tick().await;
        }
    })
    .await;
}

/// Waits until the subscription was made anew.
async fn renewed(renewals: &mut watch::Receiver<u64>) -> u64 {
    within("a renewal", renewals.changed()).await.unwrap();
    *renewals.borrow_and_update()
}

/// From now on everything comes, in order; what came before may come first.
async fn comes_again(bus: &dyn Bus, topic: &Topic, subscriber: &mut Subscriber) {
    for number in 101..=103 {
        assert_eq!(
            publish(bus, topic, number).await,
            Fate::Confirmed,
            "{topic}"
        );
    }
    let mut next = 101;
    while next <= 103 {
        let delivery = receive(subscriber).await;
        subscriber.settler().ack(&[delivery.tag]).await;
        if number(&delivery) > 100 {
            assert_eq!(number(&delivery), next, "{topic}");
            next += 1;
        }
    }
}

/// The broker throws everybody out, publisher and subscriber: the subscription is made anew and says
/// so, and messages come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_told() {
    let vhost = Vhost::new().await;
    let bus = connect(vhost.options()).await;
    let close = [
        "rabbitmqctl",
        "close_all_connections",
        "--vhost",
        &vhost.0,
        "test",
    ];
    for topic in direct_topics() {
        let mut subscriber = subscribe(&*bus, topic.clone(), 8).await;
        let mut renewals = subscriber.renewals();
        assert_eq!(publish(&*bus, &topic, 1).await, Fate::Confirmed);
        let held = receive(&mut subscriber).await;
        assert_eq!(*renewals.borrow_and_update(), 0);
        for renewal in 1..=2 {
            services(&close).await;
            assert_eq!(renewed(&mut renewals).await, renewal);
            // Publishing has a connection of its own, which may be back a little later.
            until(&*bus, &topic, Fate::Confirmed).await;
            // Of the life before: it settles nothing, and breaks nothing.
            subscriber.settler().ack(&[held.tag]).await;
            comes_again(&*bus, &topic, &mut subscriber).await;
        }
        assert!(!renewals.has_changed().unwrap(), "it was made anew twice");
    }
    until_check(&*bus, true).await;
    bus.close().await;
    vhost.delete().await;
}

/// While the subscriber's connection is away, nothing is confirmed: there is no queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_confirmed_while_the_subscriber_is_cut_off() {
    let prefix = Prefix::new();
    let publisher = connect(prefix.options()).await;
    let proxy = Proxy::new().await;
    let bus = connect(RabbitOptions {
        prefix: prefix.name(""),
        ..RabbitOptions::new(proxy.url())
    })
    .await;
    for topic in direct_topics() {
        let mut subscriber = subscribe(&*bus, topic.clone(), 8).await;
        let mut renewals = subscriber.renewals();
        assert_eq!(publish(&*publisher, &topic, 1).await, Fate::Confirmed);
        assert_eq!(number(&receive(&mut subscriber).await), 1);

        proxy.cut(true);
        // Until the broker has noticed, there is a queue.
        until(&*publisher, &topic, Fate::Unroutable).await;
        for number in 2..=50 {
            let fate = publish(&*publisher, &topic, number).await;
            assert_eq!(fate, Fate::Unroutable, "{topic}");
        }
        assert_ne!(publish(&*bus, &topic, 51).await, Fate::Confirmed, "{topic}");
        assert_eq!(*renewals.borrow_and_update(), 0);

        proxy.cut(false);
        assert_eq!(renewed(&mut renewals).await, 1);
        comes_again(&*publisher, &topic, &mut subscriber).await;
        until_check(&*bus, true).await;
    }
    publisher
        .check()
        .await
        .expect("that nobody is there is no trouble");
    bus.close().await;
    publisher.close().await;
}

/// The broker has not noticed that the connection of a subscriber is gone: that holds up nobody. The
/// next one of the same topic is there at once and gets everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_holds_up_nobody() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    for topic in direct_topics() {
        let proxy = Proxy::new().await;
        let gone = connect(RabbitOptions {
            prefix: prefix.name(""),
            ..RabbitOptions::new(proxy.url())
        })
        .await;
        let mut old = subscribe(&*gone, topic.clone(), 1).await;
        assert_eq!(publish(&*bus, &topic, 1).await, Fate::Confirmed);
        assert_eq!(number(&receive(&mut old).await), 1);
        proxy.freeze(true);
        assert_eq!(
            publish(&*bus, &topic, 2).await,
            Fate::Confirmed,
            "unnoticed"
        );

        let mut new = subscribe(&*bus, topic.clone(), 64).await;
        for number in 3..=40 {
            assert_eq!(publish(&*bus, &topic, number).await, Fate::Confirmed);
        }
        for expected in 3..=40 {
            assert_eq!(number(&receive(&mut new).await), expected, "{topic}");
        }
        assert!(old.try_next().is_none(), "it is cut off");
        proxy.cut(true);
        until_check(&*gone, false).await;
        gone.close().await;
    }
    bus.close().await;
}

/// The broker knows it by the names that operators are told: two exchanges that stay, and queues that
/// nobody else can use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stays_on_the_broker_is_two_exchanges() {
    let prefix = Prefix::new();
    let bus = RabbitBus::connect(prefix.options()).await.unwrap();
    let topics = direct_topics();
    let mut subscribers = Vec::new();
    for topic in &topics {
        subscribers.push(subscribe(&bus, topic.clone(), 8).await);
    }
    drop(subscribers);
    for topic in &topics {
        until(&bus, topic, Fate::Unroutable).await;
    }
    within("it is removed", bus.remove(&topics)).await.unwrap();
    for name in ["lives", "reports"] {
        // The failure closes the channel.
        let (_connection, channel) = stranger().await;
        let exchange = prefix.name(&format!("attune.{name}"));
        let declared = channel
            .queue_declare(
                "".into(),
                QueueDeclareOptions::default(),
                Default::default(),
            )
            .await;
        let queue = declared.unwrap().name().clone();
        let bound = channel
            .queue_bind(
                queue,
                exchange.into(),
                "any".into(),
                Default::default(),
                Default::default(),
            )
            .await;
        let error = bound.unwrap_err().to_string();
        assert!(error.contains("NOT_FOUND"), "{name}: {error}");
    }
    bus.close().await;
}

fn refusal(error: BusError) -> String {
    match error {
        BusError::Refused(text) => text,
        other => panic!("{other}"),
    }
}

/// Who may send to workers, and who may receive reports, is for the broker's permissions to say; who
/// lacks a right hears which one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_told() {
    let vhost = Vhost::new().await;
    let user = url::Url::parse(&url()).unwrap().username().to_owned();
    // As of a worker: it reports, and reads what is for workers.
    let permissions = async |write: &str, read: &str| {
        let own = "^attune[.]";
        let set = ["rabbitmqctl", "set_permissions", "-p", &vhost.0, &user];
        services(&[&set[..], &[own, write, read]].concat()).await;
    };
    let bus: Arc<dyn Bus> = connect(vhost.options()).await;
    let [link, reports] = direct_topics();
    for topic in [&link, &reports] {
        bus.declare(topic).await.expect("everything is allowed");
    }
    permissions(
        "^attune[.](executions|reports|dead-letters|completed|worker[.].*)$",
        "^attune[.](executions|lives|dead-letters|worker[.].*)$",
    )
    .await;
    bus.declare(&reports).await.expect("it may report");
    let text = refusal(bus.declare(&link).await.unwrap_err());
    for part in [
        "messages to workers",
        "write on `attune.lives`",
        "permission",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let subscription = |topic: &Topic| Subscription {
        topic: topic.clone(),
        prefetch: 4,
    };
    let refused = within("an answer", bus.subscribe(subscription(&reports))).await;
    let text = refusal(refused.map(drop).unwrap_err());
    assert!(
        text.contains("attune.executor.") && text.contains("permission"),
        "{text}"
    );
    // Its own it may read, and nothing that was refused has harmed that.
    drop(subscribe(&*bus, link.clone(), 4).await);
    bus.check().await.expect("it goes on with what it may do");

    permissions(
        ".*",
        "^attune[.](executions|dead-letters|lives|executor[.].*)$",
    )
    .await;
    let refused = within("an answer", bus.subscribe(subscription(&reports))).await;
    let text = refusal(refused.map(drop).unwrap_err());
    for part in ["attune.reports", "permission"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The queue that could not be bound takes nothing.
    permissions(".*", ".*").await;
    assert_ne!(publish(&*bus, &reports, 1).await, Fate::Confirmed);
    until(&*bus, &reports, Fate::Unroutable).await;
    bus.close().await;
    vhost.delete().await;
}
