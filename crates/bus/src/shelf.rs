//! Messages that cannot be used yet, and what keeps them from stopping all others.

mod rack;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::port::{Bus, Delivery, Outgoing, PublishError, Settler, Subscription, Topic};
use rack::{Held, Rack};

/// How many are held for a while, at most.
const KEPT: usize = 16;
/// How many wait to be taken up; more stay unacknowledged.
const WAITING: usize = 16;
/// How often something goes back, so that a topic of nothing else is not read over and over.
const INTERVAL: Duration = Duration::from_millis(250);

/// Keeps messages that cannot be used yet from filling the window of a subscription: those that
/// only a newer program can read, and those for which the dead letters have no room. They go back to the
/// end of their topic, as they came, and are acknowledged when that is confirmed. So they wait, nothing
/// is lost, and what came behind them gets past.
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
}

impl Keeper {
    async fn run(self, mut deliveries: mpsc::Receiver<Delivery>, stop: CancellationToken) {
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
                    self.put_back(&mut rack).await;
                    round = Instant::now() + INTERVAL;
                }
                delivery = deliveries.recv(), if rack.has_room() => {
                    let Some(delivery) = delivery else { return };
                    if delivery.tag.generation > generation {
                        // The connection was built anew: what is here comes again.
                        generation = delivery.tag.generation;
                        rack.forget_held();
                    }
                    if rack.is_empty() {
                        round = round.max(Instant::now() + INTERVAL);
                    }
                    rack.add(Self::id(&delivery), delivery, Instant::now());
                }
            }
        }
    }

    /// Publishes what is due to the end of the topic, in its order, then acknowledges it. What is
    /// not confirmed stays for the next time, under the same ids.
    async fn put_back(&self, rack: &mut Rack) {
        let due = rack.take(Instant::now());
        let messages = due.iter().map(|held| outgoing(&self.topic, held)).collect();
        let published = self.bus.publish(messages).await;
        let is_kept = |id: Uuid| match &published {
            Ok(()) => true,
            Err(error @ PublishError::Refused(_)) => error.refusal_of(id).is_none(),
            Err(_) => false,
        };
        if let Err(error) = &published {
            tracing::warn!(bus.topic = %self.topic, %error, "messages cannot be put back to the end of their topic");
        }
        let (back, rest): (Vec<Held>, Vec<Held>) =
            due.into_iter().partition(|held| is_kept(held.id));
        let tags: Vec<_> = back.iter().map(|held| held.delivery.tag).collect();
        rack.went_back(back, Instant::now());
        rack.return_to(rest);
        self.settler.ack(&tags).await;
    }

    /// Its own id where it has one: it is the same message.
    fn id(delivery: &Delivery) -> Uuid {
        let id = delivery.message_id.as_deref();
        let id = id.and_then(|id| id.parse().ok());
        id.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, &delivery.body))
    }
}

/// A message as it goes back: as it came, but for headers and a reply address that no bus carries.
/// With those it could never go, and would be in the way of all others.
fn outgoing(topic: &Topic, held: &Held) -> Outgoing {
    let delivery = &held.delivery;
    let mut message = Outgoing {
        topic: topic.clone(),
        message_id: held.id,
        body: delivery.body.clone(),
        reply_to: delivery.reply_to.clone(),
        headers: delivery.headers.clone(),
    };
    if message.check_names().is_err() {
        message.reply_to = None;
        message.headers.clear();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::rack::tests::delivery;
    use super::*;
    use crate::port::{MAX_HEADERS_BYTES, MAX_NAME_BYTES};

    /// What somebody else's program has put around a message must not keep it here for ever.
    #[test]
    fn what_no_bus_carries_is_left_out() {
        let topic = Topic::Completed;
        let back = |delivery: Delivery| {
            let (now, mut rack) = (Instant::now(), Rack::new(0));
            rack.add(Uuid::nil(), delivery, now);
            outgoing(&topic, &rack.take(now)[0])
        };
        let mut usual = delivery(1);
        usual.reply_to = Some("attune.reply.x".to_owned());
        usual.headers = vec![("a".to_owned(), "b".to_owned())];
        let message = back(usual.clone());
        assert_eq!(message.headers, usual.headers);
        assert_eq!(message.reply_to, usual.reply_to);

        let mut long = usual.clone();
        long.headers = vec![("a".to_owned(), "b".repeat(MAX_HEADERS_BYTES + 1))];
        let mut named = usual.clone();
        named.reply_to = Some("r".repeat(MAX_NAME_BYTES + 1));
        for delivery in [long, named] {
            let message = back(delivery);
            assert_eq!(message.check_names(), Ok(()));
            assert_eq!((message.headers, message.reply_to), (Vec::new(), None));
            assert_eq!(message.body, usual.body);
        }
    }
}
