//! Issuers' keys that change, are away, come wrong, or are asked for by strangers.

use std::time::Duration;

use serde_json::json;

use super::issuer::{Answer, Jwks, SigningKey, published};
use super::{Gate, LET_IN, changed, claims, issuer};

/// Longer than a test.
const RARELY: &str = "callers.jwks_spacing=1h";
/// As soon as somebody asks.
const OFTEN: &str = "callers.jwks_spacing=50ms";

#[tokio::test(flavor = "multi_thread")]
async fn strangers_make_us_ask_for_keys_once() {
    let key = SigningKey::ed25519("e");
    let jwks = Jwks::of(&[&key]).await;
    let gate = Gate::open(&issuer("a", &jwks.url()), &[RARELY]).await;
    let good = key.token(&claims("a"));
    let firsts = std::iter::repeat_n(&good, 50).map(|token| gate.with_token(token));
    for told in all(firsts).await {
        assert_eq!(told.status, LET_IN, "{told:?}");
    }
    assert_eq!(jwks.asked(), 1, "the first tokens wait for one reading");

    let stranger = SigningKey::ed25519("x");
    let header = |n: u32| json!({"alg": "EdDSA", "kid": format!("stranger-{n}")});
    let flood: Vec<_> =
        (0..200).map(|n| stranger.sign(&header(n), &claims("a").to_string())).collect();
    for told in all(flood.iter().map(|token| gate.with_token(token))).await {
        assert_eq!(told.status, 401, "{told:?}");
    }
    let elsewhere = changed(claims("a"), json!({"iss": "https://elsewhere.example/"}));
    assert_eq!(gate.with_token(&stranger.token(&elsewhere)).await.status, 401);
    assert_eq!(jwks.asked(), 1);
    assert_eq!(gate.with_token(&good).await.status, LET_IN);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_rotates_its_keys() {
    let (old, new) = (SigningKey::rsa("old"), SigningKey::p256("new"));
    let jwks = Jwks::of(&[&old]).await;
    let gate = Gate::open(&issuer("a", &jwks.url()), &[OFTEN]).await;
    assert_eq!(gate.with_token(&old.token(&claims("a"))).await.status, LET_IN);
    jwks.answer(published(&[&old, &new]));
    gate.until(LET_IN, || new.token(&claims("a"))).await;
    assert_eq!(gate.with_token(&old.token(&claims("a"))).await.status, LET_IN);

    // Withdrawn, and read anew because of a stranger.
    jwks.answer(published(&[&new]));
    let stranger = SigningKey::p256("x");
    let mut look = tokio::time::interval(Duration::from_millis(20));
    while gate.with_token(&old.token(&claims("a"))).await.status != 401 {
        look.tick().await;
        assert_eq!(gate.with_token(&stranger.token(&claims("a"))).await.status, 401);
    }
    assert_eq!(gate.with_token(&new.token(&claims("a"))).await.status, LET_IN);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_anew_from_time_to_time() {
    let (old, new) = (SigningKey::ed25519("old"), SigningKey::ed25519("new"));
    let jwks = Jwks::of(&[&old]).await;
    let settings = [OFTEN, "callers.jwks_refresh_interval=100ms"];
    let gate = Gate::open(&issuer("a", &jwks.url()), &settings).await;
    assert_eq!(gate.with_token(&old.token(&claims("a"))).await.status, LET_IN);
    jwks.answer(published(&[&new]));
    // Nobody names a key that is not known: what is withdrawn is gone all the same.
    gate.until(401, || old.token(&claims("a"))).await;
    assert_eq!(gate.with_token(&new.token(&claims("a"))).await.status, LET_IN);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_known_serve_while_the_issuer_is_away() {
    let key = SigningKey::ed25519("e");
    let jwks = Jwks::of(&[&key]).await;
    // An endless answer must end by its length, long before its time.
    let settings = [OFTEN, "callers.jwks_timeout=60s"];
    let gate = Gate::open(&issuer("a", &jwks.url()), &settings).await;
    assert_eq!(gate.with_token(&key.token(&claims("a"))).await.status, LET_IN);
    let says = |status: u16, text: &str| Answer::Says(status, text.to_owned());
    let stranger = SigningKey::ed25519("x");
    let theirs = json!({"keys": [stranger.jwk()]}).to_string();
    for answer in [
        says(500, "oh"),
        says(302, &theirs),
        says(404, &theirs),
        says(200, "<html>"),
        says(200, "{\"keys\": []}"),
        says(200, "{\"keys\": [{\"kty\": \"oct\", \"kid\": \"e\", \"k\": \"c2VjcmV0\"}]}"),
        Answer::Endless,
    ] {
        jwks.answer(answer);
        let asked = jwks.asked();
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while jwks.asked() == asked {
            look.tick().await;
            let told = gate.with_token(&stranger.token(&claims("a"))).await;
            assert_eq!(told.status, 401, "{told:?}");
        }
        assert_eq!(gate.with_token(&key.token(&claims("a"))).await.status, LET_IN);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_hangs_holds_up_nobody_for_long() {
    let key = SigningKey::ed25519("e");
    let jwks = Jwks::start(Answer::Hangs).await;
    let settings = [RARELY, "callers.jwks_timeout=300ms"];
    let gate = Gate::open(&issuer("a", &jwks.url()), &settings).await;
    let tokens: Vec<_> = (0..20).map(|_| key.token(&claims("a"))).collect();
    for told in all(tokens.iter().map(|token| gate.with_token(token))).await {
        assert_eq!(told.status, 503, "{told:?}");
        let wait: u64 = told.header("retry-after").parse().unwrap();
        assert!((3_590..=3_600).contains(&wait), "{wait}");
    }
    assert_eq!(jwks.asked(), 1, "one reading at a time");
    assert_eq!(gate.with_key(&gate.key).await.status, LET_IN, "keys of callers need no issuer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_was_never_there_may_come() {
    let key = SigningKey::ed25519("e");
    let jwks = Jwks::start(Answer::Says(503, String::new())).await;
    let gate = Gate::open(&issuer("a", &jwks.url()), &[OFTEN]).await;
    let told = gate.with_token(&key.token(&claims("a"))).await;
    assert_eq!((told.status, told.header("retry-after")), (503, "1"), "{told:?}");
    jwks.answer(published(&[&key]));
    gate.until(LET_IN, || key.token(&claims("a"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_issuers_may_call_their_keys_alike() {
    let (ours, theirs) = (SigningKey::ed25519("1"), SigningKey::ed25519("1"));
    let (a, b) = (Jwks::of(&[&ours]).await, Jwks::of(&[&theirs]).await);
    let file = format!("{}{}", issuer("a", &a.url()), issuer("b", &b.url()));
    let gate = Gate::open(&file, &[]).await;
    for (name, key, iss, status) in [
        ("a's own", &ours, "a", LET_IN),
        ("b's own", &theirs, "b", LET_IN),
        ("b's key for a", &theirs, "a", 401),
        ("a's key for b", &ours, "b", 401),
    ] {
        let told = gate.with_token(&key.token(&claims(iss))).await;
        assert_eq!(told.status, status, "{name}: {told:?}");
    }
}

/// Awaits all at once.
async fn all<T>(asking: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut asking: Vec<_> = asking.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut all_told = true;
        for (future, told) in &mut asking {
            if told.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(answer) => *told = Some(answer),
                    std::task::Poll::Pending => all_told = false,
                }
            }
        }
        if all_told { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    asking.into_iter().filter_map(|(_, told)| told).collect()
}
