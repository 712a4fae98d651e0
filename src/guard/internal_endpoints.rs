//! Orloj's own endpoints: brokers, the schema registry, the listeners of its roles.
//!
//! Invariant: none of them is ever a receiver, whatever the policy allows. An endpoint with a
//! loopback or unspecified address may be on every machine of the installation: at its port, only
//! public addresses are called. Their names are looked up again and again, because brokers move,
//! and beside the requests. Requests wait for the first lookup; and for a moment, all for the same
//! one, if the answer is not fresh and does not say that an address is one of ours.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use reqwest::Url;
use reqwest::dns::{Name, Resolve};
use tokio::sync::{Notify, watch};
use tokio::time::{timeout, timeout_at};

use super::ranges;
use crate::clock;
use crate::config::Settings;

/// Where brokers listen if nothing else is said.
const BROKER_PORT: u16 = 9092;
/// Pause between two lookups of a name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);
/// The same after one that has found nothing.
const LOOKUP_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// An answer of this age is not asked for again.
const FRESH: Duration = Duration::from_secs(1);
/// How long requests wait for a lookup after the first. One without an answer must not delay them.
const LOOKUP_WAIT: Duration = Duration::from_secs(1);
/// An address is ours for so long after the last answer with it: a name with many addresses may be
/// answered with a few of them, others each time.
const ADDRESS_KEPT: Duration = Duration::from_secs(5 * 60);

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
    /// Its host is a name, which a task looks up.
    has_name: bool,
    known: watch::Sender<KnownAddresses>,
    /// Wakes that task.
    wanted: Arc<Notify>,
}

/// What is known of the addresses of an endpoint.
#[derive(Debug, Default)]
struct KnownAddresses {
    /// When the last answer with each arrived.
    addresses: BTreeMap<IpAddr, Instant>,
    /// Since when a lookup is asked for, or in progress.
    asked_at: Option<Instant>,
    /// When the last lookup ended.
    answered_at: Option<Instant>,
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
        self.start_lookups();
        for own in self.all.iter().filter(|own| own.port == port) {
            if own.matches(host, addresses).await {
                return Some(own.what);
            }
        }
        None
    }

    /// Waits until the names of the endpoints at a port were looked up.
    pub(super) async fn wait_until_known(&self, port: u16) {
        self.start_lookups();
        for own in self.all.iter().filter(|own| own.port == port) {
            own.wait_until_known().await;
        }
    }

    /// Starts the tasks that look up the names, once.
    pub(super) fn start_lookups(&self) {
        self.lookups.call_once(|| {
            for own in self.all.iter().filter(|own| own.has_name) {
                tokio::spawn(keep_looking_up(Arc::downgrade(own), Arc::clone(&self.resolver)));
            }
        });
    }
}

/// Looks up the name of an endpoint until that is dropped.
async fn keep_looking_up(own: Weak<InternalEndpoint>, resolver: Arc<dyn Resolve>) {
    while let Some(endpoint) = own.upgrade() {
        let is_found = endpoint.look_up(&*resolver).await;
        let wanted = Arc::clone(&endpoint.wanted);
        drop(endpoint);
        let pause = if is_found { LOOKUP_INTERVAL } else { LOOKUP_RETRY_PAUSE };
        let _is_wanted = timeout(pause, wanted.notified()).await;
    }
}

impl InternalEndpoint {
    fn new(what: &'static str, host: String, port: u16) -> Self {
        let mut known = KnownAddresses::default();
        let literal = host.parse::<IpAddr>().ok();
        if let Some(address) = literal {
            known.record(Some(vec![address]), clock::monotonic());
        }
        let (known, wanted) = (watch::Sender::new(known), Arc::default());
        Self { what, host, port, has_name: literal.is_none(), known, wanted }
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
        self.wait_until_known().await;
        let reaches = || self.known.borrow().contain(addresses);
        reaches() || self.look_up_now().await && reaches()
    }

    async fn wait_until_known(&self) {
        let mut known = self.known.subscribe();
        // The sender is in `self`, so there is no error.
        let _known = known.wait_for(|known| known.answered_at.is_some()).await;
    }

    /// Has the name looked up, unless the answer is fresh. Returns whether there is another answer.
    async fn look_up_now(&self) -> bool {
        let (now, answered_at) = (clock::monotonic(), self.known.borrow().answered_at);
        let is_fresh = answered_at.is_some_and(|at| now < at + FRESH);
        if !self.has_name || is_fresh {
            return false;
        }
        let deadline = self.ask(now) + LOOKUP_WAIT;
        let mut known = self.known.subscribe();
        let other = known.wait_for(|known| known.answered_at > answered_at);
        timeout_at(deadline.into(), other).await.is_ok()
    }

    /// Wakes the task, unless a lookup is asked for or in progress. Returns since when it is.
    fn ask(&self, now: Instant) -> Instant {
        let mut asked_at = now;
        self.known.send_if_modified(|known| {
            match known.asked_at {
                Some(at) => asked_at = at,
                None => {
                    known.asked_at = Some(now);
                    self.wanted.notify_one();
                }
            }
            false
        });
        asked_at
    }

    /// Looks its name up. What was known before stays if nothing is found. Returns whether
    /// something was.
    async fn look_up(&self, resolver: &dyn Resolve) -> bool {
        self.known.send_modify(|known| {
            let _asked_at = known.asked_at.get_or_insert_with(clock::monotonic);
        });
        let found = match self.host.parse::<Name>() {
            Ok(name) => resolver.resolve(name).await.ok(),
            Err(_) => None,
        };
        let found = found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>());
        let is_found = found.is_some();
        self.known.send_modify(|known| known.record(found, clock::monotonic()));
        is_found
    }
}

impl KnownAddresses {
    /// A lookup has ended.
    fn record(&mut self, found: Option<Vec<IpAddr>>, now: Instant) {
        (self.asked_at, self.answered_at) = (None, Some(now));
        if let Some(found) = found {
            self.addresses.extend(found.into_iter().map(|address| (address.to_canonical(), now)));
            self.addresses.retain(|_, answered_at| now - *answered_at < ADDRESS_KEPT);
        }
    }

    /// Whether one of these is an address of the endpoint.
    fn contain(&self, addresses: &[IpAddr]) -> bool {
        let mut ours = self.addresses.keys();
        let is_on_every_host = ours.any(|ours| ours.is_loopback() || ours.is_unspecified());
        let is_ours = |address: IpAddr| {
            self.addresses.contains_key(&address)
                || is_on_every_host && ranges::special_purpose(address).is_some()
        };
        addresses.iter().flat_map(|address| ranges::with_embedded_ipv4(*address)).any(is_ours)
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
    use std::sync::Mutex;

    use reqwest::dns::{Addrs, Resolving};
    use tokio::join;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const DEADLINE: Duration = Duration::from_secs(30);

    /// Resolves every name to what was set last; without any it finds nothing. Counts the lookups.
    #[derive(Default)]
    struct TestResolver(Mutex<(Vec<SocketAddr>, usize)>);

    impl TestResolver {
        fn with(texts: &[&str]) -> Self {
            let resolver = Self::default();
            resolver.set(texts);
            resolver
        }

        fn set(&self, texts: &[&str]) {
            let addresses = texts.iter().map(|text| SocketAddr::new(address(text), 0));
            self.0.lock().unwrap().0 = addresses.collect();
        }

        fn lookups(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    impl Resolve for TestResolver {
        fn resolve(&self, _: Name) -> Resolving {
            let mut state = self.0.lock().unwrap();
            state.1 += 1;
            let addresses = state.0.clone();
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
        assert!(!own.look_up(&TestResolver::default()).await);
        assert!(!own.matches("10.0.0.1", &addresses).await, "it has no address");
    }

    #[tokio::test]
    async fn an_endpoint_keeps_its_addresses_if_nothing_is_found() {
        let own = broker("ours.test:1");
        let has = async |text: &str| own.matches(text, &[address(text)]).await;
        assert!(own.look_up(&TestResolver::with(&["10.0.0.1", "::ffff:10.0.0.2"])).await);
        assert!(has("10.0.0.1").await && has("10.0.0.2").await && !has("10.0.0.3").await);
        assert!(!own.look_up(&TestResolver::default()).await);
        assert!(has("10.0.0.1").await);
        assert!(own.look_up(&TestResolver::with(&["10.0.0.3"])).await);
        assert!(has("10.0.0.3").await && has("10.0.0.1").await, "the name may have several");
    }

    #[test]
    fn an_address_is_ours_for_minutes_after_the_last_answer_with_it() {
        let (mut known, began) = (KnownAddresses::default(), clock::monotonic());
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(address);
        known.record(Some(vec![first]), began);
        known.record(Some(vec![second]), began + ADDRESS_KEPT / 2);
        known.record(None, began + ADDRESS_KEPT * 2);
        assert!(known.contain(&[first]) && known.contain(&[second]), "nothing else was found");
        known.record(Some(vec![second]), began + ADDRESS_KEPT);
        assert!(!known.contain(&[first]) && known.contain(&[second]));
    }

    fn set_answered_at(own: &InternalEndpoint, at: Option<Instant>) {
        own.known.send_modify(|known| known.answered_at = at);
    }

    #[tokio::test]
    async fn requests_share_a_lookup_if_the_answer_is_not_fresh() {
        let resolver = Arc::new(TestResolver::with(&["10.0.0.1"]));
        let own = Arc::new(broker("ours.test:1"));
        let task = keep_looking_up(Arc::downgrade(&own), Arc::clone(&resolver) as Arc<dyn Resolve>);
        tokio::spawn(task);
        let moved = [address("10.0.0.3")];
        let reached = || own.matches("10.0.0.3", &moved);
        timeout(DEADLINE, own.wait_until_known()).await.unwrap();
        resolver.set(&["10.0.0.3"]);
        set_answered_at(&own, Some(clock::monotonic() + DEADLINE));
        assert!(!reached().await, "the answer is fresh");
        set_answered_at(&own, clock::monotonic().checked_sub(FRESH));
        let both = async { join!(reached(), reached()) };
        assert_eq!(timeout(DEADLINE, both).await.unwrap(), (true, true));
        assert_eq!(resolver.lookups(), 2);
    }

    #[tokio::test]
    async fn a_lookup_without_an_answer_delays_requests_once() {
        let own = broker("ours.test:1");
        assert!(own.look_up(&TestResolver::with(&["10.0.0.1"])).await);
        set_answered_at(&own, clock::monotonic().checked_sub(FRESH));
        own.known.send_modify(|known| known.asked_at = clock::monotonic().checked_sub(LOOKUP_WAIT));
        let moved = [address("10.0.0.3")];
        assert_eq!(timeout(SHORT, own.matches("10.0.0.3", &moved)).await, Ok(false));
    }
}
