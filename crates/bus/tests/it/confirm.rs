//! Publishing until it is known what became of each message.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::{
    Bus, BusError, Depth, MemoryBus, Outgoing, Patience, PublishError, Published, Refusal, Refused,
    Subscriber, Subscription, Topic, publish_until_confirmed,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What a publish is answered, by the numbers of the messages in it.
#[derive(Debug, Clone)]
enum Answer {
    Kept,
    Unconfirmed,
    Refused(Vec<(u8, Refusal)>),
    Closed,
}

/// Answers what a test says, and notes what it was given.
struct Scripted {
    answers: Mutex<VecDeque<Answer>>,
    published: Mutex<Vec<Vec<u8>>>,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            answers: Mutex::new(answers.into_iter().collect()),
            published: Mutex::default(),
        }
    }

    fn published(&self) -> Vec<Vec<u8>> {
        self.published.lock().unwrap().clone()
    }
}

#[async_trait]
impl Bus for Scripted {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let numbers = messages.iter().map(|message| message.body[0]).collect();
        self.published.lock().unwrap().push(numbers);
        let answer = self.answers.lock().unwrap().pop_front();
        match answer.expect("the test has no further answer") {
            Answer::Kept => Ok(()),
            Answer::Unconfirmed => Err(PublishError::Unconfirmed("as scripted".to_owned())),
            Answer::Closed => Err(PublishError::Closed),
            Answer::Refused(refused) => Err(PublishError::Refused(
                refused
                    .into_iter()
                    .map(|(number, why)| Refused {
                        message_id: id(number),
                        why,
                    })
                    .collect(),
            )),
        }
    }

    async fn subscribe(&self, _: Subscription) -> Result<Subscriber, BusError> {
        Err(BusError::Closed)
    }

    async fn declare(&self, _: &Topic) -> Result<(), BusError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), BusError> {
        Ok(())
    }

    fn reach(&self) -> Result<(), BusError> {
        Ok(())
    }

    async fn depth(&self, _topic: &Topic) -> Result<Option<Depth>, BusError> {
        Ok(None)
    }

    async fn close(&self) {}
}

fn id(number: u8) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

fn messages(count: u8) -> Vec<Outgoing> {
    (0..count)
        .map(|number| Outgoing::new(Topic::Completed, id(number), vec![number]))
        .collect()
}

async fn publish(bus: &Scripted, count: u8, patience: Patience) -> Published {
    let never = CancellationToken::new();
    let pause = |_: &PublishError, _: &[Outgoing]| Some(Duration::from_millis(1));
    publish_until_confirmed(bus, messages(count), patience, &never, pause).await
}

fn too_large() -> Refusal {
    Refusal::TooLarge { bytes: 2, max: 1 }
}

fn gone(published: &Published) -> Vec<(u8, Refusal, bool)> {
    published
        .refused
        .iter()
        .map(|gone| (gone.message.body[0], gone.why.clone(), gone.maybe_kept))
        .collect()
}

#[tokio::test]
async fn only_what_was_refused_for_now_goes_again_under_the_same_id() {
    let invalid = Refusal::Invalid("as scripted".to_owned());
    let bus = Scripted::new([
        Answer::Refused(vec![
            (0, too_large()),
            (2, Refusal::Full),
            (3, Refusal::Unroutable),
            (4, invalid.clone()),
        ]),
        Answer::Refused(vec![(3, Refusal::Full)]),
        Answer::Kept,
    ]);
    let published = publish(&bus, 5, Patience::UntilStopped).await;
    let expected = [(0, too_large(), false), (4, invalid, false)];
    assert_eq!(gone(&published), expected);
    assert!(published.unknown.is_empty() && !published.closed);
    let seen = [vec![0, 1, 2, 3, 4], vec![2, 3], vec![3]];
    assert_eq!(bus.published(), seen);
}

#[tokio::test]
async fn patience_with_refusals_ends_and_outages_do_not_count() {
    let full = || Answer::Refused(vec![(0, Refusal::Full)]);
    let bus = Scripted::new([full(), Answer::Unconfirmed, Answer::Unconfirmed, full()]);
    let published = publish(&bus, 2, Patience::Refusals(2)).await;
    // It may have been kept by one of the attempts in between.
    assert_eq!(gone(&published), [(0, Refusal::Full, true)]);
    let seen = [vec![0, 1], vec![0], vec![0], vec![0]];
    assert_eq!(bus.published(), seen);
}

#[tokio::test]
async fn a_closed_bus_ends_it_with_what_is_left() {
    let bus = Scripted::new([Answer::Refused(vec![(1, Refusal::Full)]), Answer::Closed]);
    let published = publish(&bus, 2, Patience::UntilStopped).await;
    assert!(published.closed && !published.is_all());
    assert_eq!(published.unknown[0].message_id, id(1));
    assert_eq!(published.unknown.len(), 1);
}

#[tokio::test]
async fn a_stop_ends_the_wait_and_giving_up_does_as_well() {
    let bus = Scripted::new([Answer::Unconfirmed]);
    let stop = CancellationToken::new();
    stop.cancel();
    let hour = |_: &PublishError, _: &[Outgoing]| Some(Duration::from_secs(3600));
    let patience = Patience::UntilStopped;
    let published = publish_until_confirmed(&bus, messages(1), patience, &stop, hour).await;
    assert_eq!((published.unknown.len(), published.closed), (1, false));

    let bus = Scripted::new([Answer::Unconfirmed]);
    let never = CancellationToken::new();
    let give_up = |_: &PublishError, _: &[Outgoing]| None;
    let published = publish_until_confirmed(&bus, messages(2), patience, &never, give_up).await;
    assert_eq!(published.unknown.len(), 2);
    assert_eq!(bus.published().len(), 1);
}

/// On a real bus: what finds no room is kept as soon as there is some.
#[tokio::test]
async fn a_full_topic_is_waited_for() {
    let bus = Arc::new(MemoryBus::new());
    let room = attune_bus::Room {
        messages: 1,
        bytes: 100,
    };
    bus.set_room(&Topic::Completed, room);
    bus.publish(messages(1)).await.unwrap();
    let mut subscriber = bus
        .subscribe(Subscription {
            topic: Topic::Completed,
            prefetch: 1,
        })
        .await
        .unwrap();
    let (tried, mut again) = tokio::sync::mpsc::unbounded_channel();
    let publishing = tokio::spawn({
        let bus = Arc::clone(&bus);
        async move {
            let never = CancellationToken::new();
            let message = vec![Outgoing::new(Topic::Completed, id(9), vec![9])];
            let pause = |error: &PublishError, _: &[Outgoing]| {
                assert_eq!(error.refusal_of(id(9)), Some(&Refusal::Full));
                tried.send(()).ok();
                Some(Duration::from_millis(1))
            };
            let patience = Patience::UntilStopped;
            publish_until_confirmed(&*bus, message, patience, &never, pause).await
        }
    });
    again.recv().await.unwrap();
    let first = subscriber.next().await.unwrap();
    subscriber.settler().ack(&[first.tag]).await;
    assert_eq!(subscriber.next().await.unwrap().body[0], 9);
    assert!(publishing.await.unwrap().is_all());
}
