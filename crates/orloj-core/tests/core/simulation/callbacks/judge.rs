//! What is promised of callbacks, judged by what was requested and what is committed.
//!
//! Invariant: a finding names the fire, and what contradicts what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use orloj_core::model::Offset;

use super::committed::{Committed, committed};
use super::owner::ATTEMPTS_MAX;
use super::receivers::{AssignmentId, Request};
use super::run::CallbackRun;
use crate::simulation::fault_kinds::FaultKind;

/// How often what happened, over all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallbackCounts {
    fires: u64,
    requests: u64,
    repeated: u64,
    delivered: u64,
    withdrawn: u64,
    deferred: u64,
    notified: u64,
    refused: u64,
    unknown: u64,
    crashes: u64,
    zombies: u64,
    rebalances: u64,
    left: u64,
    expired_offsets: u64,
    deletions: u64,
    hung_calls: u64,
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
            (self.notified, "owners notified"),
            (self.refused, "refused"),
            (self.unknown, "unknown"),
            (self.crashes, "crashes"),
            (self.zombies, "zombies"),
            (self.rebalances, "rebalances"),
            (self.left, "left"),
            (self.expired_offsets, "expired offsets"),
            (self.deletions, "deletions of fires"),
            (self.hung_calls, "hung calls"),
        ] {
            writeln!(f, "  {count:>9} {what}")?;
        }
        Ok(())
    }
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
        .or_else(|| withdrawn_without_cancel(run, &committed))
        .or_else(|| ends_twice(run, &committed))
        .or_else(|| wrongly_notified(&committed))
        .or_else(|| is_over.then(|| lost(run, &committed)).flatten())
}

fn count(
    run: &CallbackRun,
    committed: &Committed,
    requests: &[Request],
    counts: &mut CallbackCounts,
) {
    let places: BTreeSet<_> = requests.iter().map(|it| (it.partition, it.offset)).collect();
    counts.fires += committed.fired.len() as u64;
    counts.requests += requests.len() as u64;
    counts.repeated += (requests.len() - places.len()) as u64;
    let ends = || committed.ends.values();
    counts.delivered += ends().map(|ends| ends.answered.len() as u64).sum::<u64>();
    counts.withdrawn += ends().map(|ends| ends.withdrawn).sum::<u64>();
    counts.deferred += ends().map(|ends| ends.deferred).sum::<u64>();
    counts.notified += ends().map(|ends| ends.notified.0 + ends.notified.1).sum::<u64>();
    counts.refused += committed.refused;
    counts.unknown += committed.unknown;
    counts.crashes += run.faults.crashes;
    counts.zombies += run.faults.zombies;
    counts.rebalances += run.faults.rebalances;
    counts.left += run.faults.left;
    counts.expired_offsets += run.faults.expired_offsets;
    counts.deletions += run.faults.deletions;
    counts.hung_calls += run.cluster.counts.count(FaultKind::CallHung);
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
        let results = committed.ends.get(&key).into_iter().flat_map(|ends| &ends.answered);
        let is_over = results.flatten().any(|at| *at < request.assigned_at);
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
        let key = (request.id.trigger.clone(), request.id.attempt);
        committed.ends.get(&key).is_some_and(|ends| ends.withdrawn > 0)
            && !committed.signals.keys().any(|(trigger, attempt, deferral)| {
                // A deferral is another fire of the same attempt.
                *trigger == request.id.trigger
                    && *attempt == request.id.attempt
                    && *deferral > request.id.deferral
            })
    };
    let both = requests.iter().find(is_withdrawn);
    both.map(|request| format!("WITHDRAWN and requested: {request:?}"))
}

/// A fire is withdrawn by a cancel of its trigger only.
fn withdrawn_without_cancel(run: &CallbackRun, committed: &Committed) -> Option<String> {
    let mut withdrawn = committed.ends.iter().filter(|(_, ends)| ends.withdrawn > 0);
    let wrong = withdrawn.find(|((trigger, _), _)| !run.owner.has_cancelled(trigger));
    wrong.map(|(key, _)| format!("WITHDRAWN although it was not cancelled: {key:?}"))
}

/// A transaction that is sent again was not committed: no fire ends twice, in whatever way. Only
/// without committed offsets it is not known that it has ended.
fn ends_twice(run: &CallbackRun, committed: &Committed) -> Option<String> {
    let unknown_max = |fires| fires * run.faults.expired_offsets;
    let mut ends = committed.ends.iter();
    let twice = ends.find(|(_, ends)| {
        ends.count() > ends.fires + ends.unknown || ends.unknown > unknown_max(ends.fires)
    });
    twice.map(|(key, ends)| format!("REPORTED more often than fired: {key:?} {ends:?}"))
}

/// What is given up is a dead letter, and an owner that requests it is notified of each end once,
/// but for what is unknown. Both are committed together with the result.
fn wrongly_notified(committed: &Committed) -> Option<String> {
    for (key, ends) in &committed.ends {
        if ends.letters < ends.given_up {
            return Some(format!("LOST: given up without a dead letter: {key:?} {ends:?}"));
        }
        let ended = (ends.delivered, ends.withdrawn + ends.letters - ends.unknown);
        let expected = if ends.reports_end { ended } else { (0, 0) };
        if ends.notified != expected {
            return Some(format!("NOTIFIED wrongly, not {expected:?}: {key:?} {ends:?}"));
        }
    }
    None
}

/// Every fire has ended, and every attempt that was asked for is fired.
fn lost(run: &CallbackRun, committed: &Committed) -> Option<String> {
    for (key, ends) in &committed.ends {
        if ends.count() + ends.deleted < ends.fires {
            return Some(format!("LOST: a fire has no result: {key:?} {ends:?}"));
        }
        let next = (key.0.clone(), key.1 + 1, 0);
        let asked = committed.signals.get(&next).copied().unwrap_or_default();
        if asked != ends.retried {
            return Some(format!("LOST: asked for {asked} times: {next:?} after {ends:?}"));
        }
    }
    for id @ (trigger, ..) in committed.signals.keys() {
        if !committed.fired.contains(id) && !run.owner.has_cancelled(trigger) {
            return Some(format!("LOST: {id:?} was asked for only"));
        }
    }
    None
}
