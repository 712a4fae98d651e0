//! Issuers' keys that change, are unavailable, are invalid, or are requested for unknown callers.

use std::time::Duration;

use serde_json::json;

use super::issuer::{IssuerKey, JwksResponse, JwksServer, published};
use super::{AUTHORIZED_STATUS, IdentityFixture, changed, claims, issuer};

/// Longer than a test.
const REFRESH_RARELY: &str = "callers.jwks_refresh_interval_min=1h";
/// With the next request.
const REFRESH_OFTEN: &str = "callers.jwks_refresh_interval_min=50ms";

#[tokio::test(flavor = "multi_thread")]
async fn unknown_clients_cause_one_request_for_keys() {
    let key = IssuerKey::ed25519("e");
    let jwks = JwksServer::of(&[&key]).await;
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &[REFRESH_RARELY]).await;
    let good = key.token(&claims("a"));
    let firsts = std::iter::repeat_n(&good, 50).map(|token| fixture.with_token(token));
    for response in all(firsts).await {
        assert_eq!(response.status, AUTHORIZED_STATUS, "{response:?}");
    }
    assert_eq!(jwks.request_count(), 1, "the first tokens wait for one reading");

    let unknown = IssuerKey::ed25519("x");
    let header = |n: u32| json!({"alg": "EdDSA", "kid": format!("unknown-{n}")});
    let flood: Vec<_> =
        (0..200).map(|n| unknown.sign(&header(n), &claims("a").to_string())).collect();
    for response in all(flood.iter().map(|token| fixture.with_token(token))).await {
        assert_eq!(response.status, 401, "{response:?}");
    }
    let elsewhere = changed(claims("a"), json!({"iss": "https://elsewhere.example/"}));
    assert_eq!(fixture.with_token(&unknown.token(&elsewhere)).await.status, 401);
    assert_eq!(jwks.request_count(), 1);
    assert_eq!(fixture.with_token(&good).await.status, AUTHORIZED_STATUS);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_rotates_its_keys() {
    let (old, new) = (IssuerKey::rsa("old"), IssuerKey::p256("new"));
    let jwks = JwksServer::of(&[&old]).await;
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &[REFRESH_OFTEN]).await;
    assert_eq!(fixture.with_token(&old.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
    jwks.answer(published(&[&old, &new]));
    fixture.until(AUTHORIZED_STATUS, || new.token(&claims("a"))).await;
    assert_eq!(fixture.with_token(&old.token(&claims("a"))).await.status, AUTHORIZED_STATUS);

    // Withdrawn, and read again because of an unknown key.
    jwks.answer(published(&[&new]));
    let unknown = IssuerKey::p256("x");
    let mut look = tokio::time::interval(Duration::from_millis(20));
    while fixture.with_token(&old.token(&claims("a"))).await.status != 401 {
        look.tick().await;
        assert_eq!(fixture.with_token(&unknown.token(&claims("a"))).await.status, 401);
    }
    assert_eq!(fixture.with_token(&new.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_refreshed_periodically() {
    let (old, new) = (IssuerKey::ed25519("old"), IssuerKey::ed25519("new"));
    let jwks = JwksServer::of(&[&old]).await;
    let settings = [REFRESH_OFTEN, "callers.jwks_refresh_interval=100ms"];
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &settings).await;
    assert_eq!(fixture.with_token(&old.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
    jwks.answer(published(&[&new]));
    // No token names an unknown key: a withdrawn key is removed all the same.
    fixture.until(401, || old.token(&claims("a"))).await;
    assert_eq!(fixture.with_token(&new.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_keys_are_used_while_the_issuer_is_unavailable() {
    let key = IssuerKey::ed25519("e");
    let jwks = JwksServer::of(&[&key]).await;
    // An endless answer must end by its length, long before its time.
    let settings = [REFRESH_OFTEN, "callers.jwks_timeout=60s"];
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &settings).await;
    assert_eq!(fixture.with_token(&key.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
    let says = |status: u16, text: &str| JwksResponse::Custom(status, text.to_owned());
    let unknown = IssuerKey::ed25519("x");
    let theirs = json!({"keys": [unknown.jwk()]}).to_string();
    for answer in [
        says(500, "oh"),
        says(302, &theirs),
        says(404, &theirs),
        says(200, "<html>"),
        says(200, "{\"keys\": []}"),
        says(200, "{\"keys\": [{\"kty\": \"oct\", \"kid\": \"e\", \"k\": \"c2VjcmV0\"}]}"),
        JwksResponse::Endless,
    ] {
        jwks.answer(answer);
        let asked = jwks.request_count();
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while jwks.request_count() == asked {
            look.tick().await;
            let response = fixture.with_token(&unknown.token(&claims("a"))).await;
            assert_eq!(response.status, 401, "{response:?}");
        }
        assert_eq!(fixture.with_token(&key.token(&claims("a"))).await.status, AUTHORIZED_STATUS);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_hangs_delays_no_request_for_long() {
    let key = IssuerKey::ed25519("e");
    let jwks = JwksServer::start(JwksResponse::Hanging).await;
    let settings = [REFRESH_RARELY, "callers.jwks_timeout=300ms"];
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &settings).await;
    let tokens: Vec<_> = (0..20).map(|_| key.token(&claims("a"))).collect();
    for response in all(tokens.iter().map(|token| fixture.with_token(token))).await {
        assert_eq!(response.status, 503, "{response:?}");
        let wait: u64 = response.header("retry-after").parse().unwrap();
        assert!((3_590..=3_600).contains(&wait), "{wait}");
    }
    assert_eq!(jwks.request_count(), 1, "one reading at a time");
    assert_eq!(
        fixture.with_key(&fixture.key).await.status,
        AUTHORIZED_STATUS,
        "keys of callers need no issuer"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_may_become_available_later() {
    let key = IssuerKey::ed25519("e");
    let jwks = JwksServer::start(JwksResponse::Custom(503, String::new())).await;
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &[REFRESH_OFTEN]).await;
    let response = fixture.with_token(&key.token(&claims("a"))).await;
    assert_eq!((response.status, response.header("retry-after")), (503, "1"), "{response:?}");
    jwks.answer(published(&[&key]));
    fixture.until(AUTHORIZED_STATUS, || key.token(&claims("a"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_issuers_may_use_the_same_key_id() {
    let (ours, theirs) = (IssuerKey::ed25519("1"), IssuerKey::ed25519("1"));
    let (a, b) = (JwksServer::of(&[&ours]).await, JwksServer::of(&[&theirs]).await);
    let file = format!("{}{}", issuer("a", &a.url()), issuer("b", &b.url()));
    let fixture = IdentityFixture::open(&file, &[]).await;
    for (name, key, iss, status) in [
        ("a's own", &ours, "a", AUTHORIZED_STATUS),
        ("b's own", &theirs, "b", AUTHORIZED_STATUS),
        ("b's key for a", &theirs, "a", 401),
        ("a's key for b", &ours, "b", 401),
    ] {
        let response = fixture.with_token(&key.token(&claims(iss))).await;
        assert_eq!(response.status, status, "{name}: {response:?}");
    }
}

/// Awaits all at once.
async fn all<T>(asking: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut asking: Vec<_> = asking.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut all_answered = true;
        for (future, response) in &mut asking {
            if response.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(answer) => *response = Some(answer),
                    std::task::Poll::Pending => all_answered = false,
                }
            }
        }
        if all_answered { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    asking.into_iter().filter_map(|(_, response)| response).collect()
}
