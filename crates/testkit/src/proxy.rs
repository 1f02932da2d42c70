//! A way to a server that can be broken in the ways in which networks break.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// What is passed on at once, at most; with a delay it bounds the throughput as well.
const CHUNK: usize = 16 * 1024;

/// How connections are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As they come.
    Open,
    /// Not at all: what is open is closed, and new connections at once.
    Cut,
    /// Late by so much, each piece.
    Slow(Duration),
    /// Nothing that the client sends; it arrives once the way is open again.
    OnlyToClient,
    /// Nothing that the server sends; it arrives once the way is open again.
    OnlyToServer,
    /// Nothing in either direction, and nobody is told: the server has lost its connections, the
    /// client still believes in its own, until the way changes and they are closed.
    HalfOpen,
}

/// Passes TCP connections on to a server in the [`Way`] that it is told. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: watch::Sender<Way>,
    /// How often what was open has been silenced.
    silences: watch::Sender<u64>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Listens on a free port of loopback, for the server of a URL.
    ///
    /// # Errors
    /// When the URL names no server or there is no port.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0").await?, url)
    }

    /// Listens on this socket, for the server of a URL.
    ///
    /// # Errors
    /// When the URL names no server.
    pub fn on(listener: TcpListener, url: &str) -> anyhow::Result<Self> {
        let url = url::Url::parse(url)?;
        let host = url.host_str().context("the URL names no host")?.to_owned();
        let port = url.port().or(match url.scheme() {
            "amqp" => Some(5672),
            "postgres" | "postgresql" => Some(5432),
            _ => None,
        });
        let server = (host, port.context("the URL names no port")?);
        let address = listener.local_addr()?;
        let (way, state) = watch::channel(Way::Open);
        let (silences, silenced) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Only silences after this moment concern it.
                let mut silenced = silenced.clone();
                silenced.mark_unchanged();
                tokio::spawn(pass_on(client, server.clone(), state.clone(), silenced));
            }
        });
        Ok(Self {
            address,
            way,
            silences,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// The same URL by way of the proxy.
    ///
    /// # Errors
    /// When it is not one.
    pub fn url(&self, url: &str) -> anyhow::Result<String> {
        let mut url = url::Url::parse(url)?;
        url.set_host(Some("127.0.0.1"))?;
        let port = url.set_port(Some(self.address.port()));
        port.ok().context("the URL takes no port")?;
        Ok(url.into())
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the way, for open connections and for new ones.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Passes nothing more on of what is open now, and tells nobody, for as long as this lives; what is opened from
    /// now on is passed on. A firewall that forgets its connections does so, and a host that takes over an address.
    pub fn silence(&self) {
        self.silences.send_modify(|times| *times += 1);
    }

    /// Closes every connection, and new ones at once.
    pub fn cut(&self) {
        self.set(Way::Cut);
    }

    /// Passes everything on again.
    pub fn restore(&self) {
        self.set(Way::Open);
    }
}

async fn pass_on(
    client: TcpStream,
    server: (String, u16),
    mut state: watch::Receiver<Way>,
    mut silenced: watch::Receiver<u64>,
) {
    let made_on = *state.borrow_and_update();
    // Small messages that somebody waits for; if this fails, they are only slower.
    let _ = client.set_nodelay(true);
    let (mut from_client, mut to_client) = client.into_split();
    if !matches!(made_on, Way::Cut | Way::HalfOpen) {
        let Ok(server) = TcpStream::connect(server).await else {
            return;
        };
        let _ = server.set_nodelay(true);
        let (mut from_server, mut to_server) = server.into_split();
        let both = async {
            tokio::try_join!(
                pump(
                    &mut from_client,
                    &mut to_server,
                    state.clone(),
                    Way::OnlyToClient
                ),
                pump(
                    &mut from_server,
                    &mut to_client,
                    state.clone(),
                    Way::OnlyToServer
                ),
            )
        };
        let mut broken = state.clone();
        let is_silent = tokio::select! {
            _ = both => return,
            changed = silenced.changed() => changed.is_ok(),
            // An error is the end of the proxy.
            _ = broken.wait_for(|way| matches!(way, Way::Cut | Way::HalfOpen)) => false,
        };
        if is_silent {
            // Both ends stay open, until the proxy ends.
            while silenced.changed().await.is_ok() {}
            return;
        }
    }
    // The server's end is gone by now; the client's stays for as long as nobody tells it.
    let _ = state.wait_for(|way| *way != Way::HalfOpen).await;
}

/// Passes on what comes from one side until it ends, except while `held` is the way.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut state: watch::Receiver<Way>,
    held: Way,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let gone = |_| std::io::Error::other("the proxy has ended");
    loop {
        state.wait_for(|way| *way != held).await.map_err(gone)?;
        let length = from.read(&mut chunk).await?;
        // It may have changed while nothing came.
        let way = *state.wait_for(|way| *way != held).await.map_err(gone)?;
        if length == 0 {
            return to.shutdown().await;
        }
        if let Way::Slow(delay) = way {
            tokio::time::sleep(delay).await;
        }
        to.write_all(&chunk[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::within;

    /// A server that answers each byte with itself, and the way to it.
    async fn echo() -> (Proxy, AbortOnDropHandle<()>) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", server.local_addr().unwrap());
        let proxy = Proxy::start(&url).await.unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        stream.write_all(&byte).await.unwrap();
                    }
                });
            }
        });
        (proxy, AbortOnDropHandle::new(serving))
    }

    async fn answered(stream: &mut TcpStream, byte: u8) -> bool {
        let mut read = [0];
        let asked = stream.write_all(&[byte]).await;
        asked.is_ok() && stream.read_exact(&mut read).await.is_ok() && read == [byte]
    }

    /// Whether nothing comes back for a moment. What would come is there within microseconds.
    async fn silent(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        let patience = Duration::from_millis(200);
        tokio::time::timeout(patience, stream.read(&mut byte))
            .await
            .is_err()
    }

    #[tokio::test]
    async fn passes_on_until_it_is_cut() {
        let (proxy, _server) = echo().await;
        let all = async {
            let mut first = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(answered(&mut first, 7).await);
            proxy.cut();
            // Closed, in whichever way.
            assert!(matches!(first.read(&mut [0]).await, Ok(0) | Err(_)));
            let mut second = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(matches!(second.read(&mut [0]).await, Ok(0) | Err(_)));
            proxy.restore();
            let mut third = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(answered(&mut third, 9).await);
        };
        within("the echo", all).await.unwrap();
    }

    #[tokio::test]
    async fn what_one_way_holds_back_arrives_later() {
        let (proxy, _server) = echo().await;
        let all = async {
            for way in [Way::OnlyToClient, Way::OnlyToServer] {
                let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
                assert!(answered(&mut stream, 1).await);
                proxy.set(way);
                stream.write_all(&[2]).await.unwrap();
                assert!(silent(&mut stream).await, "{way:?}");
                proxy.restore();
                let mut byte = [0];
                stream.read_exact(&mut byte).await.unwrap();
                assert_eq!(byte, [2], "{way:?}");
            }
        };
        within("the echo", all).await.unwrap();
    }

    #[tokio::test]
    async fn half_open_tells_nobody_until_it_is_over() {
        let (proxy, _server) = echo().await;
        let all = async {
            let mut before = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(answered(&mut before, 1).await);
            proxy.set(Way::HalfOpen);
            let mut during = TcpStream::connect(proxy.address()).await.unwrap();
            for stream in [&mut before, &mut during] {
                stream.write_all(&[2]).await.unwrap();
                assert!(silent(stream).await);
            }
            proxy.set(Way::Slow(Duration::from_millis(1)));
            for stream in [&mut before, &mut during] {
                assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
            }
            let mut after = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(answered(&mut after, 3).await);
        };
        within("the echo", all).await.unwrap();
    }
}
