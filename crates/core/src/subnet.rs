//! Networks that are named by an address and the length of their prefix.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An address, or a network such as `10.1.0.0/16` or `fd00::/8`. Never all addresses there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    address: IpAddr,
    /// Bits that all its addresses have in common, at least 1.
    prefix: u8,
}

/// Why a text is no [`Subnet`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// The address cannot be read, or the length of the prefix.
    #[error("{0:?} is neither an address nor a network such as 10.1.0.0/16")]
    Unreadable(String),
    /// The prefix is none that such an address can have.
    #[error("the prefix of {0} is not from 1 to {1}")]
    Prefix(String, u8),
    /// Bits behind the prefix are set: one of the two is a slip.
    #[error("{0} is an address inside of a network: the network is {1}, the address alone {2}")]
    Inside(String, Subnet, IpAddr),
}

impl Subnet {
    /// Whether this address is one of its own; an IPv4 address also when it is mapped into an IPv6 one.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.address.is_ipv4() == address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

/// How many bits an address has.
const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// An address with the bits behind `prefix` cleared.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let behind = u32::from(bits(address) - prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(behind).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(behind).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let unreadable = || SubnetError::Unreadable(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| unreadable())?;
        // A peer is known by its IPv4 address, however the socket tells it.
        if address.to_canonical() != address {
            return Err(unreadable());
        }
        let bits = bits(address);
        let prefix: u8 = match prefix {
            // What `parse` takes besides digits is a sign.
            Some(prefix) if prefix.starts_with('+') => return Err(unreadable()),
            Some(prefix) => prefix.parse().map_err(|_| unreadable())?,
            None => bits,
        };
        if !(1..=bits).contains(&prefix) {
            return Err(SubnetError::Prefix(text.to_owned(), bits));
        }
        let subnet = Self {
            address: masked(address, prefix),
            prefix,
        };
        if subnet.address == address {
            Ok(subnet)
        } else {
            Err(SubnetError::Inside(text.to_owned(), subnet, address))
        }
    }
}

impl TryFrom<String> for Subnet {
    type Error = SubnetError;

    fn try_from(text: String) -> Result<Self, SubnetError> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == bits(self.address) {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_own_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.5", "10.0.0.5", "10.0.0.4"),
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("10.1.0.0/16", "::ffff:10.1.2.3", "::ffff:10.2.2.3"),
            ("128.0.0.0/1", "255.1.1.1", "127.1.1.1"),
            ("10.0.0.4/31", "10.0.0.5", "10.0.0.6"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::1", "::1", "127.0.0.1"),
            ("fd00::/8", "fd00::", "10.0.0.1"),
        ] {
            let subnet: Subnet = network.parse().unwrap();
            assert!(subnet.contains(inside.parse().unwrap()), "{network}");
            assert!(!subnet.contains(outside.parse().unwrap()), "{network}");
            assert_eq!(subnet.to_string(), network);
            let json = serde_json::to_string(&subnet).unwrap();
            assert_eq!(serde_json::from_str::<Subnet>(&json).unwrap(), subnet);
        }
        let whole: Subnet = "10.0.0.5/32".parse().unwrap();
        assert_eq!(whole.to_string(), "10.0.0.5");
    }

    #[test]
    fn what_is_no_network_is_told() {
        for (text, words) in [
            ("proxy", "\"proxy\" is neither an address nor a network"),
            ("", "is neither"),
            ("10.0.0.1:80", "is neither"),
            ("10.0.0.0/", "is neither"),
            ("10.0.0.0/+8", "is neither"),
            ("10.0.0.0/-1", "is neither"),
            ("10.0.0.0/999", "is neither"),
            ("::ffff:10.0.0.1", "is neither"),
            ("0.0.0.0/0", "the prefix of 0.0.0.0/0 is not from 1 to 32"),
            ("10.0.0.0/33", "is not from 1 to 32"),
            ("::/0", "is not from 1 to 128"),
            (
                "10.1.2.3/16",
                "the network is 10.1.0.0/16, the address alone 10.1.2.3",
            ),
        ] {
            let error = text.parse::<Subnet>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
