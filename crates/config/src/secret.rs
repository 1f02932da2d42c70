//! Values that must not be shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands in place of a secret.
const MASK: &str = "***";

/// A value that `Debug`, `Display` and `Serialize` hide.
///
/// A URL keeps its shape and loses its password (`postgres://attune:***@db:5432/attune`), so
/// that an operator still sees where it points; anything else becomes `***`.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. What is done with it must not end up in a log or a message.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: AsRef<str>> Secret<T> {
    /// The form that may be shown.
    #[must_use]
    pub fn redacted(&self) -> String {
        redact(self.0.as_ref())
    }

    /// `HOST:PORT` (or `HOST`) of a URL, for messages such as "waiting for PostgreSQL at …";
    /// `***` when the value is not a URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match self.0.as_ref().split_once("://") {
            Some((_, rest)) => authority(rest).to_owned(),
            None => MASK.to_owned(),
        }
    }
}

impl<T: AsRef<str>> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl<T: AsRef<str>> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl<T: AsRef<str>> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.redacted())
    }
}

/// Hides the passwords of all URLs inside a text, such as the message of a driver.
///
/// A URL is taken to reach to the next character that cannot be part of one; `'` and `)` can, and
/// may stand in a password.
#[must_use]
pub fn redact_urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(found) = rest.find("://") {
        let start = rest[..found]
            .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
            .map_or(0, |at| {
                at + rest[at..].chars().next().map_or(1, char::len_utf8)
            });
        let end = rest[found..]
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '`' | '<' | '>'))
            .map_or(rest.len(), |at| found + at);
        shown.push_str(&rest[..start]);
        shown.push_str(&redact(&rest[start..end]));
        rest = &rest[end..];
    }
    shown.push_str(rest);
    shown
}

/// `HOST:PORT` of what follows `scheme://`.
fn authority(rest: &str) -> &str {
    let after_user = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let end = after_user.find(['/', '?', '#']).unwrap_or(after_user.len());
    &after_user[..end]
}

/// Hides the password of one URL, and everything of what is not a URL.
fn redact(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return MASK.to_owned();
    };
    // The *last* `@` of the whole text ends the user part: a password with an unescaped `/`, `?`
    // or `@` is not a valid URL, but must not be shown for that.
    let (user, place) = match rest.rsplit_once('@') {
        None => (String::new(), rest),
        Some((user, place)) => match user.split_once(':') {
            None => (format!("{user}@"), place),
            Some((name, _)) => (format!("{name}:{MASK}@"), place),
        },
    };
    let place = match place.split_once('?') {
        None => place.to_owned(),
        Some((path, query)) => format!("{path}?{}", redact_query(query)),
    };
    format!("{scheme}://{user}{place}")
}

/// Hides the values of query parameters whose name speaks of a secret (`?password=…`).
fn redact_query(query: &str) -> String {
    let parameters: Vec<String> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if names_a_secret(name) => format!("{name}={MASK}"),
            _ => parameter.to_owned(),
        })
        .collect();
    parameters.join("&")
}

fn names_a_secret(name: &str) -> bool {
    let name = percent_decoded(name).to_ascii_lowercase();
    ["pass", "pwd", "secret", "token"]
        .iter()
        .any(|word| name.contains(word))
}

/// A name in a query as the reader of the URL takes it: `p%61ss` is `pass`.
pub(crate) fn percent_decoded(text: &str) -> String {
    let hex = |byte: &u8| char::from(*byte).to_digit(16);
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let high = bytes.get(at + 1).and_then(hex);
        let low = bytes.get(at + 2).and_then(hex);
        match (byte, high.zip(low)) {
            (b'%', Some((high, low))) => {
                decoded.extend(u8::try_from(high * 16 + low));
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_shape_and_loses_its_password() {
        for (value, shown) in [
            (
                "postgres://attune:hunter2@db:5432/attune",
                "postgres://attune:***@db:5432/attune",
            ),
            ("postgres://attune@db/attune", "postgres://attune@db/attune"),
            ("amqp://127.0.0.1:5672/%2f", "amqp://127.0.0.1:5672/%2f"),
            ("amqp://a:p@ss/w?o#rd@h/v", "amqp://a:***@h/v"),
            ("amqp://:hunter2@h", "amqp://:***@h"),
            (
                "postgres://h/d?user=a&password=hunter2&x=1",
                "postgres://h/d?user=a&password=***&x=1",
            ),
            (
                "postgres://h/d?sslpassword=hunter2",
                "postgres://h/d?sslpassword=***",
            ),
            (
                "postgres://h/d?p%61ssword=hunter2&x%=1&%7=2",
                "postgres://h/d?p%61ssword=***&x%=1&%7=2",
            ),
            ("host=db password=hunter2", "***"),
            ("", "***"),
        ] {
            let secret = Secret::new(value.to_owned());
            assert_eq!(secret.to_string(), shown);
            assert_eq!(format!("{secret:?}"), shown);
            assert_eq!(serde_json::to_value(&secret).unwrap(), shown);
            assert_eq!(secret.expose(), value);
        }
    }

    #[test]
    fn the_endpoint_is_host_and_port() {
        for (value, endpoint) in [
            ("postgres://attune:hunter2@db:5432/attune?x=1", "db:5432"),
            ("amqp://127.0.0.1:5672/%2f", "127.0.0.1:5672"),
            ("amqps://u:p@[::1]:5671", "[::1]:5671"),
            ("hunter2", "***"),
        ] {
            assert_eq!(Secret::new(value).endpoint(), endpoint);
        }
    }

    #[test]
    fn urls_inside_a_text_are_redacted() {
        assert_eq!(
            redact_urls("cannot open \"amqp://u:hunter2@h/v\" (→postgres://a:b@c/d) or http://x/y"),
            "cannot open \"amqp://u:***@h/v\" (→postgres://a:***@c/d) or http://x/y"
        );
        assert_eq!(
            redact_urls("amqp://u:hun)te'r2@h, closed"),
            "amqp://u:***@h, closed"
        );
        assert_eq!(redact_urls("connection refused"), "connection refused");
        assert_eq!(redact_urls("://"), "://");
    }
}
