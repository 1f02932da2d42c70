//! What is told of an action as it happens, to whoever listens.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something that happens to an action or its executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An execution was accepted.
    Accepted,
    /// A submission was refused by the owner of the action.
    Rejected,
    /// An execution was given a slot.
    Started,
    /// An execution has ended, other than by making room for a later one.
    Finished,
    /// A try has ended, and there is another.
    Retried,
    /// An execution has ended because the queue was full and a later one took its place.
    Dropped,
    /// An execution has ended because a later one of its group took its place.
    Replaced,
    /// The limit of the action is another one.
    LimitChanged,
    /// Operators hold the queue of the action.
    Paused,
    /// Nobody holds it any more.
    Resumed,
    /// A bulk operation about the action is over.
    OperationFinished,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Accepted,
        Self::Rejected,
        Self::Started,
        Self::Finished,
        Self::Retried,
        Self::Dropped,
        Self::Replaced,
        Self::LimitChanged,
        Self::Paused,
        Self::Resumed,
        Self::OperationFinished,
    ];

    /// Its name in policies, messages and routing keys.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Retried => "retried",
            Self::Dropped => "dropped",
            Self::Replaced => "replaced",
            Self::LimitChanged => "limit_changed",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::OperationFinished => "operation_finished",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EventKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            let shown: String = text.chars().take(64).collect();
            format!("{shown:?} is no event; there are {all}, and {ALL} for all of them")
        })
    }
}

/// The word for all events.
const ALL: &str = "all";

/// Which events are told of an action: written as a list of them, or as `[all]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events(u16);

impl Events {
    /// None.
    pub const NONE: Self = Self(0);
    /// All that there are, also those of later releases.
    pub const ALL: Self = Self(u16::MAX);

    /// Whether this one is told.
    #[must_use]
    pub fn contains(self, kind: EventKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether none is told.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl FromIterator<EventKind> for Events {
    fn from_iter<I: IntoIterator<Item = EventKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | kind.bit()))
    }
}

impl Serialize for Events {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if *self == Self::ALL {
            return [ALL].serialize(to);
        }
        let told = EventKind::ALL
            .into_iter()
            .filter(|kind| self.contains(*kind));
        to.collect_seq(told)
    }
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut events = Self::NONE;
        for name in Vec::<String>::deserialize(from)? {
            events.0 |= match name.as_str() {
                ALL => Self::ALL.0,
                name => name.parse::<EventKind>().map_err(D::Error::custom)?.bit(),
            };
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Events, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn events_are_written_as_they_are_read() {
        for (text, written) in [
            (r#"["all"]"#, r#"["all"]"#),
            (r#"["paused","all"]"#, r#"["all"]"#),
            ("[]", "[]"),
            (
                r#"["finished","accepted","finished"]"#,
                r#"["accepted","finished"]"#,
            ),
        ] {
            let events = read(text).unwrap();
            assert_eq!(serde_json::to_string(&events).unwrap(), written);
        }
        let some = read(r#"["limit_changed"]"#).unwrap();
        assert!(some.contains(EventKind::LimitChanged) && !some.contains(EventKind::Paused));
        assert!(
            EventKind::ALL
                .into_iter()
                .all(|kind| Events::ALL.contains(kind))
        );
    }

    #[test]
    fn what_is_no_event_is_refused_with_what_there_is() {
        for (text, said) in [
            (r#"["ended"]"#, "operation_finished"),
            (r#""all""#, "a sequence"),
            ("true", "a sequence"),
        ] {
            let words = read(text).unwrap_err();
            assert!(words.contains(said), "{words}");
        }
    }

    #[test]
    fn names_are_the_same_everywhere() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
    }
}
