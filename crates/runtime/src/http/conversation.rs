//! One connection, from its first byte to its end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::connections::StallBound;
use super::door::Bounds;
use super::origin::OwnEnd;
use super::tls::{Greeting, Tls};

/// What a peer is told that speaks plain HTTP where TLS is spoken.
pub(super) const TLS_REQUIRED: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: application/json\r\nconnection: close\r\n\
    content-length: 145\r\n\r\n\
    {\"error\":{\"code\":\"TLS_REQUIRED\",\"message\":\"TLS is spoken here: use https://. \
    If this request had a key, it was readable on the way: replace it\"}}";
/// What is read at most of what was sent in the clear, so that the answer is not lost with it, in bytes.
const MAX_UNREAD: usize = 64 * 1024;

/// A connection, and what is served on it.
pub(super) struct Conversation {
    pub(super) router: Router,
    pub(super) bounds: Bounds,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) peer: IpAddr,
    pub(super) stop: CancellationToken,
}

impl Conversation {
    /// Serves until the client or the stop ends it, or one of the bounds.
    pub(super) async fn hold(self, stream: TcpStream) {
        let within = self.bounds.one_request_within;
        let held = self.greet_and_serve(stream);
        let Some(within) = within else {
            return held.await;
        };
        if timeout(within, held).await.is_err() {
            debug!("a connection was cut in the middle of its request");
        }
    }

    async fn greet_and_serve(self, stream: TcpStream) {
        // Answers are small and someone waits for each.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(error.message = %error, "a connection stays without TCP_NODELAY");
        }
        let own = stream.local_addr().ok();
        let Some(tls) = self.tls.clone() else {
            return self.serve(stream, own).await;
        };
        // It has asked nothing yet, so it has the time of a connection on which nothing is asked.
        let greeting = timeout(self.bounds.head_timeout, tls.greet(stream));
        let peer = self.peer;
        match self.stop.clone().run_until_cancelled(greeting).await {
            None => {}
            Some(Ok(Ok(Greeting::Agreed(stream)))) => self.serve(*stream, own).await,
            Some(Ok(Ok(Greeting::Plain(stream)))) => {
                debug!(peer.address = %peer, "a client speaks no TLS");
                let refusing = timeout(self.bounds.head_timeout, refuse_plain(stream));
                drop(refusing.await);
            }
            Some(Ok(Err(error))) => {
                debug!(peer.address = %peer, error.message = %error, "a TLS handshake failed");
            }
            Some(Err(_)) => debug!(peer.address = %peer, "a TLS handshake took too long"),
        }
    }

    async fn serve<S>(self, stream: S, own: Option<SocketAddr>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            bounds, peer, stop, ..
        } = self;
        let router = TowerToHyperService::new(self.router);
        let served = bounds.served;
        let service = service_fn(move |mut request: Request<Incoming>| {
            let client = served.client(peer, request.headers());
            request.extensions_mut().insert(client);
            if let Some(own) = own {
                request.extensions_mut().insert(OwnEnd(own.ip()));
            }
            router.call(request)
        });
        let stream = TokioIo::new(StallBound::new(stream, bounds.write_timeout));
        // The bound on the head also ends connections on which nothing is asked any more.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head_timeout)
            .keep_alive(bounds.one_request_within.is_none())
            .serve_connection(stream, service);
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
    }
}

/// Says in the clear that it is not spoken here. What has come is read: closed with something unread, a
/// connection takes its answer with it.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let mut unread = [0; 4096];
    let mut rest = MAX_UNREAD;
    while rest > 0 {
        match stream.try_read(&mut unread) {
            Ok(0) | Err(_) => break,
            Ok(read) => rest = rest.saturating_sub(read),
        }
    }
    stream.write_all(TLS_REQUIRED).await?;
    stream.shutdown().await
}
