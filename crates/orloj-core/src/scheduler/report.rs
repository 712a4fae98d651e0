//! Reports readiness, the partitions, and takeovers that last for long.
//!
//! Invariant: a health request is answered from the last report, so no request delays the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Scheduler;
use super::partition_task::PartitionState;
use crate::engine::takeover::{TakeoverError, TakeoverRequest};
use crate::environment::group::GroupMembership as _;
use crate::environment::{Clock as _, Environment, ProcessReporter as _, Reporter as _};
use crate::model::PartitionId;

/// How often takeovers are reported that have lasted for at least as long.
const TAKEOVERS_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// For how long no broker may answer: a partition has another leader within seconds.
const UNANSWERED_MAX: Duration = Duration::from_secs(5);
/// A schema that is missing for longer needs a person: a registry is started again in less.
const PARKED_MAX: Duration = Duration::from_secs(600);

/// Pause between two checks whether the client is a member still.
const MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(1);

/// What was reported last.
#[derive(Debug, Default)]
pub(super) struct LastReports {
    registry: RegistryReport,
    /// No broker answers.
    are_brokers_silent: bool,
    /// The client is not the member any more that was assigned partitions, or none.
    is_expelled: bool,
    /// When that was last checked, on the monotonic clock.
    membership_checked_at: Duration,
}

/// What was reported last of the schemas of producers.
#[derive(Debug, Default, PartialEq, Eq)]
struct RegistryReport {
    /// Records that are parked.
    records: usize,
    /// For how long the first of them is parked here, in whole seconds.
    oldest: Duration,
    state: RegistryReadiness,
}

/// Whether the registry gives what is needed.
#[derive(Debug, Default, PartialEq, Eq)]
enum RegistryReadiness {
    #[default]
    Ready,
    Remark(String),
    NotReady(String),
}

impl RegistryReadiness {
    /// `is_full`: no more can be parked; `missing`: the schemas that are missing for too long, with
    /// whether the registry denies access to them; `refusal`: what it answers instead of a schema.
    fn new(is_full: bool, missing: &BTreeSet<(u32, bool)>, refusal: Option<String>) -> Self {
        // One that is denied is a fault of its producer: the registry answers for the others.
        let is_one_denied = missing.len() == 1 && missing.iter().all(|(_, denied)| *denied);
        let reason = if is_full {
            "records wait for the schema registry, and no more can be parked"
        } else if !missing.is_empty() && !is_one_denied {
            "records have waited for the schema registry for ten minutes"
        } else {
            return refusal.map_or(Self::Ready, Self::Remark);
        };
        let refusal = refusal.map(|refusal| format!(": {refusal}")).unwrap_or_default();
        Self::NotReady(format!("{reason}{refusal}"))
    }
}

/// The takeovers that have lasted for long.
#[derive(Debug, Default, PartialEq, Eq)]
struct LongTakeovers {
    /// How many partitions wait for what.
    waits: BTreeMap<&'static str, usize>,
    /// For how long the longest has lasted.
    longest: Duration,
    /// The records that were read for them.
    records: usize,
}

impl<E: Environment> Scheduler<E> {
    /// The partitions that are not taken over until an operator acts, and why.
    pub fn refused_partitions(&self) -> impl Iterator<Item = (PartitionId, &TakeoverError)> {
        self.tasks.values().filter_map(|task| match &task.state {
            PartitionState::Refused(refusal) => Some((task.id, refusal)),
            _ => None,
        })
    }

    /// How many partitions wait until the local clock has caught up with an earlier owner's.
    pub fn partitions_waiting_for_clock(&self) -> usize {
        let waits = |task: &&super::PartitionTask<E::Store>| {
            matches!(task.state, PartitionState::WaitingForClock(_))
        };
        self.tasks.values().filter(waits).count()
    }

    pub(super) fn report_readiness(&self) {
        let refused = self.refused_partitions().next().map(|(_, refusal)| refusal.to_string());
        let refused =
            refused.or_else(|| self.tasks.keys().find_map(|id| self.truncated_logs.reason(*id)));
        let active = self.active_partitions().len();
        let all = self.tasks.len() + self.awaited_stores.len();
        self.reporter.partitions_owned(active, all - active);
        if !self.assignment.is_assigned() || self.last_reports.is_expelled {
            self.reporter.not_ready("partitions", "no group assignment".to_owned());
        } else if let Some(reason) = refused {
            self.reporter.not_ready("partitions", reason);
        } else if active == all {
            self.reporter.ready("partitions");
        } else {
            self.reporter.not_ready("partitions", format!("{active} of {all} partitions active"));
        }
    }

    /// Reports whether brokers answer. Nothing else of a scheduler that has nothing to commit waits
    /// for them.
    pub(super) fn report_brokers(&mut self) {
        let is_silent = self.end_offsets.unanswered_for() >= UNANSWERED_MAX;
        if is_silent == self.last_reports.are_brokers_silent {
            return;
        }
        self.last_reports.are_brokers_silent = is_silent;
        if is_silent {
            self.reporter.not_ready("topics", "no broker answers".to_owned());
        } else {
            self.reporter.ready("topics");
        }
    }

    /// Reports whether the client is the member still that was assigned, if it is time. One without
    /// partitions does not report that the group has expelled it.
    pub(super) fn check_membership(&mut self) {
        let due = self.last_reports.membership_checked_at + MEMBERSHIP_INTERVAL;
        if !self.assignment.is_assigned() || self.clock.monotonic() < due {
            return;
        }
        let was_expelled = self.last_reports.is_expelled;
        self.refresh_membership();
        if self.last_reports.is_expelled != was_expelled {
            self.report_readiness();
        }
    }

    /// Looks at what the client knows of its membership.
    pub(super) fn refresh_membership(&mut self) {
        let is_member = self.member.is_member(self.assignment.assigned_member());
        self.last_reports.is_expelled = !is_member;
        self.last_reports.membership_checked_at = self.clock.monotonic();
    }

    /// Reports what is parked, and whether a person must act for the schemas of producers.
    pub(super) fn report_registry(&mut self) {
        let is_full = self.tasks.values().any(|task| task.pause.is_long(&self.config.timing));
        let records: usize = self.tasks.values().map(|task| task.parking.len()).sum();
        let now = self.clock.monotonic();
        let mut oldest = Duration::ZERO;
        let mut missing = BTreeSet::new();
        for (schema, at) in self.tasks.values().flat_map(|task| task.parking.parked_since()) {
            let age = now.saturating_sub(at);
            oldest = oldest.max(Duration::from_secs(age.as_secs()));
            if age >= PARKED_MAX {
                let _new = missing.insert((schema, self.decoder.registry_denies(schema, now)));
            }
        }
        let refusal = self.decoder.registry_refusal(now);
        let state = RegistryReadiness::new(is_full, &missing, refusal);
        let report = RegistryReport { records, oldest, state };
        if report == self.last_reports.registry {
            return;
        }
        self.reporter.parked(records, oldest);
        match &report.state {
            RegistryReadiness::Ready => self.reporter.ready("registry"),
            RegistryReadiness::Remark(text) => {
                self.reporter.ready_with_remark("registry", text.clone());
            }
            RegistryReadiness::NotReady(reason) => {
                self.reporter.not_ready("registry", reason.clone());
            }
        }
        self.last_reports.registry = report;
    }

    /// Logs what takeovers that last for long wait for, if it is time.
    pub(super) fn report_long_takeovers(&mut self) {
        let now = self.clock.monotonic();
        if now < self.takeovers_reported_at + TAKEOVERS_REPORT_INTERVAL {
            return;
        }
        self.takeovers_reported_at = now;
        let LongTakeovers { waits, longest, records } = self.long_takeovers(now);
        if !waits.is_empty() {
            let longest_s = longest.as_secs();
            tracing::info!(waits_for = ?waits, longest_s, records, "takeovers are in progress");
        }
    }

    /// Those that have lasted for long at `now` on the monotonic clock.
    fn long_takeovers(&self, now: Duration) -> LongTakeovers {
        let mut long = LongTakeovers::default();
        let opening = self.awaited_stores.awaited_since().map(|since| (since, "store", 0));
        let restoring = self.tasks.values().filter_map(|task| {
            let PartitionState::Restoring(restoring) = &task.state else { return None };
            let waits_for = restoring.requested.as_ref().map_or("start", awaited_by);
            Some((task.takeover_started_at, waits_for, restoring.records_read))
        });
        for (since, waits_for, records) in opening.chain(restoring) {
            let lasts = now.saturating_sub(since);
            if lasts >= TAKEOVERS_REPORT_INTERVAL {
                *long.waits.entry(waits_for).or_default() += 1;
                long.longest = long.longest.max(lasts);
                long.records += records;
            }
        }
        long
    }
}

/// What a takeover with this request waits for.
fn awaited_by(request: &TakeoverRequest) -> &'static str {
    match request {
        TakeoverRequest::Offsets => "committed offset",
        TakeoverRequest::Barrier { .. } => "barrier",
        TakeoverRequest::Mirror { .. } | TakeoverRequest::Ledger { .. } => "ledger",
        TakeoverRequest::Triggers { .. } => "triggers",
        TakeoverRequest::Nothing => "producer",
    }
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
