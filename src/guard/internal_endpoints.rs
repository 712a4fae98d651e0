//! Orloj's own endpoints: brokers, the schema registry, the listeners of its roles.
//!
//! Invariant: none of them is ever a receiver, whatever the policy allows. An endpoint with a
//! loopback or unspecified address may be on every machine of the installation: at its port, only
//! public addresses are called. Their names are looked up again and again, because brokers move,
//! and beside the requests: only the first lookup is waited for.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Name, Resolve};
use tokio::sync::watch;
use tokio::time::sleep;

use super::ranges;
use crate::config::Settings;

/// Where brokers listen if nothing else is said.
const BROKER_PORT: u16 = 9092;
/// Pause between two lookups of a name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);
/// The same after one that has found nothing.
const LOOKUP_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The endpoints that must not be called.
pub(super) struct InternalEndpoints {
    all: Vec<Arc<InternalEndpoint>>,
    /// Looks up their names; each has one lookup in progress at most.
    resolver: Arc<dyn Resolve>,
    lookups: Once,
}

/// An endpoint that must not be called.
#[derive(Debug)]
struct InternalEndpoint {
    what: &'static str,
    host: String,
    port: u16,
    /// `None` until its name was looked up.
    addresses: watch::Sender<Option<Vec<IpAddr>>>,
}

impl InternalEndpoints {
    /// All that the settings name.
    pub(super) fn new(settings: &Settings, resolver: Arc<dyn Resolve>) -> Self {
        let all = endpoints(settings).into_iter().map(Arc::new).collect();
        Self { all, resolver, lookups: Once::new() }
    }

    /// Adds a broker that the settings do not name.
    pub(super) fn add_broker(&mut self, host: String, port: u16) {
        self.all.push(Arc::new(InternalEndpoint::broker(host, port)));
    }

    /// What a request to `host`, at `addresses` and this port, would reach.
    pub(super) async fn reached_by(
        &self,
        host: &str,
        addresses: &[IpAddr],
        port: u16,
    ) -> Option<&'static str> {
        self.lookups.call_once(|| self.start_lookups());
        for own in self.all.iter().filter(|own| own.port == port) {
            if own.matches(host, addresses).await {
                return Some(own.what);
            }
        }
        None
    }

    fn start_lookups(&self) {
        for own in self.all.iter().filter(|own| own.addresses.borrow().is_none()) {
            tokio::spawn(keep_looking_up(Arc::downgrade(own), Arc::clone(&self.resolver)));
        }
    }
}

/// Looks up the name of an endpoint until that is dropped.
async fn keep_looking_up(own: Weak<InternalEndpoint>, resolver: Arc<dyn Resolve>) {
    while let Some(endpoint) = own.upgrade() {
        let is_found = endpoint.look_up(&*resolver).await;
        drop(endpoint);
        sleep(if is_found { LOOKUP_INTERVAL } else { LOOKUP_RETRY_PAUSE }).await;
    }
}

impl InternalEndpoint {
    fn new(what: &'static str, host: String, port: u16) -> Self {
        let literal = host.parse::<IpAddr>().ok().map(|address| vec![address.to_canonical()]);
        Self { what, host, port, addresses: watch::Sender::new(literal) }
    }

    /// A broker of the cluster.
    fn broker(host: String, port: u16) -> Self {
        Self::new("a Kafka broker", host, port)
    }

    /// Whether a request to `host`, at `addresses`, reaches it; without any, by its name alone.
    async fn matches(&self, host: &str, addresses: &[IpAddr]) -> bool {
        if self.host.eq_ignore_ascii_case(host) {
            return true;
        }
        if addresses.is_empty() {
            return false;
        }
        let mut known = self.addresses.subscribe();
        let ours = match known.wait_for(Option::is_some).await {
            Ok(ours) => ours.clone().unwrap_or_default(),
            Err(_dropped) => Vec::new(), // `self` has the sender
        };
        let is_on_every_host = ours.iter().any(|ours| ours.is_loopback() || ours.is_unspecified());
        let is_ours = |address: IpAddr| {
            ours.contains(&address)
                || is_on_every_host && ranges::special_purpose(address).is_some()
        };
        addresses.iter().flat_map(|address| ranges::with_embedded_ipv4(*address)).any(is_ours)
    }

    /// Looks its name up. What was known before stays if nothing is found. Returns whether
    /// something was.
    async fn look_up(&self, resolver: &dyn Resolve) -> bool {
        let found = match self.host.parse::<Name>() {
            Ok(name) => resolver.resolve(name).await.ok(),
            Err(_) => None,
        };
        let Some(found) = found else {
            self.addresses.send_modify(|known| {
                let _known = known.get_or_insert_default();
            });
            return false;
        };
        let addresses = found.map(|address| address.ip().to_canonical()).collect();
        self.addresses.send_replace(Some(addresses));
        true
    }
}

/// All that the settings name.
fn endpoints(settings: &Settings) -> Vec<InternalEndpoint> {
    let bootstrap = settings.kafka.get("bootstrap.servers").unwrap_or_default();
    let brokers = bootstrap.split(',').map(str::trim).filter(|at| !at.is_empty()).map(broker);
    let registry = Url::parse(&settings.triggers.registry_url).ok();
    let registry = registry.map(|url| {
        let host = super::host(&url).to_owned();
        InternalEndpoint::new("the schema registry", host, super::port(&url))
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
    InternalEndpoint::new("Orloj", address.ip().to_string(), address.port())
}

#[cfg(test)]
mod tests {
    use reqwest::dns::{Addrs, Resolving};
    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    /// Resolves every name to these addresses; without any it finds nothing.
    struct ListResolver(&'static [&'static str]);

    impl Resolve for ListResolver {
        fn resolve(&self, _: Name) -> Resolving {
            let addresses = self.0.iter().map(|text| SocketAddr::new(address(text), 0));
            let addresses: Vec<_> = addresses.collect();
            Box::pin(async move {
                if addresses.is_empty() {
                    return Err(std::io::Error::from(std::io::ErrorKind::NotFound).into());
                }
                Ok(Box::new(addresses.into_iter()) as Addrs)
            })
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

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

    #[tokio::test]
    async fn an_address_waits_for_the_first_lookup_of_our_own_name_and_a_name_does_not() {
        let own = broker("ours.test:1");
        assert!(own.matches("OURS.test", &[]).await);
        assert!(!own.matches("other.test", &[]).await);
        let addresses = [address("10.0.0.1")];
        let matches = own.matches("10.0.0.1", &addresses);
        assert!(timeout(SHORT, matches).await.is_err());
        assert!(!own.look_up(&ListResolver(&[])).await);
        assert!(!own.matches("10.0.0.1", &addresses).await, "it has no address");
    }

    #[tokio::test]
    async fn an_endpoint_keeps_its_addresses_until_others_are_found() {
        let own = broker("ours.test:1");
        let has = async |text: &str| own.matches(text, &[address(text)]).await;
        assert!(own.look_up(&ListResolver(&["10.0.0.1", "::ffff:10.0.0.2"])).await);
        assert!(has("10.0.0.1").await && has("10.0.0.2").await && !has("10.0.0.3").await);
        assert!(!own.look_up(&ListResolver(&[])).await);
        assert!(has("10.0.0.1").await);
        assert!(own.look_up(&ListResolver(&["10.0.0.3"])).await);
        assert!(has("10.0.0.3").await && !has("10.0.0.1").await);
    }
}
