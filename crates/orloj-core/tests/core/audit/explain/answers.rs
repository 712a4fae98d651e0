//! The answers about one trigger: each with the record that it speaks of, or with the state that it
//! shows.
//!
//! Invariant: what a view shows is not older than what the same gateway has answered before, and
//! never newer than the log; only that a trigger has fired may be shown later, but not after a
//! fire-now, and not in what is complete up to a later time. A refusal is not older than what any
//! gateway has answered before.

use super::claims::{Claim, assign};
use super::order::{TriggerOrder, TriggerPhase};
use super::{
    Answer, CommandWord, Decision, LoggedRecord, Operation, RecordKind, SentRequest, ShownStatus,
    Time,
};

/// Checks all requests about one trigger; `why` gets each answer that nothing explains.
pub(super) fn check(
    order: &TriggerOrder<'_>,
    requests: &[&SentRequest],
    slack: Time,
    why: &mut Vec<String>,
) {
    let mut check = AnswerCheck { order, requests, slack, known: Vec::new(), fired: Vec::new() };
    let claims: Vec<_> = requests.iter().map(|request| check.claim(request)).collect();
    let left = assign(&claims, order.log.records.len());
    for request in left.requests {
        let text = "the log has no record for it that no other request has written";
        why.push(format!("{:?}: {text}", requests[request]));
    }
    let left = left.records.into_iter().filter(|record| !check.is_planned_again(*record));
    for record in left.collect::<Vec<_>>() {
        why.push(format!("{:?}: no request has written it", order.log.records[record]));
    }
    // Who is answered later may know more.
    let ended = |at: &usize| requests[*at].answer.as_ref().map(|(ended, _)| *ended);
    let mut answered: Vec<_> = (0..requests.len()).filter(|at| ended(at).is_some()).collect();
    answered.sort_by_key(ended);
    for at in answered {
        let Some((ended, answer)) = &requests[at].answer else { continue };
        match check.place_of(requests[at], (*ended, answer), &claims[at]) {
            Ok(place) => check.remember(requests[at], (*ended, answer), place),
            Err(reason) => why.push(format!("{:?}: {reason}", requests[at])),
        }
    }
}

struct AnswerCheck<'a> {
    order: &'a TriggerOrder<'a>,
    requests: &'a [&'a SentRequest],
    slack: Time,
    /// Which gateway has answered when, and how many records a later answer of it knows at least.
    known: Vec<(usize, Time, usize)>,
    /// Which gateway has answered when that a generation has fired, or was called.
    fired: Vec<(usize, Time, Option<u64>)>,
}

impl AnswerCheck<'_> {
    /// The records that may be the one of a request.
    fn claim(&self, request: &SentRequest) -> Claim {
        let Some((ended, answer)) = &request.answer else {
            return self.claim_of(request, Time::MAX, false, |_| true);
        };
        let until = ended + self.slack;
        match answer.status {
            503 if answer.not_written => Claim::default(),
            // What is not acknowledged may be written later.
            503 => self.claim_of(request, Time::MAX, false, |_| true),
            202 if is_unconditional(request) => self.claim_of(request, until, false, |_| true),
            202 => self.claim_of(request, until, true, |_| true),
            _ => {
                let (must, says) = said(&request.operation, answer);
                self.claim_of(request, until, must, says)
            }
        }
    }

    fn claim_of(
        &self,
        request: &SentRequest,
        until: Time,
        must: bool,
        says: impl Fn(&Decision) -> bool,
    ) -> Claim {
        let from = request.started.saturating_sub(self.slack);
        let is_of = |record: &LoggedRecord| {
            let in_time = (from..=until).contains(&record.appended);
            in_time
                && is_record_of(&request.operation, record)
                && !(is_unconditional(request) && is_overtaken(record))
                && record.decisions.iter().all(&says)
        };
        let records = self.order.log.records.iter().enumerate();
        Claim { must, records: records.filter(|(_, r)| is_of(r)).map(|(at, _)| at).collect() }
    }

    /// Whether a change without a condition was planned again after this record, which another
    /// change had come before.
    fn is_planned_again(&self, record: usize) -> bool {
        let record = &self.order.log.records[record];
        let mut unconditional = self.requests.iter().filter(|request| is_unconditional(request));
        is_overtaken(record)
            && unconditional.any(|request| {
                is_record_of(&request.operation, record)
                    && request.started <= record.appended + self.slack
            })
    }

    /// After how many records what the answer says is so, at least.
    fn place_of(
        &self,
        request: &SentRequest,
        (ended, answer): (Time, &Answer),
        claim: &Claim,
    ) -> Result<usize, &'static str> {
        let from = self.known_before(request);
        let until = self.written_by(ended);
        let written = claim.must.then(|| claim.records.first().map_or(from, |at| at + 1));
        let mut places = from..=until;
        match (&request.operation, answer.status, answer.code.as_str()) {
            (_, 503, _) => Ok(0),
            (Operation::Get, ..) if answer.status == 200 => {
                let shown = |place: &usize| self.is_shown(request, *place, answer, ended);
                places.find(shown).ok_or("it was never so, or not any more")
            }
            (Operation::Create { key: true, .. }, ..) => self.keyed(request, ended, answer),
            // What is refused by the view alone.
            (Operation::Get | Operation::Patch { .. }, 404, _) => {
                places.find(|place| self.is_unknown(*place)).ok_or("there was a trigger")
            }
            (Operation::Patch { if_match: Some(wanted), .. }, 412, _) => {
                let is_other = Some(*wanted) != answer.revision;
                let has = |place: &usize| self.revision(*place) == answer.revision;
                let found = is_other.then(|| places.find(has)).flatten();
                found.or_else(|| claim.records.first().map(|at| at + 1)).ok_or("no such revision")
            }
            (Operation::Patch { .. }, 409, "settled") => {
                places.find(|place| self.is_settled(*place, ended)).ok_or("it had not settled")
            }
            (Operation::Patch { .. }, 409, "not-pending") => {
                let written = claim.records.first().map(|at| at + 1);
                self.not_pending(written.ok_or("no record was refused so")?, until, answer)
            }
            (
                Operation::FireOnce | Operation::BatchItem { key: true, .. },
                409,
                "request-in-flight",
            ) => self.in_flight(request, ended),
            (Operation::Cancel | Operation::Command(_) | Operation::FireOnce, 404, _) => {
                let unknown = |place: &usize| self.is_unknown(*place);
                let found = (written.unwrap_or(from)..=until).find(unknown);
                found.ok_or("there was a trigger")
            }
            (
                Operation::Cancel | Operation::Command(_) | Operation::FireOnce,
                409,
                "not-pending",
            ) => self.not_pending(written.unwrap_or(from), until, answer),
            // Its owner has not decided it yet: what is shown next may be from before.
            (_, 202, _) => Ok(0),
            (_, 200 | 201, _) => written.ok_or("such a request writes a record"),
            _ => Err("no such answer is expected"),
        }
    }

    fn remember(&mut self, request: &SentRequest, (ended, answer): (Time, &Answer), place: usize) {
        let SentRequest { gateway, operation, .. } = request;
        let gateway = *gateway;
        self.known.push((gateway, ended, place));
        let has_called =
            matches!(operation, Operation::Command(CommandWord::FireNow) | Operation::FireOnce);
        let says_fired = has_called || answer.shown == Some(ShownStatus::Fired);
        if answer.status == 200 && says_fired {
            self.fired.push((gateway, ended, answer.generation));
        }
    }

    /// How many records the answer knows at least. Another gateway may show what was before, but
    /// not refuse what is now.
    fn known_before(&self, request: &SentRequest) -> usize {
        let is_refusal = matches!(request.operation, Operation::Patch { .. });
        let known = self.known.iter().filter(|(gateway, ended, _)| {
            (is_refusal || *gateway == request.gateway) && *ended < request.started
        });
        known.map(|(_, _, place)| *place).max().unwrap_or(0)
    }

    /// Whether the answer must show that the generation has fired: this gateway had answered that
    /// before, or the answer is complete up to a later time.
    fn knows_fire(&self, request: &SentRequest, answer: &Answer, generation: u64) -> bool {
        let Some(fired_at) = self.order.fired_at(generation).map(|at| at + self.slack) else {
            return false;
        };
        let has_said = self.fired.iter().any(|(gateway, ended, fired)| {
            let is_before = *gateway == request.gateway && *ended < request.started;
            is_before && *fired == Some(generation) && fired_at <= *ended
        });
        has_said || answer.as_of > Some(fired_at)
    }

    fn written_by(&self, time: Time) -> usize {
        let records = &self.order.log.records;
        records.iter().take_while(|record| record.appended <= time + self.slack).count()
    }

    fn revision(&self, place: usize) -> Option<u64> {
        self.order.states[place].defined.as_ref().map(|defined| defined.revision)
    }

    fn is_unknown(&self, place: usize) -> bool {
        self.order.states[place].phase == TriggerPhase::Absent
    }

    fn is_settled(&self, place: usize, ended: Time) -> bool {
        let settled = [ShownStatus::Fired, ShownStatus::Cancelled];
        self.statuses(place, ended).iter().any(|status| settled.contains(status))
    }

    /// The statuses that can be seen at a time.
    fn statuses(&self, place: usize, ended: Time) -> Vec<ShownStatus> {
        let mut shown = self.order.shown(place);
        let generation = self.order.states[place].generation();
        let fired_at = generation.and_then(|generation| self.order.fired_at(generation));
        let has_fired = fired_at.is_some_and(|at| at <= ended + self.slack);
        shown.retain(|status| *status != ShownStatus::Fired || has_fired);
        shown
    }

    /// Whether the trigger is what the answer shows.
    fn is_shown(&self, request: &SentRequest, place: usize, answer: &Answer, ended: Time) -> bool {
        let Some(defined) = &self.order.states[place].defined else { return false };
        let is_same = answer.generation == Some(defined.generation)
            && answer.revision == Some(defined.revision)
            && answer.name.as_deref() == Some(defined.name.as_str())
            && answer.fire_at.is_none_or(|at| at == defined.fire_at);
        let mut shown = self.statuses(place, ended);
        if self.knows_fire(request, answer, defined.generation) {
            shown.retain(|status| *status == ShownStatus::Fired);
        } else if shown.contains(&ShownStatus::Fired) {
            shown.push(defined.status_before());
        }
        is_same && answer.shown.is_some_and(|status| shown.contains(&status))
    }

    /// "Not pending", and what has become of the trigger.
    fn not_pending(
        &self,
        written: usize,
        until: usize,
        answer: &Answer,
    ) -> Result<usize, &'static str> {
        let Some(status) = answer.shown else { return Ok(written) };
        let shown = |place: &usize| self.order.shown(*place).contains(&status);
        match (written..=until).any(|place| shown(&place)) {
            true => Ok(written),
            false => Err("the status that it says is not what has become of the trigger"),
        }
    }

    /// "In flight": another request of this kind was in progress.
    fn in_flight(&self, request: &SentRequest, ended: Time) -> Result<usize, &'static str> {
        let kind = std::mem::discriminant(&request.operation);
        let others = self.requests.iter().filter(|other| !std::ptr::eq(**other, request));
        let mut others = others.filter(|other| other.gateway == request.gateway);
        let found = others.any(|other| {
            let until = other.answer.as_ref().map_or(Time::MAX, |(ended, _)| *ended);
            let is_alike = std::mem::discriminant(&other.operation) == kind;
            is_alike && other.started <= ended && request.started <= until
        });
        if found { Ok(0) } else { Err("no other request with this key was in progress") }
    }

    /// The answer to a request with a key: what the first one of that key was answered.
    fn keyed(
        &self,
        request: &SentRequest,
        ended: Time,
        answer: &Answer,
    ) -> Result<usize, &'static str> {
        let Operation::Create { name, .. } = &request.operation else { return Err("no creation") };
        let written = &self.order.log.records[..self.written_by(ended)];
        let mut accepted =
            written.iter().enumerate().filter_map(|(at, record)| match record.decisions.first() {
                Some(Decision::Accepted { fire_at, .. }) => Some((at, record, *fire_at)),
                _ => None,
            });
        match (answer.status, answer.code.as_str()) {
            (201, _) => {
                let found = accepted.find(|(_, record, fire_at)| {
                    record.name == *name
                        && answer.generation == Some(record.offset)
                        && answer.fire_at == Some(*fire_at)
                });
                found.map(|(at, ..)| at + 1).ok_or("that is no registration with this key")
            }
            (422, "idempotency-key-reused") => {
                let found = accepted.find(|(_, record, _)| record.name != *name);
                found.map(|(at, ..)| at + 1).ok_or("no other request had this key")
            }
            (409, "request-in-flight") => self.in_flight(request, ended),
            (422, "time-passed") => self.never_accepted().map(|()| 0),
            (202, _) => Ok(0),
            _ => Err("no such answer is expected"),
        }
    }

    /// A request with a key is refused for ever: nothing with this key was accepted, or will be.
    fn never_accepted(&self) -> Result<(), &'static str> {
        let has_key = |kind| kind == RecordKind::Register { keep: true, retain: true };
        let is_accepted = |decision: &Decision| matches!(decision, Decision::Accepted { .. });
        let mut keyed = self.order.log.records.iter().filter(|record| has_key(record.kind));
        match keyed.any(|record| record.decisions.iter().any(is_accepted)) {
            true => Err("a request with this key was accepted"),
            false => Ok(()),
        }
    }
}

/// Whether the request is a change that applies whatever others have changed.
fn is_unconditional(request: &SentRequest) -> bool {
    matches!(request.operation, Operation::Patch { if_match: None, .. })
}

/// Whether another record had come before the one that this change names.
fn is_overtaken(record: &LoggedRecord) -> bool {
    let is_kept = |decision: &Decision| matches!(decision, Decision::Kept { .. });
    matches!(record.kind, RecordKind::Change { .. }) && record.decisions.iter().all(is_kept)
}

/// Whether the record may be one that such a request writes.
fn is_record_of(operation: &Operation, record: &LoggedRecord) -> bool {
    match (operation, record.kind) {
        (Operation::Create { name, key }, RecordKind::Register { keep, retain }) => {
            *name == record.name && *key == (keep && retain) && record.key.is_none()
        }
        (Operation::BatchItem { name, key }, RecordKind::Register { keep: false, retain }) => {
            *name == record.name && *key == record.key.is_some() && *key == retain
        }
        (Operation::Patch { name, if_match }, RecordKind::Change { wanted }) => {
            *name == record.name
                && if if_match.is_some() { wanted == *if_match } else { wanted.is_some() }
        }
        (Operation::Cancel, RecordKind::Cancel) => true,
        (Operation::Command(word), RecordKind::Command(other)) => {
            *word == other && record.key.is_none()
        }
        (Operation::FireOnce, RecordKind::Command(CommandWord::FireNow)) => record.key.is_some(),
        _ => false,
    }
}

/// Whether an answer says that a record was written, and what it says was decided.
fn said<'a>(
    operation: &'a Operation,
    answer: &'a Answer,
) -> (bool, impl Fn(&Decision) -> bool + use<'a>) {
    let is_keyed = matches!(operation, Operation::Create { key: true, .. });
    let is_item = matches!(operation, Operation::BatchItem { .. });
    let is_patch = matches!(operation, Operation::Patch { .. });
    let is_refused = answer.status == 404 || answer.code == "not-pending";
    let must = match answer.status {
        200 | 201 => !is_keyed && *operation != Operation::Get,
        404 | 409 => is_refused && !is_keyed && !is_patch && *operation != Operation::Get,
        _ => false,
    };
    let says = move |decision: &Decision| match *decision {
        Decision::Accepted { generation, fire_at, replaced } => {
            let is_same = answer.generation == Some(generation) && answer.fire_at == Some(fire_at);
            answer.status == 201 && is_same && (is_keyed || is_item || answer.replaced == replaced)
        }
        Decision::Kept { .. } if is_keyed => matches!(answer.status, 201 | 202 | 422),
        Decision::Kept { generation, .. } if is_patch => {
            answer.status == 412 && answer.revision == Some(generation)
        }
        Decision::Kept { generation, fire_at } => {
            answer.status == 200
                && answer.generation == Some(generation)
                && answer.fire_at == Some(fire_at)
        }
        Decision::Changed { generation, revision, fire_at } => {
            answer.status == 200
                && answer.generation == Some(generation)
                && answer.revision == Some(revision)
                && answer.fire_at == Some(fire_at)
        }
        Decision::Cancelled { generation }
        | Decision::Paused { generation }
        | Decision::Called { generation } => {
            answer.status == 200 && answer.generation == Some(generation)
        }
        Decision::Resumed { generation, fire_at } => {
            answer.status == 200
                && answer.generation == Some(generation)
                && answer.fire_at == Some(fire_at)
        }
        Decision::NotPending { fired } => {
            let is_said = matches!(answer.status, 404 | 409);
            is_said && (answer.status == 404 || answer.fired == fired)
        }
        Decision::Refused => false,
    };
    (must, says)
}
