//! Authentication, authorisation and rate limits: from the headers of a request to its caller.
//!
//! Invariant: with callers configured no body is read before the caller is known, and only the
//! credential identifies it. No key and no token is in an error, in the log, or in a `Debug`.
//!
//! ```text
//!  headers ──► credential ─┬─ key ──► FailureLimiter (per address) ────► CallerTable ──► caller
//!                          └─ token ──► JwksCache ──► signature, claims ──┘              │
//!                      Viewer, Registrant, Operator ◄─── RequestRateLimiter (per caller) ┘
//! ```

mod auth_error;
mod credential;
mod failure_limiter;
mod jwks;
mod keys;
mod role;
mod scope;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use axum::http::request::Parts;

use crate::callers::{Caller, CallerTable, Callers, KeyHash};
use crate::clock;
use crate::config::{Settings, TargetSettings};
use crate::gateway::http::ErrorCode;
use crate::gateway::http::{FieldError, Problem};
use crate::gateway::rate_limiter::{RateLimitHeaders, RequestRateLimiter};
use crate::model::definition::Target;

use credential::Credential;
use failure_limiter::{ClientAddress, FailureLimiter};
use jwks::JwksCache;
use token::Token;

pub use auth_error::AuthError;
pub use role::{Operator, Registrant, Viewer};
pub use scope::{Scope, scope_of};

/// Finds the caller of a request. Clones share their state.
#[derive(Clone, Debug)]
pub struct Authenticator {
    inner: Arc<AuthenticatorInner>,
}

#[derive(Debug)]
struct AuthenticatorInner {
    /// The limiters count time from here.
    started: Instant,
    callers: Callers,
    jwks: JwksCache,
    rate_limiter: RequestRateLimiter,
    failure_limiter: FailureLimiter,
    targets: TargetSettings,
}

/// The caller of a request.
#[derive(Clone, Debug)]
struct RequestCaller(Arc<Caller>);

impl Authenticator {
    /// One for the whole process. The error is that of a system without certificates.
    pub fn open(settings: &Settings, callers: Callers) -> reqwest::Result<Self> {
        let shared = AuthenticatorInner {
            started: clock::monotonic(),
            callers,
            jwks: JwksCache::open(&settings.callers)?,
            rate_limiter: RequestRateLimiter::default(),
            failure_limiter: FailureLimiter::new(settings.callers.failures_per_second_max),
            targets: settings.targets.clone(),
        };
        Ok(Self { inner: Arc::new(shared) })
    }

    /// The caller of this request, with the role of its credential. A request counts once, however
    /// many extractors use this.
    async fn identify(&self, parts: &mut Parts) -> Result<Arc<Caller>, AuthError> {
        if let Some(RequestCaller(caller)) = parts.extensions.get() {
            return Ok(Arc::clone(caller));
        }
        let callers = self.inner.callers.current();
        let caller = if callers.is_open() {
            Arc::clone(callers.by_id(None))
        } else {
            let caller = self.authenticate(&callers, parts).await?;
            self.count_request(&caller, parts)?;
            caller
        };
        let _before = parts.extensions.insert(RequestCaller(Arc::clone(&caller)));
        Ok(caller)
    }

    async fn authenticate(
        &self,
        callers: &CallerTable,
        parts: &Parts,
    ) -> Result<Arc<Caller>, AuthError> {
        match credential::extract_credential(&parts.headers, !callers.issuers().is_empty())? {
            Credential::Key(key) => {
                let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
                let client_address =
                    ClientAddress::of(address.map(|ConnectInfo(address)| address.ip()));
                self.by_key(callers, key, client_address)
            }
            // A signature cannot be guessed, and `JwksCache` limits how often keys are fetched.
            Credential::Token(text) => {
                let token = Token::read(text, callers)?;
                let keys = self.inner.jwks.keys_of(token.issuer(), callers.issuers());
                let key = keys.key(token.kid(), token.algorithm()).await?;
                token.caller(&key, callers, clock::now_ms())
            }
        }
    }

    fn uptime(&self) -> Duration {
        clock::monotonic() - self.inner.started
    }

    fn by_key(
        &self,
        callers: &CallerTable,
        key: &str,
        address: ClientAddress,
    ) -> Result<Arc<Caller>, AuthError> {
        let (failures, key_hash, now) =
            (&self.inner.failure_limiter, KeyHash::of(key), self.uptime());
        failures.admit(address, &key_hash, now).map_err(AuthError::TooManyFailures)?;
        let Some(caller) = callers.by_key(key) else {
            failures.record_failure(address, now);
            return Err(AuthError::InvalidCredential("no caller has this API key".into()));
        };
        failures.record_recognised(address, key_hash);
        Ok(Arc::clone(caller))
    }

    fn count_request(&self, caller: &Caller, parts: &Parts) -> Result<(), AuthError> {
        let per_second = caller.limits.requests_per_second;
        let counted = self.inner.rate_limiter.admit(&caller.id, per_second, self.uptime());
        let status = match &counted {
            Ok(status) => *status,
            Err(limited) => limited.status,
        };
        if let Some(headers) = parts.extensions.get::<RateLimitHeaders>() {
            headers.set(status);
        }
        match counted {
            Ok(_) => Ok(()),
            Err(limited) => {
                let caller = caller.id.clone();
                Err(AuthError::RateLimited { caller, per_second, retry_after: limited.retry_after })
            }
        }
    }

    /// Refuses a topic that the caller may not fire into, and one that its owner would refuse.
    pub(super) fn check_target(&self, caller: &Caller, target: &Target) -> Result<(), Problem> {
        let Target::Topic(target) = target else { return Ok(()) };
        let topic = target.topic.as_str();
        let (code, detail) = if !caller.may_fire_into(topic) {
            (ErrorCode::Forbidden, format!("{} may not fire into {topic}", caller.id))
        } else if let Some(refusal) = self.inner.targets.refusal(topic) {
            (ErrorCode::TargetForbidden, refusal)
        } else {
            return Ok(());
        };
        Err(Problem::at(code, FieldError::of("topic", detail)))
    }
}

#[cfg(test)]
mod tests;
