//! Schedules as a whole: what is accepted, its occurrences, what is refused, general properties.

use proptest::prelude::*;

use super::*;

pub(super) fn ms(text: &str) -> Timestamp {
    let moment: jiff::Timestamp = text.parse().unwrap();
    moment.as_millisecond() as Timestamp
}

fn read(json: &str) -> Schedule {
    Schedule::from_json(json).unwrap_or_else(|reason| panic!("{json}: {reason}"))
}

/// The first occurrences from a time on, as the zone's clocks show them.
fn shown(json: &str, from: &str, count: usize) -> Vec<String> {
    let schedule = read(json).anchored(ms(from));
    let local = |occurrence: Occurrence| {
        let at = moment(occurrence.at).unwrap().to_zoned(schedule.zone().clone());
        at.strftime("%m-%d %H:%M").to_string()
    };
    schedule.occurrences(ms(from)).take(count).map(local).collect()
}

#[test]
fn every_form_gives_its_occurrences() {
    let from = "2026-01-30T12:00:00Z";
    let table: [(&str, &[&str]); 11] = [
        (r#"{"every": "PT90M"}"#, &["01-30 12:00", "01-30 13:30", "01-30 15:00"]),
        (r#"{"every": 60000}"#, &["01-30 12:00", "01-30 12:01"]),
        (r#"{"every": "P2D"}"#, &["01-30 12:00", "02-01 12:00"]),
        (r#"{"every": "P1M"}"#, &["01-30 12:00", "02-28 12:00", "03-30 12:00"]),
        (r#"{"cron": "0 9 * * MON-FRI"}"#, &["02-02 09:00", "02-03 09:00"]),
        (r#"{"daily": ["9:00", "17:30"]}"#, &["01-30 17:30", "01-31 09:00", "01-31 17:30"]),
        (
            r#"{"weekly": {"on": "weekends", "at": "8:00"}}"#,
            &["01-31 08:00", "02-01 08:00", "02-07 08:00"],
        ),
        (
            r#"{"weekly": {"on": ["Mon", "wednesday"], "at": "8:00"}}"#,
            &["02-02 08:00", "02-04 08:00", "02-09 08:00"],
        ),
        (
            r#"{"monthly": {"on": "first Monday", "at": "0:00"}}"#,
            &["02-02 00:00", "03-02 00:00", "04-06 00:00"],
        ),
        (
            r#"{"monthly": {"on": [31, "last weekday"], "at": "0:00"}}"#,
            &["01-31 00:00", "02-27 00:00", "02-28 00:00", "03-31 00:00"],
        ),
        (
            r#"{"monthly": {"on": 1, "months": ["jan", "jul"], "at": "0:00"}}"#,
            &["07-01 00:00", "01-01 00:00", "07-01 00:00"],
        ),
    ];
    for (json, expected) in table {
        assert_eq!(shown(json, from, expected.len()), expected, "{json}");
    }
}

#[test]
fn start_and_end_bound_it() {
    let json = r#"{"daily": "9:00", "zone": "Europe/Prague",
                   "start": "2026-03-01", "end": "2026-03-03T09:00"}"#;
    // From local midnight on, and before 9:00 of the last day.
    assert_eq!(shown(json, "2026-01-01T00:00:00Z", 9), ["03-01 09:00", "03-02 09:00"]);
    assert_eq!(shown(json, "2026-03-02T08:00:00Z", 9), ["03-02 09:00"]);
    assert_eq!(shown(json, "2026-03-02T08:00:00.001Z", 9), [""; 0]);
    let schedule = read(json);
    assert_eq!(schedule.next(0), schedule.first(0), "nothing comes before the start");
}

#[test]
fn steps_count_from_the_start_or_the_registration() {
    let open = read(r#"{"every": "PT10M"}"#);
    let registered = ms("2026-01-01T00:03:00Z");
    assert_eq!(open.first(registered), Some(registered));
    let anchored = open.anchored(registered);
    assert_eq!(anchored.next(registered + 1), Some(registered + 600_000));
    let started = read(r#"{"every": "PT10M", "start": "2026-01-01T00:00:00Z"}"#);
    assert_eq!(started.clone().anchored(registered), started);
    assert_eq!(started.first(registered), Some(ms("2026-01-01T00:10:00Z")));
    let cron = read(r#"{"cron": "* * * * *"}"#);
    assert_eq!(cron.clone().anchored(registered), cron, "a calendar needs no anchor");
}

/// An anchor is an occurrence even in the second pass of a doubled hour, otherwise skipped.
#[test]
fn an_anchor_is_always_an_occurrence() {
    let json = r#"{"every": "P1D", "zone": "Europe/Prague", "start": "2026-10-25T01:30:00Z"}"#;
    assert_eq!(shown(json, "2026-10-25T01:30:00Z", 2), ["10-25 02:30", "10-26 02:30"]);
}

#[test]
fn other_fields_and_their_defaults_are_read() {
    let plain = read(r#"{"daily": "9:00"}"#);
    assert_eq!((plain.max_executions(), plain.pause_after()), (None, None));
    assert_eq!((plain.misfire(), plain.overlap()), (Misfire::Latest, Overlap::Allow));
    assert_eq!(plain.dst(), Dst { gap: DstGap::Shift, overlap: DstOverlap::First });
    assert_eq!(plain.zone().iana_name(), Some("UTC"));
    let hourly = Dst { gap: DstGap::Skip, overlap: DstOverlap::Both };
    assert_eq!(read(r#"{"cron": "*/5 * * * *"}"#).dst(), hourly);
    assert_eq!(read(r#"{"cron": "*/5 0-23 * * *"}"#).dst(), hourly);
    assert_eq!(read(r#"{"cron": "*/5 */2 * * *"}"#).dst(), plain.dst());
    let full = concat!(
        r#"{"cron":"0 9 * * *","zone":"Europe/Prague","maxExecutions":7,"#,
        r#""dst":{"gap":"shift","overlap":"last"},"jitter":"PT30S","misfire":{"all":9},"#,
        r#""overlap":"queue","pauseAfter":3}"#
    );
    let brief = full.replace(r#""gap":"shift","#, "").replace("PT30S", "30s");
    let read = read(&brief.replace("Europe/Prague", "europe/prague"));
    assert_eq!((read.max_executions(), read.pause_after()), (Some(7), Some(3)));
    assert_eq!((read.misfire(), read.overlap()), (Misfire::All { max: 9 }, Overlap::Queue));
    assert_eq!(read.dst(), Dst { gap: DstGap::Shift, overlap: DstOverlap::Last });
    assert_eq!(read.to_json(), full);
}

#[test]
fn canonical_json_is_read_as_the_same_schedule() {
    let table = [
        (
            r#"{"every": "1h30m", "start": 1800000000123}"#,
            r#"{"every":"PT1H30M","start":"2027-01-15T08:00:00.123Z"}"#,
        ),
        (r#"{"cron": " 0  9 * * MON-FRI ", "dst": {}}"#, r#"{"cron":"0 9 * * MON-FRI"}"#),
        (r#"{"daily": "9:00", "zone": "utc"}"#, r#"{"daily":{"at":["9:00"]}}"#),
        (
            r#"{"weekly": {"at": ["9:00"], "on": "Mon-Fri"}, "overlap": "allow"}"#,
            r#"{"weekly":{"on":["mon-fri"],"at":["9:00"]}}"#,
        ),
        (
            r#"{"monthly": {"on": [1, "LAST  Friday"], "at": "9:00", "months": "jan"}}"#,
            r#"{"monthly":{"on":["1","last friday"],"months":["jan"],"at":["9:00"]}}"#,
        ),
        (r#"{"daily": "9:00", "jitter": "1h", "exact": true}"#, r#"{"daily":{"at":["9:00"]}}"#),
        (
            r#"{"daily": "9:00", "misfire": "skip"}"#,
            r#"{"daily":{"at":["9:00"]},"misfire":"skip"}"#,
        ),
        (
            r#"{"daily": "9:00", "end": 5}"#,
            r#"{"daily":{"at":["9:00"]},"end":"1970-01-01T00:00:00.005Z"}"#,
        ),
    ];
    for (json, canonical) in table {
        let schedule = read(json);
        assert_eq!(schedule.to_json(), canonical);
        assert_eq!(read(canonical), schedule);
        let quoted = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&quoted).unwrap(), schedule);
    }
}

#[test]
fn jitter_is_the_same_for_the_same_occurrence_of_a_trigger() {
    let schedule = read(r#"{"daily": "9:00", "jitter": "PT10M"}"#);
    let day = 86_400_000;
    let moved: Vec<_> = (1..=1_000).map(|n| schedule.jittered("order-7", n * day)).collect();
    for (n, at) in (1..).zip(&moved) {
        assert!(at.abs_diff(n * day) <= 600_000);
        assert_eq!(schedule.jittered("order-7", n * day), *at);
    }
    let distances: Vec<_> =
        (1..).zip(&moved).map(|(n, at)| *at as i64 - (n * day) as i64).collect();
    assert!(distances.iter().any(|d| *d > 540_000) && distances.iter().any(|d| *d < -540_000));
    let mean = distances.iter().sum::<i64>() / 1_000;
    assert!(mean.abs() < 60_000, "{mean}");
    assert_ne!(schedule.jittered("order-8", day), moved[0]);
    // What owners of two versions must agree on is written down.
    assert_eq!(moved[0], 86_203_700);

    assert!(schedule.jittered("order-7", 5) <= 600_005, "never below the epoch");
    let exact = read(r#"{"daily": "9:00", "jitter": "PT10M", "exact": true}"#);
    assert_eq!(exact.jittered("order-7", day), day);
    let bounded =
        read(r#"{"daily": "9:00", "jitter": "PT10M", "start": 86400000, "end": 86400001}"#);
    assert_eq!(bounded.jittered("order-7", day), day, "no earlier than start, before end");
}

#[test]
fn the_latest_occurrence_is_found_without_visiting_all() {
    let start = ms("2026-01-01T00:00:00Z");
    let year = 365 * 86_400_000;
    let secondly = read(r#"{"every": "PT1S", "start": "2026-01-01T00:00:00Z"}"#);
    let found = secondly.latest(start, start + 10 * year + 999);
    assert_eq!(found, Some((start + 10 * year, 10_000)));
    assert_eq!(secondly.latest(start, start + 3_500), Some((start + 3_000, 2)));
    assert_eq!(secondly.latest(start, start + 999), None);
    let ended = read(r#"{"every": "PT1S", "start": "2026-01-01", "end": "2026-01-01T00:00:10"}"#);
    assert_eq!(ended.latest(start, start + year), Some((start + 9_000, 8)));

    let cron = read(r#"{"cron": "*/5 * * * * *"}"#);
    assert_eq!(cron.latest(start, start + 10 * year), Some((start + 10 * year, 10_000)));
    let daily = read(r#"{"daily": "2:30", "zone": "Europe/Prague"}"#);
    let (last, now) = (ms("2026-03-20T01:30:00Z"), ms("2026-03-29T01:00:00Z"));
    assert_eq!(daily.latest(last, now), Some((now, 8)), "the latest was shifted");
    assert_eq!(daily.latest(last, now - 1), Some((ms("2026-03-28T01:30:00Z"), 7)));
    assert_eq!(daily.latest(now, now + 3_600_000), None);
    let ended = read(r#"{"daily": "2:30", "end": "2026-01-10"}"#);
    assert_eq!(ended.latest(start, start + year), Some((ms("2026-01-09T02:30:00Z"), 8)));
}

/// What is missed in ten years costs about what is missed in a week.
#[test]
fn missed_occurrences_are_counted_and_not_visited() {
    let start = ms("2026-01-01T00:00:00Z");
    let week = 7 * 86_400_000;
    for form in [
        r#""every": "PT1S""#,
        r#""every": "P1D""#,
        r#""cron": "* * * * *""#,
        r#""cron": "* * * * * *", "zone": "Europe/Prague""#,
        r#""daily": ["9:00", "2:30"], "zone": "Europe/Prague""#,
    ] {
        let schedule = read(&format!("{{{form}}}")).anchored(start);
        for passed in [week, 520 * week] {
            let (_, work) = work::tests::counted(|| schedule.latest(start, start + passed));
            assert!(work <= 100, "{form}: {work} occurrences computed for the latest");
            let (_, work) =
                work::tests::counted(|| schedule.first_of_latest(start, start + passed, 5_000));
            assert!(work <= 100, "{form}: {work} occurrences computed for the latest 5,000");
        }
    }
}

#[test]
fn errors_name_the_field_and_how_to_fix_it() {
    let table = [
        ("", "schedule is \"\": give a JSON object"),
        ("[]", "give a JSON object"),
        ("{}", "give one of schedule.every, schedule.cron"),
        (r#"{"cron": "* * * * *", "daily": "9:00"}"#, "cron and schedule.daily both say when"),
        (r#"{"corn": "* * * * *", "daily": "9:00"}"#, "did you mean schedule.cron?"),
        (r#"{"cron": 5}"#, "schedule.cron is \"5\": give a string"),
        (r#"{"cron": "*/0 * * * *"}"#, "schedule.cron is \"*/0 * * * *\": the minute \"*/0\" has"),
        (r#"{"cron": "0 0 31 2 *"}"#, "it never comes: no month it names has such a day"),
        (r#"{"cron": "0 0 30 2 ?"}"#, "it never comes"),
        (r#"{"cron": "0 0 31 4,6,9,11 *"}"#, "it never comes"),
        (r#"{"cron": "0 0 30W 2 *"}"#, "it never comes"),
        (r#"{"every": "P1DT1H"}"#, "schedule.every is \"P1DT1H\": months, days"),
        (r#"{"every": 999}"#, "give a second or more"),
        (r#"{"every": -5}"#, "give a string"),
        (r#"{"every": "PT1H", "dst": {"gap": "skip"}}"#, "real time knows no change of clocks"),
        (
            r#"{"every": "PT1H", "jitter": "31m"}"#,
            "schedule.jitter is \"PT31M\": give at most PT30M",
        ),
        (r#"{"daily": "9:00", "jitter": "13h"}"#, "give at most PT12H"),
        (r#"{"daily": "9"}"#, "give a time of day such as 09:00"),
        (r#"{"daily": "24:00"}"#, "schedule.daily is \"24:00\": give a time of day"),
        (r#"{"daily": "9:00 pm"}"#, "give a time of day"),
        (r#"{"daily": "+9:00"}"#, "give a time of day"),
        (r#"{"daily": "009:00"}"#, "give a time of day"),
        (r#"{"daily": []}"#, "schedule.daily is missing"),
        (r#"{"daily": {"att": "9:00"}}"#, "schedule.daily.at is missing"),
        (r#"{"daily": {"at": "9:00", "on": 1}}"#, "did you mean schedule.daily.at?"),
        (
            r#"{"daily": {"at": {"at": {"at": {"at": {"at": "9:00"}}}}}}"#,
            "schedule.daily.at is \"{\\\"at\\\": {\\\"at\\\"",
        ),
        (r#"{"weekly": {"at": "9:00"}}"#, "schedule.weekly.on is missing"),
        (r#"{"weekly": {"on": "1-5", "at": "9:00"}}"#, "give names such as mon"),
        (r#"{"weekly": {"on": "someday", "at": "9:00"}}"#, "\"someday\" is no day of the week"),
        (r#"{"weekly": {"on": "mon"}}"#, "schedule.weekly.at is missing"),
        (r#"{"monthly": {"on": 31, "months": "feb", "at": "9:00"}}"#, "write \"last\""),
        (r#"{"monthly": {"on": 32, "at": "9:00"}}"#, "give 1 to 31"),
        (r#"{"monthly": {"on": 0, "at": "9:00"}}"#, "give 1 to 31"),
        (r#"{"monthly": {"on": "sixth monday", "at": "9:00"}}"#, "give 1 to 31"),
        (r#"{"monthly": {"on": "first moonday", "at": "9:00"}}"#, "is no day of the week"),
        (r#"{"monthly": {"on": "second weekday", "at": "9:00"}}"#, "is no day of the week"),
        (r#"{"monthly": {"at": "9:00"}}"#, "schedule.monthly.on is missing"),
        (r#"{"daily": "9:00", "zone": "Europe/Pragu"}"#, "did you mean Europe/Prague?"),
        (r#"{"daily": "9:00", "zone": "Etc/Unknown"}"#, "no such zone"),
        (r#"{"daily": "9:00", "zone": "+02:00"}"#, "no such zone"),
        (r#"{"daily": "9:00", "start": "soon"}"#, "schedule.start is \"soon\": give milliseconds"),
        (r#"{"daily": "9:00", "start": 999999999999999}"#, "before the year 10000"),
        (
            r#"{"daily": "9:00", "start": "2026-02-01", "end": "2026-02-01"}"#,
            "schedule.end is \"2026-02-01T00:00:00Z\": it is not after schedule.start",
        ),
        (r#"{"daily": "9:00", "maxExecutions": 0}"#, "give a whole number from 1 on"),
        (r#"{"daily": "9:00", "pauseAfter": "3"}"#, "schedule.pauseAfter is"),
        (r#"{"daily": "9:00", "dst": {"gap": "first"}}"#, "give skip or shift"),
        (r#"{"daily": "9:00", "dst": {"overlap": "skip"}}"#, "give first, last or both"),
        (r#"{"daily": "9:00", "dst": {"gaps": "skip"}}"#, "did you mean schedule.dst.gap?"),
        (r#"{"daily": "9:00", "misfire": "never"}"#, "give \"skip\", \"latest\" or"),
        (r#"{"daily": "9:00", "misfire": {"all": 100000}}"#, "give at most 86400"),
        (r#"{"daily": "9:00", "overlap": "first"}"#, "give allow, skip or queue"),
        (r#"{"daily": "9:00", "exact": 1}"#, "give true or false"),
    ];
    for (json, expected) in table {
        let reason = Schedule::from_json(json).unwrap_err();
        assert!(reason.contains(expected), "{json}: {reason}");
    }
    let long = format!(r#"{{"daily": [{}"9:00"]}}"#, "\"9:00\",".repeat(600));
    assert!(Schedule::from_json(&long).unwrap_err().contains("at most 4096"));
}

fn any_field(min: u32, max: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just("*".to_owned()),
        4 => (min..=max).prop_map(|n| n.to_string()),
        2 => (min..=max, min..=max).prop_map(|(a, b)| format!("{a}-{b}")),
        2 => (2..=max / 2).prop_map(|step| format!("*/{step}")),
        1 => (min..=max, min..=max).prop_map(|(a, b)| format!("{a},{b}")),
    ]
}

pub(super) fn any_cron() -> impl Strategy<Value = String> {
    let day = prop_oneof![
        6 => any_field(1, 31),
        1 => Just("L".to_owned()),
        1 => Just("LW".to_owned()),
        1 => (1..=31).prop_map(|day| format!("{day}W")),
    ];
    let weekday = prop_oneof![
        6 => any_field(0, 6),
        1 => (0..=6, 1..=5).prop_map(|(day, nth)| format!("{day}#{nth}")),
        1 => (0..=6).prop_map(|day| format!("{day}L")),
    ];
    let time = (any_field(0, 59), any_field(0, 59), any_field(0, 23));
    (time, day, any_field(1, 12), weekday).prop_map(
        |((second, minute, hour), day, month, weekday)| {
            format!("{second} {minute} {hour} {day} {month} {weekday}")
        },
    )
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let zones = ["UTC", "Europe/Prague", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata"];
    let form = prop_oneof![
        4 => any_cron().prop_map(|cron| format!(r#""cron": "{cron}""#)),
        1 => (1_000..1_000_000_000_u64).prop_map(|ms| format!(r#""every": {ms}"#)),
        1 => (1..400).prop_map(|days| format!(r#""every": "P{days}D""#)),
        1 => (1..40).prop_map(|months| format!(r#""every": "P{months}M""#)),
    ];
    let dst = (
        proptest::sample::select(vec!["skip", "shift"]),
        proptest::sample::select(vec!["first", "last", "both"]),
    );
    let start = 1_400_000_000_000..2_200_000_000_000_u64;
    (form, proptest::sample::select(zones.to_vec()), dst, start).prop_filter_map(
        "it never comes",
        |(form, zone, (gap, overlap), start)| {
            let json = format!(r#"{{{form}, "zone": "{zone}", "start": {start}"#);
            let dst = format!(r#"{json}, "dst": {{"gap": "{gap}", "overlap": "{overlap}"}}}}"#);
            Schedule::from_json(&dst).or_else(|_| Schedule::from_json(&format!("{json}}}"))).ok()
        },
    )
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(
        text in ".{0,60}",
        cron in any_cron(),
        (junk, at) in ("[0-9*,/LW#?A-Za-zé-]{1,6}", 0..6_usize),
    ) {
        let _ = Schedule::from_json(&text);
        let mut fields: Vec<_> = cron.split(' ').collect();
        fields[at] = &junk;
        let cron = fields.join(" ");
        for form in ["cron", "every", "daily", "zone", "start"] {
            let text = serde_json::json!({ form: text, "cron": cron });
            let _ = Schedule::from_json(&text.to_string());
        }
        let _ = Schedule::from_cron(&cron, Some(&text));
    }

    #[test]
    fn no_time_makes_it_panic(schedule in any_schedule(), a in any::<u64>(), b in any::<u64>()) {
        let _ = (schedule.first(a), schedule.next(a), schedule.jittered("a", a));
        let _ = schedule.latest(a.min(b), a.max(b));
    }

    #[test]
    fn any_schedule_is_read_back_from_its_json(schedule in any_schedule()) {
        prop_assert_eq!(Schedule::from_json(&schedule.to_json()), Ok(schedule));
    }

    #[test]
    fn occurrences_are_strictly_increasing(
        schedule in any_schedule(),
        registered in 1_400_000_000_000..2_200_000_000_000_u64,
    ) {
        let mut last = None;
        for occurrence in schedule.occurrences(registered).take(50) {
            prop_assert!(occurrence.at >= registered && Some(occurrence.at) > last);
            last = Some(occurrence.at);
        }
    }

    /// Nothing is between an occurrence and the next: asking from anywhere between finds the same.
    #[test]
    fn no_occurrence_is_skipped(schedule in any_schedule(), part in 0.0..1.0) {
        let mut occurrences = schedule.occurrences(0);
        let (Some(one), Some(other)) = (occurrences.next(), occurrences.nth(20)) else {
            return Ok(());
        };
        let between = one.at + ((other.at - one.at) as f64 * part) as u64;
        let next = schedule.next(between).unwrap();
        let walked = schedule.occurrences(0).find(|occurrence| occurrence.at > between);
        prop_assert_eq!(Some(next), walked.map(|occurrence| occurrence.at));
        let latest = schedule.latest(one.at - 1, between).unwrap().0;
        prop_assert!(latest <= between && schedule.next(latest) == Some(next));
    }
}
