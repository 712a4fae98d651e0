//! Later attempts of callbacks: each is requested by a worker, made once, and stopped by a cancel.
//!
//! Invariant: a replacement leaves the deliveries of the older generation alone; a cancel stops
//! them.

use std::collections::HashMap;

use super::{AcknowledgedCommand, AuditInput, AuditReport, CommandKind, Violation};

/// Which attempt of which callback.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptKey {
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) occurrence: u32,
    /// From 1.
    pub(crate) attempt: u32,
    /// How often it was deferred without counting as an attempt.
    pub(crate) deferral: u32,
}

impl AttemptKey {
    /// The occurrence that it is an attempt of.
    fn occurrence(&self) -> (&str, u64, u32) {
        (&self.trigger, self.generation, self.occurrence)
    }

    /// Its order among the attempts of the occurrence.
    fn place(&self) -> (u32, u32) {
        (self.attempt, self.deferral)
    }
}

/// A fire that is not the first of its occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRetry {
    pub(crate) key: AttemptKey,
    /// When its transaction ended, in ms since the epoch.
    pub(crate) visible: u64,
    /// Commands below this offset were decided before the step that fired it; 0 if unknown.
    pub(crate) decided_before: u64,
    pub(crate) payload: Vec<u8>,
}

/// A worker requested an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedRetry {
    pub(crate) key: AttemptKey,
    /// When it is due, in ms since the epoch.
    pub(crate) due: u64,
    /// The attempt may be missing: the request was deleted, or its registration was replayed.
    pub(crate) may_be_missing: bool,
}

/// Commands that were not ignored, by trigger, in log order.
pub(super) type EffectiveCommands<'a> = HashMap<&'a str, Vec<&'a AcknowledgedCommand>>;

impl AuditInput<'_> {
    /// Whether a worker requested another attempt of this generation.
    pub(super) fn retry_was_requested(&self, trigger: &str, generation: u64) -> bool {
        let mut reports = self.reported.iter().map(|report| &report.key);
        reports.any(|of| of.generation == generation && of.trigger == trigger)
    }

    /// Checks attempts alone; everything else about the commands is checked elsewhere.
    pub(crate) fn check_attempts_only(&self) -> AuditReport {
        let mut report = AuditReport::default();
        let all = self.commands.iter();
        let effective =
            all.map(|(trigger, all)| (trigger.as_str(), all.iter().collect())).collect();
        self.check_attempts(&effective, &mut report);
        report
    }

    pub(super) fn check_attempts(
        &self,
        effective: &EffectiveCommands<'_>,
        report: &mut AuditReport,
    ) {
        // The earliest time that any report of an attempt named, and whether it must be made.
        let mut due = HashMap::<&AttemptKey, (u64, bool)>::with_capacity(self.reported.len());
        for reported in self.reported {
            let first = (reported.due, true);
            let (earliest, must_be_made) = due.entry(&reported.key).or_insert(first);
            *earliest = reported.due.min(*earliest);
            *must_be_made &= !reported.may_be_missing;
        }
        let mut times = HashMap::<&AttemptKey, u32>::with_capacity(self.retried.len());
        for retried in self.retried {
            *times.entry(&retried.key).or_default() += 1;
            let due = due.get(&retried.key).map(|(due, _)| *due);
            self.check_retry(retried, due, effective, report);
        }
        let mut latest = HashMap::<_, (u32, u32)>::new();
        for of in times.keys() {
            let place = latest.entry(of.occurrence()).or_default();
            *place = of.place().max(*place);
        }
        for (of, times) in times.iter().filter(|(_, times)| **times > 1) {
            let why = format!("{times} times {of:?}");
            report.add(Violation::Duplicate, &of.trigger, of.generation, why);
        }
        for (of, (due, _)) in due.into_iter().filter(|(_, (_, must_be_made))| *must_be_made) {
            let commands = effective.get(of.trigger.as_str()).map_or(&[][..], Vec::as_slice);
            let later = |c: &&AcknowledgedCommand| {
                c.kind == CommandKind::Cancel && c.offset > of.generation
            };
            let cancelled = commands.iter().copied().any(|command| later(&command));
            // A report that arrives after a later attempt was made is out of date.
            let made = times.contains_key(of) || latest.get(&of.occurrence()) > Some(&of.place());
            if due <= self.as_of && !cancelled && !made {
                let why = format!("{of:?}, due {due}, {} ms ago", self.as_of - due);
                report.add(self.missing_violation(), &of.trigger, of.generation, why);
            }
        }
    }

    fn check_retry(
        &self,
        retried: &ObservedRetry,
        due: Option<u64>,
        effective: &EffectiveCommands<'_>,
        report: &mut AuditReport,
    ) {
        let ObservedRetry { key: of, visible, decided_before: decided, payload } = retried;
        let commands = effective.get(of.trigger.as_str()).map_or(&[][..], Vec::as_slice);
        let place = commands.iter().position(|command| command.offset == of.generation);
        let (Some(place), Some(due)) = (place, due) else {
            let why = format!("{of:?} was not requested");
            return report.add(Violation::Unexpected, &of.trigger, of.generation, why);
        };
        if *visible < due {
            let why = format!("{of:?} {} ms early", due - visible);
            report.add(Violation::Early, &of.trigger, of.generation, why);
        }
        if commands[place].payload() != Some(payload) {
            let why = format!("{of:?} with {:?}", String::from_utf8_lossy(payload));
            report.add(Violation::WrongContent, &of.trigger, of.generation, why);
        }
        let next = commands.get(place + 1).filter(|command| command.kind == CommandKind::Cancel);
        if let Some(cancel) = next.filter(|cancel| cancel.offset < *decided) {
            let why = format!("{of:?} after the cancel at {} was decided", cancel.offset);
            report.add(Violation::NotStopped, &of.trigger, of.generation, why);
        }
    }
}
