//! Receives the topics of a partition for its owner. What cannot be used goes to the dead letters
//! here, before it costs the owner anything.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attune_bus::{
    Bus, Delivery, DeliveryTag, PublishError, Settler, Shelf, Subscriber, Subscription, Topic,
    dead_letter, reply_address,
};
use attune_core::{Bug, PartitionId, RequestId};
use attune_executor::Counter;
use attune_executor::owner::{Delivered, DeliveryId, SubscriptionId, Work};
use attune_messages::traces::trace_of_headers;
use attune_messages::v1::{
    ActionChanged, Cancel, Explain, ForceRelease, OperationsChanged, PausesChanged,
    PoliciesChanged, SlotRelease, Submit,
};
use attune_messages::{DecodeError, Envelope, Message};
use attune_routing::Senders;
use attune_runtime::{Backoff, LogPace};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::asker::asker;
use crate::convert;
use crate::counters::Counters;
use crate::driver::boot_now;
use crate::ends::Ends;
use crate::newer::Newer;

/// How often a message that cannot be used is offered to dead letters that refuse it.
const LETTER_TRIES: u32 = 3;

/// A message for the owner, and what settles it.
pub(crate) struct Inbound {
    pub(crate) delivered: Delivered,
    pub(crate) settler: Settler,
    pub(crate) tag: DeliveryTag,
}

/// Where the messages of all partitions come together.
#[derive(Clone)]
pub(crate) struct Feed {
    pub(crate) bus: Arc<dyn Bus>,
    /// Completions; they come before commands.
    pub(crate) control: mpsc::Sender<Inbound>,
    /// Commands, whether or not their sender waits for the answer.
    pub(crate) commands: mpsc::Sender<Inbound>,
    pub(crate) prefetch: u16,
    pub(crate) max_message_bytes: usize,
    pub(crate) poisoned: Arc<AtomicU64>,
    pub(crate) newer: Arc<Newer>,
    pub(crate) ends: Arc<Ends>,
    /// Numbers the deliveries of this process.
    pub(crate) deliveries: Arc<AtomicU64>,
    /// Who may say anything.
    pub(crate) senders: Senders,
    pub(crate) counters: Arc<Counters>,
}

impl Feed {
    /// Receives the topics of a partition until `stop`; then what is not acknowledged goes back.
    pub(crate) async fn run(
        self,
        subscription: SubscriptionId,
        partition: PartitionId,
        stop: CancellationToken,
    ) {
        let control = self.receive(subscription, partition, Topic::Control(partition), &stop);
        let kept = self.receive(
            subscription,
            partition,
            Topic::ControlKept(partition),
            &stop,
        );
        let commands = self.receive(subscription, partition, Topic::Commands(partition), &stop);
        let calls = self.receive(subscription, partition, Topic::Calls(partition), &stop);
        tokio::join!(control, kept, commands, calls);
    }

    async fn receive(
        &self,
        subscription: SubscriptionId,
        partition: PartitionId,
        topic: Topic,
        stop: &CancellationToken,
    ) {
        let Some(mut subscriber) = self.subscribe(&topic, stop).await else {
            return;
        };
        let (settler, inbox) = (subscriber.settler(), self.inbox(&topic));
        let shelf = self.shelf(&topic, &settler, stop);
        let (mut newer_log, mut poison_log) = (LogPace::default(), LogPace::default());
        loop {
            let delivery = tokio::select! {
                () = stop.cancelled() => return,
                delivery = subscriber.next() => delivery,
            };
            let Some(mut delivery) = delivery else { return };
            // Before anything of it is stored.
            if Bug::AckFirst.is_planted() {
                settler.ack(&[delivery.tag]).await;
            }
            if let Some(address) = &delivery.reply_to
                && reply_address(address).is_err()
            {
                delivery.reply_to = None;
                self.counters.add(Counter::NotAnswered, 1);
            }
            let (user, moved_from) = (delivery.user_id.as_deref(), delivery.moved_from());
            let decoded = match self.senders.judge_part(user, moved_from) {
                Ok(()) => decode(&topic, &delivery, self.max_message_bytes),
                Err(why) => {
                    if matches!(topic, Topic::Control(_) | Topic::ControlKept(_)) {
                        self.ends.refused(boot_now(), delivery.user_id.as_deref());
                    }
                    Err(Unusable::Poison(why))
                }
            };
            let (message_id, work) = match decoded {
                Ok(understood) => understood,
                Err(Unusable::Newer(reason)) => {
                    self.newer.came(boot_now());
                    if newer_log.is_due() {
                        let times = newer_log.tries();
                        tracing::warn!(bus.topic = %topic, reason, times, "a message waits for a newer executor");
                    }
                    shelf.put_back(delivery).await;
                    continue;
                }
                Err(Unusable::Poison(reason)) => {
                    if poison_log.is_due() {
                        let times = poison_log.tries();
                        tracing::warn!(bus.topic = %topic, reason, times, "a message cannot be used; it goes to the dead letters");
                    }
                    self.bury(&topic, (&settler, &shelf), delivery, reason, stop);
                    continue;
                }
            };
            let number = self.deliveries.fetch_add(1, Ordering::Relaxed);
            let inbound = Inbound {
                tag: delivery.tag,
                settler: Arc::clone(&settler),
                delivered: Delivered {
                    id: DeliveryId(number),
                    subscription,
                    partition,
                    bytes: delivery.body.len(),
                    reply_to: delivery
                        .reply_to
                        .as_deref()
                        .map(|address| asker(message_id, address)),
                    work,
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                sent = inbox.send(inbound) => if sent.is_err() { return },
            }
        }
    }

    fn inbox(&self, topic: &Topic) -> &mpsc::Sender<Inbound> {
        match topic {
            Topic::Control(_) | Topic::ControlKept(_) => &self.control,
            _ => &self.commands,
        }
    }

    fn subscription(&self, topic: &Topic) -> Subscription {
        Subscription {
            topic: topic.clone(),
            prefetch: self.prefetch,
        }
    }

    /// Subscribes, however long it takes; `None` when told to stop.
    async fn subscribe(&self, topic: &Topic, stop: &CancellationToken) -> Option<Subscriber> {
        let mut backoff = Backoff::default();
        loop {
            // It may take as long as the broker is mute. What comes of it when nobody waits any more is
            // dropped, and whatever was delivered goes back.
            let (bus, subscription) = (Arc::clone(&self.bus), self.subscription(topic));
            let subscribing = tokio::spawn(async move { bus.subscribe(subscription).await });
            let subscribed = tokio::select! {
                () = stop.cancelled() => return None,
                subscribed = subscribing => subscribed,
            };
            let subscribed = match subscribed {
                Ok(subscribed) => subscribed,
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                // The process ends.
                Err(_) => return None,
            };
            match subscribed {
                Ok(subscriber) => return Some(subscriber),
                Err(error) => {
                    tracing::warn!(bus.topic = %topic, %error, "a partition's topic cannot be received yet");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    /// Where messages of this topic wait for a newer executor, or for room.
    fn shelf(&self, topic: &Topic, settler: &Settler, stop: &CancellationToken) -> Shelf {
        let (bus, settler) = (Arc::clone(&self.bus), Arc::clone(settler));
        Shelf::new(bus, self.subscription(topic), settler, stop.clone())
    }

    /// Puts a message that cannot be used among the dead letters, beside everything else. Dead
    /// letters that refuse it a few times are full: then it goes to the end of its own topic, so
    /// that garbage is not lost and never holds up what comes after it.
    fn bury(
        &self,
        topic: &Topic,
        (settler, shelf): (&Settler, &Shelf),
        delivery: Delivery,
        reason: String,
        stop: &CancellationToken,
    ) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
        let (bus, topic, shelf) = (Arc::clone(&self.bus), topic.clone(), shelf.clone());
        let (settler, stop) = (Arc::clone(settler), stop.clone());
        tokio::spawn(async move {
            let mut backoff = Backoff::default();
            let mut refusals = 0;
            loop {
                match dead_letter(bus.as_ref(), &settler, &topic, &delivery, &reason).await {
                    Ok(()) => return,
                    Err(PublishError::Refused(_)) => refusals += 1,
                    Err(error) => {
                        tracing::debug!(bus.topic = %topic, %error, "the dead letters cannot be reached");
                    }
                }
                if refusals == LETTER_TRIES {
                    tracing::error!(bus.topic = %topic, reason, "the dead letters take nothing; a message that cannot be used is offered again later");
                    return shelf.put_back(delivery).await;
                }
                tokio::select! {
                    // It comes again, to the next owner.
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(backoff.next_delay()) => {}
                }
            }
        });
    }
}

/// Why a message gives the owner no work.
enum Unusable {
    /// A newer program can read it.
    Newer(String),
    /// Nobody can.
    Poison(String),
}

fn decode(topic: &Topic, delivery: &Delivery, max_bytes: usize) -> Result<(Uuid, Work), Unusable> {
    let read = || {
        let envelope = Envelope::parse(&delivery.body, max_bytes)?;
        Ok((
            envelope.message_id,
            work(topic, &envelope, &delivery.headers)?,
        ))
    };
    read().map_err(|error: DecodeError| {
        if error.is_newer() {
            Unusable::Newer(error.to_string())
        } else {
            Unusable::Poison(error.to_string())
        }
    })
}

/// All of a message is answered in one step: nobody else has a turn before the last of its questions.
fn questions(envelope: &Envelope<'_>) -> Result<Work, DecodeError> {
    let items = envelope.items::<Explain>()?;
    let (many, most) = (items.len(), Explain::MAX_READ);
    if many > most {
        return Err(DecodeError::Payload {
            message_type: Explain::TYPE,
            why: format!("it has {many} questions, and a message may have {most}"),
        });
    }
    let questions = items.into_iter();
    let questions = questions.map(|item| (item.request_id, item.execution_id));
    Ok(Work::Explains(questions.collect()))
}

fn work(
    topic: &Topic,
    envelope: &Envelope<'_>,
    headers: &[(String, String)],
) -> Result<Work, DecodeError> {
    match topic {
        Topic::Control(_) | Topic::ControlKept(_) => {
            let items = envelope.items::<SlotRelease>()?.into_iter();
            let completions = items.map(|SlotRelease(item)| convert::completion(item));
            let completions: Option<Vec<_>> = completions.collect();
            let unnamed = || DecodeError::Payload {
                message_type: SlotRelease::TYPE,
                why: "an item does not say which `worker` has run it".to_owned(),
            };
            Ok(Work::Completions(completions.ok_or_else(unnamed)?))
        }
        _ if envelope.is::<Submit>() => {
            let message_id = RequestId(envelope.message_id);
            let items = envelope.items::<Submit>()?;
            let (of_all, traces) = (trace_of_headers(headers), envelope.traces());
            let named = |(index, mut item): (usize, Submit)| {
                item.submission.trace = traces.get(index).or(of_all);
                let own = item.submission.request_id.take();
                let request_id = own.unwrap_or_else(|| message_id.of_item(index));
                convert::submit(request_id, item)
            };
            Ok(Work::Submits(
                items.into_iter().enumerate().map(named).collect(),
            ))
        }
        _ if envelope.is::<Cancel>() => {
            let items = envelope.items::<Cancel>()?.into_iter();
            let cancels = items.map(|item| (item.request_id, item.execution_id));
            Ok(Work::Cancels(cancels.collect()))
        }
        _ if envelope.is::<Explain>() => questions(envelope),
        _ if envelope.is::<ForceRelease>() => {
            let items = envelope.items::<ForceRelease>()?.into_iter();
            Ok(Work::Releases(items.map(convert::force_release).collect()))
        }
        _ if envelope.is::<ActionChanged>() => {
            let items = envelope.items::<ActionChanged>()?.into_iter();
            let changes = items.map(|item| (item.request_id, item.action_ref));
            Ok(Work::Changes(changes.collect()))
        }
        _ if envelope.is::<PausesChanged>() => {
            let items = envelope.items::<PausesChanged>()?.into_iter();
            Ok(Work::Pauses(items.map(|item| item.request_id).collect()))
        }
        _ if envelope.is::<PoliciesChanged>() => {
            let items = envelope.items::<PoliciesChanged>()?.into_iter();
            Ok(Work::Policies(items.map(|item| item.request_id).collect()))
        }
        _ if envelope.is::<OperationsChanged>() => {
            let items = envelope.items::<OperationsChanged>()?.into_iter();
            let ids = items.map(|item| item.request_id);
            Ok(Work::Operations(ids.collect()))
        }
        _ => {
            let types = [
                Submit::TYPE,
                Cancel::TYPE,
                Explain::TYPE,
                ForceRelease::TYPE,
                ActionChanged::TYPE,
                PausesChanged::TYPE,
                PoliciesChanged::TYPE,
                OperationsChanged::TYPE,
            ];
            Err(envelope.unexpected(&types.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use attune_core::ExecutionId;
    use chrono::Utc;

    use super::*;

    #[test]
    fn a_message_with_more_questions_than_one_step_may_answer_is_not_read() {
        let asked = |many: usize| {
            let questions = (1..=many as i64).map(|n| Explain {
                request_id: RequestId::fresh(),
                execution_id: ExecutionId(n),
            });
            let questions: Vec<_> = questions.collect();
            let body = attune_messages::encode(Uuid::now_v7(), Utc::now(), &questions);
            let envelope = Envelope::parse(&body, 1 << 20).unwrap();
            let work = work(&Topic::Commands(PartitionId(0)), &envelope, &[]);
            work.map(|work| match work {
                Work::Explains(items) => items.len(),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(asked(64).unwrap(), 64);
        let refused = asked(65).unwrap_err().to_string();
        assert!(refused.contains("65 questions"), "{refused}");
    }
}
