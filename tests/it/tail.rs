//! `orloj tail`: what a person without another tool sees of a topic.
//!
//! Invariant: the program as it is started by hand, on a real broker; it is stopped by its process
//! id.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::process::ProcessSettings;
use crate::test_cluster::{READY_DEADLINE, TestCluster};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn an_orloj_topic_is_printed_as_json_and_any_other_unchanged() {
    let cluster = TestCluster::new("tail");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let (_, target) = cluster.target();
    let settings = cluster.settings.clone().set("gateway.answer_timeout", "30s");
    let said = "tea is ready";
    let register = ["register", "tea", "--topic", target, "--in", "1ms", "--payload", said];
    let (answer, ok) = settings.run(&[&register[..], &["--wait"]].concat());
    assert!(ok, "{answer}");

    let (key, outcome) = first_line(&settings, &cluster.names.outcomes());
    let outcome: Value = serde_json::from_str(&outcome).unwrap();
    assert_eq!((key.as_str(), &outcome["trigger"]), ("tea", &Value::from("tea")));
    assert!(outcome["verdict"]["Accepted"]["fireAt"].is_u64(), "{outcome}");
    assert_eq!(first_line(&settings, target), ("tea".to_owned(), said.to_owned()));
    scheduler.terminate();
}

/// Key and value of what is printed first of all that `topic` holds.
fn first_line(settings: &ProcessSettings, topic: &str) -> (String, String) {
    let mut tail = settings.command(&["tail", topic, "--from-beginning"]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(tail.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    let _ends_with_it = thread::spawn(move || out.lines().try_for_each(|line| sender.send(line)));
    let line = lines.recv_timeout(DEADLINE);
    tail.kill().unwrap();
    let _killed = tail.wait().unwrap();
    let line = line.expect("it prints what is there").unwrap();
    let (key, value) = line.split_once('\t').unwrap();
    (key.to_owned(), value.to_owned())
}
