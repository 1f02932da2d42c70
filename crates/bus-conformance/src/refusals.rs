//! Cases about what a bus does not take, and why. Those for a bounded bus say so.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    MAX_MESSAGE_BYTES, ROOM_BYTES, number, numbered, numbers, publish, receive, receive_many, send,
    subscribe, within,
};
use attune_bus::port::{
    Bus, MAX_HEADERS_BYTES, MAX_NAME_BYTES, Outgoing, PublishError, Refusal, Refused, Topic,
};

/// A message with a body of so many bytes.
fn sized(topic: &Topic, bytes: usize) -> Outgoing {
    Outgoing::new(topic.clone(), Uuid::now_v7(), vec![b'1'; bytes])
}

/// Publishes all, and answers what was refused.
async fn refused(bus: &dyn Bus, messages: Vec<Outgoing>) -> Vec<Refused> {
    match publish(bus, messages).await {
        Ok(()) => Vec::new(),
        Err(PublishError::Refused(refused)) => {
            assert!(!refused.is_empty(), "a refusal names what is refused");
            refused
        }
        Err(other) => panic!("expected a refusal, got {other:?}"),
    }
}

/// A bounded bus: what finds no room is refused as full, what was taken is all there, other
/// topics do not feel it, and when there is room again the same message is taken.
pub async fn what_finds_no_room_is_refused_as_full(bus: Arc<dyn Bus>) {
    for topic in [Topic::Completed, Topic::CompletedKept] {
        no_room_in(&*bus, topic).await;
    }
}

async fn no_room_in(bus: &dyn Bus, topic: Topic) {
    bus.declare(&topic).await.expect("it can be declared");
    let mut taken = Vec::new();
    let late = loop {
        let message = sized(&topic, MAX_MESSAGE_BYTES);
        let id = message.message_id;
        let answer = refused(bus, vec![message.clone()]).await;
        let Some(first) = answer.first() else {
            taken.push(id.to_string());
            // A broker may look at its bound a little late.
            assert!(taken.len() < 1_000, "the bound holds at some point");
            continue;
        };
        assert_eq!((first.message_id, &first.why), (id, &Refusal::Full));
        assert!(!first.why.is_final());
        break message;
    };
    assert!(taken.len() * MAX_MESSAGE_BYTES >= ROOM_BYTES - MAX_MESSAGE_BYTES);
    let other = Topic::QueueStats;
    bus.declare(&other).await.expect("it can be declared");
    send(bus, &other, [1]).await;

    let mut subscriber = subscribe(bus, &topic, 64).await;
    for expected in &taken {
        let delivery = receive(&mut subscriber).await;
        assert_eq!(delivery.message_id.as_ref(), Some(expected));
        subscriber.settler().ack(&[delivery.tag]).await;
    }
    let retried = async {
        while !refused(bus, vec![late.clone()]).await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    within("there is room again", retried).await;
    let delivery = receive(&mut subscriber).await;
    assert_eq!(delivery.message_id, Some(late.message_id.to_string()));
}

/// A bounded bus: what is too large is refused for good, with its size and the bound; one byte
/// less passes, and so does a dead letter of any size, since what it is about has come through.
pub async fn what_is_too_large_is_named_with_the_bound(bus: Arc<dyn Bus>) {
    let mut subscriber = subscribe(&*bus, &Topic::Completed, 8).await;
    let large = sized(&Topic::Completed, MAX_MESSAGE_BYTES + 1);
    let (bytes, max) = (MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES);
    let why = Refusal::TooLarge { bytes, max };
    assert!(why.is_final());
    let message_id = large.message_id;
    let fits = sized(&Topic::Completed, MAX_MESSAGE_BYTES);
    let last = numbered(&Topic::Completed, 2);
    let answer = refused(&*bus, vec![large, fits, last]).await;
    assert_eq!(answer, [Refused { message_id, why }]);
    assert_eq!(receive(&mut subscriber).await.body.len(), MAX_MESSAGE_BYTES);
    assert_eq!(number(&receive(&mut subscriber).await), 2);

    let mut letters = subscribe(&*bus, &Topic::DeadLetters, 8).await;
    let letter = sized(&Topic::DeadLetters, 2 * MAX_MESSAGE_BYTES);
    assert_eq!(refused(&*bus, vec![letter]).await, []);
    assert_eq!(
        receive(&mut letters).await.body.len(),
        2 * MAX_MESSAGE_BYTES
    );
}

/// What no message can carry is refused for good with the reason, and the rest of the call is
/// sent; names of exactly the bound are carried.
pub async fn what_cannot_be_carried_is_invalid(bus: Arc<dyn Bus>) {
    let mut subscriber = subscribe(&*bus, &Topic::Completed, 8).await;
    let name = |bytes| "n".repeat(bytes);
    let message = |number| numbered(&Topic::Completed, number);
    let mut longest = message(1);
    longest.reply_to = Some(name(MAX_NAME_BYTES));
    longest.headers = vec![(name(MAX_NAME_BYTES), String::new())];
    let mut address = message(2);
    address.reply_to = Some(name(MAX_NAME_BYTES + 1));
    let mut header = message(3);
    header.headers = vec![(name(MAX_NAME_BYTES + 1), String::new())];
    let mut heavy = message(4);
    heavy.headers = vec![("n".to_owned(), "v".repeat(MAX_HEADERS_BYTES))];
    let bad = [&address, &header, &heavy].map(|message| message.message_id);
    let answer = refused(&*bus, vec![longest, address, header, heavy, message(5)]).await;
    let ids: Vec<Uuid> = answer.iter().map(|refused| refused.message_id).collect();
    assert_eq!(ids, bad);
    let words = [
        "`reply_to` has 256 bytes",
        "a header",
        "the headers together",
    ];
    for (refused, words) in answer.iter().zip(words) {
        assert!(refused.why.is_final());
        match &refused.why {
            Refusal::Invalid(why) => assert!(why.contains(words), "{words} in {why}"),
            other => panic!("{other}"),
        }
    }
    let deliveries = receive_many(&mut subscriber, 2).await;
    assert_eq!(numbers(&deliveries), [1, 5]);
    let address = deliveries[0].reply_to.as_ref();
    assert_eq!(address.map(String::len), Some(MAX_NAME_BYTES));
}
