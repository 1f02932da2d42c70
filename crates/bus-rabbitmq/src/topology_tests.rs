//! Names, arguments and flags, one line per topic.

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
        Topic::Calls(PartitionId(7)),
        Topic::Control(PartitionId(12)),
        Topic::ControlKept(PartitionId(12)),
        Topic::Completed,
        Topic::CompletedKept,
        Topic::QueueStats,
        Topic::DeadLetters,
        Topic::Reply("somebody".to_owned()),
        Topic::HandedOver,
        Topic::Event(EventKind::LimitChanged),
        Topic::Events,
        Topic::Hello,
        Topic::link("gpu", WorkerId(Uuid::from_u128(1))),
        Topic::Reports(OwnerId(Uuid::from_u128(2))),
    ] {
        let plan = topology.plan(&topic).unwrap();
        let name = match topic {
            Topic::HandedOver => plan.name.as_str()[..21].to_owned(),
            Topic::Event(_) | Topic::Events => plan.name.as_str()[..16].to_owned(),
            Topic::Hello => plan.name.as_str()[..15].to_owned(),
            Topic::Link(..) => plan.name.as_str()[..57].to_owned(),
            Topic::Reports(_) => plan.name.as_str()[..55].to_owned(),
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
    let work = limited("1000000000");
    let passing = "dead-letter-exchange=t.attune.dead-letters max-length-bytes=1073741824 \
                   overflow=reject-publish queue-type=classic";
    let active = "single-active-consumer=Boolean(true)";
    let own = "exclusive auto-delete max-length-bytes=67108864 overflow=drop-head \
               queue-type=classic";
    let direct = own.replace("drop-head", "reject-publish");
    let [one, two] = [1, 2].map(Uuid::from_u128);
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
            "t.attune.partition.07.calls <- t.attune.executions/partition.07.calls durable \
             {passing} {active}"
        ),
        format!(
            "t.attune.partition.12.control <- t.attune.executions/partition.12.control durable \
             {work} {active}"
        ),
        format!(
            "t.attune.partition.12.control.kept <- \
             t.attune.executions/partition.12.control.kept durable {passing} {active}"
        ),
        format!("t.attune.completed <- t.attune.executions/execution.completed durable {work}"),
        format!(
            "t.attune.completed.kept <- t.attune.executions/execution.completed.kept durable \
             {passing}"
        ),
        "t.attune.queue-stats <- t.attune.executions/queue.stats durable delivery-limit=1000 \
         max-length-bytes=16777216 overflow=drop-head queue-type=quorum"
            .to_owned(),
        "t.attune.dead-letters <- t.attune.dead-letters/dead-letters durable \
         delivery-limit=1000000000 max-length-bytes=1073741824 overflow=reject-publish \
         queue-type=quorum"
            .to_owned(),
        format!("somebody <- / {own}"),
        format!("t.attune.handed-over. <- t.attune.executions/partition.handed_over {own}"),
        format!("t.attune.events. <- t.attune.executions/event.limit_changed {own}"),
        format!("t.attune.events. <- t.attune.executions/event.* {own}"),
        format!("t.attune.hello. <- t.attune.executions/worker.hello {own}"),
        format!("t.attune.worker.gpu.{one}. <- t.attune.lives/gpu.{one} {direct}"),
        format!("t.attune.executor.{two}. <- t.attune.reports/{two} {direct}"),
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
    let mut expected = table(QueueType::Quorum).replace("queue-type=quorum", "queue-type=classic");
    for argument in quorum_only {
        expected = expected.replace(argument, "");
    }
    assert_eq!(table(QueueType::Classic), expected);
}

#[test]
fn a_name_that_is_too_long_is_refused() {
    let topology = Topology::of(&RabbitOptions::new("amqp://127.0.0.1"));
    let address = "x".repeat(300);
    let cause = topology.plan(&Topic::Reply(address)).err().unwrap();
    assert!(
        matches!(BusError::from(cause.clone()), BusError::Refused(_)),
        "{cause}"
    );
}
