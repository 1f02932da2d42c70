//! Messages that lapin cannot read, from somebody who may publish.

use std::net::SocketAddr;

use attune_bus::Topic;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    Prefix, broker, connect, number, numbered, receive, subscribe, url_through, within,
};

/// What a client writes in place of bytes that lapin would not write.
const MARK: &[u8] = b"@@@@@@@@";
/// What becomes of it on its way: no UTF-8.
const BYTES: &[u8] = &[0xff; MARK.len()];

/// Stands between one client and the broker, and puts [`BYTES`] in the place of [`MARK`].
async fn spoiler() -> (SocketAddr, AbortOnDropHandle<()>) {
    let broker = broker();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let server = TcpStream::connect(broker).await.unwrap();
        let (mut from_server, mut to_server) = server.into_split();
        let back = tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
        let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            held.extend_from_slice(&buffer[..count]);
            while let Some(at) = held.windows(MARK.len()).position(|it| it == MARK) {
                held[at..at + MARK.len()].copy_from_slice(BYTES);
            }
            // The beginning of a mark waits for its end.
            let kept = (1..MARK.len())
                .rev()
                .find(|kept| held.ends_with(&MARK[..*kept]));
            let ready = held.len() - kept.unwrap_or(0);
            if to_server.write_all(&held[..ready]).await.is_err() {
                break;
            }
            held.drain(..ready);
        }
        back.abort();
    });
    (address, AbortOnDropHandle::new(task))
}

/// Bytes that are no UTF-8, wherever AMQP lets a client put them, stop nobody: what comes behind
/// them arrives, and so do they.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_read_stops_nobody() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    bus.declare(&Topic::Completed).await.unwrap();
    let queue = prefix.name("attune.completed");

    let (address, _spoiling) = spoiler().await;
    let spoilt = url_through(address);
    let connecting = Connection::connect(&spoilt, ConnectionProperties::default());
    let stranger = within("a connection", connecting).await.unwrap();
    let channel = stranger.create_channel().await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    let mark = || std::str::from_utf8(MARK).unwrap();
    let mut headers = FieldTable::default();
    headers.insert(mark().into(), AMQPValue::LongString(mark().into()));
    let properties = BasicProperties::default;
    let bad = [
        properties().with_message_id(mark().into()),
        properties().with_content_type(mark().into()),
        properties().with_reply_to(mark().into()),
        properties().with_type(mark().into()),
        properties().with_headers(headers),
    ];
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
