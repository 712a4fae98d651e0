//! What the checker must find: faults planted into a history that it explains.
//!
//! Invariant: every history is explained before a fault is planted in it.

use super::*;

const NO_TIME: u64 = 9_000;
const TIMES: RunTimes = RunTimes { slack: 0, due_by: 1_000 };

/// A log and requests about the trigger "tea", and about a key.
#[derive(Clone, Default)]
struct History {
    logs: TriggerLogs,
    requests: Vec<SentRequest>,
    now: Time,
}

fn answer(status: u16) -> Answer {
    Answer { status, ..Answer::default() }
}

fn problem(status: u16, code: &str) -> Answer {
    Answer { code: code.to_owned(), ..answer(status) }
}

fn create(name: &str) -> Operation {
    Operation::Create { name: name.to_owned(), key: false }
}

fn keyed(name: &str) -> Operation {
    Operation::Create { name: name.to_owned(), key: true }
}

fn patch(name: &str, if_match: Option<u64>) -> Operation {
    Operation::Patch { name: name.to_owned(), if_match }
}

fn created(generation: u64) -> Answer {
    let fire_at = Some(NO_TIME);
    Answer { generation: Some(generation), fire_at, ..answer(201) }
}

fn shown(generation: u64, revision: u64, name: &str, status: ShownStatus) -> Answer {
    let name = Some(name.to_owned());
    let (generation, revision, shown) = (Some(generation), Some(revision), Some(status));
    Answer { generation, revision, name, shown, ..answer(200) }
}

impl History {
    /// A record of "tea" with its decision.
    fn record(
        &mut self,
        offset: u64,
        name: &str,
        kind: RecordKind,
        decision: Decision,
    ) -> &mut Self {
        self.record_of("tea", offset, name, kind, decision)
    }

    fn record_of(
        &mut self,
        id: &str,
        offset: u64,
        name: &str,
        kind: RecordKind,
        decision: Decision,
    ) -> &mut Self {
        self.now += 10;
        let (appended, name, decisions) = (self.now, name.to_owned(), vec![decision]);
        let key = None;
        let record = LoggedRecord { offset, appended, name, kind, key, decisions };
        self.logs.entry(id.to_owned()).or_default().records.push(record);
        self
    }

    fn fire(&mut self, generation: u64) -> &mut Self {
        self.now += 10;
        let fire = LoggedFire { generation, visible: self.now };
        self.logs.entry("tea".to_owned()).or_default().fires.push(fire);
        self
    }

    /// A request about "tea" that began before the last record and is answered now.
    fn asked(&mut self, operation: Operation, answer: Answer) -> &mut Self {
        self.asked_of("tea", 0, operation, Some(answer))
    }

    fn asked_of(
        &mut self,
        id: &str,
        gateway: usize,
        operation: Operation,
        answer: Option<Answer>,
    ) -> &mut Self {
        let started = self.now.saturating_sub(5);
        self.now += 6;
        let (trigger, answer) = (id.to_owned(), answer.map(|answer| (self.now, answer)));
        self.requests.push(SentRequest { gateway, started, trigger, operation, answer });
        self.now += 6;
        self
    }

    /// The answer of the request at this place.
    fn answer(&mut self, at: usize) -> &mut Answer {
        let (_, answer) = self.requests[at].answer.as_mut().unwrap();
        answer
    }

    fn tea(&mut self) -> &mut TriggerLog {
        self.logs.get_mut("tea").unwrap()
    }

    fn found(&self) -> Vec<String> {
        explain(&self.logs, &self.requests, TIMES).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn assert_explained(&self) {
        assert_eq!(self.found(), [""; 0]);
    }

    /// Plants a fault, which must be found with this reason.
    #[track_caller]
    fn assert_found(&self, reason: &str, plant: impl FnOnce(&mut Self)) {
        self.assert_explained();
        let mut planted = self.clone();
        plant(&mut planted);
        let found = planted.found();
        assert!(found.iter().any(|found| found.contains(reason)), "{reason}: {found:#?}");
    }
}

const REGISTER: RecordKind = RecordKind::Register { keep: false, retain: false };
const KEEP: RecordKind = RecordKind::Register { keep: true, retain: true };

fn accepted(generation: u64, replaced: Option<u64>) -> Decision {
    Decision::Accepted { generation, fire_at: NO_TIME, replaced }
}

/// Registered at 3, changed at 5, refused at 6, cancelled at 8 and once more at 9.
fn lifetime() -> History {
    let mut history = History::default();
    let changed = Decision::Changed { generation: 3, revision: 5, fire_at: NO_TIME };
    let (generation, revision, fire_at) = (Some(3), Some(5), Some(NO_TIME));
    let change = |wanted| RecordKind::Change { wanted: Some(wanted) };
    history
        .asked(Operation::Get, answer(404))
        .record(3, "a", REGISTER, accepted(3, None))
        .asked(create("a"), created(3))
        .asked(Operation::Get, shown(3, 3, "a", ShownStatus::Pending))
        .record(5, "b", change(3), changed)
        .asked(patch("b", Some(3)), Answer { generation, revision, fire_at, ..answer(200) })
        .record(6, "c", change(3), Decision::Kept { generation: 5, fire_at: NO_TIME })
        .asked(patch("c", Some(3)), Answer { revision, ..problem(412, "generation-differs") })
        .asked(Operation::Get, shown(3, 5, "b", ShownStatus::Pending))
        .record(8, "", RecordKind::Cancel, Decision::Cancelled { generation: 3 })
        .asked(Operation::Cancel, Answer { generation, ..answer(200) })
        .record(9, "", RecordKind::Cancel, Decision::NotPending { fired: None })
        .asked(
            Operation::Cancel,
            Answer { shown: Some(ShownStatus::Cancelled), ..problem(409, "not-pending") },
        )
        .asked(Operation::Get, shown(3, 5, "b", ShownStatus::Cancelled));
    history
}

#[test]
fn an_answer_that_was_taken_from_another_record_is_found() {
    let mut history = lifetime();
    let replaced = accepted(20, None);
    history.record(20, "d", REGISTER, replaced);
    history.asked_of("tea", 0, create("d"), None);
    let reason = "no record for it";
    history.assert_found(reason, |history| history.answer(1).generation = Some(20));
    history.assert_found(reason, |history| {
        // Another request has the record.
        let (twin, later) = (history.requests[1].clone(), history.now);
        history.requests.push(SentRequest { answer: Some((later, created(3))), ..twin });
    });
}

#[test]
fn a_created_for_a_refused_record_is_found() {
    let refused = |history: &mut History| {
        history.tea().records[0].decisions = vec![Decision::Refused];
    };
    lifetime().assert_found("no record for it", refused);
}

#[test]
fn a_read_that_is_older_than_ones_own_write_is_found() {
    let older = shown(3, 3, "a", ShownStatus::Pending);
    lifetime().assert_found("not any more", |history| *history.answer(5) = older.clone());
    let mut elsewhere = lifetime();
    *elsewhere.answer(5) = older;
    elsewhere.requests[5].gateway = 1;
    elsewhere.assert_explained();
    lifetime().assert_found("there was a trigger", |history| *history.answer(5) = answer(404));
}

#[test]
fn a_read_of_what_is_not_written_yet_is_found() {
    let newer = shown(3, 5, "b", ShownStatus::Pending);
    lifetime().assert_found("never so", |history| *history.answer(2) = newer);
    let mixed = shown(3, 5, "a", ShownStatus::Pending);
    lifetime().assert_found("never so", |history| *history.answer(5) = mixed);
}

#[test]
fn a_refusal_with_the_wrong_revision_is_found() {
    let wrong = |history: &mut History| history.answer(4).revision = Some(3);
    lifetime().assert_found("no such revision", wrong);
    let unseen = |history: &mut History| history.answer(4).revision = Some(6);
    lifetime().assert_found("no request has written it", unseen);
}

#[test]
fn a_change_of_another_revision_is_found() {
    let lost = |history: &mut History| {
        history.tea().records[1].kind = RecordKind::Change { wanted: Some(2) };
    };
    lifetime().assert_found("another record defined the trigger", lost);
}

#[test]
fn a_fire_after_a_cancel_is_found() {
    lifetime().assert_found("although it was cancelled", |history| {
        let _history = history.fire(3);
    });
    lifetime().assert_found("was not accepted", |history| {
        let _history = history.fire(4);
    });
}

#[test]
fn a_record_that_none_or_a_refused_request_has_written_is_found() {
    let none = |history: &mut History| drop(history.requests.remove(6));
    lifetime().assert_found("no request has written it", none);
    let refused = |history: &mut History| {
        *history.answer(3) = Answer { not_written: true, ..answer(503) };
    };
    lifetime().assert_found("no request has written it", refused);
    let mut unknown = lifetime();
    *unknown.answer(3) = answer(503);
    unknown.assert_explained();
}

#[test]
fn a_record_that_is_said_to_be_written_is_on_the_log() {
    let mut history = lifetime();
    *history.answer(3) = answer(202);
    history.assert_found("no record for it", |history| drop(history.tea().records.remove(1)));
}

#[test]
fn two_decisions_and_none_are_found() {
    let twice = |history: &mut History| {
        let decisions = &mut history.tea().records[3].decisions;
        decisions.push(decisions[0]);
    };
    lifetime().assert_found("was decided 2 times", twice);
    let never = |history: &mut History| history.tea().records[3].decisions.clear();
    lifetime().assert_found("was decided 0 times", never);
}

#[test]
fn a_refusal_by_an_older_state_is_found() {
    // The other gateway knows only the registration.
    let refused = |history: &mut History| {
        let old = Answer { revision: Some(3), ..problem(412, "generation-differs") };
        history.asked_of("tea", 1, patch("d", Some(5)), Some(old));
    };
    lifetime().assert_found("no such revision", refused);
    let unknown = |history: &mut History| {
        history.asked_of("tea", 1, patch("d", None), Some(answer(404)));
    };
    lifetime().assert_found("there was a trigger", unknown);
}

#[test]
fn a_fire_that_is_shown_no_more_is_found() {
    let before = |history: &mut History| {
        history.asked(Operation::Get, shown(3, 3, "a", ShownStatus::Pending));
    };
    fired().assert_found("not any more", before);
    let mut late = fired();
    late.requests.remove(4);
    before(&mut late);
    late.assert_explained();
}

#[test]
fn a_fire_that_is_never_shown_is_found() {
    let pending = || shown(3, 3, "a", ShownStatus::Pending);
    let mut not_shown = fired();
    not_shown.requests.remove(4);
    let read = |history: &mut History| {
        let as_of = Some(history.tea().fires[0].visible + TIMES.slack + 1);
        history.asked(Operation::Get, Answer { as_of, ..pending() });
    };
    not_shown.assert_found("not any more", read);

    let mut called = History::default();
    let call = CommandWord::FireNow;
    called
        .record(3, "a", REGISTER, accepted(3, None))
        .asked(create("a"), created(3))
        .record(4, "", RecordKind::Command(call), Decision::Called { generation: 3 })
        .fire(3)
        .asked(Operation::Command(call), Answer { generation: Some(3), ..answer(200) });
    called.requests[1].started -= 10;
    let after = |gateway| {
        move |history: &mut History| {
            history.asked_of("tea", gateway, Operation::Get, Some(pending()));
        }
    };
    called.assert_found("not any more", after(0));
    after(1)(&mut called);
    called.assert_explained();
}

#[test]
fn a_change_without_a_condition_may_be_planned_again() {
    let mut history = History::default();
    let change = |wanted| RecordKind::Change { wanted: Some(wanted) };
    let changed = |revision| Decision::Changed { generation: 3, revision, fire_at: NO_TIME };
    let answer = |revision| {
        let (generation, fire_at) = (Some(3), Some(NO_TIME));
        Answer { generation, revision: Some(revision), fire_at, ..answer(200) }
    };
    history
        .record(3, "a", REGISTER, accepted(3, None))
        .asked(create("a"), created(3))
        .record(5, "b", change(3), changed(5))
        .asked(patch("b", None), answer(5))
        .record(6, "c", change(3), Decision::Kept { generation: 5, fire_at: NO_TIME })
        .record(7, "c", change(5), changed(7))
        .asked(patch("c", None), answer(7));
    history.requests[2].started -= 10;
    let refused = |history: &mut History| {
        drop(history.tea().records.pop());
        *history.answer(2) = Answer { revision: Some(5), ..problem(412, "generation-differs") };
    };
    history.assert_found("no such answer is expected", refused);
    let conditional = |history: &mut History| {
        history.requests[2].operation = patch("c", Some(5));
    };
    history.assert_found("no request has written it", conditional);
}

/// Registered at 3, paused at 4, resumed at 5, fired, and asked to fire now at 6.
fn fired() -> History {
    let mut history = History::default();
    let command = RecordKind::Command;
    let (generation, fire_at) = (Some(3), Some(NO_TIME));
    let (pause, resume) = (CommandWord::Pause, CommandWord::Resume);
    let (call, fired) = (CommandWord::FireNow, Some(3));
    history
        .record(3, "a", REGISTER, accepted(3, None))
        .asked(create("a"), created(3))
        .record(4, "", command(pause), Decision::Paused { generation: 3 })
        .asked(Operation::Command(pause), Answer { generation, ..answer(200) })
        .asked(Operation::Get, shown(3, 3, "a", ShownStatus::Paused))
        .record(5, "", command(resume), Decision::Resumed { generation: 3, fire_at: NO_TIME })
        .asked(Operation::Command(resume), Answer { generation, fire_at, ..answer(200) })
        .fire(3)
        .asked(Operation::Get, shown(3, 3, "a", ShownStatus::Fired))
        .record(6, "", command(call), Decision::NotPending { fired })
        .asked(
            Operation::Command(call),
            Answer { fired, shown: Some(ShownStatus::Fired), ..problem(409, "not-pending") },
        );
    history
}

#[test]
fn a_fire_while_it_was_paused_is_found() {
    let paused = |history: &mut History| drop(history.tea().records.remove(2));
    fired().assert_found("the pending one is paused", paused);
    let said = |history: &mut History| *history.answer(1) = problem(409, "not-pending");
    fired().assert_found("no record for it", said);
}

#[test]
fn an_end_that_did_not_happen_is_found() {
    let lost = |history: &mut History| history.tea().fires.clear();
    fired().assert_found("one is pending, which has not fired", lost);
    let early = |history: &mut History| history.requests[4].answer.as_mut().unwrap().0 -= 8;
    fired().assert_found("never so", early);
    let other = |history: &mut History| history.answer(5).shown = Some(ShownStatus::Cancelled);
    fired().assert_found("not what has become of the trigger", other);
}

#[test]
fn what_is_due_and_has_not_fired_is_found() {
    let mut history = History::default();
    history.record(3, "a", REGISTER, accepted(3, None)).asked(create("a"), created(3));
    let due = |history: &mut History| {
        let soon = Decision::Accepted { generation: 3, fire_at: 900, replaced: None };
        history.tea().records[0].decisions = vec![soon];
        history.answer(0).fire_at = Some(900);
    };
    history.assert_found("it is due and has not fired", due);
}

/// Two gateways, one key: created at 3 through the first, repeated at 5 through the other.
fn one_key() -> History {
    let mut history = History::default();
    let kept = Decision::Kept { generation: 3, fire_at: NO_TIME };
    history
        .record_of("key", 3, "a", KEEP, accepted(3, None))
        .asked_of("key", 0, keyed("a"), Some(created(3)))
        .record_of("key", 5, "a", KEEP, kept)
        .asked_of("key", 1, keyed("a"), Some(created(3)))
        .asked_of("key", 0, keyed("a"), Some(created(3)))
        .asked_of("key", 0, keyed("b"), Some(problem(422, "idempotency-key-reused")));
    history
}

#[test]
fn a_key_that_is_forgotten_is_found() {
    // After a restart the repetition is registered again.
    let again = |history: &mut History| {
        history.logs.get_mut("key").unwrap().records[1].decisions = vec![accepted(5, None)];
        *history.answer(1) = created(5);
    };
    one_key().assert_found("the one before is remembered", again);
}

/// A trigger of a batch with a key is called with a key, and both are repeated.
fn repeated() -> History {
    let mut history = History::default();
    let item = || Operation::BatchItem { name: "a".to_owned(), key: true };
    let register = RecordKind::Register { keep: false, retain: true };
    let call = RecordKind::Command(CommandWord::FireNow);
    let (called, generation) = (Decision::Called { generation: 3 }, Some(3));
    let kept = Decision::Kept { generation: 3, fire_at: NO_TIME };
    history
        .record(3, "a", register, accepted(3, None))
        .asked(item(), created(3))
        .record(4, "a", register, kept)
        .asked(item(), Answer { status: 200, ..created(3) })
        .record(5, "", call, called)
        .asked(Operation::FireOnce, Answer { generation, ..answer(200) })
        .fire(3)
        .record(6, "", call, called)
        .asked(Operation::FireOnce, Answer { generation, ..answer(200) });
    for (record, key) in history.tea().records.iter_mut().zip(["b", "b", "c", "c"]) {
        record.key = Some(key.to_owned());
    }
    history
}

#[test]
fn a_request_with_a_key_that_is_executed_twice_is_found() {
    let registered = |history: &mut History| {
        history.tea().records[1].decisions = vec![accepted(4, Some(3))];
        *history.answer(1) = Answer { replaced: Some(3), ..created(4) };
    };
    repeated().assert_found("the one before is remembered", registered);
    let other = |history: &mut History| {
        history.tea().records[3].decisions = vec![Decision::Called { generation: 4 }];
    };
    repeated().assert_found("the request was executed before", other);
    let taken = |history: &mut History| history.answer(1).generation = Some(4);
    repeated().assert_found("no record for it", taken);
}

#[test]
fn another_answer_to_the_same_key_is_found() {
    let other = |history: &mut History| history.answer(2).generation = Some(5);
    one_key().assert_found("no registration with this key", other);
    let time = |history: &mut History| history.answer(2).fire_at = Some(NO_TIME + 1);
    one_key().assert_found("no registration with this key", time);
    let same = |history: &mut History| history.requests[3].operation = keyed("a");
    one_key().assert_found("no other request had this key", same);
}

#[test]
fn a_request_in_flight_that_was_none_is_found() {
    let busy = |history: &mut History| *history.answer(2) = problem(409, "request-in-flight");
    one_key().assert_found("no other request with this key was in progress", busy);
    let mut history = one_key();
    busy(&mut history);
    history.requests[0].answer = None;
    history.assert_explained();
}

#[test]
fn an_answer_of_another_kind_is_found() {
    let other = |history: &mut History| *history.answer(0) = answer(500);
    one_key().assert_found("no such answer is expected", other);
    lifetime().assert_found("no such answer is expected", other);
}
