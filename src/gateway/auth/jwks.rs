//! The keys of issuers: where they are fetched from, kept, and found.
//!
//! Invariant: requests of unknown clients cause at most one fetch of an issuer's keys per
//! `jwks_refresh_interval_min`, one at a time, bounded in time and bytes. While the keys cannot be
//! read, or none of them can be used, the previous keys stay in use.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use thiserror::Error;
use tokio::sync::watch;

use super::auth_error::AuthError;
use super::keys::KeySet;
use crate::callers::Issuer;
use crate::config::CallerSettings;
use crate::{clock, telemetry};

/// The longest set of keys, in bytes: a hundred keys of the largest kind, with their certificates.
const JWKS_BYTES_MAX: usize = 256 * 1024;

/// The keys of all issuers.
#[derive(Debug)]
pub(super) struct JwksCache {
    client: Client,
    policy: RefreshPolicy,
    by_url: Mutex<HashMap<Url, Arc<IssuerKeys>>>,
}

/// How often keys are read, and with which timeout.
#[derive(Clone, Copy, Debug)]
struct RefreshPolicy {
    refresh: Duration,
    spacing: Duration,
    timeout: Duration,
}

/// The keys of one URL.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    /// The issuer's, for the log.
    name: String,
    url: Url,
    client: Client,
    policy: RefreshPolicy,
    state: Mutex<IssuerKeysState>,
    /// Notified after each read.
    refreshed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct IssuerKeysState {
    keys: KeySet,
    /// When the last read started.
    last_read_at: Option<Instant>,
    is_reading: bool,
}

/// Why keys could not be read: it is logged, and the previous keys stay.
#[derive(Debug, Error)]
enum JwksError {
    #[error("no response: {0}")]
    NoAnswer(String),
    #[error("the response is {0}")]
    Status(StatusCode),
    #[error("no response within {0:?}")]
    TimedOut(Duration),
    #[error("the response is longer than {JWKS_BYTES_MAX} bytes")]
    TooLong,
    #[error("{0}")]
    Unusable(&'static str),
}

impl JwksCache {
    /// An empty cache. The error is that of a system without certificates.
    pub(super) fn open(settings: &CallerSettings) -> reqwest::Result<Self> {
        let policy = RefreshPolicy {
            refresh: settings.jwks_refresh_interval,
            spacing: settings.jwks_refresh_interval_min,
            timeout: settings.jwks_timeout,
        };
        // A redirect could lead from https to http, or to a host that is not configured.
        let client = Client::builder().redirect(Policy::none()).build()?;
        Ok(Self { client, policy, by_url: Mutex::default() })
    }

    /// The keys of an issuer. Those of URLs that no issuer of `all` has any more are removed.
    pub(super) fn keys_of(&self, issuer: &Issuer, all: &[Arc<Issuer>]) -> Arc<IssuerKeys> {
        let mut by_url = self.by_url.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = by_url.get(&issuer.jwks_url) {
            return Arc::clone(keys);
        }
        by_url.retain(|url, _| all.iter().any(|issuer| issuer.jwks_url == *url));
        let keys = IssuerKeys::start(issuer, self.client.clone(), self.policy);
        by_url.insert(issuer.jwks_url.clone(), Arc::clone(&keys));
        keys
    }
}

impl IssuerKeys {
    fn start(issuer: &Issuer, client: Client, policy: RefreshPolicy) -> Arc<Self> {
        let keys = Arc::new(Self {
            name: issuer.name.clone(),
            url: issuer.jwks_url.clone(),
            client,
            policy,
            state: Mutex::default(),
            refreshed: watch::Sender::default(),
        });
        let _detached = tokio::spawn(refresh(Arc::downgrade(&keys), policy.refresh));
        keys
    }

    /// The key with the id `kid` and the type for `algorithm`. For an unknown one the keys are read
    /// again, if that is allowed now.
    pub(super) async fn key(
        self: &Arc<Self>,
        kid: &str,
        algorithm: Algorithm,
    ) -> Result<Arc<DecodingKey>, AuthError> {
        let mut refreshed = self.refreshed.subscribe();
        if let Some(key) = self.lock().keys.find(kid, algorithm) {
            return Ok(key);
        }
        if self.read_if_due(clock::monotonic()) {
            // The sender is in `self`, and a read has a timeout.
            let _landed = refreshed.changed().await;
        }
        let state = self.lock();
        if let Some(key) = state.keys.find(kid, algorithm) {
            Ok(key)
        } else if state.keys.is_empty() {
            let next = state
                .last_read_at
                .map_or_else(clock::monotonic, |last_read| last_read + self.policy.spacing);
            Err(AuthError::KeysUnavailable(next.saturating_duration_since(clock::monotonic())))
        } else {
            Err(AuthError::InvalidCredential(
                "no key of its issuer has the name that its `kid` says".into(),
            ))
        }
    }

    /// Starts a read, unless the last one was started too recently. Returns whether one is in
    /// progress.
    fn read_if_due(self: &Arc<Self>, now: Instant) -> bool {
        let mut state = self.lock();
        if state.is_reading {
            return true;
        }
        if state.last_read_at.is_some_and(|last_read| now < last_read + self.policy.spacing) {
            return false;
        }
        (state.last_read_at, state.is_reading) = (Some(now), true);
        // In a task: the client may disconnect while other requests wait for the keys.
        let keys = Arc::clone(self);
        let _detached = tokio::spawn(async move {
            let reading = tokio::time::timeout(keys.policy.timeout, keys.read()).await;
            keys.finish_read(reading.unwrap_or(Err(JwksError::TimedOut(keys.policy.timeout))));
        });
        true
    }

    async fn read(&self) -> Result<KeySet, JwksError> {
        let request = self.client.get(self.url.clone()).header(ACCEPT, "application/json");
        let mut response = request.send().await.map_err(|error| no_answer(&error))?;
        if !response.status().is_success() {
            return Err(JwksError::Status(response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| no_answer(&error))? {
            if body.len() + chunk.len() > JWKS_BYTES_MAX {
                return Err(JwksError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        KeySet::read(&body).map_err(JwksError::Unusable)
    }

    fn finish_read(&self, reading: Result<KeySet, JwksError>) {
        let result = match reading {
            Ok(keys) => {
                tracing::info!(issuer = self.name, keys = keys.len(), "read an issuer's keys");
                self.lock().keys = keys;
                "read"
            }
            Err(error) => {
                let kept = self.lock().keys.len();
                tracing::warn!(issuer = self.name, %error, kept, "cannot read an issuer's keys");
                "failed"
            }
        };
        metrics::counter!(telemetry::JWKS_READINGS, "result" => result).increment(1);
        self.lock().is_reading = false;
        self.refreshed.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, IssuerKeysState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refreshes the keys periodically, for as long as they are in use.
async fn refresh(keys: Weak<IssuerKeys>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(keys) = keys.upgrade() else { return };
        keys.read_if_due(clock::monotonic());
    }
}

/// The reason is at the bottom of the chain of causes; the URL is in the file.
fn no_answer(error: &reqwest::Error) -> JwksError {
    let mut bottom = error.source();
    while let Some(cause) = bottom.and_then(std::error::Error::source) {
        bottom = Some(cause);
    }
    JwksError::NoAnswer(bottom.map_or_else(|| "none".to_owned(), ToString::to_string))
}
