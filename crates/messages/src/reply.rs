//! Where answers may go.

use attune_core::Reject;

/// The longest name that a message may carry, in bytes: a reply address, the name of a header.
/// It is what AMQP can write down.
pub const MAX_NAME_BYTES: usize = 255;
/// What RabbitMQ's way of answering without a queue makes of `amq.rabbitmq.reply-to`.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";
/// How the addresses of Attune's own clients begin.
pub const REPLY_PREFIX: &str = "attune.reply.";

/// Judges where a sender wants its answers. They are published with the rights of whoever
/// answers, to whatever queue has that name; so a name that may be one of Attune's own queues is
/// refused, with or without a prefix before it, and so are names of the broker's.
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
    if name.starts_with(DIRECT_REPLY) || name.starts_with(REPLY_PREFIX) {
        return Ok(name);
    }
    if name.starts_with("amq.") && !name.starts_with("amq.gen-") {
        return refused("names that begin with `amq.` belong to the broker".to_owned());
    }
    if name.contains("attune.") {
        return refused(format!(
            "names with `attune.` in them belong to Attune; name a queue of your own, or let it \
             begin with `{REPLY_PREFIX}`"
        ));
    }
    Ok(name)
}
