//! Makes one connection, and can end it for certain.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, TLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::compat::FuturesAsyncReadCompatExt as _;

use crate::cause::Cause;
use crate::legible;
use crate::options::Endpoint;

/// How long the broker may take to answer that it has closed a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Knows how to connect.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) endpoint: Endpoint,
    /// Shown by the broker.
    pub(crate) name: String,
    pub(crate) timeout: Duration,
    /// A connection ended because lapin could not read what the broker sent: those that follow are
    /// made [`legible`](crate::legible).
    pub(crate) illegible: Arc<AtomicBool>,
}

/// An open connection.
pub(crate) struct Dialed {
    pub(crate) connection: Connection,
    pub(crate) socket: Socket,
}

impl Dialer {
    /// Connects, once.
    pub(crate) async fn dial(&self) -> Result<Dialed, Cause> {
        let uri = &self.endpoint.uri;
        let fail = |error: &lapin::Error| {
            let (user, vhost) = (&uri.authority.userinfo.username, &uri.vhost);
            Cause::of_connecting(error, &self.endpoint.place, user, vhost)
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let socket = Socket::default();
        let (held, limit) = (socket.clone(), self.timeout);
        let illegible = self.illegible.load(Ordering::Relaxed);
        // lapin's own recovery stays off (the default): after a closed channel or a half-open
        // connection its consumers can fall silent for good, without an error and without an end.
        let properties = ConnectionProperties::default()
            .with_connection_name(self.name.as_str().into())
            .with_client_property("product".into(), "attune".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let runtime = lapin::runtime::default_runtime().map_err(|error| fail(&error))?;
        let connecting = Connection::connector(
            uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                // lapin sets no limit for connecting, here or in the handshake below.
                let stream = uri.connect_with_config_async(TLSConfig::default(), &runtime);
                let stream = timeout(limit, stream).await.map_err(|_| late())??;
                let socket = match &stream {
                    AsyncTcpStream::Plain(plain) => plain.get_ref().as_fd(),
                    AsyncTcpStream::Rustls(tls) => tls.get_ref().0.get_ref().as_fd(),
                    _ => return Err(io::Error::other("an unknown kind of stream").into()),
                };
                held.hold(TcpStream::from(socket.try_clone_to_owned()?));
                if !illegible {
                    return Ok(stream);
                }
                // lapin takes no stream but one of its own: this one leads to a task of ours.
                let near = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let mut to_near = uri.clone();
                to_near.scheme = AMQPScheme::AMQP;
                to_near.authority.host = Ipv4Addr::LOCALHOST.to_string();
                to_near.authority.port = near.local_addr()?.port();
                let through = to_near.connect_with_config_async(TLSConfig::default(), &runtime);
                let (through, accepted) = tokio::join!(through, near.accept());
                let (through, (accepted, from)) = (through?, accepted?);
                let own = match &through {
                    AsyncTcpStream::Plain(plain) => plain.get_ref().local_addr()?,
                    _ => return Err(io::Error::other("an unknown kind of stream").into()),
                };
                // The other way, lapin sees to it.
                accepted.set_nodelay(true)?;
                if own != from {
                    return Err(io::Error::other("somebody else came first").into());
                }
                tokio::spawn(lead_through(stream.compat(), accepted));
                Ok(through)
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

/// Leads what is sent to the broker `far`, and what it sends back, made legible; until one of the
/// two ends.
async fn lead_through(far: impl AsyncRead + AsyncWrite + Unpin, near: tokio::net::TcpStream) {
    let (mut from_far, mut to_far) = tokio::io::split(far);
    let (mut from_near, to_near) = near.into_split();
    let sent = async {
        tokio::io::copy(&mut from_near, &mut to_far).await?;
        to_far.shutdown().await
    };
    let ended = tokio::select! {
        ended = sent => ended,
        ended = legible::pass(&mut from_far, to_near) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection that is made legible has ended");
    }
}

impl Dialed {
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
