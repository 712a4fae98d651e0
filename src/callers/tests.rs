//! Reading the callers: strict, completely or not at all, and without secrets in errors.

use std::time::Duration;

use jsonwebtoken::Algorithm;

use super::*;
use crate::config::{ConfigError, Layers, Settings};

struct CallersFixture(tempfile::TempDir);

impl CallersFixture {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn settings(&self) -> Settings {
        let file = format!("callers.file={}", self.0.path().join("callers.toml").display());
        Settings::load(&Layers { overrides: vec![file], ..Layers::default() }).unwrap()
    }

    /// Reads `text` as the file.
    fn read(&self, text: &str) -> Result<CallerTable, ConfigError> {
        self.write("callers.toml", text);
        let variable = |name: &str| (name == "PAIR").then(|| NewSecret::pair().unwrap().secret);
        file::read(&self.settings(), &variable)
    }
}

fn refusal(text: &str) -> String {
    CallersFixture::new().read(text).unwrap_err().to_string()
}

#[test]
fn a_caller_has_what_the_file_says_and_the_settings_for_the_rest() {
    let fixture = CallersFixture::new();
    fixture.write("shared", &format!("{}\n", NewSecret::shared().unwrap().secret));
    let (key, other) = (new_key().unwrap(), new_key().unwrap());
    let text = format!(
        r#"
        [callers.billing]
        keys = ["{}", "{}"]
        role = "caller"
        urls = ["https://hooks.example.com/billing/"]
        topics = ["billing.*"]
        secrets = [
            {{ secret = "file:shared", not_after = "2030-01-01T00:00:00Z" }},
            {{ secret = "env:PAIR", not_before = "2029-12-01T00:00:00+01:00" }},
        ]
        limits = {{ concurrent = 7, dispatch_rate_max = 0, payload = "64KiB" }}
        notify.email = ["ops@example.com"]
        notify.webhook = "https://ops.example.com/"
        notify.interval = "1min"

        [callers.reports]
        "#,
        KeyHash::of(&key),
        KeyHash::of(&other),
    );
    let callers = fixture.read(&text).unwrap();
    let billing = callers.by_key(&other).unwrap();
    assert_eq!((billing.id.as_str(), billing.role), ("billing", Some(CallerRole::Caller)));
    assert_eq!(billing.urls.as_ref().unwrap()[0].path(), "/billing/");
    assert!(billing.may_fire_into("billing.eu") && !billing.may_fire_into("orders"));
    assert!(matches!(
        billing.secrets[..],
        [
            SigningSecret { key: SigningKey::Shared(_), not_after: Some(1_893_456_000_000), .. },
            SigningSecret { key: SigningKey::Pair(_), not_before: Some(1_890_774_000_000), .. },
        ]
    ));
    assert_eq!(billing.limits.concurrent.unwrap().get(), 7);
    assert_eq!((billing.limits.payload.bytes(), billing.limits.waiting), (65_536, None));
    assert_eq!(billing.limits.dispatch_rate_max, Some(0), "no limit, whatever the settings say");
    assert_eq!(billing.limits.pending, fixture.settings().callers.pending_max);
    assert_eq!(billing.notify.interval, Duration::from_secs(60));
    assert_eq!(billing.notify.email[0].to_string(), "ops@example.com");

    assert_eq!(callers.by_key(&key).unwrap().id, "billing");
    assert!(callers.by_key("orloj_guess").is_none());
    let reports = callers.by_id(Some("reports"));
    assert_eq!((&reports.urls, reports.limits.dispatch_rate_max), (&None, None));
    assert_eq!(callers.by_id(Some("unknown")).id, ANONYMOUS);
    assert_eq!((callers.by_id(None).id.as_str(), callers.count()), (ANONYMOUS, 2));
}

#[test]
fn without_a_file_there_is_one_caller_with_the_settings() {
    let settings = Settings::load(&Layers::default()).unwrap();
    let callers = CallerTable::read(&settings).unwrap();
    assert!(callers.is_open() && callers.by_key("").is_none());
    let anyone = callers.by_id(Some("billing"));
    assert_eq!((anyone.id.as_str(), anyone.role), (ANONYMOUS, Some(CallerRole::Operator)));
    assert_eq!(anyone.limits.payload, settings.gateway.payload_max);
    assert!(anyone.may_fire_into("anything"));
}

#[test]
fn the_file_may_say_what_holds_for_records_without_a_caller() {
    let callers = CallersFixture::new().read("callers.anonymous.topics = []").unwrap();
    assert!(!callers.by_id(None).may_fire_into("kitchen"));
    assert_eq!(callers.count(), 0);
}

#[test]
fn a_mistake_is_named_with_the_way_out() {
    let hash = KeyHash::of("k");
    for (text, expected) in [
        ("callers.a.limts.waiting = 1".to_owned(), "did you mean `callers.a.limits`?"),
        ("callers.a.limits.wait = 1".to_owned(), "did you mean `callers.a.limits.waiting`?"),
        ("caller.a.role = \"caller\"".to_owned(), "`caller`; did you mean `callers`?"),
        ("callers.a.xyz = 1".to_owned(), "there are keys, role, urls"),
        ("callers.a.role = \"king\"".to_owned(), "write one of read-only, caller, operator"),
        ("callers.a.limits.waiting = 0".to_owned(), "`callers.a.limits.waiting` cannot be"),
        ("callers.a.limits.rate_max = 9".to_owned(), "there is no setting"),
        ("callers.a.limits.dispatch_rate_max = -1".to_owned(), "dispatch_rate_max` cannot be"),
        ("callers.a.limits.payload = 5".to_owned(), "`callers.a.limits.payload` cannot be"),
        ("callers.a.secrets = [{}]".to_owned(), "`callers.a.secrets.0` lacks `secret`"),
        ("\n\ncallers.a.role = \"x".to_owned(), "callers.toml: line 3: "),
        (format!("callers.a.keys = [\"{hash}\"]"), "`callers.a` lacks `role`"),
        (format!("callers.anonymous.keys = [\"{hash}\"]"), "records that name none"),
        (
            format!(
                "callers.a = {{ role = \"caller\", keys = [\"{hash}\"] }}\n\
                 callers.b = {{ role = \"caller\", keys = [\"{hash}\"] }}"
            ),
            "`callers.b.keys` has a key of `callers.a`",
        ),
        ("callers.\"a\\nb\" = {}".to_owned(), "is no id"),
        ("callers.a.urls = [\"ftp://h\"]".to_owned(), "`callers.a.urls` cannot be: a URL begins"),
        ("callers.a.urls = [\"https://u:p@h\"]".to_owned(), "no user and no password"),
        ("callers.a.urls = [\"https://h/?a\"]".to_owned(), "without ? and #"),
        ("callers.a.topics = [\"a b\"]".to_owned(), "a pattern has letters"),
        ("callers.a.secrets = [{ secret = \"env:NO\" }]".to_owned(), "variable NO is not set"),
        ("callers.a.secrets = [{ secret = \"file:no\" }]".to_owned(), "cannot read"),
        (
            "callers.a.secrets = [{ secret = \"env:PAIR\", not_after = \"soon\" }]".to_owned(),
            "`callers.a.secrets.0` cannot be: write a time as RFC 3339",
        ),
        (
            "callers.a.secrets = [{ secret = \"env:PAIR\", not_after = \"2030-01-01T00:00:00Z\", \
             not_before = \"2031-01-01T00:00:00Z\" }]"
                .to_owned(),
            "not_after must be later",
        ),
        ("callers.a.notify.email = [\"ops\"]".to_owned(), "name@host"),
        ("callers.a.notify.email = [\"a@b.c\\r\\nTo: d@b.c\"]".to_owned(), "name@host"),
    ] {
        let refused = refusal(&text);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn a_secret_in_a_wrong_place_is_not_repeated() {
    let secret = "whsec_S3cretS3cretS3cretS3cretS3cretS3";
    for wrong in [
        format!("callers.a.keys = [\"{secret}\"]"),
        format!("callers.a.keys = \"{secret}\""),
        format!("callers.a.secrets = [\"{secret}\"]"),
        format!("callers.a.secrets = \"{secret}\""),
        format!("callers.a.secrets = [{{ secret = \"{secret}\", not_after = \"{secret}\" }}]"),
        format!("callers.a.secrets = [{{ secret = \"{secret}%\" }}]"),
        format!("callers.a.secrets = [{{ secret = \"{secret} }}]"),
        format!("callers.a.role = \"{secret}\""),
        format!("callers.a.limits.payload = \"{secret}\""),
        format!("callers.a.urls = [\"{secret}\"]"),
        format!("callers.a.notify.email = [\"{secret}\"]"),
        format!("jwt = \"{secret}\""),
        format!("[jwt]\n{ISSUER}jwks_url = \"{secret}\""),
        format!("[jwt]\n{ISSUER}jwks_url = \"https://h/\"\nalgorithms = [\"{secret}\"]"),
    ] {
        let refused = refusal(&wrong);
        assert!(!refused.contains("S3cret"), "{refused}");
    }
    let right = format!("callers.a.secrets = [{{ secret = \"{secret}\" }}]");
    let callers = CallersFixture::new().read(&right).unwrap();
    let shown = format!("{callers:?} {:?}", callers.by_id(Some("a")));
    assert!(!shown.contains("S3cret") && shown.contains("whsec_***"), "{shown}");
}

#[test]
fn a_changed_secret_makes_another_table() {
    let fixture = CallersFixture::new();
    let read = |secret: &NewSecret| {
        fixture.write("shared", &secret.secret);
        fixture.read("callers.a.secrets = [{ secret = \"file:shared\" }]").unwrap()
    };
    let (one, other) = (NewSecret::shared().unwrap(), NewSecret::shared().unwrap());
    assert!(read(&one).has_same_version(&read(&one)));
    assert!(!read(&one).has_same_version(&read(&other)));
}

#[test]
fn the_documented_file_is_read_as_it_is_explained() {
    const PAGE: &str = include_str!("../../docs/guides/callers.md");
    let documented = PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let fixture = CallersFixture::new();
    fixture.write("callers.toml", documented.unwrap());
    let secret =
        |name: &str| (name == "BILLING_SECRET").then(|| NewSecret::shared().unwrap().secret);
    let callers = file::read(&fixture.settings(), &secret).unwrap();

    let billing = callers.registered("billing").unwrap();
    assert_eq!((billing.role, billing.secrets.len()), (Some(CallerRole::Caller), 1));
    assert_eq!(billing.limits.requests_per_second.get(), 100);
    assert_eq!(billing.limits.pending.get(), 100_000);
    assert!(billing.may_fire_into("billing.eu") && !billing.may_fire_into("orders"));
    assert_eq!(callers.by_key("foo").unwrap().id, "billing", "the hash of the page is that of foo");
    assert_eq!(callers.by_key("bar").unwrap().role, Some(CallerRole::Operator));
    assert_eq!(callers.registered("reports").unwrap().role, Some(CallerRole::ReadOnly));
    assert!(callers.registered(ANONYMOUS).is_none() && callers.by_id(None).urls.is_some());

    let staff = callers.issuer("https://login.example.com/").unwrap();
    let usual = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    assert_eq!((staff.name.as_str(), staff.algorithms.as_slice()), ("jwt.staff", &usual[..]));
    assert_eq!(
        (staff.caller_claim.as_str(), staff.role_claim.as_deref()),
        ("sub", Some("orloj_role"))
    );
    assert_eq!(staff.leeway, fixture.settings().callers.jwt_leeway);
    let machines = callers.issuer("https://tokens.example.com").unwrap();
    assert_eq!((machines.caller_claim.as_str(), machines.leeway.as_secs()), ("client_id", 5));
    assert_eq!(machines.algorithms, [Algorithm::ES256]);
    assert!(callers.issuer("https://tokens.example.com/").is_none(), "to the letter");
}

const ISSUER: &str = "issuer = \"i\"\naudience = \"a\"\n";

#[test]
fn one_issuer_needs_no_name() {
    let text = format!("[jwt]\n{ISSUER}jwks_url = \"https://h/keys\"\nalgorithms = [\"PS512\"]");
    let callers = CallersFixture::new().read(&text).unwrap();
    let [issuer] = callers.issuers() else { panic!("{:?}", callers.issuers()) };
    assert_eq!((issuer.name.as_str(), &issuer.algorithms), ("jwt", &vec![Algorithm::PS512]));
    assert!(CallersFixture::new().read("[callers.a]").unwrap().issuers().is_empty());
}

#[test]
fn an_unsafe_issuer_is_refused_with_the_reason() {
    let https = "jwks_url = \"https://h/keys\"\n";
    for (table, entry, expected) in [
        ("jwt", String::new(), "`jwt` lacks `issuer`"),
        ("jwt.a", ISSUER.to_owned(), "`jwt.a` lacks `jwks_url`"),
        ("jwt.a", format!("{ISSUER}{https}alogrithms = []"), "did you mean `jwt.a.algorithms`?"),
        ("jwt", format!("{ISSUER}{https}algorithms = []"), "`jwt.algorithms` cannot be: name one"),
        (
            "jwt",
            format!("{ISSUER}{https}algorithms = [\"RS256\", \"HS256\"]"),
            "HS256 checks a token with the secret that makes it",
        ),
        ("jwt", format!("{ISSUER}{https}algorithms = [\"none\"]"), "none is no signature"),
        ("jwt", format!("{ISSUER}{https}algorithms = [\"RS265\"]"), "did you mean RS256?"),
        ("jwt", format!("{ISSUER}{https}leeway = \"61s\""), "`jwt.leeway` cannot be: it is 60s"),
        ("jwt", format!("{ISSUER}{https}leeway = 5"), "`jwt.leeway` cannot be"),
        ("jwt", format!("{ISSUER}{https}caller_claim = \"\""), "`jwt.caller_claim` cannot be"),
        ("jwt", format!("issuer = \"\"\naudience = \"a\"\n{https}"), "`jwt.issuer` cannot be"),
        ("jwt", format!("issuer = \"i\"\naudience = \"\"\n{https}"), "`jwt.audience` cannot be"),
        (
            "jwt",
            format!("{ISSUER}jwks_url = \"http://h/keys\""),
            "`jwt.jwks_url` cannot be: keys are read",
        ),
        (
            "jwt",
            format!("{ISSUER}jwks_url = \"http://127.0.0.1/\""),
            "callers.jwks_over_http allows",
        ),
        (
            "jwt",
            format!("{ISSUER}jwks_url = \"http://localhost/\""),
            "keys are read over https: a process",
        ),
        ("jwt", format!("{ISSUER}jwks_url = \"file:///keys\""), "a URL begins with https://"),
        ("jwt", format!("{ISSUER}jwks_url = \"keys\""), "a URL begins with https://"),
        ("jwt", format!("{ISSUER}jwks_url = \"https://u:p@h/\""), "no user and no password"),
        (
            "jwt.a",
            format!("{ISSUER}{https}[jwt.b]\n{ISSUER}{https}"),
            "`jwt.b.issuer` is that of `jwt.a`",
        ),
    ] {
        let refused = refusal(&format!("[{table}]\n{entry}"));
        assert!(refused.contains(expected), "{table} {entry}: {refused}");
    }
    assert!(refusal("jwt = 5").contains("`jwt` cannot be"), "no table");
}

#[test]
fn keys_come_over_http_from_this_machine_if_that_is_allowed() {
    let fixture = CallersFixture::new();
    let mut settings = fixture.settings();
    settings.callers.jwks_over_http = true;
    for (url, is_allowed) in [
        ("http://127.0.0.1:8080/keys", true),
        ("http://[::1]/keys", true),
        ("https://login.example.com/keys", true),
        ("http://localhost/keys", false),
        ("http://192.0.2.1/keys", false),
    ] {
        fixture.write("callers.toml", &format!("[jwt]\n{ISSUER}jwks_url = \"{url}\""));
        assert_eq!(file::read(&settings, &|_| None).is_ok(), is_allowed, "{url}");
    }
}
