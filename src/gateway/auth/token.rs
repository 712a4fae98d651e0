//! A signed token (JWT) of a caller: which caller it names, if it is valid.
//!
//! Invariant: the claims of a token are used after its signature was checked, with a key of the
//! issuer that it names and an algorithm that this issuer is configured with. `iss`, `aud`, `exp`
//! and `nbf` must be there in their required form: one that is missing or malformed is never
//! ignored.

use std::sync::Arc;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, dangerous};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::auth_error::AuthError;
use crate::callers::{Caller, CallerRole, CallerTable, Issuer};
use crate::model::Timestamp;

/// The longest key id, in bytes: a hash in hexadecimal digits has at most 128.
const KID_BYTES_MAX: usize = 256;
/// The claims that every token must have.
const REQUIRED: [&str; 4] = ["iss", "aud", "exp", "nbf"];

/// A token whose signature is not yet checked.
pub(super) struct Token<'a> {
    text: &'a str,
    algorithm: Algorithm,
    kid: String,
    issuer: Arc<Issuer>,
}

/// The claim that names the issuer.
#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

impl<'a> Token<'a> {
    /// Reads as much as is needed to find its key.
    pub(super) fn read(text: &'a str, callers: &CallerTable) -> Result<Self, AuthError> {
        let header = jsonwebtoken::decode_header(text)
            .map_err(|_| invalid("it is no token with an algorithm that there is"))?;
        let kid = header.kid.ok_or_else(|| invalid("its header lacks `kid`, the name of a key"))?;
        if kid.len() > KID_BYTES_MAX {
            return Err(invalid("its `kid` is longer than 256 bytes"));
        }
        // A critical extension that is not understood must be refused (RFC 7515, 4.1.11).
        if header.crit.is_some() {
            return Err(invalid("its header has `crit`, of which we understand nothing"));
        }
        let origin: IssuerClaim = dangerous::insecure_decode_claims(text)
            .map_err(|_| invalid("its claims lack `iss`, or it is no text"))?;
        let issuer = callers.issuer(&origin.iss);
        let issuer = issuer.ok_or_else(|| invalid("its issuer (`iss`) is not known here"))?;
        if !issuer.algorithms.contains(&header.alg) {
            return Err(invalid("its algorithm (`alg`) is not one that its issuer may use"));
        }
        Ok(Self { text, algorithm: header.alg, kid, issuer: Arc::clone(issuer) })
    }

    /// Its issuer, not yet verified.
    pub(super) fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The id of its key, not yet verified.
    pub(super) fn kid(&self) -> &str {
        &self.kid
    }

    /// What it is signed with.
    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The caller that it names, if it is signed with `key` and valid at `now`, with its role.
    pub(super) fn caller(
        &self,
        key: &DecodingKey,
        callers: &CallerTable,
        now: Timestamp,
    ) -> Result<Arc<Caller>, AuthError> {
        let claims = self.verify(key)?;
        self.check_times(&claims, now)?;
        let claim = &self.issuer.caller_claim;
        let id = claims.get(claim).and_then(Value::as_str);
        let id =
            id.ok_or_else(|| invalid(format!("its claims lack `{claim}`, or it is no text")))?;
        let Some(caller) = callers.registered(id) else {
            return Err(AuthError::Forbidden(format!("no caller is called what `{claim}` says")));
        };
        let Some(claim) = &self.issuer.role_claim else { return Ok(Arc::clone(caller)) };
        let token_role = claims.get(claim).and_then(role);
        let given = token_role.ok_or_else(|| {
            AuthError::Forbidden(format!("`{claim}` says no role: read-only, caller or operator"))
        })?;
        let role = caller.role.map(|own| own.min(given));
        if role == caller.role {
            return Ok(Arc::clone(caller));
        }
        Ok(Arc::new(Caller { role, ..Caller::clone(caller) }))
    }

    /// Its claims, if it is signed with `key`, by its issuer, for our audience.
    fn verify(&self, key: &DecodingKey) -> Result<Map<String, Value>, AuthError> {
        let mut validation = Validation::new(self.algorithm);
        validation.set_required_spec_claims(&REQUIRED);
        validation.set_issuer(&[&self.issuer.issuer]);
        validation.set_audience(&[&self.issuer.audience]);
        // By our own clock, in `check_times`.
        validation.validate_exp = false;
        let token = jsonwebtoken::decode(self.text, key, &validation);
        token.map(|token| token.claims).map_err(|error| invalid(explain(&error)))
    }

    fn check_times(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<(), AuthError> {
        let leeway = u64::try_from(self.issuer.leeway.as_millis()).unwrap_or(u64::MAX);
        if now >= time(claims, "exp")?.saturating_add(leeway) {
            return Err(invalid("it has expired (`exp`)"));
        }
        if now.saturating_add(leeway) < time(claims, "nbf")? {
            return Err(invalid("it is not good yet (`nbf`)"));
        }
        Ok(())
    }
}

fn invalid(reason: impl Into<std::borrow::Cow<'static, str>>) -> AuthError {
    AuthError::InvalidCredential(reason.into())
}

/// What is wrong, without the values of the token.
fn explain(error: &Error) -> String {
    match error.kind() {
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
            format!("its claims lack `{claim}`, or it is not of the form that it must have")
        }
        ErrorKind::InvalidAudience => "it is for another audience (`aud`)".to_owned(),
        ErrorKind::InvalidIssuer => "it is of another issuer (`iss`)".to_owned(),
        ErrorKind::InvalidSignature => {
            "its signature is not that of the key that its `kid` names".to_owned()
        }
        _ => "it cannot be read".to_owned(),
    }
}

/// Seconds since the epoch, perhaps with a fraction, in milliseconds.
fn time(claims: &Map<String, Value>, claim: &str) -> Result<Timestamp, AuthError> {
    let seconds = claims.get(claim).and_then(Value::as_f64).filter(|seconds| *seconds >= 0.0);
    let seconds = seconds.ok_or_else(|| {
        invalid(format!("its claims lack `{claim}`, or it is no number of seconds since 1970"))
    })?;
    // A cast from what is too large gives the largest there is.
    Ok((seconds * 1_000.0) as Timestamp)
}

/// The highest role in a text or a list of them; other words are ignored.
fn role(value: &Value) -> Option<CallerRole> {
    match value {
        Value::String(name) => CallerRole::by_name(name),
        Value::Array(names) => {
            names.iter().filter_map(|name| CallerRole::by_name(name.as_str()?)).max()
        }
        _ => None,
    }
}
