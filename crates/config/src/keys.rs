//! Every key and what its value may be: the words of messages and documentation come from here.
//!
//! Values are checked here instead of leaving it to deserialisation, because the `config` crate
//! is lenient where a setting must not be: it rounds `3.7` to 4, takes `yes` for the number 1
//! and stops at the first problem without naming its source.

mod contained;
mod lists;

use std::net::SocketAddr;

use attune_core::network::is_public;
use attune_core::{Network, PartitionId};
use serde_json::Value;

use crate::urls::check_url;
use contained::{check_account, check_cpu, check_size};
use lists::{check_list, check_subnet, check_user, check_variable_name, fitting};

/// One key: its dotted name and what it takes.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether it may be left unset (`null` or the empty text).
    pub(crate) optional: bool,
}

/// What a key takes.
pub(crate) enum Kind {
    /// A whole number from `min` to `max`, in `unit`.
    Integer {
        min: u64,
        max: u64,
        unit: &'static str,
    },
    /// `true` or `false`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A URL with one of these schemes; secret.
    Url(&'static [&'static str]),
    /// `ADDRESS:PORT`.
    Listen,
    /// `ADDRESS:PORT`, not on a public address.
    PrivateListen,
    /// The name of a process.
    Name,
    /// The name of a pool of workers; part of a routing key.
    Pool,
    /// A prefix of names on the broker; may be empty.
    Prefix,
    /// A folder.
    Folder,
    /// A file.
    File,
    /// Log levels.
    LogDirective,
    /// A list of names of variables.
    VariableNames,
    /// A list of addresses and networks.
    Subnets,
    /// A list of users of the broker.
    Users,
    /// A list of some of these words.
    Words(&'static [&'static str]),
    /// A list of folders, by their whole paths.
    Folders,
    /// An account of this machine.
    Account,
    /// So many bytes, as in `512Mi`.
    Size,
    /// So many processors, as in `1.5`.
    Cpu,
}

/// What a worker knows how to do itself.
const BUILTINS: [&str; 6] = ["noop", "echo", "sleep", "fail", "command", "http.get"];

const DAY_SECONDS: u64 = 24 * 3600;
/// The highest rate and the largest burst.
const RATE: u64 = 1_000_000;
const MIB: u64 = 1024 * 1024;
/// What RabbitMQ accepts by default, in bytes.
const BROKER_MAX_MESSAGE: u64 = 128 * MIB;

/// How far something reaches that has no authentication or no encryption.
const NETWORK: Kind = Kind::Choice(&["loopback", "private"]);

const fn key(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        kind,
        optional: false,
    }
}

const fn optional(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        kind,
        optional: true,
    }
}

const fn integer(name: &'static str, min: u64, max: u64, unit: &'static str) -> Key {
    key(name, Kind::Integer { min, max, unit })
}

const fn seconds(name: &'static str, min: u64, max: u64) -> Key {
    integer(name, min, max, "seconds")
}

/// Every key, in the order of the default file. A test compares the two.
pub(crate) const KEYS: &[Key] = &[
    key("wiring", Kind::Choice(&["embedded", "postgres-rabbitmq"])),
    key("data_dir", Kind::Folder),
    key("database.url", Kind::Url(&["postgres", "postgresql"])),
    optional("database.url_file", Kind::File),
    integer("database.max_connections", 1, 1000, "connections"),
    seconds("database.acquire_timeout_seconds", 1, 300),
    seconds("database.statement_timeout_seconds", 1, 3600),
    seconds("database.migration_timeout_seconds", 60, 604_800),
    key("broker.url", Kind::Url(&["amqp", "amqps"])),
    optional("broker.url_file", Kind::File),
    key("broker.network", NETWORK),
    optional("broker.tls.ca_file", Kind::File),
    optional("broker.tls.cert_file", Kind::File),
    optional("broker.tls.key_file", Kind::File),
    optional("broker.require_user_id", Kind::Switch),
    key("broker.impersonators", Kind::Users),
    key("broker.parts", Kind::Users),
    key("broker.topology", Kind::Choice(&["apply", "passive"])),
    key("broker.queue_type", Kind::Choice(&["quorum", "classic"])),
    seconds("broker.heartbeat_seconds", 1, 600),
    seconds("broker.publish_timeout_seconds", 1, 300),
    integer(
        "broker.max_message_bytes",
        1024,
        BROKER_MAX_MESSAGE,
        "bytes",
    ),
    key("broker.prefix", Kind::Prefix),
    integer(
        "cluster.partitions",
        1,
        PartitionId::MAX_COUNT as u64,
        "partitions",
    ),
    optional("executor.name", Kind::Name),
    integer(
        "executor.queue.max_queue_length",
        1,
        10_000_000,
        "executions",
    ),
    seconds("executor.queue.queue_timeout_seconds", 1, 30 * DAY_SECONDS),
    key("executor.queue.enable_metrics", Kind::Switch),
    seconds("executor.lease.ttl_seconds", 3, 3600),
    integer("executor.batch.max_items", 1, 100_000, "items"),
    integer("executor.lanes.max_ahead", 0, 4_096, "executions"),
    seconds("executor.reconcile.interval_seconds", 1, 3600),
    integer("executor.intake.prefetch", 1, 65_535, "messages"),
    integer("completion_listener.prefetch", 1, 65_535, "messages"),
    integer("completion_listener.max_batch", 1, 65_535, "completions"),
    integer("stats.publish_interval_ms", 50, 10_000, "milliseconds"),
    integer("stats.retention_days", 1, 3650, "days"),
    optional("worker.name", Kind::Name),
    key("worker.pool", Kind::Pool),
    integer("worker.slots", 1, 10_000, "executions"),
    seconds("worker.lease.ttl_seconds", 3, 3600),
    seconds("worker.lease.grace_seconds", 1, 3600),
    integer("worker.output_max_bytes", 1024, 16 * MIB, "bytes"),
    seconds("worker.kill_grace_seconds", 1, 600),
    seconds("worker.drain_seconds", 0, DAY_SECONDS),
    optional("worker.work_dir", Kind::Folder),
    optional("worker.state_dir", Kind::Folder),
    key("worker.http.allow_private_addresses", Kind::Switch),
    seconds("worker.http.timeout_seconds", 1, 3600),
    integer("worker.http.max_body_bytes", 1, BROKER_MAX_MESSAGE, "bytes"),
    key("worker.env_allow", Kind::VariableNames),
    optional("worker.secrets_dir", Kind::Folder),
    key("worker.env_unsafe", Kind::Switch),
    key("worker.builtins", Kind::Words(&BUILTINS)),
    key("worker.program_dirs", Kind::Folders),
    key("worker.allow_root", Kind::Switch),
    optional("worker.run_as", Kind::Account),
    key("worker.sandbox", Kind::Choice(&["auto", "required", "off"])),
    key("worker.write_dirs", Kind::Folders),
    optional("worker.limits.memory", Kind::Size),
    optional("worker.limits.cpu", Kind::Cpu),
    optional(
        "worker.limits.pids",
        Kind::Integer {
            min: 1,
            max: 4_194_304,
            unit: "processes",
        },
    ),
    optional(
        "worker.limits.open_files",
        Kind::Integer {
            min: 16,
            max: 1_048_576,
            unit: "files",
        },
    ),
    optional("worker.limits.file_size", Kind::Size),
    key("api.listen", Kind::Listen),
    optional("api.auth", Kind::Choice(&["required", "off"])),
    optional("api.tls.cert_file", Kind::File),
    optional("api.tls.key_file", Kind::File),
    optional("api.tls.client_ca_file", Kind::File),
    key("api.behind_proxy", Kind::Switch),
    key("api.trusted_proxies", Kind::Subnets),
    integer("api.rates.submit_per_second", 1, RATE, "executions"),
    integer("api.rates.submit_burst", 1, RATE, "executions"),
    integer("api.rates.read_per_second", 1, RATE, "questions"),
    integer("api.rates.read_burst", 1, RATE, "questions"),
    integer("api.rates.change_per_second", 1, RATE, "changes"),
    integer("api.rates.change_burst", 1, RATE, "changes"),
    integer("api.rates.failures_per_minute", 1, RATE, "keys"),
    integer("api.max_body_bytes", 1024, BROKER_MAX_MESSAGE, "bytes"),
    integer("api.max_connections_per_peer", 1, 1024, "connections"),
    seconds("api.submit_timeout_seconds", 1, 300),
    integer("api.max_page_size", 1, 10_000, "executions"),
    integer("history.retention_days", 1, 400, "days"),
    optional("history.dir", Kind::Folder),
    optional("secrets.key_file", Kind::File),
    integer("audit.retention_days", 31, 3650, "days"),
    key("log.level", Kind::LogDirective),
    key("log.format", Kind::Choice(&["text", "json", "auto"])),
    optional("metrics.listen", Kind::PrivateListen),
    key("metrics.network", NETWORK),
    optional("ops.listen", Kind::PrivateListen),
    key("ops.network", NETWORK),
    optional("otlp.endpoint", Kind::Url(&["http", "https"])),
    seconds("otlp.interval_seconds", 1, 3600),
    key("otlp.traces", Kind::Switch),
    integer("otlp.traces_per_mille", 0, 1000, "requests in 1000"),
];

/// Keys that there were once, and what took their place.
pub(crate) const GONE: &[(&str, &str)] = &[(
    "api.network",
    "it is gone: leave it out, and let other machines reach the API by `api.auth` (required, which it is \
     wherever it is not set) with `api.tls.cert_file` and `api.tls.key_file`, or with `api.behind_proxy` and \
     `api.trusted_proxies`",
)];

/// What the name of a key ends with that names a file with the value of the key without it.
const IN_A_FILE: &str = "_file";

/// The key of this name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The keys inside a section, such as those that begin with `executor.`; none if it is not one.
pub(crate) fn in_section(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| {
        key.name
            .strip_prefix(section)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

impl Key {
    /// For a key that names a file: the key whose value is in there.
    pub(crate) fn in_file(&self) -> Option<&'static Self> {
        match self.kind {
            Kind::File => find(self.name.strip_suffix(IN_A_FILE)?),
            _ => None,
        }
    }

    /// The key that names a file with the value of this one.
    pub(crate) fn file_key(&self) -> Option<&'static Self> {
        find(&format!("{}{IN_A_FILE}", self.name))
    }

    /// Checks a value and brings it into the form that deserialisation takes: texts of numbers
    /// and switches become such, a text of a list becomes one, an empty optional becomes null.
    ///
    /// # Errors
    /// What is wrong and what would be right; never holds the value of a secret.
    pub(crate) fn check(&self, value: &Value) -> Result<Value, String> {
        if self.optional && (value.is_null() || value.as_str() == Some("")) {
            return Ok(Value::Null);
        }
        self.kind.check(value).map_err(|problem| {
            let unset = if self.optional { ", or nothing" } else { "" };
            format!("{problem}; expected {}{unset}", self.kind.expected())
        })
    }
}

impl Kind {
    /// What would be right, as the end of "expected …".
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Integer { min, max, unit } => {
                format!("a whole number from {min} to {max} ({unit})")
            }
            Self::Switch => "true or false".to_owned(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Url(schemes) => {
                format!("a URL that begins with {}://", schemes.join(":// or "))
            }
            Self::Listen => {
                "ADDRESS:PORT, such as 127.0.0.1:8080, [::1]:8080 or, for other machines, 0.0.0.0:8080"
                    .to_owned()
            }
            Self::PrivateListen => {
                "ADDRESS:PORT, such as 127.0.0.1:8080, [::1]:8080 or, for a private network, \
                 0.0.0.0:8080"
                    .to_owned()
            }
            Self::Name => "1 to 128 letters, digits, `.`, `_` and `-`".to_owned(),
            Self::Pool => "1 to 64 lower-case letters, digits, `_` and `-`".to_owned(),
            Self::Prefix => "up to 64 letters, digits, `.`, `_` and `-`".to_owned(),
            Self::Folder => "a folder".to_owned(),
            Self::File => "a file".to_owned(),
            Self::LogDirective => "off, error, warn, info, debug or trace, or a list such as \
                 info,attune_executor=debug"
                .to_owned(),
            Self::VariableNames => {
                "a list of names of variables, such as [PATH, HOME] or \"PATH, HOME\"".to_owned()
            }
            Self::Subnets => "a list of addresses and networks, such as [10.0.0.5, 10.1.0.0/16] or \
                 \"10.0.0.5, 10.1.0.0/16\""
                .to_owned(),
            Self::Users => {
                "a list of users of the broker, such as [rules] or \"attune-api, rules\"".to_owned()
            }
            Self::Words(words) => format!("a list of {}", words.join(", ")),
            Self::Folders => "a list of folders that begin with /".to_owned(),
            Self::Account => {
                "the name of an account, its number, or NUMBER:NUMBER of its group".to_owned()
            }
            Self::Size => "a number of bytes, such as 1073741824, 512Mi or 2Gi".to_owned(),
            Self::Cpu => "a number of processors from 0.01 to 1024, such as 1.5".to_owned(),
        }
    }

    fn check(&self, value: &Value) -> Result<Value, String> {
        match self {
            Self::Integer { min, max, .. } => check_integer(value, *min, *max),
            Self::Switch => check_switch(value),
            Self::VariableNames => check_list(value, check_variable_name),
            Self::Subnets => check_list(value, check_subnet),
            Self::Users => check_list(value, check_user),
            Self::Words(words) => check_list(value, |word| fitting(word, words.contains(&word))),
            Self::Folders => check_list(value, |path| {
                fitting(path, path.starts_with('/') && !path.contains('\0'))
            }),
            Self::Account => check_account(value),
            Self::Size => check_size(value),
            Self::Cpu => check_cpu(value),
            Self::Url(schemes) => check_url(value, schemes),
            Self::Choice(words) => check_text(value, |text| {
                if words.contains(&text) {
                    Ok(())
                } else {
                    Err(unfit(text))
                }
            }),
            Self::Listen => check_text(value, |text| read_listen(text).map(drop)),
            Self::PrivateListen => check_text(value, check_private_listen),
            Self::Name => check_text(value, |text| check_word(text, 1..=128, is_name)),
            Self::Pool => check_text(value, |text| check_word(text, 1..=64, is_pool)),
            Self::Prefix => check_text(value, |text| check_word(text, 0..=64, is_name)),
            Self::Folder | Self::File => check_text(value, check_path),
            Self::LogDirective => check_text(value, check_log_directive),
        }
    }
}

fn unfit(text: &str) -> String {
    format!("{text:?} does not fit")
}

/// What a value of another kind is, in words.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "it is empty".to_owned(),
        Value::Bool(value) => format!("{value} is a switch (a text needs quotes)"),
        Value::Number(value) => format!("{value} is a number (a text needs quotes)"),
        Value::String(value) => unfit(value),
        Value::Array(_) => "it is a list".to_owned(),
        Value::Object(_) => "it is a section".to_owned(),
    }
}

fn check_integer(value: &Value, min: u64, max: u64) -> Result<Value, String> {
    let number = match value {
        // A number that JSON holds as a double is no whole number, or far outside every range.
        Value::Number(number) if !number.is_f64() => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from)),
        Value::String(text) => text.trim().parse::<i128>().ok(),
        Value::Number(number) => return Err(format!("{number} is not a whole number")),
        _ => return Err(describe(value)),
    };
    let number = number.ok_or_else(|| describe(value))?;
    match u64::try_from(number) {
        Ok(number) if (min..=max).contains(&number) => Ok(Value::from(number)),
        _ => Err(format!("{number} is out of range")),
    }
}

fn check_switch(value: &Value) -> Result<Value, String> {
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(Value::Bool(true)),
            "false" | "no" | "off" | "0" => Ok(Value::Bool(false)),
            _ => Err(unfit(text)),
        },
        _ => Err(describe(value)),
    }
}

fn check_text(
    value: &Value,
    check: impl FnOnce(&str) -> Result<(), String>,
) -> Result<Value, String> {
    let text = value.as_str().ok_or_else(|| describe(value))?;
    check(text)?;
    Ok(value.clone())
}

fn read_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| unfit(text))
}

fn check_private_listen(text: &str) -> Result<(), String> {
    let address = read_listen(text)?;
    if Network::Private.may_listen_on(address.ip()) {
        return Ok(());
    }
    let what = if is_public(address.ip().to_canonical()) {
        "a public address"
    } else {
        "no address of a private network"
    };
    Err(format!(
        "{address} is {what}, which is refused: nobody is asked there who they are"
    ))
}

fn check_word(
    text: &str,
    length: std::ops::RangeInclusive<usize>,
    fits: fn(u8) -> bool,
) -> Result<(), String> {
    if length.contains(&text.len()) && text.bytes().all(fits) {
        Ok(())
    } else {
        Err(unfit(text))
    }
}

pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

fn is_pool(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')
}

fn check_path(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains('\0') {
        Err(unfit(text))
    } else {
        Ok(())
    }
}

/// Refuses the slip that a filter would take silently: `loud` names a target, not a level, and
/// would switch everything else off. The rest of the grammar is the filter's own.
fn check_log_directive(text: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let fits = text
        .split(',')
        .map(str::trim)
        .all(|directive| match directive.rsplit_once('=') {
            // The level after `]=` or `=`; a field value inside `[span{field=value}]` is not one.
            Some((_, level)) => level.ends_with([']', '}']) || is_level(level, &LEVELS),
            None => is_level(directive, &LEVELS) || directive.contains(['[', '{', ']', '}']),
        });
    if fits { Ok(()) } else { Err(unfit(text)) }
}

fn is_level(text: &str, levels: &[&str]) -> bool {
    levels.contains(&text.to_ascii_lowercase().as_str())
}
