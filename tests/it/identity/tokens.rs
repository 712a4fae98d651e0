//! Invalid tokens: the response to each, and that no response repeats one.

use aws_lc_rs::hmac;
use orloj::clock;
use serde_json::{Value, json};

use super::issuer::{IssuerKey, JwksServer, base64, unsigned};
use super::{AUTHORIZED_STATUS, AuthResponse, IdentityFixture, changed, claims, issuer};

/// A token, how it is answered, and words of the answer.
type TokenCase = (&'static str, String, u16, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn valid_tokens_of_every_supported_algorithm_are_accepted() {
    let keys = [IssuerKey::rsa("r"), IssuerKey::p256("p"), IssuerKey::ed25519("e")];
    let jwks = JwksServer::of(&keys.iter().collect::<Vec<_>>()).await;
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &[]).await;
    let now = clock::now_ms() / 1_000;
    for key in &keys {
        for change in [
            json!({}),
            json!({"aud": ["other", "orloj"]}),
            json!({"exp": now as f64 + 60.5}),
            // Within the leeway.
            json!({"exp": now - 5, "nbf": now - 60}),
            json!({"nbf": now + 5}),
        ] {
            let response =
                fixture.with_token(&key.token(&changed(claims("a"), change.clone()))).await;
            assert_eq!(response.status, AUTHORIZED_STATUS, "{} {change}: {response:?}", key.alg());
        }
    }
    let lower_case = format!("bearer {}", keys[0].token(&claims("a")));
    let response = fixture.send(fixture.request().header("authorization", lower_case)).await;
    assert_eq!(response.status, AUTHORIZED_STATUS, "{response:?}");
    assert_eq!(jwks.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_are_refused() {
    let key = IssuerKey::rsa("r");
    let jwks = JwksServer::of(&[&key]).await;
    let file = format!("[callers.anonymous]\nrole = \"operator\"\n{}", issuer("a", &jwks.url()));
    let fixture = IdentityFixture::open(&file, &[]).await;
    let cases: Vec<TokenCase> =
        [forged(&key), wrong_claims(&key), missing_claims(&key), oversized(&key)]
            .into_iter()
            .flatten()
            .collect();
    for (name, token, status, words) in cases {
        let response = fixture.with_token(&token).await;
        assert_eq!(response.status, status, "{name}: {response:?}");
        assert!(response.detail().contains(words), "{name}: {}", response.detail());
        check(name, &response, &token);
    }
    let response = fixture.with_token(&key.token(&claims("a"))).await;
    assert_eq!(response.status, AUTHORIZED_STATUS, "the fixture lets in who is good: {response:?}");
}

/// What every refusal keeps to.
fn check(name: &str, response: &AuthResponse, token: &str) {
    let challenge = response.header("www-authenticate");
    if response.status == 401 {
        let expected = "Bearer realm=\"orloj\", error=\"invalid_token\", error_description=\"";
        assert!(challenge.starts_with(expected), "{name}: {challenge}");
    }
    assert_eq!(response.header("content-type"), "application/problem+json", "{name}");
    let said = format!("{challenge} {}", response.body);
    for part in token.split('.').filter(|part| part.len() > 8) {
        assert!(!said.contains(part), "{name} repeats the token: {said}");
    }
}

/// Signed by no valid key.
fn forged(key: &IssuerKey) -> Vec<TokenCase> {
    let good = claims("a").to_string();
    let header = |alg: &str| json!({"alg": alg, "kid": key.kid});
    let none = |alg: &str| format!("{}.", unsigned(&header(alg), &good));
    let confused = unsigned(&header("HS256"), &good);
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &key.public_bytes());
    let mac = base64(hmac::sign(&secret, confused.as_bytes()).as_ref());
    let other = IssuerKey::rsa(&key.kid);
    let signed = key.token(&claims("a"));
    let (message, signature) = signed.rsplit_once('.').unwrap();
    let theirs = changed(claims("a"), json!({"sub": "milk"})).to_string();
    let swapped = format!("{}.{signature}", unsigned(&header("RS256"), &theirs));
    let embedded = json!({"alg": "RS256", "kid": key.kid, "jwk": other.jwk()});
    vec![
        ("alg none", none("none"), 401, "no token with an algorithm"),
        ("alg None", none("None"), 401, "no token with an algorithm"),
        ("no signature", format!("{message}."), 401, "its signature"),
        ("HS256 with the public key", format!("{confused}.{mac}"), 401, "its algorithm"),
        ("an algorithm not allowed", key.sign(&header("PS256"), &good), 401, "its algorithm"),
        ("another algorithm of the issuer", key.sign(&header("ES256"), &good), 401, "no key of"),
        ("another key", other.token(&claims("a")), 401, "its signature"),
        ("claims exchanged", swapped, 401, "its signature"),
        ("a key of its own", other.sign(&embedded, &good), 401, "its signature"),
        ("an unknown key", IssuerKey::rsa("x").token(&claims("a")), 401, "no key of its issuer"),
        ("no words", "..".to_owned(), 401, "no token"),
        ("no base64", format!("{signed}%"), 401, "cannot be read"),
        ("five parts", format!("{signed}.a.b"), 401, "no caller has this API key"),
    ]
}

/// Signed rightly, with claims that are not for us, or not now.
fn wrong_claims(key: &IssuerKey) -> Vec<TokenCase> {
    let now = clock::now_ms() / 1_000;
    let with = |by: Value| key.token(&changed(claims("a"), by));
    let header = json!({"alg": "RS256", "kid": key.kid});
    let twice = claims("a").to_string().replace('{', &format!("{{\"exp\":{},", now + 9));
    let forms = ["\"9999999999\"", "true", "[9999999999]", "{}", "-1", "\"\"", "1e999"];
    let malformed = |claim: &'static str| {
        forms.map(|form| {
            let mut text = changed(claims("a"), json!({ claim: null })).to_string();
            text.insert_str(1, &format!("\"{claim}\":{form},"));
            (claim, key.sign(&json!({"alg": "RS256", "kid": key.kid}), &text), 401, "")
        })
    };
    let mut cases = vec![
        ("wrong aud", with(json!({"aud": "others"})), 401, "another audience"),
        ("wrong auds", with(json!({"aud": ["others", "Orloj"]})), 401, "another audience"),
        ("no auds", with(json!({"aud": []})), 401, "audience"),
        ("wrong iss", with(json!({"iss": "https://b.example/"})), 401, "its issuer"),
        ("nearly iss", with(json!({"iss": "https://a.example"})), 401, "its issuer"),
        ("two iss", with(json!({"iss": ["https://a.example/"]})), 401, "`iss`"),
        ("expired", with(json!({"exp": now - 60})), 401, "expired"),
        ("not yet valid", with(json!({"nbf": now + 60})), 401, "not good yet"),
        ("exp twice", key.sign(&header, &twice), 401, "cannot be read"),
        ("sub of another", with(json!({"sub": "milk"})), 403, "no caller is called"),
        ("sub is anonymous", with(json!({"sub": "anonymous"})), 403, "no caller is called"),
        ("sub is a number", with(json!({"sub": 7})), 401, "`sub`"),
        ("claims are no object", key.sign(&header, "[]"), 401, "`iss`"),
    ];
    cases.extend(malformed("exp"));
    cases.extend(malformed("nbf"));
    cases
}

/// Signed rightly, with something missing.
fn missing_claims(key: &IssuerKey) -> Vec<TokenCase> {
    let without = |claim: &str| key.token(&changed(claims("a"), json!({ claim: null })));
    let null = |claim: &str| {
        let mut text = changed(claims("a"), json!({ claim: null })).to_string();
        text.insert_str(1, &format!("\"{claim}\":null,"));
        key.sign(&json!({"alg": "RS256", "kid": key.kid}), &text)
    };
    let good = claims("a").to_string();
    vec![
        ("missing iss", without("iss"), 401, "lack `iss`"),
        ("missing aud", without("aud"), 401, "lack `aud`"),
        ("missing exp", without("exp"), 401, "lack `exp`"),
        ("missing nbf", without("nbf"), 401, "lack `nbf`"),
        ("missing sub", without("sub"), 401, "lack `sub`"),
        ("null iss", null("iss"), 401, "lack `iss`"),
        ("null aud", null("aud"), 401, "lack `aud`"),
        ("null exp", null("exp"), 401, "lack `exp`"),
        ("null nbf", null("nbf"), 401, "lack `nbf`"),
        ("missing kid", key.sign(&json!({"alg": "RS256"}), &good), 401, "lacks `kid`"),
        ("missing alg", key.sign(&json!({"kid": key.kid}), &good), 401, "no token"),
    ]
}

/// Larger than necessary, or with unsupported parts.
fn oversized(key: &IssuerKey) -> Vec<TokenCase> {
    let good = claims("a").to_string();
    let kid = |kid: String| key.sign(&json!({"alg": "RS256", "kid": kid}), &good);
    let filled = changed(claims("a"), json!({"more": "x".repeat(8_192)}));
    let critical = json!({"alg": "RS256", "kid": key.kid, "crit": ["exp"]});
    vec![
        ("huge kid", kid("k".repeat(257)), 401, "longer than 256 bytes"),
        ("large kid", kid("k".repeat(256)), 401, "no key of its issuer"),
        ("huge token", key.token(&filled), 401, "longer than 8 KiB"),
        ("huge nothing", "x".repeat(100_000), 401, "longer than 8 KiB"),
        ("critical", key.sign(&critical, &good), 401, "`crit`"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_credential_in_the_right_header_is_accepted() {
    let key = IssuerKey::ed25519("e");
    let jwks = JwksServer::of(&[&key]).await;
    let fixture = IdentityFixture::open(&issuer("a", &jwks.url()), &[]).await;
    let token = key.token(&claims("a"));
    let bearer = |text: &str| fixture.request().bearer_auth(text);
    let api_key = |request: reqwest::RequestBuilder, text: &str| request.header("x-api-key", text);
    for (name, request, status) in [
        ("nothing", fixture.request(), 401),
        ("key as bearer", bearer(&fixture.key), AUTHORIZED_STATUS),
        ("key in X-Api-Key", api_key(fixture.request(), &fixture.key), AUTHORIZED_STATUS),
        ("token in X-Api-Key", api_key(fixture.request(), &token), 401),
        ("token twice", bearer(&token).bearer_auth(&token), 401),
        ("token and key", api_key(bearer(&token), &fixture.key), 401),
        ("two keys", api_key(api_key(fixture.request(), &fixture.key), &fixture.key), 401),
        ("basic", fixture.request().basic_auth("tea", Some(&fixture.key)), 401),
        ("says who", fixture.request().header("orloj-caller", "tea"), 401),
        ("in the query", fixture.client.post(format!("{}?access_token={token}", fixture.url)), 401),
    ] {
        let response = fixture.send(request).await;
        assert_eq!(response.status, status, "{name}: {response:?}");
        assert!(!response.body.contains(&fixture.key) && !response.body.contains(&token), "{name}");
    }
    let anonymous = fixture.send(fixture.request()).await;
    assert_eq!(anonymous.header("www-authenticate"), "Bearer realm=\"orloj\"", "no error was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_refused_without_issuers() {
    let fixture = IdentityFixture::open("", &[]).await;
    let response = fixture.with_token(&IssuerKey::ed25519("e").token(&claims("a"))).await;
    assert_eq!((response.status, response.detail().as_str()), (401, "no caller has this API key"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_may_only_reduce_its_callers_role() {
    let key = IssuerKey::p256("p");
    let jwks = JwksServer::of(&[&key]).await;
    let file = format!(
        "{}role_claim = \"roles\"\ncaller_claim = \"client\"\n\
         [callers.looker]\nrole = \"read-only\"\n[callers.roleless]\n",
        issuer("a", &jwks.url())
    );
    let fixture = IdentityFixture::open(&file, &[]).await;
    for (client, roles, status, words) in [
        ("tea", json!("caller"), AUTHORIZED_STATUS, ""),
        ("tea", json!(["other", "operator"]), AUTHORIZED_STATUS, ""),
        ("tea", json!("read-only"), 403, "tea may only look; this needs the role caller"),
        ("tea", json!(["read-only", "king"]), 403, "tea may only look"),
        ("tea", json!("king"), 403, "`roles` says no role"),
        ("tea", json!([]), 403, "`roles` says no role"),
        ("tea", Value::Null, 403, "`roles` says no role"),
        ("looker", json!("operator"), 403, "looker may only look"),
        ("roleless", json!("operator"), 403, "roleless has no role"),
    ] {
        let change = json!({"client": client, "roles": roles, "sub": "other"});
        let response = fixture.with_token(&key.token(&changed(claims("a"), change))).await;
        assert_eq!(response.status, status, "{client} {roles}: {response:?}");
        assert!(response.detail().contains(words), "{client} {roles}: {}", response.detail());
    }
}
