//! Names, arguments and declarations of exchanges and queues.
//!
//! Every argument on which behaviour depends is given explicitly, because the defaults differ
//! between servers (3.10 to 4.x): the type (a vhost can have its own default), the delivery limit
//! (none before 4.0, 20 since), the overflow behaviour, the strategy of dead-lettering. Not given,
//! because the oldest supported server does not know it: a consumer timeout per queue.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use attune_bus::Topic;
use attune_core::{OwnerId, WorkerId};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use uuid::Uuid;

use crate::cause::Cause;
use crate::mark::{self, MARK};
use crate::options::{Declaring, Endpoint, QueueType, RabbitOptions};

/// Practically no limit. The broker counts every unacknowledged delivery of a consumer that goes,
/// the whole prefetch window each time, so an error that lasts (a store that refuses to commit)
/// would take accepted messages for poison. What is poison, whoever reads it decides. Setting a
/// limit at all makes quorum queues put returned messages back in their old place, and since 4.0
/// the default is 20. (Since 4.0 -1 means none, which older servers refuse.)
const NO_DELIVERY_LIMIT: i64 = 1_000_000_000;
/// Of messages whose loss is soon made good: a snapshot is followed by the next.
const DELIVERY_LIMIT: i64 = 1_000;
/// What all queues but the dead letters' were declared with before there was
/// [`NO_DELIVERY_LIMIT`].
const OLD_DELIVERY_LIMIT: i64 = 1_000;
/// What a queue of one subscriber (broadcasts, answers, direct topics) may hold.
const OWN_QUEUE_BYTES: i64 = 64 << 20;
/// What the queue of statistics may hold.
const STATS_BYTES: i64 = 16 << 20;

const DELIVERY_LIMIT_ARGUMENT: &str = "x-delivery-limit";
const EXCHANGE: &str = "attune.executions";
const DEAD_LETTERS: &str = "attune.dead-letters";
/// Leads to lives of workers, by their pools and ids. An exchange of its own, so that the broker's
/// permissions say who may tell workers what to do; of the kind whose keys permissions can speak of, so
/// that they say too whose grants somebody may hear.
const LIVES: &str = "attune.lives";
/// Leads to executors, by their ids; likewise, who may report to them.
const REPORTS: &str = "attune.reports";
/// All of them, and how each finds its queues.
pub(crate) const EXCHANGES: [(&str, ExchangeKind); 4] = [
    (EXCHANGE, ExchangeKind::Topic),
    (DEAD_LETTERS, ExchangeKind::Fanout),
    (LIVES, ExchangeKind::Topic),
    (REPORTS, ExchangeKind::Direct),
];

/// Names and arguments for one set of options.
#[derive(Debug)]
pub(crate) struct Topology {
    prefix: String,
    vhost: String,
    /// The id of the system whose messages these are, once it is known.
    system: OnceLock<Uuid>,
    queue_type: QueueType,
    max_queue_bytes: i64,
    declaring: Declaring,
    /// The user whom every message names, if it does.
    user: Option<String>,
    /// Queues that exist with [`OLD_DELIVERY_LIMIT`]: they are used as they are. Added to when
    /// the broker refuses a declaration for it, read by every declaration.
    old: Mutex<BTreeSet<String>>,
}

/// What stays on the broker when nobody is connected any more.
pub(crate) struct Declared {
    pub(crate) queues: Vec<ShortString>,
    pub(crate) exchanges: Vec<ShortString>,
}

/// A queue to be declared.
pub(crate) struct QueuePlan {
    pub(crate) name: ShortString,
    options: QueueDeclareOptions,
    arguments: FieldTable,
    /// Exchange and key; none for the default exchange, where every queue is bound by its name.
    pub(crate) binding: Option<(ShortString, ShortString)>,
}

impl Topology {
    pub(crate) fn of(options: &RabbitOptions) -> Self {
        Self {
            prefix: options.prefix.clone(),
            vhost: Endpoint::of(options).map_or_else(|_| String::new(), |it| it.uri.vhost),
            system: OnceLock::new(),
            queue_type: options.queue_type,
            declaring: options.declaring,
            user: match options.names_user {
                true => options.user().ok().flatten(),
                false => None,
            },
            max_queue_bytes: i64::try_from(options.max_queue_bytes).unwrap_or(i64::MAX),
            old: Mutex::default(),
        }
    }

    /// The user whom every message names.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn is_passive(&self) -> bool {
        self.declaring == Declaring::Passive
    }

    /// The exchange and routing key by which messages of a topic are published.
    ///
    /// # Errors
    /// When a name is too long for the protocol.
    pub(crate) fn route(&self, topic: &Topic) -> Result<(ShortString, ShortString), Cause> {
        let exchange = match topic {
            Topic::DeadLetters => format!("{}{DEAD_LETTERS}", self.prefix),
            Topic::Link(..) => format!("{}{LIVES}", self.prefix),
            Topic::Reports(_) => format!("{}{REPORTS}", self.prefix),
            // The default exchange leads to the queue whose name is the routing key.
            Topic::Reply(_) => String::new(),
            _ => format!("{}{EXCHANGE}", self.prefix),
        };
        Ok((short(exchange)?, short(topic.routing_key())?))
    }

    /// Declares what every service needs: the exchanges for messages, and the exchange and queue
    /// of dead letters, so that no message can be dead-lettered into nothing.
    ///
    /// No exchange has an alternate exchange: a message that takes that way is not returned to
    /// its publisher although it is `mandatory`, and its confirm says that all went well. Here
    /// the publisher itself must learn that nobody has declared the topic.
    pub(crate) async fn declare_base(&self, channel: &Channel) -> Result<(), Cause> {
        for (name, kind) in EXCHANGES {
            let name = short(format!("{}{name}", self.prefix))?;
            let options = ExchangeDeclareOptions {
                durable: true,
                passive: self.is_passive(),
                ..Default::default()
            };
            channel
                .exchange_declare(name.clone(), kind, options, FieldTable::default())
                .await
                .map_err(|error| self.failed(&error, "exchange", name.as_str()))?;
        }
        self.declare_queue(channel, self.plan(&Topic::DeadLetters)?)
            .await?;
        self.leave_mark(channel).await
    }

    /// From now on whatever is declared says whose it is.
    pub(crate) fn belongs_to(&self, system: Uuid) {
        self.system.get_or_init(|| system);
    }

    /// Says whose messages these are, where that is known.
    async fn leave_mark(&self, channel: &Channel) -> Result<(), Cause> {
        let Some(system) = self.system.get().copied() else {
            return Ok(());
        };
        let (dead_letters, _) = self.route(&Topic::DeadLetters)?;
        let mark = format!("{}{MARK}", self.prefix);
        // Who only looks is not told of other arguments, so the id stands in a name as well. It comes last: only
        // who may leave the first leaves the second.
        let names = [mark.clone(), format!("{mark}.{system}")];
        for name in names.iter().skip(usize::from(self.is_passive())) {
            let kept = self.plan(&Topic::DeadLetters)?;
            let plan = QueuePlan {
                name: short(name.clone())?,
                arguments: mark::arguments(kept.arguments, dead_letters.as_str(), system),
                binding: None,
                ..kept
            };
            let left = self.declare_queue(channel, plan).await;
            left.map_err(|cause| mark::refusal(cause, &mark, &self.vhost, system))?;
        }
        Ok(())
    }

    /// Why something was not declared, or not found by who may not declare it.
    fn failed(&self, error: &lapin::Error, what: &str, name: &str) -> Cause {
        Cause::of(error).during(&match self.is_passive() {
            true => format!(
                "looking for {what} {name}, which `attune topology apply` declares (broker.topology is passive)"
            ),
            false => format!("declaring {what} {name}"),
        })
    }

    /// Declares everything that a topic needs; answers the name of the queue to consume from. One
    /// that lives as long as its consumer is [bound](Self::bind_own) when it has one.
    pub(crate) async fn declare(
        &self,
        channel: &Channel,
        topic: &Topic,
    ) -> Result<ShortString, Cause> {
        self.declare_base(channel).await?;
        let mut plan = self.plan(topic)?;
        plan.binding.take_if(|_| !topic.is_kept());
        let name = plan.name.clone();
        self.declare_queue(channel, plan).await?;
        Ok(name)
    }

    /// Binds the queue of a topic that keeps nothing, once it is consumed from: before that it would
    /// take messages, and have them confirmed, although perhaps nobody ever reads them.
    pub(crate) async fn bind_own(
        &self,
        channel: &Channel,
        queue: &ShortString,
        topic: &Topic,
    ) -> Result<(), Cause> {
        match self.plan(topic)?.binding {
            Some(binding) if !topic.is_kept() => bind(channel, queue.clone(), binding).await,
            _ => Ok(()),
        }
    }

    /// Finds out whether messages may be sent to a topic that keeps none, by one that nobody gets. The
    /// right to publish through each of the exchanges is one of its own, and who lacks it loses its
    /// connection with every message.
    pub(crate) async fn may_send(&self, channel: &Channel, topic: &Topic) -> Result<(), Cause> {
        let (nobody, what) = match topic {
            Topic::Link(..) => (
                Topic::link("nobody", WorkerId::fresh()),
                "messages to workers",
            ),
            Topic::Reports(_) => (Topic::Reports(OwnerId::fresh()), "reports to executors"),
            _ => {
                let address = format!("attune.reply.nobody-{}", Uuid::now_v7());
                (Topic::Reply(address), "answers")
            }
        };
        let (exchange, key) = self.route(&nobody)?;
        let right = match exchange.as_str() {
            "" => format!("sending {what} (write on `amq.default`)"),
            exchange => format!("sending {what} (write on `{exchange}`)"),
        };
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let asking = async {
            // A confirmation fails with the broker's own words, however early they come: any other
            // request that follows would find a closing channel, and no reason.
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await?;
            let confirming = channel
                .basic_publish(exchange, key, options, &[], properties)
                .await?;
            confirming.await
        };
        let asked = asking.await;
        asked
            .map(drop)
            .map_err(|error| Cause::of(&error).during(&right))
    }

    /// The names of what [`declare`](Self::declare) leaves behind for these topics.
    pub(crate) fn declared(&self, topics: &[Topic]) -> Result<Declared, Cause> {
        let kept = topics
            .iter()
            .filter(|topic| topic.is_kept())
            .chain([&Topic::DeadLetters]);
        let queues = kept.map(|topic| short(self.queue_name(topic)));
        let mark = format!("{}{MARK}", self.prefix);
        let of_system = self.system.get().map(|system| format!("{mark}.{system}"));
        let queues = queues.chain([mark].into_iter().chain(of_system).map(short));
        let exchanges = EXCHANGES.map(|(name, _)| short(format!("{}{name}", self.prefix)));
        Ok(Declared {
            queues: queues.collect::<Result<_, _>>()?,
            exchanges: exchanges.into_iter().collect::<Result<_, _>>()?,
        })
    }

    pub(crate) async fn declare_queue(
        &self,
        channel: &Channel,
        plan: QueuePlan,
    ) -> Result<(), Cause> {
        let QueuePlan {
            name,
            options,
            arguments,
            binding,
        } = plan;
        let declaring = |error| match options.passive {
            true => self.failed(&error, "queue", name.as_str()),
            false => Cause::of(&error).during(&format!("declaring queue {name}")),
        };
        channel
            .queue_declare(name.clone(), options, arguments)
            .await
            .map_err(|error| {
                let cause = declaring(error);
                match cause.is_about_argument(DELIVERY_LIMIT_ARGUMENT) {
                    true => self.note_old(name.as_str(), cause),
                    false => cause,
                }
            })?;
        match binding {
            Some(binding) => bind(channel, name, binding).await,
            None => Ok(()),
        }
    }

    /// Makes the binding of a topic's queue again; answers how many consumers the queue has.
    ///
    /// # Errors
    /// When the queue or its exchange is not there.
    pub(crate) async fn look_after(
        &self,
        channel: &Channel,
        queue: &ShortString,
        topic: &Topic,
    ) -> Result<u32, Cause> {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let found = channel
            .queue_declare(queue.clone(), options, FieldTable::default())
            .await
            .map_err(|error| Cause::of(&error).during(&format!("looking for queue {queue}")))?;
        if let Some(binding) = self.plan(topic)?.binding {
            bind(channel, queue.clone(), binding).await?;
        }
        Ok(found.consumer_count())
    }

    /// Makes the binding of a kept topic again, if its queue exists.
    ///
    /// # Errors
    /// When it does not: who consumes from it declares it.
    pub(crate) async fn bind_existing(
        &self,
        channel: &Channel,
        topic: &Topic,
    ) -> Result<(), Cause> {
        self.declare_base(channel).await?;
        let queue = self.plan(topic)?.name;
        self.look_after(channel, &queue, topic).await.map(drop)
    }

    /// Notes that a queue exists with another delivery limit: that of earlier releases, as far as
    /// is known. Answers a cause that asks for a second declaration, once.
    fn note_old(&self, queue: &str, cause: Cause) -> Cause {
        let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        if !old.insert(queue.to_owned()) {
            // The old limit was refused as well.
            return cause;
        }
        tracing::warn!(
            bus.queue = queue,
            "this queue was declared by an earlier release, so that messages which are given back \
             {OLD_DELIVERY_LIMIT} times go to the dead letters. It is used as it is. To change \
             that, let it run empty, stop what uses it and delete it: `rabbitmqctl delete_queue \
             {queue} --if-empty` (with `-p VHOST`); the next start declares it anew"
        );
        cause.once_more()
    }

    fn is_old(&self, queue: &str) -> bool {
        let old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        old.contains(queue)
    }

    pub(crate) fn plan(&self, topic: &Topic) -> Result<QueuePlan, Cause> {
        let (exchange, key) = self.route(topic)?;
        let options = match topic.is_kept() {
            true => QueueDeclareOptions {
                durable: true,
                passive: self.is_passive(),
                ..Default::default()
            },
            // `exclusive` here means that the queue belongs to this connection and dies with it.
            // (As a flag of a *consumer* it is ignored by quorum queues, so it is never used.)
            false => QueueDeclareOptions {
                exclusive: true,
                auto_delete: true,
                ..Default::default()
            },
        };
        let name = self.queue_name(topic);
        Ok(QueuePlan {
            arguments: self.arguments(topic, self.is_old(&name))?,
            name: short(name)?,
            options,
            // To bind what stays is to declare it.
            binding: (!exchange.as_str().is_empty() && (!topic.is_kept() || !self.is_passive()))
                .then_some((exchange, key)),
        })
    }

    pub(crate) fn queue_name(&self, topic: &Topic) -> String {
        let name = match topic {
            Topic::Enforcements => "attune.enforcements".to_owned(),
            Topic::Commands(_) | Topic::Calls(_) | Topic::Control(_) | Topic::ControlKept(_) => {
                format!("attune.{}", topic.routing_key())
            }
            Topic::Completed => "attune.completed".to_owned(),
            Topic::CompletedKept => "attune.completed.kept".to_owned(),
            Topic::QueueStats => "attune.queue-stats".to_owned(),
            Topic::DeadLetters => DEAD_LETTERS.to_owned(),
            // A new name each time: the broker may not have noticed yet that the connection of
            // an earlier one is gone.
            Topic::HandedOver => format!("attune.handed-over.{}", Uuid::now_v7()),
            Topic::Hello => format!("attune.hello.{}", Uuid::now_v7()),
            Topic::Link(pool, worker) => {
                format!("attune.worker.{pool}.{worker}.{}", Uuid::now_v7())
            }
            Topic::Reports(owner) => format!("attune.executor.{owner}.{}", Uuid::now_v7()),
            Topic::Event(_) | Topic::Events => format!("attune.events.{}", Uuid::now_v7()),
            // Exactly what the asker has put into its question.
            Topic::Reply(address) => return address.clone(),
        };
        format!("{}{name}", self.prefix)
    }

    fn arguments(&self, topic: &Topic, old: bool) -> Result<FieldTable, Cause> {
        let mut table = FieldTable::default();
        let mut set = |name: &str, value: AMQPValue| {
            table.insert(name.into(), value);
        };
        let text = |value: &str| AMQPValue::LongString(value.into());
        // A quorum queue writes everything to its disk, also what need not outlive the broker.
        let quorum = topic.is_lasting() && self.queue_type == QueueType::Quorum;
        set(
            "x-queue-type",
            text(if quorum { "quorum" } else { "classic" }),
        );
        let (bound, overflow) = match topic {
            // A subscriber that does not read must not make the broker refuse what is meant for
            // all; what is dropped here is of use for a moment only, and asked for again.
            Topic::HandedOver
            | Topic::Hello
            | Topic::Event(_)
            | Topic::Events
            | Topic::Reply(_) => (OWN_QUEUE_BYTES, "drop-head"),
            // A newer snapshot of a queue replaces the older ones, so the oldest are the right
            // ones to lose, and a stopped stats daemon must never hold up an executor.
            Topic::QueueStats => (STATS_BYTES, "drop-head"),
            // Whoever sends to it is told when it does not read. Of two queues while an old
            // connection has not been noticed to be gone, it may be the old one that is full.
            Topic::Link(..) | Topic::Reports(_) => {
                (OWN_QUEUE_BYTES.min(self.max_queue_bytes), "reject-publish")
            }
            // Nothing that was confirmed is dropped; the publisher is told that it is full.
            _ => (self.max_queue_bytes, "reject-publish"),
        };
        set("x-max-length-bytes", AMQPValue::LongLongInt(bound));
        set("x-overflow", text(overflow));
        if quorum {
            let limit = match topic {
                Topic::QueueStats => DELIVERY_LIMIT,
                _ if old => OLD_DELIVERY_LIMIT,
                _ => NO_DELIVERY_LIMIT,
            };
            set(DELIVERY_LIMIT_ARGUMENT, AMQPValue::LongLongInt(limit));
        }
        if topic.is_ordered() {
            // One consumer at a time, for order. It is no mutual exclusion (a stopped process
            // wakes up and goes on with what it had prefetched): that is what epochs are for.
            set("x-single-active-consumer", AMQPValue::Boolean(true));
        }
        let dead_letters =
            topic.is_kept() && !matches!(topic, Topic::DeadLetters | Topic::QueueStats);
        if dead_letters {
            let (exchange, _) = self.route(&Topic::DeadLetters)?;
            set("x-dead-letter-exchange", text(exchange.as_str()));
            if quorum {
                // The default is at-most-once. It needs `reject-publish` above, and falls back
                // silently without.
                set("x-dead-letter-strategy", text("at-least-once"));
            }
        }
        Ok(table)
    }
}

/// The names of all exchanges, and of each whether the broker looks at keys when somebody publishes there.
pub(crate) fn exchanges(prefix: &str) -> impl Iterator<Item = (String, bool)> {
    EXCHANGES
        .into_iter()
        .map(move |(name, kind)| (format!("{prefix}{name}"), kind == ExchangeKind::Topic))
}

/// Binds a queue to an exchange by a key; nothing happens where it is bound already.
async fn bind(
    channel: &Channel,
    queue: ShortString,
    (exchange, key): (ShortString, ShortString),
) -> Result<(), Cause> {
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    channel
        .queue_bind(queue.clone(), exchange, key, options, arguments)
        .await
        .map_err(|error| Cause::of(&error).during(&format!("binding queue {queue}")))
}

/// lapin's own conversion panics on more than 255 bytes.
pub(crate) fn short(text: String) -> Result<ShortString, Cause> {
    ShortString::try_new(text).map_err(|error| Cause::refused(error.to_string()))
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
