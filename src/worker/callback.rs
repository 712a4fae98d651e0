//! One attempt: the request that a fire asks for, and what came of it.
//!
//! Law: an attempt is one request. No redirect is followed, no proxy asked, nothing repeated
//! underneath; time and the bytes that are read are bounded. The id of a fire is the same for all
//! its attempts, so that a receiver can tell a repetition.

use std::error::Error as _;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Request, Response};
use serde::Serialize;
use serde_json::value::RawValue;

use super::guard::{Forbidden, Guard};
use super::otlp::Spans;
use super::signature;
use super::trace::Attempt;
use super::verdict::Reply;
use crate::callers::Callers;
use crate::config::WorkerSettings;
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::text::Text;
use crate::model::{Millis, Timestamp};

/// A header of the trigger's: `verbatim` sends the payload as it is instead of our envelope.
const BODY_FORM: &str = "orloj-body";
/// Characters of an answer that a reason quotes.
const EXCERPT_MAX: usize = 300;
/// What belongs to a connection and not to a message, or follows from the request.
const NOT_CARRIED: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// What says who we are: a trigger may not claim it.
const OURS: [&str; 5] = ["x-trigger-", "x-idempotency-key", "webhook-", "orloj-", "keep-alive"];

/// Makes callbacks.
#[derive(Debug)]
pub struct Caller {
    client: Client,
    guard: Guard,
    callers: Callers,
    /// Where spans go, if anywhere.
    spans: Option<Spans>,
    response_body_max: usize,
}

impl Caller {
    /// A caller with these limits, for triggers of `callers`.
    pub fn new(
        settings: &WorkerSettings,
        callers: Callers,
        spans: Option<Spans>,
    ) -> reqwest::Result<Self> {
        let guard = Guard::new(settings.allow_addresses);
        let client = Client::builder()
            .user_agent(concat!("orloj/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(settings.connect_timeout)
            .timeout(settings.timeout)
            .dns_resolver(Arc::new(guard))
            .build()?;
        let response_body_max = usize::try_from(settings.response_body_max.bytes());
        let response_body_max = response_body_max.unwrap_or(usize::MAX);
        Ok(Self { client, guard, callers, spans, response_body_max })
    }

    /// Makes one attempt; `now` is stamped on it.
    pub async fn call(&self, fire: &Fire, now: Timestamp) -> Reply {
        let Target::Http(target) = &fire.definition.target else {
            return Reply::Impossible("its target is a topic, not a callback".to_owned());
        };
        let mut request = match self.request(fire, target, now) {
            Ok(request) => request,
            Err(reply) => return reply,
        };
        let spans = self.spans.as_ref();
        let attempt = spans.and_then(|spans| Attempt::begin(spans, fire, &mut request, now));
        let reply = match self.client.execute(request).await {
            Ok(response) => self.read(response).await,
            Err(error) => silence(&error),
        };
        if let Some(attempt) = attempt {
            attempt.end(&reply);
        }
        reply
    }

    fn request(&self, fire: &Fire, target: &HttpTarget, now: Timestamp) -> Result<Request, Reply> {
        let url = self.guard.check_url(target.url.as_str());
        let url = url.map_err(|forbidden| Reply::Impossible(forbidden.to_string()))?;
        let method = Method::from_bytes(target.method.bytes());
        let method = method.map_err(|_| {
            Reply::Impossible(format!("{:?} is not an HTTP method", target.method.as_str()))
        })?;
        let mut request = Request::new(method, url);
        let (mut headers, body) = message(fire, now);
        self.sign(fire, now, &mut headers, &body)?;
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// Adds what the secrets of the fire's caller sign. Without a current one the attempt fails,
    /// and a later one may find one.
    fn sign(
        &self,
        fire: &Fire,
        now: Timestamp,
        headers: &mut HeaderMap,
        body: &[u8],
    ) -> Result<(), Reply> {
        let caller = self.callers.of_record(fire.definition.caller.as_ref().map(Text::as_str));
        let id = idempotency_key(&fire.id);
        let signature = signature::sign(&caller, &id, now / 1000, body, now);
        let signature = signature.map_err(|none| Reply::Silent(none.to_string()))?;
        if let Some(Ok(value)) = signature.map(HeaderValue::try_from) {
            headers.insert("webhook-signature", value);
        }
        Ok(())
    }

    /// Status, and as much of the body as is wanted: a broken body does not unsay the status.
    async fn read(&self, mut response: Response) -> Reply {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        let mut body = Vec::new();
        while body.len() < self.response_body_max {
            let Ok(Some(chunk)) = response.chunk().await else { break };
            body.extend_from_slice(&chunk[..chunk.len().min(self.response_body_max - body.len())]);
        }
        Reply::Answered { status, retry_after, body: excerpt(&body) }
    }
}

/// The id that receivers see: [`FireId::stable`] with everything but letters, digits, `_`, `-` and
/// `:` percent-encoded, because a `.` would be ambiguous in what Standard Webhooks sign.
#[must_use]
pub fn idempotency_key(id: &FireId) -> String {
    let mut key = String::new();
    for byte in id.stable().bytes() {
        match byte {
            b'_' | b'-' | b':' => key.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => key.push(byte.into()),
            _ => write!(key, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    key
}

/// What our receivers get unless they want the payload alone.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    trigger_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn message(fire: &Fire, now: Timestamp) -> (HeaderMap, Bytes) {
    let definition = &fire.definition;
    let verbatim = definition.headers.iter().any(|header| {
        header.name.as_str() == BODY_FORM && header.value.as_deref() == Some(b"verbatim")
    });
    let mut headers = carried(definition);
    let body = if verbatim {
        definition.payload.clone().unwrap_or_default()
    } else {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        envelope(fire)
    };
    let key = idempotency_key(&fire.id);
    let mut set = |name: &'static str, value: &[u8]| {
        // Ids have no control characters, so this holds for all that ingest let through.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    };
    set("x-trigger-id", fire.id.trigger.bytes());
    set("x-trigger-attempt", fire.id.attempt.to_string().as_bytes());
    set("x-idempotency-key", key.as_bytes());
    set("webhook-id", key.as_bytes());
    set("webhook-timestamp", (now / 1000).to_string().as_bytes());
    (headers, body)
}

/// The trigger's own headers, less those that HTTP cannot carry or a trigger may not set.
fn carried(definition: &Definition) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in &definition.headers {
        let name = HeaderName::from_bytes(header.name.bytes());
        let value = HeaderValue::from_bytes(header.value.as_deref().unwrap_or_default());
        let (Ok(name), Ok(value)) = (name, value) else { continue };
        let ours = OURS.iter().any(|prefix| name.as_str().starts_with(prefix));
        if !ours && !NOT_CARRIED.contains(&name) {
            headers.append(name, value);
        }
    }
    headers
}

fn envelope(fire: &Fire) -> Bytes {
    let payload = fire.definition.payload.as_deref().unwrap_or(b"null");
    let json = serde_json::from_slice::<&RawValue>(payload).ok();
    let envelope = Envelope {
        trigger_id: fire.id.trigger.as_str(),
        payload: json,
        payload_base64: json.is_none().then(|| STANDARD.encode(payload)),
    };
    serde_json::to_vec(&envelope).expect("text and JSON make JSON").into()
}

/// The seconds of a `Retry-After`, in ms. (Its other form, a date, would need trust in the
/// receiver's clock.)
fn retry_after(headers: &HeaderMap) -> Option<Millis> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).as_millis().try_into().unwrap_or(Millis::MAX))
}

/// Why nothing came back. What the guard refused says so at the bottom of the chain of causes.
fn silence(error: &reqwest::Error) -> Reply {
    let mut reason = if error.is_timeout() { "timed out" } else { "no answer" }.to_owned();
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(forbidden) = current.downcast_ref::<Forbidden>() {
            return Reply::Impossible(forbidden.to_string());
        }
        if current.source().is_none() {
            write!(reason, ": {current}").expect("a string takes everything");
        }
        cause = current.source();
    }
    Reply::Silent(reason)
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(EXCERPT_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::Header;

    fn fire(trigger: &str, payload: Option<&[u8]>, headers: &[(&str, &str)]) -> Fire {
        let header = |(name, value): &(&str, &str)| Header {
            name: (*name).into(),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        };
        Fire {
            id: FireId {
                trigger: trigger.into(),
                generation: 42,
                occurrence: 0,
                attempt: 3,
                deferral: 0,
            },
            scheduled: 1_000,
            fired: 1_001,
            definition: Definition {
                target: Target::Http(HttpTarget {
                    url: "http://example.com/".into(),
                    method: "POST".into(),
                }),
                payload: payload.map(Bytes::copy_from_slice),
                headers: headers.iter().map(header).collect(),
                retry: None,
                caller: None,
            },
        }
    }

    fn body(payload: Option<&[u8]>) -> String {
        String::from_utf8(message(&fire("a", payload, &[]), 0).1.to_vec()).unwrap()
    }

    #[test]
    fn the_body_holds_json_as_json_and_all_else_in_base64() {
        let json = br#"{"n": 1.50}"#;
        assert_eq!(body(Some(json)), r#"{"triggerId":"a","payload":{"n": 1.50}}"#);
        assert_eq!(body(None), r#"{"triggerId":"a","payload":null}"#);
        assert_eq!(body(Some(b"not json")), r#"{"triggerId":"a","payloadBase64":"bm90IGpzb24="}"#);
        assert_eq!(body(Some(b"\xFF")), r#"{"triggerId":"a","payloadBase64":"/w=="}"#);
    }

    #[test]
    fn the_headers_name_the_fire_and_the_attempt() {
        let (headers, _) = message(&fire("order.7", None, &[]), 1_700_000_000_999);
        let text = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(text("x-trigger-id"), "order.7");
        assert_eq!(text("x-trigger-attempt"), "3");
        assert_eq!(text("x-idempotency-key"), "order%2E7:42:0");
        assert_eq!(text("webhook-id"), "order%2E7:42:0");
        assert_eq!(text("webhook-timestamp"), "1700000000");
        assert_eq!(text("content-type"), "application/json");
    }

    #[test]
    fn a_trigger_carries_its_headers_but_not_ours_nor_the_connections() {
        let own = [
            ("traceparent", "00-abc-def-01"),
            ("Content-Type", "text/plain"),
            ("X-Trigger-Id", "another"),
            ("webhook-signature", "forged"),
            ("Host", "internal"),
            ("Transfer-Encoding", "chunked"),
            ("not a name", "x"),
            ("x-split", "a\r\nb: c"),
        ];
        let (headers, _) = message(&fire("a", None, &own), 0);
        assert_eq!(headers["traceparent"], "00-abc-def-01");
        assert_eq!(headers["x-trigger-id"], "a");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers.len(), 7, "{headers:?}");
    }

    #[test]
    fn verbatim_sends_the_payload_with_its_own_type() {
        let own = [("orloj-body", "verbatim"), ("content-type", "text/plain")];
        let (headers, body) = message(&fire("a", Some(b"hello"), &own), 0);
        assert_eq!(
            (&body[..], headers["content-type"].as_bytes()),
            (&b"hello"[..], &b"text/plain"[..])
        );
    }

    #[test]
    fn retry_after_is_read_in_seconds() {
        let of = |value: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]))
        };
        assert_eq!(of("120"), Some(120_000));
        assert_eq!((of("Wed, 21 Oct 2026 07:28:00 GMT"), of("-1")), (None, None));
        assert_eq!(of("18446744073709551615"), Some(u64::MAX));
    }
}
