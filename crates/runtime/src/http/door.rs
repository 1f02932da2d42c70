//! A listener with bounds.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use attune_core::Network;
use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::counters::Gauge;
use crate::log_pace::LogPace;

use super::connections::{Peers, Place};
use super::conversation::Conversation;
use super::served::Served;
use super::tls::Tls;

/// What a peer is told whose connection is one too many; nothing was read from it.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 181\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"there are as many \
    connections as there may be, of this address or in all; close some, or use them again\",\"retry_after_seconds\":1}}";
/// What a peer is told that is not served; nothing was read from it.
const NOT_SERVED: &[u8] = b"HTTP/1.1 403 Forbidden\r\n\
    content-type: application/json\r\nconnection: close\r\n\
    content-length: 94\r\n\r\n\
    {\"error\":{\"code\":\"FOREIGN_ADDRESS\",\"message\":\"your address is none of those that are served\"}}";
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
    /// Who is served.
    pub served: Served,
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
            served: Served::Network(network),
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
    tls: Option<Arc<Tls>>,
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
            tls: None,
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

    /// The same, which speaks TLS and nothing else if there is one. A handshake counts as a connection, and
    /// may take as long as the head of a request.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<Tls>>) -> Self {
        self.tls = tls;
        self
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
                        "who connects, or the address that it found, is not among those that are served"
                    );
                }
                self.tell(&stream, NOT_SERVED);
                continue;
            }
            let max = match self.bounds.served.is_proxy(peer) {
                true => usize::MAX,
                false => self.bounds.max_per_peer,
            };
            let places = permit.zip(self.peers.enter(peer, max));
            let Some(places) = places else {
                debug!(peer.address = %peer, "there are as many connections as there may be");
                self.tell(&stream, TOO_MANY);
                continue;
            };
            let conversation = Conversation {
                router: self.router.clone(),
                bounds: self.bounds.clone(),
                tls: self.tls.clone(),
                peer,
                stop: stop.clone(),
            };
            let open = Open::one_of(&self.open);
            connections.spawn(async move {
                let _places: (OwnedSemaphorePermit, Place, Open) = (places.0, places.1, open);
                conversation.hold(stream).await;
            });
        }
    }

    /// Tells a client why its connection is closed, in the clear: where TLS is spoken it hears nothing, for
    /// agreeing on keys is what it is refused. Only what the socket takes at once: nobody waits for it.
    fn tell(&self, stream: &TcpStream, refusal: &[u8]) {
        if self.tls.is_none() {
            drop(stream.try_write(refusal));
        }
    }

    fn serves(&self, stream: &TcpStream, peer: IpAddr) -> bool {
        let own = stream.local_addr();
        own.is_ok_and(|own| self.bounds.served.admits(peer, own.ip()))
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
}

#[cfg(test)]
mod tests {
    use super::super::conversation::TLS_REQUIRED;
    use super::*;

    #[test]
    fn the_refusal_of_a_connection_is_whole() {
        for (refusal, code) in [
            (TOO_MANY, "TOO_MANY_CONNECTIONS"),
            (NOT_SERVED, "FOREIGN_ADDRESS"),
            (TLS_REQUIRED, "TLS_REQUIRED"),
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
