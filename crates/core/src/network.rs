//! Networks: which addresses are public, and how far a listener or a connection may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How far from this machine something may reach without encryption or authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// No further than this machine.
    #[default]
    Loopback,
    /// To machines of private networks, such as one of containers.
    Private,
}

impl Network {
    /// Whether this is the address of a machine that it reaches.
    #[must_use]
    pub fn reaches(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self {
            Self::Loopback => address.is_loopback(),
            Self::Private => address.is_loopback() || is_private(address),
        }
    }

    /// Whether this is an address to listen on: all addresses of the machine are for a private network, since
    /// each connection is judged by itself.
    #[must_use]
    pub fn may_listen_on(self, address: IpAddr) -> bool {
        let is_any = address.to_canonical().is_unspecified();
        self.reaches(address) || (self == Self::Private && is_any)
    }

    /// Whether a host of a URL may be on a machine that it reaches: where a name leads is only known when it
    /// is looked up.
    #[must_use]
    pub fn may_lead_to(self, host: &str) -> bool {
        let is_name = host.parse::<IpAddr>().is_err();
        (self == Self::Private && is_name) || self.is_named_by(host)
    }

    /// Whether a host that a client named, an address or a name, is of a machine that it reaches, as far as a name
    /// tells: nobody can register one without a dot, or below one of [`PRIVATE_DOMAINS`], for everybody.
    #[must_use]
    pub fn is_named_by(self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        if let Ok(address) = host.parse() {
            return self.reaches(address);
        }
        let is_below = |domain: &str| {
            let parent = host.strip_suffix(domain);
            parent.is_some_and(|name| name.ends_with('.') && name.len() > 1)
        };
        if host == "localhost" || is_below("localhost") {
            return true;
        }
        let is_name = !host.is_empty() && !host.contains('.');
        self == Self::Private && (is_name || PRIVATE_DOMAINS.into_iter().any(is_below))
    }
}

/// Top-level domains that are kept for private use (RFC 6761, 6762 and 8375, ICANN's `internal`) or known
/// from clusters of containers (`svc`).
pub const PRIVATE_DOMAINS: [&str; 6] = ["internal", "local", "lan", "home.arpa", "test", "svc"];

/// Whether an address is of a network that belongs to somebody alone. What a carrier shares between strangers
/// (100.64.0.0/10), what translates to public addresses and what is reserved is not, though it is not public.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    }
}

/// Whether an address is a public one, for keeping fetches away from all others. Who may come in is another
/// question: see [`Network::reaches`]. Not public is: not loopback, private, link-local, shared, multicast,
/// reserved or one under which clouds serve their metadata, neither itself nor as the IPv4
/// address inside an IPv6 one.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        // This network, private, loopback.
        (0 | 10 | 127, _, _) => true,
        // Shared by carriers; one cloud serves its metadata at 100.100.100.200.
        (100, 64..=127, _) => true,
        // Link-local, the metadata address of most clouds among them.
        (169, 254, _) => true,
        // Private.
        (172, 16..=31, _) | (192, 168, _) => true,
        // Protocol assignments, documentation, the old 6to4 relays.
        (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) | (192, 88, 99) => true,
        // Benchmarks.
        (198, 18 | 19, _) => true,
        // Multicast, reserved, broadcast.
        (224.., _, _) => true,
        _ => false,
    };
    // A public address that answers only inside one cloud, with what its machines are told.
    let metadata = Ipv4Addr::new(168, 63, 129, 16);
    !special && address != metadata
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // IPv4 in disguise: mapped, and translated by NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        // 6to4 carries the address of its gateway.
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, benchmarks, overlays and other assignments of protocols; documentation.
        [0x2001, 0..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => false,
        // The only block that public addresses are given out of.
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_network_reaches() {
        for (address, network) in [
            ("127.0.0.1", Some(Network::Loopback)),
            ("::1", Some(Network::Loopback)),
            ("::ffff:127.0.0.1", Some(Network::Loopback)),
            ("10.1.2.3", Some(Network::Private)),
            ("10.255.255.255", Some(Network::Private)),
            ("172.16.0.1", Some(Network::Private)),
            ("172.31.255.255", Some(Network::Private)),
            ("192.168.0.1", Some(Network::Private)),
            ("169.254.1.1", Some(Network::Private)),
            ("fc00::1", Some(Network::Private)),
            ("fd00::1", Some(Network::Private)),
            ("fe80::1", Some(Network::Private)),
            ("::ffff:192.168.1.1", Some(Network::Private)),
            ("1.1.1.1", None),
            ("2606:4700::1111", None),
            ("::ffff:1.1.1.1", None),
            ("172.15.0.1", None),
            ("172.32.0.1", None),
            // Neither public nor private.
            ("0.0.0.0", None),
            ("::", None),
            ("100.64.0.1", None),
            ("::ffff:100.64.0.1", None),
            ("168.63.129.16", None),
            ("192.88.99.1", None),
            ("198.18.0.1", None),
            ("203.0.113.9", None),
            ("224.0.0.1", None),
            ("240.0.0.1", None),
            ("64:ff9b::a00:1", None),
            ("64:ff9b::101:101", None),
            ("2001::1", None),
            ("2001:db8::1", None),
            ("2002:a00:1::1", None),
            ("5f00::1", None),
            ("fec0::1", None),
            ("ff02::1", None),
            ("::a00:1", None),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let loopback = network == Some(Network::Loopback);
            assert_eq!(Network::Loopback.reaches(address), loopback, "{address}");
            assert_eq!(
                Network::Private.reaches(address),
                network.is_some(),
                "{address}"
            );
            let is_any = address.is_unspecified();
            assert_eq!(Network::Loopback.may_listen_on(address), loopback);
            assert_eq!(
                Network::Private.may_listen_on(address),
                network.is_some() || is_any,
                "{address}"
            );
        }
    }

    #[test]
    fn a_name_is_private_when_nobody_can_register_it() {
        for (host, network) in [
            ("localhost", Some(Network::Loopback)),
            ("a.localhost", Some(Network::Loopback)),
            ("[::1]", Some(Network::Loopback)),
            ("127.8.8.8", Some(Network::Loopback)),
            ("api", Some(Network::Private)),
            ("DB.Internal", Some(Network::Private)),
            ("attune.default.svc", Some(Network::Private)),
            ("attune.default.svc.cluster.local", Some(Network::Private)),
            ("10.0.0.1", Some(Network::Private)),
            ("example.com", None),
            ("127.0.0.1.example.com", None),
            ("localhost.example", None),
            ("internal.example.com", None),
            (".internal", None),
            ("api.", None),
            ("1.1.1.1", None),
            ("", None),
        ] {
            let loopback = network == Some(Network::Loopback);
            assert_eq!(Network::Loopback.is_named_by(host), loopback, "{host}");
            assert_eq!(
                Network::Private.is_named_by(host),
                network.is_some(),
                "{host}"
            );
            assert_eq!(Network::Loopback.may_lead_to(host), loopback, "{host}");
            assert_eq!(
                Network::Private.may_lead_to(host),
                host != "1.1.1.1",
                "{host}"
            );
        }
    }

    #[test]
    fn public_addresses_pass() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "169.253.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "223.255.255.1",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn everything_else_does_not() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
