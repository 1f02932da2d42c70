//! A way to a server that can be cut.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Passes TCP connections on to a server until it is cut: then it closes all of them, and every
/// new one at once. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    cut: watch::Sender<bool>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Listens on a free port of loopback, for the server of a URL.
    ///
    /// # Errors
    /// When the URL names no server or there is no port.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        let url = url::Url::parse(url)?;
        let host = url.host_str().context("the URL names no host")?.to_owned();
        let port = url.port().or(match url.scheme() {
            "amqp" => Some(5672),
            "postgres" | "postgresql" => Some(5432),
            _ => None,
        });
        let server = (host, port.context("the URL names no port")?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (cut, state) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, server.clone(), state.clone()));
            }
        });
        Ok(Self {
            address,
            cut,
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

    /// Closes every connection, and new ones at once.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Passes new connections on again.
    pub fn restore(&self) {
        self.cut.send_replace(false);
    }
}

async fn pass_on(mut client: TcpStream, server: (String, u16), mut cut: watch::Receiver<bool>) {
    if *cut.borrow_and_update() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    // Small messages that somebody waits for; how it ends does not matter.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        // An error is the end of the proxy.
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::within;

    #[tokio::test]
    async fn passes_on_until_it_is_cut() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", server.local_addr().unwrap());
        let proxy = Proxy::start(&url).await.unwrap();
        let echo = async {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).await.unwrap();
                stream.write_all(&byte).await.unwrap();
            }
        };
        let client = async {
            let mut byte = [7];
            let mut first = TcpStream::connect(proxy.address()).await.unwrap();
            first.write_all(&byte).await.unwrap();
            first.read_exact(&mut byte).await.unwrap();
            proxy.cut();
            // Closed, in whichever way.
            assert!(matches!(first.read(&mut byte).await, Ok(0) | Err(_)));
            let mut second = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(matches!(second.read(&mut byte).await, Ok(0) | Err(_)));
            proxy.restore();
            let mut third = TcpStream::connect(proxy.address()).await.unwrap();
            third.write_all(&[9]).await.unwrap();
            third.read_exact(&mut byte).await.unwrap();
            byte[0]
        };
        let all = async {
            tokio::select! {
                () = echo => unreachable!("it accepts for ever"),
                byte = client => byte,
            }
        };
        assert_eq!(within("the echo", all).await.unwrap(), 9);
    }
}
