//! The command line of the dead letters, on letters that died for real.

use std::process::Stdio;
use std::time::Duration;

use orloj::model::dead_letter::{Content, Mark};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::endpoint::{Endpoint, write};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Callbacks to an endpoint that is broken until it is repaired.
const BROKEN: usize = 12;

#[test]
fn dead_letters_are_listed_shown_replayed_once_and_archived() {
    let cluster = TestCluster::new("dead-letters")
        .set("worker.allow_addresses", "any")
        // What is to die shall be called, not held back.
        .set("worker.circuit_failures_percent", 100);
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    register_what_dies(&cluster, &endpoint);

    assert_listed_and_shown(&cluster);
    assert_archived(&cluster);
    endpoint.recover();
    assert_replayed_once(&cluster, &endpoint);
    assert_replayed_again_if_asked(&cluster, &endpoint);
    assert!(!scheduler.panicked() && !worker.panicked());
    for process in [worker, scheduler] {
        OrlojProcess::terminate(process);
    }
}

fn register_what_dies(cluster: &TestCluster, endpoint: &Endpoint) {
    let retry = json!({"retry": {"delays": ["100ms"], "jitter": 0}, "caller": "shop"});
    for n in 0..BROKEN {
        endpoint.register(cluster, &format!("broken-{n}"), "broken", retry.clone(), json!({}));
    }
    let once = json!({"retry": {"attempts": 1}, "caller": "billing"});
    endpoint.register(cluster, "absent", "absent", once, json!({}));
    write(cluster, "unreadable", "not a trigger");
    until("all of them to die", DEADLINE, || {
        (cluster.dead_letters().len() == BROKEN + 2).then_some(())
    });
}

fn assert_listed_and_shown(cluster: &TestCluster) {
    let all = list(cluster, &[]);
    assert_eq!(all.len(), BROKEN + 2, "{all:?}");
    assert_eq!(list(cluster, &["--caller", "shop", "--host", "127.0.0.1"]).len(), BROKEN);
    assert_eq!(list(cluster, &["--reason", "ANSWERED 404"]).len(), 1);
    assert_eq!(list(cluster, &["--since", "1h", "--limit", "3"]).len(), 3);
    assert!(list(cluster, &["--until", "1h"]).is_empty());

    let [line] = &list(cluster, &["--trigger", "broken-7"])[..] else { panic!() };
    let id = line.split_whitespace().next().unwrap();
    let shown = done(cluster, &["show", id]);
    for part in [
        "reason      attempt 2 was the last: answered 500: boom",
        "trigger     broken-7",
        "caller      shop",
        "/broken",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    let attempts: Vec<_> = shown.lines().filter(|line| line.ends_with("500: boom")).collect();
    assert_eq!(attempts.len(), 3, "the reason and two attempts:\n{shown}");
    let (said, found) = run(cluster, &["show", "0:999999"]);
    assert!(!found && said.contains("there is no dead letter 0:999999"), "{said}");
}

fn assert_archived(cluster: &TestCluster) {
    let (said, done_without_asking) = run(cluster, &["archive", "--trigger", "absent"]);
    assert!(!done_without_asking && said.contains("1 dead letters will be archived"), "{said}");
    let (said, chosen) = run(cluster, &["archive", "--yes"]);
    assert!(!chosen && said.contains("name the letters"), "{said}");
    let said = done(cluster, &["archive", "--trigger", "absent", "--yes", "--note", "never mind"]);
    assert!(said.contains("1 of 1 done"), "{said}");
    assert_eq!(list(cluster, &[]).len(), BROKEN + 1);
    let [line] = &list(cluster, &["--trigger", "absent", "--all"])[..] else { panic!() };
    assert!(line.contains("archived"), "{line}");
    let marks: Vec<_> = cluster
        .dead_letters()
        .into_iter()
        .filter(|letter| letter.content == Content::Mark(Mark::Archived))
        .collect();
    assert_eq!((marks.len(), marks[0].reason.as_str()), (1, "never mind"));
}

/// A replay that is stopped in the middle, and the same again: every callback is made once more.
fn assert_replayed_once(cluster: &TestCluster, endpoint: &Endpoint) {
    let replay = ["dead-letters", "replay", "--caller", "shop", "--yes", "--rate", "2"];
    let mut first = cluster.settings.command(&replay);
    let first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let replayed = || endpoint.requests().iter().filter(|request| request.attempt == 3).count();
    until("the first replays to arrive", DEADLINE, || (replayed() >= 2).then_some(()));
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    let ended = first.wait_with_output().unwrap();
    let said = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
    assert!(!ended.status.success() && said.contains("stopped"), "{said}");
    assert!(said.contains(&format!("{BROKEN} dead letters will be tried again")), "{said}");

    let said = done(cluster, &["replay", "--caller", "shop", "--yes", "--rate", "200"]);
    assert!(
        !said.contains(&format!("{BROKEN} of {BROKEN} done")),
        "it started again from the beginning: {said}"
    );
    until("every replay to arrive", DEADLINE, || (replayed() >= BROKEN).then_some(()));
    for n in 0..BROKEN {
        let requests = endpoint.requests_for(&format!("broken-{n}"));
        let attempts: Vec<_> = requests.iter().map(|request| request.attempt).collect();
        assert_eq!(attempts, [1, 2, 3]);
        assert!(requests.iter().all(|request| request.id == requests[0].id), "{requests:?}");
    }
    let left = list(cluster, &[]);
    assert!(left.len() == 1 && left[0].contains("unreadable"), "{left:?}");
}

fn assert_replayed_again_if_asked(cluster: &TestCluster, endpoint: &Endpoint) {
    let said = done(cluster, &["replay", "--trigger", "broken-3", "--yes"]);
    assert!(said.contains("0 dead letters will be tried again"), "{said}");
    let said = done(cluster, &["replay", "--trigger", "broken-3", "--again", "--yes"]);
    assert!(said.contains("1 of 1 done"), "{said}");
    until("it to be called once more", DEADLINE, || {
        (endpoint.requests_for("broken-3").len() == 4).then_some(())
    });
    // A record is written again as it was, and dies again.
    let letters = cluster.dead_letters().len();
    let said = done(cluster, &["replay", "--trigger", "unreadable", "--yes"]);
    assert!(said.contains("1 of 1 done"), "{said}");
    until("its mark and its second death", DEADLINE, || {
        (cluster.dead_letters().len() == letters + 2).then_some(())
    });
}

fn run(cluster: &TestCluster, arguments: &[&str]) -> (String, bool) {
    cluster.settings.run(&[&["dead-letters"][..], arguments].concat())
}

/// What a command said that must not fail.
fn done(cluster: &TestCluster, arguments: &[&str]) -> String {
    let (said, success) = run(cluster, arguments);
    assert!(success, "{arguments:?}: {said}");
    said
}

/// The lines of a list, without its head and its foot.
fn list(cluster: &TestCluster, arguments: &[&str]) -> Vec<String> {
    let said = done(cluster, &[&["list"][..], arguments].concat());
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let is_id = |id: &str| id.split_once(':').is_some_and(|(a, b)| is_number(a) && is_number(b));
    let is_letter = |line: &&str| line.split(' ').next().is_some_and(is_id);
    said.lines().filter(is_letter).map(str::to_owned).collect()
}
