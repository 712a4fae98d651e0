//! Registrations, batches and commands as records, and what is refused.

use super::checks::check_pool;
use super::new_trigger::{header, instruction_headers};
use super::*;
use crate::kafka::Names;
use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::lifecycle::Command;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::{Timestamp, limits};

const NOW: Timestamp = 1_800_000_000_000;

fn callback(url: &str) -> Target {
    Target::from(HttpTarget::post(url))
}

fn topic(topic: &str) -> Target {
    Target::Topic(TopicTarget { topic: Text::from(topic), key: Some("k".into()) })
}

fn trigger() -> NewTrigger {
    NewTrigger {
        id: "tea".to_owned(),
        when: Some(FireTime::After(1_500)),
        target: topic("kitchen"),
        payload: b"ready".to_vec(),
        headers: vec![header("content-type", "text/plain")],
        metadata_headers: Vec::new(),
        lifecycle_headers: Vec::new(),
        on_conflict: OnConflict::Keep,
        retry: RetryPolicy::default(),
    }
}

/// Registers it where there is a pool called slow.
fn register(trigger: NewTrigger) -> Result<Submission, ValidationError> {
    let (names, validator, pools) =
        (Names::new("orloj"), RegistrationValidator::new(), ["slow".to_owned()]);
    let rules = SubmissionRules { names: &names, pools: &pools, validator: &validator, now: NOW };
    Submission::register(trigger, rules)
}

fn refusal(change: impl FnOnce(&mut NewTrigger)) -> (&'static str, String) {
    let mut trigger = trigger();
    change(&mut trigger);
    let refusal = register(trigger).unwrap_err();
    (refusal.field, refusal.reason)
}

fn batch(json: &str) -> Result<BatchSubmission, ValidationError> {
    let (names, validator) = (Names::new("orloj"), RegistrationValidator::new());
    let rules = SubmissionRules { names: &names, pools: &[], validator: &validator, now: NOW };
    BatchSubmission::read(json.as_bytes().to_vec(), rules)
}

#[test]
fn a_registration_is_a_record_in_headers_form() {
    let submission = register(trigger()).unwrap();
    let headers = [
        header("orloj-delay", "1500"),
        header("orloj-target-topic", "kitchen"),
        header("orloj-target-key", "k"),
        header("orloj-on-conflict", "keep"),
        header("content-type", "text/plain"),
        header("orloj-ack", "true"),
    ];
    let expected = Submission {
        id: "tea".to_owned(),
        value: Some(b"ready".to_vec()),
        headers: headers.to_vec(),
    };
    assert_eq!(submission.with_ack(), expected);
    let at = NewTrigger { when: Some(FireTime::At(NOW)), ..trigger() };
    assert_eq!(register(at).unwrap().headers[0], header("orloj-fire-at", NOW.to_string()));
}

#[test]
fn caller_and_generation_are_written_as_headers() {
    let cancel = || Submission::cancel("tea").unwrap();
    assert_eq!(cancel().with_caller("billing").headers, [header("orloj-caller", "billing")]);
    let generation = [header("orloj-if-generation", "41")];
    assert_eq!(cancel().if_generation(41).headers, generation);
}

#[test]
fn values_at_the_limits_are_accepted() {
    let horizon = limits::FUTURE_MAX_MS;
    for within in [
        NewTrigger { id: "x".repeat(256), ..trigger() },
        NewTrigger { when: Some(FireTime::At(NOW + horizon)), ..trigger() },
        NewTrigger { when: Some(FireTime::After(horizon)), ..trigger() },
        NewTrigger { payload: vec![0; limits::PAYLOAD_BYTES_MAX], ..trigger() },
        NewTrigger { headers: vec![header("n", "v"); 64], ..trigger() },
        NewTrigger { headers: vec![header("n", "v".repeat(16_383))], ..trigger() },
        // A header that HTTP refuses is allowed in a record.
        NewTrigger { headers: vec![header("Host", "internal")], ..trigger() },
    ] {
        assert_eq!(register(within).map(drop), Ok(()));
    }
}

#[test]
fn callback_options_are_written_as_headers() {
    let slow = HttpTarget {
        pool: Some("slow".into()),
        timeout: Some(90_000),
        ..HttpTarget::post("https://h/x")
    };
    let retry = RetryPolicy {
        delays: vec![500, 1_000],
        attempts: Some(9),
        jitter: Some(0),
        final_statuses: vec![404, 422],
    };
    let target = Target::from(slow);
    assert_eq!(check_pool(&target, &["slow".to_owned()]), Ok(()));
    let refusal = check_pool(&target, &["fast".to_owned()]).unwrap_err();
    assert_eq!(refusal.to_string(), "pool: there is no pool slow; topics.pools names fast");
    let headers = instruction_headers(&NewTrigger { target, retry, ..trigger() });
    for (name, value) in [
        ("orloj-pool", "slow"),
        ("orloj-timeout", "90000"),
        ("orloj-retry-delays", "500,1000"),
        ("orloj-retry-attempts", "9"),
        ("orloj-retry-jitter", "0"),
        ("orloj-retry-final-statuses", "404,422"),
    ] {
        assert!(headers.contains(&header(name, value)), "{name} in {headers:?}");
    }
}

#[test]
fn a_cancel_is_a_tombstone() {
    let submission = Submission::cancel("tea").unwrap();
    assert_eq!((submission.value, submission.headers), (None, Vec::new()));
    assert_eq!(Submission::cancel("").unwrap_err().field, "triggerId");
}

#[test]
fn a_value_that_the_owner_would_refuse_is_refused_by_field() {
    let horizon = limits::FUTURE_MAX_MS;
    type TriggerEdit = Box<dyn FnOnce(&mut NewTrigger)>;
    let cases: [(&str, TriggerEdit); 17] = [
        ("triggerId", Box::new(|t| t.id = "x".repeat(257))),
        ("triggerId", Box::new(|t| t.id = "a\nb".to_owned())),
        ("fireAt", Box::new(move |t| t.when = Some(FireTime::At(NOW + horizon + 1)))),
        ("delaySeconds", Box::new(move |t| t.when = Some(FireTime::After(horizon + 1)))),
        ("topic", Box::new(|t| t.target = topic("a b"))),
        ("topic", Box::new(|t| t.target = topic("orloj.ledger"))),
        ("topic", Box::new(|t| t.target = topic("__consumer_offsets"))),
        ("callbackUrl", Box::new(|t| t.target = callback("/relative"))),
        ("callbackUrl", Box::new(|t| t.target = callback("ftp://host/x"))),
        ("callbackUrl", Box::new(|t| t.target = callback(&"http://h/".repeat(300)))),
        ("payload", Box::new(|t| t.payload = vec![0; limits::PAYLOAD_BYTES_MAX + 1])),
        ("headers", Box::new(|t| t.headers = vec![header("orloj-delay", "1")])),
        ("headers", Box::new(|t| t.headers = vec![header("n", "v"); 65])),
        ("headers", Box::new(|t| t.headers = vec![header("n", "v".repeat(16_384))])),
        ("headers", Box::new(|t| t.headers = vec![header("scheduler-x", "1")])),
        ("headers", Box::new(|t| t.headers = vec![header("", "1")])),
        (
            "headers",
            Box::new(|t| {
                t.target = callback("http://h/");
                t.headers = vec![header("Host", "internal")];
            }),
        ),
    ];
    for (field, change) in cases {
        let (refused, reason) = refusal(change);
        assert_eq!(refused, field, "{reason}");
    }
}

#[test]
fn a_time_in_the_past_is_fine() {
    let past = NewTrigger { when: Some(FireTime::At(1)), ..trigger() };
    assert!(register(past).is_ok());
}

#[test]
fn lifecycle_headers_are_validated_as_the_owner_does() {
    let register_with = |headers: &[(&'static str, &str)]| {
        let lifecycle_headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned()));
        register(NewTrigger {
            lifecycle_headers: lifecycle_headers.collect(),
            when: None,
            ..trigger()
        })
    };
    let daily = ("orloj-schedule", r#"{"daily": "09:00"}"#);
    let submission = register_with(&[daily, ("orloj-count", "keep")]).unwrap();
    assert_eq!(submission.headers[0], header(daily.0, daily.1));
    let after = ("orloj-after", "a,b");
    assert!(register_with(&[after, ("orloj-after-timeout", "1h"), ("orloj-retain", "7d")]).is_ok());
    for (headers, field, reason) in [
        (&[daily, ("orloj-expire-after", "1h")][..], "expireAfter", "misfire"),
        (&[("orloj-schedule", r#"{"cron": "* * 31 2 *"}"#)], "schedule", "it never comes"),
        (&[("orloj-schedule", r#"{"daily": "9:00", "end": 5}"#)], "schedule", "even once"),
        (&[after, ("orloj-count", "keep")], "count", "there is none"),
        (&[("orloj-after", "tea")], "after", "cannot wait for itself"),
        (&[after, ("orloj-after-timeout", "soon")], "after", "after.timeout is \"soon\""),
        (&[daily, after], "after", "does not wait for others"),
        (&[daily, ("orloj-on-failure", "skip")], "onFailure", "there is none"),
        (&[after, ("orloj-retain", "2y")], "retain", "give milliseconds"),
        (&[after, ("orloj-priority", "256")], "priority", "255 (fires first)"),
    ] {
        let refusal = register_with(headers).unwrap_err();
        assert_eq!(refusal.field, field, "{refusal}");
        assert!(refusal.reason.contains(reason), "{refusal}");
    }
}

#[test]
fn ids_with_commas_are_a_list() {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    assert_eq!(after_header_value(&ids(&["a", "b"])), "a,b");
    assert_eq!(after_header_value(&ids(&["a,b", "c"])), r#"["a,b","c"]"#);
    assert_eq!(after_header_value(&ids(&["[c"])), r#"["[c"]"#);
    assert_eq!(after_header_value(&ids(&[" a", "b"])), r#"[" a","b"]"#);
    let lifecycle_headers = vec![("orloj-after", after_header_value(&ids(&["a,b", "[c"])))];
    let submission = register(NewTrigger { lifecycle_headers, ..trigger() }).unwrap();
    let [registration] = &RegistrationValidator::new().validate(&submission, NOW).unwrap()[..]
    else {
        panic!()
    };
    assert_eq!(registration.after.as_ref().unwrap().ids, ["a,b", "[c"].map(Text::from));
}

#[test]
fn a_command_is_an_empty_value_and_a_header() {
    for (command, word) in
        [(Command::Pause, "pause"), (Command::Resume, "resume"), (Command::FireNow, "fire-now")]
    {
        let submission = Submission::command("tea", command).unwrap();
        assert_eq!(submission.value, Some(Vec::new()), "null would cancel");
        assert_eq!(submission.headers, [header("orloj-command", word)]);
        assert_eq!(RegistrationValidator::new().validate(&submission, NOW), Ok(Vec::new()));
    }
    assert_eq!(Submission::command("", Command::Pause).unwrap_err().field, "triggerId");
}

#[test]
fn each_registration_of_a_batch_is_validated() {
    let batched = batch(
        r#"[{"id": "a", "topic": "t", "delay": "1s"},
            {"id": "b", "topic": "t", "after": ["a"]}]"#,
    );
    let BatchSubmission { submission, ids } = batched.unwrap();
    assert_eq!((ids, submission.id.as_str()), (vec!["a".to_owned(), "b".to_owned()], "a"));
    assert_eq!(submission.headers, [header("orloj-batch", "true")]);
    let a = r#"{"id": "a", "topic": "t", "delay": "1s"}"#;
    for (json, reason) in [
        ("{}".to_owned(), "give a JSON array"),
        ("[]".to_owned(), "has 0 registrations"),
        (format!("[{}]", vec![a; 1_001].join(",")), "has 1001 registrations"),
        (format!("[{a}, {a}]"), "a is in it twice"),
        (r#"[{"topic": "t", "delay": "1s"}]"#.to_owned(), "with an id"),
        (r#"[{"id": "a", "topic": "t"}]"#.to_owned(), "a: nothing says when"),
        (r#"[{"id": "a", "topic": "orloj.ledger", "delay": 1}]"#.to_owned(), "a: topic: "),
        (
            r#"[{"id": "a", "target": {"url": "http://h/", "pool": "p"}, "delay": 1}]"#.to_owned(),
            "a: pool: there is no pool p",
        ),
        (" ".repeat(1_000_001), "split it"),
    ] {
        let refusal = batch(&json).unwrap_err();
        assert!(refusal.reason.contains(reason), "{refusal}");
    }
}
