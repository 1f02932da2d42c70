//! Messages that cannot be used yet, and what keeps them from stopping all others.

mod rack;

use std::sync::Arc;
use std::time::Duration;

use attune_messages::{Copies, MessageCopy, lasting_id};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::port::{
    Bus, Delivery, DeliveryTag, Outgoing, PublishError, Settler, Subscription, Topic,
};
use rack::Rack;

/// How many are held for a while, at most.
const KEPT: usize = 16;
/// How many wait to be taken up; more stay unacknowledged.
const WAITING: usize = 16;
/// How often something goes back, so that a topic of nothing else is not read over and over.
const INTERVAL: Duration = Duration::from_millis(250);
/// The same while more wait than may be held: what stands behind hundreds of them is not to wait for minutes.
const PRESSED: Duration = Duration::from_millis(50);
/// The longest that one is held before it goes back. A broker closes the channel of whoever leaves a
/// delivery unacknowledged for longer than its `consumer_timeout` (30 minutes as a rule), and everything
/// else that came over that connection comes again.
const LONGEST: Duration = Duration::from_secs(60);

/// Keeps messages that cannot be used yet from filling the window of a subscription: those that
/// only a newer program can read, and those for which the dead letters have no room. They go back to the
/// end of their topic, as they came but for a header that [counts](attune_messages::copies) how often they
/// went back, and are acknowledged when that is confirmed. So they wait, nothing is lost, what came behind
/// them gets past, and copies of one message become one again.
///
/// One that comes back and still cannot be used is held longer each time, up to a minute, as long as
/// no more than half of the window and a few megabytes are held; what is more goes back sooner.
#[derive(Debug, Clone)]
pub struct Shelf {
    waiting: mpsc::Sender<Delivery>,
}

impl Shelf {
    /// A shelf for what comes of a subscription, until `stop`.
    pub fn new(
        bus: Arc<dyn Bus>,
        subscription: Subscription,
        settler: Settler,
        stop: CancellationToken,
    ) -> Self {
        let (waiting, deliveries) = mpsc::channel(WAITING);
        let keeper = Keeper {
            bus,
            room: usize::from(subscription.prefetch / 2).min(KEPT),
            topic: subscription.topic,
            settler,
            copies: Copies::default(),
        };
        tokio::spawn(keeper.run(deliveries, stop));
        Self { waiting }
    }

    /// A message for the end of its topic, from which somebody else may get it. Waits while there are too
    /// many; it comes again when the subscription ends meanwhile.
    pub async fn put_back(&self, delivery: Delivery) {
        self.waiting.send(delivery).await.ok();
    }

    /// The same without waiting: a message for which there is no room stays unacknowledged.
    pub fn try_put_back(&self, delivery: Delivery) {
        if self.waiting.try_send(delivery).is_err() {
            tracing::debug!("too many messages wait to go back to the end of their topic");
        }
    }
}

struct Keeper {
    bus: Arc<dyn Bus>,
    topic: Topic,
    settler: Settler,
    /// How many may be held for longer than [`INTERVAL`].
    room: usize,
    copies: Copies,
}

impl Keeper {
    async fn run(mut self, mut deliveries: mpsc::Receiver<Delivery>, stop: CancellationToken) {
        let mut generation = 0;
        let mut rack = Rack::new(self.room);
        // Not before: what goes back goes in rounds.
        let mut round = Instant::now();
        loop {
            let next = rack.next(Instant::now()).map(|due| due.max(round));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(next.unwrap_or(round)), if next.is_some() => {
                    let pause = if rack.is_pressed() { PRESSED } else { INTERVAL };
                    self.put_back(&mut rack).await;
                    round = Instant::now() + pause;
                }
                delivery = deliveries.recv(), if rack.has_room() => {
                    let Some(delivery) = delivery else { return };
                    if delivery.tag.generation < generation {
                        // It came over a connection that is gone, and comes again, or is here already.
                        continue;
                    }
                    if delivery.tag.generation > generation {
                        // The connection was built anew: what is here comes again.
                        generation = delivery.tag.generation;
                        rack.forget_held();
                    }
                    if rack.is_empty() {
                        round = round.max(Instant::now() + INTERVAL);
                    }
                    self.take_up(&mut rack, delivery).await;
                }
            }
        }
    }

    /// Holds a message, unless a later copy of it was seen. Of two that went back equally often the one that
    /// came last stays: the broker certainly has it.
    async fn take_up(&mut self, rack: &mut Rack, delivery: Delivery) {
        let held = Held::new(&self.topic, delivery, Instant::now());
        if self.copies.is_outdated(held.copy) {
            return self.settler.ack(&[held.tag]).await;
        }
        if let Some(twin) = rack.add(held) {
            self.settler.ack(&[twin.tag]).await;
        }
    }

    /// Publishes what is due to the end of the topic, in its order, then acknowledges it. What is
    /// not confirmed stays for the next time, under the same ids.
    async fn put_back(&mut self, rack: &mut Rack) {
        let due = rack.take(Instant::now());
        let messages = due.iter().map(Held::outgoing).collect();
        let published = self.bus.publish(messages).await;
        let is_kept = |held: &Held| match &published {
            Ok(()) => true,
            Err(error @ PublishError::Refused(_)) => {
                error.refusal_of(held.message.message_id).is_none()
            }
            Err(_) => false,
        };
        if let Err(error) = &published {
            tracing::warn!(bus.topic = %self.topic, %error, "messages cannot be put back to the end of their topic");
        }
        let (back, rest): (Vec<Held>, Vec<Held>) = due.into_iter().partition(is_kept);
        for held in &back {
            self.copies.went_back(held.copy);
        }
        rack.return_to(rest);
        let tags: Vec<_> = back.iter().map(|held| held.tag).collect();
        self.settler.ack(&tags).await;
    }
}

/// A message that waits.
#[derive(Debug)]
struct Held {
    tag: DeliveryTag,
    /// As it goes back.
    message: Outgoing,
    copy: MessageCopy,
    due: Instant,
}

impl Held {
    /// A message as it came, but for headers and a reply address that no bus carries: with those it
    /// could never go, and would be in the way of all others. The more often it went back, the longer it is
    /// held.
    fn new(topic: &Topic, delivery: Delivery, now: Instant) -> Self {
        let mut message = Outgoing {
            topic: topic.clone(),
            message_id: lasting_id(delivery.message_id.as_deref(), &delivery.body),
            body: delivery.body,
            reply_to: delivery.reply_to,
            headers: delivery.headers,
        };
        let copy = copy_of(&message);
        copy.mark(&mut message.headers);
        if message.check_names().is_err() {
            message.reply_to = None;
            message.headers.clear();
            copy.mark(&mut message.headers);
        }
        let pause = INTERVAL.saturating_mul(1 << copy.times().min(16));
        Self {
            tag: delivery.tag,
            message,
            copy,
            due: now + pause.min(LONGEST),
        }
    }

    fn outgoing(&self) -> Outgoing {
        self.message.clone()
    }

    fn bytes(&self) -> usize {
        self.message.body.len()
    }
}

fn copy_of(message: &Outgoing) -> MessageCopy {
    let reply_to = message.reply_to.as_deref();
    MessageCopy::of(
        message.message_id,
        &message.body,
        reply_to,
        &message.headers,
    )
}

#[cfg(test)]
mod tests {
    use attune_messages::TIMES_BACK;
    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::MemoryBus;
    use crate::port::{MAX_HEADERS_BYTES, MAX_NAME_BYTES};

    fn delivery() -> Delivery {
        Delivery {
            tag: DeliveryTag {
                generation: 1,
                number: 1,
            },
            body: Bytes::from_static(b"body"),
            message_id: Some(Uuid::from_u128(7).to_string()),
            reply_to: Some("attune.reply.x".to_owned()),
            redelivered: false,
            user_id: None,
            headers: vec![("a".to_owned(), "b".to_owned())],
        }
    }

    fn back(delivery: Delivery) -> Outgoing {
        Held::new(&Topic::Completed, delivery, Instant::now()).outgoing()
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// What somebody else's program has put around a message must not keep it here for ever.
    #[test]
    fn what_no_bus_carries_is_left_out() {
        let usual = delivery();
        let message = back(usual.clone());
        assert_eq!(message.message_id, Uuid::from_u128(7));
        assert_eq!(message.headers, [header("a", "b"), header(TIMES_BACK, "1")]);
        assert_eq!(message.reply_to, usual.reply_to);

        let mut long = usual.clone();
        // Only with the count it is too much.
        long.headers = vec![header("a", &"b".repeat(MAX_HEADERS_BYTES - 1))];
        let mut named = usual.clone();
        named.reply_to = Some("r".repeat(MAX_NAME_BYTES + 1));
        named.headers.push(header(TIMES_BACK, "4"));
        for (delivery, times) in [(long, "1"), (named, "5")] {
            let message = back(delivery);
            assert_eq!(message.check_names(), Ok(()));
            assert_eq!(message.headers, [header(TIMES_BACK, times)]);
            assert_eq!(message.reply_to, None);
            assert_eq!(message.body, usual.body);
        }
    }

    /// A quarter of a second, doubled up to a minute, whoever had it before.
    #[test]
    fn one_that_comes_again_is_held_longer_each_time() {
        let now = Instant::now();
        let mut came = delivery();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let held = Held::new(&Topic::Completed, came.clone(), now);
            pauses.push((held.due - now).as_millis());
            came.headers = held.message.headers;
        }
        assert_eq!(
            pauses,
            [
                250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000
            ]
        );
    }

    /// Tells which deliveries were acknowledged, and how many messages the topic had then.
    struct Acks {
        bus: Arc<MemoryBus>,
        acks: mpsc::UnboundedSender<(DeliveryTag, usize)>,
    }

    #[async_trait::async_trait]
    impl crate::port::Settle for Acks {
        async fn ack(&self, tags: &[DeliveryTag]) {
            let kept = self.bus.unsettled(&Topic::Completed);
            for tag in tags {
                self.acks.send((*tag, kept)).ok();
            }
        }

        async fn ack_confirmed(&self, tags: &[DeliveryTag]) -> crate::port::Confirmation {
            let (taken, confirmation) = tokio::sync::oneshot::channel();
            self.ack(tags).await;
            taken.send(()).ok();
            confirmation
        }
    }

    /// What came over a connection that is gone can keep nothing: the broker has given it to somebody
    /// again, and that may be the very one which is held already.
    #[tokio::test]
    async fn a_delivery_of_an_older_connection_takes_no_place() {
        let bus = Arc::new(MemoryBus::new());
        bus.declare(&Topic::Completed).await.unwrap();
        let (acks, mut acknowledged) = mpsc::unbounded_channel();
        let settler = Arc::new(Acks {
            bus: Arc::clone(&bus),
            acks,
        });
        let stop = CancellationToken::new();
        let subscription = Subscription {
            topic: Topic::Completed,
            prefetch: 16,
        };
        let shelf = Shelf::new(bus, subscription, settler, stop.clone());
        let mut current = delivery();
        current.tag.generation = 2;
        shelf.put_back(current.clone()).await;
        shelf.put_back(delivery()).await;
        let (tag, kept) = acknowledged.recv().await.unwrap();
        assert_eq!((tag, kept), (current.tag, 1), "not before it is kept");
        stop.cancel();
        assert_eq!(acknowledged.recv().await, None);
    }
}
