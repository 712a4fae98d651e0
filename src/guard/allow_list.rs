//! The base URLs under which a caller's callbacks must stay.
//!
//! Invariant: scheme, host and port are exactly a base's, and its path is a whole part of the
//! URL's: `/hooks` allows `/hooks` and `/hooks/7`, not `/hooks-of-others`. No spelling of `..`
//! leaves the base path.

use reqwest::Url;

use super::ForbiddenTarget;

/// The URLs that a caller may use; `None` for all, an empty list allows nothing.
pub type BaseUrls<'a> = Option<&'a [Url]>;

/// Refuses a URL that lies under none of the bases.
pub(super) fn check(url: &Url, bases: BaseUrls<'_>) -> Result<(), ForbiddenTarget> {
    match bases {
        Some(bases) if !bases.iter().any(|base| is_under(url, base)) => {
            Err(ForbiddenTarget::NotAllowed { url: url.to_string() })
        }
        _ => Ok(()),
    }
}

fn is_under(url: &Url, base: &Url) -> bool {
    let same_origin = url.origin() == base.origin();
    let prefix = base.path().trim_end_matches('/');
    if !same_origin || prefix.is_empty() {
        return same_origin;
    }
    let rest = url.path().strip_prefix(prefix);
    rest.is_some_and(|rest| (rest.is_empty() || rest.starts_with('/')) && !has_parent_segment(rest))
}

/// Whether some server could read the rest of a path as leading upwards: the parser has resolved
/// plain `..`, but there are servers that decode `%2f` and `%252e`, and some that cut off `;…`.
fn has_parent_segment(rest: &str) -> bool {
    let mut path = rest.to_ascii_lowercase();
    loop {
        let decoded = path.replace("%25", "%").replace("%2e", ".");
        if decoded == path {
            return path.contains("..");
        }
        path = decoded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_must_lie_under_one_of_the_bases() {
        let bases = [
            "https://api.example.com/hooks/",
            "http://other.example:8080",
            "https://[2001:db8::1]/a/b",
        ];
        let bases = bases.map(|base| Url::parse(base).unwrap());
        let allows = |url: &str| check(&Url::parse(url).unwrap(), Some(&bases)).is_ok();
        for url in [
            "https://api.example.com/hooks",
            "https://api.example.com/hooks/",
            "https://API.example.com:443/hooks/a/b?c=/../d",
            "https://api.example.com/hooks/a.b/",
            "https://api.example.com/x/../hooks/a",
            "http://other.example:8080/any/..%2fthing",
            "https://[2001:DB8:0::1]/a/b/c",
        ] {
            assert!(allows(url), "{url}");
        }
        for url in [
            "http://api.example.com/hooks/",
            "https://api.example.com:8443/hooks/",
            "https://api.example.com/",
            "https://api.example.com/hooks-of-others",
            "https://api.example.com/Hooks/",
            "https://api.example.com/h%6Foks/",
            "https://api.example.com/hooks/../admin",
            "https://api.example.com/hooks/%2e%2E/admin",
            "https://api.example.com/hooks/..%2fadmin",
            "https://api.example.com/hooks/..%5cadmin",
            "https://api.example.com/hooks/%252e%252e/admin",
            "https://api.example.com/hooks/%25252e./admin",
            "https://api.example.com/hooks/..;/admin",
            "https://example.com/hooks/",
            "https://x.api.example.com/hooks/",
            "https://api.example.com.evil.example/hooks/",
            "http://other.example/",
            "https://[2001:db8::2]/a/b",
        ] {
            assert!(!allows(url), "{url}");
        }
        let any = Url::parse("http://any.example/").unwrap();
        assert_eq!((check(&any, None).is_ok(), check(&any, Some(&[])).is_ok()), (true, false));
    }
}
