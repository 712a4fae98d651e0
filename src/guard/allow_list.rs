//! The base URLs under which a caller's callbacks must stay.
//!
//! Law: scheme, host and port are exactly a base's, and its path is a whole part of the URL's:
//! `/hooks` allows `/hooks` and `/hooks/7`, not `/hooks-of-others`. No spelling of `..` leads out.

use reqwest::Url;

use super::{Forbidden, parse};

/// Base URLs; none at all means no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Url>);

/// A text that is no base URL. Correct it: `Display` says how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} cannot be a base URL such as https://api.example.com/hooks/: {reason}")]
pub struct BadBaseUrl {
    /// As it was written.
    pub url: String,
    /// What is wrong with it.
    pub reason: String,
}

impl AllowList {
    /// Reads base URLs such as `https://api.example.com/hooks/`.
    pub fn new(base_urls: &[String]) -> Result<Self, BadBaseUrl> {
        let read = |url: &String| {
            let bad = |reason| BadBaseUrl { url: url.clone(), reason };
            let base = parse(url).map_err(bad)?;
            match base.query() {
                Some(_) => Err(bad("leave the query out".to_owned())),
                None => Ok(base),
            }
        };
        base_urls.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Refuses a URL that lies under none of the bases.
    pub fn check(&self, url: &Url) -> Result<(), Forbidden> {
        if self.0.is_empty() || self.0.iter().any(|base| is_under(url, base)) {
            return Ok(());
        }
        Err(Forbidden::NotAllowed { url: url.to_string() })
    }
}

fn is_under(url: &Url, base: &Url) -> bool {
    let same_origin = url.origin() == base.origin();
    let prefix = base.path().trim_end_matches('/');
    if !same_origin || prefix.is_empty() {
        return same_origin;
    }
    let rest = url.path().strip_prefix(prefix);
    rest.is_some_and(|rest| (rest.is_empty() || rest.starts_with('/')) && !climbs(rest))
}

/// Whether some server could read the rest of a path as leading upwards: the parser has resolved
/// plain `..`, but there are servers that decode `%2f` and `%252e`, and some that cut off `;…`.
fn climbs(rest: &str) -> bool {
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

    fn list(bases: &[&str]) -> Result<AllowList, BadBaseUrl> {
        AllowList::new(&bases.iter().map(|&base| base.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_url_must_lie_under_one_of_the_bases() {
        let list = list(&[
            "https://api.example.com/hooks/",
            "http://other.example:8080",
            "https://[2001:db8::1]/a/b",
        ]);
        let list = list.unwrap();
        let allows = |url: &str| list.check(&parse(url).unwrap()).is_ok();
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
        assert!(AllowList::default().check(&parse("http://any.example/").unwrap()).is_ok());
    }

    #[test]
    fn a_bad_base_is_named() {
        for base in
            ["", "api.example.com", "ftp://h/", "https://a@h/", "https://h/?q", "https://*.h/"]
        {
            let error = list(&["https://h/", base]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{base:?} cannot be")), "{error}");
        }
    }
}
