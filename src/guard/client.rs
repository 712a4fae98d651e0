//! The HTTP client behind the guard.
//!
//! Law: it connects to what the guard admits and to nothing else: no redirect is followed, no proxy
//! asked, nothing repeated underneath. A connection is reused only for the scheme, host and port
//! that it was made for, and leads to the address that was judged, whatever the name means since.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::sync::Arc;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, Response};

use super::own::Own;
use super::{Forbidden, Gate, Guard};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Never try again.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// Perhaps later.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

/// Makes the requests whose URL the guard has checked.
#[derive(Debug)]
pub struct GuardedClient {
    guard: Arc<Guard>,
    client: Client,
    /// A resolver is not told the port, so each where something of ours listens has a client.
    at_own_ports: BTreeMap<u16, Client>,
}

impl GuardedClient {
    /// A client behind `guard`; `builder` says all that is not the guard's business.
    pub fn new(guard: Guard, builder: impl Fn() -> ClientBuilder) -> reqwest::Result<Self> {
        let guard = Arc::new(guard);
        let client = |port| {
            let gate = Gate { guard: Arc::clone(&guard), port };
            let builder = builder().redirect(Policy::none()).retry(reqwest::retry::never());
            builder.referer(false).no_proxy().dns_resolver(Arc::new(gate)).build()
        };
        let own_ports: BTreeSet<u16> = guard.own.iter().map(Own::port).collect();
        let at_own_ports = own_ports.into_iter().map(|port| Ok((port, client(port)?)));
        let at_own_ports = at_own_ports.collect::<reqwest::Result<_>>()?;
        Ok(Self { client: client(0)?, at_own_ports, guard })
    }

    /// Whose judgement it obeys.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Sends a request whose URL was checked, and comes back with the head of the answer.
    pub async fn execute(&self, request: Request) -> Result<Response, Failure> {
        let url = request.url().clone();
        let client = self.at_own_ports.get(&super::port(&url)).unwrap_or(&self.client);
        let response = client.execute(request).await.map_err(failure)?;
        if let Some(peer) = response.remote_addr() {
            self.guard.check_peer(&url, peer).await?;
        }
        Ok(response)
    }
}

/// What the gate refused says so somewhere in the chain of causes.
fn failure(error: reqwest::Error) -> Failure {
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(forbidden) = current.downcast_ref::<Forbidden>() {
            return Failure::Forbidden(forbidden.clone());
        }
        cause = current.source();
    }
    Failure::Http(error)
}
