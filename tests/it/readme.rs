//! The README's kcat commands, run as they are printed.
//!
//! Invariant: only addresses, names of topics and delays differ: what a stranger copies is tested.

use std::process::Command;
use std::time::Duration;

use orloj::model::outcome::OutcomeKind;

use crate::skip::skip;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const README: &str = include_str!("../../README.md");
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn the_kcat_commands_of_the_readme_work() {
    if Command::new("kcat").arg("-V").output().is_err() {
        skip("kcat is not installed; scripts/prerequisites.sh test installs it");
        return;
    }
    let stage = TestCluster::new("readme");
    let mut scheduler = stage.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let [register, watch, cancel, envelope] = printed(&stage);

    run(&register);
    // kcat's own hash puts most of these into a wrong partition.
    let foreign = register.replace(" -X partitioner=murmur2_random", "");
    assert_ne!(foreign, register);
    for n in 0..8 {
        run(&foreign.replace("'tea:", &format!("'crc-{n}:")));
    }
    run(&envelope.replace("1h", "1s"));
    let watch = format!("{watch} -e -q");
    until("what kcat registered to fire", DEADLINE, || {
        let seen = run(&watch);
        let fired = |id: &str| seen.lines().any(|line| line.starts_with(&format!("{id}: ")));
        let all = fired("tea") && fired("cake") && (0..8).all(|n| fired(&format!("crc-{n}")));
        all.then_some(())
    });
    let seen = run(&watch);
    assert_eq!(seen.lines().count(), 10, "each of them once:\n{seen}");
    let tea = seen.lines().find(|line| line.starts_with("tea: tea is ready (")).unwrap();
    assert!(tea.contains("orloj-fire-id=tea:") && tea.contains("orloj-due="), "{tea}");

    run(&register.replace("3s", "1h"));
    run(&cancel);
    until("the cancel to be answered", DEADLINE, || {
        let answered = |o: &orloj::model::outcome::Outcome| {
            o.trigger == *"tea" && matches!(o.kind, OutcomeKind::Cancelled { .. })
        };
        stage.outcomes().iter().any(answered).then_some(())
    });
    scheduler.terminate();
}

/// The README's commands with kcat in them, with this stage's addresses and names.
fn printed(stage: &TestCluster) -> [String; 4] {
    let bootstrap = stage.kafka().get("bootstrap.servers").unwrap();
    let (_, target) = stage.target();
    let blocks = README.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands: Vec<_> = blocks
        .filter(|block| block.contains("kcat"))
        .map(|block| {
            let block = block.replace("localhost:9092", bootstrap).replace("kitchen", target);
            block.replace("orloj.triggers", &stage.names.triggers()).trim_end().to_owned()
        })
        .collect();
    commands.try_into().expect("the README shows how to register, watch, cancel, use an envelope")
}

fn run(command: &str) -> String {
    let done = Command::new("sh").args(["-c", command]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command}\n{said}");
    String::from_utf8(done.stdout).unwrap()
}
