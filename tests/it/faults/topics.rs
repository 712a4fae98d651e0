//! Topics that are deleted, created anew, or changed while triggers wait.

use orloj::clock;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tokio::runtime::Runtime;

use super::offsets::reset;
use super::processes::stay;
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, Scene};
use crate::client::TOPIC;
use crate::stage::{PARTITIONS, READY, Stage};
use crate::wait::until;

/// The administrator of a stage's cluster.
pub(super) struct Admin {
    client: AdminClient<DefaultClientContext>,
    runtime: Runtime,
}

impl Admin {
    pub(super) fn of(stage: &Stage) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { client: stage.kafka().create().unwrap(), runtime }
    }

    /// Deletion takes a moment that the controller does not wait for.
    fn create(&self, topic: &str) {
        let topic = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new();
        until("the topic to be created", SETTLE, || {
            let created = self.runtime.block_on(self.client.create_topics([&topic], &options));
            created.unwrap()[0].is_ok().then_some(())
        });
    }

    fn delete(&self, topic: &str) {
        let options = AdminOptions::new();
        let deleted = self.client.delete_topics(&[topic], &options);
        assert_eq!(self.runtime.block_on(deleted).unwrap(), [Ok(topic.to_owned())]);
    }

    /// Deletes a consumer group, once it is empty.
    pub(super) fn delete_group(&self, group: &str) {
        let options = AdminOptions::new();
        until("the group to be deleted", SETTLE, || {
            let deleted = self.runtime.block_on(self.client.delete_groups(&[group], &options));
            deleted.unwrap()[0].is_ok().then_some(())
        });
    }

    fn widen(&self, topic: &str, partitions: usize) {
        let (more, options) = (NewPartitions::new(topic, partitions), AdminOptions::new());
        let widened = self.client.create_partitions([&more], &options);
        assert_eq!(self.runtime.block_on(widened).unwrap(), [Ok(topic.to_owned())]);
    }
}

/// A target goes away while triggers for it are due; those for another are not held up.
pub(super) fn target_deleted(_: Scale) -> Verdict {
    const DOOMED: usize = 200;
    /// By how much a neighbour may be held up, in ms.
    const HELD_UP_MAX: u64 = 20_000;
    let scene = Scene::new("target-deleted");
    let admin = Admin::of(&scene.stage);
    let doomed = format!("{}-doomed", scene.stage.target().1);
    admin.create(&doomed);
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    let client = scene.stage.client();
    scene.flow().during(|| {
        let due = clock::now_ms() + 5_000;
        for n in 0..DOOMED {
            let due = due + n as u64;
            client.register(&format!("doomed-{n}"), due, (TOPIC, &doomed), "in vain", false);
        }
        // Its fire makes the topic known, so that its end comes as a surprise.
        client.register("warm", clock::now_ms(), (TOPIC, &doomed), "in time", false);
        client.acknowledged();
        stay(2_000);
        admin.delete(&doomed);
        stay(6_000);
    });
    until("a dead letter for each", SETTLE, || {
        (scene.stage.dead_letters().len() >= DOOMED).then_some(())
    });
    let report = scene.settled();
    assert_eq!(scene.stage.dead_letters().len(), DOOMED, "each is given up once");
    scheduler.ready(READY);
    scheduler.terminate();
    let late = report.late_at(1.0);
    assert!(late < HELD_UP_MAX, "neighbours were held up for {late} ms");
    Verdict::Passed(Figures::of(&report).with("dead letters", DOOMED))
}

/// `triggers` is deleted and created again while nobody runs: its offsets begin anew.
pub(super) fn recreated(_: Scale) -> Verdict {
    let scene = Scene::new("recreated");
    let triggers = scene.stage.names.triggers();
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    scene.flow().during(|| stay(3_000));
    let report = scene.settled();
    scheduler.terminate();
    Admin::of(&scene.stage).delete(&triggers);
    until("the topic to be created anew", SETTLE, || scene.stage.apply_topics());

    let refused = scene.stage.scheduler("first");
    refused.says("below the committed offset", READY);
    stay(1_000);
    assert!(!refused.is_ready(), "it cannot fire and calls itself ready");
    refused.terminate();
    reset(&scene.stage, |_| 0);
    let mut again = scene.stage.scheduler("first");
    again.ready(READY);
    let client = scene.stage.client();
    client.register("anew", clock::now_ms(), scene.stage.target(), "anew", true);
    client.acknowledged();
    until("a fire of the new topic", SETTLE, || {
        scene.stage.fires().iter().any(|fire| fire.trigger == "anew").then_some(())
    });
    again.terminate();
    Verdict::Passed(Figures::of(&report))
}

/// `triggers` gets more partitions than the others: ids change their partitions.
pub(super) fn widened(_: Scale) -> Verdict {
    let stage = Stage::new("widened").set("kafka.\"topic.metadata.refresh.interval.ms\"", "1000");
    let scene = Scene::of(stage);
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    scene.flow().during(|| stay(3_000));
    let report = scene.settled();
    let triggers = scene.stage.names.triggers();
    Admin::of(&scene.stage).widen(&triggers, PARTITIONS as usize + 2);
    until("/readyz to say that something is wrong", SETTLE, || {
        (!scheduler.is_ready() || scheduler.ended().is_some()).then_some(())
    });
    scheduler.kill();
    let mut refused = scene.stage.scheduler("first");
    let status = until("a refusal to start", READY, || refused.ended());
    assert!(!status.success());
    refused.says("partitions", READY);
    Verdict::Passed(Figures::of(&report))
}
