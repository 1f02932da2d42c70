//! What the server can be told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use attune_core::{Auth, Network, Subnet};
use attune_runtime::http::{Served, Tls};
use attune_secrets::Keyring;

use crate::auth::ClientRates;

/// Settings of the server; see [`ApiOptions::new`] for the defaults.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether clients must say who they are. Where not, only this machine is served, under its own names.
    pub auth: Auth,
    /// How much one key may ask for.
    pub rates: ClientRates,
    /// Proxies that stand before it: when set, nobody else is served but this machine.
    pub proxies: Option<Arc<[Subnet]>>,
    /// The TLS that is spoken there; `None`: plain HTTP. The probes at `ops` speak none.
    pub tls: Option<Arc<Tls>>,
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// Larger request bodies are refused with 413, in bytes.
    pub max_body_bytes: usize,
    /// The largest message that the bus carries, in bytes.
    pub max_message_bytes: usize,
    /// How long a command waits for the answer of its partition's owner.
    pub submit_timeout: Duration,
    /// The largest page that a list may be asked for, in rows.
    pub max_page_size: u32,
    /// A page of a list ends early when it would have more bytes; one row it always has.
    pub page_bytes: usize,
    /// What holds for queues whose policy does not say otherwise.
    pub queue: QueueDefaults,
    /// Connections beyond this number wait to be accepted.
    pub max_connections: usize,
    /// Connections of one address beyond this number are answered with 503
    /// `TOO_MANY_CONNECTIONS` and closed.
    pub max_connections_per_peer: usize,
    /// How long a connection may be idle, or take to send the head of a request.
    pub head_timeout: Duration,
    /// How long the body of a request may take to arrive; then it is answered with 408.
    pub body_timeout: Duration,
    /// How long the schemas of one request may take to be compiled and its parameters to be
    /// checked; then it is answered with 503 `OVERLOADED`, and nothing was done.
    pub check_timeout: Duration,
    /// A connection on which not one byte of an answer could be written for so long is closed.
    pub write_timeout: Duration,
    /// Where the probes and the metrics are served alone, beside the address of the API.
    pub ops: OpsListen,
    /// Who is served there. It must reach the address to listen on.
    pub ops_network: Network,
    /// Requests beyond this number at once are answered with 503 `OVERLOADED`.
    pub max_requests: usize,
    /// What is secret in parameters is sealed with these.
    pub secrets: Keyring,
}

/// A listener for the probes and the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpsListen {
    /// None beside the address of the API.
    Off,
    /// This address and no other; port 0 takes a free one.
    At(SocketAddr),
    /// This address, or a free port when somebody has it.
    Near(SocketAddr),
}

/// Bounds of queues whose policy does not set its own: `executor.queue.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDefaults {
    /// How many executions may wait.
    pub max_queue_length: u32,
    /// How long an execution may wait.
    pub queue_timeout: Duration,
}

impl Default for QueueDefaults {
    fn default() -> Self {
        Self {
            max_queue_length: 10_000,
            queue_timeout: Duration::from_secs(3600),
        }
    }
}

impl ApiOptions {
    /// The defaults of the default settings file.
    pub fn new(listen: SocketAddr, partitions: u16) -> Self {
        Self {
            listen,
            auth: Auth::Off,
            rates: ClientRates::default(),
            proxies: None,
            tls: None,
            partitions,
            max_body_bytes: attune_core::input::DEFAULT_MAX_BYTES,
            max_message_bytes: attune_core::input::DEFAULT_MAX_BYTES,
            submit_timeout: Duration::from_secs(10),
            max_page_size: 1000,
            page_bytes: 8 * 1024 * 1024,
            queue: QueueDefaults::default(),
            max_connections: 1024,
            max_connections_per_peer: 512,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            check_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            ops: OpsListen::Off,
            ops_network: Network::Loopback,
            max_requests: 1024,
            secrets: Keyring::default(),
        }
    }

    /// Whether it may listen at this address: beyond this machine only where clients say who they are.
    pub(crate) fn may_listen(&self) -> bool {
        self.auth == Auth::Required || Network::Loopback.may_listen_on(self.listen.ip())
    }

    /// Who is served.
    pub(crate) fn served(&self) -> Served {
        match (&self.proxies, self.auth) {
            (Some(proxies), _) => Served::Behind(Arc::clone(proxies)),
            (None, Auth::Off) => Served::Network(Network::Loopback),
            (None, Auth::Required) => Served::Everybody,
        }
    }

    /// The network by whose names requests must ask; `None` where they name a key, which no page of a browser
    /// can.
    pub(crate) const fn asked_by_names_of(&self) -> Option<Network> {
        match self.auth {
            Auth::Off => Some(Network::Loopback),
            Auth::Required => None,
        }
    }

    /// How long any request may take: its body's and a command's deadline, and room for
    /// everything around them.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.body_timeout + self.submit_timeout + Duration::from_secs(10)
    }
}
