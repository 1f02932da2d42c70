//! The socket side: addresses, listeners with their bounds, and an orderly end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use attune_core::Network;
use attune_runtime::Meter;
use attune_runtime::http::{Beyond, Bounds, Door};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::figures::ApiFigures;
use crate::options::{ApiOptions, OpsListen};
use crate::ports::Ports;
use crate::routes::{ops_routes, router_until};

/// How long requests that are under way may go on after the order to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections without a request may stay open after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address can be reached by others than may be served there.
    #[error(
        "{setting} is {listen}, which other machines can reach, and nobody is asked there who they are"
    )]
    Beyond {
        /// The setting that names it.
        setting: &'static str,
        /// The address.
        listen: SocketAddr,
    },
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
            OpsListen::At(address) => {
                let may = options.ops_network.may_listen_on(address.ip());
                Some(listen("ops.listen", address, may).await?)
            }
            OpsListen::Near(address) => Some(listen_near(address, options.ops_network).await?),
        };
        let api = listen("api.listen", options.listen, options.may_listen()).await?;
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
    /// Ends requests that only wait for something to happen.
    stop: CancellationToken,
    figures: Arc<ApiFigures>,
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
        let (requests, figures) = (TaskTracker::new(), Arc::clone(&ports.figures));
        let door = |listener, router: Router, bounds| {
            let counted = router.layer(middleware::from_fn_with_state(requests.clone(), count));
            Door::new(listener, counted, bounds)
        };
        let ops = addresses.ops.map(|listener| {
            let network = options.ops_network;
            let router = ops_routes(network, ports.clone(), extra.clone());
            let bounds = Bounds::of_probes(network, options.head_timeout);
            door(listener, router, bounds)
        });
        let bounds = Bounds {
            served: options.served(),
            max_connections: options.max_connections,
            beyond: Beyond::Wait,
            max_per_peer: options.max_connections_per_peer,
            head_timeout: options.head_timeout,
            write_timeout: options.write_timeout,
            one_request_within: None,
        };
        let stop = CancellationToken::new();
        let tls = options.tls.clone();
        let routes = router_until(stop.clone(), options, ports, extra);
        let api = door(addresses.api, routes, bounds).with_tls(tls);
        Self {
            api,
            ops,
            requests,
            stop,
            figures,
        }
    }

    /// Shows what it counts among the metrics.
    pub fn export(&self, meter: &Meter) {
        self.figures.export(meter);
        self.figures.begin();
        let help = "Connections to the API that are open.";
        self.api.open().export(meter, "api.connections", help);
    }

    /// The address of the API.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.api.local_addr()
    }

    /// The address of the probes and metrics alone, if there is one.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ops_addr(&self) -> io::Result<Option<SocketAddr>> {
        let ops = self.ops.as_ref();
        ops.map(Door::local_addr).transpose()
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
        let stopping = async {
            shutdown.cancelled().await;
            self.stop.cancel();
        };
        tokio::join!(self.api.serve(&connections, &shutdown), ops, stopping);
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

async fn listen(
    setting: &'static str,
    address: SocketAddr,
    may: bool,
) -> Result<TcpListener, BindError> {
    if !may {
        return Err(BindError::Beyond {
            setting,
            listen: address,
        });
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
async fn listen_near(address: SocketAddr, network: Network) -> Result<TcpListener, BindError> {
    let may = network.may_listen_on(address.ip());
    match listen("ops.listen", address, may).await {
        Err(BindError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            let free = listen("ops.listen", SocketAddr::new(address.ip(), 0), may).await?;
            warn!(
                server.address = %address,
                "the usual address of the probes is in use; set ops.listen to choose one"
            );
            Ok(free)
        }
        bound => bound,
    }
}

/// Keeps a token for as long as a request is under way.
async fn count(State(requests): State<TaskTracker>, request: Request, next: Next) -> Response {
    let _token = requests.token();
    next.run(request).await
}
