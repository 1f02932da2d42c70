//! A queue that takes messages and confirms none, as a quorum queue that has lost its majority.

use std::time::Duration;

use attune_bus::{PublishError, Topic};
use attune_bus_rabbitmq::{QueueType, RabbitOptions};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::support::{
    Vhost, connect, numbered, publish_until_confirmed, services, until_reached, within,
};

const TIMEOUT: Duration = Duration::from_secs(4);
/// More than a broker takes for such a queue before it stops reading from the connection.
const CALLS: u64 = 600;

/// Lets the process of a queue stand still, or go on.
async fn process(vhost: &Vhost, queue: &str, act: &str) {
    let name = format!("rabbit_misc:r(<<\"{}\">>, queue, <<\"{queue}\">>)", vhost.0);
    let code =
        format!("{{ok, Q}} = rabbit_amqqueue:lookup({name}), ok = sys:{act}(amqqueue:get_pid(Q)).");
    services(&["rabbitmqctl", "eval", &code]).await;
}

async fn goes_on_beside_a_stuck_queue(queue_type: QueueType) {
    let vhost = Vhost::new().await;
    let options = RabbitOptions {
        publish_timeout: TIMEOUT,
        queue_type,
        ..vhost.options()
    };
    let bus = connect(options).await;
    let stuck = Topic::Completed;
    for topic in [&stuck, &Topic::Enforcements] {
        bus.declare(topic).await.unwrap();
        bus.publish(vec![numbered(topic.clone(), 0)]).await.unwrap();
    }
    process(&vhost, "attune.completed", "suspend").await;
    let unanswered = (1..=CALLS).map(|n| bus.publish(vec![numbered(stuck.clone(), n)]));
    let unanswered = join_all(unanswered);
    // Until long after the first of those has given up.
    let beside = async {
        let (began, mut next, mut slowest) = (Instant::now(), 1, Duration::ZERO);
        while began.elapsed() < 2 * TIMEOUT {
            let sent = Instant::now();
            bus.publish(vec![numbered(Topic::Enforcements, next)])
                .await
                .unwrap();
            slowest = slowest.max(sent.elapsed());
            next += 1;
        }
        (next, slowest)
    };
    let (unanswered, (count, slowest)) =
        within("the calls", async { tokio::join!(unanswered, beside) }).await;
    println!("{queue_type:?}: {count} went on, the slowest took {slowest:?}");
    for answer in unanswered {
        assert!(
            matches!(answer, Err(PublishError::Unconfirmed(_))),
            "{answer:?}"
        );
    }
    assert!(slowest < TIMEOUT / 2, "one waited for {slowest:?}");
    process(&vhost, "attune.completed", "resume").await;
    publish_until_confirmed(&*bus, vec![numbered(stuck, 0)]).await;
    bus.close().await;
    vhost.delete().await;
}

/// Whoever publishes to such a queue alone has its connections made anew again and again, and so has
/// the next one: it still reaches the broker.
async fn the_broker_is_reached_beside_a_stuck_queue(queue_type: QueueType) {
    const LIVES: usize = 5;
    let vhost = Vhost::new().await;
    let options = RabbitOptions {
        publish_timeout: Duration::from_secs(1),
        queue_type,
        ..vhost.options()
    };
    let bus = connect(options).await;
    let stuck = Topic::Completed;
    bus.declare(&stuck).await.unwrap();
    process(&vhost, "attune.completed", "suspend").await;
    let mut lost = 0;
    let lives = async {
        loop {
            let answer = bus.publish(vec![numbered(stuck.clone(), 0)]).await;
            assert!(
                matches!(answer, Err(PublishError::Unconfirmed(_))),
                "{answer:?}"
            );
            // The connection that has waited in vain may still be ending.
            until_reached(&*bus).await;
            lost += 1;
            // On a busy machine a connection may last for so long that those before it are forgiven, or
            // the doubt is over before this looks.
            let trouble = bus.check().await.err().map(|trouble| trouble.to_string());
            let is_doubted = trouble.is_some_and(|trouble| trouble.contains("times in a row"));
            if lost >= LIVES && is_doubted {
                break;
            }
        }
    };
    within("the calls", lives).await;
    process(&vhost, "attune.completed", "resume").await;
    publish_until_confirmed(&*bus, vec![numbered(stuck, 0)]).await;
    bus.close().await;
    vhost.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_quorum_queue_does_not_hide_the_broker() {
    the_broker_is_reached_beside_a_stuck_queue(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_classic_queue_does_not_hide_the_broker() {
    the_broker_is_reached_beside_a_stuck_queue(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_quorum_queue_holds_up_nobody() {
    goes_on_beside_a_stuck_queue(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_classic_queue_holds_up_nobody() {
    goes_on_beside_a_stuck_queue(QueueType::Classic).await;
}
