//! An issuer's public keys, as a JSON Web Key Set has them (RFC 7517).
//!
//! Invariant: a key checks the algorithms of its own type and no others, and a shared secret is not
//! accepted as a key, because the set is public. A key that cannot be used does not affect others.

use std::sync::Arc;

use jsonwebtoken::jwk::{
    AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations,
    PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// The keys that can be used.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<VerificationKey>,
}

#[derive(Debug)]
struct VerificationKey {
    kid: String,
    /// Its `alg`, if it has one.
    algorithm: Option<KeyAlgorithm>,
    key_type: KeyType,
    key: Arc<DecodingKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyType {
    Rsa,
    P256,
    P384,
    Ed25519,
}

#[derive(Deserialize)]
struct JwksDocument {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a set; one without any usable key is an error.
    pub(super) fn read(text: &[u8]) -> Result<Self, &'static str> {
        let document: JwksDocument =
            serde_json::from_slice(text).map_err(|_| "the answer is no JSON Web Key Set")?;
        let keys: Vec<_> = document.keys.into_iter().filter_map(VerificationKey::read).collect();
        if keys.is_empty() {
            return Err("none of its keys has a `kid` and a kind that we could use");
        }
        Ok(Self { keys })
    }

    /// The key of that name that checks `algorithm`.
    pub(super) fn find(&self, kid: &str, algorithm: Algorithm) -> Option<Arc<DecodingKey>> {
        let found = self.keys.iter().find(|key| key.kid == kid && key.verifies(algorithm));
        found.map(|key| Arc::clone(&key.key))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl VerificationKey {
    /// Reads a key; `None` if it cannot be used here.
    fn read(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if !is_for_signatures(&jwk.common) {
            return None;
        }
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => KeyType::Rsa,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                KeyType::P256
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
                KeyType::P384
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                KeyType::Ed25519
            }
            _ => return None,
        };
        let key = Arc::new(DecodingKey::from_jwk(&jwk).ok()?);
        Some(Self {
            kid: jwk.common.key_id?,
            algorithm: jwk.common.key_algorithm,
            key_type: kind,
            key,
        })
    }

    fn verifies(&self, algorithm: Algorithm) -> bool {
        let kind = match algorithm {
            Algorithm::RS256
            | Algorithm::RS384
            | Algorithm::RS512
            | Algorithm::PS256
            | Algorithm::PS384
            | Algorithm::PS512 => KeyType::Rsa,
            Algorithm::ES256 => KeyType::P256,
            Algorithm::ES384 => KeyType::P384,
            Algorithm::EdDSA => KeyType::Ed25519,
            _ => return false,
        };
        self.key_type == kind
            && self.algorithm.is_none_or(|own| own == KeyAlgorithm::from(algorithm))
    }
}

fn is_for_signatures(key: &CommonParameters) -> bool {
    let by_use = key.public_key_use.as_ref().is_none_or(|u| *u == PublicKeyUse::Signature);
    let by_operations = key.key_operations.as_ref();
    by_use && by_operations.is_none_or(|all| all.contains(&KeyOperations::Verify))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Coordinates that are no point: they are checked only when the key is used.
    const X: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn read(keys: &[Value]) -> Result<KeySet, &'static str> {
        KeySet::read(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn a_key_verifies_the_algorithms_of_its_type() {
        let keys = read(&[
            json!({"kid": "rsa", "kty": "RSA", "n": X, "e": "AQAB"}),
            json!({"kid": "only", "kty": "RSA", "n": X, "e": "AQAB", "alg": "PS256"}),
            json!({"kid": "p256", "kty": "EC", "crv": "P-256", "x": X, "y": X, "use": "sig"}),
            json!({"kid": "p384", "kty": "EC", "crv": "P-384", "x": X, "y": X}),
            json!({"kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": X, "key_ops": ["verify"]}),
        ]);
        let keys = keys.unwrap();
        let all = [
            ("rsa", &[Algorithm::RS256, Algorithm::RS512, Algorithm::PS256][..]),
            ("only", &[Algorithm::PS256]),
            ("p256", &[Algorithm::ES256]),
            ("p384", &[Algorithm::ES384]),
            ("ed", &[Algorithm::EdDSA]),
        ];
        for (kid, checked) in all {
            for algorithm in [
                Algorithm::HS256,
                Algorithm::RS256,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::ES256,
                Algorithm::ES384,
                Algorithm::EdDSA,
            ] {
                let found = keys.find(kid, algorithm).is_some();
                assert_eq!(found, checked.contains(&algorithm), "{kid}: {algorithm:?}");
            }
        }
        assert!(keys.find("none", Algorithm::RS256).is_none());
    }

    #[test]
    fn an_unusable_key_does_not_affect_other_keys() {
        let good = json!({"kid": "good", "kty": "OKP", "crv": "Ed25519", "x": X});
        let useless = [
            json!({"kty": "OKP", "crv": "Ed25519", "x": X}),
            json!({"kid": "a", "kty": "oct", "k": X}),
            json!({"kid": "a", "kty": "OKP", "crv": "X25519", "x": X}),
            json!({"kid": "a", "kty": "OKP", "crv": "Ed25519", "x": X, "use": "enc"}),
            json!({"kid": "a", "kty": "OKP", "crv": "Ed25519", "x": X, "key_ops": ["encrypt"]}),
            json!({"kid": "a", "kty": "OKP", "crv": "Ed25519", "x": "%"}),
            json!({"kid": 7, "kty": "OKP", "crv": "Ed25519", "x": X}),
            json!({"kid": "a", "kty": "new"}),
            json!("key"),
        ];
        for key in &useless {
            assert_eq!(read(&[key.clone(), good.clone()]).unwrap().len(), 1, "{key}");
        }
        assert!(read(&useless).unwrap_err().contains("none of its keys"));
        for text in ["", "<html>", "[]", "{}", r#"{"keys": {}}"#, r#"{"keys": []}"#] {
            assert!(KeySet::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
