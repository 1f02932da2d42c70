//! Tells what was committed: dispatches to the workers, answers to the askers, snapshots to the
//! stats persister. Deliveries are acknowledged after that, last of all.
//!
//! Telling overlaps with the next commit, and several rounds may be told at once. That is safe:
//! a dispatch names an attempt, and only one worker's claim of an attempt succeeds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_bus::{Bus, DeliveryTag, Outgoing, PublishError, Settler, Topic};
use attune_core::{Attempt, ExecutionId, Submission};
use attune_messages::v1::{
    Answer, EnforcementCreated, ExecutionCancel, ExecutionRequested, QueueSnapshot,
};
use attune_messages::{Message, encode};
use attune_runtime::Backoff;
use attune_store::GrantedBody;
use chrono::Utc;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use crate::draft::Tell;
use crate::event::Dispatch;

/// How many rounds may be told at once.
const MAX_ROUNDS: usize = 32;
/// How many bytes of parameters one message carries.
const MAX_PACK_BYTES: usize = 256 * 1024;
/// How many answers or snapshots one message carries.
const MAX_ANSWERS: usize = 256;

/// What one round tells, with every body at hand.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) requested: Vec<(String, ExecutionRequested)>,
    pub(crate) cancels: Vec<(ExecutionId, Attempt)>,
    pub(crate) answers: Vec<(Arc<str>, Answer)>,
    pub(crate) dead_letters: Vec<Outgoing>,
    pub(crate) snapshots: Vec<QueueSnapshot>,
    pub(crate) acks: Vec<(Settler, Vec<DeliveryTag>)>,
    /// Of the partitions that it is about: who hands one over waits until all are gone.
    pub(crate) telling: Vec<TaskTrackerToken>,
}

impl Told {
    /// Puts the bodies to the dispatches of a committed round.
    pub(crate) fn new(
        tell: Tell,
        submissions: &HashMap<ExecutionId, Submission>,
        granted: Vec<GrantedBody>,
    ) -> Self {
        let stored: HashMap<ExecutionId, GrantedBody> =
            granted.into_iter().map(|body| (body.id, body)).collect();
        let mut told = Self {
            cancels: tell.cancels,
            answers: tell.answers,
            ..Self::default()
        };
        told.acks = tell.acks;
        for (submission, reject) in tell.dead_letters {
            told.dead_letters.push(letter(
                *submission,
                &Topic::Enforcements,
                &reject.to_string(),
            ));
        }
        for dispatch in tell.dispatches {
            let id = dispatch.execution_id;
            let (parameters, timeout) = match (submissions.get(&id), stored.get(&id)) {
                (Some(new), _) => (new.parameters.clone(), new.timeout_seconds),
                (None, Some(body)) => (body.parameters.clone(), body.timeout_seconds),
                (None, None) => {
                    // The grant is stored; the reconciler dispatches it again.
                    tracing::error!(execution.id = %id, "a granted execution has no body");
                    continue;
                }
            };
            told.request(dispatch, parameters, timeout);
        }
        told
    }

    /// Adds a dispatch.
    pub(crate) fn request(
        &mut self,
        dispatch: Dispatch,
        parameters: Box<serde_json::value::RawValue>,
        timeout_seconds: Option<u32>,
    ) {
        let spec = &dispatch.action.spec;
        let requested = ExecutionRequested {
            execution_id: dispatch.execution_id,
            attempt: dispatch.attempt,
            action_id: dispatch.action.id,
            action_ref: spec.action_ref.as_str().to_owned(),
            parameters,
            run: spec.run.clone(),
            timeout_seconds: timeout_seconds.unwrap_or(spec.timeout_seconds),
            env: spec.env.clone(),
        };
        self.requested.push((spec.pool.clone(), requested));
    }
}

/// A submission as a dead letter.
pub(crate) fn letter(submission: Submission, topic: &Topic, reason: &str) -> Outgoing {
    let id = Uuid::now_v7();
    let body = encode(id, Utc::now(), &[EnforcementCreated(submission)]);
    let mut letter = Outgoing::new(Topic::DeadLetters, id, body);
    letter.headers.push((
        attune_bus::port::DEAD_LETTER_REASON.to_owned(),
        reason.to_owned(),
    ));
    letter.headers.push((
        attune_bus::port::DEAD_LETTER_TOPIC.to_owned(),
        topic.routing_key(),
    ));
    letter
}

/// Tells rounds, several at once.
pub(crate) struct Dispatcher {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) max_pack: usize,
    pub(crate) rounds: mpsc::Receiver<Told>,
    /// Past this, what is not confirmed is left to the next owner.
    pub(crate) stop: CancellationToken,
}

impl Dispatcher {
    /// Tells until the owner is done and everything is confirmed.
    pub(crate) async fn run(mut self) {
        let slots = Arc::new(Semaphore::new(MAX_ROUNDS));
        let tasks = TaskTracker::new();
        let teller = Arc::new(Teller {
            bus: Arc::clone(&self.bus),
            max_pack: self.max_pack,
            stop: self.stop.clone(),
            declared: Mutex::default(),
        });
        while let Some(told) = self.rounds.recv().await {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                break;
            };
            let teller = Arc::clone(&teller);
            tasks.spawn(async move {
                teller.tell(told).await;
                drop(slot);
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

struct Teller {
    bus: Arc<dyn Bus>,
    max_pack: usize,
    stop: CancellationToken,
    /// Pools whose messages are kept even before a worker comes.
    declared: Mutex<HashSet<String>>,
}

impl Teller {
    async fn tell(&self, mut told: Told) {
        let _telling = std::mem::take(&mut told.telling);
        let mut must = Vec::new();
        let mut pools: BTreeMap<String, Vec<ExecutionRequested>> = BTreeMap::new();
        for (pool, requested) in told.requested {
            pools.entry(pool).or_default().push(requested);
        }
        for (pool, items) in pools {
            self.declare(&pool).await;
            let size = |item: &ExecutionRequested| item.parameters.get().len();
            must.extend(pack(&Topic::Requested(pool), items, self.max_pack, size));
        }
        must.extend(told.dead_letters);
        let mut may = Vec::new();
        let mut askers: BTreeMap<Arc<str>, Vec<Answer>> = BTreeMap::new();
        for (reply_to, answer) in told.answers {
            askers.entry(reply_to).or_default().push(answer);
        }
        for (reply_to, answers) in askers {
            may.extend(pack(
                &Topic::Reply(reply_to.to_string()),
                answers,
                MAX_ANSWERS,
                |_| 256,
            ));
        }
        let cancels = told
            .cancels
            .into_iter()
            .map(|(execution_id, attempt)| ExecutionCancel {
                execution_id,
                attempt,
            })
            .collect();
        may.extend(pack(&Topic::Cancel, cancels, MAX_ANSWERS, |_| 64));
        may.extend(pack(
            &Topic::QueueStats,
            told.snapshots,
            MAX_ANSWERS,
            |_| 256,
        ));
        tokio::join!(self.publish_once(may), self.publish_until_confirmed(must));
        for (settler, tags) in told.acks {
            settler.ack(&tags).await;
        }
    }

    /// An asker that gets no answer asks again; a snapshot that is lost is followed by another.
    async fn publish_once(&self, messages: Vec<Outgoing>) {
        if messages.is_empty() {
            return;
        }
        match self.bus.publish(messages).await {
            Ok(()) | Err(PublishError::Refused(_)) => {}
            Err(error) => tracing::warn!(%error, "answers or snapshots may be lost"),
        }
    }

    async fn publish_until_confirmed(&self, messages: Vec<Outgoing>) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        let mut messages = messages;
        while !messages.is_empty() {
            match self.bus.publish(messages.clone()).await {
                Ok(()) => return,
                Err(error @ PublishError::Refused(_)) => {
                    messages.retain(|message| error.refusal_of(message.message_id).is_some());
                    self.declared
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clear();
                    tracing::warn!(
                        messages = messages.len(),
                        %error,
                        "dispatches were refused by the bus"
                    );
                }
                Err(error) => tracing::warn!(%error, "dispatches are not confirmed yet"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    /// The queue of a pool belongs to its workers, but the first dispatch may come before them.
    async fn declare(&self, pool: &str) {
        let known = self
            .declared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(pool);
        if known {
            return;
        }
        match self.bus.declare(&Topic::Requested(pool.to_owned())).await {
            Ok(()) => {
                let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
                declared.insert(pool.to_owned());
            }
            Err(error) => {
                tracing::warn!(worker.pool = pool, %error, "a pool could not be declared")
            }
        }
    }
}

/// Packs items into messages, each bounded in number and size.
fn pack<M: Message>(
    topic: &Topic,
    items: Vec<M>,
    max_items: usize,
    size: impl Fn(&M) -> usize,
) -> Vec<Outgoing> {
    let mut messages = Vec::new();
    let mut pack: Vec<M> = Vec::new();
    let mut bytes = 0;
    let mut flush = |pack: &mut Vec<M>| {
        if !pack.is_empty() {
            let id = Uuid::now_v7();
            messages.push(Outgoing::new(
                topic.clone(),
                id,
                encode(id, Utc::now(), pack),
            ));
            pack.clear();
        }
    };
    for item in items {
        let more = size(&item);
        if pack.len() >= max_items || (!pack.is_empty() && bytes + more > MAX_PACK_BYTES) {
            flush(&mut pack);
            bytes = 0;
        }
        bytes += more;
        pack.push(item);
    }
    flush(&mut pack);
    messages
}
