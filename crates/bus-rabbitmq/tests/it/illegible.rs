//! Messages that lapin cannot read, from somebody who may publish.

use attune_bus::Topic;
use attune_testkit::{Spoiler, illegible_properties};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Connection, ConnectionProperties};

use crate::support::{Prefix, connect, number, numbered, receive, subscribe, url, within};

/// Bytes that are no UTF-8, wherever AMQP lets a client put them, and lists that lie thousands deep in
/// each other stop nobody: what comes behind them arrives, and so do they.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_read_stops_nobody() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    bus.declare(&Topic::Completed).await.unwrap();
    let queue = prefix.name("attune.completed");

    let spoiler = Spoiler::start(&url()).await.unwrap();
    let spoilt = spoiler.url(&url()).unwrap();
    let connecting = Connection::connect(&spoilt, ConnectionProperties::default());
    let stranger = within("a connection", connecting).await.unwrap();
    let channel = stranger.create_channel().await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    let bad = illegible_properties();
    let count = bad.len() as u64;
    for (place, properties) in (0..count).zip(bad) {
        let body = place.to_string();
        let publishing = channel.basic_publish(
            "".into(),
            queue.as_str().into(),
            BasicPublishOptions::default(),
            body.as_bytes(),
            properties.with_delivery_mode(2),
        );
        let confirm = within("a publish", publishing).await.unwrap();
        let confirm = within("a confirm", confirm).await.unwrap();
        assert!(confirm.is_ack(), "{confirm:?}");
    }
    // The last one has a name and a text that are none.
    assert_eq!(spoiler.changed() as u64, count + 1);
    bus.publish(vec![numbered(Topic::Completed, count)])
        .await
        .unwrap();

    let mut subscriber = subscribe(&*bus, Topic::Completed, 16).await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() <= count as usize {
        let delivery = receive(&mut subscriber).await;
        seen.insert(number(&delivery));
        subscriber.settler().ack(&[delivery.tag]).await;
    }
    assert_eq!(seen, (0..=count).collect());
    // The connection lives on, and nothing comes again.
    bus.publish(vec![numbered(Topic::Completed, 99)])
        .await
        .unwrap();
    let last = receive(&mut subscriber).await;
    assert_eq!(number(&last), 99);
    subscriber.settler().ack(&[last.tag]).await;
    bus.close().await;
}
