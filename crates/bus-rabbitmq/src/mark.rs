//! The mark that a system leaves on its broker, so that no other one works there.
//!
//! Two systems with databases of their own that meet in one virtual host under one prefix would take
//! each other's messages, and accept into the one database what the other was asked for. So each
//! declares a queue of the same name, with its own id in an argument that the broker compares. Nobody
//! ever publishes there.

use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use crate::cause::Cause;

/// The name of the queue, behind the prefix.
pub(crate) const MARK: &str = "attune.cluster";
/// What the broker does with dead letters of that queue, of which there are none.
const ID: &str = "x-dead-letter-routing-key";

/// The arguments of the mark of a system: where dead letters go, and how such a queue is kept.
pub(crate) fn arguments(mut common: FieldTable, dead_letters: &str, system: Uuid) -> FieldTable {
    let text = |value: String| AMQPValue::LongString(value.into());
    let mut set = |name: &str, value: AMQPValue| {
        common.insert(name.into(), value);
    };
    set("x-max-length", AMQPValue::LongLongInt(1));
    set("x-dead-letter-exchange", text(dead_letters.to_owned()));
    set(ID, text(system.to_string()));
    common
}

/// What it means that the broker refuses the mark of a system.
pub(crate) fn refusal(cause: Cause, queue: &str, vhost: &str, system: Uuid) -> Cause {
    if !cause.is_about_argument(ID) {
        return cause;
    }
    Cause::refused(format!(
        "another system with a database of its own has its messages in the virtual host `{vhost}` \
         under this broker.prefix (the queue {queue} is its mark; this database has, in attune.system, \
         the id {system}). Give this one another broker.prefix or virtual host. Only if that system \
         is gone for good, with all that waits there: `rabbitmqctl -p {vhost} delete_queue {queue}` \
         ({cause})"
    ))
}
