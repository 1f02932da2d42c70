//! Makes one connection, and can end it for certain.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_runtime::Counter;
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::cause::Cause;
use crate::legible::MAX_FRAME;
use crate::options::{Endpoint, in_the_clear};
use crate::stream::{self, LegibleStream};

/// How long the broker may take to answer that it has closed a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Knows how to connect.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) endpoint: Endpoint,
    /// Shown by the broker.
    pub(crate) name: String,
    pub(crate) timeout: Duration,
    /// Counts the connections in place of one that was lost.
    pub(crate) reconnects: Counter,
    /// Who vouches for whom.
    pub(crate) tls: Arc<OwnedTLSConfig>,
}

/// An open connection.
pub(crate) struct Dialed {
    pub(crate) connection: Connection,
    pub(crate) socket: Socket,
}

impl Dialer {
    /// How often the broker and this process tell each other that they are there.
    pub(crate) fn heartbeat(&self) -> Duration {
        let asked = self.endpoint.uri.query.heartbeat;
        Duration::from_secs(asked.map_or(0, u64::from))
    }

    /// Connects, once.
    pub(crate) async fn dial(&self) -> Result<Dialed, Cause> {
        let mut uri = self.endpoint.uri.clone();
        let asked = uri.query.frame_max;
        let most = asked.filter(|most| *most > 0).unwrap_or(MAX_FRAME);
        let most = most.min(MAX_FRAME);
        uri.query.frame_max = Some(most);
        let uri = &uri;
        let fail = |error: &lapin::Error| {
            let (user, vhost) = (&uri.authority.userinfo.username, &uri.vhost);
            Cause::of_connecting(error, &self.endpoint.place, user, vhost)
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let socket = Socket::default();
        let (held, limit) = (socket.clone(), self.timeout);
        let (endpoint, tls) = (self.endpoint.clone(), Arc::clone(&self.tls));
        // lapin's own recovery stays off (the default): after a closed channel or a half-open
        // connection its consumers can fall silent for good, without an error and without an end.
        let properties = ConnectionProperties::default()
            .with_connection_name(self.name.as_str().into())
            .with_client_property("product".into(), "attune".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let tokio = async_rs::TokioRuntime::tokio_current();
        let connecting = Connection::connector(
            uri.clone(),
            stream::runtime(),
            async move |uri: AMQPUri, _| {
                // lapin sets no limit for connecting, here or in the handshake below.
                let stream = uri.connect_with_config_async(tls.as_ref().as_ref(), &tokio);
                let stream = timeout(limit, stream).await.map_err(|_| late())??;
                let socket = match &stream {
                    AsyncTcpStream::Plain(plain) => plain.get_ref().as_fd(),
                    AsyncTcpStream::Rustls(tls) => tls.get_ref().0.get_ref().as_fd(),
                    _ => return Err(io::Error::other("an unknown kind of stream").into()),
                };
                let socket = TcpStream::from(socket.try_clone_to_owned()?);
                if let Some(network) = endpoint.plain_within
                    && !network.reaches(socket.peer_addr()?.ip())
                {
                    let why = in_the_clear(&endpoint.place, network);
                    return Err(io::Error::other(why).into());
                }
                held.hold(socket);
                // What is encrypted is made legible behind the encryption, so that for lapin every
                // stream is a plain one.
                Ok(AsyncTcpStream::Plain(LegibleStream::new(stream, most)))
            },
            properties,
        );
        match timeout(self.timeout * 2, connecting).await {
            Ok(Ok(connection)) => Ok(Dialed { connection, socket }),
            Ok(Err(error)) => {
                socket.cut();
                Err(fail(&error))
            }
            Err(_) => {
                socket.cut();
                Err(fail(&lapin::Error::from(late())))
            }
        }
    }
}

impl Dialed {
    /// Whether the broker answers here: to something that is no queue's business.
    pub(crate) async fn answers(&self) -> bool {
        let asked = timeout(CLOSE_TIMEOUT, self.connection.create_channel()).await;
        matches!(asked, Ok(Ok(_)))
    }

    /// Closes politely, then for certain. What was not written by then is never sent, and what
    /// was not acknowledged goes back, in order.
    pub(crate) async fn hang_up(&self, why: &str) {
        let reason = lapin::types::ShortString::try_new(why).unwrap_or_default();
        // On a blocked or half-open connection the request cannot even be written.
        let asked = timeout(CLOSE_TIMEOUT, self.connection.close(200, reason)).await;
        if !matches!(asked, Ok(Ok(()))) {
            tracing::debug!(bus.reason = why, "a connection was cut, not closed");
        }
        self.socket.cut();
    }
}

/// A second handle of a connection's socket. lapin's thread ends only when the peer answers or
/// the socket fails, and a half-open one would not fail for a quarter of an hour.
#[derive(Clone, Default)]
pub(crate) struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Socket {
    fn hold(&self, socket: TcpStream) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }

    /// Ends the connection: both directions, at once. Harmless when it has ended.
    pub(crate) fn cut(&self) {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(socket) = handle
            && let Err(error) = socket.shutdown(Shutdown::Both)
        {
            tracing::trace!(error = %error, "a socket had ended before");
        }
    }
}
