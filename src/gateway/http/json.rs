//! Reading the body of a request into a type, with errors that name the field by JSON pointer.
//!
//! Invariant: a body has the fields of its type and no others, and one reader reads them all: every
//! message says what to write instead, and shows what was written, cut to 80 characters.

use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::error_code::ErrorCode;
use super::problem::{FieldError, ParseError, Problem};

/// Characters of a value that a message shows.
const SHOWN_CHARS_MAX: usize = 80;
/// How similar two names must be for a suggestion.
const SIMILARITY_MIN: f64 = 0.7;

/// The whole body as bytes, if it is JSON by its header and no longer than `max` bytes.
pub(crate) async fn read_bytes(mut request: Request, max: u64) -> Result<Bytes, Problem> {
    check_type(request.headers())?;
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    DefaultBodyLimit::max(max).apply(&mut request);
    let body = Bytes::from_request(request, &()).await;
    body.map_err(|refused| Problem::new(refused.status(), refused.body_text()))
}

/// Reads `json` as a `T`.
pub(crate) fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, ParseError> {
    parse_fields(json).map_err(ParseError)
}

fn parse_fields<T: DeserializeOwned>(json: &[u8]) -> Result<T, FieldError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut deserializer, &mut track);
    match T::deserialize(tracked) {
        Ok(value) => {
            let end = deserializer.end();
            end.map(|()| value).map_err(|error| body_error(format!("not JSON: {error}")))
        }
        Err(error) if error.is_data() => {
            let path = track.path();
            Err(explain(&path, &without_position(&error.to_string()), json))
        }
        Err(error) => Err(body_error(format!("not a JSON object: {error}"))),
    }
}

/// A body without a content type counts as JSON: only another content type is refused.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let given = given.to_str().unwrap_or("not text");
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    let detail = format!("the body is {given} by its Content-Type");
    Err(Problem::of(ErrorCode::UnsupportedMediaType, detail))
}

/// Serde's error as a text for people.
fn explain(path: &serde_path_to_error::Path, message: &str, json: &[u8]) -> FieldError {
    let mut pointer = pointer(path);
    let between = |before: &str| Some(message.strip_prefix(before)?.split('`').next()?.to_owned());
    if let Some(unknown) = between("unknown field `") {
        let known: Vec<_> = message.split('`').skip(3).step_by(2).collect();
        if !pointer.ends_with(&format!("/{}", escape_pointer(&unknown))) {
            pointer = format!("{pointer}/{}", escape_pointer(&unknown));
        }
        return FieldError { pointer, reason: unknown_field_reason(&unknown, &known) };
    }
    if let Some(missing) = between("missing field `") {
        return FieldError { pointer, reason: format!("{missing} is missing") };
    }
    if let Some(twice) = between("duplicate field `") {
        return FieldError { pointer, reason: format!("{twice} is there twice: write it once") };
    }
    let expected = message.split_once(", expected ").map(|(_, expected)| type_name(expected));
    let Some(expected) = expected else {
        return FieldError { pointer, reason: message.to_owned() };
    };
    let value: Option<Value> = serde_json::from_slice(json).ok();
    let found = value.as_ref().and_then(|value| value.pointer(&pointer));
    let reason = match found {
        Some(found) => format!("write {expected}, not {}", truncate(&found.to_string())),
        None => format!("write {expected}"),
    };
    FieldError { pointer, reason }
}

fn body_error(reason: String) -> FieldError {
    FieldError { pointer: String::new(), reason }
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(format!("/{index}")),
        Segment::Map { key } => Some(format!("/{}", escape_pointer(key))),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    path.iter().filter_map(segment).collect()
}

/// A name within a JSON pointer.
fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The name of a type in messages, by serde's.
fn type_name(expected: &str) -> String {
    let plain = expected.replace('`', "");
    let plain = plain.strip_prefix("one of ").unwrap_or(&plain);
    match plain {
        "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if plain.starts_with("struct ") => "an object",
        other => other,
    }
    .to_owned()
}

/// Without serde_json's line and column: the pointer is clearer.
fn without_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(before, _)| before).to_owned()
}

fn truncate(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// The message for a name that is not in `known`.
pub(crate) fn unknown_field_reason(unknown: &str, known: &[&str]) -> String {
    let similarity = |name: &str| strsim::jaro_winkler(unknown, name);
    let nearest = known
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|name| similarity(name) > SIMILARITY_MIN);
    let unknown = truncate(unknown);
    match nearest {
        Some(nearest) => format!("there is no field {unknown:?}; did you mean {nearest:?}?"),
        None => format!("there is no field {unknown:?}; there are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
    struct TestBody {
        some_name: Option<String>,
        count: Option<u32>,
        labels: Option<BTreeMap<String, String>>,
        items: Option<Vec<TestBody>>,
        raw: Option<Box<RawValue>>,
    }

    #[test]
    fn a_mistake_names_its_pointer_and_what_to_write() {
        for (json, pointer, reason) in [
            (r#"{"someNam": "x"}"#, "/someNam", "did you mean \"someName\"?"),
            (r#"{"xyz": "x"}"#, "/xyz", "there are someName, count, labels, items, raw"),
            (r#"{"someName": 7}"#, "/someName", "write a string, not 7"),
            (r#"{"count": -1}"#, "/count", "write a whole number from 0 on, not -1"),
            (r#"{"count": 1, "count": 2}"#, "", "count is there twice"),
            (r#"{"labels": {"a/b": 1}}"#, "/labels/a~1b", "write a string, not 1"),
            (r#"{"items": [{}, {"count": "x"}]}"#, "/items/1/count", "not \"x\""),
            (r#"{"items": [{"coun": 1}]}"#, "/items/0/coun", "did you mean \"count\"?"),
            (r#"{"items": 7}"#, "/items", "write a list, not 7"),
            (r#"[]"#, "", "write an object, not []"),
            ("nonsense", "", "not a JSON object"),
            (r#"{"count": 1} x"#, "", "not JSON"),
            (r#"{"labels": {"a~/b": 1}}"#, "/labels/a~0~1b", "write a string, not 1"),
        ] {
            let error = parse_json::<TestBody>(json.as_bytes()).unwrap_err();
            assert_eq!(error.0.pointer, pointer, "{json}: {error:?}");
            assert!(error.0.reason.contains(reason), "{json}: {error:?}");
        }
    }

    #[test]
    fn a_shown_value_is_truncated() {
        let long = "x".repeat(1_000);
        for json in [format!(r#"{{"count": "{long}"}}"#), format!(r#"{{"{long}": 1}}"#)] {
            let ParseError(FieldError { reason, .. }) =
                parse_json::<TestBody>(json.as_bytes()).unwrap_err();
            let shown = reason.matches('x').count();
            assert!((SHOWN_CHARS_MAX - 1..=SHOWN_CHARS_MAX).contains(&shown), "{reason}");
        }
    }

    #[test]
    fn a_raw_value_is_kept_as_it_was_written() {
        let body: TestBody =
            parse_json(br#"{"raw": {"n": 1.0,  "s": 2}, "someName": null}"#).unwrap();
        assert_eq!(body.raw.unwrap().get(), r#"{"n": 1.0,  "s": 2}"#);
        assert_eq!((body.some_name, body.count), (None, None));
        assert!(body.labels.is_none() && body.items.is_none());
    }

    #[test]
    fn only_a_body_of_another_content_type_is_refused() {
        for (given, is_taken) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("application/x-www-form-urlencoded", false),
            ("text/plain", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, given.parse().unwrap());
            assert_eq!(check_type(&headers).is_ok(), is_taken, "{given}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
    }
}
