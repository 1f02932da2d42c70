//! Why something did not work, in words for an operator.

use std::fmt;

use attune_bus::BusError;
use lapin::{Error, ErrorKind};

/// AMQP's reply codes that mean "not like this", by their numbers in the protocol. Not found is
/// none of them: whatever is used here was declared right before, so it is not up yet, or was
/// deleted at this moment and will be declared again.
const ACCESS_REFUSED: u16 = 403;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// What the broker said when it closed a channel. Its connection goes on.
#[derive(Debug, Clone)]
pub(crate) struct Closed {
    code: u16,
    pub(crate) text: String,
}

impl Closed {
    /// Reads lapin's error; `None` when it is about more than a channel.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let ErrorKind::ProtocolError(protocol) = error.kind() else {
            return None;
        };
        error.is_amqp_soft_error().then(|| Self {
            code: protocol.get_id(),
            text: protocol.get_message().to_string(),
        })
    }

    /// Whether the user may not do what it did.
    pub(crate) fn lacks_right(&self) -> bool {
        self.code == ACCESS_REFUSED
    }

    /// How large a message is that the broker does not take for its size, and how large one may be, in
    /// bytes.
    pub(crate) fn too_large(&self) -> Option<(usize, usize)> {
        let said = self.text.split_once("message size ")?.1;
        let mut numbers = said.split(' ').filter_map(|word| word.parse().ok());
        (self.code == PRECONDITION_FAILED).then_some(())?;
        numbers.next().zip(numbers.next())
    }
}

/// A failure: its text, and whether the broker is away or refuses.
#[derive(Debug, Clone)]
pub(crate) struct Cause {
    kind: Kind,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Trying again is right.
    Unavailable,
    /// The broker (or a rule of ours) says no, for one channel; its connection lives.
    Refused,
    /// The same, but another attempt on another channel is made differently.
    OnceMore,
}

impl Cause {
    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self {
            kind: Kind::Unavailable,
            text: text.into(),
        }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self {
            kind: Kind::Refused,
            text: text.into(),
        }
    }

    /// Reads lapin's error on a connection that was open.
    pub(crate) fn of(error: &Error) -> Self {
        let ErrorKind::ProtocolError(protocol) = error.kind() else {
            return Self::unavailable(plain(error));
        };
        let said = protocol.get_message().to_string();
        match protocol.get_id() {
            PRECONDITION_FAILED => Self::refused(format!(
                "it exists with other arguments; delete it when it is empty, or set what it was \
                 declared with ({said})"
            )),
            ACCESS_REFUSED => Self::refused(format!("the user lacks a permission ({said})")),
            RESOURCE_LOCKED => Self::refused(format!("it belongs to another connection ({said})")),
            _ => Self::unavailable(said),
        }
    }

    /// Reads lapin's error while it was connecting.
    pub(crate) fn of_connecting(error: &Error, place: &str, user: &str, vhost: &str) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(protocol) => {
                let said = protocol.get_message();
                match protocol.get_id() {
                    ACCESS_REFUSED => Self::refused(format!(
                        "{place} does not accept the user `{user}` with this password ({said})"
                    )),
                    NOT_ALLOWED => Self::refused(format!(
                        "{place} does not let the user `{user}` into the virtual host `{vhost}`: \
                         it does not exist, or there is no permission ({said})"
                    )),
                    _ => Self::unavailable(format!("{place}: {said}")),
                }
            }
            ErrorKind::IOError(io) if io.get_ref().is_some_and(|e| e.is::<rustls::Error>()) => {
                Self::refused(format!("{place}: TLS: {io}"))
            }
            _ => Self::unavailable(format!("{place}: {}", plain(error))),
        }
    }

    /// Whether the broker has this argument of a queue with another value.
    pub(crate) fn is_about_argument(&self, name: &str) -> bool {
        self.kind == Kind::Refused && self.text.contains(&format!("inequivalent arg '{name}'"))
    }

    /// Whether the user may not do what was asked.
    pub(crate) fn lacks_right(&self) -> bool {
        self.kind == Kind::Refused && self.text.contains("the user lacks a permission")
    }

    /// Asks for another attempt at once, on another channel.
    pub(crate) fn once_more(self) -> Self {
        Self {
            kind: Kind::OnceMore,
            ..self
        }
    }

    pub(crate) fn wants_another_attempt(&self) -> bool {
        self.kind == Kind::OnceMore
    }

    /// Says during what it happened.
    pub(crate) fn during(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Cause> for BusError {
    fn from(cause: Cause) -> Self {
        match cause.kind {
            Kind::Unavailable => Self::Unavailable(cause.text),
            Kind::Refused | Kind::OnceMore => Self::Refused(cause.text),
        }
    }
}

/// The error without lapin's own prefix.
fn plain(error: &Error) -> String {
    match error.kind() {
        ErrorKind::IOError(io) => io.to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_the_broker_does_not_take_is_read() {
        for (code, text, expected) in [
            (
                PRECONDITION_FAILED,
                "PRECONDITION_FAILED - message size 20 is larger than configured max size 10",
                Some((20, 10)),
            ),
            (
                PRECONDITION_FAILED,
                "PRECONDITION_FAILED - message size 20 is larger than max size 10",
                Some((20, 10)),
            ),
            (PRECONDITION_FAILED, "PRECONDITION_FAILED - no", None),
            (
                ACCESS_REFUSED,
                "message size 20 is larger than max size 10",
                None,
            ),
        ] {
            let text = text.to_owned();
            assert_eq!(Closed { code, text }.too_large(), expected);
        }
    }
}
