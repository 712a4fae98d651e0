//! The parameters of a request: path, query, and the headers of preconditions.
//!
//! Invariant: an unknown parameter is refused like an unknown field, and every error names it.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::header::IF_MATCH;
use axum::http::request::Parts;
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::error_code::ErrorCode;
use super::json;
use super::problem::{FieldError, ParseError, Problem};
use crate::model::Offset;

/// The parameter of a path.
#[derive(Debug)]
pub(crate) struct PathId(pub(crate) String);

/// The generations that `If-Match` accepts; `None` for any.
#[derive(Debug)]
pub(crate) struct IfMatch(pub(crate) Option<Vec<Offset>>);

/// The parameters of a query.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

/// A type that a query is deserialised as.
pub(crate) trait QueryFields: DeserializeOwned {
    /// Parameters that may be repeated: together they are a list.
    const LISTS: &'static [&'static str] = &[];
    /// Parameters that may be numbers.
    const NUMBERS: &'static [&'static str] = &["page_size"];
}

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        match id {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => {
                let detail = "the last part of the path is not UTF-8 once it is decoded";
                Err(Problem::of(ErrorCode::InvalidParameter, detail))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        if_match(&parts.headers).map(Self)
    }
}

impl<S: Send + Sync, T: QueryFields> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        read_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn read_query<T: QueryFields>(query: &str) -> Result<T, Problem> {
    let mut fields = Map::new();
    let mut url = Url::parse("http://query/").expect("the literal is a URL");
    url.set_query(Some(query));
    for (name, value) in url.query_pairs() {
        let name = name.into_owned();
        let number = value.parse::<u64>().ok().filter(|_| T::NUMBERS.contains(&name.as_str()));
        let value = number.map_or_else(|| json!(value), |number| json!(number));
        if T::LISTS.contains(&name.as_str()) {
            let list = fields.entry(name).or_insert(json!([]));
            list.as_array_mut().expect("it was inserted as a list").push(value);
        } else if fields.insert(name.clone(), value).is_some() {
            return Err(invalid_parameter(&format!("{name} is there twice: give it once")));
        }
    }
    let read = json::parse_json(Value::from(fields).to_string().as_bytes());
    read.map_err(|ParseError(FieldError { pointer, reason })| {
        let reason = reason.replace("there is no field", "there is no parameter");
        match pointer.trim_start_matches('/').split('/').next() {
            Some("") | None => invalid_parameter(&reason),
            Some(name) => {
                invalid_parameter(&format!("{name}: {reason}")).with("parameter", json!(name))
            }
        }
    })
}

/// A parameter is wrong.
pub(crate) fn invalid_parameter(detail: &str) -> Problem {
    Problem::of(ErrorCode::InvalidParameter, detail)
}

/// The generations that `If-Match` takes, if it is there and not `*`.
fn if_match(headers: &HeaderMap) -> Result<Option<Vec<Offset>>, Problem> {
    let mut generations = Vec::new();
    let mut any = !headers.contains_key(IF_MATCH);
    for value in headers.get_all(IF_MATCH) {
        let Ok(text) = value.to_str() else { return Err(invalid_etag()) };
        for tag in text.split(',').map(str::trim) {
            if tag == "*" {
                any = true;
                continue;
            }
            let quoted = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            // The bare generation, as JSON shows it, is accepted like the quoted ETag.
            let bare = Some(tag).filter(|tag| tag.bytes().all(|byte| byte.is_ascii_digit()));
            let inner = quoted.or_else(|| bare.filter(|tag| !tag.is_empty()));
            // An unknown entity tag matches nothing.
            generations.extend(inner.ok_or_else(invalid_etag)?.parse::<Offset>());
        }
    }
    Ok((!any).then_some(generations))
}

fn invalid_etag() -> Problem {
    let detail = "If-Match: write the ETag of the trigger's response, such as \"41\"";
    invalid_parameter(detail).with("parameter", json!("If-Match"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestQuery {
        q: Option<String>,
        label: Option<Vec<String>>,
        page_size: Option<u32>,
    }

    impl QueryFields for TestQuery {
        const LISTS: &'static [&'static str] = &["label"];
    }

    #[test]
    fn a_query_is_read_as_strictly_as_a_body() {
        let read = |query| read_query::<TestQuery>(query);
        let listed = read("q=7%20%26&label=a%3D1&label=b&page_size=20").unwrap();
        let label = Some(vec!["a=1".to_owned(), "b".to_owned()]);
        assert_eq!(listed, TestQuery { q: Some("7 &".to_owned()), label, page_size: Some(20) });
        assert_eq!(read("").unwrap(), TestQuery { q: None, label: None, page_size: None });
        let seven = Some("7".to_owned());
        assert_eq!(read("q=7").unwrap(), TestQuery { q: seven, label: None, page_size: None });
        for (query, problem) in [
            ("qq=1", "qq: there is no parameter \"qq\"; did you mean \"q\"?"),
            ("page_size=many", "page_size: write a whole number from 0 on, not \"many\""),
            ("q=1&q=2", "q is there twice: give it once"),
        ] {
            let found = read(query).unwrap_err();
            let expected = invalid_parameter(problem);
            let name = problem.split_once(": ").filter(|_| !problem.starts_with("q is"));
            let expected = match name {
                Some((name, _)) => expected.with("parameter", json!(name)),
                None => expected,
            };
            assert_eq!(found, expected, "{query}");
        }
    }

    #[test]
    fn if_match_names_generations() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_MATCH, text.parse().unwrap());
            if_match(&headers)
        };
        assert_eq!(read("\"41\""), Ok(Some(vec![41])));
        assert_eq!(read("\"41\", \"7\""), Ok(Some(vec![41, 7])));
        assert_eq!(read("*"), Ok(None));
        assert!(read("").is_err(), "no tag at all");
        assert_eq!(read("\"abc\""), Ok(Some(Vec::new())), "no tag of Orloj");
        assert_eq!(read("41,\"7\""), Ok(Some(vec![41, 7])), "as JSON shows it");
        assert!(read("W/\"41\"").is_err() && read("\"41\",").is_err() && read("\"").is_err());
        assert_eq!(if_match(&HeaderMap::new()), Ok(None));
        let mut lines = HeaderMap::new();
        for tag in ["\"41\"", "\"7\""] {
            let _further = lines.append(IF_MATCH, tag.parse().unwrap());
        }
        assert_eq!(if_match(&lines), Ok(Some(vec![41, 7])), "a header of two lines");
    }
}
