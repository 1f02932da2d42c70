//! Publishes what an owner tells: grants with a confirm, everything else once.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_bus::{Bus, Outgoing, PublishError, Topic};
use attune_core::{Refusal, WorkerId};
use attune_dispatch::Section;
use attune_executor::owner::{Dispatch, Published, Send};
use attune_messages::v1::{Answer, HandedOver, QueueSnapshot};
use attune_messages::v2;
use attune_messages::{ItemTooLarge, Message, Pack, PackBounds, Packer, encode};
use attune_runtime::{Progress, Spans};
use chrono::Utc;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::asker::parts;
use crate::convert;
use crate::events;
use crate::progress::SideBySide;
use crate::sections;

/// How many bytes of grants, or of submissions that are passed on, one message carries.
pub(crate) const MAX_PACK_BYTES: usize = 256 * 1024;
/// How many answers or snapshots one message carries.
const MAX_ANSWERS: usize = 256;
/// How many publications that nobody waits for may be under way; what comes beyond is lost, as
/// anything may be that is told once.
const MAX_UNCONFIRMED: usize = 256;
/// The same of events, which take no place of anything else.
const MAX_EVENTS_UNCONFIRMED: usize = 64;

/// The way to the bus.
pub(crate) struct Publisher {
    bus: Arc<dyn Bus>,
    answers: PackBounds,
    unconfirmed: Arc<Semaphore>,
    events_unconfirmed: Arc<Semaphore>,
    under_way: Arc<SideBySide>,
    spans: Spans,
}

impl Publisher {
    pub(crate) fn new(
        bus: Arc<dyn Bus>,
        max_message_bytes: usize,
        progress: Progress,
        spans: Spans,
    ) -> Self {
        let answers = PackBounds {
            items: MAX_ANSWERS,
            bytes: MAX_PACK_BYTES,
            max_bytes: max_message_bytes,
        };
        Self {
            bus,
            answers,
            unconfirmed: Arc::new(Semaphore::new(MAX_UNCONFIRMED)),
            events_unconfirmed: Arc::new(Semaphore::new(MAX_EVENTS_UNCONFIRMED)),
            under_way: Arc::new(SideBySide::new(progress)),
            spans,
        }
    }

    /// What it publishes on.
    pub(crate) fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
    }

    /// Tells one life of a worker.
    pub(crate) async fn tell(
        &self,
        (pool, worker): (Arc<str>, WorkerId),
        sections: Vec<Section<Dispatch>>,
    ) -> Published {
        let topic = Topic::Link(pool, worker);
        let mut packer: Packer<v2::Section, usize> = Packer::new(self.answers);
        let mut too_large = Vec::new();
        for (place, section) in sections.into_iter().enumerate() {
            let section = sections::section(worker, section, &self.spans);
            if let Err((why, place)) = packer.add(&section, place) {
                let ItemTooLarge { bytes, max } = why;
                too_large.push((place, Refusal::TooLarge { bytes, max }));
            }
        }
        let mut places: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        let mut messages = Vec::new();
        for pack in packer.finish() {
            let message = packed(&topic, &pack);
            places.insert(message.message_id, pack.into_tags());
            messages.push(message);
        }
        let mut published = self.publish(messages, &places).await;
        match &mut published {
            Published::Confirmed if !too_large.is_empty() => Published::Refused(too_large),
            Published::Refused(refused) => {
                refused.extend(too_large);
                published
            }
            Published::Confirmed | Published::Unknown => published,
        }
    }

    async fn publish(
        &self,
        messages: Vec<Outgoing>,
        places: &BTreeMap<Uuid, Vec<usize>>,
    ) -> Published {
        let _piece = self.under_way.begin();
        match self.bus.publish(messages).await {
            Ok(()) => Published::Confirmed,
            Err(PublishError::Refused(refused)) => {
                let each = refused.into_iter().flat_map(|one| {
                    let places = places.get(&one.message_id).cloned().unwrap_or_default();
                    let why = one.why;
                    places.into_iter().map(move |place| (place, why.clone()))
                });
                Published::Refused(each.collect())
            }
            Err(error) => {
                tracing::warn!(%error, "grants are not confirmed yet");
                Published::Unknown
            }
        }
    }

    /// Publishes what is told once, beside everything else; `lost` is called when it may not have
    /// come through.
    pub(crate) fn send(&self, send: Send, lost: impl FnOnce() + std::marker::Send + 'static) {
        let is_events = matches!(send, Send::Events(_));
        let room = match is_events {
            true => &self.events_unconfirmed,
            false => &self.unconfirmed,
        };
        let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
            tracing::debug!("answers, snapshots or events are lost: too many are not confirmed");
            return lost();
        };
        let messages = self.once(send);
        let (bus, under_way) = (Arc::clone(&self.bus), Arc::clone(&self.under_way));
        tokio::spawn(async move {
            let _piece = under_way.begin();
            match bus.publish(messages).await {
                Ok(()) => {}
                // What is refused would be refused again, and the bus tells whom it does not let publish. Of
                // events it is counted that they are lost.
                Err(PublishError::Refused(_)) if is_events => lost(),
                Err(PublishError::Refused(_)) => {}
                Err(error) => {
                    tracing::warn!(%error, "answers, snapshots or events may be lost");
                    lost();
                }
            }
            drop(permit);
        });
    }

    /// The messages of what is told once.
    fn once(&self, send: Send) -> Vec<Outgoing> {
        match send {
            Send::Answers(answers) => {
                let mut askers: BTreeMap<(&str, bool), Vec<Answer>> = BTreeMap::new();
                for (asker, answer) in &answers {
                    // Its feed has made it.
                    if let Some((message_id, address)) = parts(asker) {
                        // What an asker of the first release cannot read keeps no other answer
                        // from it. They go last, as who repeats something is answered.
                        let refusal = answer.outcome.as_ref().err();
                        let is_new = refusal.is_some_and(|it| !it.code.is_of_first_release());
                        let answer = convert::answer(message_id, answer.clone());
                        askers.entry((address, is_new)).or_default().push(answer);
                    }
                }
                let packed = askers.into_iter().flat_map(|((address, _), answers)| {
                    self.messages(&Topic::Reply(address.to_owned()), answers)
                });
                packed.collect()
            }
            Send::Snapshots(snapshots) => {
                let snapshots = snapshots.into_iter();
                let snapshots = snapshots.map(|(version, stats)| QueueSnapshot { version, stats });
                self.messages(&Topic::QueueStats, snapshots)
            }
            Send::Events(events) => {
                let kinds = events::by_kind(events).into_iter();
                kinds
                    .flat_map(|(kind, events)| self.messages(&Topic::Event(kind), events))
                    .collect()
            }
            Send::HandedOver {
                partition,
                epoch,
                to,
            } => {
                let hint = HandedOver {
                    partition,
                    epoch,
                    to,
                };
                vec![message(&Topic::HandedOver, &[hint])]
            }
        }
    }

    fn messages<M: Message>(
        &self,
        topic: &Topic,
        items: impl IntoIterator<Item = M>,
    ) -> Vec<Outgoing> {
        let mut packer: Packer<M> = Packer::new(self.answers);
        for item in items {
            if let Err((error, ())) = packer.add(&item, ()) {
                tracing::warn!(bus.topic = %topic, %error, "what is told once cannot be sent");
            }
        }
        let packs = packer.finish();
        packs.iter().map(|pack| packed(topic, pack)).collect()
    }
}

fn packed<M: Message, T>(topic: &Topic, pack: &Pack<M, T>) -> Outgoing {
    let id = Uuid::now_v7();
    Outgoing::new(topic.clone(), id, pack.encode(id, Utc::now()))
}

fn message<M: Message>(topic: &Topic, items: &[M]) -> Outgoing {
    let id = Uuid::now_v7();
    Outgoing::new(topic.clone(), id, encode(id, Utc::now(), items))
}
