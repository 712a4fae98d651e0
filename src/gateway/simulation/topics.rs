//! The topics of one partition, and its owner: the production engine.
//!
//! Invariant: a record is read from its bytes, and what one step commits is there at once.

use super::SharedParts;
use super::explain::{TriggerLogs, reading};
use super::test_partition::{TestPartition, rules};
use crate::client::Submission;
use crate::codec::registration::{
    NoWriterSchemas, RawHeader, RawRecord, ReadContext, read_trigger,
};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::engine::step::Emit;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::partitioner::Partitioner;
use crate::model::{Offset, Timestamp};

/// The missed occurrences of a schedule, of which there is none here, that fire in a second.
const CATCH_UP_RATE: u32 = 1_000;

/// How long the topics were when a cursor was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommittedCursor {
    pub(super) cursor: Cursor,
    pub(super) triggers: usize,
    pub(super) ledger: usize,
    pub(super) outcomes: usize,
}

/// The topics.
pub(super) struct SimulatedTopics<'a> {
    shared: &'a SharedParts,
    owner: TestPartition,
    pub(super) triggers: Vec<TriggerRecord>,
    pub(super) ledger: Vec<LedgerRecord>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) commits: Vec<CommittedCursor>,
    fires: Vec<(String, Offset, Timestamp)>,
}

impl<'a> SimulatedTopics<'a> {
    pub(super) fn new(shared: &'a SharedParts) -> Self {
        Self {
            shared,
            owner: TestPartition::new(0, rules(1, CATCH_UP_RATE)),
            triggers: Vec::new(),
            ledger: Vec::new(),
            outcomes: Vec::new(),
            commits: Vec::new(),
            fires: Vec::new(),
        }
    }

    /// Writes a record; returns its offset.
    pub(super) fn append(&mut self, submission: &Submission, now: Timestamp) -> Offset {
        let headers = submission.headers.iter();
        let headers = headers.map(|(name, value)| (&name[..], Some(&value[..]))).collect();
        self.append_raw(submission.id.as_bytes(), submission.value.as_deref(), headers, now)
    }

    fn append_raw(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        headers: Vec<RawHeader<'_>>,
        now: Timestamp,
    ) -> Offset {
        let (partition, offset, timestamp) = (0, self.triggers.len() as Offset, now);
        let raw = RawRecord { partition, offset, timestamp, key: Some(key), value, headers };
        let context = ReadContext {
            partitioner: Partitioner::Murmur2,
            partitions: 1,
            schemas: &self.shared.schemas,
            writers: &NoWriterSchemas,
        };
        let Ok(record) = read_trigger(&raw, &context) else { panic!("{raw:?}") };
        self.owner.write(record.clone());
        self.triggers.push(record);
        offset
    }

    /// The owner decides everything that it can.
    pub(super) fn decide(&mut self, now: Timestamp) {
        let mut forwards = Vec::new();
        let Self { owner, ledger, outcomes, fires, .. } = self;
        owner.run_due(now, &mut |emit| match emit {
            Emit::Ledger { key, value } => {
                let (key, value) = (key.clone(), value.as_deref().cloned());
                ledger.push(LedgerRecord { key, value, step: 0 });
            }
            Emit::Outcome(outcome) => outcomes.push((**outcome).clone()),
            Emit::ToTopic(fire) => {
                let fire = row::view(&fire.row).unwrap().unwrap();
                let id = std::str::from_utf8(fire.trigger).unwrap().to_owned();
                fires.push((id, fire.generation, now));
            }
            Emit::Forward(forward) => forwards.push((**forward).clone()),
            // Workers would get it: there is none.
            Emit::Withdraw { .. } => {}
            other => panic!("no request asks for {other:?}"),
        });
        let Some((offset, metadata)) = owner.committed() else { return };
        let (cursor, _owner) = Cursor::from_metadata(offset, metadata).unwrap();
        self.commits.push(CommittedCursor {
            cursor,
            triggers: usize::try_from(cursor.next_offset).unwrap(),
            ledger: self.ledger.len(),
            outcomes: self.outcomes.len(),
        });
        for forward in forwards {
            let headers = forward.headers.iter();
            let headers = headers.map(|header| (header.name.as_str(), header.value.as_deref()));
            let value = forward.value.as_deref();
            let _offset = self.append_raw(&forward.key, value, headers.collect(), now);
        }
    }

    /// Another owner takes over, on the disk of this one or on none.
    pub(super) fn lose_owner(&mut self, wipe: bool) {
        self.owner.remove_owner(wipe);
    }

    /// Everything, for the checker.
    pub(super) fn logs(&self) -> TriggerLogs {
        let mut logs = TriggerLogs::new();
        self.triggers.iter().for_each(|record| reading::add_record(&mut logs, record));
        self.outcomes.iter().for_each(|outcome| reading::add_outcome(&mut logs, outcome));
        for (id, generation, visible) in &self.fires {
            reading::add_fire(&mut logs, id, *generation, *visible);
        }
        logs
    }
}
