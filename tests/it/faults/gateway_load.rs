//! Registrations over HTTP, a few a second, however long an answer takes: what the gateway answers
//! while brokers die.
//!
//! Invariant: an answer says the truth: what is registered fires once, and what is refused as
//! unavailable at most once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orloj::clock;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::COMPLETION_DEADLINE;
use crate::audit::ObservedFire;
use crate::wait::{until, within};

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an answer may take, in ms: `gateway.answer_timeout` of 5 s for the record, the same for
/// its outcome, and a margin.
const ANSWERED_MAX: u64 = 12_000;
/// The newest requests: they are sent when all brokers are back.
const LAST: usize = 10;

/// Where requests are sent to, in turn: what a load balancer knows of the gateways.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatewayAddresses(Arc<Mutex<Vec<String>>>);

impl GatewayAddresses {
    pub(crate) fn add(&self, address: String) {
        self.0.lock().unwrap().push(address);
    }

    pub(crate) fn remove(&self, address: &str) {
        self.0.lock().unwrap().retain(|known| known != address);
    }

    fn contains(&self, address: &str) -> bool {
        self.0.lock().unwrap().iter().any(|known| known == address)
    }

    /// `host:port` for the n-th request.
    fn of_request(&self, n: usize) -> String {
        let addresses = self.0.lock().unwrap();
        addresses[n % addresses.len()].clone()
    }
}

/// Sends the requests.
pub(crate) struct GatewayLoad<'a> {
    pub(crate) addresses: &'a GatewayAddresses,
    /// Where the registrations fire.
    pub(crate) topic: &'a str,
}

/// What was answered, in the order of the requests.
#[derive(Debug)]
pub(crate) struct GatewayAnswers(Vec<GatewayAnswer>);

#[derive(Clone, Debug)]
struct GatewayAnswer {
    id: String,
    status: StatusCode,
    retry_after: bool,
    took_ms: u64,
}

impl GatewayLoad<'_> {
    /// Sends requests until `ended`, and waits for all answers.
    pub(crate) fn send(&self, ended: &AtomicBool) -> GatewayAnswers {
        let runtime = Runtime::new().unwrap();
        // One that is kept may be closed while the next request is on its way: this is not tested.
        let client = Client::builder().timeout(COMPLETION_DEADLINE).pool_max_idle_per_host(0);
        let client = client.build().unwrap();
        let mut answers = Vec::new();
        while within(PAUSE, || ended.load(Relaxed).then_some(())).is_none() {
            let id = format!("http-{}", answers.len());
            let body = json!({"triggerId": id, "topic": self.topic, "delaySeconds": 1});
            let (client, addresses) = (client.clone(), self.addresses.clone());
            let n = answers.len();
            answers.push(runtime.spawn(async move {
                let sent = clock::now_ms();
                let to = |address: &str| {
                    let request = client.post(format!("http://{address}/v1/triggers"));
                    request.body(body.to_string()).send()
                };
                let address = addresses.of_request(n);
                let response = match to(&address).await {
                    // It was removed and ended in this moment: nothing was sent to it.
                    Err(error) if error.is_connect() && !addresses.contains(&address) => {
                        to(&addresses.of_request(n)).await
                    }
                    response => response,
                };
                let response = response.expect("an answer, whatever it says");
                let took_ms = clock::now_ms().saturating_sub(sent);
                let retry_after = response.headers().contains_key("retry-after");
                GatewayAnswer { id, status: response.status(), retry_after, took_ms }
            }));
        }
        let answers = answers.into_iter().map(|answer| runtime.block_on(answer).unwrap());
        GatewayAnswers(answers.collect())
    }
}

impl GatewayAnswers {
    /// How many there are with each status.
    pub(crate) fn counts(&self) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for answer in &self.0 {
            *counts.entry(answer.status.as_u16()).or_default() += 1;
        }
        counts
    }

    /// How long the longest took, in ms.
    pub(crate) fn took_max(&self) -> u64 {
        self.0.iter().map(|answer| answer.took_ms).max().unwrap_or(0)
    }

    /// Panics unless each registration was accepted within `ms`.
    pub(crate) fn assert_all_registered_within(&self, ms: u64) {
        for answer in &self.0 {
            let is_accepted = answer.status == StatusCode::CREATED && answer.took_ms <= ms;
            assert!(is_accepted, "{answer:?}; {ms} ms are allowed");
        }
    }

    /// Panics if one was late or wrong, or if the gateway did not go on.
    pub(crate) fn assert_correct(&self) {
        for answer in &self.0 {
            assert!(answer.took_ms <= ANSWERED_MAX, "{answer:?}; {ANSWERED_MAX} ms are allowed");
            let is_right = match answer.status {
                StatusCode::CREATED | StatusCode::ACCEPTED => true,
                StatusCode::SERVICE_UNAVAILABLE => answer.retry_after,
                _ => false,
            };
            assert!(is_right, "{answer:?}");
        }
        let last = &self.0[self.0.len().saturating_sub(LAST)..];
        assert!(last.iter().all(|answer| answer.status == StatusCode::CREATED), "{last:?}");
    }

    /// Waits until the view shows everything as fired that was registered.
    pub(crate) fn wait_for_view(&self, address: &str, deadline: Duration) {
        let runtime = Runtime::new().unwrap();
        let client = Client::builder().timeout(COMPLETION_DEADLINE).build().unwrap();
        for GatewayAnswer { id, .. } in self.0.iter().filter(|answer| answer.is_registered()) {
            until(&format!("the view to show {id} as fired"), deadline, || {
                let found = client.get(format!("http://{address}/v1/triggers/{id}"));
                let found: Value = runtime.block_on(async {
                    Some(found.send().await.ok()?.json().await.unwrap_or_default())
                })?;
                (found["status"] == "FIRED").then_some(())
            });
        }
    }

    /// Panics if what has fired is not what was answered.
    pub(crate) fn assert_fired(&self, fires: &[ObservedFire]) {
        let mut fired = BTreeMap::<&str, Vec<&ObservedFire>>::new();
        fires.iter().for_each(|fire| fired.entry(&fire.trigger).or_default().push(fire));
        for answer in &self.0 {
            let fires = fired.remove(answer.id.as_str()).unwrap_or_default();
            let is_right = fires.len() == 1 || fires.is_empty() && !answer.is_registered();
            assert!(is_right, "{answer:?} has fired {} times: {fires:?}", fires.len());
        }
        assert!(fired.is_empty(), "{fired:?} were never registered");
    }
}

impl GatewayAnswer {
    fn is_registered(&self) -> bool {
        self.status != StatusCode::SERVICE_UNAVAILABLE
    }
}
