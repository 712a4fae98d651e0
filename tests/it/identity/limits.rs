//! Limits of a caller's rate, and of the rate of guessed keys.

use std::time::Duration;

use orloj::callers::{KeyHash, new_key};
use serde_json::{Value, json};

use super::{AUTHORIZED_STATUS, IdentityFixture};

#[tokio::test(flavor = "multi_thread")]
async fn every_response_to_a_known_caller_has_rate_limit_headers() {
    let looking = new_key().unwrap();
    let file = format!(
        "limits.requests_per_second = 3\n[callers.looker]\nkeys = [\"{}\"]\nrole = \"read-only\"",
        KeyHash::of(&looking)
    );
    let fixture = IdentityFixture::open(&file, &[]).await;
    let mut let_in = 0;
    let refused = loop {
        let response = fixture.with_key(&fixture.key).await;
        assert_eq!(response.header("ratelimit-policy"), "\"default\";q=3;w=1");
        if response.status == 429 {
            break response;
        }
        assert_eq!(response.status, AUTHORIZED_STATUS, "{response:?}");
        assert!(response.header("ratelimit").starts_with("\"default\";r="), "{response:?}");
        let_in += 1;
        assert!(let_in < 1_000, "no request is one too many");
    };
    assert!(let_in >= 3, "only {let_in} were let in");
    assert_eq!(refused.header("retry-after"), "1", "{refused:?}");
    assert_eq!(refused.header("ratelimit"), "\"default\";r=0;t=1");

    let response = fixture.with_key(&looking).await;
    assert_eq!(response.status, 403, "{response:?}");
    assert_eq!(response.header("ratelimit-policy"), "\"default\";q=1000;w=1");
    for response in [fixture.with_key("guess").await, fixture.send(fixture.request()).await] {
        assert_eq!((response.status, response.header("ratelimit")), (401, ""), "{response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_are_limited_and_recent_keys_are_still_accepted() {
    let unseen = new_key().unwrap();
    let file = format!("[callers.milk]\nkeys = [\"{}\"]\nrole = \"caller\"", KeyHash::of(&unseen));
    let fixture = IdentityFixture::open(&file, &["callers.failures_per_second_max=1"]).await;
    assert_eq!(fixture.with_key(&fixture.key).await.status, AUTHORIZED_STATUS);
    assert_eq!(fixture.with_key("guess").await.status, 401);
    let mut refused = 0;
    for n in 0..50 {
        let response = fixture.with_key(&format!("guess-{n}")).await;
        if response.status == 429 {
            refused += 1;
            assert_eq!(response.header("retry-after"), "1", "{response:?}");
        }
    }
    assert!(refused >= 40, "only {refused} of 50 guesses were refused");
    // Whenever a guess is looked at, a second passes before another is.
    let mut look = tokio::time::interval(Duration::from_millis(20));
    while fixture.with_key("guess").await.status != 401 {
        look.tick().await;
    }
    assert_eq!(fixture.with_key(&unseen).await.status, 429, "it was never seen here");
    assert_eq!(
        fixture.with_key(&fixture.key).await.status,
        AUTHORIZED_STATUS,
        "it was recognised here before"
    );
    while fixture.with_key(&unseen).await.status != AUTHORIZED_STATUS {
        look.tick().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_its_owner_would_refuse_is_refused_before_it_is_written() {
    let fixture =
        IdentityFixture::open("topics = [\"open.*\", \"kept.*\"]", &["targets.deny=[\"kept.*\"]"])
            .await;
    let register = async |topic: &str| {
        let body = json!({"topic": topic, "delaySeconds": 1}).to_string();
        fixture.send(fixture.request().bearer_auth(&fixture.key).body(body)).await
    };
    for (topic, status, words) in [
        ("elsewhere", 403, "tea may not fire into elsewhere"),
        ("kept.secret", 422, "topic kept.secret is not allowed: see targets.allow"),
        // Nothing is wrong with it but that there is no broker.
        ("open.door", 503, ""),
    ] {
        let response = register(topic).await;
        assert_eq!(response.status, status, "{topic}: {response:?}");
        assert!(response.detail().starts_with(words), "{topic}: {}", response.detail());
        let problem: Value = serde_json::from_str(&response.body).unwrap();
        let pointer = if status == 503 { Value::Null } else { json!("/topic") };
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{topic}");
    }
}
