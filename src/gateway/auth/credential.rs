//! The credential of a request: an API key or a token, distinguished by their form.
//!
//! Invariant: there is exactly one, or the request is refused: with two of them, two programs could
//! identify two callers. One that is too long is refused by its length.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::auth_error::AuthError;

/// The other header that may hold a key.
const API_KEY: &str = "x-api-key";
/// The longest credential, in bytes: tokens with many claims have two or three thousand.
const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;
/// The dots of a signed token in its compact form.
const TOKEN_DOTS: usize = 2;

/// The credential of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Credential<'a> {
    /// An API key.
    Key(&'a str),
    /// A signed JWT in its compact form.
    Token(&'a str),
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(***)",
            Self::Token(_) => "Token(***)",
        })
    }
}

/// The credential among `headers`; `tokens` says whether issuers are configured.
pub(super) fn extract_credential(
    headers: &HeaderMap,
    tokens: bool,
) -> Result<Credential<'_>, AuthError> {
    let bearers = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, text) = value.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| bearer(text.trim(), tokens))
    });
    let keys = headers.get_all(API_KEY).iter();
    let keys = keys.filter_map(|value| Some(Credential::Key(value.to_str().ok()?.trim())));
    let mut all = bearers.chain(keys);
    let credential = all.next().ok_or(AuthError::NoCredential)?;
    if all.next().is_some() {
        return Err(AuthError::InvalidCredential("send one key or one token, once".into()));
    }
    let (Credential::Key(text) | Credential::Token(text)) = credential;
    if text.len() > CREDENTIAL_BYTES_MAX {
        return Err(AuthError::InvalidCredential("it is longer than 8 KiB".into()));
    }
    Ok(credential)
}

/// Keys that `orloj callers new-key` makes have no dots.
fn bearer(text: &str, tokens: bool) -> Credential<'_> {
    if tokens && text.bytes().filter(|byte| *byte == b'.').count() == TOKEN_DOTS {
        Credential::Token(text)
    } else {
        Credential::Key(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_credential_comes_in_one_of_two_headers() {
        use Credential::{Key, Token};
        for (name, value, credential) in [
            ("authorization", "Bearer k", Some(Key("k"))),
            ("authorization", "bearer  k", Some(Key("k"))),
            ("authorization", "BEARER a.b.c", Some(Token("a.b.c"))),
            ("authorization", "Bearer a.b.", Some(Token("a.b."))),
            ("authorization", "Bearer a.b.c.d.e", Some(Key("a.b.c.d.e"))),
            ("authorization", "Basic k", None),
            ("authorization", "k", None),
            ("x-api-key", "k", Some(Key("k"))),
            ("x-api-key", "a.b.c", Some(Key("a.b.c"))),
            ("orloj-caller", "k", None),
        ] {
            let headers = headers(&[(name, value)]);
            assert_eq!(extract_credential(&headers, true).ok(), credential, "{name}: {value}");
        }
        assert!(matches!(
            extract_credential(&HeaderMap::new(), true),
            Err(AuthError::NoCredential)
        ));
        let token = headers(&[("authorization", "Bearer a.b.c")]);
        assert_eq!(
            extract_credential(&token, false).ok(),
            Some(Key("a.b.c")),
            "there are no issuers"
        );
    }

    #[test]
    fn two_credentials_are_refused() {
        for lines in [
            [("authorization", "Bearer k"), ("authorization", "Bearer k")],
            [("authorization", "Bearer k"), ("x-api-key", "k")],
            [("x-api-key", "k"), ("x-api-key", "l")],
        ] {
            assert!(matches!(
                extract_credential(&headers(&lines), true),
                Err(AuthError::InvalidCredential(_))
            ));
        }
        let beside = headers(&[("authorization", "Basic dTpw"), ("x-api-key", "k")]);
        assert_eq!(
            extract_credential(&beside, true).ok(),
            Some(Credential::Key("k")),
            "another scheme, of a proxy"
        );
    }

    #[test]
    fn a_credential_that_is_too_long_is_refused() {
        let longest = "k".repeat(CREDENTIAL_BYTES_MAX);
        assert!(extract_credential(&headers(&[("x-api-key", &longest)]), true).is_ok());
        let longer = format!("Bearer {longest}k");
        let longer = headers(&[("authorization", &longer)]);
        let refused = extract_credential(&longer, true);
        assert!(
            matches!(refused, Err(AuthError::InvalidCredential(reason)) if reason.contains("8 KiB"))
        );
    }

    #[test]
    fn debug_hides_a_credential() {
        let shown = format!("{:?} {:?}", Credential::Key("s3cret"), Credential::Token("s3.cr.et"));
        assert_eq!(shown, "Key(***) Token(***)");
    }
}
