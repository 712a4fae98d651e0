//! How the guard's client connects to a receiver: name, address, connection, TLS.
//!
//! Invariant: every address is checked by the guard immediately before connecting, and the peer
//! again before anything is sent. DNS names that never resolve use up the permits of their own
//! caller only.

use std::convert::Infallible;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{HttpConnector, dns};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};
use tower::{Service, service_fn};

use super::read_limit::LimitedReader;
use super::{BoxError, Guard, ResolveError, host, port};

/// A connection to a receiver.
type ReceiverStream = MaybeHttpsStream<TokioIo<LimitedReader>>;

/// What took longer than `worker.connect_timeout`.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectTimeout {
    /// The first lookup of our own names has not ended.
    #[error("the addresses that must not be called were not known within {0:?}")]
    OwnLookups(Duration),
    /// The caller's own lookups have taken all its permits.
    #[error(
        "within {0:?} none of the names of this caller's hosts that are being looked up was \
         answered; `worker.dns_lookups_max` says how many may be"
    )]
    CallerLookups(Duration),
    /// The lookups of all callers have taken all permits.
    #[error(
        "within {0:?} no name could be looked up: none of those of all callers that are being \
         looked up was answered; `worker.dns_lookups_max` says how many may be"
    )]
    AllLookups(Duration),
    /// The receiver, or its DNS server.
    #[error("no connection within {0:?}")]
    Connection(Duration),
}

/// Connects for one caller.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) guard: Arc<Guard>,
    pub(super) tls: Arc<ClientConfig>,
    /// For lookup, connect and TLS together.
    pub(super) timeout: Duration,
    /// What a receiver may send between two response heads, in bytes.
    pub(super) response_max: u64,
    /// Permits for the lookups of the caller's names.
    pub(super) lookups: Arc<Semaphore>,
}

impl Service<Uri> for Connector {
    type Response = ReceiverStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ReceiverStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(to).await })
    }
}

impl Connector {
    async fn connect(&self, to: Uri) -> Result<ReceiverStream, BoxError> {
        let url = Url::parse(&to.to_string())?;
        let mut time_is_up = pin!(sleep(self.timeout));
        let late = |what: fn(Duration) -> ConnectTimeout| BoxError::from(what(self.timeout));
        select! {
            () = self.guard.internal.wait_until_known(port(&url)) => {}
            () = &mut time_is_up => return Err(late(ConnectTimeout::OwnLookups)),
        }
        let permits = if host(&url).parse::<IpAddr>().is_ok() {
            None
        } else {
            let of_caller = select! {
                permit = Arc::clone(&self.lookups).acquire_owned() => permit?,
                () = &mut time_is_up => return Err(late(ConnectTimeout::CallerLookups)),
            };
            let of_all = select! {
                permit = self.guard.lookups.permit() => permit?,
                () = &mut time_is_up => return Err(late(ConnectTimeout::AllLookups)),
            };
            Some([of_caller, of_all])
        };
        select! {
            stream = self.resolve_and_connect(to, &url, permits) => stream,
            () = &mut time_is_up => Err(late(ConnectTimeout::Connection)),
        }
    }

    async fn resolve_and_connect(
        &self,
        to: Uri,
        url: &Url,
        permits: Option<[OwnedSemaphorePermit; 2]>,
    ) -> Result<ReceiverStream, BoxError> {
        let addresses = match permits {
            Some(permits) => {
                let found = self.guard.resolve(host(url).parse()?, port(url), permits).await;
                found.map_err(ResolveError::cause)?
            }
            None => Vec::new(),
        };
        let stream = dial(to, addresses).await?;
        self.guard.check_peer(url, stream.peer_addr()?).await?;
        let stream = TokioIo::new(LimitedReader::new(stream, self.response_max));
        if url.scheme() == "http" {
            return Ok(MaybeHttpsStream::Http(stream));
        }
        let name = ServerName::try_from(host(url).to_owned())?;
        let tls = TlsConnector::from(Arc::clone(&self.tls));
        let stream = tls.connect(name, TokioIo::new(stream)).await?;
        Ok(MaybeHttpsStream::Https(TokioIo::new(stream)))
    }
}

/// Connects to one of these addresses, or to the address in the URL if its host is no name.
async fn dial(to: Uri, addresses: Vec<SocketAddr>) -> Result<TcpStream, BoxError> {
    let resolver =
        service_fn(move |_: dns::Name| ready(Ok::<_, Infallible>(addresses.clone().into_iter())));
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    Ok(connector.call(to).await?.into_inner())
}

/// TLS with the certificates of this machine, for HTTP/1.1.
pub(super) fn tls() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?.with_platform_verifier()?;
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
