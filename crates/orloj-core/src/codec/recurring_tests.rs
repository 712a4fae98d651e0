//! What goes beyond one time and one trigger, in each form: schedules, dependencies,
//! commands, batches.

use super::registration::*;
use super::registration_tests::{
    NOW, headers_reason, json_reason, plain, record, registration, request, try_read, unreadable,
};
use super::{headers_form, json_form};
use crate::model::input::{CountPolicy, Registration, Request};
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::partitioner::Partitioner;
use crate::model::schedule::Schedule;

/// The same schedule in each form.
fn scheduled(headers: &[(&str, &str)], envelope: Option<&str>) -> Result<Registration, String> {
    let raw = record(None, headers);
    let mut draft = headers_form::read(&raw.headers)?;
    if let Some(json) = envelope {
        json_form::read(json.as_bytes(), &mut draft)?;
    }
    draft.into_registration("order-7".into(), NOW)
}

#[test]
fn a_schedule_is_read_in_every_form_and_due_by_the_records_own_time() {
    let to = ("orloj-target-topic", "t");
    let json = r#"{"cron":"0 9 * * *","zone":"Europe/Prague","jitter":"PT1H"}"#;
    let schedule = Schedule::from_json(json).unwrap();
    let first = schedule.first(NOW).unwrap();
    let mut expected = plain(schedule.jittered("order-7", first), "t", b"");
    expected.definition.payload = None;
    expected.schedule = Some(Box::new(schedule));
    assert_eq!(scheduled(&[to, ("orloj-schedule", json)], None), Ok(expected.clone()));
    let envelope = format!(r#"{{"topic": "t", "schedule": {json}}}"#);
    assert_eq!(scheduled(&[], Some(&envelope)), Ok(expected));

    let cron = scheduled(&[to, ("orloj-cron", "0 9 * * *"), ("orloj-zone", "Europe/Prague")], None);
    let cron = cron.unwrap();
    assert_eq!(cron.fire_at, first, "without jitter");
    let expected = r#"{"cron":"0 9 * * *","zone":"Europe/Prague"}"#;
    assert_eq!(cron.schedule.unwrap().to_json(), expected);
    let in_utc = scheduled(&[to, ("orloj-cron", "0 9 * * *")], None).unwrap();
    assert_eq!(in_utc.fire_at, first + 3_600_000);

    let open = scheduled(&[to, ("orloj-schedule", r#"{"every": "PT5M"}"#)], None).unwrap();
    assert_eq!(open.fire_at, NOW);
    assert_eq!(open.schedule.unwrap().next(NOW), Some(NOW + 300_000), "it is anchored");
}

#[test]
fn an_impossible_schedule_is_refused() {
    let to = ("orloj-target-topic", "t");
    let table: [(&[(&str, &str)], &str); 6] = [
        (&[to, ("orloj-cron", "0 9 * * *"), ("orloj-delay", "1s")], "both say when"),
        (&[to, ("orloj-delay", "1s"), ("orloj-zone", "UTC")], "the zone of orloj-cron"),
        (&[to, ("orloj-cron", "0 9 * * FOO")], "\"foo\" is no day of the week"),
        (&[to, ("orloj-cron", "0 9 * * *"), ("orloj-zone", "Mars")], "no such zone"),
        (&[to, ("orloj-schedule", r#"{"daily": "9:00", "end": 5}"#)], "ends before it comes"),
        (
            &[to, ("orloj-schedule", r#"{"daily": "9:00", "start": "2034-01-01"}"#)],
            "more than ten years ahead",
        ),
    ];
    for (headers, expected) in table {
        let reason = scheduled(headers, None).unwrap_err();
        assert!(reason.contains(expected), "{headers:?}: {reason}");
        assert_eq!(headers_reason(headers), reason);
    }
}

#[test]
fn a_command_is_a_header_and_an_empty_value() {
    for (name, command) in
        [("pause", Command::Pause), ("resume", Command::Resume), ("fire-now", Command::FireNow)]
    {
        let command_request = request(&record(Some(b""), &[("orloj-command", name)]));
        assert_eq!(
            command_request,
            Request::Command { id: "order-7".into(), command, caller: None }
        );
    }
    let unknown = unreadable(&record(Some(b""), &[("orloj-command", "stop")]));
    assert!(unknown.reason.contains("give pause, resume or fire-now"), "{}", unknown.reason);
    let full = unreadable(&record(Some(b"x"), &[("orloj-command", "pause")]));
    assert!(full.reason.contains("an empty value"), "{}", full.reason);
}

#[test]
fn a_batch_is_a_record_for_each_of_its_registrations() {
    let value = br#"[{"id": "a", "delay": 0, "topic": "t"}, {"id": "b", "nonsense": 1}]"#;
    let headers = [("orloj-batch", "true"), ("orloj-ack", "true"), ("traceparent", "00-ab")];
    let raw = RawRecord { key: None, ..record(Some(value), &headers) };
    let read = try_read(&raw, Partitioner::Murmur2).unwrap().request;
    let Request::Batch(forwards) = read else { panic!("{read:?}") };
    let keys: Vec<_> = forwards.iter().map(|forward| forward.key.as_ref()).collect();
    assert_eq!(keys, [b"a", b"b"]);
    let first = &forwards[0];
    assert_eq!(Some(first.partition), Partitioner::Murmur2.partition(b"a", 7));
    assert_eq!(first.value.as_deref(), Some(&br#"{"id": "a", "delay": 0, "topic": "t"}"#[..]));
    let names: Vec<_> = first.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(names, ["orloj-ack", "traceparent", "orloj-forwarded"]);
    for (value, why) in [
        (&b"{}"[..], "give a JSON array"),
        (b"[]", "the batch has 0 registrations"),
        (b"[{}]", "a JSON object with an id"),
        (br#"[{"id": 5}]"#, "a JSON object with an id"),
        (b"[5]", "a JSON object with an id"),
    ] {
        let raw = RawRecord { value: Some(value), ..raw.clone() };
        let reason = unreadable(&raw).reason;
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn lifecycle_fields_are_read_in_each_form() {
    let json = br#"{"id": "order-7", "topic": "t", "expireAfter": "1h", "retain": 5000,
        "after": {"ids": ["a", "b", "a"], "onFailure": "skip", "timeout": "30s"}}"#;
    let headers = [
        ("orloj-target-topic", "t"),
        ("orloj-expire-after", "1h"),
        ("orloj-retain", "5s"),
        ("orloj-after", "a, b, a"),
        ("orloj-on-failure", "skip"),
        ("orloj-after-timeout", "30s"),
    ];
    let ids = vec!["a".into(), "b".into()];
    let after = Dependencies { ids, on_failure: OnFailure::Skip, timeout: 30_000 };
    let mut expected = plain(NOW, "t", b"");
    (expected.expire_after, expected.retain) = (Some(3_600_000), Some(5_000));
    expected.after = Some(Box::new(after));
    assert_eq!(registration(&record(Some(b""), &headers)), expected);
    expected.definition.payload = None;
    assert_eq!(registration(&record(Some(json), &[])), expected);

    let short = br#"{"topic": "t", "after": ["a"]}"#;
    let after = registration(&record(Some(short), &[])).after.unwrap();
    assert_eq!((after.on_failure, after.timeout), (OnFailure::Fail, 24 * 3_600_000));
    let counted = br#"{"topic": "t", "schedule": {"every": "PT1S"}, "count": "keep"}"#;
    assert_eq!(registration(&record(Some(counted), &[])).count, CountPolicy::Keep);
}

#[test]
fn conflicting_fields_are_refused() {
    let schedule = r#""topic": "t", "schedule": {"every": "PT1S"}"#;
    let many: Vec<_> = (0..10_000).map(|n| format!("{:?}", format!("t{n}"))).collect();
    for (fields, why) in [
        (
            r#""topic": "t", "schedule": {"daily": {"at": {"at": {"at": {"at": {"at": "9:00"}}}}}}"#
                .to_owned(),
            "schedule.daily.at is",
        ),
        (r#""topic": "t", "after": {"ids": [[[[[["a"]]]]]]}"#.to_owned(), "after.ids is"),
        (format!(r#"{schedule}, "expireAfter": 5"#), "misfire"),
        (format!(r#"{schedule}, "after": ["a"]"#), "does not wait for others"),
        (r#""delay": 0, "topic": "t", "count": "keep""#.to_owned(), "count is of a schedule"),
        (r#""topic": "t", "after": ["order-7"]"#.to_owned(), "cannot wait for itself"),
        (r#""topic": "t", "after": []"#.to_owned(), "names no trigger"),
        (r#""topic": "t", "after": {"ids": ["a"], "onFailure": "x"}"#.to_owned(), "skip or fail"),
        (r#""topic": "t", "delay": 0, "after": {"timeout": 5}"#.to_owned(), "there is none"),
        (r#""topic": "t", "delay": 0, "retain": 0"#.to_owned(), "a year"),
        (r#""topic": "t", "delay": 0, "id": "other""#.to_owned(), "not the record's key"),
        (format!(r#""topic": "t", "after": [{}]"#, many.join(",")), "more than 256 triggers"),
        (r#""topic": "t", "delay": 0, "expireAfter": "PT0S""#.to_owned(), "ten years"),
    ] {
        let reason = json_reason(&format!("{{{fields}}}"));
        assert!(reason.contains(why), "{why}: {reason}");
    }
}
