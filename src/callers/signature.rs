//! Signatures of callbacks and notifications, after Standard Webhooks 1.0: a receiver that checks
//! them knows who sent a request, and that it was not changed.
//!
//! Invariant: for a caller that has secrets nothing is sent unsigned. Every current secret signs,
//! so that secrets can be rotated while receivers know either the old one or the new one.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use aws_lc_rs::hmac;

use super::caller::Caller;
use super::secret::SigningKey;
use crate::model::Timestamp;

/// None of a caller's secrets is current: change their dates, or remove them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of the {secrets} signing secrets of {caller} is current: see callers.toml")]
pub struct NoCurrentSecretError {
    caller: String,
    secrets: usize,
}

/// The value of `webhook-signature`; `None` for a caller without secrets. `id` and `seconds` are
/// the values of `webhook-id` and `webhook-timestamp`; `now` decides which secrets are current.
pub fn sign(
    caller: &Caller,
    id: &str,
    seconds: u64,
    body: &[u8],
    now: Timestamp,
) -> Result<Option<String>, NoCurrentSecretError> {
    if caller.secrets.is_empty() {
        return Ok(None);
    }
    let mut signed = format!("{id}.{seconds}.").into_bytes();
    signed.extend_from_slice(body);
    let mut value = String::new();
    for secret in caller.secrets.iter().filter(|secret| secret.is_current(now)) {
        let (version, signature) = match &secret.key {
            SigningKey::Shared(key) => ("v1", STANDARD.encode(hmac::sign(key, &signed))),
            SigningKey::Pair(pair) => ("v1a", STANDARD.encode(pair.sign(&signed))),
        };
        let space = if value.is_empty() { "" } else { " " };
        write!(value, "{space}{version},{signature}").expect("a string takes everything");
    }
    if value.is_empty() {
        return Err(NoCurrentSecretError {
            caller: caller.id.clone(),
            secrets: caller.secrets.len(),
        });
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::CallerTable;
    use crate::config::{Layers, Settings};

    /// The secrets with which the specification's examples and its libraries' tests are signed.
    const PAIR: &str = concat!(
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HK",
        "pMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
    );
    const SHARED: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const OTHER: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// Signs with a caller that has these secrets, as the file has them.
    fn signed(
        secrets: &str,
        (id, seconds, body): (&str, u64, &str),
        now: Timestamp,
    ) -> Result<Option<String>, NoCurrentSecretError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        std::fs::write(&file, format!("callers.a.secrets = [{secrets}]")).unwrap();
        let overrides = vec![format!("callers.file={}", file.display())];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let callers = CallerTable::read(&settings).unwrap();
        sign(callers.by_id(Some("a")), id, seconds, body.as_bytes(), now)
    }

    fn secret_without_dates(secret: &str) -> String {
        format!("{{ secret = \"{secret}\" }}")
    }

    const MESSAGE: (&str, u64, &str) =
        ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
    const BY_PAIR: &str = concat!(
        "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInX",
        "qYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
    );
    const BY_OTHER: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_published_examples_are_reproduced() {
        let body = r#"{"email":"test@example.com","username":"test_user"}"#;
        let message = ("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1_649_367_553, body);
        let signature = signed(&secret_without_dates(SHARED), message, 0).unwrap();
        assert_eq!(signature.as_deref(), Some("v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="));
        assert_eq!(
            signed(&secret_without_dates(PAIR), MESSAGE, 0).unwrap().as_deref(),
            Some(BY_PAIR)
        );
        assert_eq!(
            signed(&secret_without_dates(OTHER), MESSAGE, 0).unwrap().as_deref(),
            Some(BY_OTHER)
        );
        assert_eq!(signed("", MESSAGE, 0), Ok(None));
    }

    #[test]
    fn every_current_secret_signs_and_without_one_signing_fails() {
        let both = format!(
            "{{ secret = \"{OTHER}\", not_after = \"1970-01-01T00:00:20Z\" }},
             {{ secret = \"{PAIR}\", not_before = \"1970-01-01T00:00:10Z\", \
                not_after = \"1970-01-01T00:00:30Z\" }}"
        );
        let at = |now| signed(&both, MESSAGE, now);
        assert_eq!(at(9_999), Ok(Some(BY_OTHER.to_owned())));
        assert_eq!(at(10_000), Ok(Some(format!("{BY_OTHER} {BY_PAIR}"))));
        assert_eq!(at(20_000), Ok(Some(BY_PAIR.to_owned())));
        let reason = at(30_000).unwrap_err().to_string();
        assert_eq!(reason, "none of the 2 signing secrets of a is current: see callers.toml");
    }
}
