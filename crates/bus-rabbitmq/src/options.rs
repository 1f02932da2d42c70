//! What can be set, and where the broker is.

use std::fmt;
use std::time::Duration;

use attune_bus::BusError;
use attune_core::Network;
use attune_runtime::Counter;
use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use url::{Host, Url};

use crate::tls::TlsFiles;

/// What a broker's URL looks like, for messages.
const SHAPE: &str = "amqp://USER:PASSWORD@HOST:PORT/VHOST (amqps:// for TLS)";

/// Settings of a [`RabbitBus`](crate::RabbitBus).
#[derive(Debug, Clone)]
pub struct RabbitOptions {
    /// Where the broker is and as whom to log in.
    pub url: BrokerUrl,
    /// Put before the names of exchanges and queues; may be empty.
    pub prefix: String,
    /// The type of the durable queues.
    pub queue_type: QueueType,
    /// The heartbeat to ask for; whole seconds, at least one. A dead peer is noticed after two
    /// to three of them.
    pub heartbeat: Duration,
    /// For connecting, and for each answer of the broker while something is set up.
    pub connect_timeout: Duration,
    /// After this time without a confirm the outcome of a publish counts as unknown.
    pub publish_timeout: Duration,
    /// How often a subscription makes its binding again, in case that somebody has deleted it; for the first time
    /// after a random part of that.
    pub rebind_interval: Duration,
    /// The largest body that is sent, in bytes; larger messages are refused.
    pub max_message_bytes: usize,
    /// What a durable queue may hold, in bytes of bodies; beyond it publishing is refused. It is
    /// an argument of the queues: one that exists with another bound has to be deleted first.
    pub max_queue_bytes: u64,
    /// Shown in the broker's list of connections, with ` publish` or ` consume` after it.
    pub connection_name: String,
    /// Where `amqp://` (no TLS) may lead.
    pub network: Network,
    /// Counts the connections that are made in place of one that was lost.
    pub reconnects: Counter,
    /// Certificates for `amqps://`.
    pub tls: TlsFiles,
    /// Whether every message names the user of the URL, so that the broker vouches for it.
    pub names_user: bool,
    /// Whether exchanges and queues that stay are declared.
    pub declaring: Declaring,
}

/// Who makes the exchanges and queues that stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declaring {
    /// Whoever needs them, with its own rights.
    Apply,
    /// Somebody else, before: they are looked for and not changed, which needs no right.
    Passive,
}

impl RabbitOptions {
    /// Defaults for a URL: no prefix, quorum queues, heartbeat 10 s, 10 s to connect and to
    /// confirm, 10 s between bindings, messages to 1 MiB, queues to 1 GiB, TLS except on a loopback address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: BrokerUrl::new(url),
            prefix: String::new(),
            queue_type: QueueType::Quorum,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(10),
            rebind_interval: Duration::from_secs(10),
            max_message_bytes: 1 << 20,
            max_queue_bytes: 1 << 30,
            connection_name: "attune".to_owned(),
            network: Network::Loopback,
            reconnects: Counter::default(),
            tls: TlsFiles::default(),
            names_user: false,
            declaring: Declaring::Apply,
        }
    }

    /// The user as whom the broker knows who connects, where the URL says so: a login by certificate does not.
    ///
    /// # Errors
    /// [`BusError::Refused`] when the URL cannot be used.
    pub fn user(&self) -> Result<Option<String>, BusError> {
        let uri = Endpoint::of(self)?.uri;
        let by_name = !matches!(uri.query.auth_mechanism, Some(SASLMechanism::External));
        Ok(by_name.then_some(uri.authority.userinfo.username))
    }

    /// The virtual host.
    ///
    /// # Errors
    /// [`BusError::Refused`] when the URL cannot be used.
    pub fn vhost(&self) -> Result<String, BusError> {
        Ok(Endpoint::of(self)?.uri.vhost)
    }

    /// Where on a broker messages meet: the virtual host and the prefix, in words. Those of one
    /// system must be equal; which broker it is cannot be told from a URL, since the nodes of one have
    /// many names.
    ///
    /// # Errors
    /// [`BusError::Refused`] when the URL cannot be used.
    pub fn bus_name(&self) -> Result<String, BusError> {
        let vhost = Endpoint::of(self)?.uri.vhost;
        Ok(match self.prefix.as_str() {
            "" => format!("virtual host `{vhost}` without a prefix"),
            prefix => format!("virtual host `{vhost}` under the prefix `{prefix}`"),
        })
    }
}

/// The type of the durable queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// Replicated between the nodes of a cluster.
    Quorum,
    /// On one node; somewhat faster.
    Classic,
}

/// An AMQP URL, which holds a password: `Debug` hides it.
#[derive(Clone)]
pub struct BrokerUrl(String);

impl BrokerUrl {
    /// Wraps a URL; it is judged when the bus connects.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where the broker is, judged.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// With credentials: for lapin only, never shown.
    pub(crate) uri: AMQPUri,
    /// `HOST:PORT`, for messages.
    pub(crate) place: String,
    /// Where its address must be, when nothing is encrypted: a name can lead anywhere.
    pub(crate) plain_within: Option<Network>,
}

impl Endpoint {
    /// Reads and judges the URL of the options.
    ///
    /// # Errors
    /// [`BusError::Refused`] when it cannot be used or would be unsafe. The texts never quote it.
    pub(crate) fn of(options: &RabbitOptions) -> Result<Self, BusError> {
        let refused = |why: String| BusError::Refused(format!("broker URL: {why}"));
        let text = options.url.0.as_str();
        let url = Url::parse(text).map_err(|error| refused(format!("{error}; use {SHAPE}")))?;
        // lapin quotes the whole URL, password included, for those that cannot be a base.
        if url.cannot_be_a_base() || !matches!(url.scheme(), "amqp" | "amqps") {
            return Err(refused(format!("it is not of the shape {SHAPE}")));
        }
        let mut uri: AMQPUri = text.parse().map_err(refused)?;
        // lapin takes an IPv6 address for no host at all and would go to localhost.
        if let Some(Host::Ipv6(address)) = url.host() {
            uri.authority.host = address.to_string();
        }
        let host = uri.authority.host.as_str();
        let place = match host.contains(':') {
            true => format!("[{host}]:{}", uri.authority.port),
            false => format!("{host}:{}", uri.authority.port),
        };
        if !Network::Loopback.is_named_by(host) {
            // lapin falls back to guest/guest where the URL names nobody.
            if uri.authority.userinfo.username == "guest" {
                return Err(refused(format!(
                    "the user `guest` (also meant when none is named) is for loopback addresses \
                     only, not for {place}; use {SHAPE}"
                )));
            }
            if uri.scheme == AMQPScheme::AMQP && !options.network.may_lead_to(host) {
                return Err(refused(in_the_clear(&place, options.network)));
            }
        }
        // Without this the server's 60 s would hold, and a dead peer be noticed after 2 minutes.
        let heartbeat = options.heartbeat.as_secs().clamp(1, u64::from(u16::MAX));
        uri.query.heartbeat = Some(u16::try_from(heartbeat).expect("it has been clamped"));
        let plain_within = (uri.scheme == AMQPScheme::AMQP).then_some(options.network);
        Ok(Self {
            uri,
            place,
            plain_within,
        })
    }
}

/// Why nothing is sent to a place that is beyond the network which plain text may reach.
pub(crate) fn in_the_clear(place: &str, network: Network) -> String {
    let way_out = match network {
        Network::Loopback => "use amqps://, or say `broker.network: private` for a private network",
        Network::Private => {
            "its address is public, or at least not private, and only amqps:// goes there, whatever \
             `broker.network` says"
        }
    };
    format!("amqp:// would send the password to {place} in the clear; {way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(url: &str, network: Network) -> Result<Endpoint, String> {
        let mut options = RabbitOptions::new(url);
        options.network = network;
        Endpoint::of(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn places_are_read_from_the_url() {
        for (url, place, vhost) in [
            ("amqp://127.0.0.1/%2f", "127.0.0.1:5672", "/"),
            ("amqp://u:p@localhost:7/a%2Fb", "localhost:7", "a/b"),
            ("amqp://[::1]:8/x", "[::1]:8", "x"),
            ("amqps://u:p@broker.example", "broker.example:5671", "/"),
            ("amqps://u:p@[2001:db8::1]/x", "[2001:db8::1]:5671", "x"),
        ] {
            let endpoint = judge(url, Network::Loopback).unwrap();
            assert_eq!(endpoint.place, place);
            assert_eq!(endpoint.uri.vhost, vhost);
            assert_eq!(endpoint.uri.query.heartbeat, Some(10));
        }
    }

    #[test]
    fn a_bus_has_one_name_for_all_nodes_of_a_broker() {
        let name = |url: &str, prefix: &str| {
            let mut options = RabbitOptions::new(url);
            options.prefix = prefix.to_owned();
            options.bus_name().unwrap()
        };
        let expected = "virtual host `a/b` under the prefix `t.`";
        for url in ["amqp://u:p@localhost:7/a%2Fb", "amqps://v:q@node-2/a%2Fb"] {
            assert_eq!(name(url, "t."), expected);
        }
        assert_eq!(
            name("amqp://127.0.0.1", ""),
            "virtual host `/` without a prefix"
        );
    }

    #[test]
    fn unsafe_and_broken_urls_are_refused_without_being_quoted() {
        for (url, why) in [
            ("amqps://broker.example/", "guest"),
            ("amqps://guest:hunter2@broker.example/", "guest"),
            ("amqp://u:hunter2@10.0.0.1/", "in the clear"),
            ("amqp://u:hunter2@127.0.0.1.example.org/", "in the clear"),
            ("http://u:hunter2@127.0.0.1/", "shape"),
            ("amqp:u:hunter2", "shape"),
            ("u:hunter2@127.0.0.1", "shape"),
            ("amqp://u:hunter2@127.0.0.1:port/", "port"),
            ("amqp://u:hunter2@127.0.0.1/?heartbeat=x", "digit"),
        ] {
            let error = judge(url, Network::Loopback).err().unwrap();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
        for (url, allowed) in [
            ("amqp://u:p@10.0.0.1/", true),
            ("amqp://u:p@broker/", true),
            ("amqp://u:p@mq.example.com/", true),
            ("amqp://u:p@1.1.1.1/", false),
            ("amqp://guest:p@10.0.0.1/", false),
        ] {
            assert_eq!(judge(url, Network::Private).is_ok(), allowed, "{url}");
        }
        let advice = "say `broker.network: private`";
        let said = judge("amqp://u:p@1.1.1.1/", Network::Private)
            .err()
            .unwrap();
        assert!(said.contains("only amqps:// goes there"), "{said}");
        assert!(!said.contains(advice), "{said}");
        let said = judge("amqp://u:p@10.0.0.1/", Network::Loopback).err();
        assert!(said.unwrap().contains(advice));
    }

    #[test]
    fn debug_hides_the_url() {
        let shown = format!("{:?}", RabbitOptions::new("amqp://u:hunter2@h/"));
        assert!(
            shown.contains("***") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
