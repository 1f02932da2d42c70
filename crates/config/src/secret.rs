//! Values that must not be shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::urls::POSTGRES_PARAMETERS;

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
    /// `***` when the value is not a URL, or when what looks like its host may be a piece of a password.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let place = Parts::of(self.0.as_ref()).and_then(|parts| parts.shown_place());
        place.unwrap_or_else(|| MASK.to_owned())
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

/// The host of a URL, without its port, as far as it may be shown: `***` when in doubt.
pub(crate) fn shown_host(url: &str) -> &str {
    let Some(parts) = Parts::of(url).filter(|parts| parts.shown_place().is_some()) else {
        return MASK;
    };
    let place = parts.place;
    match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => place,
    }
    .trim_matches(['[', ']'])
}

/// Hides the secrets of one URL, and everything of what is not a URL.
fn redact(value: &str) -> String {
    let Some(scheme) = scheme_of(value) else {
        return MASK.to_owned();
    };
    let parts = Parts::of(value).and_then(|parts| Some((parts.shown_place()?, parts)));
    let Some((place, parts)) = parts else {
        return format!("{scheme}://{MASK}");
    };
    let user = match parts.user {
        None => String::new(),
        Some(user) => match user.split_once(':') {
            None => format!("{user}@"),
            Some((name, _)) => format!("{name}:{MASK}@"),
        },
    };
    let mut shown = format!("{scheme}://{user}{place}{}", parts.path);
    let (query, fragment) = match parts.tail.split_once('#') {
        None => (parts.tail, ""),
        Some((query, _)) => (query, "#***"),
    };
    if let Some(query) = query.strip_prefix('?') {
        shown.push('?');
        shown.push_str(&redact_query(query));
    }
    shown.push_str(fragment);
    shown
}

/// What stands before `://`, when it can be the scheme of a URL and not a piece of something else.
fn scheme_of(value: &str) -> Option<&str> {
    let (scheme, _) = value.split_once("://")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    scheme.chars().all(fits).then_some(scheme)
}

/// A URL, cut where nothing secret is taken for its host, path or user's name.
struct Parts<'a> {
    /// `USER` or `USER:PASSWORD`.
    user: Option<&'a str>,
    /// `HOST` or `HOST:PORT`.
    place: &'a str,
    path: &'a str,
    /// The query with its `?` and the fragment with its `#`.
    tail: &'a str,
}

impl<'a> Parts<'a> {
    /// `None` when it cannot be told where the host begins.
    ///
    /// By the book the host ends at the first `/`, `?` or `#`. But people do not escape passwords, and
    /// then the *last* `@` is what ends them. A URL with an `@` in its query can be read both ways.
    fn of(url: &'a str) -> Option<Self> {
        scheme_of(url)?;
        let (_, rest) = url.split_once("://")?;
        let end = |text: &str, signs: &[char]| text.find(signs).unwrap_or(text.len());
        let (before, tail) = rest.split_at(end(rest, &['?', '#']));
        let (authority, path) = before.split_at(end(before, &['/']));
        let by_the_book = || {
            let (user, place) = split_user(authority);
            Self {
                user,
                place,
                path,
                tail,
            }
        };
        let Some(last) = tail.rfind('@') else {
            if !path.contains('@') {
                return Some(by_the_book());
            }
            // A password with a `/`, or a path with an `@`, which is nothing secret.
            return Some(Self::by_last_at(rest));
        };
        let password_ends_before = !path.contains('@')
            && (!before.contains(':') || (is_place(split_user(authority).1) && is_known(tail)));
        if password_ends_before {
            return Some(by_the_book());
        }
        // What names no value is no query that anybody reads.
        (!tail[..last].contains('=')).then(|| Self::by_last_at(rest))
    }

    fn by_last_at(rest: &'a str) -> Self {
        let (user, after) = split_user(rest);
        let (before, tail) = after.split_at(after.find(['?', '#']).unwrap_or(after.len()));
        let (place, path) = before.split_at(before.find('/').unwrap_or(before.len()));
        Self {
            user,
            place,
            path,
            tail,
        }
    }

    /// The host with its port; `None` when it has signs that no host has. What is no number is no port:
    /// in `USER:PASSWORD` without a host it is a password.
    fn shown_place(&self) -> Option<String> {
        if is_place(self.place) {
            return Some(self.place.to_owned());
        }
        let (host, _) = self.place.rsplit_once(':')?;
        (is_place(host) && !host.contains(':')).then(|| format!("{host}:{MASK}"))
    }
}

/// What stands before the last `@`, and what behind it.
fn split_user(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('@') {
        None => (None, text),
        Some((user, place)) => (Some(user), place),
    }
}

/// Whether this can be `HOST` or `HOST:PORT`, or several of them with commas between.
fn is_place(text: &str) -> bool {
    text.split(',').all(|one| {
        let (host, port) = match one.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (one, ""),
        };
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '%');
        let is_host = match host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            Some(address) => address.chars().all(|c| c == ':' || is_name(c)),
            None => host.chars().all(is_name),
        };
        is_host && port.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// Parameters of a query whose values hold no secret.
const SHOWN: [&str; 14] = [
    "application_name",
    "channel_max",
    "connect_timeout",
    "connection_timeout",
    "dbname",
    "frame_max",
    "heartbeat",
    "host",
    "hostaddr",
    "port",
    "ssl-mode",
    "sslmode",
    "statement-cache-capacity",
    "user",
];

/// Whether all parameters of a query are such as clients read: no password looks like that by chance.
fn is_known(tail: &str) -> bool {
    let query = tail.strip_prefix('?').filter(|query| !query.contains('#'));
    query.is_some_and(|query| {
        query.split('&').all(|parameter| {
            parameter.split_once('=').is_some_and(|(name, _)| {
                let name = name_of(name);
                SHOWN.contains(&&*name)
                    || POSTGRES_PARAMETERS.contains(&&*name)
                    || name.starts_with("options[")
                    || name == "auth_mechanism"
            })
        })
    })
}

/// Hides the values of all query parameters but those that are known to hold no secret. An `@` among
/// these may be of a password that was taken apart.
fn redact_query(query: &str) -> String {
    let parameters: Vec<String> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, value)) if SHOWN.contains(&&*name_of(name)) && !value.contains('@') => {
                parameter.to_owned()
            }
            Some((name, _)) if !name.contains('@') => format!("{name}={MASK}"),
            _ => MASK.to_owned(),
        })
        .collect();
    parameters.join("&")
}

fn name_of(name: &str) -> String {
    percent_decoded(name).to_ascii_lowercase()
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
                "postgres://h/d?user=a&password=***&x=***",
            ),
            (
                "postgres://h/d?sslpassword=hunter2",
                "postgres://h/d?sslpassword=***",
            ),
            (
                "postgres://h/d?p%61ssword=hunter2&x%=1&%7=2",
                "postgres://h/d?p%61ssword=***&x%=***&%7=***",
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

    /// An `@` in a query is not where the host begins, and where it may be, nothing is shown.
    #[test]
    fn an_at_sign_in_the_query_shows_no_secret() {
        for (value, shown, endpoint) in [
            (
                "postgres://db.internal/attune?user=attune&password=hunt@er2",
                "postgres://db.internal/attune?user=attune&password=***",
                "db.internal",
            ),
            (
                "postgres://db.internal/attune?user=u&password=hunter2&application_name=a@b",
                "postgres://db.internal/attune?user=u&password=***&application_name=***",
                "db.internal",
            ),
            (
                "postgres://u:hunter2@host/x?password=h@er2",
                "postgres://u:***@host/x?password=***",
                "host",
            ),
            (
                "postgres://db:5432/x?sslmode=require&password=hunt@er2",
                "postgres://db:5432/x?sslmode=require&password=***",
                "db:5432",
            ),
            (
                "amqp://u:hunt@er2@[::1]:5/v?heartbeat=5&auth_mechanism=a@b",
                "amqp://u:***@[::1]:5/v?heartbeat=5&auth_mechanism=***",
                "[::1]:5",
            ),
            // Where the host begins cannot be told.
            ("postgres://u:p?hunt=er2@h/d", "postgres://***", "***"),
            (
                "postgres://u:p/w@db/x?password=h@er2",
                "postgres://***",
                "***",
            ),
            ("postgres://u/x:hunt?a=er2@h", "postgres://***", "***"),
            (
                "postgres://u:p@h/d?x@password=hunter2",
                "postgres://***",
                "***",
            ),
            ("http://u:p@h/d?key=hunt@er2", "http://***", "***"),
            // No host, or none with a number for its port.
            ("postgres://u:hunter2", "postgres://u:***", "u:***"),
            ("postgres://u:hunter2/d", "postgres://u:***/d", "u:***"),
            // Nothing is secret by its name alone.
            (
                "https://hooks.example/x?hunt@er2",
                "https://hooks.example/x?***",
                "hooks.example",
            ),
            (
                "https://h/x?key=hunter2#er2",
                "https://h/x?key=***#***",
                "h",
            ),
            ("https://h/x?hunter2", "https://h/x?***", "h"),
            ("u:hunter2@h/x?a=http://er2", "***", "***"),
        ] {
            let secret = Secret::new(value);
            assert_eq!(secret.to_string(), shown, "{value}");
            assert_eq!(secret.endpoint(), endpoint, "{value}");
        }
    }

    #[test]
    fn the_host_is_shown_without_its_port() {
        for (url, host) in [
            ("amqp://u:hunter2@mq:5672/v", "mq"),
            ("amqp://[::1]:5672/v", "::1"),
            ("amqp://[::1]/v", "::1"),
            ("amqp://mq/v?password=hunt@er2", "mq"),
            ("amqp://u:p?hunt=er2@h", "***"),
        ] {
            assert_eq!(shown_host(url), host);
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
