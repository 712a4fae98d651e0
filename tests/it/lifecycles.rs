//! Triggers whose lifecycle depends on how their callbacks end, through a real scheduler and a real
//! worker: what overlaps, what fails again and again, and who waits for whom.

use std::time::Duration;

use orloj::clock;
use orloj::model::dead_letter::Content;
use orloj::model::lifecycle::OnFailure;
use orloj::model::outcome::OutcomeKind;
use serde_json::{Value, json};

use crate::endpoint::{self, Endpoint, EndpointRequest};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Longer than two steps of the schedules here.
const TWO_STEPS: Duration = Duration::from_millis(2_200);

#[test]
fn overlapping_occurrences_are_skipped_or_queued_and_failing_ones_paused() {
    let fixture = LifecycleFixture::start("courses");
    fixture.recur("allows", "wait", json!({"overlap": "allow", "maxExecutions": 2}));
    fixture.recur("skips", "wait", json!({"overlap": "skip"}));
    fixture.recur("queues", "wait", json!({"overlap": "queue", "maxExecutions": 4}));
    fixture.recur("fails", "broken", json!({"overlap": "skip", "pauseAfter": 2}));

    assert_overlap_skips(&fixture);
    assert_overlap_queues(&fixture);
    assert_paused_until_resumed(&fixture);
    // The others show that two at once would have been seen.
    assert_eq!(fixture.endpoint.max_concurrency("allows"), 2);
    fixture.end();
}

/// While a callback is under way its trigger fires no other; afterwards it goes on.
fn assert_overlap_skips(fixture: &LifecycleFixture) {
    let skipped = || {
        let kinds = fixture.outcome_kinds("skips").into_iter().filter_map(|kind| match kind {
            OutcomeKind::Skipped { occurrences: 1, reason, .. } => Some(reason),
            _ => None,
        });
        kinds.collect::<Vec<_>>()
    };
    let reasons = until("two occurrences to be left out", DEADLINE, || {
        let reasons = skipped();
        (reasons.len() >= 2).then_some(reasons)
    });
    let expected = "the callback of occurrence 0 is under way";
    assert!(reasons.iter().all(|reason| reason == expected), "{reasons:?}");
    assert_eq!(occurrences(&fixture.requests("skips", 1)), [0]);
    fixture.endpoint.answer_one("skips");
    // Those that were left out do not count.
    assert_eq!(occurrences(&fixture.requests("skips", 2)), [0, 1]);
    assert_eq!(fixture.endpoint.max_concurrency("skips"), 1);
}

/// Each fires when the one before it has ended, and none is lost.
fn assert_overlap_queues(fixture: &LifecycleFixture) {
    for executions in 1..=4 {
        let requests = fixture.requests("queues", executions);
        assert_eq!(requests.len(), executions);
        if executions <= 2 {
            let last = &requests[executions - 1];
            until("the next two to be due", DEADLINE, || {
                (clock::monotonic() >= last.at + TWO_STEPS).then_some(())
            });
            assert_eq!(
                fixture.endpoint.requests_for("queues").len(),
                executions,
                "the others wait"
            );
        }
        fixture.endpoint.answer_one("queues");
    }
    until("the last of them to be reported", DEADLINE, || {
        let ended = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Ended { executions: 4, .. });
        fixture.outcome_kinds("queues").iter().any(ended).then_some(())
    });
    assert_eq!(occurrences(&fixture.endpoint.requests_for("queues")), [0, 1, 2, 3]);
    assert_eq!(fixture.endpoint.max_concurrency("queues"), 1);
    let skipped = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Skipped { .. });
    assert!(!fixture.outcome_kinds("queues").iter().any(skipped));
}

/// Two failures in a row pause it; it goes on where it was when it is resumed.
fn assert_paused_until_resumed(fixture: &LifecycleFixture) {
    let reason = until("it to be paused", DEADLINE, || {
        fixture.outcome_kinds("fails").into_iter().find_map(|kind| match kind {
            OutcomeKind::Paused { reason, .. } => Some(reason),
            _ => None,
        })
    });
    assert_eq!(reason, "2 failures in a row: see pauseAfter");
    let last = fixture.endpoint.requests_for("fails").pop().unwrap();
    until("the next two to be due", DEADLINE, || {
        (clock::monotonic() >= last.at + TWO_STEPS).then_some(())
    });
    assert_eq!(occurrences(&fixture.endpoint.requests_for("fails")), [0, 1]);

    fixture.endpoint.recover();
    endpoint::command(&fixture.cluster, "fails", "resume");
    until("it to be delivered", DEADLINE, || {
        let kinds = fixture.outcome_kinds("fails");
        let resumed = kinds.iter().any(|kind| matches!(kind, OutcomeKind::Resumed { .. }));
        let delivered =
            |kind: &OutcomeKind| matches!(kind, OutcomeKind::Delivered { occurrence: 2, .. });
        (resumed && kinds.iter().any(delivered)).then_some(())
    });
}

#[test]
fn a_dependent_fires_when_the_callback_is_delivered_and_not_when_it_fails() {
    let fixture = LifecycleFixture::start("dependents");
    // Who waits may be there before the one that it waits for. All are remembered: some have fired
    // before their owner receives the watches.
    fixture.wait_for("early", json!(["flaky"]));
    let retry = json!({"delays": ["2s"], "jitter": 0});
    fixture.register("flaky", "flaky", json!({"retry": retry, "retain": "1h"}));
    fixture.wait_for("late", json!(["flaky"]));
    fixture.register("broken", "broken", json!({"retry": {"attempts": 1}, "retain": "1h"}));
    fixture.wait_for("never", json!({"ids": ["broken"], "onFailure": "fail"}));
    fixture.wait_for("anyway", json!({"ids": ["broken"], "onFailure": "fire"}));
    fixture.wait_for("after-never", json!({"ids": ["never"], "onFailure": "fire"}));

    let attempts = fixture.requests("flaky", 2);
    assert!(attempts[1].at - attempts[0].at >= Duration::from_secs(2), "{attempts:?}");
    for id in ["early", "late"] {
        let requests = fixture.requests(id, 1);
        assert!(requests.len() == 1 && requests[0].at >= attempts[1].at, "{id}: {requests:?}");
    }
    assert_unmet(&fixture, "never", OnFailure::Fail, "broken failed");
    assert_unmet(&fixture, "anyway", OnFailure::Fire, "broken failed");
    assert_unmet(&fixture, "after-never", OnFailure::Fire, "never failed");
    for id in ["anyway", "after-never"] {
        assert_eq!(fixture.requests(id, 1).len(), 1, "{id}");
    }
    assert_eq!(fixture.endpoint.requests_for("never").len(), 0);
    let letters = fixture.cluster.dead_letters();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let Content::Fire { fire, .. } = &letter.content else { panic!("{letter:?}") };
    assert!(fire.id.trigger == *"broken" && fire.report_end, "{letter:?}");
    assert_released_after_a_replay(&fixture);
    fixture.end();
}

/// The dead letter is replayed and delivered: who waits for its trigger from now on need not.
fn assert_released_after_a_replay(fixture: &LifecycleFixture) {
    fixture.endpoint.recover();
    let replay = ["dead-letters", "replay", "--trigger", "broken", "--yes"];
    let (said, done) = fixture.cluster.settings.run(&replay);
    assert!(done, "{said}");
    until("it to be delivered", DEADLINE, || {
        let delivered = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Delivered { .. });
        fixture.outcome_kinds("broken").iter().any(delivered).then_some(())
    });
    fixture.wait_for("afterwards", json!({"ids": ["broken"], "onFailure": "fail"}));
    assert_eq!(fixture.requests("afterwards", 1).len(), 1);
}

fn assert_unmet(fixture: &LifecycleFixture, id: &str, expected: OnFailure, why: &str) {
    let (then, reason) = until(&format!("{id} to be reported"), DEADLINE, || {
        fixture.outcome_kinds(id).into_iter().find_map(|kind| match kind {
            OutcomeKind::Unmet { then, reason, .. } => Some((then, reason)),
            _ => None,
        })
    });
    assert_eq!((then, reason.as_str()), (expected, why));
}

/// Which occurrences were requested, in order of arrival.
fn occurrences(requests: &[EndpointRequest]) -> Vec<u32> {
    let occurrence =
        |request: &EndpointRequest| request.id.rsplit(':').next().unwrap().parse().unwrap();
    requests.iter().map(occurrence).collect()
}

/// An installation with a scheduler and a worker, and whom they call.
struct LifecycleFixture {
    cluster: TestCluster,
    endpoint: Endpoint,
    scheduler: OrlojProcess,
    worker: OrlojProcess,
}

impl LifecycleFixture {
    fn start(test: &str) -> Self {
        let cluster = TestCluster::new(test)
            .set("worker.allow_addresses", "any")
            .set("worker.timeout", "60s")
            .set("worker.timeout_max", "60s");
        let mut scheduler = cluster.scheduler("scheduler");
        let mut worker = cluster.start("worker", "worker");
        scheduler.wait_until_ready(READY_DEADLINE);
        worker.wait_until_ready(READY_DEADLINE);
        Self { cluster, endpoint: Endpoint::start(), scheduler, worker }
    }

    /// Registers a callback that is due now.
    fn register(&self, id: &str, to: &str, more: Value) {
        self.endpoint.register(&self.cluster, id, to, more, json!({}));
    }

    /// Registers one of every second, tried once each time.
    fn recur(&self, id: &str, to: &str, more: Value) {
        let mut schedule = json!({"every": "PT1S"});
        endpoint::merge(&mut schedule, more);
        let envelope = json!({
            "schedule": schedule,
            "target": {"url": self.endpoint.url(to)},
            "retry": {"attempts": 1},
        });
        endpoint::write(&self.cluster, id, &envelope.to_string());
    }

    /// Registers a callback that is due when others have settled, and that is remembered.
    fn wait_for(&self, id: &str, after: Value) {
        let target = json!({"url": self.endpoint.url("fine")});
        let envelope = json!({"after": after, "target": target, "retain": "1h"});
        endpoint::write(&self.cluster, id, &envelope.to_string());
    }

    /// The requests of a trigger, once there are so many.
    fn requests(&self, id: &str, least: usize) -> Vec<EndpointRequest> {
        until(&format!("{least} requests of {id}"), DEADLINE, || {
            let requests = self.endpoint.requests_for(id);
            (requests.len() >= least).then_some(requests)
        })
    }

    fn outcome_kinds(&self, id: &str) -> Vec<OutcomeKind> {
        let ours = self.cluster.outcomes().into_iter().filter(|outcome| outcome.trigger == *id);
        ours.map(|outcome| outcome.kind).collect()
    }

    fn end(self) {
        assert!(!self.scheduler.panicked() && !self.worker.panicked());
        self.endpoint.recover();
        self.worker.terminate();
        self.scheduler.terminate();
    }
}
