//! Issuers of tokens: whose JWTs are accepted, and which claims a token must have.
//!
//! Invariant: a process that can check signatures cannot make them, so no algorithm with a shared
//! secret can be configured. Keys cannot be changed in transit: they are read over https, or from
//! this machine.

use std::net::IpAddr;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::Deserialize;

use crate::config::{CallerSettings, nearest, units};

/// What a token is checked with, by its name.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];
/// The algorithms of an issuer without that setting.
const DEFAULT_ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
/// The claim that names the caller, for an issuer without that setting.
const DEFAULT_CALLER_CLAIM: &str = "sub";
/// Clocks that differ by more are wrong, and a longer leeway defeats short-lived tokens.
const LEEWAY_MAX: Duration = Duration::from_secs(60);

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Its table in the file, for the log: `jwt` or `jwt.<name>`.
    pub name: String,
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// The claim `aud` of its tokens, or one item of it.
    pub audience: String,
    /// Where its keys are read from.
    pub jwks_url: Url,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// The claim that is the id of a caller.
    pub caller_claim: String,
    /// The claim that is a role, or a list of them; `None` for the caller's own role.
    pub role_claim: Option<String>,
    /// By how much its clock may differ from ours.
    pub leeway: Duration,
}

/// As the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerEntry {
    issuer: String,
    audience: String,
    jwks_url: String,
    algorithms: Option<Vec<String>>,
    caller_claim: Option<String>,
    role_claim: Option<String>,
    #[serde(default, deserialize_with = "units::maybe_duration")]
    leeway: Option<Duration>,
}

impl IssuerEntry {
    /// Checks the entry; the error text continues after the issuer's name.
    pub(super) fn check(self, name: &str, settings: &CallerSettings) -> Result<Issuer, String> {
        let refuse = |key: &str, reason: &str| format!(".{key}` cannot be: {reason}");
        for (key, text) in [("issuer", &self.issuer), ("audience", &self.audience)] {
            if text.is_empty() {
                return Err(refuse(key, "write what the tokens have there"));
            }
        }
        let caller_claim = self.caller_claim.unwrap_or_else(|| DEFAULT_CALLER_CLAIM.to_owned());
        for (key, claim) in
            [("caller_claim", Some(&caller_claim)), ("role_claim", self.role_claim.as_ref())]
        {
            if claim.is_some_and(String::is_empty) {
                return Err(refuse(key, "write the name of a claim"));
            }
        }
        let leeway = self.leeway.unwrap_or(settings.jwt_leeway);
        if leeway > LEEWAY_MAX {
            return Err(refuse("leeway", "it is 60s at most: set the clocks right"));
        }
        Ok(Issuer {
            name: name.to_owned(),
            jwks_url: jwks_url(&self.jwks_url, settings.jwks_over_http)
                .map_err(|reason| refuse("jwks_url", reason))?,
            algorithms: algorithms(self.algorithms)
                .map_err(|reason| refuse("algorithms", &reason))?,
            issuer: self.issuer,
            audience: self.audience,
            caller_claim,
            role_claim: self.role_claim,
            leeway,
        })
    }
}

/// Keys that can be changed in transit would let an attacker make tokens.
fn jwks_url(text: &str, over_http: bool) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "a URL begins with https:// and a host")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL has no user and no password");
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if !is_loopback(&url) => Err(
            "keys are read over https: a process that changes them in transit could make tokens",
        ),
        "http" if !over_http => {
            Err("keys are read over https; callers.jwks_over_http allows http:// on this machine")
        }
        "http" => Ok(url),
        _ => Err("a URL begins with https:// and a host"),
    }
}

/// By its address only: what a name resolves to depends on the resolver.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn algorithms(names: Option<Vec<String>>) -> Result<Vec<Algorithm>, String> {
    let Some(names) = names else { return Ok(DEFAULT_ALGORITHMS.to_vec()) };
    if names.is_empty() {
        return Err("name one at least".to_owned());
    }
    names.iter().map(|name| algorithm(name)).collect()
}

/// What is written may be a secret in the wrong place: only known words are repeated.
fn algorithm(name: &str) -> Result<Algorithm, String> {
    if let Some((_, algorithm)) = ALGORITHMS.iter().find(|(known, _)| *known == name) {
        return Ok(*algorithm);
    }
    match name {
        "HS256" | "HS384" | "HS512" => Err(format!(
            "{name} checks a token with the secret that makes it: with that secret this \
             installation, and every process that reads its files, could make tokens; let the \
             issuer sign with a key pair"
        )),
        "none" => Err("none is no signature: any process can make such a token".to_owned()),
        _ => {
            let known = ALGORITHMS.map(|(known, _)| known);
            let hint = nearest(name, &known).map_or_else(
                || format!("there are {}", known.join(", ")),
                |right| format!("did you mean {right}?"),
            );
            Err(hint)
        }
    }
}
