//! The purpose of addresses: which are public, and which contain another one.
//!
//! Invariant: an address that is not known to be public is not. All of IPv4 is public except IANA's
//! special-purpose ranges; of IPv6 only 2000::/3, except its special-purpose ranges. An address
//! that contains an IPv4 address is not public: its destination depends on the router that unwraps
//! it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// IANA's special-purpose registry, and the one public address where a cloud serves its metadata
/// (those of other clouds are in link-local, shared or private ranges).
const SPECIAL_V4: [(Ipv4Net, &str); 19] = [
    (v4([0, 0, 0, 0], 8), "unspecified"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared by carrier-grade NAT"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([168, 63, 129, 16], 32), "cloud metadata"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "for protocol assignments"),
    (v4([192, 0, 2, 0], 24), "for documentation"),
    (v4([192, 31, 196, 0], 24), "for protocol assignments"),
    (v4([192, 52, 193, 0], 24), "for protocol assignments"),
    (v4([192, 88, 99, 0], 24), "a 6to4 relay"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([192, 175, 48, 0], 24), "for protocol assignments"),
    (v4([198, 18, 0, 0], 15), "for benchmarks"),
    (v4([198, 51, 100, 0], 24), "for documentation"),
    (v4([203, 0, 113, 0], 24), "for documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// The first match applies. The last two make 2000::/3 public and everything else not.
const SPECIAL_V6: [(Ipv6Net, Option<&str>); 20] = [
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), Some("unspecified")),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), Some("loopback")),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), Some("an IPv4 address in an IPv6 one")),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), Some("NAT64")),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), Some("NAT64")),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), Some("a black hole")),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), Some("Teredo")),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), Some("for protocol assignments")),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), Some("for documentation")),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), Some("6to4")),
    (v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), Some("for protocol assignments")),
    (v6([0x3ffe, 0, 0, 0, 0, 0, 0, 0], 16), Some("reserved")),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), Some("for documentation")),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), Some("private (unique local)")),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), Some("link-local")),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), Some("site-local")),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Some("multicast")),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), Some("for segment routing")),
    (v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3), None),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 0), Some("reserved")),
];

/// The purpose of an address that is not public, for an error. An IPv4-mapped one counts as IPv4.
pub(super) fn special_purpose(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let found = SPECIAL_V4.iter().find(|(net, _)| net.contains(&address));
            found.map(|(_, purpose)| *purpose)
        }
        IpAddr::V6(address) if is_isatap(address) => Some("ISATAP"),
        IpAddr::V6(address) => {
            SPECIAL_V6.iter().find(|(net, _)| net.contains(&address)).and_then(|(_, what)| *what)
        }
    }
}

/// All destinations of an address: itself, and the IPv4 addresses in it.
pub(super) fn with_embedded_ipv4(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let carried = match address {
        IpAddr::V4(_) => [None; 2],
        IpAddr::V6(address) => embedded_ipv4(address),
    };
    std::iter::once(address).chain(carried.into_iter().flatten().map(IpAddr::V4))
}

fn embedded_ipv4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let segments = address.segments();
    let pair = |at: usize| u32::from(segments[at]) << 16 | u32::from(segments[at + 1]);
    let (last, v4) = (pair(6), |bits| Some(Ipv4Addr::from_bits(bits)));
    match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [v4(last), None],
        [0x2002, ..] => [v4(pair(1)), None],
        // The server's address, and the client's with every bit turned.
        [0x2001, 0, ..] => [v4(pair(2)), v4(!last)],
        // Below 1.0.0.0 are the unspecified address and loopback.
        [0, 0, 0, 0, 0, 0, 0x100..=0xffff, _] => [v4(last), None],
        _ if is_isatap(address) => [v4(last), None],
        _ => [None; 2],
    }
}

/// Whether it ends in an IPv4 address after any prefix (RFC 5214): marked by `0:5efe` or
/// `200:5efe`.
fn is_isatap(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [.., 0 | 0x200, 0x5efe, _, _])
}

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn purpose_of(address: &str) -> Option<&'static str> {
        special_purpose(address.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_of_no_special_use() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2003::1",
            "2a00:1450:4001::5efe",
            "::ffff:1.1.1.1",
        ] {
            assert_eq!(purpose_of(address), None, "{address}");
        }
    }

    #[test]
    fn every_special_range_is_refused_at_both_ends() {
        for (net, purpose) in SPECIAL_V4 {
            for address in [net.network(), net.broadcast()] {
                assert_eq!(special_purpose(address.into()), Some(purpose), "{address}");
            }
        }
        for (net, purpose) in SPECIAL_V6.iter().filter_map(|(net, what)| Some((net, (*what)?))) {
            for address in [net.network(), net.broadcast()] {
                assert!(special_purpose(address.into()).is_some(), "{address} is {purpose}");
            }
        }
        for (address, expected) in [
            ("100.100.100.200", "shared by carrier-grade NAT"),
            ("169.254.169.254", "link-local"),
            ("fd00:ec2::254", "private (unique local)"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::127.0.0.1", "an IPv4 address in an IPv6 one"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:0:127.0.0.1", "reserved"),
            ("64:ff9b::1.1.1.1", "NAT64"),
            ("64:ff9b:1::7f00:1", "NAT64"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
            ("2002:7f00:1::", "6to4"),
            ("2600::5efe:10.0.0.1", "ISATAP"),
            ("2600::200:5efe:10.0.0.1", "ISATAP"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("4000::1", "reserved"),
        ] {
            assert_eq!(purpose_of(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_ipv4_address_in_an_ipv6_address_is_found() {
        let carried = |address: &str| -> Vec<String> {
            with_embedded_ipv4(address.parse().unwrap())
                .skip(1)
                .map(|address| address.to_string())
                .collect()
        };
        for address in [
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::",
            "2600::5efe:127.0.0.1",
            "fe80::200:5efe:127.0.0.1",
        ] {
            assert_eq!(carried(address), ["127.0.0.1"], "{address}");
        }
        assert_eq!(carried("2001:0:7f00:1::80ff:fffe"), ["127.0.0.1", "127.0.0.1"]);
        for address in ["::", "::1", "2606:4700::1111", "10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(carried(address), Vec::<String>::new(), "{address}");
        }
        assert_eq!(
            with_embedded_ipv4("::ffff:10.0.0.1".parse().unwrap()).next(),
            "10.0.0.1".parse().ok()
        );
    }

    proptest! {
        /// Compares with the standard library, which knows some of the ranges too.
        #[test]
        fn what_the_standard_library_knows_is_special(bits: u32, low: u128) {
            let address = Ipv4Addr::from_bits(bits);
            let known = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_documentation()
                || address.is_broadcast()
                || address.is_unspecified();
            prop_assert!(!known || special_purpose(address.into()).is_some(), "{}", address);
            let address = Ipv6Addr::from_bits(low);
            let known = address.is_unique_local()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || address.segments()[0] >> 13 != 1;
            prop_assert!(!known || special_purpose(address.into()).is_some(), "{}", address);
        }

        /// A range is refused completely, and also in its IPv4-mapped form.
        #[test]
        fn every_address_of_a_special_range_is_refused(pick: proptest::sample::Index, bits: u32) {
            let (net, purpose) = SPECIAL_V4[pick.index(SPECIAL_V4.len())];
            let within = net.network().to_bits() | bits & net.hostmask().to_bits();
            let address = Ipv4Addr::from_bits(within);
            prop_assert_eq!(special_purpose(address.into()), Some(purpose));
            prop_assert_eq!(special_purpose(address.to_ipv6_mapped().into()), Some(purpose));
        }

        /// An address that contains an IPv4 address is not public, and the inner one is checked
        /// too.
        #[test]
        fn every_embedded_ipv4_address_is_refused_and_found(bits in 0x100_0000_u32.., low: u64) {
            let address = Ipv4Addr::from_bits(bits);
            let bits = u128::from(bits);
            let prefix = u128::from(0x2600 << 48 | low >> 16) << 64;
            for wrapped in [
                bits,
                0x64_ff9b << 96 | bits,
                0x2002 << 112 | bits << 80 | u128::from(low),
                0x2001_0000 << 96 | bits << 64 | u128::from(low),
                0x2001_0000 << 96 | u128::from(low >> 32) << 64 | (!bits & 0xffff_ffff),
                prefix | 0x5efe << 32 | bits,
                prefix | 0x200_5efe << 32 | bits,
            ] {
                let wrapped = IpAddr::V6(Ipv6Addr::from_bits(wrapped));
                prop_assert!(special_purpose(wrapped).is_some(), "{}", wrapped);
                let is_found = with_embedded_ipv4(wrapped).any(|embedded| embedded == address);
                prop_assert!(is_found, "{}", wrapped);
            }
        }
    }
}
