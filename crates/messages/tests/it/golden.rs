//! Golden files: messages of each type and version that must decode for ever, and are written
//! exactly so today.

use std::collections::BTreeSet;

use attune_core::{Attempt, PartitionId, Priority, Status};
use attune_messages::decode_batch;
use attune_messages::v1::{Answer, AnswerOutcome, ExecutionCompleted, OnReject, Submit};
use attune_messages::v2::{Section, WorkerReport};
use serde_json::Value;

use super::{MAX_BYTES, golden, golden_folder, golden_name, types};

fn value(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

#[test]
fn golden_files_decode_and_are_written_again_as_they_are() {
    for (message_type, decode) in types() {
        for (form, items) in [("", 1..=1), (".batch", 2..=9)] {
            let body = golden(message_type, form);
            let decoded =
                decode(&body).unwrap_or_else(|error| panic!("{message_type}{form}: {error}"));
            assert!(
                items.contains(&decoded.items),
                "{message_type}{form}: {}",
                decoded.items
            );
            assert_eq!(
                value(&decoded.encoded),
                value(&body),
                "{message_type}{form}"
            );
            assert_eq!(
                value(&decoded.encoded_raw),
                value(&body),
                "{message_type}{form}"
            );
        }
    }
}

#[test]
fn every_golden_file_belongs_to_a_type() {
    let expected: BTreeSet<_> = types()
        .iter()
        .flat_map(|(message_type, _)| ["", ".batch"].map(|form| golden_name(message_type, form)))
        .collect();
    let found: BTreeSet<_> = std::fs::read_dir(golden_folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn golden_values_arrive_in_their_fields() {
    let submits: Vec<Submit> =
        decode_batch(&golden("partition.submit", ".batch"), MAX_BYTES).unwrap();
    assert_eq!(submits[0].on_reject, OnReject::Record);
    let full = &submits[1].submission;
    assert_eq!(
        (full.action_ref.as_str(), full.priority),
        ("core.http.get", Some(Priority::High))
    );
    assert_eq!(full.labels["team"], "billing");
    assert_eq!(full.check(), Ok(()));

    let completions: Vec<ExecutionCompleted> =
        decode_batch(&golden("execution.completed", ".batch"), MAX_BYTES).unwrap();
    let first = &completions[0].0;
    assert_eq!(
        (first.attempt, first.status),
        (Attempt(1), Status::Succeeded)
    );
    // The partition of an execution is in its id, and is the one of its action.
    assert_eq!(
        first.execution_id.partition(),
        PartitionId::of("core.http.get", 16)
    );
    assert_eq!(first.partition, Some(first.execution_id.partition()));

    let sections: Vec<Section> =
        decode_batch(&golden("execution.requested", ".batch"), MAX_BYTES).unwrap();
    let first = &sections[0];
    let sync: Vec<_> = first.sync.iter().flatten().map(|key| key.pair()).collect();
    assert_eq!(sync, [(first.cancel[0].execution_id, Attempt(1))]);
    assert_eq!(first.settled.len(), 1);
    assert_eq!(first.grants[0].env["BILLING_STAGE"], "test".into());
    assert_eq!(first.grants[0].key().1, Attempt(2));
    // One that holds nothing is not one that says nothing about it.
    assert_eq!(sections[1].sync.as_deref(), Some(&[][..]));
    let plain: Vec<Section> = decode_batch(&golden("execution.requested", ""), MAX_BYTES).unwrap();
    assert_eq!((plain[0].number, plain[0].sync.is_none()), (4, true));
    let reports: Vec<WorkerReport> =
        decode_batch(&golden("worker.report", ".batch"), MAX_BYTES).unwrap();
    assert_eq!((reports[0].elsewhere, reports[0].returned.len()), (3, 2));
    assert_eq!(reports[0].resync, [PartitionId(13), PartitionId(2)]);

    let answers: Vec<Answer> =
        decode_batch(&golden("command.answer", ".batch"), MAX_BYTES).unwrap();
    match &answers[1].outcome {
        AnswerOutcome::Rejected(reject) => assert_eq!(reject.retry_after_seconds, Some(1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grant_with_a_trace_that_cannot_be_read_is_one_without() {
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let said = [
        (Value::from(given), Some(given.to_owned())),
        (Value::from("00-what"), None),
        (Value::from(7), None),
        (Value::Null, None),
    ];
    for (said, expected) in said {
        let mut body = value(&golden("execution.requested", ""));
        body["payload"]["grants"][0]["traceparent"] = said;
        let body = body.to_string();
        let sections: Vec<Section> = decode_batch(body.as_bytes(), MAX_BYTES).unwrap();
        let trace = sections[0].grants[0].traceparent;
        assert_eq!(trace.map(|trace| trace.to_string()), expected);
        let written = serde_json::to_value(&sections[0].grants[0]).unwrap();
        let written = written.get("traceparent").and_then(Value::as_str);
        assert_eq!(written, expected.as_deref());
    }
}

#[test]
fn what_may_be_left_out_has_its_default() {
    let submit: Vec<Submit> = decode_batch(
        br#"{"message_id":"0198c1f0-5a00-7000-8000-000000000001","message_type":"partition.submit",
            "version":1,"timestamp":"2026-01-02T03:04:05+02:00",
            "payload":{"submission":{"action_ref":"core.echo"}}}"#,
        MAX_BYTES,
    )
    .unwrap();
    assert_eq!(submit[0].on_reject, OnReject::Answer);
    assert_eq!(submit[0].submission.parameters.get(), "{}");
    assert_eq!(submit[0].submission.priority, None);
}

#[test]
fn parameters_are_kept_as_they_were_written() {
    // Precision that a double does not have, the order of keys and repeated keys survive.
    let parameters = r#"{"b":1, "a":123456789012345678901234567890.10, "b":2}"#;
    let body = format!(
        r#"{{"message_id":"0198c1f0-5a00-7000-8000-000000000001","message_type":"partition.submit",
           "version":1,"timestamp":"2026-01-02T03:04:05Z","payload":
             [{{"submission":{{"action_ref":"core.echo","parameters":{parameters}}}}}]}}"#
    );
    let submits: Vec<Submit> = decode_batch(body.as_bytes(), MAX_BYTES).unwrap();
    assert_eq!(submits[0].submission.parameters.get(), parameters);
}
