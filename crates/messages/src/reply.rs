//! Where answers may go.

use attune_core::Reject;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest name that a message may carry, in bytes: a reply address, the name of a header.
/// It is what AMQP can write down.
pub const MAX_NAME_BYTES: usize = 255;
/// What RabbitMQ's way of answering without a queue makes of `amq.rabbitmq.reply-to`.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";
/// The key in such an address: a GUID.
const KEY_BYTES: usize = 16;
/// The header of a dead letter that was put back: which one, and which of its arrivals.
pub const PUT_BACK: &str = "x-attune-put-back";
/// How the broker names a queue that was declared without a name.
const SERVER_NAMED: &str = "amq.gen-";
/// How the addresses of clients begin that name their queues.
pub const REPLY_PREFIX: &str = "attune.reply.";

/// Whether RabbitMQ can have written this after [`DIRECT_REPLY`]: a process and a key, both in
/// base64 with a dot between them. The process is in Erlang's external term format (NEW_PID_EXT or
/// PID_EXT, <https://www.erlang.org/doc/apps/erts/erl_ext_dist.html>).
fn is_direct_reply(text: &str) -> bool {
    let Some((process, key)) = text.split_once('.') else {
        return false;
    };
    let (Ok(process), Ok(key)) = (STANDARD.decode(process), STANDARD.decode(key)) else {
        return false;
    };
    // The version of the format, the kind of the term, and the numbers after the node's name.
    let (rest, numbers) = match process.as_slice() {
        [131, 88, rest @ ..] => (rest, 12),
        [131, 103, rest @ ..] => (rest, 9),
        _ => return false,
    };
    // The node's name: an atom, with a length of two bytes or of one.
    let (length, rest) = match rest {
        [100 | 118, high, low, rest @ ..] => (u16::from_be_bytes([*high, *low]).into(), rest),
        [115 | 119, length, rest @ ..] => (usize::from(*length), rest),
        _ => return false,
    };
    let Some((name, after)) = rest.split_at_checked(length) else {
        return false;
    };
    // In place of the node there is its number.
    let number = name.strip_prefix(b"reply@").unwrap_or_default();
    let is_number = matches!(number.len(), 1..=10) && number.iter().all(u8::is_ascii_digit);
    is_number && after.len() == numbers && key.len() == KEY_BYTES
}

/// Judges where a sender wants its answers. They are published with the rights of whoever
/// answers, to whatever queue has that name, also to one that is somebody else's: so only names that are
/// for answers are taken.
///
/// # Errors
/// [`Reject`] with the code `INVALID_INPUT` and the field `reply_to`.
pub fn reply_address(name: &str) -> Result<&str, Reject> {
    let refused = |why: String| Err(Reject::field("reply_to", why));
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return refused(format!(
            "a queue's name has 1 to {MAX_NAME_BYTES} bytes, this one has {}",
            name.len()
        ));
    }
    if name.starts_with(REPLY_PREFIX) {
        return Ok(name);
    }
    if let Some(rest) = name.strip_prefix(DIRECT_REPLY) {
        // The broker closes the connection of whoever publishes to one that it cannot read.
        return if is_direct_reply(rest) {
            Ok(name)
        } else {
            refused(format!(
                "`{DIRECT_REPLY}` is not followed by what the broker writes there"
            ))
        };
    }
    if name.starts_with(SERVER_NAMED) {
        return Ok(name);
    }
    refused(format!(
        "answers go to queues whose names begin with `{REPLY_PREFIX}`, to those that the broker names \
         (`{SERVER_NAMED}`), and to its direct replies (`{DIRECT_REPLY}`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As RabbitMQ 3.10 wrote it.
    const REAL: &str = "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOCBA==.x0CG/kA4uxdWhkIOrd7Z/g==";

    #[test]
    fn an_address_that_the_broker_cannot_read_is_refused() {
        assert_eq!(reply_address(REAL), Ok(REAL));
        for bad in [
            "amq.rabbitmq.reply-to.",
            "amq.rabbitmq.reply-to.x",
            "amq.rabbitmq.reply-to.AAAA.BBBB",
            "amq.rabbitmq.reply-to.g1h2AA==.xx",
            "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOCBA==",
            "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOCBA==.x0CG",
            // One byte less, and a name that is longer than the term.
            "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOC.x0CG/kA4uxdWhkIOrd7Z/g==",
            "amq.rabbitmq.reply-to.g1h2AP9yZXBseUA4ODk0MzY4NAAAHqMAAAAJawOCBA==.x0CG/kA4uxdWhkIOrd7Z/g==",
        ] {
            let reject = reply_address(bad).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some("reply_to"), "{bad}");
        }
    }
}
