//! A run as input of the checker: what was acknowledged, what a `read_committed` reader sees.
//!
//! Invariant: everything is read from the logs; what an operator requested to be replayed may be
//! repeated. Triggers that fire once and have no lifecycle are checked as in real runs; those with
//! a lifecycle by their owner's outcomes and fires, in their order.

mod deleted;
mod dependencies;
mod history;
mod lifecycle;
mod lifecycle_tests;
mod neighbours;
mod pending_generation;
mod records;
mod tests;
mod trigger_records;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use orloj_core::codec::registration::FORWARDED;
use orloj_core::engine::cursor::Cursor;
use orloj_core::model::dead_letter::Content;
use orloj_core::model::definition::Target;
use orloj_core::model::entry::FireId;
use orloj_core::model::fire::Fire;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::signal::Signal;
use orloj_core::model::{Offset, Timestamp};

pub(super) use neighbours::{fires_into_topics, lateness_of_fires};

use deleted::was_cut;
use history::{EventKind, SimulatedEvent};
use lifecycle::SimulatedIdle;

pub(super) use trigger_records::records_of;

use super::broker::{
    SimulatedBroker, SimulatedDecidedOffsets, SimulatedEffect, SimulatedRawRecord, SimulatedSend,
};
use super::clients::{Intent, UserRequest, serial};
use super::cluster::{GRACE, PARTITIONS, REFUSING, partition_of};
use super::fault_kinds::FaultKind;
use super::run::SimulationRun;
use crate::audit::report::Finding;
use crate::audit::{
    AcknowledgedCommand, AcknowledgedCommands, AttemptKey, AuditInput, AuditReport, CommandKind,
    ObservedFire, ObservedRetry, OwnerAnswer, OwnerAnswers, RequestedRetry, Violation, answer,
};

/// What the logs say.
#[derive(Default)]
struct ObservedRun {
    commands: AcknowledgedCommands,
    /// Those about triggers with a lifecycle.
    lifecycles: AcknowledgedCommands,
    answers: OwnerAnswers,
    fires: Vec<ObservedFire>,
    retried: Vec<ObservedRetry>,
    reported: Vec<RequestedRetry>,
    /// What the checker of real runs could not see.
    findings: Vec<Finding>,
    /// Attempts that were reported more than once.
    doubled: BTreeSet<AttemptKey>,
    /// The number of the takeover in which each of those was first made.
    made: BTreeMap<AttemptKey, u64>,
    /// Attempts whose request was deleted although it was needed: they may be missing.
    deleted_retries: HashSet<AttemptKey>,
    /// Registrations that a replay has stopped or ignored, by trigger and generation.
    undone: HashSet<(String, Offset)>,
}

/// Checks a run. `at_rest`: whether the system became idle in time. `None`: faults continue, so
/// that what is missing may still happen.
pub(super) fn check_run(run: &mut SimulationRun, at_rest: Option<bool>) -> AuditReport {
    let mut observed = ObservedRun::default();
    for p in 0..PARTITIONS {
        observed.collect_inputs(run, p, at_rest.is_some());
        observed.collect_outputs(run, p, at_rest.is_some());
    }
    observed.check_forwarding(run, at_rest.is_some());
    observed.check_withdrawals(run);
    observed.excuse_missing_attempts(run);
    observed.keep_first_answers(run);
    let of_lifecycles = observed.take_lifecycle_attempts();
    let ObservedRun { commands, answers, fires, retried, reported, .. } = &observed;
    let input = AuditInput {
        commands,
        answers,
        fires,
        retried,
        reported,
        // An owner's clock may be ahead of the broker's, and have been so all along.
        margin: GRACE + 2 * run.cluster.skew + 1,
        as_of: if at_rest.is_some() { run.cluster.broker.now } else { 0 },
        is_idle: at_rest.unwrap_or(false),
    };
    let mut report = input.check();
    let (retried, reported) = &of_lifecycles;
    let input = AuditInput { commands: &observed.lifecycles, retried, reported, ..input };
    report.findings.append(&mut input.check_attempts_only().findings);
    report.findings.append(&mut observed.findings);
    if let Some(why) = &run.unexpected_refusal {
        report.add(Violation::Stuck, "", 0, format!("a partition is refused: {why}"));
    }
    if let Some(why) = &run.unexpected_end {
        report.add(Violation::Stuck, "", 0, why.clone());
    }
    if at_rest == Some(false) {
        let why = "the system did not become idle".to_owned();
        report.add(Violation::Stuck, "", 0, why);
    }
    report.findings.retain(|finding| !observed.was_requested_by_operator(run, finding));
    records::check_records(run, at_rest.is_some(), &mut report.findings);
    report.findings.retain(|finding| !observed.was_deleted(run, finding) && !was_cut(run, finding));
    report.fired += check_lifecycles(run, at_rest, &mut report.findings);
    if at_rest.is_some() {
        neighbours::count_fires_beside_outages(run);
    }
    report
}

/// Checks all triggers with a lifecycle; returns how often they fired.
fn check_lifecycles(
    run: &SimulationRun,
    at_rest: Option<bool>,
    findings: &mut Vec<Finding>,
) -> usize {
    let histories = history::collect(run);
    let rest = at_rest.map(|quiet| SimulatedIdle {
        quiet,
        // Everything that was due has had time to fire.
        until: run.users.last_due.max(run.cluster.broker.now.saturating_sub(1_000)),
    });
    for (trigger, history) in &histories {
        lifecycle::check_trigger(
            trigger,
            history,
            rest,
            run.cluster.callback_result_timeout,
            findings,
        );
    }
    dependencies::check_dependencies(run, &histories, rest, findings);
    let fired = |event: &&SimulatedEvent<'_>| matches!(event.what, EventKind::Fired(_));
    histories.values().map(|history| history.events.iter().filter(fired).count()).sum()
}

/// Whether a trigger has a lifecycle, by its id: see
/// [`RequestGenerator`](super::clients::RequestGenerator).
fn has_lifecycle(trigger: &str) -> bool {
    trigger.starts_with(['r', 'c', 'd'])
}

impl ObservedRun {
    fn collect_inputs(&mut self, run: &SimulationRun, p: usize, all: bool) {
        let broker = &run.cluster.broker;
        let decided = broker.group.committed[p].as_ref().map_or(0, all_answered_until);
        for (offset, appended, raw) in broker.triggers[p].committed(&broker.transaction_states) {
            if partition_of(&raw.key) != p && !is_forwarded(raw) {
                continue; // its copy counts
            }
            let (kind, commands) = match &run.users.intents[serial(raw)] {
                Intent::Plain(kind) => (kind.clone(), &mut self.commands),
                Intent::Lifecycle(request) => match &**request {
                    UserRequest::Register(wanted) => {
                        let payload = wanted.payload.clone();
                        (CommandKind::Register { due: 0, payload }, &mut self.lifecycles)
                    }
                    UserRequest::Cancel => (CommandKind::Cancel, &mut self.lifecycles),
                    UserRequest::Command(_) | UserRequest::Change(_) => continue,
                },
            };
            // An unreadable record is forwarded like any other, and rejected there.
            let ack = all || offset < decided;
            let command =
                AcknowledgedCommand { offset, appended, acknowledged: appended, ack, kind };
            commands.entry(text(&raw.key)).or_default().push(command);
        }
        let mut seen = BTreeMap::<AttemptKey, u32>::new();
        for (offset, _, signal) in broker.signals[p].committed(&broker.transaction_states) {
            let Signal::Retry(request) = signal else { continue };
            let of = attempt(&request.id);
            *seen.entry(of.clone()).or_default() += 1;
            if run.deleted[p].signals.iter().any(|deleted| deleted.contains(&offset)) {
                self.deleted_retries.insert(of.clone());
            }
            self.reported.push(RequestedRetry { key: of, due: request.due, may_be_missing: false });
        }
        let doubled = seen.into_iter().filter(|(_, times)| *times > 1);
        self.doubled.extend(doubled.map(|(of, _)| of));
    }

    fn collect_outputs(&mut self, run: &mut SimulationRun, p: usize, count: bool) {
        let cluster = &mut *run.cluster;
        let counts = &mut cluster.counts;
        let broker = &cluster.broker;
        for (_, _, sent) in broker.fires[p].committed(&broker.transaction_states) {
            let SimulatedEffect::Callback(fire) = &sent.effect else { continue };
            let payload = fire.definition.payload.as_deref().unwrap_or_default();
            if fire.id.attempt == 1 && fire.id.deferral == 0 {
                if has_lifecycle(fire.id.trigger.as_str()) {
                    continue;
                }
                self.fires.push(fired(&fire.id, fire.scheduled, visible(broker, sent), payload));
            } else {
                let payload =
                    records::registered_payload((broker, &run.users), (p, run.replayed[p]), fire);
                self.collect_retry(&fire.id, sent, broker.decided_before(p, sent), payload);
            }
            if matches!(fire.definition.target, Target::Topic(_)) {
                self.find(Violation::WrongContent, &fire.id, "a worker was given a topic's");
            }
        }
        for (_, _, sent) in broker.others[p].committed(&broker.transaction_states) {
            match &sent.effect {
                SimulatedEffect::TopicFire(fire) => {
                    if has_lifecycle(fire.id.trigger.as_str()) {
                        continue;
                    }
                    let at = visible(broker, sent);
                    self.fires.push(fired(&fire.id, fire.scheduled, at, &fire.payload));
                }
                SimulatedEffect::Outcome(outcome) => {
                    if let Some(fault) = fault_of(outcome).filter(|_| count) {
                        counts.add(fault);
                    }
                    if let Some((offset, answer)) = answer(outcome)
                        && !has_lifecycle(outcome.trigger.as_str())
                    {
                        let key = (outcome.trigger.as_str().to_owned(), offset);
                        self.answers.entry(key).or_default().push(answer);
                    }
                }
                SimulatedEffect::DeadLetter(letter) => {
                    let Content::Fire { fire, .. } = &letter.content else { continue };
                    if target_of(fire) == Some(REFUSING) {
                        let at = visible(broker, sent);
                        let payload = fire.definition.payload.as_deref().unwrap_or_default();
                        self.fires.push(fired(&fire.id, fire.scheduled, at, payload));
                        counts.add_many(FaultKind::RefusedDeadLetter, u64::from(count));
                    } else {
                        self.find(Violation::Lost, &fire.id, &letter.reason);
                    }
                }
                _ => {}
            }
        }
    }

    /// A report that arrived twice may cause two attempts if the owner changed in between, or the
    /// trigger was cancelled: only the current owner remembers attempts, and not for ever.
    fn collect_retry(
        &mut self,
        id: &FireId,
        sent: &SimulatedSend,
        before: SimulatedDecidedOffsets,
        payload: Vec<u8>,
    ) {
        let of = attempt(id);
        if self.doubled.contains(&of) {
            let first = *self.made.entry(of.clone()).or_insert(sent.takeover_number);
            let again = self.retried.iter().any(|retried| retried.key == of);
            // Of a recurring trigger only the attempts of some occurrences are remembered.
            let forgotten = of.trigger.starts_with('r');
            if again && (forgotten || first != sent.takeover_number || self.was_cancelled(&of)) {
                return;
            }
        }
        let (visible, decided) = (sent.clock, before.triggers);
        self.retried.push(ObservedRetry { key: of, visible, decided_before: decided, payload });
    }

    fn was_cancelled(&self, of: &AttemptKey) -> bool {
        let later =
            |c: &AcknowledgedCommand| c.kind == CommandKind::Cancel && c.offset > of.generation;
        let commands = if has_lifecycle(&of.trigger) { &self.lifecycles } else { &self.commands };
        commands.get(&of.trigger).is_some_and(|commands| commands.iter().any(later))
    }

    /// A withdrawn fire was cancelled, and no worker made its request.
    fn check_withdrawals(&mut self, run: &SimulationRun) {
        for (place, id) in &run.workers.withdrawn {
            if run.workers.requested.contains(place) {
                self.find(Violation::NotStopped, id, "withdrawn, and requested");
            }
            if !self.was_cancelled(&attempt(id)) {
                self.find(Violation::Lost, id, "withdrawn, and never cancelled");
            }
        }
    }

    /// Every command in a wrong partition has one copy in its right one.
    fn check_forwarding(&mut self, run: &SimulationRun, all: bool) {
        let broker = &run.cluster.broker;
        let mut copies = BTreeMap::<usize, u32>::new();
        let records = |p: usize| broker.triggers[p].committed(&broker.transaction_states);
        for p in 0..PARTITIONS {
            for (_, _, raw) in records(p).filter(|(_, _, raw)| is_forwarded(raw)) {
                *copies.entry(serial(raw)).or_default() += 1;
            }
        }
        let mut accounted = HashSet::new();
        for p in 0..PARTITIONS {
            let decided = broker.group.committed[p].as_ref().map_or(0, all_answered_until);
            // What waits behind a deleted record of its trigger is lost with it.
            let mut deleted_keys = HashSet::<&[u8]>::new();
            for (offset, _, raw) in records(p) {
                if run.deleted[p].triggers.iter().any(|range| range.contains(&offset)) {
                    let _known = deleted_keys.insert(raw.key.as_ref());
                }
                if partition_of(&raw.key) == p || is_forwarded(raw) || !all && offset >= decided {
                    continue;
                }
                let serial = serial(raw);
                accounted.insert(serial);
                let times = copies.get(&serial).copied().unwrap_or(0);
                let violation = match times {
                    0 if deleted_keys.contains(raw.key.as_ref()) => continue,
                    0 => Violation::Lost,
                    1 => continue,
                    _ if run.is_replayed(p, offset) => continue,
                    _ => Violation::Duplicate,
                };
                let trigger = text(&raw.key);
                let why = format!("forwarded {times} times from {p}@{offset}");
                self.findings.push(Finding {
                    violation,
                    trigger,
                    generation: offset,
                    command_offset: offset,
                    why,
                });
            }
        }
        if all && copies.keys().any(|serial| !accounted.contains(serial)) {
            let (trigger, why) = (String::new(), "forwarded without an original".to_owned());
            let violation = Violation::Unexpected;
            self.findings.push(Finding {
                violation,
                trigger,
                generation: 0,
                command_offset: 0,
                why,
            });
        }
    }

    /// Of commands that were replayed the first answers count; what any of them stopped may be
    /// missing.
    fn keep_first_answers(&mut self, run: &SimulationRun) {
        for ((trigger, offset), answers) in &mut self.answers {
            if !run.is_replayed(partition_of(trigger.as_bytes()), *offset) {
                continue;
            }
            for answer in answers.iter() {
                let undone = match answer {
                    OwnerAnswer::Stopped(generation) => *generation,
                    OwnerAnswer::Kept(_) => *offset,
                    OwnerAnswer::NothingPending | OwnerAnswer::Rejected => continue,
                };
                self.undone.insert((trigger.clone(), undone));
            }
            answers.truncate(1);
        }
    }

    /// Whether a finding is explained by a replay that an operator requested: what was written
    /// before it counts as new from an offset on.
    fn was_requested_by_operator(&self, run: &SimulationRun, finding: &Finding) -> bool {
        let p = partition_of(finding.trigger.as_bytes());
        match finding.violation {
            Violation::Duplicate | Violation::NotStopped | Violation::Unexpected => {
                // What it stopped or kept may be a registration that was replayed, or its retry.
                let key = (finding.trigger.clone(), finding.command_offset);
                let stopped =
                    self.answers.get(&key).into_iter().flatten().filter_map(
                        |answer| match answer {
                            OwnerAnswer::Stopped(generation) | OwnerAnswer::Kept(generation) => {
                                Some(*generation)
                            }
                            OwnerAnswer::NothingPending | OwnerAnswer::Rejected => None,
                        },
                    );
                let concerned = [finding.command_offset, finding.generation];
                concerned.into_iter().chain(stopped).any(|offset| run.is_replayed(p, offset))
            }
            Violation::Lost | Violation::Stuck => {
                self.undone.contains(&(finding.trigger.clone(), finding.generation))
            }
            _ => false,
        }
    }

    /// A cancel that was replayed stops all retries that are pending then. A request that was
    /// deleted before it was committed as read may have been read all the same.
    fn excuse_missing_attempts(&mut self, run: &SimulationRun) {
        for RequestedRetry { key: of, may_be_missing, .. } in &mut self.reported {
            let p = partition_of(of.trigger.as_bytes());
            *may_be_missing =
                self.deleted_retries.contains(of) || run.is_replayed(p, of.generation);
        }
    }

    /// Takes out the attempts of triggers with a lifecycle.
    fn take_lifecycle_attempts(&mut self) -> (Vec<ObservedRetry>, Vec<RequestedRetry>) {
        let retried = self.retried.extract_if(.., |retried| has_lifecycle(&retried.key.trigger));
        let retried = retried.collect();
        let reported =
            self.reported.extract_if(.., |reported| has_lifecycle(&reported.key.trigger));
        (retried, reported.collect())
    }

    fn find(&mut self, violation: Violation, id: &FireId, why: &str) {
        let (trigger, why) = (id.trigger.as_str().to_owned(), why.to_owned());
        let (generation, by) = (id.generation, id.generation);
        self.findings.push(Finding { violation, trigger, generation, command_offset: by, why });
    }
}

/// The kind of rare event that an outcome reports.
fn fault_of(outcome: &Outcome) -> Option<FaultKind> {
    match outcome.kind {
        OutcomeKind::Kept { .. } => Some(FaultKind::Kept),
        OutcomeKind::Cancelled { .. } if outcome.answers.is_none() => {
            Some(FaultKind::RetryMeetsCancel)
        }
        OutcomeKind::Skipped { .. } => Some(FaultKind::OccurrenceSkipped),
        OutcomeKind::Paused { .. } if outcome.answers.is_none() => Some(FaultKind::FailedTooOften),
        OutcomeKind::Called { .. } => Some(FaultKind::Called),
        OutcomeKind::Expired { .. } => Some(FaultKind::Expired),
        OutcomeKind::Unmet { .. } => Some(FaultKind::Unmet),
        _ => None,
    }
}

/// The topic that a fire is for.
fn target_of(fire: &Fire) -> Option<&str> {
    match &fire.definition.target {
        Target::Topic(target) => Some(target.topic.as_str()),
        Target::Http(_) => None,
    }
}

/// Below this, every record of `triggers` is decided. An offset that an operator has set says
/// nothing of the records that were parked below it.
fn all_answered_until((offset, metadata): &(Offset, String)) -> Offset {
    let cursor = Cursor::from_metadata(*offset, metadata);
    cursor.map_or(0, |(cursor, _owner)| cursor.decided_until())
}

fn is_forwarded(raw: &SimulatedRawRecord) -> bool {
    raw.headers.iter().any(|header| header.name == *FORWARDED)
}

fn text(key: &[u8]) -> String {
    std::str::from_utf8(key).unwrap().to_owned()
}

fn attempt(id: &FireId) -> AttemptKey {
    AttemptKey {
        trigger: id.trigger.as_str().to_owned(),
        generation: id.generation,
        occurrence: id.occurrence,
        attempt: id.attempt,
        deferral: id.deferral,
    }
}

/// When a fire was decided at the latest, and was not visible before, by its owner's clock.
fn visible(broker: &SimulatedBroker, sent: &SimulatedSend) -> Timestamp {
    sent.clock.min(broker.committed_at(sent).unwrap_or(Timestamp::MAX))
}

fn fired(id: &FireId, due: u64, visible: Timestamp, payload: &[u8]) -> ObservedFire {
    ObservedFire {
        trigger: id.trigger.as_str().to_owned(),
        generation: id.generation,
        occurrence: id.occurrence,
        due,
        visible,
        payload: payload.to_vec(),
    }
}
