//! Takes a message apart into completions.

use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_messages::{DecodeError, Envelope};
use serde_json::value::RawValue;

/// One item of a message: a completion, or what is there instead and why it is none.
pub(crate) type Item = Result<Completion, Unreadable>;

/// An item that is not a completion.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) item: Box<RawValue>,
    pub(crate) reason: String,
}

/// The items of a message of at most `max_bytes`, at least one. Each stands for itself: one
/// that cannot be read does not take the others with it, whose slots would never be released.
///
/// # Errors
/// When the message as a whole cannot be read.
pub(crate) fn read(body: &[u8], max_bytes: usize) -> Result<Vec<Item>, DecodeError> {
    let envelope = Envelope::parse(body, max_bytes)?;
    match envelope.items::<ExecutionCompleted>() {
        Ok(items) => Ok(items
            .into_iter()
            .map(|ExecutionCompleted(item)| Ok(item))
            .collect()),
        Err(error @ DecodeError::Payload { .. }) => {
            match serde_json::from_str::<Vec<Box<RawValue>>>(envelope.payload.get()) {
                Ok(items) => Ok(items.into_iter().map(read_item).collect()),
                // A single item, and that is not one.
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn read_item(item: Box<RawValue>) -> Item {
    match serde_json::from_str(item.get()) {
        Ok(ExecutionCompleted(completion)) => Ok(completion),
        Err(error) => {
            let reason = format!("the item is not a completion: {error}");
            Err(Unreadable { item, reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mend::tests::completion;
    use super::*;
    use attune_messages::{Message, encode};
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
}
