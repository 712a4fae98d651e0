//! What a worker writes about a fire: an outcome of every attempt; a signal to the owner if another
//! attempt is needed; a dead letter if it is given up.
//!
//! Invariant: pure. All of it is written in the transaction that commits the fire as finished.

use bytes::Bytes;

use super::disposition::{CallbackResponse, Disposition, disposition_of};
use crate::model::attempt::{Attempt, History, excerpt};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::Header;
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::limits::{PAYLOAD_BYTES_MAX, REASON_BYTES_MAX};
use crate::model::outcome::{self, Outcome};
use crate::model::retry::RetryPolicy;
use crate::model::signal::{CallbackEnded, RetryRequest, Signal};
use crate::model::text::Text;
use crate::model::{Millis, Timestamp};

/// Bytes that a dead letter keeps of the key of a record that is no fire, and of its headers. With
/// the value, which is cut at the payload limit, they fit into the topic.
const KEY_BYTES_KEPT: usize = 65_536;
const HEADER_BYTES_KEPT: usize = 262_144;

/// What is written about one record of `fires`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FireReport {
    /// For the `outcomes` topic.
    pub outcome: Option<Outcome>,
    /// For the owner.
    pub signal: Option<Signal>,
    /// For the dead letters.
    pub dead_letter: Option<DeadLetter>,
}

/// An attempt that was made, and its result.
#[derive(Clone, Copy, Debug)]
pub struct AttemptRecord<'a> {
    /// Its result.
    pub response: &'a CallbackResponse,
    /// How long it took, in ms.
    pub duration: Millis,
    /// When it ended, in ms since the epoch.
    pub ended_at: Timestamp,
    /// The worker that made it.
    pub worker: &'a Text,
}

impl AttemptRecord<'_> {
    /// Its line in the history.
    fn history_entry(&self, number: u32) -> Attempt {
        let (error, answer) = match self.response {
            CallbackResponse::Answered { body, .. } => (None, excerpt(body)),
            CallbackResponse::NoResponse(reason)
            | CallbackResponse::NotContacted(reason)
            | CallbackResponse::Unsendable(reason) => (excerpt(reason), None),
        };
        Attempt {
            number,
            at: self.ended_at.saturating_sub(self.duration),
            worker: self.worker.clone(),
            status: self.response.status(),
            error,
            duration_ms: self.duration,
            excerpt: answer,
        }
    }
}

impl FireReport {
    /// What follows from an attempt; `policy` applies if its trigger has none.
    #[must_use]
    pub fn of_attempt(
        mut fire: Fire,
        attempt_record: &AttemptRecord<'_>,
        origin: Origin,
        policy: &RetryPolicy,
    ) -> Self {
        let AttemptRecord { response, ended_at: now, .. } = *attempt_record;
        let own = fire.definition.retry.as_ref().map(|own| own.with_defaults(policy));
        let before = fire.history.as_ref().map_or(0, |history| history.attempts_before_replay);
        let count = fire.id.attempt.saturating_sub(before).max(1);
        let (delivered, given_up) = (ended(&fire, true), ended(&fire, false));
        let disposition =
            disposition_of(response, &fire.id, count, own.as_ref().unwrap_or(policy), now);
        let outcome = Some(Outcome {
            trigger: fire.id.trigger.clone(),
            answers: None,
            request: None,
            at: now,
            kind: outcome_kind(&fire.id, response, &disposition),
        });
        let attempt = attempt_record.history_entry(fire.id.attempt);
        fire.history = History::with_attempt(fire.history, attempt);
        match disposition {
            Disposition::Delivered { .. } => Self { outcome, signal: delivered, dead_letter: None },
            Disposition::Retry { due, reason } => {
                let signal = Some(Signal::Retry(next_attempt(fire, due, reason)));
                Self { outcome, signal, dead_letter: None }
            }
            Disposition::GiveUp { reason } => {
                let attempts = fire.id.attempt;
                let content = Content::Fire { fire, attempts };
                let dead_letter = Some(DeadLetter { origin, reason, at: now, content });
                Self { outcome, signal: given_up, dead_letter }
            }
        }
    }

    /// What follows if no attempt was made and the same one is to be made at `due`. No outcome is
    /// written: nothing has happened.
    #[must_use]
    pub fn of_deferral(fire: Fire, due: Timestamp, reason: &str) -> Self {
        let Fire { id, scheduled, definition, history, report_end, priority, .. } = fire;
        let id = FireId { deferral: id.deferral.saturating_add(1), ..id };
        let reason = reason.to_owned();
        let request =
            RetryRequest { id, due, scheduled, reason, definition, history, report_end, priority };
        Self { signal: Some(Signal::Retry(request)), ..Self::default() }
    }

    /// What follows if a cancel was processed before the request was made.
    #[must_use]
    pub fn of_withdrawal(id: FireId, report_end: bool, now: Timestamp) -> Self {
        let signal =
            report_end.then(|| Signal::CallbackEnded(CallbackEnded { id: id.clone(), ok: false }));
        let FireId { trigger, generation, occurrence, attempt, .. } = id;
        let kind = outcome::OutcomeKind::Withdrawn { generation, occurrence, attempt };
        let outcome = Some(Outcome { trigger, answers: None, request: None, at: now, kind });
        Self { outcome, signal, dead_letter: None }
    }

    /// What follows if it is not known whether the callback was made: a person decides. Its owner
    /// was perhaps notified when it was, and waits no longer than for a result.
    #[must_use]
    pub fn of_unknown(fire: Fire, origin: Origin, now: Timestamp) -> Self {
        let reason = "it is not known whether it was delivered: the committed offsets of the \
                      workers of its pool have expired; replay it if its receiver has not got it";
        let FireId { generation, occurrence, attempt, .. } = fire.id;
        let kind = outcome::OutcomeKind::Failed {
            generation,
            occurrence,
            attempt,
            status: None,
            reason: reason.to_owned(),
            retry_at: None,
        };
        let trigger = fire.id.trigger.clone();
        let outcome = Some(Outcome { trigger, answers: None, request: None, at: now, kind });
        let attempts = fire.history.as_ref().map_or(0, |history| history.last_number());
        let content = Content::Fire { fire, attempts };
        let dead_letter = Some(DeadLetter { origin, reason: reason.to_owned(), at: now, content });
        Self { outcome, signal: None, dead_letter }
    }

    /// The trigger that this is about; a record that is no fire has none.
    #[must_use]
    pub fn trigger(&self) -> Option<&Text> {
        let content = self.dead_letter.as_ref().map(|letter| &letter.content);
        match (&self.outcome, &self.signal, content) {
            (Some(outcome), _, _) => Some(&outcome.trigger),
            (None, Some(signal), _) => Some(signal.trigger()),
            (None, None, Some(Content::Fire { fire, .. })) => Some(&fire.id.trigger),
            (None, None, _) => None,
        }
    }

    /// What follows from a record that is no fire: its trigger is unknown.
    #[must_use]
    pub fn of_unreadable(record: UnreadableRecord, origin: Origin, now: Timestamp) -> Self {
        let UnreadableRecord { key, value, headers, reason } = record.cut();
        let content = Content::Record { key, value, headers };
        let dead_letter = Some(DeadLetter { origin, reason, at: now, content });
        Self { dead_letter, ..Self::default() }
    }
}

/// A record of `fires` that is no fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<Header>,
    /// Why it is none, for people.
    pub reason: String,
}

impl UnreadableRecord {
    /// Keeps what fits into a dead letter, and says what does not: the topic takes no larger record
    /// than `fires` does, and batches of `fires` may be compressed.
    fn cut(mut self) -> Self {
        let bytes = self.content_bytes();
        self.reason.truncate(self.reason.floor_char_boundary(REASON_BYTES_MAX));
        for (part, max) in [(&mut self.key, KEY_BYTES_KEPT), (&mut self.value, PAYLOAD_BYTES_MAX)] {
            part.iter_mut().for_each(|part| part.truncate(max));
        }
        let mut room = HEADER_BYTES_KEPT;
        self.headers.retain(|header| {
            let rest = room.checked_sub(header_bytes(header));
            room = rest.unwrap_or(room);
            rest.is_some()
        });
        let cut = bytes - self.content_bytes();
        if cut > 0 {
            self.reason += &format!("; {cut} of its {bytes} bytes are not kept");
        }
        self
    }

    fn content_bytes(&self) -> usize {
        let parts = [&self.key, &self.value].into_iter().flatten().map(Bytes::len);
        parts.chain(self.headers.iter().map(header_bytes)).sum()
    }
}

/// What a header takes, with the lengths of its name and its value.
fn header_bytes(header: &Header) -> usize {
    const LENGTHS: usize = 8;
    header.name.bytes().len() + header.value.as_ref().map_or(0, Bytes::len) + LENGTHS
}

/// For an owner that waits for the end of a callback.
fn ended(fire: &Fire, ok: bool) -> Option<Signal> {
    fire.report_end.then(|| Signal::CallbackEnded(CallbackEnded { id: fire.id.clone(), ok }))
}

fn outcome_kind(
    id: &FireId,
    response: &CallbackResponse,
    disposition: &Disposition,
) -> outcome::OutcomeKind {
    let FireId { generation, occurrence, attempt, .. } = *id;
    let failed = |reason: &String, retry_at| outcome::OutcomeKind::Failed {
        generation,
        occurrence,
        attempt,
        status: response.status(),
        reason: reason.clone(),
        retry_at,
    };
    match disposition {
        Disposition::Delivered { status } => {
            outcome::OutcomeKind::Delivered { generation, occurrence, attempt, status: *status }
        }
        Disposition::Retry { due, reason } => failed(reason, Some(*due)),
        Disposition::GiveUp { reason } => failed(reason, None),
    }
}

fn next_attempt(fire: Fire, due: Timestamp, reason: String) -> RetryRequest {
    let attempt = fire.id.attempt + 1;
    RetryRequest {
        id: FireId { attempt, deferral: 0, ..fire.id },
        due,
        scheduled: fire.scheduled,
        reason,
        definition: fire.definition,
        history: fire.history,
        report_end: fire.report_end,
        priority: fire.priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::schemas::Schemas;
    use crate::model::definition::{Definition, HttpTarget, Target};

    fn fire(attempt: u32, retry: Option<RetryPolicy>) -> Fire {
        let retry = retry.map(Box::new);
        let target = HttpTarget::post("http://example.com/");
        let id = FireId { trigger: "a".into(), generation: 7, occurrence: 2, attempt, deferral: 1 };
        let target = Target::from(target);
        let definition =
            Definition { target, payload: None, headers: Vec::new(), retry, caller: None };
        let (history, report_end, priority) = (None, false, 127);
        Fire { id, scheduled: 500, fired: 600, definition, history, report_end, priority }
    }

    fn attempt(number: u32, status: u16) -> Attempt {
        Attempt {
            number,
            at: 960,
            worker: "w".into(),
            status: Some(status),
            error: None,
            duration_ms: 40,
            excerpt: Some("no".into()),
        }
    }

    fn origin() -> Origin {
        Origin { topic: "orloj.fires".into(), partition: 3, offset: 99 }
    }

    fn report(fire: &Fire, status: u16) -> FireReport {
        let reply = CallbackResponse::Answered { status, retry_after: None, body: "no".to_owned() };
        let policy = RetryPolicy { delays: vec![10, 20], ..RetryPolicy::default() };
        let made =
            AttemptRecord { response: &reply, duration: 40, ended_at: 1_000, worker: &"w".into() };
        FireReport::of_attempt(fire.clone(), &made, origin(), &policy)
    }

    fn kind_of(report: &FireReport) -> &outcome::OutcomeKind {
        &report.outcome.as_ref().unwrap().kind
    }

    #[test]
    fn success_is_an_outcome_and_nothing_else() {
        let report = report(&fire(2, None), 204);
        let (generation, occurrence, attempt) = (7, 2, 2);
        let delivered =
            outcome::OutcomeKind::Delivered { generation, occurrence, attempt, status: 204 };
        assert_eq!(kind_of(&report), &delivered);
        assert_eq!((report.signal, report.dead_letter), (None, None));
    }

    #[test]
    fn a_failure_asks_the_owner_for_the_next_attempt() {
        let fire = fire(2, None);
        let report = report(&fire, 500);
        let Some(Signal::Retry(request)) = report.signal else { panic!("{report:?}") };
        assert_eq!(request.id, FireId { attempt: 3, deferral: 0, ..fire.id });
        assert_eq!((request.due, request.scheduled), (1_020, 500));
        assert_eq!(request.reason, "answered 500: no");
        assert_eq!(request.history, History::with_attempt(None, attempt(2, 500)));
        assert_eq!(report.dead_letter, None);
    }

    #[test]
    fn a_deferral_asks_for_the_same_attempt_again() {
        let fire = fire(2, None);
        let report = FireReport::of_deferral(fire.clone(), 5_000, "no room");
        assert_eq!(report.trigger(), Some(&fire.id.trigger));
        let Some(Signal::Retry(request)) = report.signal else { panic!("{report:?}") };
        assert_eq!(request.id, FireId { deferral: 2, ..fire.id });
        assert_eq!(
            (request.due, request.scheduled, request.definition),
            (5_000, 500, fire.definition)
        );
        assert_eq!((report.outcome, report.dead_letter), (None, None));
    }

    #[test]
    fn a_withdrawal_is_an_outcome_and_nothing_else() {
        let report = FireReport::of_withdrawal(fire(3, None).id, false, 1_000);
        let (generation, occurrence, attempt) = (7, 2, 3);
        let withdrawn = outcome::OutcomeKind::Withdrawn { generation, occurrence, attempt };
        assert_eq!(
            (kind_of(&report), report.outcome.as_ref().unwrap().answers),
            (&withdrawn, None)
        );
        assert_eq!((report.signal, report.dead_letter), (None, None));
    }

    #[test]
    fn the_last_failure_is_a_dead_letter_with_all_attempts() {
        let once = RetryPolicy { attempts: Some(1), ..RetryPolicy::default() };
        let earlier = History::with_attempt(None, attempt(1, 502));
        let third = Fire { history: earlier, ..fire(3, None) };
        for fire in [third, fire(1, Some(once))] {
            let report = report(&fire, 500);
            let retry_at = match kind_of(&report) {
                outcome::OutcomeKind::Failed { status: Some(500), retry_at, .. } => retry_at,
                other => panic!("{other:?}"),
            };
            assert_eq!((retry_at, &report.signal), (&None, &None));
            let letter = report.dead_letter.unwrap();
            let attempts = fire.id.attempt;
            let history = History::with_attempt(fire.history.clone(), attempt(attempts, 500));
            let fire = Fire { history, ..fire };
            assert_eq!(letter.content, Content::Fire { fire, attempts });
            assert_eq!(letter.origin, origin());
        }
    }

    fn unreadable(key: usize, value: usize, headers: &[(&str, usize)]) -> DeadLetter {
        let bytes = |count| Some(Bytes::from(vec![b'x'; count]));
        let header =
            |(name, value): &(&str, usize)| Header { name: (*name).into(), value: bytes(*value) };
        let record = UnreadableRecord {
            key: bytes(key),
            value: bytes(value),
            headers: headers.iter().map(header).collect(),
            reason: "no fire".to_owned(),
        };
        FireReport::of_unreadable(record, origin(), 7).dead_letter.unwrap()
    }

    #[test]
    fn a_record_that_is_no_fire_is_kept_as_far_as_it_fits() {
        const TOPIC_BYTES_MAX: usize = 2_097_152;
        let letter = unreadable(9, 999, &[("a", 5), ("b", 0)]);
        let Content::Record { key, value, headers } = &letter.content else { panic!("{letter:?}") };
        let lengths = [key, value].map(|part| part.as_ref().map(Bytes::len));
        assert_eq!((lengths, headers.len()), ([Some(9), Some(999)], 2));
        assert_eq!(letter.reason, "no fire");
        for (key, value) in [(9, TOPIC_BYTES_MAX), (TOPIC_BYTES_MAX, 9), (1 << 25, 1 << 25)] {
            let headers = [("long", TOPIC_BYTES_MAX), ("short", 5), ("half", 200_000)];
            let letter = unreadable(key, value, &headers);
            let encoded = Schemas::new().encode_dead_letter(&letter);
            assert!(encoded.len() < TOPIC_BYTES_MAX - 100_000, "{}", encoded.len());
            let Content::Record { headers, .. } = &letter.content else { panic!() };
            let names: Vec<_> = headers.iter().map(|header| header.name.as_str()).collect();
            assert_eq!(names, ["short", "half"]);
            assert!(letter.reason.ends_with(" bytes are not kept"), "{}", letter.reason);
        }
    }

    /// An owner that requests it is notified when no further attempt follows, and not earlier.
    #[test]
    fn an_owner_that_requests_it_is_notified_once_how_a_callback_ended() {
        let fire = Fire { report_end: true, priority: 9, ..fire(2, None) };
        let settled = |ok| {
            Some(Signal::CallbackEnded(CallbackEnded {
                id: FireId { attempt: 2, ..fire.id.clone() },
                ok,
            }))
        };
        assert_eq!(report(&fire, 204).signal, settled(true));

        let again = [report(&fire, 500), FireReport::of_deferral(fire.clone(), 5_000, "no room")];
        for report in again {
            let Some(Signal::Retry(request)) = report.signal else { panic!("{report:?}") };
            assert!(request.report_end && request.priority == 9, "{request:?}");
        }
        let given_up = report(&fire, 410);
        assert_eq!(given_up.signal, settled(false));
        let Content::Fire { fire: letter, .. } = given_up.dead_letter.unwrap().content else {
            panic!("a fire")
        };
        assert!(letter.report_end && letter.priority == 9, "{letter:?}");

        let withdrawn = FireReport::of_withdrawal(fire.id.clone(), true, 1_000);
        assert_eq!(withdrawn.signal, settled(false));
    }

    #[test]
    fn an_owner_that_does_not_request_it_is_not_notified() {
        let fire = fire(2, None);
        for report in [
            report(&fire, 204),
            report(&fire, 410),
            FireReport::of_withdrawal(fire.id.clone(), false, 1_000),
        ] {
            assert_eq!(report.signal, None);
        }
        let Some(Signal::Retry(request)) = report(&fire, 500).signal else { panic!("a retry") };
        assert!(!request.report_end && request.priority == 127, "{request:?}");
    }

    #[test]
    fn after_a_replay_the_retry_policy_counts_from_one() {
        let history = History {
            attempts_before_replay: 3,
            older_attempts: 0,
            attempts: vec![attempt(3, 500)],
        };
        let replayed = Fire { history: Some(Box::new(history)), ..fire(4, None) };
        let report = report(&replayed, 500);
        let Some(Signal::Retry(request)) = report.signal else { panic!("{report:?}") };
        assert_eq!((request.id.attempt, request.due), (5, 1_010));
        let numbers = request.history.unwrap().attempts.into_iter().map(|attempt| attempt.number);
        assert!(numbers.eq([3, 4]));
    }
}
