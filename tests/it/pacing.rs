//! Which of a caller's callbacks a real worker begins first, and how many in a second.

use std::time::Duration;

use orloj::clock;
use orloj::telemetry;
use serde_json::json;

use crate::endpoint::{Endpoint, EndpointRequest};
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Callbacks a second.
const RATE: u32 = 3;
/// At that rate they take twice the deadline.
const PACED: usize = 400;
const OTHERS: usize = 60;

#[test]
fn higher_priority_starts_first_when_a_slot_is_free() {
    let cluster = TestCluster::new("priority")
        .set("worker.allow_addresses", "any")
        .set("worker.caller_in_flight_max", 1);
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let requested = |count: usize| {
        until(&format!("{count} requests"), DEADLINE, || {
            let requests = endpoint.requests();
            (requests.len() >= count).then_some(requests)
        })
    };
    endpoint.register(&cluster, "first", "wait", json!({}), json!({}));
    requested(1);
    let waiting = [("low", 0), ("usual", 127), ("high", 255), ("medium", 200)];
    for (at, (id, priority)) in (1..).zip(waiting) {
        endpoint.register(&cluster, id, "fine", json!({"priority": priority}), json!({}));
        until(&format!("{id} to wait"), DEADLINE, || {
            (worker.gauge(telemetry::CALLBACKS_WAITING) == Some(at)).then_some(())
        });
    }
    endpoint.answer_one("first");
    let order: Vec<_> = requested(5).into_iter().map(|request| request.trigger).collect();
    assert_eq!(order, ["first", "high", "medium", "usual", "low"]);
    worker.terminate();
    scheduler.terminate();
}

/// A caller at its rate waits, and others do not. Its limit may be lifted while it waits.
#[test]
fn a_callers_rate_limit_delays_only_that_caller_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callers.toml");
    let limit = |rate: u32| {
        let limits = format!("callers.paced.limits.dispatch_rate_max = {rate}\n");
        std::fs::write(&file, limits).unwrap();
    };
    limit(RATE);
    let cluster = TestCluster::new("pacing")
        .set("worker.allow_addresses", "any")
        .set("callers.file", file.to_str().unwrap())
        .set("callers.reload_interval", "100ms");
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let client = cluster.client();
    let (url, now) = (endpoint.url("fine"), clock::now_ms());
    for n in 0..PACED {
        client.register_callback(&format!("paced-{n}"), now, &url, "paced");
    }
    client.acknowledged();
    let of = |caller: &str| {
        let requests = endpoint.requests().into_iter();
        requests
            .filter(|request| request.trigger.starts_with(caller))
            .collect::<Vec<EndpointRequest>>()
    };
    until("the caller to be over its rate", DEADLINE, || {
        (of("paced").len() > RATE as usize).then_some(())
    });
    for n in 0..OTHERS {
        client.register_callback(&format!("other-{n}"), now, &url, "other");
    }
    client.acknowledged();
    until("all of the others", DEADLINE, || (of("other").len() == OTHERS).then_some(()));
    let paced = of("paced");
    let took = (paced[paced.len() - 1].at - paced[0].at).as_secs_f64();
    // One more, because the first may have been longer on its way than the last.
    let most = f64::from(RATE) * (1.0 + took) + 1.0;
    assert!(paced.len() as f64 <= most, "{} in {took} s", paced.len());

    limit(0);
    until("all that waited", DEADLINE, || (of("paced").len() == PACED).then_some(()));
    assert!(of("paced").iter().all(|request| request.attempt == 1));
    worker.terminate();
    scheduler.terminate();
}
