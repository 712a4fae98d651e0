//! The HTTP client behind the guard.
//!
//! Invariant: it connects only to what the guard admits: no redirect is followed, no proxy is used,
//! and no request is repeated by the library. A connection is reused only by its caller, for the
//! scheme, host and port that it was made for, and keeps the address that was checked, whatever the
//! name resolves to later. What a receiver may send is bounded.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use reqwest::{Body, Request, Response};
use tokio::sync::Semaphore;
use tokio_rustls::rustls::{self, ClientConfig};

use super::connector::{self, ConnectTimeout, Connector};
use super::read_limit::ResponseHeadSeen;
use super::{ForbiddenTarget, Guard};
use crate::config::WorkerSettings;

/// The `User-Agent` of callbacks.
pub const ORLOJ_USER_AGENT: &str = concat!("orloj/", env!("CARGO_PKG_VERSION"));
/// How long a connection is kept for another request. Many servers close theirs after 5 s: one that
/// is closed just as it is used again would cost an attempt.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Connections that a caller keeps to one receiver. Each is an open file.
const IDLE_CONNECTIONS_MAX: usize = 1_000;
/// A caller gets one of this many parts of the lookup permits.
const LOOKUPS_SHARE: usize = 4;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Never try again.
    #[error(transparent)]
    Forbidden(ForbiddenTarget),
    /// Perhaps later. Nothing is known of the receiver: it was not contacted.
    #[error("timed out: {0}")]
    NotContacted(ConnectTimeout),
    /// Perhaps later.
    #[error("timed out: {0}")]
    TimedOut(ConnectTimeout),
    /// Perhaps later.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

/// Makes the requests whose URL the guard has checked.
#[derive(Debug)]
pub struct GuardedClient {
    guard: Arc<Guard>,
    limits: WorkerSettings,
    tls: Arc<ClientConfig>,
    clients: Mutex<HashMap<String, CallerClient>>,
}

/// The client of one caller, with its own connections and permits.
type CallerClient = legacy::Client<Connector, Body>;

impl GuardedClient {
    /// A client behind `guard` with the limits of a worker.
    pub fn new(guard: Guard, limits: &WorkerSettings) -> Result<Self, rustls::Error> {
        Ok(Self {
            guard: Arc::new(guard),
            limits: limits.clone(),
            tls: Arc::new(connector::tls()?),
            clients: Mutex::default(),
        })
    }

    /// The guard that it applies.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Sends a caller's request whose URL was checked, and returns the head of the response. The
    /// function that calls this sets the timeout.
    pub async fn execute(&self, caller: &str, request: Request) -> Result<Response, RequestError> {
        let request = request.try_into().map_err(|error: reqwest::Error| no_answer(&error))?;
        let response = self.client_of(caller).request(request).await;
        let response = response.map_err(|error| request_error(&error))?;
        if let Some(head) = response.extensions().get::<ResponseHeadSeen>() {
            head.set();
        }
        Ok(response.map(Body::wrap).into())
    }

    fn client_of(&self, caller: &str) -> CallerClient {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(caller) {
            return client.clone();
        }
        let client = self.open();
        clients.insert(caller.to_owned(), client.clone());
        client
    }

    /// HTTP/1.1 alone: a connection carries one callback at a time, so that a receiver that breaks
    /// it harms only that attempt. In HTTP/2 all callbacks to a host would share one.
    fn open(&self) -> CallerClient {
        let limits = &self.limits;
        let (head, body) = (limits.response_head_max.bytes(), limits.response_body_max.bytes());
        let permits = limits.dns_lookups_max.get().div_ceil(LOOKUPS_SHARE);
        let connector = Connector {
            guard: Arc::clone(&self.guard),
            tls: Arc::clone(&self.tls),
            timeout: limits.connect_timeout,
            // What chunks and TLS put around a body is at most as much again.
            response_max: head.saturating_add(body.saturating_mul(2)),
            lookups: Arc::new(Semaphore::new(permits)),
        };
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_buf_size(usize::try_from(head).unwrap_or(usize::MAX))
            .build(connector)
    }
}

/// The error of the guard or of the connector is somewhere in the chain of causes.
fn request_error(error: &legacy::Error) -> RequestError {
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(forbidden) = current.downcast_ref::<ForbiddenTarget>() {
            return RequestError::Forbidden(forbidden.clone());
        }
        if let Some(late) = current.downcast_ref::<ConnectTimeout>() {
            return match late.clone() {
                late @ ConnectTimeout::Connection(_) => RequestError::TimedOut(late),
                late => RequestError::NotContacted(late),
            };
        }
        cause = current.source();
    }
    no_answer(error)
}

/// The reason is at the bottom of the chain of causes.
fn no_answer(error: &(dyn std::error::Error + 'static)) -> RequestError {
    let mut bottom = error;
    while let Some(cause) = bottom.source() {
        bottom = cause;
    }
    RequestError::NoAnswer(bottom.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use reqwest::{Method, Url};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::{Layers, Settings};

    const BODY: usize = 60_000;

    /// Answers, and notes how often.
    async fn answer(mut socket: TcpStream, most: Arc<AtomicUsize>) {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n{:BODY$}", "");
        for answered in 1.. {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = socket.read_u8().await else { return };
                head.push(byte);
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
            most.fetch_max(answered, Relaxed);
        }
    }

    #[tokio::test]
    async fn the_read_limit_starts_again_for_each_response() {
        let overrides = vec!["worker.allow_addresses=any".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let client = GuardedClient::new(Guard::new(&settings), &settings.worker).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let most = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&most);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(answer(socket, Arc::clone(&count)));
            }
        });
        // A connection is kept a moment after its answer was read, so not every one is.
        for _ in 0..1_000 {
            let request = Request::new(Method::GET, url.clone());
            let response = client.execute("someone", request).await.unwrap();
            assert_eq!(response.bytes().await.unwrap().len(), BODY);
            if most.load(Relaxed) > 10 {
                return;
            }
        }
        panic!("no connection served more than {}", most.load(Relaxed));
    }
}
