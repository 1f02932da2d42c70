//! Names, arguments and declarations of exchanges and queues.
//!
//! Every argument on which behaviour depends is given explicitly, because the defaults differ
//! between servers (3.10 to 4.x): the type (a vhost can have its own default), the delivery limit
//! (none before 4.0, 20 since), the overflow behaviour, the strategy of dead-lettering. Not given,
//! because the oldest supported server does not know it: a consumer timeout per queue.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use attune_bus::Topic;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use uuid::Uuid;

use crate::cause::Cause;
use crate::mark::{self, MARK};
use crate::options::{Endpoint, QueueType, RabbitOptions};

/// Practically no limit. The broker counts every unacknowledged delivery of a consumer that goes,
/// the whole prefetch window each time, so an error that lasts (a store that refuses to commit)
/// would take accepted messages for poison. What is poison, whoever reads it decides. Setting a
/// limit at all makes quorum queues put returned messages back in their old place, and since 4.0
/// the default is 20. (Since 4.0 -1 means none, which older servers refuse.)
const NO_DELIVERY_LIMIT: i64 = 1_000_000_000;
/// Of messages that somebody makes anew when they are gone: a dispatch is sent again, a snapshot
/// is followed by the next. Workers of others declare their pool's queue with this number.
const DELIVERY_LIMIT: i64 = 1_000;
/// What all queues but the dead letters' were declared with before there was
/// [`NO_DELIVERY_LIMIT`].
const OLD_DELIVERY_LIMIT: i64 = 1_000;
/// What a queue of one subscriber (broadcasts, answers) may hold.
const OWN_QUEUE_BYTES: i64 = 64 << 20;
/// What the queue of statistics may hold.
const STATS_BYTES: i64 = 16 << 20;

const DELIVERY_LIMIT_ARGUMENT: &str = "x-delivery-limit";
const EXCHANGE: &str = "attune.executions";
const DEAD_LETTERS: &str = "attune.dead-letters";

/// Names and arguments for one set of options.
#[derive(Debug)]
pub(crate) struct Topology {
    prefix: String,
    vhost: String,
    /// The id of the system whose messages these are, once it is known.
    system: OnceLock<Uuid>,
    queue_type: QueueType,
    max_queue_bytes: i64,
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
struct QueuePlan {
    name: ShortString,
    options: QueueDeclareOptions,
    arguments: FieldTable,
    /// Exchange and key; none for the default exchange, where every queue is bound by its name.
    binding: Option<(ShortString, ShortString)>,
}

impl Topology {
    pub(crate) fn of(options: &RabbitOptions) -> Self {
        Self {
            prefix: options.prefix.clone(),
            vhost: Endpoint::of(options).map_or_else(|_| String::new(), |it| it.uri.vhost),
            system: OnceLock::new(),
            queue_type: options.queue_type,
            max_queue_bytes: i64::try_from(options.max_queue_bytes).unwrap_or(i64::MAX),
            old: Mutex::default(),
        }
    }

    /// The exchange and routing key by which messages of a topic are published.
    ///
    /// # Errors
    /// When a name is too long for the protocol.
    pub(crate) fn route(&self, topic: &Topic) -> Result<(ShortString, ShortString), Cause> {
        let exchange = match topic {
            Topic::DeadLetters => format!("{}{DEAD_LETTERS}", self.prefix),
            // The default exchange leads to the queue whose name is the routing key.
            Topic::Reply(_) => String::new(),
            _ => format!("{}{EXCHANGE}", self.prefix),
        };
        Ok((short(exchange)?, short(topic.routing_key())?))
    }

    /// Declares what every service needs: the exchange for messages, and the exchange and queue
    /// of dead letters, so that no message can be dead-lettered into nothing.
    ///
    /// The exchange has no alternate exchange: a message that takes that way is not returned to
    /// its publisher although it is `mandatory`, and its confirm says that all went well. Here
    /// the publisher itself must learn that nobody has declared the topic.
    pub(crate) async fn declare_base(&self, channel: &Channel) -> Result<(), Cause> {
        for (name, kind) in [
            (EXCHANGE, ExchangeKind::Topic),
            (DEAD_LETTERS, ExchangeKind::Fanout),
        ] {
            let name = short(format!("{}{name}", self.prefix))?;
            let options = ExchangeDeclareOptions {
                durable: true,
                ..Default::default()
            };
            channel
                .exchange_declare(name.clone(), kind, options, FieldTable::default())
                .await
                .map_err(|error| Cause::of(&error).during(&format!("declaring exchange {name}")))?;
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
        let kept = self.plan(&Topic::DeadLetters)?;
        let name = format!("{}{MARK}", self.prefix);
        let plan = QueuePlan {
            name: short(name.clone())?,
            arguments: mark::arguments(kept.arguments, dead_letters.as_str(), system),
            binding: None,
            ..kept
        };
        let left = self.declare_queue(channel, plan).await;
        left.map_err(|cause| mark::refusal(cause, &name, &self.vhost, system))
    }

    /// Declares everything that a topic needs; answers the name of the queue to consume from.
    pub(crate) async fn declare(
        &self,
        channel: &Channel,
        topic: &Topic,
    ) -> Result<ShortString, Cause> {
        self.declare_base(channel).await?;
        let plan = self.plan(topic)?;
        let name = plan.name.clone();
        self.declare_queue(channel, plan).await?;
        Ok(name)
    }

    /// Finds out whether answers may be sent: sends one that nobody gets. The right to publish through
    /// the default exchange is one of its own, and who lacks it loses its connection with every answer.
    pub(crate) async fn may_answer(&self, channel: &Channel) -> Result<(), Cause> {
        let nobody = Topic::Reply(format!("attune.reply.nobody-{}", Uuid::now_v7()));
        let (exchange, key) = self.route(&nobody)?;
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
            .map_err(|error| Cause::of(&error).during("sending answers (write on `amq.default`)"))
    }

    /// The names of what [`declare`](Self::declare) leaves behind for these topics.
    pub(crate) fn declared(&self, topics: &[Topic]) -> Result<Declared, Cause> {
        let kept = topics
            .iter()
            .filter(|topic| Self::keeps(topic))
            .chain([&Topic::DeadLetters]);
        let queues = kept.map(|topic| short(self.queue_name(topic)));
        let queues = queues.chain([short(format!("{}{MARK}", self.prefix))]);
        let exchanges =
            [EXCHANGE, DEAD_LETTERS].map(|name| short(format!("{}{name}", self.prefix)));
        Ok(Declared {
            queues: queues.collect::<Result<_, _>>()?,
            exchanges: exchanges.into_iter().collect::<Result<_, _>>()?,
        })
    }

    /// Whether a topic has a queue that outlives its subscribers.
    pub(crate) fn keeps(topic: &Topic) -> bool {
        topic.must_route()
    }

    async fn declare_queue(&self, channel: &Channel, plan: QueuePlan) -> Result<(), Cause> {
        let QueuePlan {
            name,
            options,
            arguments,
            binding,
        } = plan;
        let declaring = |error| Cause::of(&error).during(&format!("declaring queue {name}"));
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

    fn plan(&self, topic: &Topic) -> Result<QueuePlan, Cause> {
        let (exchange, key) = self.route(topic)?;
        if key.as_str().contains(['*', '#']) && *topic != Topic::Events {
            // In the key of a binding they are wildcards: one pool would get the work of all.
            return Err(Cause::refused(format!(
                "{key}: `*` and `#` are not allowed in names"
            )));
        }
        let options = match Self::keeps(topic) {
            true => QueueDeclareOptions {
                durable: true,
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
            binding: (!exchange.as_str().is_empty()).then_some((exchange, key)),
        })
    }

    fn queue_name(&self, topic: &Topic) -> String {
        let name = match topic {
            Topic::Enforcements => "attune.enforcements".to_owned(),
            Topic::Commands(_) | Topic::Control(_) => format!("attune.{}", topic.routing_key()),
            Topic::Requested(pool) => format!("attune.requested.{pool}"),
            Topic::Completed => "attune.completed".to_owned(),
            Topic::QueueStats => "attune.queue-stats".to_owned(),
            Topic::DeadLetters => DEAD_LETTERS.to_owned(),
            // A new name each time: the broker may not have noticed yet that the connection of
            // an earlier one is gone.
            Topic::Cancel => format!("attune.cancel.{}", Uuid::now_v7()),
            Topic::HandedOver => format!("attune.handed-over.{}", Uuid::now_v7()),
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
        let quorum = Self::keeps(topic) && self.queue_type == QueueType::Quorum;
        set(
            "x-queue-type",
            text(if quorum { "quorum" } else { "classic" }),
        );
        let (bound, overflow) = match topic {
            // A subscriber that does not read must not make the broker refuse what is meant for
            // all; what is dropped here is of use for a moment only, and asked for again.
            Topic::Cancel
            | Topic::HandedOver
            | Topic::Event(_)
            | Topic::Events
            | Topic::Reply(_) => (OWN_QUEUE_BYTES, "drop-head"),
            // A newer snapshot of a queue replaces the older ones, so the oldest are the right
            // ones to lose, and a stopped stats daemon must never hold up an executor.
            Topic::QueueStats => (STATS_BYTES, "drop-head"),
            // Nothing that was confirmed is dropped; the publisher is told that it is full.
            _ => (self.max_queue_bytes, "reject-publish"),
        };
        set("x-max-length-bytes", AMQPValue::LongLongInt(bound));
        set("x-overflow", text(overflow));
        if quorum {
            let limit = match topic {
                Topic::Requested(_) | Topic::QueueStats => DELIVERY_LIMIT,
                _ if old => OLD_DELIVERY_LIMIT,
                _ => NO_DELIVERY_LIMIT,
            };
            set(DELIVERY_LIMIT_ARGUMENT, AMQPValue::LongLongInt(limit));
        }
        if matches!(
            topic,
            Topic::Enforcements | Topic::Commands(_) | Topic::Control(_)
        ) {
            // One consumer at a time, for order. It is no mutual exclusion (a stopped process
            // wakes up and goes on with what it had prefetched): that is what epochs are for.
            set("x-single-active-consumer", AMQPValue::Boolean(true));
        }
        let dead_letters =
            Self::keeps(topic) && !matches!(topic, Topic::DeadLetters | Topic::QueueStats);
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
mod tests {
    use attune_bus::BusError;
    use attune_core::PartitionId;
    use attune_core::policy::EventKind;

    use super::*;

    /// One line per topic: queue, binding, flags, arguments.
    fn table(queue_type: QueueType) -> String {
        let mut options = RabbitOptions::new("amqp://127.0.0.1");
        options.queue_type = queue_type;
        options.prefix = "t.".to_owned();
        let topology = Topology::of(&options);
        let mut lines = Vec::new();
        for topic in [
            Topic::Enforcements,
            Topic::Commands(PartitionId(7)),
            Topic::Control(PartitionId(12)),
            Topic::Requested("gpu".to_owned()),
            Topic::Completed,
            Topic::QueueStats,
            Topic::DeadLetters,
            Topic::Reply("somebody".to_owned()),
            Topic::Cancel,
            Topic::HandedOver,
            Topic::Event(EventKind::LimitChanged),
            Topic::Events,
        ] {
            let plan = topology.plan(&topic).unwrap();
            let name = match topic {
                Topic::Cancel => plan.name.as_str()[..16].to_owned(),
                Topic::HandedOver => plan.name.as_str()[..21].to_owned(),
                Topic::Event(_) | Topic::Events => plan.name.as_str()[..16].to_owned(),
                _ => plan.name.to_string(),
            };
            let (exchange, key) = plan.binding.unwrap_or_default();
            let mut line = format!("{name} <- {exchange}/{key}");
            for (flag, set) in [
                ("durable", plan.options.durable),
                ("exclusive", plan.options.exclusive),
                ("auto-delete", plan.options.auto_delete),
            ] {
                if set {
                    line += &format!(" {flag}");
                }
            }
            for (name, value) in plan.arguments.inner() {
                let name = name.as_str().trim_start_matches("x-");
                line += &match value {
                    AMQPValue::LongString(text) => format!(" {name}={text}"),
                    AMQPValue::LongLongInt(number) => format!(" {name}={number}"),
                    other => format!(" {name}={other:?}"),
                };
            }
            lines.push(line);
        }
        lines.join("\n")
    }

    #[test]
    fn quorum_queues() {
        let limited = |limit| {
            format!(
                "dead-letter-exchange=t.attune.dead-letters dead-letter-strategy=at-least-once \
                 delivery-limit={limit} max-length-bytes=1073741824 overflow=reject-publish \
                 queue-type=quorum"
            )
        };
        let (work, pool) = (limited("1000000000"), limited("1000"));
        let active = "single-active-consumer=Boolean(true)";
        let own = "exclusive auto-delete max-length-bytes=67108864 overflow=drop-head \
                   queue-type=classic";
        let expected = [
            format!(
                "t.attune.enforcements <- t.attune.executions/enforcement.created durable {work} \
                 {active}"
            ),
            format!(
                "t.attune.partition.07.commands <- t.attune.executions/partition.07.commands \
                 durable {work} {active}"
            ),
            format!(
                "t.attune.partition.12.control <- t.attune.executions/partition.12.control durable \
                 {work} {active}"
            ),
            format!(
                "t.attune.requested.gpu <- t.attune.executions/execution.requested.gpu durable \
                 {pool}"
            ),
            format!("t.attune.completed <- t.attune.executions/execution.completed durable {work}"),
            "t.attune.queue-stats <- t.attune.executions/queue.stats durable delivery-limit=1000 \
             max-length-bytes=16777216 overflow=drop-head queue-type=quorum"
                .to_owned(),
            "t.attune.dead-letters <- t.attune.dead-letters/dead-letters durable \
             delivery-limit=1000000000 max-length-bytes=1073741824 overflow=reject-publish \
             queue-type=quorum"
                .to_owned(),
            format!("somebody <- / {own}"),
            format!("t.attune.cancel. <- t.attune.executions/execution.cancel {own}"),
            format!("t.attune.handed-over. <- t.attune.executions/partition.handed_over {own}"),
            format!("t.attune.events. <- t.attune.executions/event.limit_changed {own}"),
            format!("t.attune.events. <- t.attune.executions/event.* {own}"),
        ];
        assert_eq!(table(QueueType::Quorum), expected.join("\n"));
    }

    #[test]
    fn classic_queues_have_no_arguments_that_only_quorum_queues_know() {
        let quorum_only = [
            " dead-letter-strategy=at-least-once",
            " delivery-limit=1000000000",
            " delivery-limit=1000",
        ];
        let mut expected =
            table(QueueType::Quorum).replace("queue-type=quorum", "queue-type=classic");
        for argument in quorum_only {
            expected = expected.replace(argument, "");
        }
        assert_eq!(table(QueueType::Classic), expected);
    }

    #[test]
    fn names_that_cannot_be_used_are_refused() {
        let topology = Topology::of(&RabbitOptions::new("amqp://127.0.0.1"));
        for pool in ["*".to_owned(), "a.#".to_owned(), "x".repeat(300)] {
            let cause = topology.plan(&Topic::Requested(pool)).err().unwrap();
            assert!(
                matches!(BusError::from(cause.clone()), BusError::Refused(_)),
                "{cause}"
            );
        }
    }
}
