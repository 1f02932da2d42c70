//! Who is served, and who it is that asks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use attune_core::{Network, Subnet};
use axum::http::HeaderMap;

/// The header in which each proxy adds at the end whom it got the request from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The address of whoever asks, in the extensions of each request that came in by a
/// [`Door`](super::Door). Behind a proxy it is what the proxy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(pub IpAddr);

/// Who a listener serves; others are answered with 403 `FOREIGN_ADDRESS`.
#[derive(Debug, Clone)]
pub enum Served {
    /// Who connects from an address of this network to one of it.
    Network(Network),
    /// Everybody.
    Everybody,
    /// These proxies, which say who their clients are, and this machine. A proxy has the connections of many
    /// clients, so it may have as many as there may be in all.
    Behind(Arc<[Subnet]>),
}

impl Served {
    /// Whether a connection of `peer` to the address `own` of this machine is served.
    pub(super) fn admits(&self, peer: IpAddr, own: IpAddr) -> bool {
        match self {
            Self::Network(network) => network.reaches(peer) && network.reaches(own),
            Self::Everybody => true,
            Self::Behind(_) => Network::Loopback.reaches(peer) || self.is_proxy(peer),
        }
    }

    /// Whether this peer speaks for others.
    pub(super) fn is_proxy(&self, peer: IpAddr) -> bool {
        match self {
            Self::Behind(proxies) => proxies.iter().any(|proxy| proxy.contains(peer)),
            Self::Network(_) | Self::Everybody => false,
        }
    }

    /// Who asks by a request of `peer`: what a proxy says, as far as there is nothing but proxies on the way
    /// back. What stands before the first other address anybody may have written.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        let hops = headers.get_all(FORWARDED_FOR).into_iter().rev();
        let hops = hops.flat_map(|hops| hops.to_str().unwrap_or("").rsplit(','));
        let mut client = peer;
        for hop in hops {
            let known = self
                .is_proxy(client)
                .then(|| read_hop(hop.trim()))
                .flatten();
            let Some(before) = known else { break };
            client = before;
        }
        Client(client)
    }
}

/// An address as proxies write it, with or without a port.
fn read_hop(hop: &str) -> Option<IpAddr> {
    let address = hop
        .parse::<SocketAddr>()
        .map(|address| address.ip())
        .or_else(|_| hop.trim_matches(['[', ']']).parse::<IpAddr>());
    Some(address.ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(proxies: &[&str]) -> Served {
        Served::Behind(proxies.iter().map(|proxy| proxy.parse().unwrap()).collect())
    }

    /// Whom a request comes from whose peer is `peer`.
    fn client(served: &Served, peer: &str, forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        let Client(address) = served.client(peer.parse().unwrap(), &headers);
        address.to_string()
    }

    /// Whoever connects may write the header too.
    #[test]
    fn a_client_is_the_last_that_a_proxy_names_and_nobody_that_a_client_does() {
        let served = behind(&["10.0.0.5", "10.1.0.0/16", "fd00::1"]);
        for (peer, forwarded, expected) in [
            ("10.0.0.5", &[][..], "10.0.0.5"),
            ("10.0.0.5", &["8.8.8.8"], "8.8.8.8"),
            ("10.0.0.5", &["1.1.1.1, 8.8.8.8"], "8.8.8.8"),
            ("10.0.0.5", &["1.1.1.1", "8.8.8.8"], "8.8.8.8"),
            ("10.0.0.5", &["1.1.1.1, 8.8.8.8,10.1.2.3"], "8.8.8.8"),
            ("10.0.0.5", &["1.1.1.1, 8.8.8.8", "10.1.2.3 "], "8.8.8.8"),
            ("10.0.0.5", &["8.8.8.8:1234"], "8.8.8.8"),
            ("fd00::1", &["[2606:4700::1]:443"], "2606:4700::1"),
            ("fd00::1", &["2606:4700::1"], "2606:4700::1"),
            ("10.0.0.5", &["::ffff:8.8.8.8"], "8.8.8.8"),
            // Nothing but proxies: the first of them asks.
            ("10.0.0.5", &["10.1.2.3, 10.1.2.4"], "10.1.2.3"),
            // What cannot be read hides what stands before it.
            ("10.0.0.5", &["8.8.8.8, unknown"], "10.0.0.5"),
            ("10.0.0.5", &["8.8.8.8, "], "10.0.0.5"),
            ("10.0.0.5", &["8.8.8.8, unknown, 10.1.2.3"], "10.1.2.3"),
            // Who is no proxy speaks for itself.
            ("127.0.0.1", &["8.8.8.8"], "127.0.0.1"),
        ] {
            assert_eq!(client(&served, peer, forwarded), expected, "{forwarded:?}");
        }
        for served in [Served::Everybody, Served::Network(Network::Private)] {
            assert_eq!(client(&served, "10.0.0.5", &["8.8.8.8"]), "10.0.0.5");
        }
    }

    #[test]
    fn behind_proxies_only_they_and_this_machine_are_served() {
        let own = "10.0.0.1".parse().unwrap();
        let served = behind(&["10.0.0.5", "10.1.0.0/16"]);
        for (peer, is_served) in [
            ("10.0.0.5", true),
            ("10.1.2.3", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("10.0.0.6", false),
            ("8.8.8.8", false),
        ] {
            let peer = peer.parse().unwrap();
            assert_eq!(served.admits(peer, own), is_served, "{peer}");
            assert!(Served::Everybody.admits(peer, own));
        }
        let private = Served::Network(Network::Private);
        assert!(private.admits("10.9.9.9".parse().unwrap(), own));
        assert!(!private.admits("8.8.8.8".parse().unwrap(), own));
    }
}
