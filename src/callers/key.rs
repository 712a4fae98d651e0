//! API keys: what a caller sends to the gateway, and what Orloj stores of it.
//!
//! Invariant: a key is 256 random bits, and only its SHA-256 is at rest. Slow hashes and salts are
//! for passwords, which can be guessed; 256 random bits cannot, however fast a guess is.

use std::fmt::{self, Write as _};

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{constant_time, digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, de};

/// What every key begins with, so that people and secret scanners recognise one.
const KEY_PREFIX: &str = "orloj_";
/// What a hash in the file begins with.
const HASH_PREFIX: &str = "sha256:";
/// Bytes of a SHA-256.
const HASH_BYTES: usize = 32;

/// What is stored of a key: written `sha256:` and 64 hexadecimal digits, which
/// `printf %s KEY | sha256sum` prints too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; HASH_BYTES]);

/// Makes a new key. It is stored nowhere: only the return value has it.
pub fn new_key() -> Result<String, Unspecified> {
    let mut random = [0; 32];
    rand::fill(&mut random)?;
    Ok(format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
}

impl KeyHash {
    /// Of a key.
    #[must_use]
    pub fn of(key: &str) -> Self {
        let digest = digest::digest(&digest::SHA256, key.as_bytes());
        Self(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes"))
    }

    /// Compares in constant time.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(HASH_PREFIX)?;
        if digits.len() != 2 * HASH_BYTES || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        let mut hash = [0; HASH_BYTES];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = String::with_capacity(2 * HASH_BYTES);
        for byte in self.0 {
            write!(digits, "{byte:02x}")?;
        }
        write!(f, "{HASH_PREFIX}{digits}")
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // A wrong value here may be the key itself, so the error does not repeat it.
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(
                "write the hash of the key, sha256: and 64 hexadecimal digits, as \
                 `orloj callers new-key` prints it",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_what_sha256sum_says() {
        let hash = KeyHash::of("abc").to_string();
        assert_eq!(hash, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(KeyHash::parse(&hash), Some(KeyHash::of("abc")));
        assert_eq!(KeyHash::parse(&hash.to_uppercase()), None, "the prefix is in small letters");
        let (short, long) = (&hash[..70], format!("{hash}0"));
        for text in ["", "sha256:", "abc", short, long.as_str(), &"sha256:é".repeat(10)] {
            assert_eq!(KeyHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn keys_are_long_and_never_the_same() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), KEY_PREFIX.len() + 43, "32 bytes in base64");
        assert!(!KeyHash::of(&one).matches(&KeyHash::of(&other)));
    }
}
