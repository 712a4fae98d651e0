//! Random requests of several clients: what they ask for, and what they were answered.
//!
//! Invariant: a repeated request is the same request, and every other one names its trigger again,
//! so that its record is recognised by that name.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Answer, CommandWord, Operation, RecordKind, SentRequest, TriggerLogs, reading};

/// Triggers that are asked about at one time.
const TRIGGERS: u64 = 6;
/// Requests until one of them is exchanged for another.
const REQUESTS_PER_TRIGGER: u64 = 24;
/// Keys in use at one time, and requests until one of them is exchanged.
const KEYS: u64 = 3;
const REQUESTS_PER_KEY: u64 = 40;
/// In seconds: at once, soon, and beyond the end of a run.
const DELAYS: [u64; 6] = [0, 1, 1, 2, 36_000, 36_000];
/// How long after the first request with a key what it registers is due, in ms.
const NAMED_AFTER_MS: u64 = 1_500;
/// The header of a key.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A request to be sent, once or again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRequest {
    /// What it asks, by the trigger's id, or by [`key_name`] until the id is known. Of a batch
    /// there are several.
    pub(crate) parts: Vec<(String, Operation)>,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// Beside those that every request has.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Value>,
}

/// Chooses requests, for all clients.
#[derive(Debug)]
pub(crate) struct RequestPlan {
    /// Where the triggers fire.
    topic: String,
    planned: u64,
    /// The newest revision that any client was answered.
    revisions: BTreeMap<String, u64>,
    /// The time, in ms since the epoch.
    now: u64,
    /// When what these keys register is due.
    due: BTreeMap<u64, u64>,
    /// The ids of keys, as far as they are known.
    ids_of_keys: BTreeMap<String, String>,
}

impl RequestPlan {
    pub(crate) fn new(topic: &str) -> Self {
        let (topic, revisions) = (topic.to_owned(), BTreeMap::new());
        let (due, ids_of_keys) = (BTreeMap::new(), BTreeMap::new());
        Self { topic, planned: 0, revisions, now: 0, due, ids_of_keys }
    }

    /// The next request, `now` in ms since the epoch; `below` is a random number below its
    /// argument. Every other key registers what is due at a time, which may have passed when the
    /// request is repeated.
    pub(crate) fn next(&mut self, now: u64, below: &mut dyn FnMut(u64) -> u64) -> PlannedRequest {
        (self.now, self.planned) = (now, self.planned + 1);
        let id = self.choose_id(below);
        match below(24) {
            0..5 => self.create(id, below),
            5..8 => self.create_with_key(below),
            8..10 => self.batch(below),
            10..13 => PlannedRequest::about(id, Operation::Get),
            13..16 => self.patch(id, below),
            16..18 => PlannedRequest::about(id, Operation::Cancel),
            18 => PlannedRequest::about(id, Operation::Command(CommandWord::Pause)),
            19 | 20 => PlannedRequest::about(id, Operation::Command(CommandWord::Resume)),
            21 => PlannedRequest::about(id, Operation::Command(CommandWord::FireNow)),
            _ => PlannedRequest::about(id, Operation::FireOnce).with_key(self.planned),
        }
    }

    /// A client has this answer.
    pub(crate) fn on_answer(&mut self, planned: &PlannedRequest, body: &Value) {
        let [(trigger, operation)] = &planned.parts[..] else { return };
        let id = body["triggerId"].as_str().unwrap_or(trigger);
        if let Some(revision) = body["revision"].as_u64() {
            let newest = self.revisions.entry(id.to_owned()).or_insert(revision);
            *newest = revision.max(*newest);
        }
        // Only of a registration that is on the log is it known under which id the log has the key.
        let is_registered = body["generation"].is_u64();
        if matches!(operation, Operation::Create { key: true, .. }) && is_registered {
            let _before = self.ids_of_keys.insert(trigger.clone(), id.to_owned());
        }
    }

    fn choose_id(&self, below: &mut dyn FnMut(u64) -> u64) -> String {
        let known = self.ids_of_keys.get(&key_name(self.choose_key(below)));
        match known.filter(|_| below(4) == 0) {
            Some(id) => id.clone(),
            None => format!("t-{}", self.planned / REQUESTS_PER_TRIGGER + below(TRIGGERS)),
        }
    }

    fn choose_key(&self, below: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.planned / REQUESTS_PER_KEY + below(KEYS)
    }

    fn create(&self, id: String, below: &mut dyn FnMut(u64) -> u64) -> PlannedRequest {
        let name = format!("n-{}", self.planned);
        let mut body = self.registration(&name, choose_delay(below));
        body["triggerId"] = json!(id);
        let operation = Operation::Create { name, key: false };
        PlannedRequest { body: Some(body), ..PlannedRequest::about(id, operation) }
    }

    fn create_with_key(&mut self, below: &mut dyn FnMut(u64) -> u64) -> PlannedRequest {
        let key = self.choose_key(below);
        // All requests with a key are the same, but for a few.
        let other = if below(8) == 0 { " other" } else { "" };
        let name = format!("{}{other}", key_name(key));
        let delay = DELAYS[usize::try_from(key).unwrap_or(0) % DELAYS.len()];
        let mut body = self.registration(&name, delay);
        if key % 2 == 1 {
            let due = *self.due.entry(key).or_insert(self.now + NAMED_AFTER_MS);
            body = json!({ "topic": self.topic, "name": name, "fireAt": due });
        }
        let operation = Operation::Create { name, key: true };
        let planned = PlannedRequest::about(key_name(key), operation).with_key(key);
        PlannedRequest { body: Some(body), ..planned }
    }

    /// Two triggers, with a key or without.
    fn batch(&self, below: &mut dyn FnMut(u64) -> u64) -> PlannedRequest {
        let key = below(2) == 0;
        let first = self.planned / REQUESTS_PER_TRIGGER + below(TRIGGERS);
        let (mut parts, mut items) = (Vec::new(), Vec::new());
        for trigger in [first, first + 1] {
            let (id, name) = (format!("t-{trigger}"), format!("n-{}-{trigger}", self.planned));
            let mut item = self.registration(&name, choose_delay(below));
            item["triggerId"] = json!(id);
            items.push(item);
            parts.push((id, Operation::BatchItem { name, key }));
        }
        let (method, path) = ("POST", "/v1/triggers:batch".to_owned());
        let (headers, body) = (Vec::new(), Some(json!({ "triggers": items })));
        let planned = PlannedRequest { parts, method, path, headers, body };
        if key { planned.with_key(self.planned) } else { planned }
    }

    fn registration(&self, name: &str, delay: u64) -> Value {
        json!({ "topic": self.topic, "name": name, "delaySeconds": delay })
    }

    fn patch(&self, id: String, below: &mut dyn FnMut(u64) -> u64) -> PlannedRequest {
        let name = format!("n-{}", self.planned);
        let body = match below(3) {
            0 => json!({ "name": name, "delaySeconds": choose_delay(below) }),
            _ => json!({ "name": name }),
        };
        let if_match = self.revisions.get(&id).copied().filter(|_| below(2) == 0);
        let headers = if_match.map(|revision| ("if-match", format!("\"{revision}\"")));
        let operation = Operation::Patch { name, if_match };
        let planned = PlannedRequest::about(id, operation);
        PlannedRequest { headers: headers.into_iter().collect(), body: Some(body), ..planned }
    }
}

impl PlannedRequest {
    fn about(trigger: String, operation: Operation) -> Self {
        let path = |suffix: &str| format!("/v1/triggers/{trigger}{suffix}");
        let (method, path) = match &operation {
            Operation::Create { .. } | Operation::BatchItem { .. } => {
                ("POST", "/v1/triggers".to_owned())
            }
            Operation::Get => ("GET", path("")),
            Operation::Patch { .. } => ("PATCH", path("")),
            Operation::Cancel => ("DELETE", path("")),
            Operation::Command(CommandWord::Pause) => ("POST", path(":pause")),
            Operation::Command(CommandWord::Resume) => ("POST", path(":resume")),
            Operation::Command(CommandWord::FireNow) | Operation::FireOnce => {
                ("POST", path(":fireNow"))
            }
        };
        Self { parts: vec![(trigger, operation)], method, path, headers: Vec::new(), body: None }
    }

    fn with_key(mut self, key: u64) -> Self {
        self.headers.push((IDEMPOTENCY_KEY, format!("\"{key}\"")));
        self
    }

    /// What was sent at `started` to a gateway, by trigger, with the answer and the time of that.
    pub(crate) fn sent(
        &self,
        (gateway, started): (usize, u64),
        answered: Option<(u64, u16, &Value)>,
    ) -> Vec<SentRequest> {
        let is_batch = self.parts.len() > 1;
        let answer_of = |place: usize, status: u16, body: &Value| -> Answer {
            match status {
                200 if is_batch => reading::batch_item(&body["items"][place]),
                _ => reading::answer(status, body),
            }
        };
        let parts = self.parts.iter().cloned().enumerate();
        let sent = parts.map(|(place, (trigger, operation))| {
            let answer = answered.map(|(at, status, body)| (at, answer_of(place, status, body)));
            SentRequest { gateway, started, trigger, operation, answer }
        });
        sent.collect()
    }
}

fn choose_delay(below: &mut dyn FnMut(u64) -> u64) -> u64 {
    DELAYS[usize::try_from(below(DELAYS.len() as u64)).unwrap_or(0)]
}

/// What the registrations with a key are called.
fn key_name(key: u64) -> String {
    format!("key {key}")
}

/// Gives requests with a key the ids under which the log has them.
pub(crate) fn resolve_keys(requests: &mut [SentRequest], logs: &TriggerLogs) {
    let mut ids = BTreeMap::new();
    for (id, log) in logs {
        let keyed = |kind| kind == RecordKind::Register { keep: true, retain: true };
        for record in log.records.iter().filter(|record| keyed(record.kind)) {
            let key = record.name.strip_suffix(" other").unwrap_or(&record.name);
            let _same = ids.insert(key, id);
        }
    }
    for request in requests {
        if let Some(id) = ids.get(request.trigger.as_str()) {
            request.trigger.clone_from(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LoggedRecord, TriggerLog};
    use super::*;

    #[test]
    fn a_key_has_the_id_under_which_the_log_has_its_registration() {
        let request = |trigger: &str| SentRequest {
            gateway: 0,
            started: 0,
            trigger: trigger.to_owned(),
            operation: Operation::Get,
            answer: None,
        };
        let mut requests = ["key 1", "key 2", "key 3", "tea"].map(request);
        let record = |name: &str| LoggedRecord {
            offset: 0,
            appended: 0,
            name: name.to_owned(),
            kind: RecordKind::Register { keep: true, retain: true },
            key: None,
            decisions: Vec::new(),
        };
        let log = |name| TriggerLog { records: vec![record(name)], fires: Vec::new() };
        let logs = [("id-1", "key 1"), ("id-2", "key 2 other")];
        let logs = logs.map(|(id, name)| (id.to_owned(), log(name)));
        resolve_keys(&mut requests, &logs.into_iter().collect());
        let ids = requests.map(|request| request.trigger);
        assert_eq!(ids, ["id-1", "id-2", "key 3", "tea"]);
    }

    #[test]
    fn what_was_answered_is_used_by_later_requests() {
        let mut plan = RequestPlan::new("out");
        let mut number = 0;
        let mut below = move |bound| {
            number += 1;
            number * 7_919 % 1_009 % bound
        };
        let (mut matched, mut keyed) = (0, 0);
        for revision in 0..500 {
            let planned = plan.next(revision, &mut below);
            let (trigger, operation) = &planned.parts[0];
            let has_revision = matches!(operation, Operation::Patch { if_match: Some(_), .. });
            matched += u32::from(has_revision);
            keyed += u32::from(planned.path.contains("/id-of-"));
            let id = trigger.replace("key ", "id-of-");
            let (id, revision) = (json!(id), json!(revision));
            let body = json!({"triggerId": id, "generation": revision, "revision": revision});
            plan.on_answer(&planned, &body);
        }
        assert!(matched > 5 && keyed > 5, "{matched} with a revision, {keyed} with a key's id");
    }

    #[test]
    fn each_part_of_a_batch_has_its_answer() {
        let planned = RequestPlan::new("out").batch(&mut |_| 0);
        let items = json!([{"outcome": "ACCEPTED"}, {"outcome": "UNANSWERED"}]);
        let statuses = |status, body: &Value| {
            let sent = planned.sent((0, 1), Some((2, status, body)));
            let answers = sent.into_iter().filter_map(|sent| sent.answer);
            answers.map(|(_, answer)| answer.status).collect::<Vec<_>>()
        };
        assert_eq!(statuses(200, &json!({ "items": items })), [201, 202]);
        assert_eq!(statuses(503, &json!({})), [503, 503]);
        assert_eq!(planned.sent((0, 1), None).len(), 2);
    }
}
