//! The rate limit of wrong keys from one address.
//!
//! Invariant: over the limit no key from that address is checked, so that keys cannot be guessed at
//! full speed; but a key that was recognised from there before is still accepted, because many
//! clients may share the address of a proxy. Memory is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::callers::KeyHash;
use crate::gateway::rate_limiter::{self, BURST};

/// How many addresses, and how many recognised keys, are kept at least: about a megabyte of each.
const RECENT_MIN: usize = 10_000;

/// The failures and the recognised keys of each address.
#[derive(Debug)]
pub(super) struct FailureLimiter {
    per_second: NonZeroU32,
    state: Mutex<FailureState>,
}

#[derive(Debug)]
struct FailureState {
    /// The theoretical arrival time (GCRA) of the next failure.
    theoretical_arrival: RecentMap<ClientAddress, Duration>,
    recognised_keys: RecentMap<(ClientAddress, KeyHash), ()>,
}

/// The address of a client, or its IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientAddress(IpAddr);

impl ClientAddress {
    /// For IPv6 the network of 64 bits: a client has all addresses within it.
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

impl FailureLimiter {
    /// Allows so many failures per second.
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        let state = FailureState {
            theoretical_arrival: RecentMap::new(),
            recognised_keys: RecentMap::new(),
        };
        Self { per_second, state: Mutex::new(state) }
    }

    /// Whether a key from there may be checked at `now` on a monotonic clock, or after which time.
    pub(super) fn admit(
        &self,
        address: ClientAddress,
        key_hash: &KeyHash,
        now: Duration,
    ) -> Result<(), Duration> {
        let state = self.lock();
        let Some(until) = state.theoretical_arrival.get(&address).copied() else { return Ok(()) };
        match rate_limiter::try_acquire(Some(until), self.per_second, now) {
            Err(_) if state.recognised_keys.get(&(address, *key_hash)).is_some() => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// A key from there was unknown.
    pub(super) fn record_failure(&self, address: ClientAddress, now: Duration) {
        let mut state = self.lock();
        let until = state.theoretical_arrival.get(&address).copied();
        // Keys that were checked concurrently may exceed the burst: the wait is not extended.
        let next = rate_limiter::try_acquire(until, self.per_second, now).unwrap_or(now + BURST);
        state.theoretical_arrival.put(address, next);
    }

    /// A key from there was recognised.
    pub(super) fn record_recognised(&self, address: ClientAddress, key_hash: KeyHash) {
        self.lock().recognised_keys.put((address, key_hash), ());
    }

    fn lock(&self) -> MutexGuard<'_, FailureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last [`RECENT_MIN`] keys at least, and twice as many at most.
#[derive(Debug)]
struct RecentMap<K, V> {
    current: HashMap<K, V>,
    previous: HashMap<K, V>,
}

impl<K: Hash + Eq, V> RecentMap<K, V> {
    fn new() -> Self {
        Self { current: HashMap::new(), previous: HashMap::new() }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.current.get(key).or_else(|| self.previous.get(key))
    }

    fn put(&mut self, key: K, value: V) {
        if self.current.len() >= RECENT_MIN && !self.current.contains_key(&key) {
            self.previous = std::mem::take(&mut self.current);
        }
        let _before = self.current.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn address(address: &str) -> ClientAddress {
        ClientAddress::of(Some(address.parse().unwrap()))
    }

    #[test]
    fn after_a_burst_of_failures_only_recognised_keys_pass() {
        let (failures, now) = (FailureLimiter::new(NonZeroU32::new(4).unwrap()), NOW);
        let (here, there) = (address("192.0.2.1"), address("192.0.2.2"));
        let [known, guess] = ["known", "guess"].map(KeyHash::of);
        failures.record_recognised(here, known);
        for _ in 0..4 {
            assert_eq!(failures.admit(here, &guess, now), Ok(()));
            failures.record_failure(here, now);
        }
        assert_eq!(failures.admit(here, &guess, now), Err(Duration::from_millis(250)));
        assert_eq!(failures.admit(here, &known, now), Ok(()), "it was recognised there before");
        assert_eq!(failures.admit(there, &guess, now), Ok(()), "it has done nothing");

        let later = now + Duration::from_millis(250);
        assert_eq!(failures.admit(here, &guess, later), Ok(()));
        failures.record_failure(here, later);
        assert!(failures.admit(here, &guess, later).is_err());
        assert!(failures.admit(here, &guess, now + Duration::from_secs(2)).is_ok());
    }

    #[test]
    fn many_failures_at_once_do_not_extend_the_wait() {
        let (failures, now) = (FailureLimiter::new(NonZeroU32::new(4).unwrap()), NOW);
        let (here, guess) = (address("192.0.2.1"), KeyHash::of("guess"));
        for _ in 0..1_000 {
            failures.record_failure(here, now);
        }
        assert_eq!(failures.admit(here, &guess, now), Err(Duration::from_millis(250)));
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1:2:3"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recent = RecentMap::new();
        for n in 0..5 * RECENT_MIN {
            recent.put(n, ());
            assert!(recent.get(&n.saturating_sub(RECENT_MIN - 1)).is_some(), "{n}");
        }
        assert!(recent.current.len() + recent.previous.len() <= 2 * RECENT_MIN);
        assert_eq!(recent.get(&0), None);
    }
}
