//! Who asks, and how much: a real gateway on a socket, issuers with keys made for the test, and
//! whatever might be sent instead of a valid key or token. No broker is needed: a
//! request whose caller is let in gets as far as its body, which is wrong.

mod issuer;
mod keys;
mod limits;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use orloj::callers::{KeyHash, new_key};
use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::gateway;
use orloj::health::{self, Health};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);
/// The status for an empty registration: an authorized caller is answered that it is invalid.
const AUTHORIZED_STATUS: u16 = 422;

/// A gateway with a file of callers.
struct IdentityFixture {
    url: String,
    key: String,
    client: Client,
    shutdown: CancellationToken,
    _folder: TempDir,
}

/// The response to a request.
#[derive(Debug)]
struct AuthResponse {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: String,
}

impl AuthResponse {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn detail(&self) -> String {
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        problem["detail"].as_str().unwrap().to_owned()
    }
}

impl IdentityFixture {
    /// One that knows `tea`, who has a key, and what `file` says more.
    async fn open(file: &str, overrides: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("callers.toml"), new_key().unwrap());
        let tea = format!("[callers.tea]\nkeys = [\"{}\"]\nrole = \"caller\"", KeyHash::of(&key));
        std::fs::write(&path, format!("{tea}\n{file}")).unwrap();
        let usual = [
            "kafka.bootstrap.servers=127.0.0.1:1".to_owned(),
            format!("callers.file={}", path.display()),
            "callers.jwks_over_http=true".to_owned(),
            format!("gateway.view_dir={}", folder.path().join("view").display()),
        ];
        let overrides = usual.into_iter().chain(overrides.iter().map(|&text| text.to_owned()));
        let layers = Layers { overrides: overrides.collect(), ..Layers::default() };
        let settings = Settings::load(&layers).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/triggers", listener.local_addr().unwrap());
        let (health, shutdown) = (Health::new("gateway"), CancellationToken::new());
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let probes = health::routes(vec![Arc::clone(&health)], metrics.handle());
        let running = shutdown.clone();
        tokio::spawn(async move {
            gateway::run(&settings, listener, probes, health, running).await.unwrap();
        });
        Self { url, key, client: Client::new(), shutdown, _folder: folder }
    }

    fn request(&self) -> RequestBuilder {
        self.client.post(&self.url).body("{}")
    }

    async fn send(&self, request: RequestBuilder) -> AuthResponse {
        let answer = tokio::time::timeout(DEADLINE, request.send()).await.unwrap().unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        AuthResponse { status, headers, body: answer.text().await.unwrap() }
    }

    async fn with_token(&self, token: &str) -> AuthResponse {
        self.send(self.request().bearer_auth(token)).await
    }

    async fn with_key(&self, key: &str) -> AuthResponse {
        self.send(self.request().header("x-api-key", key)).await
    }

    /// Asks with what `token` makes until it is answered with `status`.
    async fn until(&self, status: u16, mut token: impl FnMut() -> String) {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        let looking = async {
            while self.with_token(&token()).await.status != status {
                look.tick().await;
            }
        };
        let what = format!("no answer becomes {status}");
        tokio::time::timeout(DEADLINE, looking).await.expect(&what);
    }
}

impl Drop for IdentityFixture {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The table of an issuer, which is called `name` and what its tokens say.
fn issuer(name: &str, jwks_url: &str) -> String {
    format!(
        "[jwt.{name}]\nissuer = \"https://{name}.example/\"\naudience = \"orloj\"\n\
         jwks_url = \"{jwks_url}\"\n"
    )
}

/// The claims of a good token of `tea`'s, by the issuer `name`.
fn claims(name: &str) -> Value {
    let now = clock::now_ms() / 1_000;
    json!({
        "iss": format!("https://{name}.example/"), "aud": "orloj", "sub": "tea",
        "nbf": now - 1, "exp": now + 3_600,
    })
}

/// Claims with some of them changed; `null` takes one away.
fn changed(mut claims: Value, by: Value) -> Value {
    let Value::Object(by) = by else { panic!("no claims: {by}") };
    let all = claims.as_object_mut().unwrap();
    for (name, value) in by {
        match value {
            Value::Null => drop(all.remove(&name)),
            value => drop(all.insert(name, value)),
        }
    }
    claims
}
