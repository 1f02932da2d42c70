//! Looking at a broker, for people who look after it: what it is, and what of a system is there.
//!
//! Nothing is made or changed. Whether something has other arguments only a declaration of it tells, which is
//! one of what was just seen to be there, and with the words that every process of the system uses.

use std::io;
use std::time::{Duration, Instant};

use attune_bus::{BusError, Depth, Topic};
use attune_core::{OwnerId, WorkerId};
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::tcp::AMQPUriTcpExt as _;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, ErrorKind};
use std::sync::Arc;
use uuid::Uuid;

use crate::cause::Cause;
use crate::dial::{Dialed, Dialer};
use crate::mark::MARK;
use crate::options::{Declaring, Endpoint, RabbitOptions};
use crate::topology::{EXCHANGES, Topology, short};

/// How a client begins to speak AMQP 0-9-1.
const HELLO: &[u8] = b"AMQP\x00\x00\x09\x01";
/// Kind, channel and length come before what a frame carries.
const BEFORE: usize = 7;
/// What the broker says of itself is a few hundred bytes.
const MAX_GREETING: usize = 64 * 1024;
/// The protocol's number of "not found".
pub(crate) const NOT_FOUND: u16 = 404;

/// What a broker says of itself before anybody logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// As in `RabbitMQ`.
    pub product: String,
    /// As in `4.0.5`.
    pub version: String,
}

/// Whether a queue or an exchange is as this system declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// It is.
    Right,
    /// It is not; what the broker says.
    Other(String),
    /// The user may not declare it, so the broker does not compare.
    Unknown,
}

/// A connection to a broker that is only looked at.
pub struct BrokerLook {
    dialed: Dialed,
    /// Only looks.
    looking: Topology,
    /// Declares, for what is there.
    comparing: Topology,
    prefix: String,
    channel: Option<Channel>,
}

impl BrokerLook {
    /// What the broker says of itself, on a connection that ends with that.
    ///
    /// # Errors
    /// [`BusError::Unavailable`] when it cannot be reached or speaks no AMQP, [`BusError::Refused`] when the options
    /// cannot be used.
    pub async fn greeting(options: &RabbitOptions) -> Result<Greeting, BusError> {
        let endpoint = Endpoint::of(options)?;
        let tls = options.tls.read()?;
        let place = endpoint.place.clone();
        let asking = async {
            let tokio = async_rs::TokioRuntime::tokio_current();
            let stream = endpoint.uri.connect_with_config_async(tls.as_ref(), &tokio);
            let mut stream = stream.await?;
            stream.write_all(HELLO).await?;
            stream.flush().await?;
            let mut before = [0; BEFORE];
            stream.read_exact(&mut before).await?;
            let [.., a, b, c, d] = before;
            let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            if before[0] != 1 || length > MAX_GREETING {
                return Err(io::Error::other("what answers there speaks no AMQP 0-9-1"));
            }
            let mut said = vec![0; length];
            stream.read_exact(&mut said).await?;
            Ok(said)
        };
        let answer = tokio::time::timeout(options.connect_timeout, asking).await;
        let said = answer
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
            .map_err(|error| BusError::Unavailable(format!("{place}: {error}")))?;
        let text = |key: &str| property(&said, key).unwrap_or_else(|| "unknown".to_owned());
        Ok(Greeting {
            product: text("product"),
            version: text("version"),
        })
    }

    /// Logs in.
    ///
    /// # Errors
    /// As [`RabbitBus::connect`](crate::RabbitBus::connect).
    pub async fn at(options: &RabbitOptions) -> Result<Self, BusError> {
        let dialer = Dialer {
            endpoint: Endpoint::of(options)?,
            name: options.connection_name.clone(),
            timeout: options.connect_timeout,
            reconnects: options.reconnects.clone(),
            tls: Arc::new(options.tls.read()?),
        };
        let topology = |declaring| {
            let mut options = options.clone();
            options.declaring = declaring;
            Topology::of(&options)
        };
        Ok(Self {
            dialed: dialer.dial().await?,
            looking: topology(Declaring::Passive),
            comparing: topology(Declaring::Apply),
            prefix: options.prefix.clone(),
            channel: None,
        })
    }

    /// The heartbeat that the two have agreed on, in seconds.
    pub fn heartbeat(&self) -> u16 {
        self.dialed.connection.configuration().heartbeat()
    }

    /// Whether the broker has said that it takes no messages for now: it is short of memory or disk.
    pub fn is_blocked(&self) -> bool {
        self.dialed.connection.status().blocked()
    }

    /// How long the broker takes to answer.
    ///
    /// # Errors
    /// When it does not.
    pub async fn round_trip(&mut self) -> Result<Duration, BusError> {
        self.channel = None;
        let began = Instant::now();
        self.channel().await?;
        Ok(began.elapsed())
    }

    /// The exchanges that are not there, and of those that are whether they are as they should be.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn exchanges(&mut self, compare: bool) -> Result<Vec<Found>, BusError> {
        let mut found = Vec::new();
        for (name, kind) in EXCHANGES {
            let name = format!("{}{name}", self.prefix);
            let declare = |passive| ExchangeDeclareOptions {
                durable: true,
                passive,
                ..Default::default()
            };
            let channel = self.channel().await?;
            let (short, none) = (short(name.clone())?, FieldTable::default());
            let seen =
                channel.exchange_declare(short.clone(), kind.clone(), declare(true), none.clone());
            let seen = seen.await;
            if self.is_missing(seen)?.is_none() {
                found.push((name, None));
                continue;
            }
            let arguments = match compare {
                true => {
                    let channel = self.channel().await?;
                    let declared = channel.exchange_declare(short, kind, declare(false), none);
                    let declared = declared.await.map_err(|error| Cause::of(&error));
                    self.compared(declared)?
                }
                false => Arguments::Unknown,
            };
            found.push((name, Some((Depth::default(), arguments))));
        }
        Ok(found)
    }

    /// The queue of a topic: its name, and where it is there what waits in it and whether it is as it should be.
    ///
    /// # Errors
    /// When the broker does not answer, or does not let this user look.
    pub async fn queue(&mut self, topic: &Topic, compare: bool) -> Result<Found, BusError> {
        let plan = self.looking.plan(topic)?;
        let name = plan.name.to_string();
        let Some(depth) = self.depth(&name).await? else {
            return Ok((name, None));
        };
        if !compare {
            return Ok((name, Some((depth, Arguments::Unknown))));
        }
        loop {
            let channel = self.channel().await?;
            let mut plan = self.comparing.plan(topic)?;
            plan.binding = None;
            let declared = self.comparing.declare_queue(&channel, plan).await;
            match declared {
                Err(cause) if cause.wants_another_attempt() => self.channel = None,
                declared => return Ok((name, Some((depth, self.compared(declared)?)))),
            }
        }
    }

    /// Whether the place on the broker bears the mark of a system: `None` when it bears none, `Some(false)` when it
    /// is another's than this one's.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn bears_mark(&mut self, system: Uuid) -> Result<Option<bool>, BusError> {
        let mark = format!("{}{MARK}", self.prefix);
        if self.depth(&mark).await?.is_none() {
            return Ok(None);
        }
        let own = self.depth(&format!("{mark}.{system}")).await?;
        Ok(Some(own.is_some()))
    }

    /// Sends a message that no queue takes, by the first way that this user may send on, and waits until the broker
    /// has answered for it; with the user's name where messages bear one. `None` where the user may send nothing.
    ///
    /// # Errors
    /// When the broker does not answer, or does not vouch for the name.
    pub async fn send_nowhere(&mut self) -> Result<Option<Duration>, BusError> {
        let nobodies = [
            Topic::link("nobody", WorkerId::fresh()),
            Topic::Reports(OwnerId::fresh()),
            Topic::Reply(format!("attune.reply.nobody-{}", Uuid::now_v7())),
        ];
        for nobody in nobodies {
            let (exchange, key) = self.looking.route(&nobody)?;
            let channel = self.channel().await?;
            let mut properties = BasicProperties::default();
            if let Some(user) = self.comparing.user() {
                properties = properties.with_user_id(short(user.to_owned())?);
            }
            let began = Instant::now();
            let sending = async {
                channel
                    .confirm_select(ConfirmSelectOptions::default())
                    .await?;
                let options = BasicPublishOptions::default();
                let sent = channel.basic_publish(exchange, key, options, &[], properties);
                sent.await?.await
            };
            match sending.await.map_err(|error| (code_of(&error), error)) {
                Ok(_) => return Ok(Some(began.elapsed())),
                Err((Some(403), _)) => self.channel = None,
                Err((_, error)) => return Err(Cause::of(&error).into()),
            }
        }
        Ok(None)
    }

    /// Logs off.
    pub async fn close(self) {
        self.dialed.hang_up("looked").await;
    }

    /// What waits in a queue; `None` when there is none of this name.
    async fn depth(&mut self, name: &str) -> Result<Option<Depth>, BusError> {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let channel = self.channel().await?;
        let seen = channel.queue_declare(short(name.to_owned())?, options, FieldTable::default());
        let seen = seen.await;
        Ok(self.is_missing(seen)?.map(|queue| Depth {
            messages: queue.message_count(),
            consumers: queue.consumer_count(),
        }))
    }

    /// An answer, or that there is nothing of this name. The broker closes the channel with such an answer.
    fn is_missing<T>(&mut self, seen: Result<T, lapin::Error>) -> Result<Option<T>, BusError> {
        match seen {
            Ok(seen) => Ok(Some(seen)),
            Err(error) => {
                self.channel = None;
                match code_of(&error) {
                    Some(NOT_FOUND) => Ok(None),
                    _ => Err(Cause::of(&error).into()),
                }
            }
        }
    }

    /// What a declaration of something that is there says of it.
    fn compared(&mut self, declared: Result<(), Cause>) -> Result<Arguments, BusError> {
        let Err(cause) = declared else {
            return Ok(Arguments::Right);
        };
        self.channel = None;
        if cause.lacks_right() {
            return Ok(Arguments::Unknown);
        }
        match BusError::from(cause) {
            BusError::Refused(words) => Ok(Arguments::Other(words)),
            other => Err(other),
        }
    }

    async fn channel(&mut self) -> Result<Channel, BusError> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        let opened = self.dialed.connection.create_channel().await;
        let opened = opened.map_err(|error| Cause::of(&error).during("opening a channel"))?;
        Ok(self.channel.insert(opened).clone())
    }
}

/// The name of something, and what is known of it where it is there.
pub type Found = (String, Option<(Depth, Arguments)>);

/// The protocol's number of what a broker said.
pub(crate) fn code_of(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(protocol) => Some(protocol.get_id()),
        _ => None,
    }
}

/// A text among the properties of a server: the length and the bytes of its key, `S`, length and bytes.
fn property(said: &[u8], key: &str) -> Option<String> {
    let mut begins = vec![u8::try_from(key.len()).ok()?];
    begins.extend_from_slice(key.as_bytes());
    begins.push(b'S');
    let at = said.windows(begins.len()).position(|part| part == begins)?;
    let rest = said.get(at + begins.len()..)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    Some(String::from_utf8_lossy(rest.get(..length)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::property;

    #[test]
    fn what_a_server_says_of_itself_is_read() {
        let said = b"\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x2a\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8";
        assert_eq!(property(said, "product").unwrap(), "RabbitMQ");
        assert_eq!(property(said, "version").unwrap(), "3.10.8");
        assert_eq!(property(said, "cluster_name"), None);
        assert_eq!(property(&said[..said.len() - 1], "version"), None);
    }
}
