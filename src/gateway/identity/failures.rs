//! How many wrong keys may come from one address.
//!
//! Law: over that, no key from there is looked at, so that nobody guesses at full speed; but one
//! that was recognised there before goes on being let in, because behind a proxy one address is
//! many people. Memory is bounded, whatever comes.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::callers::key::KeyHash;
use crate::gateway::rate::{self, BURST};

/// Addresses, and keys recognised at one, that are remembered at least: about a megabyte of
/// each at most.
const REMEMBERED: usize = 10_000;

/// What is known of addresses.
#[derive(Debug)]
pub(super) struct Failures {
    per_second: NonZeroU32,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// When the failures so far are worked off.
    worked_off: Recent<Peer, Instant>,
    recognised: Recent<(Peer, KeyHash), ()>,
}

/// Where a request comes from, as far as one can tell who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(IpAddr);

impl Peer {
    /// Of IPv6 it is the network of 64 bits, within which anybody has every address.
    pub(super) fn of(address: Option<IpAddr>) -> Self {
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical();
        Self(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
            }
        })
    }
}

impl Failures {
    /// Lets in so many a second.
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        let seen = Seen { worked_off: Recent::new(), recognised: Recent::new() };
        Self { per_second, seen: Mutex::new(seen) }
    }

    /// Whether a key from there may be looked at, or how long that is too early.
    pub(super) fn admit(&self, peer: Peer, mark: &KeyHash, now: Instant) -> Result<(), Duration> {
        let seen = self.lock();
        let Some(until) = seen.worked_off.get(&peer).copied() else { return Ok(()) };
        match rate::spend(Some(until), self.per_second, now) {
            Err(_) if seen.recognised.get(&(peer, *mark)).is_some() => Ok(()),
            spent => spent.map(|_| ()),
        }
    }

    /// A key from there was nobody's.
    pub(super) fn count(&self, peer: Peer, now: Instant) {
        let mut seen = self.lock();
        let until = seen.worked_off.get(&peer).copied();
        // Those that were looked at all at once may be a few too many; more of a debt helps nobody.
        let next = rate::spend(until, self.per_second, now).unwrap_or(now + BURST);
        seen.worked_off.put(peer, next);
    }

    /// A key from there was somebody's.
    pub(super) fn recognised(&self, peer: Peer, mark: KeyHash) {
        self.lock().recognised.put((peer, mark), ());
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last [`REMEMBERED`] keys at least, and twice as many at most.
#[derive(Debug)]
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn put(&mut self, key: K, value: V) {
        if self.young.len() >= REMEMBERED && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        let _before = self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn peer(address: &str) -> Peer {
        Peer::of(Some(address.parse().unwrap()))
    }

    #[test]
    fn a_seconds_worth_of_failures_and_then_only_who_was_known() {
        let (failures, now) = (Failures::new(NonZeroU32::new(4).unwrap()), clock::monotonic());
        let (here, there) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let [known, guess] = ["known", "guess"].map(KeyHash::of);
        failures.recognised(here, known);
        for _ in 0..4 {
            assert_eq!(failures.admit(here, &guess, now), Ok(()));
            failures.count(here, now);
        }
        assert_eq!(failures.admit(here, &guess, now), Err(Duration::from_millis(250)));
        assert_eq!(failures.admit(here, &known, now), Ok(()), "it was recognised there before");
        assert_eq!(failures.admit(there, &guess, now), Ok(()), "it has done nothing");

        let later = now + Duration::from_millis(250);
        assert_eq!(failures.admit(here, &guess, later), Ok(()));
        failures.count(here, later);
        assert!(failures.admit(here, &guess, later).is_err());
        assert!(failures.admit(here, &guess, now + Duration::from_secs(2)).is_ok());
    }

    #[test]
    fn many_at_once_make_no_longer_debt() {
        let (failures, now) = (Failures::new(NonZeroU32::new(4).unwrap()), clock::monotonic());
        let (here, guess) = (peer("192.0.2.1"), KeyHash::of("guess"));
        for _ in 0..1_000 {
            failures.count(here, now);
        }
        assert_eq!(failures.admit(here, &guess, now), Err(Duration::from_millis(250)));
    }

    #[test]
    fn who_has_one_address_of_a_network_has_them_all() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1:2:3"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recent = Recent::new();
        for n in 0..5 * REMEMBERED {
            recent.put(n, ());
            assert!(recent.get(&n.saturating_sub(REMEMBERED - 1)).is_some(), "{n}");
        }
        assert!(recent.young.len() + recent.old.len() <= 2 * REMEMBERED);
        assert_eq!(recent.get(&0), None);
    }
}
