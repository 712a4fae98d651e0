//! The view of a gateway while one trigger id is registered, replaced and cancelled all the time.
//!
//! Invariant: what a record costs the view does not depend on how often its trigger was replaced:
//! soon after the last one, the view shows it.

use std::time::Duration;

use orloj::clock;
use reqwest::Client;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::hot_id::{HotTrigger, ID};
use super::receiver::BoundReceiver;
use super::registrations::CallbackRegistration;
use super::{BoundTime, end_all, resident_memory, start_all};
use crate::process::OrlojProcess;
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::wait::within;

/// When the last registration is due, in ms.
const LATER: u64 = 3_600_000;
/// In which a view that keeps up shows the last record.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn the_view_keeps_up_with_an_id_that_is_replaced_all_the_time() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(12);
    let cluster = TestCluster::new("hot-view");
    let receiver = BoundReceiver::start();
    let processes = start_all(&cluster, ["scheduler", "gateway"]);
    let [_scheduler, gateway] = &processes;
    let hot = HotTrigger::start(&cluster, &receiver);
    let watched = [("gateway", gateway)];
    let written = hot.written();
    let memory = resident_memory::sample_for(time.seconds, &watched, || {});
    let rate = (hot.written() - written) / time.seconds;
    assert!(rate >= 1_000, "{rate} records of the hot id a second");
    let producer = hot.end();
    producer.register(CallbackRegistration {
        id: ID,
        due: clock::now_ms() + LATER,
        url: "http://example.com/",
        caller: ID,
        payload: b"{\"last\": true}",
    });
    producer.flush();
    assert_shows_last(gateway);
    resident_memory::assert_flat(&memory);
    end_all(processes);
}

fn assert_shows_last(gateway: &OrlojProcess) {
    let (runtime, client) = (Runtime::new().unwrap(), Client::new());
    let url = format!("http://{}/v1/triggers/{ID}", gateway.address());
    let mut found = Value::Null;
    let shown = within(DEADLINE, || {
        found = runtime.block_on(async {
            Some(client.get(&url).send().await.ok()?.json().await.unwrap_or_default())
        })?;
        (found["payload"]["last"] == true).then_some(())
    });
    assert!(shown.is_some(), "the view does not show the last record of the hot id: {found}");
}
