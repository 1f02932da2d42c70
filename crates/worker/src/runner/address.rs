//! Which addresses belong to nobody outside: a fetch that anyone can ask for must not reach what
//! only this machine and its network can.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is a public one: not loopback, private, link-local, shared, multicast,
/// reserved or one under which clouds serve their metadata, neither itself nor as the IPv4
/// address inside an IPv6 one.
pub(crate) fn is_public(address: IpAddr) -> bool {
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
