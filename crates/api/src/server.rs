//! The socket side: accepting, bounds on connections, and an orderly end.

use std::io;
use std::net::SocketAddr;
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

use crate::options::ApiOptions;
use crate::ports::Ports;
use crate::routes::router;

/// How long a connection may be idle, or take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
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
        "api.listen is {0}, which other machines can reach; as long as there is no authentication \
         only loopback addresses are allowed, such as 127.0.0.1:8080"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on api.listen {listen}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// The HTTP server, bound and not serving yet.
pub struct ApiServer {
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    /// Holds a token for each request that is under way.
    requests: TaskTracker,
}

impl ApiServer {
    /// Takes the address. `extra` is served beside the API (`/metrics`); it must not have a
    /// fallback or any of the API's paths.
    ///
    /// # Errors
    /// See [`BindError`].
    ///
    /// # Panics
    /// When `extra` has a path of the API.
    pub async fn bind(options: ApiOptions, ports: Ports, extra: Router) -> Result<Self, BindError> {
        let listen = options.listen;
        if !listen.ip().to_canonical().is_loopback() {
            return Err(BindError::NotLoopback(listen));
        }
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| BindError::Listen { listen, source })?;
        let max_connections = options.max_connections;
        let requests = TaskTracker::new();
        let router = router(options, ports, extra)
            .layer(middleware::from_fn_with_state(requests.clone(), count));
        Ok(Self {
            listener,
            router,
            max_connections,
            requests,
        })
    }

    /// The address in use.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`, then lets requests that are under way end, for a bounded time.
    pub async fn serve(self, shutdown: CancellationToken) {
        if let Ok(address) = self.local_addr() {
            info!(server.address = %address, "the API serves");
        }
        let connections = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(self.max_connections));
        while let Some((stream, permit)) = self.accept(&permits, &shutdown).await {
            let service = TowerToHyperService::new(self.router.clone());
            connections.spawn(serve_connection(stream, service, shutdown.clone(), permit));
        }
        drop(self.listener);
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

    /// The next connection; `None` when it is time to stop.
    async fn accept(
        &self,
        permits: &Arc<Semaphore>,
        shutdown: &CancellationToken,
    ) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let next = async {
            let permit = Arc::clone(permits)
                .acquire_owned()
                .await
                .expect("nobody closes this semaphore");
            loop {
                match self.listener.accept().await {
                    Ok((stream, _)) => return (stream, permit),
                    Err(error) => {
                        warn!(error.message = %error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        shutdown.run_until_cancelled(next).await
    }
}

/// Keeps a token for as long as a request is under way.
async fn count(State(requests): State<TaskTracker>, request: Request, next: Next) -> Response {
    let _token = requests.token();
    next.run(request).await
}

async fn serve_connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    // Answers are small and someone waits for each.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(error.message = %error, "a connection stays without TCP_NODELAY");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
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
