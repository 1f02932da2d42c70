//! What a message of completions may look like, and which of them reach their partition.

use super::mend::tests::completion;
use super::*;
use attune_messages::{Message, PUT_BACK, encode};
use uuid::Uuid;

const MAX: usize = 1 << 20;

fn message(kind: &str, version: u32, payload: &str) -> String {
    let id = Uuid::nil();
    format!(
        r#"{{"message_id":"{id}","message_type":"{kind}","version":{version},"timestamp":"2026-11-21T10:00:00Z","payload":{payload}}}"#
    )
}

#[test]
fn a_broken_item_leaves_the_others_alone() {
    let good = serde_json::to_string(&ExecutionCompleted(completion(1, 1))).unwrap();
    let payload = format!(r#"[{good}, {{"execution_id": "x"}}, 7, {good}]"#);
    let items = read(message("execution.completed", 1, &payload).as_bytes(), MAX).unwrap();
    assert!(items[0].is_ok() && items[3].is_ok() && items.len() == 4);
    let broken = items[1].as_ref().unwrap_err();
    assert_eq!(broken.item.get(), r#"{"execution_id": "x"}"#);
    assert!(
        broken.reason.starts_with("the item is not a completion: "),
        "{}",
        broken.reason
    );
    assert!(items[2].is_err());
}

#[test]
fn whole_messages_are_refused_for_what_they_are() {
    let item = r#"{"execution_id": 1}"#;
    for (body, said) in [
        ("nonsense".to_owned(), "not a message envelope"),
        (
            message("queue.stats", 1, "[]"),
            "`queue.stats` is not one of those expected",
        ),
        (message("execution.completed", 2, item), "version 2"),
        (message("execution.completed", 1, "[]"), "an empty batch"),
        (
            message("execution.completed", 1, item),
            "the payload is not a",
        ),
        (" ".repeat(MAX + 1), "at most 1048576 are allowed"),
    ] {
        let error = read(body.as_bytes(), MAX).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn one_item_alone_needs_no_array() {
    let body = encode(
        Uuid::nil(),
        chrono::Utc::now(),
        &[ExecutionCompleted(completion(1, 5))],
    );
    let items = read(&body, MAX).unwrap();
    assert_eq!(
        items[0].as_ref().unwrap().execution_id,
        completion(1, 5).execution_id
    );
    assert_eq!(ExecutionCompleted::TYPE, "execution.completed");
}

#[test]
fn what_a_worker_may_report_reaches_its_partition() {
    for status in Status::ALL {
        let given = Completion {
            status,
            ..completion(3, 7)
        };
        let decided = decide(&given, 4);
        if status.is_reportable() {
            assert_eq!(decided, Ok(PartitionId(3)));
        } else {
            assert_eq!(decided, Err(BadCompletion::Status(status)));
        }
    }
    let given = Completion {
        partition: Some(PartitionId(3)),
        ..completion(3, 7)
    };
    assert_eq!(decide(&given, 4), Ok(PartitionId(3)));
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let good = completion(3, 7);
    let id = good.execution_id;
    let cases = [
        (
            Completion {
                execution_id: ExecutionId(-256),
                ..good.clone()
            },
            "`execution_id` -256 is not the id of an execution; take it from the request"
                .to_owned(),
        ),
        (
            Completion {
                attempt: Attempt(0),
                ..good.clone()
            },
            "`attempt` is 0; attempts count from 1, take it from the request".to_owned(),
        ),
        (
            Completion {
                partition: Some(PartitionId(2)),
                ..good.clone()
            },
            format!("`partition` is 2, but `execution_id` {id} belongs to 3; leave it out"),
        ),
        (
            Completion {
                worker: None,
                ..good.clone()
            },
            "`worker` is missing; it is the id under which the worker was granted the attempt"
                .to_owned(),
        ),
        (
            completion(4, 7),
            format!(
                "`execution_id` {} is of partition 4, and the cluster has 4 of them",
                completion(4, 7).execution_id
            ),
        ),
    ];
    for (bad, reason) in cases {
        assert_eq!(decide(&bad, 4).unwrap_err().to_string(), reason);
    }
}

#[test]
fn an_end_says_who_has_reported_it_and_not_who_it_says() {
    let senders = Senders {
        required: true,
        own: Some("attune-listener".to_owned()),
        impersonators: ["attune-api".to_owned()].into(),
        ..Senders::default()
    };
    let rules = Completions {
        partitions: 4,
        senders,
    };
    let claimed = Completion {
        broker_user: Some("another".to_owned()),
        ..completion(3, 7)
    };
    let body = encode(
        Uuid::nil(),
        chrono::Utc::now(),
        &[ExecutionCompleted(claimed)],
    );
    let said = |user: Option<&str>, is_put_back: bool| {
        let put_back = (PUT_BACK.to_owned(), "7.1".to_owned());
        let arrived = Arrived {
            id: crate::DeliveryId(1),
            body: body.clone().into(),
            message_id: None,
            reply_to: None,
            user: user.map(str::to_owned),
            headers: Vec::from_iter(is_put_back.then_some(put_back)),
        };
        match rules.read(&arrived, MAX) {
            Read::Items(items) => match items.as_slice() {
                [Item::Forward { item, .. }] => {
                    let read: SlotRelease = serde_json::from_str(item.get()).unwrap();
                    Ok(read.0.broker_user)
                }
                _ => panic!("one item goes on"),
            },
            Read::Garbage(reason) => Err(reason),
            Read::Newer => panic!("it can be read"),
        }
    };
    let by = |name: &str| Ok(Some(name.to_owned()));
    assert_eq!(said(Some("gpu"), false), by("gpu"));
    assert_eq!(said(Some("gpu"), true), by("gpu"));
    // What was judged before, what the API says for its own workers, and what is put back.
    assert_eq!(said(Some("attune-listener"), false), by("another"));
    assert_eq!(said(Some("attune-api"), false), by("attune-api"));
    assert_eq!(said(Some("attune-api"), true), Ok(None));
    assert_eq!(said(None, false), Err(Senders::MISSING.to_owned()));
}
