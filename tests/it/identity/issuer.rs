//! An issuer of tokens: its keys, made for the test, and the place where it publishes them.
//!
//! Invariant: signatures are made here without the library that checks them, so that whatever
//! a caller could sign can be tested. Its keys are served by a real socket, which counts requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A key pair with a name.
pub(crate) struct IssuerKey {
    pub(crate) kid: String,
    pair: KeyPairKind,
}

enum KeyPairKind {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl IssuerKey {
    pub(crate) fn rsa(kid: &str) -> Self {
        Self {
            kid: kid.to_owned(),
            pair: KeyPairKind::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
        }
    }

    pub(crate) fn p256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { kid: kid.to_owned(), pair: KeyPairKind::P256(pair) }
    }

    pub(crate) fn ed25519(kid: &str) -> Self {
        Self {
            kid: kid.to_owned(),
            pair: KeyPairKind::Ed25519(Ed25519KeyPair::generate().unwrap()),
        }
    }

    /// What it signs with, as a header says it.
    pub(crate) fn alg(&self) -> &'static str {
        match self.pair {
            KeyPairKind::Rsa(_) => "RS256",
            KeyPairKind::P256(_) => "ES256",
            KeyPairKind::Ed25519(_) => "EdDSA",
        }
    }

    /// Its public half, as a key set has it.
    pub(crate) fn jwk(&self) -> Value {
        let kid = &self.kid;
        match &self.pair {
            KeyPairKind::Rsa(pair) => {
                let RsaPublicKeyComponents::<Vec<u8>> { n, e } = pair.public_key().into();
                json!({"kid": kid, "kty": "RSA", "use": "sig", "n": base64(&n), "e": base64(&e)})
            }
            KeyPairKind::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kid": kid, "kty": "EC", "crv": "P-256", "x": base64(x), "y": base64(y)})
            }
            KeyPairKind::Ed25519(pair) => {
                let x = base64(pair.public_key().as_ref());
                json!({"kid": kid, "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": x})
            }
        }
    }

    /// The bytes that everybody has of it: what a forger would take for a secret.
    pub(crate) fn public_bytes(&self) -> Vec<u8> {
        match &self.pair {
            KeyPairKind::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            KeyPairKind::P256(pair) => pair.public_key().as_ref().to_vec(),
            KeyPairKind::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"typ": "JWT", "alg": self.alg(), "kid": self.kid}), &claims.to_string())
    }

    /// Whatever header and claims, with a good signature.
    pub(crate) fn sign(&self, header: &Value, claims: &str) -> String {
        let signed = unsigned(header, claims);
        let (message, random) = (signed.as_bytes(), SystemRandom::new());
        let signature = match &self.pair {
            KeyPairKind::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            KeyPairKind::P256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            KeyPairKind::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        };
        format!("{signed}.{}", base64(&signature))
    }
}

/// What is signed of a token.
pub(crate) fn unsigned(header: &Value, claims: &str) -> String {
    format!("{}.{}", base64(header.to_string().as_bytes()), base64(claims.as_bytes()))
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Where keys are published.
pub(crate) struct JwksServer {
    address: SocketAddr,
    state: Arc<JwksState>,
}

struct JwksState {
    answer: Mutex<JwksResponse>,
    asked: AtomicUsize,
}

/// How it answers.
#[derive(Clone)]
pub(crate) enum JwksResponse {
    /// With these keys.
    Keys(Vec<Value>),
    /// With this status and text.
    Custom(u16, String),
    /// With no end of it.
    Endless,
    /// Never.
    Hanging,
}

impl JwksServer {
    pub(crate) async fn start(answer: JwksResponse) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let place = JwksState { answer: Mutex::new(answer), asked: AtomicUsize::new(0) };
        let place = Arc::new(place);
        let serving = Arc::clone(&place);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(answer_one(socket, Arc::clone(&serving)));
            }
        });
        Self { address, state: place }
    }

    pub(crate) async fn of(keys: &[&IssuerKey]) -> Self {
        Self::start(published(keys)).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/keys", self.address)
    }

    pub(crate) fn answer(&self, answer: JwksResponse) {
        *self.state.answer.lock().unwrap() = answer;
    }

    /// How often it was asked.
    pub(crate) fn request_count(&self) -> usize {
        self.state.asked.load(Relaxed)
    }
}

/// The answer of a place with these keys.
pub(crate) fn published(keys: &[&IssuerKey]) -> JwksResponse {
    JwksResponse::Keys(keys.iter().map(|key| key.jwk()).collect())
}

/// The client hangs up when it likes; that is no failure of ours.
async fn answer_one(mut socket: TcpStream, place: Arc<JwksState>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else { return };
        head.push(byte);
    }
    place.asked.fetch_add(1, Relaxed);
    let answer = place.answer.lock().unwrap().clone();
    let (status, body) = match answer {
        JwksResponse::Keys(keys) => (200, json!({ "keys": keys }).to_string()),
        JwksResponse::Custom(status, body) => (status, body),
        JwksResponse::Hanging => std::future::pending().await,
        JwksResponse::Endless => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"keys\": [";
            let mut sent = socket.write_all(head).await;
            while sent.is_ok() {
                sent = socket.write_all(&[b' '; 4096]).await;
            }
            return;
        }
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nlocation: /elsewhere\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let _hung_up = socket.write_all(format!("{head}{body}").as_bytes()).await;
}
