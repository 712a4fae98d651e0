//! Results of fires that wait to be committed.
//!
//! Invariant: plain values. A fire ends here once: its record of the log is finished with the
//! transaction that contains its result. A result that its topic refuses becomes a smaller one.

use super::callback::FirePlace;
use super::disposition::CallbackResponse;
use super::report::{AttemptRecord, FireReport, UnreadableRecord};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::Definition;
use crate::model::fire::Fire;
use crate::model::fire_id::FireId;
use crate::model::outcome::OutcomeKind;
use crate::model::retry::RetryPolicy;
use crate::model::signal::{CallbackEnded, Signal};
use crate::model::text::Text;
use crate::model::{Millis, Timestamp};

/// What a result counts for besides its texts and payload, in bytes.
const RESULT_BYTES: usize = 1_024;
/// What an attempt of a history counts for.
const ATTEMPT_BYTES: usize = 512;

/// How a record of `fires` ended.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The attempt was made, or could not be; it took so many ms.
    Attempt(Box<Fire>, CallbackResponse, Millis),
    /// It goes back to its owner until `due`; no attempt was made.
    Deferred { fire: Box<Fire>, due: Timestamp, reason: &'static str },
    /// It was cancelled before any worker had started it.
    Withdrawn {
        /// The withdrawn fire.
        id: FireId,
        /// Whether the owner must be notified.
        report_end: bool,
    },
    /// It was a withdrawal of other fires.
    WithdrawalProcessed,
    /// Whether its callback was made is not known: the committed offsets have expired.
    Unknown(Box<Fire>),
    /// It cannot be decoded.
    Unreadable(UnreadableRecord),
}

/// Who reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportContext<'a> {
    pub(crate) topic: &'a str,
    /// The name of the worker in attempt histories.
    pub(crate) worker: &'a Text,
    pub(crate) default_retry_policy: &'a RetryPolicy,
}

/// A record of `fires` that is finished once this is committed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CompletedFire {
    pub(crate) place: FirePlace,
    pub(crate) report: FireReport,
    /// About how many bytes it has.
    pub(crate) bytes: usize,
    /// What is counted when it is committed.
    pub(crate) result: Option<&'static str>,
    pub(crate) dead_letter: Option<&'static str>,
    /// The fire, and when it was fired, if its record is one.
    fire: Option<(FireId, Timestamp)>,
    at: Timestamp,
}

impl CompletedFire {
    pub(crate) fn new(
        place: FirePlace,
        at: Timestamp,
        completion: Completion,
        context: &ReportContext<'_>,
    ) -> Self {
        let origin = Origin {
            topic: context.topic.into(),
            partition: place.partition,
            offset: place.offset,
        };
        let mut fire = None;
        let (report, result, dead_letter) = match completion {
            Completion::Attempt(of, response, duration) => {
                fire = Some((of.id.clone(), of.fired));
                let worker = context.worker;
                let made = AttemptRecord { response: &response, duration, ended_at: at, worker };
                let report =
                    FireReport::of_attempt(*of, &made, origin, context.default_retry_policy);
                let (result, dead_letter) = counted(&report, &response);
                (report, Some(result), dead_letter)
            }
            Completion::Deferred { fire: of, due, reason } => {
                fire = Some((of.id.clone(), of.fired));
                (FireReport::of_deferral(*of, due, reason), None, None)
            }
            Completion::Withdrawn { id, report_end } => {
                (FireReport::of_withdrawal(id, report_end, at), Some("withdrawn"), None)
            }
            Completion::WithdrawalProcessed => (FireReport::default(), None, None),
            Completion::Unknown(of) => {
                fire = Some((of.id.clone(), of.fired));
                (FireReport::of_unknown(*of, origin, at), None, Some("unknown"))
            }
            Completion::Unreadable(record) => {
                (FireReport::of_unreadable(record, origin, at), None, Some("unreadable"))
            }
        };
        let bytes = bytes_of(&report);
        Self { place, report, bytes, result, dead_letter, fire, at }
    }

    /// What is written instead if a topic refuses a record of this: a dead letter instead of a
    /// signal, and a dead letter without payload, headers and history instead of a larger one.
    /// `None` if nothing smaller is left.
    pub(crate) fn after_refusal(&self, context: &ReportContext<'_>, reason: &str) -> Option<Self> {
        let origin = Origin {
            topic: context.topic.into(),
            partition: self.place.partition,
            offset: self.place.offset,
        };
        let content = match (&self.report.signal, &self.report.dead_letter) {
            (Some(Signal::Retry(request)), _) => {
                let (id, fired) = self.fire.clone()?;
                let request = request.clone();
                let attempts = request.history.as_ref().map_or(0, |it| it.last_number());
                let fire = Fire {
                    id,
                    scheduled: request.scheduled,
                    fired,
                    definition: request.definition,
                    history: request.history,
                    report_end: request.report_end,
                    priority: request.priority,
                };
                Content::Fire { fire, attempts }
            }
            (_, Some(letter)) => smaller(&letter.content)?,
            _ => return None,
        };
        let why = format!("no topic takes the record about it: {reason}");
        let why = match &self.report.dead_letter {
            Some(before) => format!("{}; {why}; its payload is not kept", before.reason),
            None => why,
        };
        let ended = match &content {
            Content::Fire { fire, .. } if fire.report_end => {
                Some(Signal::CallbackEnded(CallbackEnded { id: fire.id.clone(), ok: false }))
            }
            _ => None,
        };
        let mut outcome = self.report.outcome.clone();
        if let Some(OutcomeKind::Failed { retry_at, .. }) =
            outcome.as_mut().map(|outcome| &mut outcome.kind)
        {
            *retry_at = None;
        }
        let letter = DeadLetter { origin, reason: why, at: self.at, content };
        let report = FireReport { outcome, signal: ended, dead_letter: Some(letter) };
        let bytes = bytes_of(&report);
        let (result, dead_letter) = (self.result.map(|_| "exhausted"), Some("refused"));
        let fire = self.fire.clone();
        Some(Self { place: self.place, report, bytes, result, dead_letter, fire, at: self.at })
    }
}

/// The same letter without what makes it large; `None` if it has nothing of that.
fn smaller(content: &Content) -> Option<Content> {
    match content {
        Content::Fire { fire, attempts } => {
            let is_small = fire.definition.payload.is_none()
                && fire.definition.headers.is_empty()
                && fire.history.is_none();
            let definition =
                Definition { payload: None, headers: Vec::new(), ..fire.definition.clone() };
            let fire = Fire { definition, history: None, ..fire.clone() };
            (!is_small).then_some(Content::Fire { fire, attempts: *attempts })
        }
        Content::Record { value: None, headers, .. } if headers.is_empty() => None,
        Content::Record { key, .. } => {
            Some(Content::Record { key: key.clone(), value: None, headers: Vec::new() })
        }
        Content::Mark(_) => None,
    }
}

fn counted(
    report: &FireReport,
    response: &CallbackResponse,
) -> (&'static str, Option<&'static str>) {
    let is_impossible = matches!(response, CallbackResponse::Unsendable(_));
    let dead_letter = if is_impossible { "impossible" } else { "exhausted" };
    match (&report.signal, &report.dead_letter) {
        (Some(Signal::Retry(_)), _) => ("retried", None),
        (_, Some(_)) => ("exhausted", Some(dead_letter)),
        (_, None) => ("delivered", None),
    }
}

/// About how many bytes a report has.
fn bytes_of(report: &FireReport) -> usize {
    let signal = match &report.signal {
        Some(Signal::Retry(request)) => {
            let attempts = request.history.as_ref().map_or(0, |it| it.attempts.len());
            request.definition.content_bytes() + attempts * ATTEMPT_BYTES
        }
        _ => 0,
    };
    let letter = match report.dead_letter.as_ref().map(|letter| &letter.content) {
        Some(Content::Fire { fire, .. }) => {
            let attempts = fire.history.as_ref().map_or(0, |it| it.attempts.len());
            fire.definition.content_bytes() + attempts * ATTEMPT_BYTES
        }
        Some(Content::Record { value, .. }) => value.as_ref().map_or(0, |value| value.len()),
        Some(Content::Mark(_)) | None => 0,
    };
    RESULT_BYTES + signal + letter
}
