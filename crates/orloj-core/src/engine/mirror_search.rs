//! The search for a cursor that is not in the committed metadata: an operator has moved the offset,
//! or it was lost.
//!
//! Invariant: without metadata, only a mirror that was written at a shutdown is trusted; a cursor
//! that starts elsewhere starts a new epoch.

use super::cursor::{Cursor, MetadataError, next_epoch_base};
use super::local_checkpoint::LocalCheckpoint;
use super::partition_offsets::PartitionOffsets;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::{Offset, Timestamp};

/// S of a cursor that an operator has moved past its mirror: unknown until a replay without a local
/// store has computed it.
pub(super) const REPLAY_HORIZON_UNKNOWN: Timestamp = Timestamp::MAX;

/// What was found in the ledger so far.
#[derive(Debug)]
pub(super) struct MirrorSearch {
    /// The newest mirror: metadata, offset, and whether it was written at a shutdown.
    mirror: Option<(String, Offset, bool)>,
    /// The highest number of a step that was read.
    last_step: Option<u64>,
}

/// Why the mirror gives no cursor.
pub(super) enum MirrorError {
    /// A newer version wrote it.
    Newer(MetadataError),
    /// It was not written at a shutdown, and the committed offset is lost.
    NotClean {
        /// N of the mirror.
        offset: Offset,
        /// When what it has fired last was due, in ms since the epoch.
        due: Timestamp,
    },
}

impl MirrorSearch {
    /// Starts with the last step of the local store.
    pub(super) fn new(last_step: Option<u64>) -> Self {
        Self { mirror: None, last_step }
    }

    /// Reads records of the ledger, in order.
    pub(super) fn read(&mut self, records: Vec<LedgerRecord>) {
        for record in records {
            self.last_step = self.last_step.max(Some(record.step));
            if let (LedgerKey::Cursor, Some(LedgerValue::Cursor { metadata, offset, clean })) =
                (record.key, record.value)
            {
                self.mirror = Some((metadata, offset, clean));
            }
        }
    }

    /// The cursor to start from, once all of the ledger was read.
    pub(super) fn cursor(
        &self,
        offsets: &PartitionOffsets,
        local: Option<&LocalCheckpoint>,
    ) -> Result<Cursor, MirrorError> {
        let moved_to = offsets.committed.as_ref().map(|(offset, _)| *offset);
        let mirror = match &self.mirror {
            None => None,
            Some((metadata, offset, clean)) => {
                let read = Cursor::from_metadata(*offset, metadata);
                let (mut cursor, _owner) = read.map_err(MirrorError::Newer)?;
                if !Cursor::tells_registry_from(metadata) {
                    // The program that wrote it may have ingested more, without the ledger.
                    cursor.registry_from = moved_to.unwrap_or(cursor.registry_from);
                }
                Some((cursor, *clean))
            }
        };
        let step = self.last_step.map_or(0, next_epoch_base);
        match (mirror, moved_to) {
            (None, moved_to) => {
                let from = moved_to.unwrap_or(offsets.triggers_low);
                Ok(Cursor { step, ..Cursor::initial(from, offsets.signals_low) })
            }
            (Some((cursor, false)), None) => {
                let (offset, due) = (cursor.next_offset, cursor.fired_through.due);
                Err(MirrorError::NotClean { offset, due })
            }
            (Some((cursor, _)), None) => Ok(cursor),
            (Some((cursor, _)), Some(offset)) => {
                Ok(moved_cursor(Cursor { step, ..cursor }, offset, local))
            }
        }
    }
}

/// An operator moved the offset: everything from there on counts as new. W stays.
fn moved_cursor(mirror: Cursor, offset: Offset, local: Option<&LocalCheckpoint>) -> Cursor {
    let fired_through =
        local.map_or(mirror.fired_through, |local| local.fired_through.max(mirror.fired_through));
    // What was ingested since the mirror was written may be due later than its S.
    let replay_horizon =
        if offset > mirror.next_offset { REPLAY_HORIZON_UNKNOWN } else { mirror.replay_horizon };
    let replay_from = mirror.replay_from.min(offset);
    let parked = mirror.parked.below(offset);
    Cursor { fired_through, next_offset: offset, replay_from, replay_horizon, parked, ..mirror }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cursor if the mirror has this text and N = 100, and the offset was moved to `moved_to`.
    fn cursor(metadata: &str, moved_to: Offset) -> Cursor {
        let metadata = metadata.to_owned();
        let value = LedgerValue::Cursor { metadata, offset: 100, clean: false };
        let mut search = MirrorSearch::new(None);
        search.read(vec![LedgerRecord { key: LedgerKey::Cursor, value: Some(value), step: 5 }]);
        let committed = Some((moved_to, String::new()));
        let offsets = PartitionOffsets { committed, ..PartitionOffsets::default() };
        search.cursor(&offsets, None).ok().expect("a cursor")
    }

    #[test]
    fn what_an_earlier_program_has_ingested_is_not_taken_for_part_of_the_ledger() {
        let earlier = "orloj1 w=17.3.1.9 ns=8 l=30 s=99 step=5 tx=orloj-a";
        assert_eq!(cursor(earlier, 150).registry_from, 150, "it has continued after the mirror");
        assert_eq!(cursor(earlier, 50).registry_from, 50, "all from there on is new");
        let this = "orloj1 w=17.3.1.9 ns=8 l=30 s=99 step=5 r=20 tx=orloj-a";
        assert_eq!(cursor(this, 150).registry_from, 20);
    }
}
