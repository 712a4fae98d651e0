//! The address guard: which addresses a callback may reach. Whoever registers a trigger makes this
//! process send a request, from inside the network that it stands in.
//!
//! Law: an address is judged where the connection is made, after the name was resolved, so that
//! nobody slips through by changing a name's address in between. What is not known to be public is
//! refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::config::AllowAddresses;

/// A callback that must not be made: a dead letter at once, for no later attempt may be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The URL itself is at fault.
    #[error("{url:?} cannot be called: {reason}; a callback needs an absolute http or https URL")]
    Url {
        /// As the trigger has it.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It leads to an address that policy forbids.
    #[error(
        "{address} must not be called: it is {range}; only `worker.allow_addresses = \"any\"` \
         allows that"
    )]
    Address {
        /// The address, as written or as resolved.
        address: IpAddr,
        /// What such addresses are for.
        range: &'static str,
    },
}

/// Judges by one policy.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    allow: AllowAddresses,
}

impl Guard {
    /// A guard of this policy.
    #[must_use]
    pub fn new(allow: AllowAddresses) -> Self {
        Self { allow }
    }

    /// Reads a URL and refuses a scheme other than http and https, and a forbidden address
    /// written out. (No resolver is asked for those.)
    pub fn check_url(&self, url: &str) -> Result<Url, Forbidden> {
        let refuse = |reason: String| Forbidden::Url { url: url.to_owned(), reason };
        let parsed = Url::parse(url).map_err(|error| refuse(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(refuse(format!("its scheme is {}", parsed.scheme())));
        }
        // The parser has turned every spelling of an IPv4 address (0x7f.1, 2130706433) into dots.
        let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if let Ok(address) = host.parse() {
            self.check(address)?;
        }
        Ok(parsed)
    }

    /// Refuses a forbidden address.
    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        if self.allow == AllowAddresses::Any {
            return Ok(());
        }
        let range = match address {
            IpAddr::V4(address) => special_v4(address),
            IpAddr::V6(address) => special_v6(address),
        };
        range.map_or(Ok(()), |range| Err(Forbidden::Address { address, range }))
    }

    /// Those addresses of a name that may be reached; an error if there are none but forbidden.
    fn admit(&self, resolved: impl Iterator<Item = SocketAddr>) -> Result<Addrs, Forbidden> {
        let mut admitted = Vec::new();
        let mut refused = None;
        for address in resolved {
            match self.check(address.ip()) {
                Ok(()) => admitted.push(address),
                Err(forbidden) => refused = Some(forbidden),
            }
        }
        match refused {
            Some(forbidden) if admitted.is_empty() => Err(forbidden),
            _ => Ok(Box::new(admitted.into_iter())),
        }
    }
}

/// The system's resolver, with the guard behind it.
impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = *self;
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(guard.admit(resolved)?)
        })
    }
}

/// What an IPv4 address is for, if it is not for everyone: IANA's special-purpose registry, and
/// the one public address behind which a cloud hides its metadata.
const SPECIAL_V4: [(Ipv4Addr, u32, &str); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared by carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(168, 63, 129, 16), 32, "cloud metadata"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "for protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documentation"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, "for protocol assignments"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a 6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let within = |(net, bits, _): &&(Ipv4Addr, u32, _)| {
        (net.to_bits() ^ address.to_bits()).leading_zeros() >= *bits
    };
    SPECIAL_V4.iter().find(within).map(|(_, _, range)| *range)
}

/// What an IPv6 address is for, if it is not for everyone. One that carries an IPv4 address leads
/// where that one does; of the rest only 2000::/3 is public, less what is set aside in it.
fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let last = v4(segments[6], segments[7]);
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => special_v4(last),
        [0x2002, high, low, ..] => special_v4(v4(high, low)),
        // Teredo: the server's address, and the client's with every bit turned.
        [0x2001, 0, high, low, ..] => {
            special_v4(v4(high, low)).or_else(|| special_v4(Ipv4Addr::from_bits(!last.to_bits())))
        }
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("for documentation"),
        [0x2001, 1..=0x01ff, ..] => Some("for protocol assignments"),
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some("private (unique local)"),
        [0xfe80..=0xfeff, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: Guard = Guard { allow: AllowAddresses::Public };

    fn range(address: &str) -> Option<&'static str> {
        match PUBLIC.check(address.parse().unwrap()) {
            Ok(()) => None,
            Err(Forbidden::Address { range, .. }) => Some(range),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn public_addresses_pass() {
        for address in [
            "1.1.1.1",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            assert_eq!(range(address), None, "{address}");
        }
    }

    #[test]
    fn every_special_range_is_refused_at_both_ends() {
        for (address, expected) in [
            ("0.0.0.0", "unspecified"),
            ("10.255.255.255", "private"),
            ("100.64.0.0", "shared by carrier-grade NAT"),
            ("100.100.100.200", "shared by carrier-grade NAT"),
            ("127.255.255.254", "loopback"),
            ("168.63.129.16", "cloud metadata"),
            ("169.254.169.254", "link-local"),
            ("172.16.0.0", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("203.0.113.9", "for documentation"),
            ("239.1.2.3", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fd00:ec2::254", "private (unique local)"),
            ("fe80::1", "link-local"),
            ("ff02::1", "multicast"),
            ("2001:db8::1", "for documentation"),
            ("64:ff9b:1::1", "reserved"),
        ] {
            assert_eq!(range(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_ipv4_address_in_an_ipv6_address_is_judged() {
        for address in [
            "::ffff:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::",
            "2001:0:7f00:1::fefe:fefe",
            "2001:0:101:101::80ff:fffe",
        ] {
            assert_eq!(range(address), Some("loopback"), "{address}");
        }
        assert_eq!(range("::127.0.0.1"), Some("reserved"), "deprecated, so never asked for");
    }

    #[test]
    fn urls_are_refused_by_scheme_and_by_every_spelling_of_an_address() {
        for url in ["http://127.1/", "http://0x7f.0.0.1", "http://2130706433", "https://[::1]:1/"] {
            let refused = PUBLIC.check_url(url).unwrap_err();
            assert!(matches!(refused, Forbidden::Address { range: "loopback", .. }), "{url}");
            assert!(refused.to_string().contains("worker.allow_addresses"), "{refused}");
        }
        for url in ["file:///etc/passwd", "ftp://example.com", "example.com/hook", ""] {
            assert!(matches!(PUBLIC.check_url(url), Err(Forbidden::Url { .. })), "{url}");
        }
        assert!(PUBLIC.check_url("https://example.com/hook?a=b").is_ok());
        assert!(Guard::new(AllowAddresses::Any).check_url("http://127.0.0.1:80").is_ok());
    }

    #[test]
    fn a_name_keeps_the_addresses_that_are_allowed() {
        let resolved = |addresses: &[&str]| -> Vec<SocketAddr> {
            addresses.iter().map(|a| SocketAddr::new(a.parse().unwrap(), 0)).collect()
        };
        let mixed = resolved(&["10.0.0.1", "1.1.1.1"]);
        let admitted = PUBLIC.admit(mixed.into_iter()).ok().unwrap();
        assert_eq!(admitted.collect::<Vec<_>>(), resolved(&["1.1.1.1"]));
        let private = resolved(&["10.0.0.1", "127.0.0.1"]);
        assert!(PUBLIC.admit(private.into_iter()).is_err());
    }
}
