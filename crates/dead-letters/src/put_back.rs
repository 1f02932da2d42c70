//! What putting a dead letter back means: pure.

use attune_bus::{Outgoing, Topic};
use attune_core::{PartitionId, Reject};
use attune_messages::v1::{OnReject, Submit};
use attune_messages::{Envelope, Message, PUT_BACK, encode};
use attune_store::DeadLetter;

/// The message that puts a letter with this body back: it is published as it came, but for [`OnReject`], under
/// the id that it came with. A submission keeps its request id and a completion its attempt, so that one which
/// was carried out after all changes nothing.
///
/// # Errors
/// `INVALID_INPUT` when nothing good can come of it, with the reason and the way out.
pub fn put_back(letter: &DeadLetter, body: Vec<u8>) -> Result<Outgoing, Reject> {
    let refused = |why: String| Err(Reject::field("id", why));
    if letter.truncated {
        return refused(format!(
            "only {} of its {} bytes are kept: send the message again from where it came",
            body.len(),
            letter.bytes
        ));
    }
    if is_dispatch(&letter.source) {
        return refused(
            "an earlier release told its workers with it what to run or to end. Nothing is lost: what \
             waits or runs is granted anew by its owner, and what has ended can be submitted again"
                .to_owned(),
        );
    }
    let envelope = match Envelope::parse(&body, usize::MAX) {
        Ok(envelope) => envelope,
        Err(error) => {
            return refused(format!(
                "it would come back at once: {error}; send a mended message instead"
            ));
        }
    };
    let Some(topic) = topic(&letter.source) else {
        return refused(format!(
            "nobody waits for what came from `{}`: it was of use for a moment only, or it is not \
             Attune's",
            letter.source
        ));
    };
    let body = recorded(&envelope).unwrap_or_else(|| body.clone());
    let mut message = Outgoing::new(topic, letter.message_id, body);
    // No copy of what it was before it came here, lest somebody who has seen one pass over it.
    let arrival = format!("{}.{}", letter.id, letter.arrivals);
    message.headers.push((PUT_BACK.to_owned(), arrival));
    Ok(message)
}

/// Whether a letter came from where earlier releases told workers what to do.
fn is_dispatch(source: &str) -> bool {
    source == "execution.cancel" || source.starts_with("execution.requested.")
}

/// A message of submissions, which are recorded when they are refused once more: whoever waited for
/// the answer is gone. `None` of any other message, which goes as it came.
fn recorded(envelope: &Envelope<'_>) -> Option<Vec<u8>> {
    if envelope.message_type != Submit::TYPE {
        return None;
    }
    let mut items: Vec<Submit> = envelope.items().ok()?;
    for item in &mut items {
        item.on_reject = OnReject::Record;
        // An operator asks for it now.
        item.wait_bound = None;
    }
    Some(encode(envelope.message_id, envelope.timestamp, &items))
}

/// The topic that a letter came from, if what goes there is kept until it is used.
fn topic(source: &str) -> Option<Topic> {
    match source {
        "enforcement.created" => return Some(Topic::Enforcements),
        // Nobody keeps a letter that was put back: it goes where messages outlive the broker.
        "execution.completed" | "execution.completed.kept" => return Some(Topic::Completed),
        _ => {}
    }
    let (partition, kind) = source.strip_prefix("partition.")?.split_once('.')?;
    let digits = partition.bytes().all(|byte| byte.is_ascii_digit());
    let partition: u8 = partition.parse().ok().filter(|_| digits)?;
    let partition = PartitionId(u16::from(partition));
    match kind {
        "commands" | "calls" => Some(Topic::Commands(partition)),
        "control" | "control.kept" => Some(Topic::Control(partition)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn letter(source: &str) -> DeadLetter {
        DeadLetter {
            id: 1,
            message_id: Uuid::from_u128(7),
            reason: "no such action".to_owned(),
            source: source.to_owned(),
            bytes: 10,
            truncated: false,
            arrivals: 1,
            received_at: DateTime::<Utc>::UNIX_EPOCH,
            requeued_at: None,
            requeued_by: None,
            sender: None,
        }
    }

    fn message(kind: &str, payload: serde_json::Value) -> Vec<u8> {
        let message = json!({
            "message_id": Uuid::from_u128(7), "message_type": kind, "version": 1,
            "timestamp": "2026-01-02T03:04:05Z", "payload": payload,
        });
        message.to_string().into_bytes()
    }

    #[test]
    fn what_waits_for_somebody_goes_back_as_it_came() {
        let body = message("enforcement.created", json!({"action_ref": "a.b"}));
        for (source, topic) in [
            ("enforcement.created", Topic::Enforcements),
            ("execution.completed", Topic::Completed),
            ("partition.07.commands", Topic::Commands(PartitionId(7))),
            ("partition.128.control", Topic::Control(PartitionId(128))),
            ("execution.completed.kept", Topic::Completed),
            ("partition.07.calls", Topic::Commands(PartitionId(7))),
            ("partition.07.control.kept", Topic::Control(PartitionId(7))),
        ] {
            match put_back(&letter(source), body.clone()) {
                Ok(message) => {
                    assert!(message.topic.is_lasting());
                    assert_eq!((message.topic, &message.body[..]), (topic, &body[..]));
                    assert_eq!(message.message_id, Uuid::from_u128(7));
                    assert_eq!(message.reply_to, None);
                    let arrival = (PUT_BACK.to_owned(), "1.1".to_owned());
                    assert_eq!(message.headers, [arrival], "no copy of what it was");
                }
                other => panic!("{source}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_submission_that_is_refused_once_more_is_recorded() {
        let parameters = r#"{"n":12345678901234567890}"#;
        let item = format!(
            r#"{{"submission":{{"action_ref":"a.b","request_id":"{}","parameters":{parameters}}}}}"#,
            Uuid::from_u128(9)
        );
        let body = message("partition.submit", serde_json::from_str("[]").unwrap());
        let body = String::from_utf8(body).unwrap();
        let body = body.replace("\"payload\":[]", &format!("\"payload\":[{item},{item}]"));
        let letter = letter("partition.07.commands");
        let message = put_back(&letter, body.into_bytes()).unwrap();
        let envelope = Envelope::parse(&message.body, usize::MAX).unwrap();
        assert_eq!(envelope.message_id, Uuid::from_u128(7));
        let items: Vec<Submit> = envelope.items().unwrap();
        assert_eq!(items.len(), 2);
        for item in items {
            assert_eq!(item.on_reject, OnReject::Record);
            assert_eq!(item.submission.parameters.get(), parameters);
        }
    }

    #[test]
    fn what_an_earlier_release_told_its_workers_is_refused() {
        let items = json!([{"execution_id": 256, "attempt": 1}]);
        for (source, kind) in [
            ("execution.requested.default", "execution.requested"),
            ("execution.cancel", "execution.cancel"),
        ] {
            let body = message(kind, items.clone());
            let reject = put_back(&letter(source), body).unwrap_err();
            assert!(reject.message.contains("Nothing is lost"), "{reject}");
        }
    }

    #[test]
    fn what_would_come_back_or_is_cut_is_refused() {
        let good = || message("t", json!({}));
        let cut = DeadLetter {
            truncated: true,
            ..letter("enforcement.created")
        };
        for (letter, body, said) in [
            (cut, good(), "bytes are kept"),
            (letter("enforcement.created"), b"x".to_vec(), "come back"),
            (letter("queue.stats"), good(), "`queue.stats`"),
            (letter("unknown"), good(), "`unknown`"),
            (letter("partition.300.commands"), good(), "partition.300"),
            (letter("partition.07.other"), good(), "partition.07.other"),
        ] {
            let reject = put_back(&letter, body).unwrap_err();
            assert!(reject.message.contains(said), "{said} in {reject}");
        }
    }
}
