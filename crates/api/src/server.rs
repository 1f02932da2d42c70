//! The socket side: accepting, bounds on connections, and an orderly end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::connections::{Peers, Place, StallBound};
use crate::options::{ApiOptions, OpsListen};
use crate::ports::Ports;
use crate::routes::{ops_routes, router};

/// Connections to the listener of probes and metrics beyond this number wait to be accepted.
const MAX_OPS_CONNECTIONS: usize = 256;
/// How many of them one address may have, so that it cannot keep the probes of others out.
const MAX_OPS_CONNECTIONS_PER_PEER: usize = 32;
/// What a peer is told that has as many connections as it may; nothing was read from it.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 155\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"this address has as many connections \
    as it may; close some, or use them again\",\"retry_after_seconds\":1}}";
/// How long requests that are under way may go on after the order to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections without a request may stay open after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, mostly because files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address can be reached from other machines.
    #[error(
        "{0} is {1}, which other machines can reach; as long as there is no authentication only \
         loopback addresses are allowed, such as 127.0.0.1:8080"
    )]
    NotLoopback(&'static str, SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {setting} {listen}")]
    Listen {
        /// The setting that names it.
        setting: &'static str,
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// The addresses of the server, taken: whoever connects waits until it serves. For a process that
/// must not begin anything else when it cannot have them.
pub struct Addresses {
    api: TcpListener,
    ops: Option<TcpListener>,
}

impl Addresses {
    /// Takes those that `options` name.
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn take(options: &ApiOptions) -> Result<Self, BindError> {
        let ops = match options.ops {
            OpsListen::Off => None,
            OpsListen::At(address) => Some(listen("ops.listen", address).await?),
            OpsListen::Near(address) => Some(listen_near(address).await?),
        };
        let api = listen("api.listen", options.listen).await?;
        Ok(Self { api, ops })
    }
}

/// The HTTP server, bound and not serving yet.
pub struct ApiServer {
    api: Door,
    /// Probes and metrics alone, where clients of the API cannot take all connections.
    ops: Option<Door>,
    /// Holds a token for each request that is under way.
    requests: TaskTracker,
}

/// A listener, what it serves, and its own bounds.
struct Door {
    listener: TcpListener,
    router: Router,
    permits: Arc<Semaphore>,
    peers: Peers,
    max_per_peer: usize,
    head_timeout: Duration,
    write_timeout: Duration,
}

impl ApiServer {
    /// Takes the addresses; otherwise as [`Self::on`].
    ///
    /// # Errors
    /// See [`BindError`].
    ///
    /// # Panics
    /// As [`Self::on`].
    pub async fn bind(options: ApiOptions, ports: Ports, extra: Router) -> Result<Self, BindError> {
        let addresses = Addresses::take(&options).await?;
        Ok(Self::on(addresses, options, ports, extra))
    }

    /// A server on addresses that were taken before. `extra` is served beside the API and beside the
    /// probes (`/metrics`); it must not have a fallback or any of the API's paths.
    ///
    /// # Panics
    /// When `extra` has a path of the API.
    pub fn on(addresses: Addresses, options: ApiOptions, ports: Ports, extra: Router) -> Self {
        let requests = TaskTracker::new();
        let door = |listener, router: Router, max_connections, max_per_peer| Door {
            listener,
            router: router.layer(middleware::from_fn_with_state(requests.clone(), count)),
            permits: Arc::new(Semaphore::new(max_connections)),
            peers: Peers::default(),
            max_per_peer,
            head_timeout: options.head_timeout,
            write_timeout: options.write_timeout,
        };
        let ops = addresses.ops.map(|listener| {
            let router = ops_routes(ports.clone(), extra.clone());
            let (all, per_peer) = (MAX_OPS_CONNECTIONS, MAX_OPS_CONNECTIONS_PER_PEER);
            door(listener, router, all, per_peer)
        });
        let (all, per_peer) = (options.max_connections, options.max_connections_per_peer);
        let api = door(
            addresses.api,
            router(options.clone(), ports, extra),
            all,
            per_peer,
        );
        Self { api, ops, requests }
    }

    /// The address of the API.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.api.listener.local_addr()
    }

    /// The address of the probes and metrics alone, if there is one.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ops_addr(&self) -> io::Result<Option<SocketAddr>> {
        let ops = self.ops.as_ref();
        ops.map(|door| door.listener.local_addr()).transpose()
    }

    /// Serves until `shutdown`, then lets requests that are under way end, for a bounded time.
    pub async fn serve(self, shutdown: CancellationToken) {
        if let Ok(address) = self.local_addr() {
            info!(server.address = %address, "the API serves");
        }
        if let Ok(Some(address)) = self.ops_addr() {
            info!(server.address = %address, "serving /healthz, /readyz and /metrics");
        }
        let connections = TaskTracker::new();
        let ops = async {
            if let Some(door) = self.ops {
                door.serve(&connections, &shutdown).await;
            }
        };
        tokio::join!(self.api.serve(&connections, &shutdown), ops);
        connections.close();
        self.requests.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.requests.wait())
            .await
            .is_err()
        {
            warn!(
                requests.open = self.requests.len(),
                "the API stops in the middle of requests"
            );
        }
        // Answers are on their way out; a connection that never asked anything is not waited for.
        if tokio::time::timeout(CLOSE_TIMEOUT, connections.wait())
            .await
            .is_err()
        {
            debug!(
                connections.open = connections.len(),
                "the API leaves idle connections"
            );
        }
    }
}

async fn listen(setting: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    if !address.ip().to_canonical().is_loopback() {
        return Err(BindError::NotLoopback(setting, address));
    }
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError::Listen {
            setting,
            listen: address,
            source,
        })
}

/// Nobody chose this address, so another process that has it already must not keep this one from
/// starting.
async fn listen_near(address: SocketAddr) -> Result<TcpListener, BindError> {
    match listen("ops.listen", address).await {
        Err(BindError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            let free = listen("ops.listen", SocketAddr::new(address.ip(), 0)).await?;
            warn!(
                server.address = %address,
                "the usual address of the probes is in use; set ops.listen to choose one"
            );
            Ok(free)
        }
        bound => bound,
    }
}

impl Door {
    async fn serve(self, connections: &TaskTracker, shutdown: &CancellationToken) {
        while let Some((stream, peer, permit)) = self.accept(shutdown).await {
            let Some(place) = self.peers.enter(peer, self.max_per_peer) else {
                debug!(peer.address = %peer, "a peer has as many connections as it may");
                // Only what the socket takes at once: nobody waits for such a client.
                drop(stream.try_write(TOO_MANY));
                continue;
            };
            let connection = self.connection(stream, shutdown.clone());
            connections.spawn(async move {
                let _places: (Place, OwnedSemaphorePermit) = (place, permit);
                connection.await;
            });
        }
    }

    /// The next connection; `None` when it is time to stop.
    async fn accept(
        &self,
        shutdown: &CancellationToken,
    ) -> Option<(TcpStream, IpAddr, OwnedSemaphorePermit)> {
        let next = async {
            let permit = Arc::clone(&self.permits)
                .acquire_owned()
                .await
                .expect("nobody closes this semaphore");
            loop {
                match self.listener.accept().await {
                    Ok((stream, peer)) => return (stream, peer.ip().to_canonical(), permit),
                    Err(error) => {
                        warn!(error.message = %error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        shutdown.run_until_cancelled(next).await
    }

    fn connection(
        &self,
        stream: TcpStream,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Answers are small and someone waits for each.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(error.message = %error, "a connection stays without TCP_NODELAY");
        }
        let stream = TokioIo::new(StallBound::new(stream, self.write_timeout));
        // The bound on the head also ends connections on which nothing is asked any more.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .serve_connection(stream, TowerToHyperService::new(self.router.clone()));
        async move {
            let mut connection = pin!(connection);
            let served = tokio::select! {
                served = connection.as_mut() => served,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                debug!(error.message = %error, "a connection ended early");
            }
        }
    }
}

/// Keeps a token for as long as a request is under way.
async fn count(State(requests): State<TaskTracker>, request: Request, next: Next) -> Response {
    let _token = requests.token();
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_connection_is_whole() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "TOO_MANY_CONNECTIONS");
    }
}
