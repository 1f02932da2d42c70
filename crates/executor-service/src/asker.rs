//! Who waits for an answer, and to which message.

use std::sync::Arc;

use uuid::Uuid;

/// Stands between the two; no id has it in it.
const BETWEEN: char = ' ';

/// The words for it that the owner passes on.
pub(crate) fn asker(message_id: Uuid, address: &str) -> Arc<str> {
    format!("{message_id}{BETWEEN}{address}").into()
}

/// The message and the address in those words.
pub(crate) fn parts(asker: &str) -> Option<(Uuid, &str)> {
    let (message_id, address) = asker.split_once(BETWEEN)?;
    Some((message_id.parse().ok()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_come_back() {
        let id = Uuid::now_v7();
        for address in ["attune.reply.x", "amq.rabbitmq.reply-to.g1h.a b=="] {
            assert_eq!(parts(&asker(id, address)), Some((id, address)));
        }
        assert_eq!(parts("somebody"), None);
    }
}
