//! Orloj's own endpoints: brokers, the schema registry, the listeners of its roles.
//!
//! Invariant: none of them is ever a receiver, whatever the policy allows. An endpoint with a
//! loopback or unspecified address may be on every machine of the installation: at its port, only
//! public addresses are called.

use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use reqwest::dns::Resolve;

use super::ranges;
use crate::config::Settings;

/// Where brokers listen if nothing else is said.
const BROKER_PORT: u16 = 9092;

/// An endpoint that must not be called.
#[derive(Debug)]
pub(super) struct InternalEndpoint {
    what: &'static str,
    host: String,
    port: u16,
}

impl InternalEndpoint {
    /// A broker of the cluster.
    pub(super) fn broker(host: String, port: u16) -> Self {
        Self { what: "a Kafka broker", host, port }
    }

    /// What it is, for an error.
    pub(super) fn what(&self) -> &'static str {
        self.what
    }

    /// Whether it listens at this port.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.port == port
    }

    /// Whether a request to `host`, at `addresses`, reaches it. Its own name is resolved again each
    /// time, because brokers move.
    pub(super) async fn matches(
        &self,
        host: &str,
        addresses: &[IpAddr],
        resolver: &dyn Resolve,
    ) -> bool {
        if self.host.eq_ignore_ascii_case(host) {
            return true;
        }
        let ours = self.addresses(resolver).await;
        let is_on_every_host = ours.iter().any(|ours| ours.is_loopback() || ours.is_unspecified());
        let is_ours = |address: IpAddr| {
            ours.contains(&address)
                || is_on_every_host && ranges::special_purpose(address).is_some()
        };
        addresses.iter().flat_map(|address| ranges::with_embedded_ipv4(*address)).any(is_ours)
    }

    async fn addresses(&self, resolver: &dyn Resolve) -> Vec<IpAddr> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return vec![address.to_canonical()];
        }
        let Ok(name) = self.host.parse() else { return Vec::new() };
        let found = resolver.resolve(name).await.into_iter().flatten();
        found.map(|address| address.ip().to_canonical()).collect()
    }
}

/// All that the settings name.
pub(super) fn endpoints(settings: &Settings) -> Vec<InternalEndpoint> {
    let bootstrap = settings.kafka.get("bootstrap.servers").unwrap_or_default();
    let brokers = bootstrap.split(',').map(str::trim).filter(|at| !at.is_empty()).map(broker);
    let registry = Url::parse(&settings.triggers.registry_url).ok();
    let registry = registry.map(|url| {
        let host = super::host(&url).to_owned();
        InternalEndpoint { what: "the schema registry", host, port: super::port(&url) }
    });
    let Settings { scheduler, worker, gateway, notifier, .. } = settings;
    let listeners = [scheduler.listen, worker.listen, gateway.listen, notifier.listen];
    let listeners = listeners.map(listener);
    // Port 0 is one that the system picks: it is not known here.
    brokers.chain(registry).chain(listeners).filter(|own| own.port > 0).collect()
}

/// Reads one of librdkafka's `[protocol://]host[:port]`.
fn broker(at: &str) -> InternalEndpoint {
    let at = at.split_once("://").map_or(at, |(_, at)| at);
    let (host, port) = match at.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(BROKER_PORT)),
        _ => (at, BROKER_PORT),
    };
    InternalEndpoint::broker(host.trim_matches(['[', ']']).to_owned(), port)
}

fn listener(address: SocketAddr) -> InternalEndpoint {
    InternalEndpoint { what: "Orloj", host: address.ip().to_string(), port: address.port() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_read_as_librdkafka_reads_them() {
        for (at, host, port) in [
            ("kafka:9093", "kafka", 9093),
            ("kafka", "kafka", 9092),
            ("SASL_SSL://kafka.example:1", "kafka.example", 1),
            ("[::1]:9094", "::1", 9094),
            ("[::1]", "::1", 9092),
        ] {
            let own = broker(at);
            assert_eq!((own.host.as_str(), own.port), (host, port), "{at}");
        }
    }
}
