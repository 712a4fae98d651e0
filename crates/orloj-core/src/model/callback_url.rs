//! The URL of a callback, judged by its bytes alone.
//!
//! Invariant: what two parsers could read differently is refused, so that the code that checks a
//! URL and the client that calls it see the same host and port. No table of a library is used: a
//! replay years later decides the same. Which hosts and ports may be called is policy, and not
//! checked here.

// Addresses as values; `core` has no sockets.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::limits::URL_BYTES_MAX;

/// Characters of a host's name, dots included: what DNS can carry.
const NAME_MAX: usize = 253;
/// Characters between two dots.
const LABEL_MAX: usize = 63;

/// Where a callback goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackAddress<'a> {
    /// The host that is called.
    pub host: Host<'a>,
    /// As written, or the scheme's own.
    pub port: u16,
}

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    /// A name to be resolved, as it is written.
    Name(&'a str),
    /// An address written out.
    Address(IpAddr),
}

/// What is wrong with a URL, always and everywhere. `Display` says the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallbackUrlError {
    /// Shorten it.
    #[error("it has more than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// Say all of it.
    #[error("give an absolute http or https URL like https://example.com/hook")]
    NotAbsolute,
    /// Leave them out.
    #[error("white space, control characters, backslashes and fragments (`#`) are refused")]
    ForbiddenCharacter,
    /// Send a header.
    #[error("`@` before the path is refused: send credentials as a header")]
    Userinfo,
    /// Write it as everyone does.
    #[error(
        "its host must be a name of letters, digits, `-` and `_` between dots (an international \
         one as xn--…), an address like 192.0.2.1, or one like [2001:db8::1]"
    )]
    Host,
    /// Write another one, or none.
    #[error("its port must be a number from 1 to 65535")]
    Port,
}

/// Reads where `url` leads.
pub fn parse(url: &str) -> Result<CallbackAddress<'_>, CallbackUrlError> {
    if url.len() > URL_BYTES_MAX {
        return Err(CallbackUrlError::TooLong);
    }
    let ambiguous = |c: char| c.is_whitespace() || c.is_control() || c == '\\' || c == '#';
    if url.contains(ambiguous) {
        return Err(CallbackUrlError::ForbiddenCharacter);
    }
    let (scheme, rest) = url.split_once("://").ok_or(CallbackUrlError::NotAbsolute)?;
    let scheme_port = match scheme {
        _ if scheme.eq_ignore_ascii_case("https") => 443,
        _ if scheme.eq_ignore_ascii_case("http") => 80,
        _ => return Err(CallbackUrlError::NotAbsolute),
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(CallbackUrlError::Userinfo);
    }
    // The colons of an IPv6 address stand in brackets.
    let host_end = authority.find(']').map_or(0, |bracket| bracket + 1);
    let host_end = authority[host_end..].find(':').map_or(authority.len(), |at| host_end + at);
    let (text, rest) = authority.split_at(host_end);
    Ok(CallbackAddress { host: parse_host(text)?, port: parse_port(rest, scheme_port)? })
}

fn parse_host(text: &str) -> Result<Host<'_>, CallbackUrlError> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let address = bracketed.strip_suffix(']').and_then(|v6| v6.parse::<Ipv6Addr>().ok());
        return address.map(|address| Host::Address(address.into())).ok_or(CallbackUrlError::Host);
    }
    let is_label = |label: &str| {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(legal)
    };
    if text.len() > NAME_MAX || !text.split('.').all(is_label) {
        return Err(CallbackUrlError::Host);
    }
    if !ends_in_a_number(text) {
        return Ok(Host::Name(text));
    }
    // 0177.0.0.1 is one address to some readers and another to others; 127.1 and 2130706433 are
    // addresses to some and names to others. The one spelling that all agree on is this parser's.
    let address = text.parse::<Ipv4Addr>().map_err(|_| CallbackUrlError::Host)?;
    Ok(Host::Address(address.into()))
}

/// Whether a browser would take a host for an IPv4 address.
fn ends_in_a_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// What follows the host: nothing, or a colon and a port.
fn parse_port(text: &str, scheme_port: u16) -> Result<u16, CallbackUrlError> {
    if text.is_empty() {
        return Ok(scheme_port);
    }
    let digits = text.strip_prefix(':').filter(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let port = digits.and_then(|digits| digits.parse().ok());
    port.filter(|port| *port > 0).ok_or(CallbackUrlError::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_parsed() {
        let name = Host::Name;
        let address = |text: &str| Host::Address(text.parse().unwrap());
        for (url, host, port) in [
            ("http://h", name("h"), 80),
            ("HTTPS://Example.com/p?q=@:/", name("Example.com"), 443),
            (
                "https://a-b.c_d.xn--bcher-kva.example:8443?q",
                name("a-b.c_d.xn--bcher-kva.example"),
                8443,
            ),
            ("http://1.2.3.4.example/", name("1.2.3.4.example"), 80),
            ("http://127.0.0.1:8000/", address("127.0.0.1"), 8000),
            ("http://[::1]:1/", address("::1"), 1),
            ("https://[::ffff:127.0.0.1]/x", address("::ffff:127.0.0.1"), 443),
            ("http://h/ü%0a", name("h"), 80),
        ] {
            assert_eq!(parse(url), Ok(CallbackAddress { host, port }), "{url}");
        }
    }

    #[test]
    fn ambiguous_urls_are_refused() {
        let refuses = |fault, url: &str| assert_eq!(parse(url), Err(fault), "{url:?}");
        for (fault, urls) in [
            (
                CallbackUrlError::NotAbsolute,
                "h /p //h/ http:/h http:h ftp://h file:///etc gopher://h",
            ),
            (
                CallbackUrlError::Userinfo,
                "http://a@h/ http://a:b@h/ http://@h http://h:80@127.0.0.1/",
            ),
            (
                CallbackUrlError::Host,
                "http:// http:///p http://?q http://:80 http://h. http://a..b",
            ),
            (
                CallbackUrlError::Host,
                "http://.h http://%31 http://h%2f http://a*b http://１.1 http://ｈ",
            ),
            (
                CallbackUrlError::Host,
                "http://bücher http://a。b http://h\u{ad} http://a.0x http://0",
            ),
            (
                CallbackUrlError::Host,
                "http://127.1 http://0x7f.0.0.1 http://0x7f000001 http://2130706433",
            ),
            (
                CallbackUrlError::Host,
                "http://0177.0.0.1 http://127.0.0.1. http://1.2.3.4.5 http://1.2.3.256",
            ),
            (
                CallbackUrlError::Host,
                "http://[::1 http://::1/ http://[] http://[::1]x http://x[::1]",
            ),
            (
                CallbackUrlError::Host,
                "http://[fe80::1%25eth0] http://[fe80::1%eth0] http://[127.0.0.1]",
            ),
            (
                CallbackUrlError::Port,
                "http://h: http://h:0 http://h:65536 http://h:+80 http://h:80:80",
            ),
            (CallbackUrlError::Port, "http://h:http http://[::1]: http://h:-1 http://h:８０"),
        ] {
            urls.split(' ').for_each(|url| refuses(fault, url));
        }
        refuses(CallbackUrlError::NotAbsolute, "");
        for space in [' ', '\r', '\n', '\t', '\0', '\\', '#', '\u{85}', '\u{a0}'] {
            for url in [
                format!("{space}http://h"),
                format!("http://h{space}@x"),
                format!("http://h/{space}"),
            ] {
                refuses(CallbackUrlError::ForbiddenCharacter, &url);
            }
        }
        refuses(CallbackUrlError::TooLong, &format!("http://h/{}", "x".repeat(URL_BYTES_MAX)));
        refuses(CallbackUrlError::Host, &format!("http://{}/", "x".repeat(LABEL_MAX + 1)));
        refuses(CallbackUrlError::Host, &format!("http://{}c/", "ab.".repeat(NAME_MAX / 3 + 1)));
    }
}
