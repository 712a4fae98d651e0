//! A gateway with everything behind it, and a client that asks it.

use std::time::Duration;

use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::endpoint::Endpoint;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// All roles that the API needs.
pub(super) struct ApiFixture {
    pub(super) cluster: TestCluster,
    pub(super) endpoint: Endpoint,
    pub(super) gateway: OrlojProcess,
    scheduler: OrlojProcess,
    worker: OrlojProcess,
    client: Client,
    runtime: Runtime,
}

/// An answer, read.
#[derive(Debug)]
pub(super) struct ApiResponse {
    pub(super) status: u16,
    pub(super) headers: reqwest::header::HeaderMap,
    pub(super) body: Value,
}

impl ApiFixture {
    pub(super) fn start(name: &str) -> Self {
        Self::start_on(Self::installation(name))
    }

    /// The same with two pools that no worker serves, and with a view that is never far behind: a
    /// refusal because of the state of a trigger waits for it.
    pub(super) fn start_with_pools(name: &str) -> Self {
        let cluster = Self::installation(name)
            .set("topics.pools", vec!["slow", "fast"])
            .set("gateway.view_poll_interval", "20ms")
            // A callback may stay in flight for as long as a test takes.
            .set("worker.timeout_max", "300s");
        let (said, applied) = cluster.settings.run(&["topics", "apply"]);
        assert!(applied, "{said}");
        Self::start_on(cluster)
    }

    fn installation(name: &str) -> TestCluster {
        TestCluster::new(name)
            .set("worker.allow_addresses", "any")
            .set("gateway.answer_timeout", "20s")
            // What is to die shall be called, not held back.
            .set("worker.circuit_failures_percent", 100)
    }

    fn start_on(cluster: TestCluster) -> Self {
        let mut scheduler = cluster.scheduler("scheduler");
        let mut worker = cluster.start("worker", "worker");
        let mut gateway = cluster.start("gateway", "gateway");
        for process in [&mut scheduler, &mut worker, &mut gateway] {
            process.wait_until_ready(READY_DEADLINE);
        }
        let (endpoint, client, runtime) = (Endpoint::start(), Client::new(), Runtime::new());
        let runtime = runtime.unwrap();
        Self { cluster, endpoint, gateway, scheduler, worker, client, runtime }
    }

    pub(super) fn request(&self, method: Method, path: &str, body: Option<Value>) -> ApiResponse {
        self.request_with(method, path, body, &[])
    }

    pub(super) fn request_with(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> ApiResponse {
        let url = format!("http://{}{path}", self.gateway.address());
        let request = self.client.request(method, url);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        self.runtime.block_on(async { ApiResponse::read(request.send().await.unwrap()).await })
    }

    pub(super) fn get(&self, path: &str) -> ApiResponse {
        self.request(Method::GET, path, None)
    }

    pub(super) fn post(&self, path: &str, body: Value) -> ApiResponse {
        self.request(Method::POST, path, Some(body))
    }

    /// Registers a trigger, which must be accepted; its generation.
    pub(super) fn register(&self, body: Value) -> u64 {
        let answer = self.post("/v1/triggers", body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["generation"].as_u64().unwrap()
    }

    /// Executes a command on a trigger, which must be accepted.
    pub(super) fn command(&self, id: &str, verb: &str) {
        let answer = self.post(&format!("/v1/triggers/{id}:{verb}"), json!({}));
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Cancels a trigger, which must be in time.
    pub(super) fn cancel(&self, id: &str) {
        let answer = self.request(Method::DELETE, &format!("/v1/triggers/{id}"), None);
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// All that is shown of a trigger, but for the time up to which it is complete.
    pub(super) fn shown(&self, id: &str) -> Value {
        // A view that is behind refuses to answer.
        let mut trigger = until(&format!("{id} to be shown"), DEADLINE, || {
            let answer = self.get(&format!("/v1/triggers/{id}"));
            (answer.status == 200).then_some(answer.body)
        });
        let _as_of = trigger.as_object_mut().unwrap().remove("asOf");
        trigger
    }

    /// Waits until the trigger has this status; the trigger then.
    pub(super) fn wait_for_status(&self, id: &str, status: &str) -> Value {
        until(&format!("{id} to be {status}"), DEADLINE, || {
            let answer = self.get(&format!("/v1/triggers/{id}"));
            (answer.status == 200 && answer.body["status"] == status).then_some(answer.body)
        })
    }

    /// Into the topic where triggers of the cluster fire.
    pub(super) fn for_topic(&self, id: &str) -> Value {
        json!({ "triggerId": id, "topic": self.cluster.target().1 })
    }

    pub(super) fn end(self) {
        assert!(!self.scheduler.panicked() && !self.worker.panicked() && !self.gateway.panicked());
        for process in [self.gateway, self.worker, self.scheduler] {
            process.terminate();
        }
    }
}

impl ApiResponse {
    async fn read(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.unwrap();
        Self { status, headers, body: serde_json::from_slice(&body).unwrap_or_default() }
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// One JSON object and the fields of another.
pub(super) fn merged(mut object: Value, fields: Value) -> Value {
    crate::endpoint::merge(&mut object, fields);
    object
}

/// Applies a JSON merge patch (RFC 7396) that removes nothing.
pub(super) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        merge_patch(&mut target[name], value);
    }
}
