//! Committed offsets that an operator moves, or that are gone.
//!
//! Law: what is repeated then is what the page says: everything from the new offset on, and
//! nothing of what is below it.

use std::collections::HashMap;

use orloj::clock;
use orloj::model::partitioner::Partitioner;

use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, Scene};
use crate::audit::Command;
use crate::client::Client;
use crate::kafka_server::{run_to_end, tool};
use crate::stage::{PARTITIONS, READY, Stage};
use crate::wait::until;

/// Records of each partition that count as new again.
const BACK: u64 = 20;

/// Moves the offsets of the schedulers' group as an operator does, when nobody runs.
pub(super) fn reset(stage: &Stage, to: &[&str]) {
    let triggers = stage.names.triggers();
    consumer_groups(stage, &[&["--reset-offsets", "--topic", &triggers, "--execute"], to].concat());
}

fn consumer_groups(stage: &Stage, arguments: &[&str]) {
    let bootstrap = stage.kafka().get("bootstrap.servers").expect("every client has it");
    let group = stage.names.schedulers();
    until("the group to be empty", SETTLE, || {
        let mut tool = tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand");
        tool.args(["--bootstrap-server", bootstrap, "--group", &group]).args(arguments);
        let said = run_to_end(&mut tool);
        (!said.contains("Error")).then_some(())
    });
}

/// `--reset-offsets --shift-by -20`: those records count as new, W stays.
pub(super) fn moved(_: Scale) -> Verdict {
    let scene = Scene::new("moved");
    let client = &scene.client;
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    register(&scene.stage, client, 0..400, 2_000);
    // These are pending when the offset moves, and shall not be repeated for that.
    register(&scene.stage, client, 400..420, 45_000);
    let commands = client.acknowledged();
    until("the first 400 to fire", SETTLE, || (scene.stage.fires().len() >= 400).then_some(()));
    scheduler.terminate();
    reset(&scene.stage, &["--shift-by", &format!("-{BACK}")]);

    let scheduler = scene.stage.scheduler("first");
    owns(&scheduler, PARTITIONS as usize);
    let expected = expected(&commands);
    let total: usize = expected.values().sum();
    let fires = until("every fire and repetition", SETTLE, || {
        let fires = scene.stage.fires();
        (fires.len() >= total).then_some(fires)
    });
    stay(2_000);
    assert_eq!(scene.stage.fires().len(), total, "fires, repetitions included");
    let mut times = HashMap::<_, usize>::new();
    for fire in fires {
        *times.entry(fire.trigger).or_default() += 1;
    }
    assert_eq!(times, expected);
    scheduler.terminate();
    let repeated = total - commands.len();
    Verdict::Passed(Figures::default().with("repeated as documented", repeated))
}

/// How often each trigger fires: those that were due and stand in the last [`BACK`] twice.
fn expected(commands: &HashMap<String, Vec<Command>>) -> HashMap<String, usize> {
    let partition = |id: &str| Partitioner::Murmur2.partition(id.as_bytes(), PARTITIONS);
    let mut ends = HashMap::<_, u64>::new();
    for (id, commands) in commands {
        let end = ends.entry(partition(id)).or_default();
        *end = (*end).max(commands[0].offset + 1);
    }
    let times = |(id, commands): (&String, &Vec<Command>)| {
        let again = commands[0].offset + BACK >= ends[&partition(id)];
        let was_due = !id.starts_with("pending");
        (id.clone(), 1 + usize::from(again && was_due))
    };
    commands.iter().map(times).collect()
}

fn register(stage: &Stage, client: &Client, numbers: std::ops::Range<u64>, delay: u64) {
    let name = if delay > 10_000 { "pending" } else { "due" };
    let due = clock::now_ms() + delay;
    for n in numbers {
        client.register(&format!("{name}-{n}"), due, stage.target(), "again", true);
    }
    client.acknowledged();
}

/// The group's offsets are deleted: after a shutdown the mirror stands; after a crash a person
/// must decide, is told how, and it goes on.
pub(super) fn deleted(_: Scale) -> Verdict {
    let scene = Scene::new("deleted");
    let triggers = scene.stage.names.triggers();
    let delete = ["--delete-offsets", "--topic", &triggers];
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    scene.flow().during(|| stay(3_000));
    scheduler.terminate();
    consumer_groups(&scene.stage, &delete);
    let again = scene.stage.scheduler("first");
    owns(&again, PARTITIONS as usize);
    let report = scene.settled();
    again.kill();
    // The group must have found out, or it is not empty.
    consumer_groups(&scene.stage, &delete);

    let refused = scene.stage.scheduler("first");
    refused.says("the group's committed offset is gone", READY);
    stay(1_000);
    assert!(!refused.is_ready(), "it cannot fire and calls itself ready");
    refused.terminate();
    reset(&scene.stage, &["--to-latest"]);
    let decided = scene.stage.scheduler("first");
    owns(&decided, PARTITIONS as usize);
    let report_after = scene.settled();
    assert_eq!(report_after.fired, report.fired, "nothing is repeated");
    decided.terminate();
    Verdict::Passed(Figures::of(&report))
}
