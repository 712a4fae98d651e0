//! The address guard: where a callback may go. A caller that registers a trigger makes this
//! installation send a request, from inside its own network.
//!
//! Invariant: an address is checked when the connection is made, after the name was resolved, so
//! that changing a name's address in between has no effect; the check at registration is only an
//! early error. What is not known to be allowed is refused, and one forbidden address makes the
//! guard refuse all addresses of its name.
//!
//! ```text
//!  registration ─► check: URL, port, allow-list, address ─► resolve (if it can be, now)
//!  attempt ──────► check ─► Connector: resolve ─► connect ─► check_peer ─► request
//! ```

mod allow_list;
mod client;
mod connector;
mod internal_endpoints;
mod ranges;
mod read_limit;
mod resolver;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Name, Resolve};

pub use allow_list::BaseUrls;
pub use client::{GuardedClient, ORLOJ_USER_AGENT, RequestError};
pub use connector::ConnectTimeout;

use crate::config::{AllowAddresses, PortRange, Settings};
use crate::model::callback_url::{self, Host};
use internal_endpoints::InternalEndpoints;
use resolver::{Lookups, SystemResolver};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A callback that must not be made: refuse its registration, or make a dead letter of it at once,
/// because no later attempt may be made either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForbiddenTarget {
    /// The URL itself is invalid.
    #[error("{url:?} cannot be called: {reason}")]
    Url {
        /// As the trigger has it.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Its caller may only use other URLs.
    #[error("{url} must not be called: it is under none of its caller's base URLs")]
    NotAllowed {
        /// As it would be called.
        url: String,
    },
    /// The port is not allowed for callbacks.
    #[error(
        "port {0} must not be called; `worker.allow_ports` and `worker.deny_ports` say which may"
    )]
    Port(u16),
    /// It resolves to an address that the policy forbids. The error does not show the address: it
    /// may be confidential.
    #[error(
        "{host} must not be called: it is {purpose}; `worker.allow_addresses` says what may be"
    )]
    Address {
        /// As written.
        host: String,
        /// What such addresses are for.
        purpose: &'static str,
    },
    /// It resolves to Orloj itself, or to its cluster. No setting allows it.
    #[error("{host} must not be called at port {port}: {what} is there")]
    Internal {
        /// As written.
        host: String,
        /// As written, or the scheme's own.
        port: u16,
        /// What is there.
        what: &'static str,
    },
}

/// Why a name has no usable addresses.
#[derive(Debug, thiserror::Error)]
enum ResolveError {
    /// Refuse it permanently.
    #[error(transparent)]
    Forbidden(#[from] ForbiddenTarget),
    /// Try again later.
    #[error("{0}")]
    Unknown(BoxError),
}

impl ResolveError {
    /// The error for a chain of causes, in which a `ForbiddenTarget` can be found again.
    fn cause(self) -> BoxError {
        match self {
            Self::Forbidden(forbidden) => forbidden.into(),
            Self::Unknown(error) => error,
        }
    }
}

/// Checks targets by the policy of one installation.
pub struct Guard {
    allow: AllowAddresses,
    deny: Vec<ipnet::IpNet>,
    allow_ports: Vec<PortRange>,
    deny_ports: Vec<PortRange>,
    internal: InternalEndpoints,
    lookups: Lookups,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("allow", &self.allow).finish_non_exhaustive()
    }
}

impl Guard {
    /// A guard with the system's resolver.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// A guard with this resolver.
    #[must_use]
    pub fn with_resolver(settings: &Settings, resolver: Arc<dyn Resolve>) -> Self {
        let worker = &settings.worker;
        Self {
            allow: worker.allow_addresses.clone(),
            deny: worker.deny_addresses.clone(),
            allow_ports: worker.allow_ports.clone(),
            deny_ports: worker.deny_ports.clone(),
            internal: InternalEndpoints::new(settings, Arc::clone(&resolver)),
            lookups: Lookups::new(resolver, worker.dns_lookups_max),
        }
    }

    /// Adds brokers that the settings do not name: their hosts and ports.
    #[must_use]
    pub fn with_brokers(mut self, brokers: Vec<(String, u16)>) -> Self {
        brokers.into_iter().for_each(|(host, port)| self.internal.add_broker(host, port));
        self
    }

    /// Starts to look up the names of our own endpoints, so that no request waits for that. It is
    /// called in a runtime; without it, the first request starts it.
    pub fn start_lookups(&self) {
        self.internal.start_lookups();
    }

    /// Reads a URL, and refuses what can be refused without resolving its host. The caller sets a
    /// timeout: an IP address waits until our own endpoints were looked up for the first time.
    pub async fn check(&self, url: &str, bases: BaseUrls<'_>) -> Result<Url, ForbiddenTarget> {
        let refuse = |reason| ForbiddenTarget::Url { url: url.to_owned(), reason };
        let parsed = parse(url).map_err(refuse)?;
        let port = port(&parsed);
        let within = |ranges: &[PortRange]| ranges.iter().any(|range| range.contains(port));
        if !within(&self.allow_ports) || within(&self.deny_ports) {
            return Err(ForbiddenTarget::Port(port));
        }
        allow_list::check(&parsed, bases)?;
        let host = host(&parsed);
        let literal: Vec<IpAddr> = host.parse().into_iter().collect();
        self.check_addresses(host, &literal, port).await?;
        Ok(parsed)
    }

    /// Checks a URL to be registered, and what its host resolves to now. What cannot be resolved
    /// within `timeout` passes: it is checked again when the trigger is due.
    pub async fn check_and_resolve(
        &self,
        url: &str,
        bases: BaseUrls<'_>,
        timeout: Duration,
    ) -> Result<(), ForbiddenTarget> {
        tokio::time::timeout(timeout, self.check_now(url, bases)).await.unwrap_or(Ok(()))
    }

    async fn check_now(&self, url: &str, bases: BaseUrls<'_>) -> Result<(), ForbiddenTarget> {
        let url = self.check(url, bases).await?;
        let host = host(&url);
        let Ok(name) = host.parse::<Name>() else { return Ok(()) };
        if host.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        let Ok(permit) = self.lookups.permit().await else { return Ok(()) };
        match self.resolve(name, port(&url), permit).await {
            Err(ResolveError::Forbidden(forbidden)) => Err(forbidden),
            Ok(_) | Err(ResolveError::Unknown(_)) => Ok(()),
        }
    }

    /// Refuses the peer address of a new connection. It was checked before connecting, so a refusal
    /// here is a bug.
    pub async fn check_peer(&self, url: &Url, peer: SocketAddr) -> Result<(), ForbiddenTarget> {
        let host = host(url);
        let checked = self.check_addresses(host, &[peer.ip()], peer.port()).await;
        if checked.is_err() {
            tracing::error!(host, %peer, "connected to a forbidden address; please report this");
        }
        checked
    }

    /// The addresses of a name, if all of them may be reached at this port. The lookup holds these
    /// permits until it ends.
    async fn resolve(
        &self,
        name: Name,
        port: u16,
        permits: impl Send + 'static,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let host = name.as_str().to_owned();
        let addresses = self.lookups.addresses(name, permits).await;
        let addresses = addresses.map_err(ResolveError::Unknown)?;
        self.check_addresses(&host, &addresses, port).await?;
        // The URL's port was checked, so a port of the resolver is not used.
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect())
    }

    async fn check_addresses(
        &self,
        host: &str,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(), ForbiddenTarget> {
        addresses.iter().try_for_each(|address| self.check_address(host, *address))?;
        match self.internal.reached_by(host, addresses, port).await {
            None => Ok(()),
            Some(what) => Err(ForbiddenTarget::Internal { host: host.to_owned(), port, what }),
        }
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), ForbiddenTarget> {
        let refusal = ranges::with_embedded_ipv4(address)
            .find_map(|candidate| self.forbidden_purpose(candidate));
        match refusal {
            None => Ok(()),
            Some(purpose) => Err(ForbiddenTarget::Address { host: host.to_owned(), purpose }),
        }
    }

    fn forbidden_purpose(&self, address: IpAddr) -> Option<&'static str> {
        if self.deny.iter().any(|net| net.contains(&address)) {
            return Some("in a network of `worker.deny_addresses`");
        }
        match &self.allow {
            AllowAddresses::Any => None,
            AllowAddresses::Networks(nets) if nets.iter().any(|net| net.contains(&address)) => None,
            AllowAddresses::Public | AllowAddresses::Networks(_) => {
                ranges::special_purpose(address)
            }
        }
    }
}

/// The URL as the client parses it, if every parser gives the same host and port.
fn parse(url: &str) -> Result<Url, String> {
    let parts = callback_url::parse(url).map_err(|error| error.to_string())?;
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    let same_host = match parts.host {
        Host::Name(name) => name.eq_ignore_ascii_case(host(&parsed)),
        Host::Address(address) => host(&parsed).parse() == Ok(address),
    };
    if same_host && port(&parsed) == parts.port {
        Ok(parsed)
    } else {
        Err("it can be read in two ways".to_owned())
    }
}

/// The host, an IPv6 address without its brackets.
fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_matches(['[', ']'])
}

fn port(url: &Url) -> u16 {
    url.port_or_known_default().unwrap_or_default()
}

#[cfg(test)]
mod tests;
