//! Addresses that try keys.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Peer;

/// So long failures count together.
const STRETCH: Duration = Duration::from_secs(60);
/// Addresses that are written down in so long.
const MOST_TOLD: u32 = 10;
/// Addresses that are remembered; beyond that all others share one count.
const MAX_PEERS: usize = 10_000;

/// The failures of one address: since when they are counted, and how many.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    since: Duration,
    many: u32,
}

/// What one more failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// It is the first of this address for a while.
    First,
    /// There were others.
    Again,
    /// There were too many.
    TooOften,
}

/// Counts per address, or per network of 64 bits with IPv6, where one machine has as many addresses as it
/// likes.
pub(super) struct Failures {
    most: u32,
    counts: Mutex<HashMap<Option<IpAddr>, Count>>,
    /// Addresses that were written down.
    told: Mutex<Count>,
}

impl Failures {
    /// So many in a minute are too many.
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            counts: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Notes one.
    pub(super) fn note(&self, peer: Peer, now: Duration) -> Failed {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_PEERS {
            counts.retain(|_, count| now.saturating_sub(count.since) < STRETCH);
        }
        let network = match counts.len() >= MAX_PEERS {
            true => None,
            false => network_of(peer),
        };
        let count = counts.entry(network).or_insert(Count {
            since: now,
            many: 0,
        });
        if now.saturating_sub(count.since) >= STRETCH {
            *count = Count {
                since: now,
                many: 0,
            };
        }
        count.many = count.many.saturating_add(1);
        match count.many {
            many if many > self.most => Failed::TooOften,
            1 if self.may_tell(now) => Failed::First,
            _ => Failed::Again,
        }
    }

    /// Whether another address may be written down in this minute: strangers must not fill the log.
    fn may_tell(&self, now: Duration) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(told.since) >= STRETCH {
            *told = Count {
                since: now,
                many: 0,
            };
        }
        told.many += 1;
        told.many <= MOST_TOLD
    }

    /// Whether an address has tried too many.
    pub(super) fn are_many(&self, peer: Peer, now: Duration) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut network = network_of(peer);
        if counts.len() >= MAX_PEERS && !counts.contains_key(&network) {
            // Where failures of it are noted then.
            network = None;
        }
        let count = counts.get(&network).copied().unwrap_or_default();
        count.many >= self.most && now.saturating_sub(count.since) < STRETCH
    }
}

fn network_of(peer: Peer) -> Option<IpAddr> {
    peer.map(|ip| match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let bits = u128::from(ip) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(bits))
        }
        ip => ip,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tries_many_keys_has_to_wait() {
        let failures = Failures::new(2);
        let (one, other) = (
            Some("2001:db8::1".parse().unwrap()),
            Some("10.0.0.1".parse().unwrap()),
        );
        let same_network = Some("2001:db8::ffff".parse().unwrap());
        let at = Duration::from_secs;
        assert_eq!(failures.note(one, at(10)), Failed::First);
        assert!(!failures.are_many(one, at(10)));
        assert_eq!(failures.note(same_network, at(20)), Failed::Again);
        assert!(failures.are_many(one, at(20)));
        assert_eq!(failures.note(one, at(30)), Failed::TooOften);
        assert!(!failures.are_many(other, at(30)));
        assert_eq!(failures.note(other, at(30)), Failed::First);
        assert!(failures.are_many(one, at(69)) && !failures.are_many(one, at(70)));
        assert_eq!(failures.note(one, at(70)), Failed::First);
    }

    #[test]
    fn many_addresses_take_no_room() {
        let failures = Failures::new(1);
        for number in 0..20_000_u32 {
            failures.note(Some(IpAddr::V4(number.into())), at_ms(number));
        }
        let counts = failures.counts.lock().unwrap();
        assert!(counts.len() <= MAX_PEERS + 1, "{}", counts.len());
    }

    fn at_ms(number: u32) -> Duration {
        Duration::from_millis(number.into())
    }
}
