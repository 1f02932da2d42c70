//! What can only be judged when all values are known.

use attune_core::Network;
use serde_json::Value;

use crate::keys::KEYS;
use crate::problem::{Problem, Problems};
use crate::secret::shown_host;
use crate::settings::Settings;
use crate::urls::PASSWORDS;

impl Settings {
    /// Checks every value and how they fit together. [`Loader`](crate::Loader) has done so
    /// already; this is for settings that code has changed.
    ///
    /// # Errors
    /// All problems, not just the first.
    pub fn validate(&self) -> Result<(), Problems> {
        let mut problems = self.check_values();
        problems.extend(self.check_relations());
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Problems(problems))
        }
    }

    fn check_values(&self) -> Vec<Problem> {
        let tree = self.exposed();
        KEYS.iter()
            .filter_map(|key| {
                let pointer = format!("/{}", key.name.replace('.', "/"));
                let value = tree.pointer(&pointer).unwrap_or(&Value::Null);
                key.check(value)
                    .err()
                    .map(|message| problem(key.name, message))
            })
            .collect()
    }

    /// The settings as a tree, with the secrets readable; must not leave this module.
    fn exposed(&self) -> Value {
        let mut tree = serde_json::to_value(self).expect("settings are plain data with text keys");
        tree["database"]["url"] = Value::from(self.database.url.expose().as_str());
        tree["broker"]["url"] = Value::from(self.broker.url.expose().as_str());
        tree
    }

    /// Rules between keys, each with the reason in its message.
    pub(crate) fn check_relations(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.worker.kill_grace_seconds > self.worker.lease.grace_seconds {
            problems.push(problem(
                "worker.kill_grace_seconds",
                format!(
                    "{} is more than worker.lease.grace_seconds ({}): a slot could be given to \
                     another execution while this one is still being ended",
                    self.worker.kill_grace_seconds, self.worker.lease.grace_seconds
                ),
            ));
        }
        if self.worker.output_max_bytes.saturating_mul(2) > self.broker.max_message_bytes {
            problems.push(problem(
                "worker.output_max_bytes",
                format!(
                    "{} each for stdout and stderr do not fit into one message of \
                     broker.max_message_bytes ({})",
                    self.worker.output_max_bytes, self.broker.max_message_bytes
                ),
            ));
        }
        if self.api.max_body_bytes > self.broker.max_message_bytes {
            problems.push(problem(
                "api.max_body_bytes",
                format!(
                    "{} is more than broker.max_message_bytes ({}): what the API accepts must fit \
                     into one message",
                    self.api.max_body_bytes, self.broker.max_message_bytes
                ),
            ));
        }
        self.api.check_relations(&mut problems);
        self.check_networks(&mut problems);
        self.check_tls(&mut problems);
        if has_late_at(self.database.url.expose()) {
            problems.push(problem(
                "database.url",
                format!(
                    "an `@` stands behind a `/` or a `#`, so that a part of a password could be taken for \
                     the host; {PASSWORDS}"
                ),
            ));
        }
        if is_remote_guest(self.broker.url.expose()) {
            problems.push(problem(
                "broker.url",
                "the user `guest` (also meant when none is named) is accepted on a loopback host \
                 only; name a user of your own: amqp://USER:PASSWORD@HOST:PORT/VHOST"
                    .to_owned(),
            ));
        }
        problems
    }

    fn check_tls(&self, problems: &mut Vec<Problem>) {
        let tls = &self.broker.tls;
        let files = [
            ("broker.tls.ca_file", &tls.ca_file),
            ("broker.tls.cert_file", &tls.cert_file),
            ("broker.tls.key_file", &tls.key_file),
        ];
        let is_plain = self.broker.url.expose().starts_with("amqp://");
        if let Some((key, _)) = files.iter().find(|(_, file)| file.is_some() && is_plain) {
            let words = "broker.url begins with amqp://, over which there is no encryption: use amqps://, \
                         or leave the file out";
            problems.push(problem(key, words.to_owned()));
        }
        let missing = match (&tls.cert_file, &tls.key_file) {
            (Some(_), None) => ("broker.tls.key_file", "broker.tls.cert_file"),
            (None, Some(_)) => ("broker.tls.cert_file", "broker.tls.key_file"),
            _ => return,
        };
        let words = format!(
            "it is not set, and {} is: a certificate needs its key",
            missing.1
        );
        problems.push(problem(missing.0, words));
    }

    /// Nothing that has no authentication or no encryption leaves this machine unless somebody said so.
    fn check_networks(&self, problems: &mut Vec<Problem>) {
        let listeners = [
            ("metrics", self.metrics.listen, self.metrics.network),
            ("ops", self.ops.listen, self.ops.network),
        ];
        for (section, listen, network) in listeners {
            if let Some(listen) = listen.filter(|listen| !network.may_listen_on(listen.ip())) {
                problems.push(problem(
                    &format!("{section}.listen"),
                    format!(
                        "other machines can reach {listen}, where nobody is asked who they are: set \
                         `{section}.network` to private if all that can are trusted, or listen on \
                         127.0.0.1:{}",
                        listen.port()
                    ),
                ));
            }
        }
        let plain = self.broker.url.expose().strip_prefix("amqp://");
        if let Some(host) = plain
            .map(host_of)
            .filter(|host| !self.broker.network.may_lead_to(host))
        {
            let way_out = match Network::Private.may_lead_to(host) {
                true => {
                    "use amqps://, or set `broker.network` to private if nobody else can listen on the \
                     way there"
                }
                false => {
                    "its address is public, or at least not private, and only amqps:// goes there"
                }
            };
            let place = shown_host(self.broker.url.expose());
            let words =
                format!("amqp:// would send the password to {place} in the clear: {way_out}");
            problems.push(problem("broker.url", words));
        }
    }
}

pub(crate) fn problem(key: &str, message: String) -> Problem {
    Problem {
        key: key.to_owned(),
        source: None,
        message,
    }
}

/// Whether an AMQP URL would log in as `guest` (the client's default) on another machine.
fn is_remote_guest(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let (user, _) = authority_of(rest)
        .rsplit_once('@')
        .unwrap_or(("guest", rest));
    let user = user.split(':').next().unwrap_or_default();
    matches!(user, "" | "guest") && !Network::Loopback.is_named_by(host_of(rest))
}

/// Whether an `@` stands in the path or the fragment of a URL: more likely than not it ends a password that
/// has a `/` or a `#`.
fn has_late_at(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let behind = &rest[authority_of(rest).len()..];
    // In the value of a parameter it may stand as it is.
    let place = match behind.split_once('?') {
        Some((path, query)) if query.contains('=') => path,
        _ => behind,
    };
    place.contains('@')
}

/// What the client takes for `USER:PASSWORD@HOST:PORT`, of what follows `scheme://`.
fn authority_of(rest: &str) -> &str {
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// The host of what follows `scheme://`, without the brackets of an IPv6 address. For judging, not for
/// showing: see [`shown_host`].
pub(crate) fn host_of(rest: &str) -> &str {
    let authority = authority_of(rest);
    let (_, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    match place.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => place.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_is_cut_off_is_no_host() {
        for (url, is_late) in [
            ("postgres://u:pw@127.0.0.1:1/db", false),
            (
                "postgres://u:p%40w@127.0.0.1/db?application_name=a@b",
                false,
            ),
            ("postgres://127.0.0.1/db", false),
            ("postgres://u:SEK@RET#x@127.0.0.1:1/db", true),
            ("postgres://u:SEK@RET/x@127.0.0.1:1/db", true),
            ("postgres://u:SEK/RET@127.0.0.1:1/db", true),
            ("postgres://u:SEK@RET?x@127.0.0.1:1/db", true),
        ] {
            assert_eq!(has_late_at(url), is_late, "{url}");
        }
    }

    #[test]
    fn guest_is_for_loopback() {
        for (url, refused) in [
            ("amqp://127.0.0.1:5672/%2f", false),
            ("amqp://guest:guest@localhost:5672", false),
            ("amqps://[::1]:5671/x", false),
            ("amqp://attune:pw@broker:5672/x", false),
            ("amqp://broker:5672/x", true),
            ("amqp://guest:pw@10.0.0.1", true),
            ("amqp://:pw@broker", true),
            ("amqp://127.0.0.1.example.org", true),
            ("amqp://broker/v?auth_mechanism=u:p@127.0.0.1", true),
        ] {
            assert_eq!(is_remote_guest(url), refused, "{url}");
        }
    }
}
