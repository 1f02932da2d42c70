//! A listener with bounds.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use attune_core::Network;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::counters::Gauge;
use crate::log_pace::LogPace;

use super::connections::{Peers, Place, StallBound};
use super::origin::OwnEnd;

/// What a peer is told whose connection is one too many; nothing was read from it.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 181\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"there are as many \
    connections as there may be, of this address or in all; close some, or use them again\",\"retry_after_seconds\":1}}";
/// What a peer is told that is not of the network that is served; nothing was read from it.
const NOT_SERVED: &[u8] = b"HTTP/1.1 403 Forbidden\r\n\
    content-type: application/json\r\nconnection: close\r\n\
    content-length: 109\r\n\r\n\
    {\"error\":{\"code\":\"FOREIGN_ADDRESS\",\"message\":\"only private networks are served until \
    authentication exists\"}}";
/// The pause after a connection could not be accepted, mostly because files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What becomes of connections beyond those that there may be in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// They wait to be accepted: right for clients that have work.
    Wait,
    /// They are answered with 503 `TOO_MANY_CONNECTIONS` and closed: right for probes, which must not
    /// stand behind others and know nothing.
    Refused,
}

/// What a listener allows.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The network that is served: who connects from elsewhere, or to an address of this machine that is
    /// elsewhere, is answered with 403 `FOREIGN_ADDRESS`.
    pub network: Network,
    /// Connections in all.
    pub max_connections: usize,
    /// What becomes of further ones.
    pub beyond: Beyond,
    /// Connections of one address; further ones are answered with 503 `TOO_MANY_CONNECTIONS` and
    /// closed.
    pub max_per_peer: usize,
    /// How long a connection may be idle, or take to send the head of a request.
    pub head_timeout: Duration,
    /// A connection on which not one byte of an answer could be written for so long is closed.
    pub write_timeout: Duration,
    /// When set, a connection is for one request, and open no longer than this.
    pub one_request_within: Option<Duration>,
}

impl Bounds {
    /// Those of a listener for probes and metrics alone: whoever asks there asks seldom, in few
    /// words, and gets a short answer.
    pub const fn of_probes(network: Network, head_timeout: Duration) -> Self {
        let answered = head_timeout.saturating_mul(2);
        Self {
            network,
            max_connections: 32,
            beyond: Beyond::Refused,
            // One address cannot keep the probes of others out.
            max_per_peer: 16,
            head_timeout,
            write_timeout: answered,
            one_request_within: Some(answered),
        }
    }
}

/// A listener, what it serves, and its own bounds.
pub struct Door {
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    permits: Arc<Semaphore>,
    peers: Peers,
    open: Gauge,
}

/// A connection that counts as open, until it is dropped.
struct Open(Gauge);

impl Open {
    fn one_of(all: &Gauge) -> Self {
        all.raise();
        Self(all.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lower();
    }
}

impl Door {
    /// Serves nothing yet; who connects meanwhile waits.
    pub fn new(listener: TcpListener, router: Router, bounds: Bounds) -> Self {
        Self {
            listener,
            router,
            permits: Arc::new(Semaphore::new(bounds.max_connections)),
            peers: Peers::default(),
            open: Gauge::default(),
            bounds,
        }
    }

    /// How many connections are open, as that changes.
    pub fn open(&self) -> Gauge {
        self.open.clone()
    }

    /// Its address.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections until `stop`, and serves each in a task of `connections`. From the stop on
    /// these take no further requests; they are not waited for here.
    pub async fn serve(self, connections: &TaskTracker, stop: &CancellationToken) {
        let mut foreign = LogPace::default();
        while let Some((stream, peer, permit)) = self.accept(stop).await {
            if !self.serves(&stream, peer) {
                if foreign.is_due() {
                    warn!(
                        peer.address = %peer, times = foreign.tries(),
                        "who connects, or the address that it found, is not of a network that is served"
                    );
                }
                drop(stream.try_write(NOT_SERVED));
                continue;
            }
            let places = permit.zip(self.peers.enter(peer, self.bounds.max_per_peer));
            let Some(places) = places else {
                debug!(peer.address = %peer, "there are as many connections as there may be");
                // Only what the socket takes at once: nobody waits for such a client.
                drop(stream.try_write(TOO_MANY));
                continue;
            };
            let connection = self.connection(stream, stop.clone());
            let open = Open::one_of(&self.open);
            connections.spawn(async move {
                let _places: (OwnedSemaphorePermit, Place, Open) = (places.0, places.1, open);
                connection.await;
            });
        }
    }

    /// Whether both ends of a connection are of the network that is served.
    fn serves(&self, stream: &TcpStream, peer: IpAddr) -> bool {
        let network = self.bounds.network;
        let own = stream.local_addr();
        network.reaches(peer) && own.is_ok_and(|own| network.reaches(own.ip()))
    }

    /// The next connection, with its permit if there is one; `None` when it is time to stop.
    async fn accept(
        &self,
        stop: &CancellationToken,
    ) -> Option<(TcpStream, IpAddr, Option<OwnedSemaphorePermit>)> {
        let next = async {
            // Nobody closes the semaphore; if somebody did, nothing would be let in.
            let mut permit = match self.bounds.beyond {
                Beyond::Wait => Arc::clone(&self.permits).acquire_owned().await.ok(),
                Beyond::Refused => None,
            };
            loop {
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        if self.bounds.beyond == Beyond::Refused {
                            permit = Arc::clone(&self.permits).try_acquire_owned().ok();
                        }
                        return (stream, peer.ip().to_canonical(), permit);
                    }
                    Err(error) => {
                        warn!(error.message = %error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(next).await
    }

    fn connection(
        &self,
        stream: TcpStream,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Answers are small and someone waits for each.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(error.message = %error, "a connection stays without TCP_NODELAY");
        }
        let own = stream.local_addr().ok();
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            if let Some(own) = own {
                request.extensions_mut().insert(OwnEnd(own.ip()));
            }
            router.call(request)
        });
        let within = self.bounds.one_request_within;
        let stream = TokioIo::new(StallBound::new(stream, self.bounds.write_timeout));
        // The bound on the head also ends connections on which nothing is asked any more.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.bounds.head_timeout)
            .keep_alive(within.is_none())
            .serve_connection(stream, service);
        let served = async move {
            let mut connection = pin!(connection);
            let served = tokio::select! {
                served = connection.as_mut() => served,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                debug!(error.message = %error, "a connection ended early");
            }
        };
        async move {
            let Some(within) = within else {
                return served.await;
            };
            if tokio::time::timeout(within, served).await.is_err() {
                debug!("a connection was cut in the middle of its request");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_connection_is_whole() {
        for (refusal, code) in [
            (TOO_MANY, "TOO_MANY_CONNECTIONS"),
            (NOT_SERVED, "FOREIGN_ADDRESS"),
        ] {
            let text = std::str::from_utf8(refusal).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(
                head.ends_with(&format!("content-length: {}", body.len())),
                "{}",
                body.len()
            );
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"]["code"], code);
        }
    }
}
