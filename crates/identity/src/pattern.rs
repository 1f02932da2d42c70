//! Patterns over the refs of actions and the names of pools.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Names that a key is for: a whole name, or one whose end is left open by a last `*` (`shop.*`, `*`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 256;

impl Pattern {
    /// Every name.
    pub fn any() -> Self {
        Self("*".to_owned())
    }

    /// Whether a name is one of them.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == self.0,
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_suffix('*').unwrap_or(text);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        match !text.is_empty() && text.len() <= MAX_BYTES && name.bytes().all(is_name) {
            true => Ok(Self(text.to_owned())),
            false => Err(
                "a pattern is a name of letters, digits, `.`, `_` and `-`, or the beginning of one and a `*`, \
                 such as shop.*"
                    .to_owned(),
            ),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_ends_a_pattern() {
        for (pattern, name, matches) in [
            ("*", "core.echo", true),
            ("shop.*", "shop.export", true),
            ("shop.*", "shop", false),
            ("shop.*", "shopping.export", false),
            ("shop.e*", "shop.export", true),
            ("shop.export", "shop.export", true),
            ("shop.export", "shop.export2", false),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), matches, "{pattern} {name}");
        }
        for text in ["", "*.export", "a*b", "shop.**", "a b", "ä", "a\0"] {
            assert!(text.parse::<Pattern>().is_err(), "{text:?}");
        }
    }
}
