//! Batches, dependencies and commands as a person at a terminal sees them, on a real Kafka.
//!
//! Invariant: what docs/guides/dependencies.md shows is registered as it stands there; only names
//! of topics differ.

use std::time::Duration;

use orloj::model::outcome::OutcomeKind;

use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const PAGE: &str = include_str!("../../docs/guides/dependencies.md");
const DEADLINE: Duration = Duration::from_secs(60);

/// What follows from a settlement is in another transaction: at least so much later, in ms.
const DUE_TOLERANCE_MS: u64 = 1;

/// The page's first batch, into a topic of the test's own.
fn pipeline(cluster: &TestCluster) -> String {
    let (_, rest) = PAGE.split_once("```json file=pipeline.json\n").unwrap();
    let (json, _) = rest.split_once("```").unwrap();
    let (_, target) = cluster.target();
    json.replace("\"jobs\"", &format!("\"{target}\""))
}

#[test]
fn a_documented_batch_fires_in_order() {
    let cluster = TestCluster::new("batch");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipeline.json");
    std::fs::write(&file, pipeline(&cluster)).unwrap();

    let settings = cluster.settings.clone().set("gateway.answer_timeout", "30s");
    let (said, ok) = settings.run(&["register", "--batch", file.to_str().unwrap()]);
    assert!(ok, "{said}");
    let ids = ["extract-orders", "extract-items", "join", "report", "index", "clean-up"];
    for id in ids {
        let line = format!("{id}: accepted: fires at ");
        assert!(said.lines().any(|said| said.starts_with(&line)), "{id}: {said}");
    }
    assert!(said.contains("all 6 are registered"), "{said}");

    let fires = until("all of the batch to fire", DEADLINE, || {
        Some(cluster.fires()).filter(|fires| fires.len() >= ids.len())
    });
    assert_eq!(fires.len(), ids.len(), "{fires:?}");
    let at = |id: &str| fires.iter().find(|fire| fire.trigger == id).unwrap().visible;
    for (before, after) in [
        ("extract-items", "join"),
        ("extract-orders", "join"),
        ("join", "report"),
        ("report", "index"),
        ("index", "clean-up"),
    ] {
        assert!(at(before) + DUE_TOLERANCE_MS <= at(after), "{before} before {after}: {fires:?}");
    }
    scheduler.terminate();
}

#[test]
fn an_unanswered_batch_is_reported_and_an_invalid_one_is_not_written() {
    let cluster = TestCluster::new("unanswered");
    let settings = cluster.settings.clone().set("gateway.answer_timeout", "1s");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipeline.json");
    let path = file.to_str().unwrap();
    let batch = pipeline(&cluster);

    std::fs::write(&file, batch.replace("\"2s\"", "\"soon\"")).unwrap();
    let (said, ok) = settings.run(&["register", "--batch", path]);
    assert!(!ok && said.contains("--batch: extract-orders: delay is \"soon\""), "{said}");

    std::fs::write(&file, batch).unwrap();
    let (said, ok) = settings.run(&["register", "--batch", path]);
    assert!(!ok && said.contains("join: no answer within 1s"), "{said}");
    assert!(said.contains("0 are refused and 6 have no answer"), "{said}");
    let written = crate::records::read_all(cluster.kafka(), &cluster.names.triggers());
    assert_eq!(written.len(), 1, "the wrong one was not written");
}

#[test]
fn the_command_line_pauses_calls_and_resumes() {
    let cluster = TestCluster::new("commands");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let settings = cluster.settings.clone().set("gateway.answer_timeout", "30s");
    let (_, target) = cluster.target();
    let run = |words: &[&str]| settings.run(words);
    let says = |words: &[&str], expected: &str| {
        let (said, ok) = run(words);
        assert!(ok && said.starts_with(expected), "{words:?}: {said}");
    };
    let fires = |count: usize| {
        let what = format!("{count} fires");
        until(&what, DEADLINE, || Some(cluster.fires()).filter(|fires| fires.len() == count))
    };

    let yearly = ["--cron", "0 0 9 1 1 *", "--zone", "Europe/Prague"];
    let register = [&["register", "report", "--topic", target, "--wait"][..], &yearly].concat();
    says(&register, "accepted: fires at ");
    says(&["pause", "report", "--wait"], "paused: generation ");
    says(&["fire-now", "report", "--wait"], "fires now: generation ");
    let first = fires(1);
    assert_eq!((first[0].trigger.as_str(), first[0].occurrence), ("report", 0));
    says(&["resume", "report", "--wait"], "resumed: generation ");
    says(&["fire-now", "report"], "written: ");
    assert_eq!(fires(2)[1].occurrence, 1);

    says(&["cancel", "report", "--wait"], "cancelled: generation ");
    for command in ["pause", "resume", "fire-now"] {
        let (said, ok) = run(&[command, "report", "--wait"]);
        assert!(!ok && said.contains("error: not pending"), "{command}: {said}");
    }
    // No client waited for this answer, and there is one.
    let called = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Called { occurrence: 1, .. });
    let called = cluster.outcomes().iter().filter(|o| called(&o.kind)).count();
    assert_eq!(called, 1);
    scheduler.terminate();
}

#[test]
fn what_an_owner_would_refuse_is_refused_before_anything_is_written() {
    // No server listens there: writing would fail.
    let settings = crate::process::ProcessSettings::default()
        .set("kafka.\"bootstrap.servers\"", "127.0.0.1:1");
    for (options, reason) in [
        (&["--cron", "61 * * * *"][..], "error: schedule.cron is \"61 * * * *\": "),
        (&["--cron", "0 9 * * *", "--zone", "Mars"], "error: schedule.zone is \"Mars\": "),
        (&["--every", "1ms"], "error: schedule.every is \"1ms\": "),
        (&["--schedule", "{\"dayly\": \"09:00\"}"], "does not say when"),
        (&["--in", "1h", "--zone", "UTC"], "error: --zone: it is the zone of --cron"),
        (&["--every", "1h", "--expire-after", "1m"], "error: --expire-after: "),
        (&["--in", "1h", "--count", "keep"], "error: --count: "),
        (&["--after", "x", "--every", "1h"], "error: --after: "),
        (&["--after", "tea"], "error: --after: after is \"tea\": a trigger cannot wait for itself"),
        (&["--in", "1h", "--retain", "2y"], "error: --retain: "),
        (&["--in", "1h", "--priority", "256"], "error: --priority: "),
    ] {
        let words = [&["register", "tea", "--topic", "kitchen"][..], options].concat();
        let (said, ok) = settings.run(&words);
        assert!(!ok && said.contains(reason), "{options:?}: {said}");
    }
}
