//! Cases about acknowledgements, prefetch, dead letters and the end of a bus.

use std::sync::Arc;

use attune_core::PartitionId;

use super::{
    assert_nothing_comes, number, numbered, numbers, publish, receive, receive_many, send,
    subscribe, within,
};
use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC, dead_letter};
use attune_bus::port::{Bus, BusError, DeliveryTag, PublishError, Subscription, Topic};

/// Several subscribers of a work topic receive at once, each message one of them.
pub async fn subscribers_of_a_work_topic_share(bus: Arc<dyn Bus>) {
    let topic = Topic::Completed;
    let mut first = subscribe(&*bus, &topic, 1).await;
    let mut second = subscribe(&*bus, &topic, 1).await;
    // Either holds one message and may hold no more, so that the other gets the second.
    send(&*bus, &topic, 1..=2).await;
    let one = receive(&mut first).await;
    let two = receive(&mut second).await;
    let mut seen = vec![number(&one), number(&two)];
    send(&*bus, &topic, 3..=40).await;
    first.settler().ack(&[one.tag]).await;
    second.settler().ack(&[two.tag]).await;
    while seen.len() < 40 {
        let (delivery, settler) = within("either receives", async {
            tokio::select! {
                delivery = first.next() => (delivery, first.settler()),
                delivery = second.next() => (delivery, second.settler()),
            }
        })
        .await;
        let delivery = delivery.expect("the bus is open");
        seen.push(number(&delivery));
        settler.ack(&[delivery.tag]).await;
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=40).collect::<Vec<_>>());
    assert_nothing_comes(&*bus, &mut first, "everything is settled").await;
    assert_nothing_comes(&*bus, &mut second, "everything is settled").await;
}

/// No more than `prefetch` deliveries are unsettled; each acknowledgement lets one more come.
pub async fn prefetch_bounds_what_is_unsettled(bus: Arc<dyn Bus>) {
    for topic in [
        Topic::Completed,
        Topic::Commands(PartitionId(0)),
        Topic::HandedOver,
    ] {
        let mut subscriber = subscribe(&*bus, &topic, 3).await;
        send(&*bus, &topic, 1..=10).await;
        let held = receive_many(&mut subscriber, 3).await;
        assert_eq!(numbers(&held), [1, 2, 3], "{topic}");
        assert_nothing_comes(&*bus, &mut subscriber, "three are unsettled").await;
        subscriber.settler().ack(&[held[1].tag]).await;
        let fourth = receive(&mut subscriber).await;
        assert_eq!(number(&fourth), 4, "{topic}");
        assert_nothing_comes(&*bus, &mut subscriber, "three are unsettled again").await;
        subscriber
            .settler()
            .ack(&[held[0].tag, held[2].tag, fourth.tag])
            .await;
        assert_eq!(
            numbers(&receive_many(&mut subscriber, 3).await),
            [5, 6, 7],
            "{topic}"
        );
    }
}

/// Acknowledgements settle what they name, whatever their order, and nothing else.
pub async fn acknowledgements_may_come_out_of_order(bus: Arc<dyn Bus>) {
    let topic = Topic::Control(PartitionId(2));
    let mut first = subscribe(&*bus, &topic, 16).await;
    send(&*bus, &topic, 1..=8).await;
    let held = receive_many(&mut first, 8).await;
    let settler = first.settler();
    settler.ack(&[held[6].tag]).await;
    settler.ack(&[held[4].tag, held[2].tag]).await;
    settler.ack(&[held[0].tag]).await;
    drop(first);
    let mut second = subscribe(&*bus, &topic, 16).await;
    let rest = receive_many(&mut second, 4).await;
    assert_eq!(numbers(&rest), [2, 4, 6, 8]);
    let tags: Vec<_> = rest.iter().rev().map(|delivery| delivery.tag).collect();
    second.settler().ack(&tags).await;
    assert_nothing_comes(&*bus, &mut second, "everything is settled").await;
}

/// Acknowledging twice, with a tag of another life, or after the subscriber is gone settles
/// nothing and breaks nothing.
pub async fn acknowledging_again_or_too_late_is_harmless(bus: Arc<dyn Bus>) {
    let topic = Topic::Commands(PartitionId(4));
    let mut first = subscribe(&*bus, &topic, 16).await;
    send(&*bus, &topic, 1..=3).await;
    let held = receive_many(&mut first, 3).await;
    let settler = first.settler();
    settler.ack(&[held[0].tag, held[0].tag]).await;
    settler.ack(&[held[0].tag]).await;
    settler.ack(&[]).await;
    let foreign = DeliveryTag {
        generation: held[1].tag.generation.wrapping_add(1_000_000),
        number: held[1].tag.number,
    };
    settler.ack(&[foreign]).await;
    // The subscription has survived all that.
    send(&*bus, &topic, [4]).await;
    assert_eq!(number(&receive(&mut first).await), 4);
    drop(first);

    let mut second = subscribe(&*bus, &topic, 16).await;
    let again = receive_many(&mut second, 3).await;
    assert_eq!(numbers(&again), [2, 3, 4]);
    settler.ack(&[held[1].tag, held[2].tag]).await;
    drop(second);
    let mut third = subscribe(&*bus, &topic, 16).await;
    assert_eq!(numbers(&receive_many(&mut third, 3).await), [2, 3, 4]);
}

/// When the broker has taken an acknowledgement, the message comes no more, and those beside it do.
/// Nobody hears so of a tag of another life, or after the subscriber is gone.
pub async fn what_is_surely_acknowledged_comes_no_more(bus: Arc<dyn Bus>) {
    let topic = Topic::Commands(PartitionId(6));
    let mut first = subscribe(&*bus, &topic, 16).await;
    send(&*bus, &topic, 1..=4).await;
    let held = receive_many(&mut first, 4).await;
    let settler = first.settler();
    let confirmation = settler.ack_confirmed(&[held[1].tag, held[2].tag]).await;
    let heard = within("the broker takes it", confirmation).await;
    assert!(heard.is_ok(), "both were of this life");
    let nothing = settler.ack_confirmed(&[]).await;
    let heard = within("nothing is taken at once", nothing).await;
    assert!(heard.is_ok(), "there was nothing to take");
    let foreign = DeliveryTag {
        generation: held[0].tag.generation.wrapping_add(1_000_000),
        number: held[0].tag.number,
    };
    let of_another = settler.ack_confirmed(&[held[3].tag, foreign]).await;
    let heard = within("a foreign tag is not taken", of_another).await;
    assert!(heard.is_err(), "one of them comes again");
    drop(first);

    let mut second = subscribe(&*bus, &topic, 16).await;
    let again = receive(&mut second).await;
    assert_eq!(number(&again), 1);
    let too_late = settler.ack_confirmed(&[held[0].tag]).await;
    let heard = within("it is too late", too_late).await;
    assert!(heard.is_err(), "another has it by now");
    second.settler().ack(&[again.tag]).await;
    assert_nothing_comes(&*bus, &mut second, "everything is settled").await;
}

/// A dead letter has the body and headers of the message, says why and from where, and the
/// message itself is settled.
pub async fn a_dead_letter_moves_with_its_reason(bus: Arc<dyn Bus>) {
    let topic = Topic::Completed;
    let mut letters = subscribe(&*bus, &Topic::DeadLetters, 4).await;
    let mut subscriber = subscribe(&*bus, &topic, 4).await;
    let mut poison = numbered(&topic, 13);
    poison.headers = vec![("x-attune-test".to_owned(), "kept".to_owned())];
    publish(&*bus, vec![poison]).await.expect("it is confirmed");
    let delivery = receive(&mut subscriber).await;
    let settler = subscriber.settler();
    within(
        "it is buried",
        dead_letter(&*bus, &settler, &topic, &delivery, "not an envelope"),
    )
    .await
    .expect("the dead letters can be reached");

    let letter = receive(&mut letters).await;
    assert_eq!(number(&letter), 13);
    for (name, value) in [
        (DEAD_LETTER_REASON, "not an envelope"),
        (DEAD_LETTER_TOPIC, "execution.completed"),
        ("x-attune-test", "kept"),
    ] {
        let header = (name.to_owned(), value.to_owned());
        assert!(
            letter.headers.contains(&header),
            "{header:?} in {:?}",
            letter.headers
        );
    }
    drop(subscriber);
    let mut next = subscribe(&*bus, &topic, 4).await;
    send(&*bus, &topic, [14]).await;
    assert_eq!(
        number(&receive(&mut next).await),
        14,
        "the dead one does not come again"
    );
}

/// After `close`, subscribers end and everything else says that the bus is closed.
pub async fn closing_ends_everything(bus: Arc<dyn Bus>) {
    let mut idle = subscribe(&*bus, &Topic::Completed, 4).await;
    let mut busy = subscribe(&*bus, &Topic::QueueStats, 4).await;
    send(&*bus, &Topic::QueueStats, 1..=9).await;
    let unsettled = receive(&mut busy).await;
    within("it closes", bus.close()).await;
    for subscriber in [&mut idle, &mut busy] {
        // What had been delivered before may still be read.
        while within("the subscriber ends", subscriber.next())
            .await
            .is_some()
        {}
    }
    busy.settler().ack(&[unsettled.tag]).await;
    match publish(&*bus, vec![numbered(&Topic::Completed, 1)]).await {
        Err(PublishError::Closed) => {}
        other => panic!("publishing on a closed bus: {other:?}"),
    }
    let subscription = Subscription {
        topic: Topic::Completed,
        prefetch: 1,
    };
    match within("a subscription is refused", bus.subscribe(subscription)).await {
        Err(BusError::Closed) => {}
        Err(other) => panic!("subscribing on a closed bus: {other}"),
        Ok(_) => panic!("a closed bus gave a subscription"),
    }
    assert!(bus.declare(&Topic::Completed).await.is_err());
    assert!(bus.check().await.is_err());
    within("closing again changes nothing", bus.close()).await;
}
