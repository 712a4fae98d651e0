//! What is promised of callbacks, judged by what was requested and what is committed.
//!
//! Invariant: a finding names the fire, and what contradicts what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use orloj_core::model::dead_letter::Content;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::outcome::OutcomeKind;
use orloj_core::model::signal::Signal;
use orloj_core::model::text::Text;
use orloj_core::model::{Offset, Timestamp};

use super::owner::ATTEMPTS_MAX;
use super::receivers::{AssignmentId, Request};
use super::run::CallbackRun;
use crate::simulation::broker::SimulatedEffect;
use crate::simulation::cluster::PARTITIONS;

/// How often what happened, over all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallbackCounts {
    fires: u64,
    requests: u64,
    repeated: u64,
    delivered: u64,
    withdrawn: u64,
    deferred: u64,
    refused: u64,
    unknown: u64,
    crashes: u64,
    zombies: u64,
    rebalances: u64,
    left: u64,
    expired_offsets: u64,
}

impl CallbackCounts {
    /// What never happened was not tested.
    pub(super) fn assert_all_happened(&self) {
        let text = self.to_string();
        assert!(
            !text.split_whitespace().any(|word| word == "0"),
            "something never happened:{text}"
        );
    }
}

impl fmt::Display for CallbackCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, what) in [
            (self.fires, "fires"),
            (self.requests, "requests"),
            (self.repeated, "repeated"),
            (self.delivered, "delivered"),
            (self.withdrawn, "withdrawn"),
            (self.deferred, "deferred"),
            (self.refused, "refused"),
            (self.unknown, "unknown"),
            (self.crashes, "crashes"),
            (self.zombies, "zombies"),
            (self.rebalances, "rebalances"),
            (self.left, "left"),
            (self.expired_offsets, "expired offsets"),
        ] {
            writeln!(f, "  {count:>9} {what}")?;
        }
        Ok(())
    }
}

/// A fire, without what is only of one attempt's record.
type AttemptKey = (Text, u32);

/// What is committed about all fires.
#[derive(Default)]
struct Committed {
    /// The fires: where each is.
    fires: BTreeMap<(usize, Offset), FireId>,
    /// Results of attempts: how many, and when the first was committed, if that is known.
    attempts: BTreeMap<AttemptKey, Vec<Option<Timestamp>>>,
    /// The next attempt that a failed one announces.
    announced: BTreeSet<AttemptKey>,
    withdrawn: BTreeSet<AttemptKey>,
    /// Retries and deferrals: trigger, attempt and deferral.
    signals: BTreeSet<(Text, u32, u32)>,
    /// Triggers with a dead letter, and whether it says that its delivery is unknown.
    letters: BTreeMap<Text, bool>,
    refused: u64,
}

/// The first finding. If the run `is_over`, every fire must have ended.
pub(super) fn judge(
    run: &CallbackRun,
    is_over: bool,
    counts: &mut CallbackCounts,
) -> Option<String> {
    let committed = committed(run);
    let requests = run.requests.borrow();
    if is_over {
        count(run, &committed, &requests, counts);
    }
    if let Some(end) = &run.unexpected_end {
        return Some(format!("UNEXPECTED END {end}"));
    }
    repeated(&requests, &committed)
        .or_else(|| beyond_policy(&requests))
        .or_else(|| withdrawn_and_requested(&requests, &committed))
        .or_else(|| reported_twice(&requests, &committed))
        .or_else(|| is_over.then(|| lost(run, &committed)).flatten())
}

fn count(
    run: &CallbackRun,
    committed: &Committed,
    requests: &[Request],
    counts: &mut CallbackCounts,
) {
    let places: BTreeSet<_> = requests.iter().map(|it| (it.partition, it.offset)).collect();
    counts.fires += committed.fires.len() as u64;
    counts.requests += requests.len() as u64;
    counts.repeated += (requests.len() - places.len()) as u64;
    counts.delivered += committed.attempts.len() as u64;
    counts.withdrawn += committed.withdrawn.len() as u64;
    counts.deferred +=
        committed.signals.iter().filter(|(.., deferral)| *deferral > 0).count() as u64;
    counts.refused += committed.refused;
    counts.unknown += committed.letters.values().filter(|unknown| **unknown).count() as u64;
    counts.crashes += run.faults.crashes;
    counts.zombies += run.faults.zombies;
    counts.rebalances += run.faults.rebalances;
    counts.left += run.faults.left;
    counts.expired_offsets += run.faults.expired_offsets;
}

fn committed(run: &CallbackRun) -> Committed {
    let (broker, mut all) = (&run.cluster.broker, Committed::default());
    let states = &broker.transaction_states;
    for p in 0..PARTITIONS {
        for (offset, _, sent) in broker.fires[p].committed(states) {
            if let SimulatedEffect::Callback(fire) = &sent.effect {
                let _new = all.fires.insert((p, offset), fire.id.clone());
            }
        }
        for (_, _, signal) in broker.signals[p].committed(states) {
            if let Signal::Retry(request) = signal {
                let FireId { trigger, attempt, deferral, .. } = request.id.clone();
                let _new = all.signals.insert((trigger, attempt, deferral));
            }
        }
        for (_, _, sent) in broker.others[p].committed(states) {
            match &sent.effect {
                SimulatedEffect::Outcome(outcome) => {
                    let trigger = outcome.trigger.clone();
                    let at = broker.committed_at(sent);
                    match outcome.kind {
                        OutcomeKind::Delivered { attempt, .. } => {
                            all.attempts.entry((trigger, attempt)).or_default().push(at);
                        }
                        OutcomeKind::Failed { attempt, retry_at, .. } => {
                            if retry_at.is_some() {
                                let _new = all.announced.insert((trigger.clone(), attempt + 1));
                            }
                            all.attempts.entry((trigger, attempt)).or_default().push(at);
                        }
                        OutcomeKind::Withdrawn { attempt, .. } => {
                            let _new = all.withdrawn.insert((trigger, attempt));
                        }
                        _ => {}
                    }
                }
                SimulatedEffect::DeadLetter(letter) => {
                    let Content::Fire { fire, .. } = &letter.content else { continue };
                    let is_unknown = letter.reason.starts_with("it is not known");
                    all.refused += u64::from(letter.reason.contains("no topic takes"));
                    let _before = all.letters.insert(fire.id.trigger.clone(), is_unknown);
                }
                _ => {}
            }
        }
    }
    all
}

/// A fire is requested again only after its partition was assigned again, and not if its result was
/// committed before that.
fn repeated(requests: &[Request], committed: &Committed) -> Option<String> {
    let mut seen: BTreeMap<(usize, Offset), Vec<AssignmentId>> = BTreeMap::new();
    for request in requests {
        let assignments = seen.entry((request.partition, request.offset)).or_default();
        if assignments.contains(&request.assigned_by) {
            return Some(format!("REPEATED although the partition has not moved: {request:?}"));
        }
        assignments.push(request.assigned_by);
        let key = (request.id.trigger.clone(), request.id.attempt);
        let results = committed.attempts.get(&key).into_iter().flatten().flatten();
        let is_over = results.into_iter().any(|at| *at < request.assigned_at);
        if is_over {
            return Some(format!("REPEATED although its result was committed: {request:?}"));
        }
    }
    None
}

fn beyond_policy(requests: &[Request]) -> Option<String> {
    let beyond = requests.iter().find(|request| request.id.attempt > ATTEMPTS_MAX);
    beyond.map(|request| format!("BEYOND THE POLICY: {request:?}"))
}

fn withdrawn_and_requested(requests: &[Request], committed: &Committed) -> Option<String> {
    let is_withdrawn = |request: &&Request| {
        committed.withdrawn.contains(&(request.id.trigger.clone(), request.id.attempt))
            && !committed.signals.iter().any(|(trigger, attempt, deferral)| {
                // A deferral is another fire of the same attempt.
                *trigger == request.id.trigger
                    && *attempt == request.id.attempt
                    && *deferral > request.id.deferral
            })
    };
    let both = requests.iter().find(is_withdrawn);
    both.map(|request| format!("WITHDRAWN and requested: {request:?}"))
}

/// A transaction that is sent again was not committed: no request has two results.
fn reported_twice(requests: &[Request], committed: &Committed) -> Option<String> {
    let mut made: BTreeMap<AttemptKey, usize> = BTreeMap::new();
    for request in requests {
        *made.entry((request.id.trigger.clone(), request.id.attempt)).or_default() += 1;
    }
    let twice = committed
        .attempts
        .iter()
        .find(|(key, results)| results.len() > made.get(*key).copied().unwrap_or(0));
    twice.map(|(key, results)| format!("REPORTED more often than requested: {key:?} {results:?}"))
}

/// Every fire has a result, every announced attempt is requested, and every given up one is a dead
/// letter.
fn lost(run: &CallbackRun, committed: &Committed) -> Option<String> {
    for (place, id) in &committed.fires {
        let key = (id.trigger.clone(), id.attempt);
        let deferred = (id.trigger.clone(), id.attempt, id.deferral + 1);
        let has_ended = committed.attempts.contains_key(&key)
            || committed.withdrawn.contains(&key)
            || committed.signals.contains(&deferred)
            || committed.letters.contains_key(&id.trigger);
        if !has_ended {
            return Some(format!("LOST: {id:?} at {place:?} has no result"));
        }
    }
    for (trigger, attempt) in &committed.announced {
        let is_asked = committed.signals.contains(&(trigger.clone(), *attempt, 0));
        if !is_asked && !committed.letters.contains_key(trigger) {
            return Some(format!("LOST: attempt {attempt} of {trigger} is announced only"));
        }
    }
    for (trigger, attempt, deferral) in &committed.signals {
        let is_fired = committed
            .fires
            .values()
            .any(|id| (&id.trigger, id.attempt, id.deferral) == (trigger, *attempt, *deferral));
        if !is_fired && !run.owner.has_cancelled(trigger) {
            return Some(format!("LOST: {trigger} {attempt}.{deferral} was asked for only"));
        }
    }
    None
}
