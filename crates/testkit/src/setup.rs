//! How a system is put together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::accounts::Accounts;

/// What the roles run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// One process, on SQLite and an in-process bus.
    Embedded,
    /// A process for each role, on PostgreSQL and RabbitMQ.
    Cluster,
}

/// A system that is to be started.
#[derive(Debug, Clone)]
pub struct Setup {
    pub(crate) binary: PathBuf,
    pub(crate) wiring: Wiring,
    pub(crate) executors: usize,
    pub(crate) workers: usize,
    pub(crate) proxied: bool,
    pub(crate) prepared: Option<&'static str>,
    pub(crate) clocks: bool,
    pub(crate) has_accounts: bool,
    pub(crate) accounts: Accounts,
    pub(crate) settings: BTreeMap<String, String>,
}

/// Settings under which faults show within seconds: the shortest leases that are allowed.
const QUICK: &[(&str, &str)] = &[
    ("cluster.partitions", "4"),
    ("executor.lease.ttl_seconds", "3"),
    ("executor.reconcile.interval_seconds", "1"),
    ("worker.lease.ttl_seconds", "3"),
    ("worker.lease.grace_seconds", "1"),
    ("worker.kill_grace_seconds", "1"),
    ("broker.heartbeat_seconds", "5"),
    ("broker.publish_timeout_seconds", "5"),
    ("stats.publish_interval_ms", "50"),
    ("log.format", "text"),
];

impl Setup {
    /// A system of the given binary, with two workers on a cluster and short leases.
    #[must_use]
    pub fn new(binary: impl Into<PathBuf>, wiring: Wiring) -> Self {
        let settings = QUICK
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self {
            binary: binary.into(),
            wiring,
            executors: 1,
            workers: 2,
            proxied: false,
            prepared: None,
            clocks: false,
            has_accounts: false,
            accounts: Accounts::default(),
            settings: settings.collect(),
        }
    }

    /// A setting of all its processes, by its key such as `worker.slots`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Has everybody asked for a key; the system's own [`Api`](crate::System::api) shows one that may do
    /// everything, as often as it likes.
    #[must_use]
    pub fn keys(mut self) -> Self {
        for (key, value) in [
            ("api.auth", "required"),
            ("api.rates.submit_per_second", "1000000"),
            ("api.rates.submit_burst", "1000000"),
            ("api.rates.read_per_second", "1000000"),
            ("api.rates.read_burst", "1000000"),
            ("api.rates.change_per_second", "1000000"),
            ("api.rates.change_burst", "1000000"),
        ] {
            self = self.set(key, value);
        }
        self
    }

    pub(crate) fn asks_for_keys(&self) -> bool {
        self.settings
            .get("api.auth")
            .is_some_and(|it| it == "required")
    }

    /// How many executors a cluster has. A single one is named `executor`, several `executor-1`
    /// and so on.
    #[must_use]
    pub fn executors(mut self, executors: usize) -> Self {
        self.executors = executors;
        self
    }

    /// How many workers a cluster has.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// What is done to the database of a cluster before anything else: statements of SQL.
    #[must_use]
    pub fn prepared(mut self, statements: &'static str) -> Self {
        self.prepared = Some(statements);
        self
    }

    /// Gives each part of a cluster a user of the broker and a login of the database of its own, with no more
    /// rights than the program asks for.
    #[must_use]
    pub fn accounts(mut self) -> Self {
        self.has_accounts = true;
        self
    }

    /// Gives each process a wall clock of its own that can be set; see [`System::set_clock`].
    ///
    /// [`System::set_clock`]: crate::System::set_clock
    #[must_use]
    pub fn clocks(mut self) -> Self {
        self.clocks = true;
        self
    }

    /// Puts a [`Proxy`](crate::Proxy) between the processes and each server.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }
}

/// The variable of a setting.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("ATTUNE__{}", key.replace('.', "__").to_uppercase())
}
