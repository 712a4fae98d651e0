//! Who asks, and how much: from the headers of a request to one of the callers.
//!
//! Law: with callers configured nothing of a request is read before its caller is known, and what a
//! request says of its caller by other means counts for nothing. No key and no token is in an
//! error, in a line of the log, or in a `Debug`.
//!
//! ```text
//!  headers ──► credential ─┬─ key ──► Failures: too many from there? ──► CallerTable ──► caller
//!                          └─ token ──► JwksCache ──► signature, claims ──┘              │
//!                      Viewer, Registrant, Operator ◄── Rates: too many of that caller? ◄┘
//! ```

mod credential;
mod denied;
mod failures;
mod jwks;
mod keys;
mod role;
mod scope;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;

use crate::callers::Callers;
use crate::clock;
use crate::config::callers::key::KeyHash;
use crate::config::callers::{Caller, CallerTable};
use crate::config::{Settings, TargetSettings};
use crate::gateway::code::Code;
use crate::gateway::problem::{Fault, Problem};
use crate::gateway::rate::{Rates, Told};
use crate::model::definition::Target;

use credential::Credential;
use failures::{Failures, Peer};
use jwks::JwksCache;
use token::Token;

pub use denied::Denied;
pub use role::{Operator, Registrant, Viewer};
pub use scope::{Scope, scope_of};

/// Finds out who asks. A clone asks the same.
#[derive(Clone, Debug)]
pub struct Identity {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    callers: Callers,
    jwks: JwksCache,
    rates: Rates,
    failures: Failures,
    targets: TargetSettings,
}

/// Whom a request was found to be of.
#[derive(Clone, Debug)]
struct Identified(Arc<Caller>);

impl Identity {
    /// One for the whole process. The error is that of a system without certificates.
    pub fn open(settings: &Settings, callers: Callers) -> reqwest::Result<Self> {
        let shared = Shared {
            callers,
            jwks: JwksCache::open(&settings.callers)?,
            rates: Rates::default(),
            failures: Failures::new(settings.callers.failures_per_second_max),
            targets: settings.targets.clone(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whose request this is, with the role that it has by what it showed. It counts once, whoever
    /// asks and however often.
    async fn identify(&self, parts: &mut Parts) -> Result<Arc<Caller>, Denied> {
        if let Some(Identified(caller)) = parts.extensions.get() {
            return Ok(Arc::clone(caller));
        }
        let callers = self.shared.callers.now();
        let caller = if callers.is_open() {
            Arc::clone(callers.by_id(None))
        } else {
            let caller = self.authenticate(&callers, parts).await?;
            self.count(&caller, parts)?;
            caller
        };
        let _before = parts.extensions.insert(Identified(Arc::clone(&caller)));
        Ok(caller)
    }

    async fn authenticate(
        &self,
        callers: &CallerTable,
        parts: &Parts,
    ) -> Result<Arc<Caller>, Denied> {
        match credential::presented(&parts.headers, !callers.issuers().is_empty())? {
            Credential::Key(key) => {
                let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
                let peer = Peer::of(address.map(|ConnectInfo(address)| address.ip()));
                self.by_key(callers, key, peer)
            }
            // Nobody guesses a signature, and who asks for keys is held back by `JwksCache`.
            Credential::Token(text) => {
                let token = Token::read(text, callers)?;
                let keys = self.shared.jwks.of(token.issuer(), callers.issuers());
                let key = keys.key(token.kid(), token.algorithm()).await?;
                token.caller(&key, callers, clock::now_ms())
            }
        }
    }

    fn by_key(&self, callers: &CallerTable, key: &str, peer: Peer) -> Result<Arc<Caller>, Denied> {
        let (failures, mark, now) = (&self.shared.failures, KeyHash::of(key), clock::monotonic());
        failures.admit(peer, &mark, now).map_err(Denied::TooManyFailures)?;
        let Some(caller) = callers.by_key(key) else {
            failures.count(peer, now);
            return Err(Denied::Invalid("nobody has this API key".into()));
        };
        failures.recognised(peer, mark);
        Ok(Arc::clone(caller))
    }

    fn count(&self, caller: &Caller, parts: &Parts) -> Result<(), Denied> {
        let per_second = caller.limits.requests_per_second;
        let counted = self.shared.rates.admit(&caller.id, per_second, clock::monotonic());
        let standing = match &counted {
            Ok(standing) => *standing,
            Err(too_early) => too_early.standing,
        };
        if let Some(told) = parts.extensions.get::<Told>() {
            told.tell(standing);
        }
        match counted {
            Ok(_) => Ok(()),
            Err(too_early) => {
                let caller = caller.id.clone();
                Err(Denied::TooMany { caller, per_second, by: too_early.by })
            }
        }
    }

    /// Refuses a topic that is not the caller's to fire into, and one that its owner would refuse.
    pub(super) fn check_target(&self, caller: &Caller, target: &Target) -> Result<(), Problem> {
        let Target::Topic(target) = target else { return Ok(()) };
        let topic = target.topic.as_str();
        let (code, detail) = if !caller.may_fire_into(topic) {
            (Code::Forbidden, format!("{} may not fire into {topic}", caller.id))
        } else if let Some(refusal) = self.shared.targets.refusal(topic) {
            (Code::TargetForbidden, refusal)
        } else {
            return Ok(());
        };
        Err(Problem::at(code, Fault::of("topic", detail)))
    }
}

#[cfg(test)]
mod tests;
