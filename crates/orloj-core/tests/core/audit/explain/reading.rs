//! What the checker compares, read from records, outcomes and answers.
//!
//! Invariant: every kind of outcome is named here, so that a new one does not compile without a
//! decision here.

use orloj_core::model::Offset;
use orloj_core::model::definition::Definition;
use orloj_core::model::input::{OnConflict, Request, TriggerRecord};
use orloj_core::model::lifecycle::Command;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::time::parse_time;
use serde_json::Value;

use super::{
    Answer, CommandWord, Decision, LoggedFire, LoggedRecord, RecordKind, ShownStatus, Time,
    TriggerLogs,
};

/// The header that names a trigger for people.
const NAME_HEADER: &str = "orloj-name";

/// Adds a record of `triggers`, read in the order of its partition.
pub(crate) fn add_record(logs: &mut TriggerLogs, record: &TriggerRecord) {
    let Some(id) = record.trigger() else { return };
    let (kind, name) = match &record.request {
        Request::Register(new) => {
            let (keep, retain) = (new.on_conflict == OnConflict::Keep, new.retain.is_some());
            (RecordKind::Register { keep, retain }, name_of(&new.definition))
        }
        Request::Change(change) => {
            let wanted = match change.new.on_conflict {
                OnConflict::Match(wanted) => Some(wanted),
                OnConflict::Replace | OnConflict::Keep => None,
            };
            (RecordKind::Change { wanted }, name_of(&change.new.definition))
        }
        Request::Cancel { .. } => (RecordKind::Cancel, String::new()),
        Request::Command { command, .. } => {
            let word = match command {
                Command::Pause => CommandWord::Pause,
                Command::Resume => CommandWord::Resume,
                Command::FireNow => CommandWord::FireNow,
            };
            (RecordKind::Command(word), String::new())
        }
        Request::Batch(_) | Request::Forward(_) | Request::Unreadable(_) => return,
    };
    let (offset, appended, decisions) = (record.offset, record.timestamp, Vec::new());
    let key = record.ack.idempotency_key.as_ref().map(|key| key.as_str().to_owned());
    let records = &mut logs.entry(id.as_str().to_owned()).or_default().records;
    records.push(LoggedRecord { offset, appended, name, kind, key, decisions });
}

fn name_of(definition: &Definition) -> String {
    let name = definition.headers.iter().find(|header| header.name.as_str() == NAME_HEADER);
    let value = name.and_then(|header| header.value.as_deref()).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

/// Adds what an owner has decided about a record that is there already.
pub(crate) fn add_outcome(logs: &mut TriggerLogs, outcome: &Outcome) {
    let Some(answers) = outcome.answers else { return };
    let log = logs.entry(outcome.trigger.as_str().to_owned()).or_default();
    let record = log.records.iter_mut().find(|record| record.offset == answers);
    if let Some(record) = record {
        record.decisions.push(decision(&outcome.kind));
    }
}

/// Adds a fire.
pub(crate) fn add_fire(logs: &mut TriggerLogs, id: &str, generation: Offset, visible: Time) {
    let fires = &mut logs.entry(id.to_owned()).or_default().fires;
    fires.push(LoggedFire { generation, visible });
}

fn decision(kind: &OutcomeKind) -> Decision {
    match *kind {
        OutcomeKind::Accepted { generation, fire_at, replaced } => {
            Decision::Accepted { generation, fire_at, replaced }
        }
        OutcomeKind::Kept { generation, fire_at } => Decision::Kept { generation, fire_at },
        OutcomeKind::Changed { generation, revision, fire_at, .. } => {
            Decision::Changed { generation, revision, fire_at }
        }
        OutcomeKind::Cancelled { generation } => Decision::Cancelled { generation },
        OutcomeKind::Paused { generation, .. } => Decision::Paused { generation },
        OutcomeKind::Resumed { generation, fire_at } => Decision::Resumed { generation, fire_at },
        OutcomeKind::Called { generation, .. } => Decision::Called { generation },
        OutcomeKind::NotPending { fired, .. } => Decision::NotPending { fired },
        OutcomeKind::Rejected { .. }
        | OutcomeKind::Taken { .. }
        | OutcomeKind::Delivered { .. }
        | OutcomeKind::Failed { .. }
        | OutcomeKind::Circuit(_)
        | OutcomeKind::Withdrawn { .. }
        | OutcomeKind::Skipped { .. }
        | OutcomeKind::Ended { .. }
        | OutcomeKind::Expired { .. }
        | OutcomeKind::Unmet { .. } => Decision::Refused,
    }
}

/// An answer of the HTTP API.
pub(crate) fn answer(status: u16, body: &Value) -> Answer {
    let number = |name: &str| body[name].as_u64();
    let text = |name: &str| body[name].as_str();
    let shown = text("status").or_else(|| text("triggerStatus")).and_then(shown_status);
    Answer {
        status,
        code: text("code").unwrap_or_default().to_owned(),
        generation: number("generation"),
        revision: number("revision"),
        fire_at: text("fireAt").and_then(parse_time),
        as_of: text("asOf").and_then(parse_time),
        replaced: number("replaced"),
        fired: number("fired"),
        name: text("name").map(str::to_owned),
        shown,
        not_written: status == 503 && body["mayBeWritten"] == false,
    }
}

/// The answer for one registration of a batch.
pub(crate) fn batch_item(item: &Value) -> Answer {
    let status = match item["outcome"].as_str() {
        Some("ACCEPTED") => 201,
        Some("KEPT") => 200,
        Some("UNANSWERED") => 202,
        _ => 0,
    };
    answer(status, item)
}

fn shown_status(word: &str) -> Option<ShownStatus> {
    match word {
        "PENDING" => Some(ShownStatus::Pending),
        "PAUSED" => Some(ShownStatus::Paused),
        "FIRED" => Some(ShownStatus::Fired),
        "CANCELLED" => Some(ShownStatus::Cancelled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use orloj_core::model::definition::{Target, TopicTarget};
    use orloj_core::model::input::Registration;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_has_its_decision_and_its_fire() {
        let target = Target::Topic(TopicTarget { topic: "out".into(), key: None });
        let (payload, headers, retry, caller) = (None, Vec::new(), None, None);
        let definition = Definition { target, payload, headers, retry, caller };
        let request = Request::Register(Registration::one_time("tea", 7, definition));
        let mut logs = TriggerLogs::new();
        add_record(
            &mut logs,
            &TriggerRecord { offset: 3, timestamp: 5, ack: true.into(), request },
        );
        let kind = OutcomeKind::Accepted { generation: 3, fire_at: 7, replaced: None };
        let (answers, request) = (Some(3), None);
        let outcome = Outcome { trigger: "tea".into(), answers, request, at: 6, kind };
        add_outcome(&mut logs, &outcome);
        add_outcome(&mut logs, &Outcome { answers: Some(4), ..outcome });
        add_fire(&mut logs, "tea", 3, 8);
        let [record] = &logs["tea"].records[..] else { panic!("{logs:?}") };
        let accepted = Decision::Accepted { generation: 3, fire_at: 7, replaced: None };
        assert_eq!((record.appended, &record.decisions[..]), (5, &[accepted][..]));
        assert_eq!(record.kind, RecordKind::Register { keep: false, retain: false });
        assert_eq!((logs["tea"].fires[0].generation, logs["tea"].fires[0].visible), (3, 8));
    }

    #[test]
    fn a_batch_has_an_answer_for_each_item() {
        let item = |outcome: &str| json!({"outcome": outcome, "generation": 3});
        let read = ["ACCEPTED", "KEPT", "UNANSWERED", "TAKEN"].map(|word| batch_item(&item(word)));
        assert_eq!(read.each_ref().map(|answer| answer.status), [201, 200, 202, 0]);
        assert_eq!(read[0].generation, Some(3));
    }

    #[test]
    fn an_answer_is_what_its_body_says() {
        let body = json!({"generation": 3, "revision": 5, "status": "FIRED", "name": "a",
            "fireAt": "2027-01-15T08:00:00Z"});
        let expected = Answer {
            status: 200,
            generation: Some(3),
            revision: Some(5),
            fire_at: Some(1_800_000_000_000),
            name: Some("a".to_owned()),
            shown: Some(ShownStatus::Fired),
            ..Answer::default()
        };
        assert_eq!(answer(200, &body), expected);
        let lost = json!({"code": "not-pending", "status": 409, "fired": 3});
        let (fired, code) = (Some(3), "not-pending".to_owned());
        assert_eq!(answer(409, &lost), Answer { status: 409, code, fired, ..Answer::default() });
        assert!(answer(503, &json!({"mayBeWritten": false})).not_written);
        assert!(!answer(503, &json!({"mayBeWritten": true})).not_written);
    }
}
