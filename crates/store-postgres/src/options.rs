//! How to reach the server, and how many connections to hold.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use attune_store::DeadLetterRetention;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// How often what `attune migrate` does is begun again when it meets a lock.
pub const MIGRATE_TRIES: u32 = 20;

/// How to reach the server, and how many connections to hold.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?sslmode=…`. Without an `sslmode`, a server
    /// on this machine is reached in plain text where it offers nothing else, and a server
    /// elsewhere must prove who it is (`verify-full`); to weaken that, the URL must say so.
    pub url: String,
    /// What the server shows in `pg_stat_activity`, followed by what the connection is for.
    pub application_name: String,
    /// Connections for commits.
    pub commit_connections: u32,
    /// Connections for reads by key.
    pub key_connections: u32,
    /// Connections for everything that may be slow: lists, actions, stats, upkeep.
    pub general_connections: u32,
    /// How long a call waits for a connection before it counts as unavailable.
    pub acquire_timeout: Duration,
    /// How long the server works on one slow statement (a list, the upkeep). Statements by key
    /// have bounds of their own.
    pub statement_timeout: Duration,
    /// How long the server works on one statement of a migration, such as the building of an index.
    pub migrate_statement_timeout: Duration,
    /// How often a migration that meets a lock is begun again.
    pub migrate_tries: u32,
    /// How much of the dead letters is kept between two upkeeps.
    pub letters: DeadLetterRetention,
    /// The user of the broker as whom this process speaks, where the broker vouches for it: workers that it
    /// registers speak as that one unless they say another.
    pub broker_user: Option<String>,
}

impl PostgresOptions {
    /// Options that suit one service on `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            application_name: "attune".to_owned(),
            commit_connections: 2,
            key_connections: 4,
            general_connections: 4,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            migrate_statement_timeout: Duration::from_secs(3600),
            migrate_tries: MIGRATE_TRIES,
            letters: DeadLetterRetention::USUAL,
            broker_user: None,
        }
    }

    /// What sqlx needs to connect.
    pub(crate) fn connect_options(&self) -> Result<PgConnectOptions, sqlx::Error> {
        let options: PgConnectOptions = self.url.parse()?;
        if says_sslmode(&self.url) {
            return Ok(options);
        }
        // sqlx's own default falls back to plain text in silence, wherever the server is.
        let mode = if is_local(&options) {
            PgSslMode::Prefer
        } else {
            PgSslMode::VerifyFull
        };
        Ok(options.ssl_mode(mode))
    }
}

/// Leaves the URL out: it may hold a password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("application_name", &self.application_name)
            .field("commit_connections", &self.commit_connections)
            .field("key_connections", &self.key_connections)
            .field("general_connections", &self.general_connections)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("migrate_statement_timeout", &self.migrate_statement_timeout)
            .field("migrate_tries", &self.migrate_tries)
            .field("letters", &self.letters)
            .finish_non_exhaustive()
    }
}

/// `host:port` or the path of the socket, as errors name the server.
pub(crate) fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// Whether the connection never leaves this machine.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host.eq_ignore_ascii_case("localhost")
        || host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether the URL itself chooses a mode.
fn says_sslmode(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('#')
        .next()
        .unwrap_or_default()
        .split('&')
        .any(|pair| pair.starts_with("sslmode=") || pair.starts_with("ssl-mode="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_leaves_the_machine_only_when_the_url_says_so() {
        let expected = [
            ("postgres://u:p@127.0.0.1:5432/d", "Prefer"),
            ("postgres://u:p@127.9.9.9/d", "Prefer"),
            ("postgres://u:p@[::1]/d", "Prefer"),
            ("postgres://u:p@LOCALHOST/d", "Prefer"),
            ("postgres://u@%2Frun%2Fpostgresql/d", "Prefer"),
            ("postgres://u@x/d?host=/run/postgresql", "Prefer"),
            ("postgres://u:p@db.example.com/d", "VerifyFull"),
            ("postgres://u:p@10.0.0.1/d", "VerifyFull"),
            ("postgres://u:p@localhost.example.com/d", "VerifyFull"),
            ("postgres://u:p@127.0.0.1/d?host=10.0.0.1", "VerifyFull"),
            ("postgres://u:p@db/d?application_name=sslmode", "VerifyFull"),
            ("postgres://u:p@db/d?sslmode=disable", "Disable"),
            ("postgres://u:p@db/d?a=b&sslmode=prefer", "Prefer"),
            ("postgres://u:p@127.0.0.1/d?sslmode=require", "Require"),
        ];
        for (url, mode) in expected {
            let options = PostgresOptions::new(url).connect_options().unwrap();
            assert_eq!(format!("{:?}", options.get_ssl_mode()), mode, "{url}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let options = PostgresOptions::new("postgres://ada:s3cret@db.example.com:6432/d");
        assert!(!format!("{options:?}").contains("s3cret"));
        let connect = options.connect_options().unwrap();
        assert_eq!(address(&connect), "db.example.com:6432");
    }

    #[test]
    fn a_bad_url_is_refused_without_showing_it() {
        for url in ["", "s3cret", "postgres://u:s3cret@h:99999/d"] {
            let error = PostgresOptions::new(url).connect_options().unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
