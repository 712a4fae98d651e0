//! The step being drafted: what decisions emit.
//!
//! Invariant: emits are in the order of the decisions; only sealing a step takes them out.

use super::batch_room::BatchRoom;
use super::config::PartitionContext;
use super::step::Emit;
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::entry::FireRow;
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::{Ack, Forward, Unreadable};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::Watcher;
use crate::model::limits::REASON_BYTES_MAX;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::signal::{DependencySettled, Signal};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, PartitionId, Timestamp};

/// What a record has besides its content, in bytes: its key, our headers and its frame.
pub(super) const RECORD_BYTES: usize = 128;

/// The step being drafted.
#[derive(Debug, Default)]
pub(super) struct StepDraft {
    emits: Vec<Emit>,
    bytes: usize,
    withdrawals: Vec<Withdrawal>,
    batch_room: BatchRoom,
    /// The latest time at which a command has fired something in it, in ms since the epoch.
    fired_by_command_at: Timestamp,
    /// The earliest time, in ms since the epoch, after which something in it would not have fired.
    in_time_until: Option<Timestamp>,
    ingested: usize,
    marks_deleted: usize,
}

impl StepDraft {
    /// Adds a record to write whose content is small.
    pub(super) fn emit(&mut self, emit: Emit) {
        self.emit_large(emit, 0);
    }

    /// Adds a record to write whose content has about so many bytes: a payload may be in it.
    #[inline]
    pub(super) fn emit_large(&mut self, emit: Emit, content_bytes: usize) {
        self.bytes += RECORD_BYTES + content_bytes;
        self.emits.push(emit);
    }

    /// What it sends to topics that take little at once.
    pub(super) fn batch_room(&mut self) -> &mut BatchRoom {
        &mut self.batch_room
    }

    /// Makes room for `count` more records.
    pub(super) fn reserve(&mut self, count: usize) {
        self.emits.reserve(count);
    }

    pub(super) fn emits(&self) -> &[Emit] {
        &self.emits
    }

    /// About how many bytes its records have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a record that was ingested.
    pub(super) fn count_ingested(&mut self) {
        self.ingested += 1;
    }

    pub(super) fn ingested(&self) -> usize {
        self.ingested
    }

    /// How many skip marks it deletes.
    pub(super) fn marks_deleted(&self) -> usize {
        self.marks_deleted
    }

    /// Deletes the skip mark of a record.
    pub(super) fn delete_skip_mark(&mut self, offset: Offset) {
        self.delete_ledger_entry(LedgerKey::Skip(offset));
        self.marks_deleted += 1;
    }

    /// A command has fired something at this time, in ms since the epoch.
    pub(super) fn set_fired_by_command_at(&mut self, at: Timestamp) {
        self.fired_by_command_at = at;
    }

    pub(super) fn fired_by_command_at(&self) -> Timestamp {
        self.fired_by_command_at
    }

    /// Something fires in it that would not have fired after this time, in ms since the epoch.
    pub(super) fn limit_lateness(&mut self, in_time_until: Timestamp) {
        let before = self.in_time_until.unwrap_or(Timestamp::MAX);
        self.in_time_until = Some(before.min(in_time_until));
    }

    pub(super) fn in_time_until(&self) -> Option<Timestamp> {
        self.in_time_until
    }

    /// Closes the draft: its records, their bytes, and how many records were ingested.
    pub(super) fn take(&mut self) -> (Vec<Emit>, usize, usize) {
        let Self { emits, bytes, ingested, .. } = std::mem::take(self);
        (emits, bytes, ingested)
    }

    /// Adds a record that belongs to another partition.
    pub(super) fn forward(&mut self, forward: Box<Forward>) {
        let bytes = forward.content_bytes();
        self.emit_large(Emit::Forward(forward), bytes);
    }

    /// Adds a withdrawal, which is sent when entries fire next.
    pub(super) fn add_withdrawal(&mut self, withdrawal: Withdrawal) {
        self.withdrawals.push(withdrawal);
    }

    pub(super) fn has_withdrawals(&self) -> bool {
        !self.withdrawals.is_empty()
    }

    pub(super) fn take_withdrawals(&mut self) -> Vec<Withdrawal> {
        std::mem::take(&mut self.withdrawals)
    }

    pub(super) fn delete_ledger_entry(&mut self, key: LedgerKey) {
        self.emit(Emit::Ledger { key, value: None });
    }

    pub(super) fn send_signal(&mut self, partition: PartitionId, signal: Signal) {
        self.emit(Emit::Signal { partition, signal: Box::new(signal) });
    }

    /// Reports the result of a trigger to its watchers.
    pub(super) fn notify_watchers(
        &mut self,
        context: &PartitionContext,
        dependency: &Text,
        watchers: Vec<Watcher>,
        ok: bool,
    ) {
        for watcher in watchers {
            let partition = context.partition_of(&watcher.trigger);
            let settlement = DependencySettled { watcher, dependency: dependency.clone(), ok };
            self.send_signal(partition, Signal::DependencySettled(settlement));
        }
    }

    /// An outcome that is not a response to a record.
    pub(super) fn emit_outcome(
        &mut self,
        context: &PartitionContext,
        trigger: Text,
        kind: OutcomeKind,
    ) {
        let at = context.clock;
        let outcome = Outcome { trigger, answers: None, request: None, at, kind };
        self.emit(Emit::Outcome(Box::new(outcome)));
    }

    /// Responds to the record at `offset` if it asked for that.
    pub(super) fn emit_response(
        &mut self,
        context: &PartitionContext,
        (ack, offset): (&Ack, Offset),
        trigger: Text,
        kind: OutcomeKind,
    ) {
        if ack.wanted {
            let (answers, request, at) = (Some(offset), ack.request.clone(), context.clock);
            let outcome = Outcome { trigger, answers, request, at, kind };
            self.emit(Emit::Outcome(Box::new(outcome)));
        }
    }

    /// A record that cannot be executed: a dead letter, and always an outcome.
    pub(super) fn reject(
        &mut self,
        context: &PartitionContext,
        topic: Text,
        (ack, offset): (Ack, Offset),
        record: Unreadable,
    ) {
        let bytes = record.content_bytes();
        let Unreadable { id, mut reason, key, value, headers, .. } = record;
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        if let Some(trigger) = id {
            let rejected = OutcomeKind::Rejected { reason: reason.clone() };
            self.emit_response(context, (&ack.always(), offset), trigger, rejected);
        }
        let letter = DeadLetter {
            origin: Origin { topic, partition: context.id, offset },
            reason,
            at: context.clock,
            content: Content::Record { key, value, headers },
        };
        self.emit_large(Emit::DeadLetter(Box::new(letter)), bytes);
    }

    /// A fire that is not made, or not made again: a dead letter and an outcome. Only its own
    /// trigger ends.
    pub(super) fn emit_dead_letter(
        &mut self,
        context: &PartitionContext,
        key: TimelineKey,
        row: FireRow,
        reason: String,
    ) {
        let topics = &context.config.topics;
        let topic = match key.source {
            Source::Triggers => topics.triggers.clone(),
            Source::Signals => topics.signals.clone(),
        };
        let kind = OutcomeKind::Failed {
            generation: row.id.generation,
            occurrence: row.id.occurrence,
            attempt: row.id.attempt,
            status: None,
            reason: reason.clone(),
            retry_at: None,
        };
        self.emit_outcome(context, row.id.trigger.clone(), kind);
        let bytes = row.definition.content_bytes() + reason.len();
        let letter = DeadLetter {
            origin: Origin { topic, partition: context.id, offset: key.offset },
            reason,
            at: context.clock,
            content: Content::Fire { attempts: row.id.attempt, fire: make_fire(context, key, row) },
        };
        self.emit_large(Emit::DeadLetter(Box::new(letter)), bytes);
    }
}

/// The fire of a row, made now.
pub(super) fn make_fire(context: &PartitionContext, key: TimelineKey, row: FireRow) -> Fire {
    let (report_end, priority, fired) = (row.reports_end(), rank(key.priority), context.clock);
    let FireRow { id, scheduled, definition, history, .. } = row;
    Fire { id, scheduled, fired, definition, history, report_end, priority }
}
