//! A scripted owner, and a bus whose publishes a test holds back or lets fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::memory::MemoryBus;
use attune_bus::{
    Bus, BusError, Depth, Outgoing, PublishError, Refusal, Refused, Subscriber, Subscription, Topic,
};
use attune_commands::{ClientError, ClientOptions, CommandClient};
use attune_core::{ExecutionId, PartitionId, Reject, RequestId, Status, Submission};
use attune_messages::v1::{
    Accepted, ActionChanged, Answer, AnswerOutcome, Cancel, Explain, Submit,
};
use attune_messages::{Envelope, encode};
use chrono::Utc;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Long enough that only a fault reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// Short enough to be waited for.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub(crate) type Answered = Result<Accepted, ClientError>;

pub(crate) fn memory_bus() -> Arc<dyn Bus> {
    Arc::new(MemoryBus::new())
}

/// A client of a cluster with one partition.
pub(crate) async fn client(bus: &Arc<dyn Bus>) -> CommandClient {
    CommandClient::start(Arc::clone(bus), ClientOptions::new(1))
        .await
        .unwrap()
}

pub(crate) fn request(action_ref: &str, request_id: RequestId) -> Submission {
    Submission {
        request_id: Some(request_id),
        ..Submission::new(action_ref)
    }
}

/// Submits in a task of its own.
pub(crate) fn submit(
    client: &CommandClient,
    submission: Submission,
    deadline: Duration,
) -> JoinHandle<Answered> {
    let client = client.clone();
    tokio::spawn(async move { client.submit(submission, deadline).await })
}

pub(crate) fn id_of(answered: Answered) -> i64 {
    answered.unwrap().execution_id.unwrap().0
}

/// Sends one more command and has it answered: whatever was sent to the client before has then
/// been taken in.
pub(crate) async fn round_trip(client: &CommandClient, owner: &mut Owner) {
    let task = submit(client, Submission::new("core.marker"), LONG);
    let pack = owner.next().await;
    assert_eq!(pack.about, ["core.marker"]);
    owner.answer(&pack, |_| accepted(0)).await;
    task.await.unwrap().unwrap();
}

/// Waits until so many commands are in flight.
pub(crate) async fn until_in_flight(client: &CommandClient, count: usize) {
    within("the client has so many commands in flight", async {
        while client.stats().in_flight != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// One message of commands, as an owner sees it.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) message_id: Uuid,
    pub(crate) kind: String,
    pub(crate) request_ids: Vec<RequestId>,
    /// The refs or executions it is about.
    pub(crate) about: Vec<String>,
    pub(crate) reply_to: String,
    pub(crate) bytes: usize,
}

/// Receives the commands of one partition and answers what a test tells it to.
pub(crate) struct Owner {
    bus: Arc<dyn Bus>,
    commands: Subscriber,
}

impl Owner {
    pub(crate) async fn start(bus: &Arc<dyn Bus>, partition: u16) -> Self {
        Self::receiving(bus, Topic::Calls(PartitionId(partition))).await
    }

    /// Receives another topic.
    pub(crate) async fn receiving(bus: &Arc<dyn Bus>, topic: Topic) -> Self {
        let commands = bus
            .subscribe(Subscription {
                topic,
                prefetch: 1000,
            })
            .await
            .unwrap();
        Self {
            bus: Arc::clone(bus),
            commands,
        }
    }

    pub(crate) async fn next(&mut self) -> Pack {
        let delivery = within("a command", self.commands.next())
            .await
            .expect("the bus is open");
        self.commands.settler().ack(&[delivery.tag]).await;
        let envelope = Envelope::parse(&delivery.body, 2 * 1024 * 1024).unwrap();
        let mut pack = Pack {
            message_id: envelope.message_id,
            kind: envelope.message_type.to_string(),
            request_ids: Vec::new(),
            about: Vec::new(),
            reply_to: delivery
                .reply_to
                .clone()
                .expect("commands say where answers go"),
            bytes: delivery.body.len(),
        };
        assert_eq!(delivery.message_id, Some(envelope.message_id.to_string()));
        if envelope.is::<Submit>() {
            for item in envelope.items::<Submit>().unwrap() {
                pack.request_ids
                    .push(item.submission.request_id.expect("it is required"));
                pack.about.push(item.submission.action_ref);
            }
        } else if envelope.is::<Cancel>() {
            for item in envelope.items::<Cancel>().unwrap() {
                pack.request_ids.push(item.request_id);
                pack.about.push(item.execution_id.to_string());
            }
        } else if envelope.is::<Explain>() {
            for item in envelope.items::<Explain>().unwrap() {
                pack.request_ids.push(item.request_id);
                pack.about.push(item.execution_id.to_string());
            }
        } else {
            for item in envelope.items::<ActionChanged>().unwrap() {
                pack.request_ids.push(item.request_id);
                pack.about.push(item.action_ref);
            }
        }
        pack
    }

    pub(crate) async fn answer(&self, pack: &Pack, outcome: impl Fn(usize) -> AnswerOutcome) {
        self.tell(pack, Some(pack.message_id), outcome).await;
    }

    /// Answers as owners of an earlier release do.
    pub(crate) async fn answer_as_before(
        &self,
        pack: &Pack,
        outcome: impl Fn(usize) -> AnswerOutcome,
    ) {
        self.tell(pack, None, outcome).await;
    }

    async fn tell(
        &self,
        pack: &Pack,
        message_id: Option<Uuid>,
        outcome: impl Fn(usize) -> AnswerOutcome,
    ) {
        let answers: Vec<_> = pack
            .request_ids
            .iter()
            .enumerate()
            .map(|(index, &request_id)| Answer {
                request_id,
                message_id,
                outcome: outcome(index),
            })
            .collect();
        let id = Uuid::now_v7();
        let body = encode(id, Utc::now(), &answers);
        let reply = Outgoing::new(Topic::Reply(pack.reply_to.clone()), id, body);
        self.bus.publish(vec![reply]).await.unwrap();
    }

    /// Accepts every command, for ever.
    pub(crate) async fn accept_all(mut self) {
        let mut next = 0;
        loop {
            let pack = self.next().await;
            self.answer(&pack, |index| accepted(next + index as i64))
                .await;
            next += pack.request_ids.len() as i64;
        }
    }
}

pub(crate) fn accepted(id: i64) -> AnswerOutcome {
    AnswerOutcome::Accepted(Accepted {
        execution_id: Some(ExecutionId(id)),
        status: Some(Status::Queued),
        position: Some(0),
        repeated: false,
        priority: None,
        explanation: None,
    })
}

pub(crate) fn rejected() -> AnswerOutcome {
    AnswerOutcome::Rejected(Reject::queue_full(100))
}

/// What becomes of one publish of commands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// It is not kept, and not confirmed.
    Lost,
    /// It is confirmed, and lost with the broker.
    ConfirmedAndLost,
    /// It is kept, but the confirm is lost.
    KeptUnconfirmed,
    /// The same, and that is known only with one more permit.
    KeptLongUnconfirmed,
    /// It is refused.
    Refused,
}

/// A bus that lets one publish of commands through per permit, with the fates it is given.
pub(crate) struct GatedBus {
    inner: MemoryBus,
    gate: Semaphore,
    fates: Mutex<VecDeque<Fate>>,
    /// Sees each publish of commands arrive at the gate.
    arrivals: mpsc::UnboundedSender<()>,
    /// How often connections were made anew.
    renewals: watch::Sender<u64>,
}

impl GatedBus {
    pub(crate) fn new(open: usize) -> (Arc<Self>, mpsc::UnboundedReceiver<()>) {
        let (arrivals, seen) = mpsc::unbounded_channel();
        let bus = Self {
            inner: MemoryBus::new(),
            gate: Semaphore::new(open),
            fates: Mutex::default(),
            arrivals,
            renewals: watch::Sender::default(),
        };
        (Arc::new(bus), seen)
    }

    pub(crate) fn open(&self, publishes: usize) {
        self.gate.add_permits(publishes);
    }

    /// Every connection is made anew.
    pub(crate) fn renew(&self) {
        self.renewals.send_modify(|renewals| *renewals += 1);
    }

    pub(crate) fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().unwrap().extend(fates);
    }
}

#[async_trait]
impl Bus for GatedBus {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        if !matches!(messages[0].topic, Topic::Calls(_) | Topic::Commands(_)) {
            return self.inner.publish(messages).await;
        }
        let _ = self.arrivals.send(());
        self.gate.acquire().await.unwrap().forget();
        let fate = self.fates.lock().unwrap().pop_front();
        let unconfirmed = || PublishError::Unconfirmed("as the test wants".to_owned());
        match fate {
            None => self.inner.publish(messages).await,
            Some(Fate::Lost) => Err(unconfirmed()),
            Some(Fate::ConfirmedAndLost) => Ok(()),
            Some(Fate::KeptUnconfirmed) => {
                self.inner.publish(messages).await?;
                Err(unconfirmed())
            }
            Some(Fate::KeptLongUnconfirmed) => {
                self.inner.publish(messages).await?;
                self.gate.acquire().await.unwrap().forget();
                Err(unconfirmed())
            }
            Some(Fate::Refused) => {
                let refused = messages.iter().map(|message| Refused {
                    message_id: message.message_id,
                    why: Refusal::Full,
                });
                Err(PublishError::Refused(refused.collect()))
            }
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        let subscriber = self.inner.subscribe(subscription).await?;
        Ok(subscriber.renewed_by(self.renewals.clone()))
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.inner.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        self.inner.check().await
    }

    fn reach(&self) -> Result<(), BusError> {
        self.inner.reach()
    }

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.inner.depth(topic).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
