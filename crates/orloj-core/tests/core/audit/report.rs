//! What the checker has found, and how it is printed.
//!
//! Invariant: a finding names what is needed to find it in the logs.

use std::collections::BTreeMap;
use std::fmt;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// Due, neither cancelled nor replaced, and not fired although the system is idle.
    Lost,
    /// The same, and the system did not become idle in time: it may still fire, or never.
    Stuck,
    /// Fired before its time.
    Early,
    /// Fired, or answered, more than once.
    Duplicate,
    /// What fired was not registered.
    Unexpected,
    /// Fired although it was stopped in time, or although the owner said it was stopped.
    NotStopped,
    /// Another payload or due time than the registered one.
    WrongContent,
    /// A command that requested an answer got none.
    Unanswered,
    /// A valid command was rejected.
    Rejected,
    /// Another key, partition or headers than the registered ones.
    WrongRecord,
    /// An older fire of a trigger behind a newer one in the same partition.
    OutOfOrder,
    /// A dead letter that nothing explains, or one that is missing.
    DeadLetter,
}

/// One violation, with what is needed to find it in the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) violation: Violation,
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    /// The offset of the command that shows it: its own, or one that stopped it.
    pub(crate) command_offset: u64,
    pub(crate) why: String,
}

/// The result. `Display` prints all of it.
#[derive(Debug, Default)]
pub(crate) struct AuditReport {
    pub(crate) findings: Vec<Finding>,
    /// Registrations, replacements included.
    pub(crate) registered: usize,
    /// Fires seen, repeated ones included.
    pub(crate) fired: usize,
    /// Not due yet, and not fired.
    pub(crate) pending: usize,
    /// Cancels and replacements of a pending registration.
    pub(crate) stops: usize,
    /// Of those, appended early enough that they must win.
    pub(crate) stops_in_time: usize,
    /// Of those, the ones decided after the fire.
    pub(crate) stops_too_late: usize,
    /// Milliseconds from when it could fire (due, or registered if that was later) to the
    /// broker's timestamp of the fire; sorted.
    pub(crate) lateness: Vec<u64>,
}

impl Violation {
    /// As `docs` and reports call it.
    fn name(self) -> &'static str {
        match self {
            Self::Lost => "LOST",
            Self::Stuck => "STUCK",
            Self::Early => "EARLY",
            Self::Duplicate => "DUPLICATE",
            Self::Unexpected => "GHOST",
            Self::NotStopped => "CANCEL-VIOLATION",
            Self::WrongContent => "WRONG-BODY",
            Self::Unanswered => "UNANSWERED",
            Self::Rejected => "REJECTED",
            Self::WrongRecord => "WRONG-RECORD",
            Self::OutOfOrder => "OUT-OF-ORDER",
            Self::DeadLetter => "DEAD-LETTER",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AuditReport {
    pub(crate) fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether nothing is missing that may still happen.
    pub(crate) fn is_complete(&self) -> bool {
        let missing = [Violation::Lost, Violation::Stuck, Violation::Unanswered];
        !self.findings.iter().any(|finding| missing.contains(&finding.violation))
    }

    /// The lateness, in ms, that this share of the fires (0 to 1) does not exceed.
    pub(crate) fn lateness_at(&self, share: f64) -> u64 {
        let last = self.lateness.len().saturating_sub(1);
        let place = (last as f64 * share).ceil() as usize;
        self.lateness.get(place).copied().unwrap_or(0)
    }

    pub(crate) fn add(
        &mut self,
        violation: Violation,
        trigger: &str,
        generation: u64,
        why: String,
    ) {
        self.add_for_command(generation, violation, trigger, generation, why);
    }

    /// The same, by the command at offset `by`.
    pub(crate) fn add_for_command(
        &mut self,
        by: u64,
        violation: Violation,
        trigger: &str,
        generation: u64,
        why: String,
    ) {
        let trigger = trigger.to_owned();
        self.findings.push(Finding { violation, trigger, generation, command_offset: by, why });
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Findings that are printed.
        const SHOWN_MAX: usize = 20;
        let Self { registered, fired, pending, stops, stops_in_time, stops_too_late, .. } = self;
        writeln!(f, "{registered} registered, {fired} fired, {pending} pending")?;
        let share = 100.0 * *stops_too_late as f64 / (*stops).max(1) as f64;
        writeln!(
            f,
            "{stops} stopped while pending, {stops_in_time} of them in time; \
             {stops_too_late} too late ({share:.2} %)"
        )?;
        let late = [0.5, 0.99, 0.999, 1.0].map(|share| self.lateness_at(share));
        let [p50, p99, p999, max] = late;
        writeln!(f, "late by p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, max {max} ms")?;
        let mut counts = BTreeMap::<_, usize>::new();
        for finding in &self.findings {
            *counts.entry(finding.violation.name()).or_default() += 1;
        }
        writeln!(f, "violations: {counts:?}")?;
        for Finding { violation, trigger, generation, why, .. } in
            self.findings.iter().take(SHOWN_MAX)
        {
            writeln!(f, "  {violation} {trigger}:{generation}: {why}")?;
        }
        Ok(())
    }
}
