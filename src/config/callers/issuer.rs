//! Issuers of tokens: whose JWTs are believed, and what a token must say.
//!
//! Invariant: only signatures are believed that we could not make ourselves, so no algorithm with a
//! shared secret is among those that can be configured. Where keys come from cannot be changed on
//! the way: it is https, or this machine.

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
/// Those of an issuer that does not say.
const DEFAULT_ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
/// The claim that names the caller, of an issuer that does not say.
const DEFAULT_CALLER_CLAIM: &str = "sub";
/// Clocks that are further apart are wrong, and a token that lives on for longer is no short one.
const LEEWAY_MAX: Duration = Duration::from_secs(60);

/// One who issues tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Its table in the file, for the log: `jwt` or `jwt.<name>`.
    pub name: String,
    /// What `iss` of its tokens says.
    pub issuer: String,
    /// What `aud` of its tokens says, or has among others.
    pub audience: String,
    /// Where its keys are.
    pub jwks_url: Url,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// The claim that is the id of a caller.
    pub caller_claim: String,
    /// The claim that is a role, or a list of them; `None` for whatever the caller's own is.
    pub role_claim: Option<String>,
    /// How far its clock may be from ours.
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
    /// Checks what is written; the error begins after the issuer's name.
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

/// Whoever can change the keys on their way can make tokens.
fn jwks_url(text: &str, over_http: bool) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "a URL begins with https:// and a host")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL has no user and no password");
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if !is_loopback(&url) => {
            Err("keys come over https, because whoever changes them on the way can make tokens")
        }
        "http" if !over_http => {
            Err("keys come over https; callers.jwks_over_http allows http:// on this machine")
        }
        "http" => Ok(url),
        _ => Err("a URL begins with https:// and a host"),
    }
}

/// By its address alone: what a name means is for whoever resolves it to say.
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
            "{name} checks a token with the secret that makes it: with it this installation, and \
             whoever reads its files, could make tokens; let the issuer sign with a key pair"
        )),
        "none" => Err("none is no signature: anybody can make such a token".to_owned()),
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
