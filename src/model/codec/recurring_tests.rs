//! What a registration with a schedule is read as, in each form.

use super::registration_tests::{NOW, headers_reason, plain, record};
use super::{headers_form, json_form};
use crate::model::input::Registration;
use crate::model::schedule::Schedule;

/// What each form says of a schedule.
fn scheduled(headers: &[(&str, &str)], envelope: Option<&str>) -> Result<Registration, String> {
    let raw = record(None, headers);
    let mut draft = headers_form::read(&raw.headers)?;
    if let Some(json) = envelope {
        json_form::read(json.as_bytes(), &mut draft)?;
    }
    draft.register("order-7".into(), NOW)
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
fn a_schedule_that_cannot_be_kept_is_refused() {
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
