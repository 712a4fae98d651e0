//! A gateway with everything behind it, and a client that asks it.

use std::time::Duration;

use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::endpoint::Endpoint;
use crate::process::Orloj;
use crate::stage::{READY, Stage};
use crate::wait::until;

pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// All roles that the API needs.
pub(super) struct Site {
    pub(super) stage: Stage,
    pub(super) endpoint: Endpoint,
    pub(super) gateway: Orloj,
    scheduler: Orloj,
    worker: Orloj,
    client: Client,
    runtime: Runtime,
}

/// An answer, read.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: reqwest::header::HeaderMap,
    pub(super) body: Value,
}

impl Site {
    pub(super) fn start(name: &str) -> Self {
        let stage = Stage::new(name)
            .set("worker.allow_addresses", "any")
            .set("gateway.answer_timeout", "20s")
            // What is to die shall be called, not held back.
            .set("worker.circuit_failures_percent", 100);
        let mut scheduler = stage.scheduler("scheduler");
        let mut worker = stage.start("worker", "worker");
        let mut gateway = stage.start("gateway", "gateway");
        for process in [&mut scheduler, &mut worker, &mut gateway] {
            process.ready(READY);
        }
        let (endpoint, client, runtime) = (Endpoint::start(), Client::new(), Runtime::new());
        let runtime = runtime.unwrap();
        Self { stage, endpoint, gateway, scheduler, worker, client, runtime }
    }

    pub(super) fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.ask_with(method, path, body, &[])
    }

    pub(super) fn ask_with(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let url = format!("http://{}{path}", self.gateway.address());
        let request = self.client.request(method, url);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        self.runtime.block_on(async { Answer::read(request.send().await.unwrap()).await })
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None)
    }

    pub(super) fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, Some(body))
    }

    /// Registers a trigger, which must be accepted; its generation.
    pub(super) fn register(&self, body: Value) -> u64 {
        let answer = self.post("/v1/triggers", body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["generation"].as_u64().unwrap()
    }

    /// Waits until the trigger has this status; the trigger then.
    pub(super) fn becomes(&self, id: &str, status: &str) -> Value {
        until(&format!("{id} to be {status}"), DEADLINE, || {
            let answer = self.get(&format!("/v1/triggers/{id}"));
            (answer.status == 200 && answer.body["status"] == status).then_some(answer.body)
        })
    }

    /// Into the topic where triggers of the stage fire.
    pub(super) fn for_topic(&self, id: &str) -> Value {
        json!({ "triggerId": id, "topic": self.stage.target().1 })
    }

    pub(super) fn end(self) {
        assert!(!self.scheduler.panicked() && !self.worker.panicked() && !self.gateway.panicked());
        for process in [self.gateway, self.worker, self.scheduler] {
            process.terminate();
        }
    }
}

impl Answer {
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
pub(super) fn with(mut object: Value, fields: Value) -> Value {
    crate::endpoint::merge(&mut object, fields);
    object
}
