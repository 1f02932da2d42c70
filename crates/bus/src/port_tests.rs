//! Addresses of answers.

use super::*;

#[test]
fn answers_go_to_queues_of_the_asker_only() {
    let longest = format!("{:q<MAX_NAME_BYTES$}", "attune.reply.");
    for fine in [
        "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOCBA==.x0CG/kA4uxdWhkIOrd7Z/g==",
        "amq.gen-JzTY20BRgKO",
        "attune.reply.0198c1f0",
        &longest,
    ] {
        assert_eq!(reply_address(fine).unwrap(), fine);
    }
    let too_long = "q".repeat(MAX_NAME_BYTES + 1);
    let own = [
        Topic::Commands(PartitionId(3)),
        Topic::Calls(PartitionId(3)),
        Topic::ControlKept(PartitionId(3)),
        Topic::Control(PartitionId(3)),
    ];
    let mut refused = own.map(|topic| format!("attune.{topic}")).to_vec();
    refused.extend(
        [
            "",
            &too_long,
            "attune.enforcements",
            "attune.completed",
            "attune.completed.kept",
            "attune.dead-letters",
            "attune.queue-stats",
            "attune.handed-over.1",
            "attune.worker.1",
            // Of earlier releases, and perhaps still there.
            "attune.requested.default",
            "team-a.attune.completed",
            "amq.rabbitmq.trace",
            "my-answers",
            "somebody-elses-work",
        ]
        .map(str::to_owned),
    );
    for name in refused {
        let reject = reply_address(&name).unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("reply_to"), "{name}");
    }
}
