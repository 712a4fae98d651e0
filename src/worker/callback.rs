//! One attempt: the request of a fire, and its result.
//!
//! Invariant: an attempt is one request. No redirect is followed, no proxy used, nothing repeated
//! by the client; time, memory and the bytes that are read are bounded, whatever the receiver does.
//! The id of a fire is the same for all its attempts, so that a receiver can recognize a
//! repetition.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Method, Request, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::rustls;

use super::disposition::CallbackResponse;
use super::otlp::SpanExporter;
use super::retry_after::retry_after;
use super::trace::AttemptSpan;
use crate::callers::{Caller, Callers, signature};
use crate::clock;
use crate::config::WorkerSettings;
use crate::guard::{Guard, GuardedClient, ORLOJ_USER_AGENT, RequestError};
use crate::model::attempt::{TEXT_CHARS_MAX, excerpt};
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::text::Text;
use crate::model::{Timestamp, http_header};

/// A header of the trigger's: `verbatim` sends the payload as it is instead of our envelope.
const BODY_FORM_HEADER: &str = "orloj-body";
/// The bytes of the characters that are quoted. Only these are kept of a response while it is read,
/// so that ten thousand responses at once need megabytes only.
const QUOTED_BYTES_MAX: usize = TEXT_CHARS_MAX * char::MAX.len_utf8();
/// The minimum that a chunk of a response counts for, in bytes: each wakes the task, so that an
/// endless stream of tiny chunks would cost more than large ones.
const CHUNK_COST_MIN: usize = 64;

/// Makes callbacks.
#[derive(Debug)]
pub struct CallbackClient {
    client: GuardedClient,
    callers: Callers,
    /// Where spans go, if anywhere.
    spans: Option<SpanExporter>,
    response_body_max: usize,
    timeout: Duration,
    timeout_max: Duration,
}

impl CallbackClient {
    /// A client with these limits for triggers of `callers`; `guard` decides which hosts it may
    /// call.
    pub fn new(
        settings: &WorkerSettings,
        guard: Guard,
        callers: Callers,
        spans: Option<SpanExporter>,
    ) -> Result<Self, rustls::Error> {
        let response_body_max = usize::try_from(settings.response_body_max.bytes());
        Ok(Self {
            client: GuardedClient::new(guard, settings)?,
            callers,
            spans,
            response_body_max: response_body_max.unwrap_or(usize::MAX),
            timeout: settings.timeout,
            timeout_max: settings.timeout_max,
        })
    }

    /// Makes one attempt; `now` is its timestamp.
    pub async fn call(&self, fire: &Fire, now: Timestamp) -> CallbackResponse {
        let Target::Http(target) = &fire.definition.target else {
            return CallbackResponse::Unsendable(
                "its target is a topic, not a callback".to_owned(),
            );
        };
        let caller = self.callers.for_record(fire.definition.caller.as_ref().map(Text::as_str));
        let timeout = self.timeout_of(target);
        let deadline = Instant::from_std(clock::monotonic()) + timeout;
        let mut request = match timeout_at(deadline, self.request(fire, target, &caller, now)).await
        {
            Ok(Ok(request)) => request,
            Ok(Err(response)) => return response,
            Err(_) => {
                return CallbackResponse::NotContacted(format!(
                    "timed out: the addresses that must not be called were not known within \
                     {timeout:?}"
                ));
            }
        };
        let spans = self.spans.as_ref();
        let attempt = spans.and_then(|spans| AttemptSpan::start(spans, fire, &mut request, now));
        let answer = timeout_at(deadline, self.client.execute(&caller.id, request)).await;
        let result = match answer {
            Ok(Ok(response)) => self.read(response, deadline, now).await,
            Ok(Err(RequestError::Forbidden(forbidden))) => {
                CallbackResponse::Unsendable(forbidden.to_string())
            }
            Ok(Err(failure @ RequestError::NotContacted(_))) => {
                CallbackResponse::NotContacted(failure.to_string())
            }
            Ok(Err(failure)) => CallbackResponse::NoResponse(failure.to_string()),
            Err(_) => {
                CallbackResponse::NoResponse(format!("timed out: no answer within {timeout:?}"))
            }
        };
        if let Some(attempt) = attempt {
            attempt.end(&result);
        }
        result
    }

    /// How long an attempt may take in all.
    fn timeout_of(&self, target: &HttpTarget) -> Duration {
        target.timeout.map_or(self.timeout, Duration::from_millis).min(self.timeout_max)
    }

    async fn request(
        &self,
        fire: &Fire,
        target: &HttpTarget,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<Request, CallbackResponse> {
        let url = self.client.guard().check(target.url.as_str(), caller.urls.as_deref()).await;
        let url = url.map_err(|forbidden| CallbackResponse::Unsendable(forbidden.to_string()))?;
        let method = Method::from_bytes(target.method.bytes());
        let method = method.map_err(|_| {
            CallbackResponse::Unsendable(format!(
                "{:?} is not an HTTP method",
                target.method.as_str()
            ))
        })?;
        let mut request = Request::new(method, url);
        let (mut headers, body) = headers_and_body(fire, now);
        sign(caller, &fire.id, now, &mut headers, &body)?;
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// Status, and the start of the body: an interrupted body does not change the status. After a
    /// body that is read to its end the connection can be used again.
    async fn read(
        &self,
        mut response: Response,
        deadline: Instant,
        now: Timestamp,
    ) -> CallbackResponse {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers(), now);
        let (mut kept, mut read) = (Vec::new(), 0);
        while read < self.response_body_max {
            let chunk = timeout_at(deadline, response.chunk()).await;
            let Ok(Ok(Some(chunk))) = chunk else { break };
            kept.extend(chunk.iter().take(QUOTED_BYTES_MAX - kept.len()));
            read += chunk.len().max(CHUNK_COST_MIN);
        }
        let body = excerpt(&String::from_utf8_lossy(&kept)).unwrap_or_default().to_string();
        CallbackResponse::Answered { status, retry_after, body }
    }
}

/// Adds the signatures of the caller's secrets. Without a current secret the attempt fails; a later
/// one may find one.
fn sign(
    caller: &Caller,
    id: &FireId,
    now: Timestamp,
    headers: &mut HeaderMap,
    body: &[u8],
) -> Result<(), CallbackResponse> {
    let signature = signature::sign(caller, &idempotency_key(id), now / 1000, body, now);
    let signature = signature.map_err(|none| CallbackResponse::NoResponse(none.to_string()))?;
    if let Some(Ok(value)) = signature.map(HeaderValue::try_from) {
        headers.insert("webhook-signature", value);
    }
    Ok(())
}

/// The id that receivers see: [`FireId::occurrence_id`] with everything but letters, digits, `_`,
/// `-` and `:` percent-encoded, because a `.` would be ambiguous in what Standard Webhooks sign.
#[must_use]
pub fn idempotency_key(id: &FireId) -> String {
    let mut key = String::new();
    for byte in id.occurrence_id().bytes() {
        match byte {
            b'_' | b'-' | b':' => key.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => key.push(byte.into()),
            _ => write!(key, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    key
}

/// The body of a callback, unless the trigger sends its payload verbatim.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallbackBody<'a> {
    trigger_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn headers_and_body(fire: &Fire, now: Timestamp) -> (HeaderMap, Bytes) {
    let definition = &fire.definition;
    let verbatim = definition.headers.iter().any(|header| {
        header.name.as_str() == BODY_FORM_HEADER && header.value.as_deref() == Some(b"verbatim")
    });
    let mut headers = forwarded_headers(definition);
    for (name, value) in [(ACCEPT, "*/*"), (USER_AGENT, ORLOJ_USER_AGENT)] {
        headers.entry(name).or_insert_with(|| HeaderValue::from_static(value));
    }
    let body = if verbatim {
        definition.payload.clone().unwrap_or_default()
    } else {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        json_body(fire)
    };
    let key = idempotency_key(&fire.id);
    let mut set = |name: &'static str, value: &[u8]| {
        // Ids have no control characters: registrations with any were refused.
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
fn forwarded_headers(definition: &Definition) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in &definition.headers {
        let value = header.value.as_deref().unwrap_or_default();
        if http_header::rejection_reason(header.name.as_str(), value).is_some() {
            continue;
        }
        let name = HeaderName::from_bytes(header.name.bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

fn json_body(fire: &Fire) -> Bytes {
    let payload = fire.definition.payload.as_deref().unwrap_or(b"null");
    let json = serde_json::from_slice::<&RawValue>(payload).ok();
    let envelope = CallbackBody {
        trigger_id: fire.id.trigger.as_str(),
        payload: json,
        payload_base64: json.is_none().then(|| STANDARD.encode(payload)),
    };
    serde_json::to_vec(&envelope).expect("text and JSON make JSON").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::CallerTable;
    use crate::config::{Layers, Settings};
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
                target: Target::from(HttpTarget::post("http://example.com/")),
                payload: payload.map(Bytes::copy_from_slice),
                headers: headers.iter().map(header).collect(),
                retry: None,
                caller: None,
            },
            history: None,
            report_end: false,
            priority: 127,
        }
    }

    fn body(payload: Option<&[u8]>) -> String {
        String::from_utf8(headers_and_body(&fire("a", payload, &[]), 0).1.to_vec()).unwrap()
    }

    #[test]
    fn the_body_contains_json_as_json_and_everything_else_as_base64() {
        let json = br#"{"n": 1.50}"#;
        assert_eq!(body(Some(json)), r#"{"triggerId":"a","payload":{"n": 1.50}}"#);
        assert_eq!(body(None), r#"{"triggerId":"a","payload":null}"#);
        assert_eq!(body(Some(b"not json")), r#"{"triggerId":"a","payloadBase64":"bm90IGpzb24="}"#);
        assert_eq!(body(Some(b"\xFF")), r#"{"triggerId":"a","payloadBase64":"/w=="}"#);
    }

    #[test]
    fn the_headers_name_the_fire_and_the_attempt() {
        let (headers, _) = headers_and_body(&fire("order.7", None, &[]), 1_700_000_000_999);
        let text = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(text("x-trigger-id"), "order.7");
        assert_eq!(text("x-trigger-attempt"), "3");
        assert_eq!(text("x-idempotency-key"), "order%2E7:42:0");
        assert_eq!(text("webhook-id"), "order%2E7:42:0");
        assert_eq!(text("webhook-timestamp"), "1700000000");
        assert_eq!(text("content-type"), "application/json");
        assert_eq!(text("user-agent"), ORLOJ_USER_AGENT);
    }

    #[test]
    fn the_headers_of_a_trigger_are_sent_except_reserved_and_connection_headers() {
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
        let (headers, _) = headers_and_body(&fire("a", None, &own), 0);
        assert_eq!(headers["traceparent"], "00-abc-def-01");
        assert_eq!(headers["x-trigger-id"], "a");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers.len(), 9, "{headers:?}");
    }

    #[test]
    fn verbatim_sends_the_payload_with_its_own_type() {
        let own = [("orloj-body", "verbatim"), ("content-type", "text/plain")];
        let (headers, body) = headers_and_body(&fire("a", Some(b"hello"), &own), 0);
        assert_eq!(
            (&body[..], headers["content-type"].as_bytes()),
            (&b"hello"[..], &b"text/plain"[..])
        );
    }

    #[test]
    fn a_trigger_has_its_own_timeout_up_to_the_maximum_of_the_worker() {
        let settings = Settings::load(&Layers::default()).unwrap();
        let callers = Callers::fixed(CallerTable::read(&settings).unwrap());
        let caller =
            CallbackClient::new(&settings.worker, Guard::new(&settings), callers, None).unwrap();
        let worker = settings.worker;
        let wanted = [
            (None, worker.timeout),
            (Some(200), Duration::from_millis(200)),
            (Some(3_600_000), worker.timeout_max),
        ];
        for (timeout, expected) in wanted {
            let target = HttpTarget { timeout, ..HttpTarget::post("http://example.com/") };
            assert_eq!(caller.timeout_of(&target), expected);
        }
    }
}
