//! Messages that cannot be used yet, and what keeps them from stopping all others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::port::{Bus, Delivery, Outgoing, PublishError, Settler, Topic};

/// How many stay unacknowledged, at most; the others go to the end of their topic.
const KEPT: usize = 16;
/// How many wait to be taken up; more stay unacknowledged as well.
const WAITING: usize = 64;
/// How often something goes back, so that a topic of nothing else is not read over and over.
const INTERVAL: Duration = Duration::from_millis(250);

/// Keeps messages that cannot be used yet from filling the window of a subscription: those that
/// only a newer program can read, and those for which the dead letters have no room. A few stay
/// unacknowledged, the others go back to the end of their topic, as they came, and are acknowledged
/// when that is confirmed. So they wait, nothing is lost, and what came behind them gets past.
#[derive(Debug, Clone)]
pub struct Shelf {
    waiting: mpsc::Sender<(Delivery, May)>,
}

/// What may be done with a message that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    StayHere,
    GoBack,
}

impl Shelf {
    /// A shelf for the subscription of one topic, until `stop`.
    pub fn new(bus: Arc<dyn Bus>, topic: Topic, settler: Settler, stop: CancellationToken) -> Self {
        let (waiting, deliveries) = mpsc::channel(WAITING);
        let keeper = Keeper {
            bus,
            topic,
            settler,
        };
        tokio::spawn(keeper.run(deliveries, stop));
        Self { waiting }
    }

    /// A message that nobody who receives beside this program could read either: a few of them stay
    /// as long as it runs, so that they come first to the next. Waits while there are too many.
    pub async fn keep(&self, delivery: Delivery) {
        // It ends when it is told to stop: then the message comes again.
        self.waiting.send((delivery, May::StayHere)).await.ok();
    }

    /// A message for the end of its topic, from which somebody else may get it.
    pub async fn put_back(&self, delivery: Delivery) {
        self.waiting.send((delivery, May::GoBack)).await.ok();
    }

    /// The same without waiting: a message for which there is no room stays unacknowledged.
    pub fn try_put_back(&self, delivery: Delivery) {
        if self.waiting.try_send((delivery, May::GoBack)).is_err() {
            tracing::debug!("too many messages wait to go back to the end of their topic");
        }
    }
}

struct Keeper {
    bus: Arc<dyn Bus>,
    topic: Topic,
    settler: Settler,
}

impl Keeper {
    async fn run(self, mut deliveries: mpsc::Receiver<(Delivery, May)>, stop: CancellationToken) {
        let mut kept = 0;
        let mut back: VecDeque<Delivery> = VecDeque::new();
        let (mut next, mut generation) = (Instant::now(), 0);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(next), if !back.is_empty() => {
                    self.put_back(&mut back).await;
                    next = Instant::now() + INTERVAL;
                }
                delivery = deliveries.recv(), if back.len() < WAITING => {
                    let Some((delivery, may)) = delivery else { return };
                    if delivery.tag.generation > generation {
                        // The connection was built anew: what is here comes again.
                        generation = delivery.tag.generation;
                        (kept, back) = (0, VecDeque::new());
                    }
                    if may == May::StayHere && kept < KEPT {
                        kept += 1;
                        continue;
                    }
                    if back.is_empty() {
                        next = next.max(Instant::now() + INTERVAL);
                    }
                    back.push_back(delivery);
                }
            }
        }
    }

    /// Publishes them to the end of their topic in their order, then acknowledges them. What is
    /// not confirmed stays for the next time, under the same ids.
    async fn put_back(&self, back: &mut VecDeque<Delivery>) {
        let messages: Vec<Outgoing> = back.iter().map(|one| self.outgoing(one)).collect();
        let ids: Vec<Uuid> = messages.iter().map(|message| message.message_id).collect();
        let published = self.bus.publish(messages).await;
        let is_kept = |id: Uuid| match &published {
            Ok(()) => true,
            Err(error @ PublishError::Refused(_)) => error.refusal_of(id).is_none(),
            Err(_) => false,
        };
        let kept: Vec<bool> = ids.into_iter().map(is_kept).collect();
        if let Err(error) = &published {
            tracing::warn!(bus.topic = %self.topic, %error, "messages cannot be put back to the end of their topic");
        }
        let mut tags = Vec::new();
        let mut rest = VecDeque::new();
        for (delivery, kept) in back.drain(..).zip(kept) {
            if kept {
                tags.push(delivery.tag);
            } else {
                rest.push_back(delivery);
            }
        }
        *back = rest;
        self.settler.ack(&tags).await;
    }

    fn outgoing(&self, delivery: &Delivery) -> Outgoing {
        let id = delivery.message_id.as_deref();
        let id = id.and_then(|id| id.parse().ok());
        // Its own id where it has one: it is the same message.
        let id = id.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, &delivery.body));
        Outgoing {
            topic: self.topic.clone(),
            message_id: id,
            body: delivery.body.clone(),
            reply_to: delivery.reply_to.clone(),
            headers: delivery.headers.clone(),
        }
    }
}
