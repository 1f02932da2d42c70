//! Routes rule firings (`enforcement.created`) to the partitions of their actions, in the order
//! in which the broker delivered them.
//!
//! It decides nothing about queues: it checks the form, computes the partition, passes on with a
//! confirm and acknowledges last. A message that is routed twice is accepted once, by its id.
//!
//! Each partition has a line of its own, of which only the first message is on its way: so order
//! holds whatever is refused, and a partition whose queue is full holds up nobody else. What can
//! never be passed on goes to the dead letters; dead letters that take nothing are offered it a
//! few times, and then it is given up, so that no message stops those behind it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use attune_bus::{
    Bus, Delivery, DeliveryTag, Outgoing, Patience, PublishError, Refusal, Settler, Subscriber,
    Topic, letter, publish_until_confirmed, reply_address,
};
use attune_core::{PartitionId, RequestId, Submission};
use attune_messages::v1::{EnforcementCreated, OnReject, Submit};
use attune_messages::{decode, encode};
use attune_runtime::{Backoff, LogPace};
use chrono::Utc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How many messages are read together.
const MAX_DELIVERIES: usize = 256;
/// How many submissions go into one message.
const MAX_PACK: usize = 64;
/// How many bytes of parameters go into one message.
const MAX_PACK_BYTES: usize = 256 * 1024;
/// How many messages wait in all lines before no more firings are read.
const MAX_WAITING: usize = 512;
/// What routing adds to a submission, in bytes, at most: its request id, what happens when it is
/// refused, and another envelope.
const ROUTING_BYTES: usize = 512;
/// How often what can never be passed on is offered to dead letters that refuse it.
const LETTER_TRIES: u32 = 3;

/// The router of one executor; the broker gives the messages to one router at a time.
pub(crate) struct Intake {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) partitions: u16,
    pub(crate) max_message_bytes: usize,
    pub(crate) poisoned: Arc<AtomicU64>,
}

/// Submissions on their way to one partition for one asker.
struct Pack {
    message_id: Uuid,
    reply_to: Option<String>,
    items: Vec<Submit>,
    bytes: usize,
    /// The deliveries that brought them, once for each item.
    brought_by: Vec<DeliveryTag>,
}

/// What became of the first messages of the lines.
type Published = Result<(), PublishError>;

/// The lines, and what every delivery still waits for.
struct Router {
    settler: Settler,
    lines: BTreeMap<PartitionId, VecDeque<Pack>>,
    waiting: usize,
    /// How many items of a delivery are not confirmed.
    owed: HashMap<DeliveryTag, usize>,
    /// The partitions whose first messages are on their way.
    on_the_way: Vec<PartitionId>,
    published: mpsc::UnboundedSender<Published>,
    /// Deliveries whose dead letters are done with.
    buried: mpsc::UnboundedSender<Vec<DeliveryTag>>,
    backoff: Backoff,
    pace: LogPace,
    retry_at: Option<tokio::time::Instant>,
}

impl Intake {
    /// Routes until told to stop.
    pub(crate) async fn run(self, mut subscriber: Subscriber, stop: CancellationToken) {
        let (published, mut confirms) = mpsc::unbounded_channel();
        let (buried, mut burials) = mpsc::unbounded_channel();
        let mut router = Router {
            settler: subscriber.settler(),
            lines: BTreeMap::new(),
            waiting: 0,
            owed: HashMap::new(),
            on_the_way: Vec::new(),
            published,
            buried,
            backoff: Backoff::default(),
            pace: LogPace::default(),
            retry_at: None,
        };
        loop {
            let retry_at = router.retry_at.unwrap_or_else(far_away);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(published) = confirms.recv() => {
                    self.confirmed(&mut router, published, &stop).await;
                }
                Some(tags) = burials.recv() => router.done(tags).await,
                () = tokio::time::sleep_until(retry_at) => router.retry_at = None,
                delivery = subscriber.next(), if router.waiting < MAX_WAITING => {
                    let Some(first) = delivery else { return };
                    let mut read = 1;
                    self.take(&mut router, first, &stop);
                    while read < MAX_DELIVERIES
                        && let Some(more) = subscriber.try_next()
                    {
                        read += 1;
                        self.take(&mut router, more, &stop);
                    }
                }
            }
            self.publish(&mut router);
        }
    }

    /// Puts the submissions of a delivery into the lines of their partitions.
    fn take(&self, router: &mut Router, delivery: Delivery, stop: &CancellationToken) {
        let address = delivery.reply_to.as_deref().map(reply_address).transpose();
        if let Err(reject) = address {
            router.owed.insert(delivery.tag, 1);
            let body = delivery.body.clone();
            return self.bury(router, &delivery, body.to_vec(), reject.to_string(), stop);
        }
        let (message_id, items) =
            match decode::<EnforcementCreated>(&delivery.body, self.max_message_bytes) {
                Ok((message_id, items)) => (RequestId(message_id), items),
                Err(error) if error.is_newer() => {
                    // It stays unacknowledged: a newer router reads it when this one has gone.
                    tracing::error!(%error, "a rule firing waits for a newer executor");
                    return;
                }
                Err(error) => {
                    router.owed.insert(delivery.tag, 1);
                    let body = delivery.body.clone();
                    return self.bury(router, &delivery, body.to_vec(), error.to_string(), stop);
                }
            };
        router.owed.insert(delivery.tag, items.len());
        let alone = items.len() == 1;
        for (index, EnforcementCreated(mut submission)) in items.into_iter().enumerate() {
            let own = submission.request_id;
            submission
                .request_id
                .get_or_insert(message_id.of_item(index));
            let reason = match submission.check() {
                Err(reject) => reject.to_string(),
                Ok(()) => match self.too_large(&submission) {
                    None => {
                        router.line_up(self.partitions, &delivery, submission);
                        continue;
                    }
                    Some(reason) => reason,
                },
            };
            // As it came, so that it is no larger than it was.
            let body = if alone {
                delivery.body.to_vec()
            } else {
                submission.request_id = own.or(submission.request_id);
                let id = Uuid::now_v7();
                encode(id, Utc::now(), &[EnforcementCreated(submission)])
            };
            self.bury(router, &delivery, body, reason, stop);
        }
    }

    /// Why a submission cannot be passed on in one message, if that is so.
    fn too_large(&self, submission: &Submission) -> Option<String> {
        let bytes = serde_json::to_vec(submission).map_or(usize::MAX, |body| body.len());
        let most = self.max_message_bytes.saturating_sub(ROUTING_BYTES);
        (bytes > most).then(|| {
            format!(
                "the submission has {bytes} bytes, and to be routed it may have {most}: make its \
                 parameters smaller, or raise broker.max_message_bytes"
            )
        })
    }

    /// Sends the first message of every line, unless some are on their way already.
    fn publish(&self, router: &mut Router) {
        if !router.on_the_way.is_empty() || router.retry_at.is_some() || router.waiting == 0 {
            return;
        }
        let firsts = router.lines.iter().filter_map(|(partition, line)| {
            let pack = line.front()?;
            let body = encode(pack.message_id, Utc::now(), &pack.items);
            let mut message = Outgoing::new(Topic::Commands(*partition), pack.message_id, body);
            message.reply_to.clone_from(&pack.reply_to);
            Some((*partition, message))
        });
        let (partitions, messages): (Vec<PartitionId>, Vec<Outgoing>) = firsts.unzip();
        router.on_the_way = partitions;
        let (bus, published) = (Arc::clone(&self.bus), router.published.clone());
        tokio::spawn(async move {
            let result = bus.publish(messages).await;
            if published.send(result).is_err() {
                tracing::debug!("the router has stopped");
            }
        });
    }

    /// It is known what became of the first messages.
    async fn confirmed(&self, router: &mut Router, published: Published, stop: &CancellationToken) {
        let sent = std::mem::take(&mut router.on_the_way);
        let mut failed = None;
        let mut done = Vec::new();
        for partition in sent {
            let first = router.lines.get(&partition).and_then(VecDeque::front);
            let Some(id) = first.map(|pack| pack.message_id) else {
                continue;
            };
            let refusal = match &published {
                Ok(()) => None,
                Err(error @ PublishError::Refused(_)) => error.refusal_of(id).cloned(),
                Err(error) => {
                    failed = Some(error.to_string());
                    continue;
                }
            };
            match refusal {
                None => done.extend(router.pop(partition).map(|pack| pack.brought_by)),
                Some(why) if why.is_final() => {
                    if let Some(pack) = router.pop(partition) {
                        self.refused(router, pack, &why, stop);
                    }
                }
                Some(why) => failed = Some(why.to_string()),
            }
        }
        router.done(done.concat()).await;
        match failed {
            None => router.backoff.reset(),
            Some(error) => {
                if router.pace.is_due() {
                    tracing::warn!(error, "rule firings could not be routed yet");
                }
                let wait = router.backoff.next_delay();
                // Other partitions go on at once: only what failed waits for its next try.
                let wait = wait.min(Duration::from_millis(250));
                router.retry_at = Some(tokio::time::Instant::now() + wait);
            }
        }
    }

    /// The bus will never carry a message: each of its submissions becomes a dead letter.
    fn refused(&self, router: &mut Router, pack: Pack, why: &Refusal, stop: &CancellationToken) {
        for (item, tag) in pack.items.into_iter().zip(pack.brought_by) {
            let body = encode(
                Uuid::now_v7(),
                Utc::now(),
                &[EnforcementCreated(item.submission)],
            );
            self.bury_body(router, tag, Vec::new(), body, why.to_string(), stop);
        }
    }

    fn bury(
        &self,
        router: &mut Router,
        delivery: &Delivery,
        body: Vec<u8>,
        reason: String,
        stop: &CancellationToken,
    ) {
        let headers = delivery.headers.clone();
        self.bury_body(router, delivery.tag, headers, body, reason, stop);
    }

    /// Puts something among the dead letters, beside everything else.
    fn bury_body(
        &self,
        router: &mut Router,
        tag: DeliveryTag,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
        reason: String,
        stop: &CancellationToken,
    ) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(bus.topic = %Topic::Enforcements, reason, "a rule firing cannot be used; it goes to the dead letters");
        let message = dead(headers, body, &reason);
        let (bus, buried, stop) = (Arc::clone(&self.bus), router.buried.clone(), stop.clone());
        tokio::spawn(async move {
            let (patience, mut backoff) = (Patience::Refusals(LETTER_TRIES), Backoff::default());
            let pause = |_: &PublishError, _: &[Outgoing]| Some(backoff.next_delay());
            let letters = vec![message];
            let done = publish_until_confirmed(bus.as_ref(), letters, patience, &stop, pause).await;
            if !done.unknown.is_empty() {
                // Told to stop: it comes again.
                return;
            }
            if !done.refused.is_empty() {
                tracing::error!(
                    reason,
                    "the dead letters take nothing; a rule firing that cannot be used is dropped"
                );
            }
            if buried.send(vec![tag]).is_err() {
                tracing::debug!("the router has stopped");
            }
        });
    }
}

/// A dead letter from the topic of rule firings.
fn dead(headers: Vec<(String, String)>, body: Vec<u8>, reason: &str) -> Outgoing {
    let delivery = Delivery {
        tag: DeliveryTag {
            generation: 0,
            number: 0,
        },
        body: bytes::Bytes::new(),
        message_id: None,
        reply_to: None,
        redelivered: false,
        user_id: None,
        headers,
    };
    letter(&Topic::Enforcements, &delivery, body, reason)
}

fn far_away() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(3600)
}

impl Router {
    /// Puts a submission at the end of its partition's line. Only the latest pack of a line may
    /// grow, or order would be lost; and not the first, which may be on its way.
    fn line_up(&mut self, partitions: u16, delivery: &Delivery, submission: Submission) {
        let partition = PartitionId::of(&submission.action_ref, partitions);
        let bytes = submission.parameters.get().len();
        let item = Submit {
            submission,
            on_reject: OnReject::Record,
        };
        let is_sent = self.on_the_way.contains(&partition);
        let line = self.lines.entry(partition).or_default();
        let may_grow = line.len() > usize::from(is_sent);
        let last = line.back_mut().filter(|pack| {
            may_grow
                && pack.reply_to == delivery.reply_to
                && pack.items.len() < MAX_PACK
                && pack.bytes + bytes < MAX_PACK_BYTES
        });
        match last {
            Some(pack) => {
                pack.bytes += bytes;
                pack.items.push(item);
                pack.brought_by.push(delivery.tag);
            }
            None => {
                self.waiting += 1;
                line.push_back(Pack {
                    message_id: Uuid::now_v7(),
                    reply_to: delivery.reply_to.clone(),
                    items: vec![item],
                    bytes,
                    brought_by: vec![delivery.tag],
                });
            }
        }
    }

    fn pop(&mut self, partition: PartitionId) -> Option<Pack> {
        let line = self.lines.get_mut(&partition)?;
        let pack = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&partition);
        }
        self.waiting -= 1;
        Some(pack)
    }

    /// So many items of these deliveries are done with, one for each time that a tag is named.
    async fn done(&mut self, tags: Vec<DeliveryTag>) {
        let mut whole = Vec::new();
        for tag in tags {
            if let Some(owed) = self.owed.get_mut(&tag) {
                *owed -= 1;
                if *owed == 0 {
                    self.owed.remove(&tag);
                    whole.push(tag);
                }
            }
        }
        if !whole.is_empty() {
            self.settler.ack(&whole).await;
        }
    }
}
