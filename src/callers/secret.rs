//! Signing secrets, as Standard Webhooks 1.0 writes them: `whsec_` shared with the receiver, and
//! `whsk_` of which the receiver has the public half, `whpk_`.
//!
//! Invariant: every secret that was read can sign. One that is too short, damaged, or the wrong
//! half of a pair is refused here and not at the first callback.

use std::fmt;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::model::Timestamp;

const SHARED: &str = "whsec_";
const PRIVATE: &str = "whsk_";
const PUBLIC: &str = "whpk_";

/// Bytes of a shared secret, by the specification.
const SHARED_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Bytes of a new shared secret: as many as the hash has.
const NEW_SHARED_BYTES: usize = 32;
/// Bytes of an Ed25519 seed; the public key follows it.
const SEED_BYTES: usize = 32;

/// A secret and when it signs.
#[derive(Debug)]
pub struct SigningSecret {
    /// The key.
    pub key: SigningKey,
    /// Start of its validity, in ms since the epoch.
    pub not_before: Option<Timestamp>,
    /// End of its validity (exclusive), in ms since the epoch.
    pub not_after: Option<Timestamp>,
}

/// The key of a secret.
pub enum SigningKey {
    /// HMAC-SHA256 with a secret that the receiver has too: `v1`.
    Shared(Box<hmac::Key>),
    /// Ed25519: `v1a`.
    Pair(Ed25519KeyPair),
}

/// A new secret as text: shown once.
pub struct NewSecret {
    /// For Orloj.
    pub secret: String,
    /// For the receiver, if it is another one.
    pub public: Option<String>,
}

impl SigningSecret {
    /// Whether it signs at `now`.
    #[must_use]
    pub fn is_current(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|from| from <= now)
            && self.not_after.is_none_or(|until| now < until)
    }
}

impl SigningKey {
    /// Reads a secret; the error says what to write instead, and nothing of the secret.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        if let Some(shared) = text.strip_prefix(SHARED) {
            let secret =
                STANDARD.decode(shared).map_err(|_| "after whsec_ there must be base64")?;
            if !SHARED_BYTES.contains(&secret.len()) {
                return Err("a whsec_ secret has 24 to 64 bytes: see `orloj callers new-secret`");
            }
            let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            return Ok(Self::Shared(Box::new(key)));
        }
        if let Some(private) = text.strip_prefix(PRIVATE) {
            let pair = STANDARD.decode(private).map_err(|_| "after whsk_ there must be base64")?;
            let (seed, public) = pair.split_at_checked(SEED_BYTES).unwrap_or_default();
            return Ed25519KeyPair::from_seed_and_public_key(seed, public).map(Self::Pair).map_err(
                |_| "a whsk_ key is a seed and its public key: see `orloj callers new-secret`",
            );
        }
        if text.starts_with(PUBLIC) {
            return Err("whpk_ is the public key, which only the receiver needs: write its whsk_");
        }
        Err("write a secret that begins with whsec_ or whsk_, file:PATH, or env:NAME")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared(_) => "whsec_***",
            Self::Pair(_) => "whsk_***",
        })
    }
}

impl NewSecret {
    /// A secret for both sides.
    pub fn shared() -> Result<Self, Unspecified> {
        let mut random = [0; NEW_SHARED_BYTES];
        rand::fill(&mut random)?;
        Ok(Self { secret: format!("{SHARED}{}", STANDARD.encode(random)), public: None })
    }

    /// A key pair.
    pub fn pair() -> Result<Self, Unspecified> {
        let mut seed = [0; SEED_BYTES];
        rand::fill(&mut seed)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| Unspecified)?;
        let public = pair.public_key().as_ref();
        let secret = format!("{PRIVATE}{}", STANDARD.encode([&seed[..], public].concat()));
        Ok(Self { secret, public: Some(format!("{PUBLIC}{}", STANDARD.encode(public))) })
    }
}

impl fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSecret").field("public", &self.public).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Svix, which wrote the specification: its examples are signed with it.
    const PAIR: &str =
        "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";

    #[test]
    fn only_whole_secrets_are_read() {
        assert!(matches!(SigningKey::read(&format!("whsk_{PAIR}")), Ok(SigningKey::Pair(_))));
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        assert!(SigningKey::read(&of(24)).is_ok() && SigningKey::read(&of(64)).is_ok());
        for (text, reason) in [
            (of(23), "24 to 64 bytes"),
            (of(65), "24 to 64 bytes"),
            ("whsec_%".to_owned(), "base64"),
            (format!("whsk_{}", PAIR.replace("fVKIDij", "fVKIDik")), "a seed and its public key"),
            (format!("whsk_{}", &PAIR[..40]), "a seed and its public key"),
            ("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=".to_owned(), "public key"),
            (PAIR.to_owned(), "begins with whsec_"),
        ] {
            let refused = SigningKey::read(&text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn new_secrets_can_be_read_and_differ() {
        for new in [NewSecret::shared, NewSecret::pair] {
            let (one, other) = (new().unwrap(), new().unwrap());
            assert_ne!(one.secret, other.secret);
            assert!(SigningKey::read(&one.secret).is_ok());
            assert!(!format!("{one:?}").contains(&one.secret));
        }
    }

    #[test]
    fn a_secret_signs_from_its_beginning_up_to_its_end() {
        let key = SigningKey::read(&NewSecret::shared().unwrap().secret).unwrap();
        let secret = SigningSecret { key, not_before: Some(10), not_after: Some(20) };
        assert_eq!([9, 10, 19, 20].map(|now| secret.is_current(now)), [false, true, true, false]);
        let always = SigningSecret { not_before: None, not_after: None, ..secret };
        assert!(always.is_current(0) && always.is_current(u64::MAX));
    }
}
