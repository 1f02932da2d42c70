//! The five priorities.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A higher priority goes first; within one, order is first in, first out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Goes before everything else.
    Critical,
    /// Goes before normal work.
    High,
    /// What a submission has unless it says otherwise.
    #[default]
    Normal,
    /// Goes after normal work.
    Low,
    /// Goes when nothing else waits.
    Background,
}

/// A word that is not one of the five priorities.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a priority; use critical, high, normal, low or background")]
pub struct UnknownPriority(String);

impl Priority {
    /// All of them, the first to go first.
    pub const ALL: [Self; 5] = [
        Self::Critical,
        Self::High,
        Self::Normal,
        Self::Low,
        Self::Background,
    ];

    /// Its place among the priorities, 0 for the first; stored in this form.
    pub fn rank(self) -> u8 {
        self as u8
    }

    /// The priority at `rank`, or `None` above 4.
    pub fn from_rank(rank: u8) -> Option<Self> {
        Self::ALL.get(usize::from(rank)).copied()
    }

    /// Its name on the wire and in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
            Self::Background => "background",
        }
    }
}

/// Written by hand, because of a derived one the JSON reader says of `"priority": 5` that it is
/// no JSON.
impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Words)
    }
}

struct Words;

impl Visitor<'_> for Words {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of `critical`, `high`, `normal`, `low`, `background`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Priority, E> {
        let found = text.parse();
        found.map_err(|_| de::Error::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = UnknownPriority;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|priority| priority.as_str() == text)
            .ok_or_else(|| UnknownPriority(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ranks_round_trip() {
        for priority in Priority::ALL {
            assert_eq!(priority.as_str().parse(), Ok(priority));
            assert_eq!(Priority::from_rank(priority.rank()), Some(priority));
        }
        assert_eq!(Priority::from_rank(5), None);
        assert!("urgent".parse::<Priority>().is_err());
    }
}
