//! Traces: a callback as a span of its own, linked to the one that registered its trigger.
//!
//! Invariant: Orloj traces what its users trace. A registration whose `traceparent` is sampled gets
//! a span for each attempt, and the receiver that span's `traceparent`; every other one is passed
//! on unchanged. It is a link and not a child, because hours may pass between the two: no collector
//! keeps a trace open for that long.

use std::time::Instant;

use aws_lc_rs::rand;
use reqwest::Request;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::disposition::CallbackResponse;
use super::otlp::SpanExporter;
use crate::clock;
use crate::model::Timestamp;
use crate::model::fire::Fire;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// OTLP's `SPAN_KIND_CLIENT`.
const CLIENT: u8 = 3;
/// OTLP's `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// An attempt in progress that is traced.
#[derive(Debug)]
pub struct AttemptSpan {
    spans: SpanExporter,
    started: Timestamp,
    started_at: Instant,
    trace: String,
    span: String,
    link: LinkedSpan,
    attributes: Vec<Value>,
}

/// The span that registered a trigger, as its headers have it.
#[derive(Debug, PartialEq, Eq)]
struct LinkedSpan {
    trace: String,
    span: String,
    state: String,
}

impl AttemptSpan {
    /// Starts at `now`, if the trigger's registration was traced; the request then carries it.
    pub fn start(
        spans: &SpanExporter,
        fire: &Fire,
        request: &mut Request,
        now: Timestamp,
    ) -> Option<Self> {
        let cause = LinkedSpan::of(request.headers())?;
        let mut random = [0; 24];
        rand::fill(&mut random).ok()?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (trace, span) = hex.split_at(32);
        let headers = request.headers_mut();
        headers.remove(TRACESTATE);
        let own = format!("00-{trace}-{span}-01");
        headers.insert(TRACEPARENT, HeaderValue::try_from(own).ok()?);
        let attributes = vec![
            text("http.request.method", request.method().as_str()),
            text("server.address", request.url().host_str().unwrap_or_default()),
            text("orloj.trigger.id", fire.id.trigger.as_str()),
            number("orloj.attempt", fire.id.attempt.into()),
        ];
        Some(Self {
            spans: spans.clone(),
            started: now,
            started_at: clock::monotonic(),
            trace: trace.to_owned(),
            span: span.to_owned(),
            link: cause,
            attributes,
        })
    }

    /// Ends it with the result.
    pub fn end(mut self, response: &CallbackResponse) {
        let failure = match response {
            CallbackResponse::Answered { status, .. } => {
                self.attributes.push(number("http.response.status_code", (*status).into()));
                (!(200..300).contains(status)).then_some("")
            }
            CallbackResponse::NoResponse(reason)
            | CallbackResponse::NotContacted(reason)
            | CallbackResponse::Unsendable(reason) => Some(reason.as_str()),
        };
        let status = match failure {
            Some(reason) => json!({ "code": ERROR, "message": reason }),
            None => json!({}),
        };
        let started = u128::from(self.started) * 1_000_000;
        let ended = started + (clock::monotonic() - self.started_at).as_nanos();
        let LinkedSpan { trace, span, state } = self.link;
        // OTLP's JSON: 64-bit numbers are text, ids are hexadecimal, enumerations are numbers.
        self.spans.send(json!({
            "traceId": self.trace,
            "spanId": self.span,
            "name": "callback",
            "kind": CLIENT,
            "startTimeUnixNano": started.to_string(),
            "endTimeUnixNano": ended.to_string(),
            "attributes": self.attributes,
            "links": [{ "traceId": trace, "spanId": span, "traceState": state }],
            "status": status,
        }));
    }
}

impl LinkedSpan {
    /// If the headers name one, and it is sampled.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let (trace, span) = parse_sampled(headers.get(TRACEPARENT)?.to_str().ok()?)?;
        let states = headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok());
        let state = states.collect::<Vec<_>>().join(",");
        Some(Self { trace: trace.to_owned(), span: span.to_owned(), state })
    }
}

/// Trace and span of a `traceparent` (W3C Trace Context), if it is valid and sampled.
fn parse_sampled(traceparent: &str) -> Option<(&str, &str)> {
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |text: &str, digits| is_hex(text, digits) && text.bytes().any(|c| c != b'0');
    let mut parts = traceparent.split('-');
    let mut next = || parts.next();
    let (version, trace, span, flags) = (next()?, next()?, next()?, next()?);
    // A later version may have more fields after the same ones.
    let is_whole = version != "00" || parts.next().is_none();
    let is_valid = is_hex(version, 2) && version != "ff" && is_id(trace, 32) && is_id(span, 16);
    let is_sampled = is_hex(flags, 2) && u8::from_str_radix(flags, 16).is_ok_and(|f| f & 1 == 1);
    (is_whole && is_valid && is_sampled).then_some((trace, span))
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: i64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sampled_traceparent_is_linked() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let zero = "0".repeat(32);
        for (text, expected) in [
            (format!("00-{trace}-{span}-01"), true),
            (format!("00-{trace}-{span}-03"), true),
            (format!("cc-{trace}-{span}-01-more"), true),
            (format!("00-{trace}-{span}-00"), false),
            (format!("00-{trace}-{span}-01-more"), false),
            (format!("ff-{trace}-{span}-01"), false),
            (format!("00-{zero}-{span}-01"), false),
            (format!("00-{trace}-{}-01", &zero[..16]), false),
            (format!("00-{}-{span}-01", trace.to_uppercase()), false),
            (format!("00-{trace}-{span}"), false),
            (format!("00-{trace}-{span}-1"), false),
            (format!("00-{trace}é-{span}-01"), false),
            (String::new(), false),
        ] {
            assert_eq!(parse_sampled(&text), expected.then_some((trace, span)), "{text}");
        }
    }
}
