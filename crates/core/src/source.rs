//! Where a submission comes from, as its client says.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Where a submission comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A person who waits for it.
    Interactive,
    /// A program.
    Api,
    /// Work that nobody waits for.
    Background,
}

/// A word that is not one of the sources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a source; use interactive, api or background")]
pub struct UnknownSource(String);

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Api, Self::Background];

    /// Its name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Api => "api",
            Self::Background => "background",
        }
    }
}

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|source| source.as_str() == text)
            .ok_or_else(|| UnknownSource(text.to_owned()))
    }
}

/// Written by hand for the same reason as that of [`Priority`](crate::Priority).
impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;

        impl Visitor<'_> for Words {
            type Value = Source;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one of `interactive`, `api`, `background`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Source, E> {
                let found = text.parse();
                found.map_err(|_| de::Error::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(Words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for source in Source::ALL {
            assert_eq!(source.as_str().parse(), Ok(source));
            let text = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<Source>(&text).unwrap(), source);
        }
        assert!("human".parse::<Source>().is_err());
        let said = serde_json::from_str::<Source>("7").unwrap_err().to_string();
        assert!(said.contains("one of `interactive`"), "{said}");
    }
}
