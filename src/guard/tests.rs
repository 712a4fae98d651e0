//! The policy: what each setting allows and denies.

use proptest::prelude::*;

use super::*;
use crate::config::Layers;

fn guard(overrides: &[&str]) -> Guard {
    let overrides = overrides.iter().map(|&text| text.to_owned()).collect();
    Guard::new(&Settings::load(&Layers { overrides, ..Layers::default() }).unwrap())
}

fn purpose(guard: &Guard, address: &str) -> Option<&'static str> {
    match guard.check_address("h", address.parse().unwrap()) {
        Ok(()) => None,
        Err(ForbiddenTarget::Address { purpose, .. }) => Some(purpose),
        Err(other) => panic!("{other}"),
    }
}

async fn refusal(guard: &Guard, url: &str) -> String {
    guard.check(url, None).await.unwrap_err().to_string()
}

#[test]
fn an_allowed_network_is_open_and_embedded_addresses_are_checked() {
    let guard = guard(&[
        r#"worker.allow_addresses=["10.1.0.0/16", "fd00:1::/32", "64:ff9b::/96"]"#,
        r#"worker.deny_addresses=["10.1.9.0/24", "93.184.216.0/24", "2606::/16"]"#,
    ]);
    for address in [
        "1.1.1.1",
        "2a00::1",
        "10.1.0.0",
        "::ffff:10.1.255.255",
        "fd00:1::7",
        "64:ff9b::1.1.1.1",
        "64:ff9b::10.1.0.1",
    ] {
        assert_eq!(purpose(&guard, address), None, "{address}");
    }
    for (address, expected) in [
        ("10.0.255.255", "private"),
        ("10.2.0.0", "private"),
        ("fd00:2::1", "private (unique local)"),
        ("64:ff9b::127.0.0.1", "loopback"),
        ("64:ff9b:1::1.1.1.1", "NAT64"),
        ("2002:a01:1::", "6to4"),
        ("10.1.9.1", "in a network of `worker.deny_addresses`"),
        ("::ffff:10.1.9.1", "in a network of `worker.deny_addresses`"),
        ("64:ff9b::10.1.9.1", "in a network of `worker.deny_addresses`"),
        ("93.184.216.34", "in a network of `worker.deny_addresses`"),
        ("2606::1", "in a network of `worker.deny_addresses`"),
    ] {
        assert_eq!(purpose(&guard, address), Some(expected), "{address}");
    }
}

#[test]
fn any_allows_every_address_that_is_not_denied() {
    let guard =
        guard(&["worker.allow_addresses=any", r#"worker.deny_addresses=["169.254.0.0/16"]"#]);
    for address in ["127.0.0.1", "::1", "224.0.0.1", "64:ff9b::10.0.0.1", "fe80::1"] {
        assert_eq!(purpose(&guard, address), None, "{address}");
    }
    for address in ["169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::"] {
        assert!(purpose(&guard, address).is_some(), "{address}");
    }
}

#[tokio::test]
async fn ports_are_allowed_and_then_denied() {
    let usual = guard(&[]);
    for port in ["", ":80", ":443", ":1024", ":8080", ":65535"] {
        let url = format!("http://receiver.example{port}/");
        assert!(usual.check(&url, None).await.is_ok(), "{url}");
    }
    for port in [1, 22, 1023, 2379, 5432, 6379, 9092] {
        let url = format!("http://receiver.example:{port}/");
        assert!(refusal(&usual, &url).await.starts_with(&format!("port {port} must not")), "{url}");
    }
    let strict = guard(&[r#"worker.allow_ports=["443"]"#, r#"worker.deny_ports=[]"#]);
    assert!(strict.check("https://receiver.example/", None).await.is_ok());
    assert!(refusal(&strict, "http://receiver.example/").await.starts_with("port 80 must not"));
}

#[tokio::test]
async fn a_refusal_says_why_and_shows_no_resolved_address() {
    let guard = guard(&["gateway.listen=203.0.113.7:8470"]);
    let loopback = "127.0.0.1 must not be called: it is loopback; `worker.allow_addresses` says \
                    what may be";
    assert_eq!(refusal(&guard, "http://127.0.0.1/").await, loopback);
    let error = refusal(&guard, "http://a@b/").await;
    assert!(error.starts_with("\"http://a@b/\" cannot be called: `@` before the path"), "{error}");
    let bases = [Url::parse("https://api.example/").unwrap()];
    let error = guard.check("https://b.example/x", Some(&bases)).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "https://b.example/x must not be called: it is under none of its caller's base URLs"
    );
}

#[tokio::test]
async fn brokers_from_cluster_metadata_are_internal() {
    let guard = guard(&["kafka.bootstrap.servers=boot.invalid:19092"]);
    let guard = guard.with_brokers(vec![("93.184.216.34".to_owned(), 19094)]);
    for url in ["http://BOOT.invalid:19092/", "http://93.184.216.34:19094/"] {
        assert!(refusal(&guard, url).await.ends_with("a Kafka broker is there"), "{url}");
    }
    for url in ["http://boot.invalid:19093/", "http://93.184.216.34:19095/"] {
        assert!(guard.check(url, None).await.is_ok(), "{url}");
    }
}

#[tokio::test]
async fn a_forbidden_peer_address_is_refused_after_connecting() {
    let url = Url::parse("http://receiver.example/").unwrap();
    let peer = |text: &str| text.parse().unwrap();
    let guard = guard(&[]);
    assert_eq!(guard.check_peer(&url, peer("93.184.216.34:80")).await, Ok(()));
    assert!(guard.check_peer(&url, peer("127.0.0.1:80")).await.is_err());
}

proptest! {
    /// Public means: of no special use, whichever way it is written.
    #[test]
    fn public_admits_exactly_what_is_of_no_special_use(bits: u32, wide: u128) {
        let public = guard(&[]);
        for address in [IpAddr::from(bits.to_be_bytes()), IpAddr::from(wide.to_be_bytes())] {
            let admitted = public.check_address("h", address).is_ok();
            prop_assert_eq!(admitted, ranges::special_purpose(address).is_none(), "{}", address);
        }
    }

    /// A network allows its own addresses, and no others.
    #[test]
    fn an_allowed_network_opens_exactly_its_own_addresses(
        bits: u32,
        prefix in 8_u8..=32,
        other: u32,
    ) {
        let net = ipnet::Ipv4Net::new(bits.into(), prefix).unwrap().trunc();
        let opened = guard(&[&format!("worker.allow_addresses=[\"{net}\"]")]);
        let inside = net.network().to_bits() | other & net.hostmask().to_bits();
        let v4 = std::net::Ipv4Addr::from_bits;
        let admits = |bits| opened.check_address("h", v4(bits).into()).is_ok();
        prop_assert!(admits(inside));
        let is_public = ranges::special_purpose(v4(other).into()).is_none();
        let expected = net.contains(&v4(other)) || is_public;
        prop_assert_eq!(admits(other), expected);
    }

    /// No input makes it panic, and an admitted URL is the URL that was given.
    #[test]
    fn no_url_makes_it_panic(rest in ".{0,60}", start in "[a-z0-9.:@%#/\\\\\\[\\]-]{0,30}") {
        for url in [format!("http://{start}{rest}"), rest] {
            if let Ok(parsed) = parse(&url) {
                let place = callback_url::parse(&url).unwrap();
                prop_assert_eq!(port(&parsed), place.port);
                let same = match place.host {
                    Host::Name(name) => host(&parsed).eq_ignore_ascii_case(name),
                    Host::Address(address) => host(&parsed).parse() == Ok(address),
                };
                prop_assert!(same, "{}", url);
                prop_assert!(parsed.username().is_empty() && parsed.password().is_none());
            }
        }
    }
}
