//! The checker: compares what Kafka acknowledged with what a `read_committed` reader saw, for real
//! runs and for the simulation.
//!
//! Invariant: it has no I/O, and trusts only the log of commands: the scheduler's answers and
//! headers do not excuse a fire. Answers only decide races that both sides could win.

mod answer;
mod attempts;
pub(crate) mod explain;
pub(crate) mod records;
pub(crate) mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use answer::answer;
use attempts::EffectiveCommands;
pub(crate) use attempts::{AttemptKey, ObservedRetry, RequestedRetry};
pub(crate) use report::{AuditReport, Violation};

/// What was written to `triggers` and acknowledged, by trigger id.
pub(crate) type AcknowledgedCommands = HashMap<String, Vec<AcknowledgedCommand>>;

/// What the owner answered, by the trigger id and offset of the command.
pub(crate) type OwnerAnswers = HashMap<(String, u64), Vec<OwnerAnswer>>;

/// A record of `triggers` that the broker acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcknowledgedCommand {
    /// Its offset; that of a registration is the generation.
    pub(crate) offset: u64,
    /// The broker's timestamp, in ms since the epoch.
    pub(crate) appended: u64,
    /// When its writer knew that it is written, in ms since the epoch. While a broker is dead that
    /// is seconds later, and no reader sees the record before.
    pub(crate) acknowledged: u64,
    /// Whether it requested an answer.
    pub(crate) ack: bool,
    pub(crate) kind: CommandKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// `due` in ms since the epoch.
    Register {
        due: u64,
        payload: Vec<u8>,
    },
    /// The same, unless one is pending: then it is ignored. It must request an answer.
    Keep {
        due: u64,
        payload: Vec<u8>,
    },
    Cancel,
    /// A record that cannot be read: it must be rejected.
    Malformed,
    /// A command without an effect: a cancel by a caller without triggers, or a replacement of a
    /// generation that never existed.
    NoEffect,
}

/// The owner's answer to a command: what it did to the generation that was pending, if any was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerAnswer {
    /// This generation was cancelled or replaced, and must never fire.
    Stopped(u64),
    /// Nothing was pending.
    NothingPending,
    /// This generation was pending and stays; the command was ignored.
    Kept(u64),
    Rejected,
}

/// A record of a target topic, or the first attempt of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedFire {
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) occurrence: u32,
    /// When it says that it was due, in ms since the epoch.
    pub(crate) due: u64,
    /// When its transaction ended, in ms since the epoch: no reader of committed records saw it
    /// sooner.
    pub(crate) visible: u64,
    pub(crate) payload: Vec<u8>,
}

/// Everything that the checker compares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditInput<'a> {
    pub(crate) commands: &'a AcknowledgedCommands,
    pub(crate) answers: &'a OwnerAnswers,
    pub(crate) fires: &'a [ObservedFire],
    /// Later attempts of callbacks, and what workers requested.
    pub(crate) retried: &'a [ObservedRetry],
    pub(crate) reported: &'a [RequestedRetry],
    /// A stop must win that was appended so many ms or more before the due time, and acknowledged
    /// before it: while a broker is dead, no reader sees what no other replica has yet.
    pub(crate) margin: u64,
    /// What is due after this, in ms since the epoch, may be pending still.
    pub(crate) as_of: u64,
    /// The system reports that it is idle. If not, what is missing is stuck.
    pub(crate) is_idle: bool,
}

/// Checks commands and fires into topics: see [`AuditInput`].
pub(crate) fn check_commands_only(
    commands: &AcknowledgedCommands,
    answers: &OwnerAnswers,
    fires: &[ObservedFire],
    margin: u64,
    as_of: u64,
) -> AuditReport {
    let (retried, reported) = (&[], &[]);
    let at_rest = true;
    AuditInput { commands, answers, fires, retried, reported, margin, as_of, is_idle: at_rest }
        .check()
}

/// How often each generation fired, by trigger.
type FireCounts<'a> = HashMap<(&'a str, u64), u32>;

impl AuditInput<'_> {
    /// Checks everything.
    pub(crate) fn check(&self) -> AuditReport {
        let mut report = AuditReport { fired: self.fires.len(), ..AuditReport::default() };
        let mut times = FireCounts::with_capacity(self.fires.len());
        for fire in self.fires {
            *times.entry((&fire.trigger, fire.generation)).or_default() += 1;
            report.check_fire(fire, self.commands.get(&fire.trigger));
        }
        let mut effective = EffectiveCommands::default();
        for (trigger, commands) in self.commands {
            let last = self.check_commands(trigger, commands, &times, &mut effective, &mut report);
            if let Some((command, due)) = last
                && !times.contains_key(&(trigger.as_str(), command.offset))
            {
                self.check_missing_fire(trigger, command, due, &mut report);
            }
        }
        for ((trigger, generation), times) in times.into_iter().filter(|(_, times)| *times > 1) {
            report.add(Violation::Duplicate, trigger, generation, format!("{times} fires"));
        }
        self.check_attempts(&effective, &mut report);
        report.lateness.sort_unstable();
        report
    }

    /// All commands of a trigger, in log order. Returns the registration that nothing stopped.
    fn check_commands<'c>(
        &self,
        trigger: &'c str,
        commands: &'c [AcknowledgedCommand],
        times: &FireCounts<'_>,
        effective: &mut EffectiveCommands<'c>,
        report: &mut AuditReport,
    ) -> Option<(&'c AcknowledgedCommand, u64)> {
        let mut pending: Option<(&AcknowledgedCommand, u64)> = None;
        for (place, command) in commands.iter().enumerate() {
            assert!(place == 0 || commands[place - 1].offset < command.offset, "in log order");
            report.registered += usize::from(command.registered_due().is_some());
            let answer = self.answer(trigger, command, report);
            let fired = times.contains_key(&(trigger, command.offset));
            let ignored = match (&command.kind, answer) {
                (CommandKind::Malformed, None | Some(OwnerAnswer::Rejected)) => true,
                (
                    CommandKind::NoEffect,
                    None | Some(OwnerAnswer::NothingPending | OwnerAnswer::Kept(_)),
                ) if !fired => true,
                (CommandKind::Keep { .. }, Some(OwnerAnswer::Kept(kept))) => {
                    let stays = pending.is_some_and(|(pending, _)| pending.offset == kept);
                    if !stays || fired {
                        let why = format!("kept {kept}, which was not pending, or fired itself");
                        report.add(Violation::Unexpected, trigger, command.offset, why);
                    }
                    true
                }
                (CommandKind::Malformed | CommandKind::NoEffect, other)
                | (_, other @ Some(OwnerAnswer::Kept(_))) => {
                    let why = format!("{:?} answered {other:?}", command.kind);
                    report.add(Violation::Unexpected, trigger, command.offset, why);
                    true
                }
                (_, Some(OwnerAnswer::Rejected)) => {
                    let why = format!("{:?}", command.kind);
                    report.add(Violation::Rejected, trigger, command.offset, why);
                    true
                }
                _ => false,
            };
            if ignored {
                continue;
            }
            if let Some((stopped, due)) = pending {
                let times = times.get(&(trigger, stopped.offset)).copied().unwrap_or(0);
                self.check_stop(trigger, (stopped, due), command, answer, times > 0, report);
            } else if let Some(OwnerAnswer::Stopped(other)) = answer
                && !self.retry_was_requested(trigger, other)
            {
                let why = format!("stopped {other}, but nothing was pending");
                report.add(Violation::NotStopped, trigger, command.offset, why);
            }
            pending = command.registered_due().map(|due| (command, due));
            effective.entry(trigger).or_default().push(command);
        }
        pending
    }

    /// The one answer to a command, if there is one.
    fn answer(
        &self,
        trigger: &str,
        command: &AcknowledgedCommand,
        report: &mut AuditReport,
    ) -> Option<OwnerAnswer> {
        // A tuple of borrowed parts cannot look up a tuple of owned ones.
        let key = (trigger.to_owned(), command.offset);
        let all = self.answers.get(&key).map_or(&[][..], Vec::as_slice);
        match all {
            [] if command.ack => {
                let why = format!("{:?}", command.kind);
                report.add(Violation::Unanswered, trigger, command.offset, why);
            }
            [] | [_] => {}
            many => report.add(Violation::Duplicate, trigger, command.offset, format!("{many:?}")),
        }
        all.first().copied()
    }

    /// A registration was followed by a cancel or by another registration.
    fn check_stop(
        &self,
        trigger: &str,
        (stopped, due): (&AcknowledgedCommand, u64),
        by: &AcknowledgedCommand,
        answer: Option<OwnerAnswer>,
        fired: bool,
        report: &mut AuditReport,
    ) {
        let generation = stopped.offset;
        let in_time = by.appended + self.margin <= due && by.acknowledged < due;
        report.stops += 1;
        report.stops_in_time += usize::from(in_time);
        report.stops_too_late += usize::from(fired);
        let why = |text: &str| format!("{text}; {} answered {answer:?}", by.offset);
        if in_time && fired {
            let times = (by.appended, by.acknowledged, due);
            let text = format!(
                "fired although it was stopped in time (appended, acknowledged, due: {times:?})"
            );
            let text = why(&text);
            return report.add_for_command(
                by.offset,
                Violation::NotStopped,
                trigger,
                generation,
                text,
            );
        }
        match answer {
            // A cancel that finds nothing pending may stop a retry, of this generation or before.
            Some(OwnerAnswer::Stopped(other))
                if fired
                    && by.kind == CommandKind::Cancel
                    && self.retry_was_requested(trigger, other) => {}
            Some(OwnerAnswer::Stopped(other)) if other != generation || fired => {
                let text = why("the answer says what did not happen");
                report.add_for_command(by.offset, Violation::NotStopped, trigger, generation, text);
            }
            Some(OwnerAnswer::NothingPending) if !fired => {
                let text = why("neither fired nor stopped");
                report.add_for_command(by.offset, Violation::Lost, trigger, generation, text);
            }
            _ => {}
        }
    }

    fn check_missing_fire(
        &self,
        trigger: &str,
        last: &AcknowledgedCommand,
        due: u64,
        report: &mut AuditReport,
    ) {
        if due > self.as_of {
            report.pending += 1;
        } else {
            let why = format!("due {due}, {} ms ago", self.as_of - due);
            report.add(self.missing_violation(), trigger, last.offset, why);
        }
    }

    /// The violation that a missing fire is.
    fn missing_violation(&self) -> Violation {
        if self.is_idle { Violation::Lost } else { Violation::Stuck }
    }
}

impl AcknowledgedCommand {
    /// The due time, if it is a registration.
    pub(crate) fn registered_due(&self) -> Option<u64> {
        match self.kind {
            CommandKind::Register { due, .. } | CommandKind::Keep { due, .. } => Some(due),
            CommandKind::Cancel | CommandKind::Malformed | CommandKind::NoEffect => None,
        }
    }

    /// The payload that it registers.
    fn payload(&self) -> Option<&[u8]> {
        match &self.kind {
            CommandKind::Register { payload, .. } | CommandKind::Keep { payload, .. } => {
                Some(payload)
            }
            CommandKind::Cancel | CommandKind::Malformed | CommandKind::NoEffect => None,
        }
    }
}

impl AuditReport {
    fn check_fire(&mut self, fire: &ObservedFire, commands: Option<&Vec<AcknowledgedCommand>>) {
        let ObservedFire { trigger, generation, occurrence, .. } = fire;
        let registration = commands
            .and_then(|all| all.iter().find(|command| command.offset == *generation))
            .filter(|_| *occurrence == 0);
        let due = registration.and_then(AcknowledgedCommand::registered_due);
        let (Some(due), Some(registration)) = (due, registration) else {
            let why = format!("occurrence {occurrence}, due {}", fire.due);
            return self.add(Violation::Unexpected, trigger, *generation, why);
        };
        if fire.visible < due {
            let why = format!("{} ms early", due - fire.visible);
            self.add(Violation::Early, trigger, *generation, why);
        }
        let payload = registration.payload().unwrap_or_default();
        if fire.payload != payload || fire.due != due {
            let why = format!(
                "due {} with {:?}, registered due {due} with {:?}",
                fire.due,
                String::from_utf8_lossy(&fire.payload),
                String::from_utf8_lossy(payload),
            );
            self.add(Violation::WrongContent, trigger, *generation, why);
        }
        self.lateness.push(fire.visible.saturating_sub(due.max(registration.appended)));
    }
}
