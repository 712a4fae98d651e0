//! Networks and ports as people write them: what callbacks may reach.
//!
//! Invariant: a network is written by its first address, `10.1.0.0/16`. One with bits beyond its
//! prefix may be meant as one host or as all, and is refused.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

/// Which addresses a callback may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowAddresses {
    /// Only addresses that are routed on the internet.
    Public,
    /// Every address, loopback included.
    Any,
    /// The public ones, and these networks.
    Networks(Vec<IpNet>),
}

/// Ports, written `443` or `1024-65535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Whether a port is among them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl<'de> Deserialize<'de> for AllowAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum AllowKeyword {
            Public,
            Any,
        }
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "write \"public\", \"any\", or a list of networks to allow \
                                       beside the public ones: [\"10.1.0.0/16\"]"
        )]
        enum AllowAddressesInput {
            Keyword(AllowKeyword),
            List(Vec<String>),
        }
        match AllowAddressesInput::deserialize(deserializer)? {
            AllowAddressesInput::Keyword(AllowKeyword::Public) => Ok(Self::Public),
            AllowAddressesInput::Keyword(AllowKeyword::Any) => Ok(Self::Any),
            AllowAddressesInput::List(nets) => {
                read_networks(&nets).map(Self::Networks).map_err(de::Error::custom)
            }
        }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(de::Error::custom("write ports as \"443\" or \"1024-65535\"")),
        }
    }
}

/// For `#[serde(deserialize_with)]`: a list of networks, perhaps empty.
pub(super) fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    read_networks(&Vec::deserialize(deserializer)?).map_err(de::Error::custom)
}

fn read_networks(texts: &[String]) -> Result<Vec<IpNet>, String> {
    texts.iter().map(|text| read_network(text)).collect()
}

/// A network, or one address.
fn read_network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    match text.parse::<IpNet>().ok().or_else(address) {
        Some(net) if net.addr() == net.network() => Ok(net),
        Some(net) => Err(format!("{text} is an address in {}: write one of the two", net.trunc())),
        None => Err(format!("{text:?} is no network: write 10.1.0.0/16, fd00:1::/32 or 10.1.0.7")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_by_their_first_address() {
        for (text, expected) in
            [("10.1.0.0/16", "10.1.0.0/16"), ("fd00::/8", "fd00::/8"), ("10.1.2.3", "10.1.2.3/32")]
        {
            assert_eq!(read_network(text).map(|net| net.to_string()), Ok(expected.to_owned()));
        }
        let error = read_network("10.1.2.3/16").unwrap_err();
        assert_eq!(error, "10.1.2.3/16 is an address in 10.1.0.0/16: write one of the two");
        for text in ["", "10.1", "10.1.0.0/33", "localhost", "10.1.0.0-10.2.0.0"] {
            assert!(read_network(text).unwrap_err().contains("is no network"), "{text}");
        }
    }
}
