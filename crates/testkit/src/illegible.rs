//! Messages with what no client library would write: bytes that are no text where AMQP says that
//! there is text, and lists that lie thousands deep in each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// What a client writes, and what becomes of it on its way: no text; and, in place of a text, a
/// list that is made of the text's bytes.
const CHANGES: [(&str, &[u8]); 2] = [("@@@@@@@@", &[0xff; 8]), ("@nested@S", b"@nested@A")];
/// How many lists lie in each other; as many have room in a frame.
const DEPTH: usize = 20_000;

/// A place between one client and the broker where marks become what lapin would not write.
/// Ends when dropped.
#[derive(Debug)]
pub struct Spoiler {
    address: SocketAddr,
    changed: Arc<AtomicUsize>,
    _passing: AbortOnDropHandle<()>,
}

impl Spoiler {
    /// Listens on a free port of loopback for one connection to this broker.
    ///
    /// # Errors
    /// When the URL names no host or there is no port.
    pub async fn start(broker_url: &str) -> anyhow::Result<Self> {
        let url = url::Url::parse(broker_url)?;
        let host = url.host_str().context("the URL names no host")?.to_owned();
        let server = (host, url.port().unwrap_or(5672));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let changed = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&changed);
        let passing = tokio::spawn(async move {
            // Whoever sees that it ends asks for no more.
            let _ended = pass_on(listener, server, &count).await;
        });
        Ok(Self {
            address,
            changed,
            _passing: AbortOnDropHandle::new(passing),
        })
    }

    /// How many marks it has changed.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.changed.load(Ordering::Relaxed)
    }

    /// The same URL by way of this place.
    ///
    /// # Errors
    /// When it is not one.
    pub fn url(&self, broker_url: &str) -> anyhow::Result<String> {
        let mut url = url::Url::parse(broker_url)?;
        url.set_host(Some("127.0.0.1"))?;
        let port = url.set_port(Some(self.address.port()));
        port.ok().context("the URL takes no port")?;
        Ok(url.into())
    }
}

async fn pass_on(
    listener: TcpListener,
    server: (String, u16),
    changed: &AtomicUsize,
) -> std::io::Result<()> {
    let (client, _) = listener.accept().await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    let back = tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
    let _back = AbortOnDropHandle::new(back);
    let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = from_client.read(&mut buffer).await?;
        if count == 0 {
            return to_server.shutdown().await;
        }
        held.extend_from_slice(&buffer[..count]);
        let (ready, count) = spoil(&mut held);
        changed.fetch_add(count, Ordering::Relaxed);
        to_server.write_all(&held[..ready]).await?;
        held.drain(..ready);
    }
}

/// Changes the marks. How many bytes can go on, because the beginning of a mark waits for its end; and
/// how many it has changed.
fn spoil(held: &mut [u8]) -> (usize, usize) {
    let (mut kept, mut changed) = (0, 0);
    for (mark, bytes) in CHANGES {
        let mark = mark.as_bytes();
        while let Some(at) = held.windows(mark.len()).position(|it| it == mark) {
            held[at..at + mark.len()].copy_from_slice(bytes);
            changed += 1;
        }
        let begun = (1..mark.len()).rev();
        let mut begun = begun.filter(|begun| held.ends_with(&mark[..*begun]));
        kept = kept.max(begun.next().unwrap_or(0));
    }
    (held.len() - kept, changed)
}

/// The properties of messages that are illegible once a [`Spoiler`] has passed them on, each in another
/// way.
#[must_use]
pub fn illegible_properties() -> Vec<BasicProperties> {
    let (text, list) = (CHANGES[0].0, "@nested@");
    let empty = BasicProperties::default;
    let headers = |name: &str, value: Vec<u8>| {
        let mut headers = FieldTable::default();
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
        headers
    };
    vec![
        empty().with_headers(headers(list, nested())),
        empty().with_message_id(text.into()),
        empty().with_content_type(text.into()),
        empty().with_reply_to(text.into()),
        empty().with_type(text.into()),
        empty().with_headers(headers(text, text.into())),
    ]
}

/// Lists in lists, as AMQP writes what is in the outermost.
fn nested() -> Vec<u8> {
    let lists = (0..DEPTH as u32).rev();
    lists
        .flat_map(|inside| {
            let [a, b, c, d] = (5 * inside).to_be_bytes();
            [b'A', a, b, c, d]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a mark comes in parts, it goes on changed.
    #[test]
    fn marks_are_changed_whole() {
        let sent = b"ab@@@@@@@@cd@nested@Sxy@".repeat(3);
        let expected = b"ab\xff\xff\xff\xff\xff\xff\xff\xffcd@nested@Axy@".repeat(3);
        for part in 1..sent.len() {
            let (mut held, mut passed) = (Vec::new(), Vec::new());
            for arrived in sent.chunks(part) {
                held.extend_from_slice(arrived);
                let (ready, _) = spoil(&mut held);
                passed.extend(held.drain(..ready));
            }
            // The last byte may begin another one.
            passed.extend(held);
            assert_eq!(passed, expected, "in parts of {part}");
        }
    }
}
