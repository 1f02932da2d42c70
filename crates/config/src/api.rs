//! The settings of the API: where it listens, and what must be so for that.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use attune_core::{Auth, Network, Subnet};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::validate::problem;

/// The API role.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ApiSettings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// See [`auth`](Self::auth).
    pub auth: Option<Auth>,
    /// What it proves by who it is, and what clients prove it by.
    pub tls: TlsSettings,
    /// Whether proxies stand before it, and clients do not reach it by themselves.
    pub behind_proxy: bool,
    /// The proxies.
    pub trusted_proxies: Vec<Subnet>,
    /// How much one key may ask for.
    pub rates: RateSettings,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Connections that one address may have.
    pub max_connections_per_peer: usize,
    /// See [`submit_timeout`](Self::submit_timeout).
    pub submit_timeout_seconds: u64,
    /// The largest page that a list may be asked for.
    pub max_page_size: usize,
}

/// TLS of a listener; without files it speaks plain HTTP.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// Its certificate, and those between it and the authority.
    pub cert_file: Option<PathBuf>,
    /// The key of the certificate.
    pub key_file: Option<PathBuf>,
    /// Authorities one of which must have signed the certificate of every client.
    pub client_ca_file: Option<PathBuf>,
}

/// How much may be asked for with one key, unless the key says otherwise.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RateSettings {
    /// Executions a second.
    pub submit_per_second: u32,
    /// Executions at once.
    pub submit_burst: u32,
    /// Questions a second.
    pub read_per_second: u32,
    /// Questions at once.
    pub read_burst: u32,
    /// Other changes a second.
    pub change_per_second: u32,
    /// Other changes at once.
    pub change_burst: u32,
    /// Keys that are not good, from one address in a minute.
    pub failures_per_minute: u32,
}

impl ApiSettings {
    /// Whether clients must say who they are. Not set: unless only programs of this machine reach it.
    #[must_use]
    pub fn auth(&self) -> Auth {
        match self.auth {
            Some(auth) => auth,
            None if self.is_local() => Auth::Off,
            None => Auth::Required,
        }
    }

    /// How long a submission waits for the owner's answer.
    #[must_use]
    pub const fn submit_timeout(&self) -> Duration {
        Duration::from_secs(self.submit_timeout_seconds)
    }

    /// Whether nobody reaches it but who is on this machine. A proxy on this machine brings others.
    fn is_local(&self) -> bool {
        Network::Loopback.may_listen_on(self.listen.ip()) && !self.behind_proxy
    }

    /// Rules between its keys: a key of a client never crosses a network in the clear, and nobody beyond this
    /// machine is served without one.
    pub(crate) fn check_relations(&self, problems: &mut Vec<Problem>) {
        let mut found = |key: &str, words: String| problems.push(problem(key, words));
        let (listen, port) = (self.listen, self.listen.port());
        if self.auth == Some(Auth::Off) && !self.is_local() {
            let words = format!(
                "`off` is for this machine alone, and others can reach {listen}{}: whoever does could define \
                 actions, which run programs; set it to required or leave it out, or listen on \
                 127.0.0.1:{port} without api.behind_proxy",
                if self.behind_proxy {
                    " through a proxy"
                } else {
                    ""
                }
            );
            found("api.auth", words);
        }
        let has_tls = self.tls.cert_file.is_some() || self.tls.key_file.is_some();
        if !Network::Loopback.may_listen_on(listen.ip()) && !has_tls && !self.behind_proxy {
            let words = format!(
                "other machines can reach {listen}, and the keys of clients would cross the network in the \
                 clear: set `api.tls.cert_file` and `api.tls.key_file`, or `api.behind_proxy` and \
                 `api.trusted_proxies` when a proxy speaks TLS to the clients, or listen on 127.0.0.1:{port}"
            );
            found("api.listen", words);
        }
        for (set, other, key, missing) in [
            (
                &self.tls.cert_file,
                &self.tls.key_file,
                "cert_file",
                "key_file",
            ),
            (
                &self.tls.key_file,
                &self.tls.cert_file,
                "key_file",
                "cert_file",
            ),
            (
                &self.tls.client_ca_file,
                &self.tls.cert_file,
                "client_ca_file",
                "cert_file",
            ),
        ] {
            if set.is_some() && other.is_none() {
                let words =
                    format!("nothing can be proved without `api.tls.{missing}`: set it as well");
                found(&format!("api.tls.{key}"), words);
            }
        }
        if self.behind_proxy && self.trusted_proxies.is_empty() {
            let words = "a proxy tells who its client is, and anybody could be one: name the addresses of the \
                         proxies in `api.trusted_proxies`";
            found("api.behind_proxy", words.to_owned());
        }
        if !self.behind_proxy && !self.trusted_proxies.is_empty() {
            let words = "nobody is taken for a proxy unless `api.behind_proxy` is true: set that, or leave this out";
            found("api.trusted_proxies", words.to_owned());
        }
    }
}
