//! Ingest: each record goes to the decision about its trigger.
//!
//! Invariant: a record changes one trigger at most. A registration that is ignored because of other
//! state, or that belongs to another partition, leaves a skip mark. A record below N is ingested
//! only if it was parked.

use super::config::PartitionContext;
use super::draft::StepDraft;
use super::prefetch::{ParkedRecord, Prefetched};
use super::state::{CorruptRow, EngineState};
use super::trigger_handler::TriggerHandler;
use crate::model::input::{Ack, Request, SignalRecord, TriggerRecord};
use crate::model::signal::Signal;
use crate::model::text::Text;

/// Ingests the records of a batch.
pub(super) struct IngestHandler<'p> {
    pub(super) context: &'p PartitionContext,
    pub(super) state: &'p mut EngineState,
    pub(super) output: &'p mut StepDraft,
    pub(super) prefetched: Prefetched<'p>,
}

impl IngestHandler<'_> {
    pub(super) fn ingest_trigger(&mut self, record: TriggerRecord) -> Result<(), CorruptRow> {
        let TriggerRecord { offset, timestamp, ack, request } = record;
        let cursor = self.state.cursor();
        let was_parked = offset < cursor.next_offset;
        let first_parked = cursor.parked.first_offset();
        assert!(
            !was_parked || first_parked.is_some_and(|first| offset >= first),
            "the record at {offset} was ingested before"
        );
        self.state.set_next_offset(offset + 1);
        self.output.count_ingested();
        match request {
            Request::Register(mut new) => {
                // L may pass it: the records that it is ingested after are later ones.
                new.in_ledger |= was_parked;
                self.trigger(&new.id).register(offset, timestamp, ack, new)?;
            }
            Request::Change(change) => {
                self.trigger(&change.new.id).change(offset, timestamp, ack, *change)?;
            }
            Request::Cancel { id, caller } => {
                self.trigger(&id).cancel(offset, ack, id, caller)?;
            }
            Request::Command { id, command, caller } => {
                self.trigger(&id).command(offset, ack, id, (command, caller))?;
            }
            Request::Forward(forward) => {
                self.state.mark_skipped(offset, self.output);
                self.output.forward(forward);
            }
            Request::Batch(forwards) => {
                self.state.mark_skipped(offset, self.output);
                for forward in forwards {
                    self.output.forward(Box::new(forward));
                }
            }
            Request::Unreadable(unreadable) => {
                if unreadable.may_become_readable {
                    self.state.mark_skipped(offset, self.output);
                }
                let topic = self.context.config.topics.triggers.clone();
                self.output.reject(self.context, topic, (ack, offset), *unreadable);
            }
        }
        Ok(())
    }

    pub(super) fn ingest_parked(&mut self, record: &ParkedRecord) {
        self.state.park(record.offset, &record.id, record.schemas);
        self.output.count_ingested();
    }

    pub(super) fn ingest_signal(&mut self, record: SignalRecord) -> Result<(), CorruptRow> {
        let offset = record.offset;
        self.state.set_next_signal_offset(offset + 1);
        self.output.count_ingested();
        match record.signal {
            Ok(Signal::Retry(request)) => {
                self.trigger(&request.id.trigger).accept_retry(offset, request)
            }
            Ok(Signal::CallbackEnded(ended)) => {
                self.trigger(&ended.id.trigger).on_callback_ended(ended)
            }
            Ok(Signal::Watch(watch)) => self.trigger(&watch.trigger).on_watch(offset, watch),
            Ok(Signal::DependencySettled(settlement)) => {
                self.trigger(&settlement.watcher.trigger).on_dependency_settled(settlement)
            }
            Err(unreadable) => {
                let topic = self.context.config.topics.signals.clone();
                self.output.reject(self.context, topic, (Ack::default(), offset), *unreadable);
                Ok(())
            }
        }
    }

    fn trigger(&mut self, id: &Text) -> TriggerHandler<'_> {
        TriggerHandler::new(self.context, self.state, self.output, self.prefetched, id)
    }
}
