//! Where fires are read if their log is not as it was: its first records are deleted, or it is
//! shorter than it was read.
//!
//! Invariant: no fire that the log has is passed over. A log that ends below what was read was cut,
//! and is written again from there on. So it is read from there in a new epoch, whose first commit
//! says so. That may repeat callbacks: also if a broker has answered with an old end. The reader
//! does not say which partition is out of range, so the bounds of all of them are requested.

use std::time::Duration;

use super::callback::WorkerEnvironment;
use super::position::CommittedPosition;
use super::{Worker, WorkerLoopError};
use crate::environment::Clock as _;
use crate::environment::log::LogReading as _;
use crate::model::{Offset, PartitionId};

/// When the bounds of the logs are requested.
#[derive(Debug, Default)]
pub(super) struct BoundsCheck {
    /// The reader was out of range after the last request.
    is_requested: bool,
    /// Not earlier, on the monotonic clock: a broker may refuse an offset that exists.
    next_at: Duration,
}

impl BoundsCheck {
    /// The reader is out of range.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether the bounds are to be requested now; and then not again for `pause`.
    fn take_due(&mut self, now: Duration, pause: Duration) -> bool {
        let is_due = self.is_requested && now >= self.next_at;
        if is_due {
            *self = Self { is_requested: false, next_at: now + pause };
        }
        is_due
    }
}

impl<E: WorkerEnvironment> Worker<E> {
    /// Requests the bounds of all partitions, if one of them is out of range.
    pub(super) fn check_bounds(&mut self) {
        let pause = self.readiness.reading.read_pause();
        if !self.bounds_check.take_due(self.clock.monotonic(), pause) {
            return;
        }
        tracing::error!("an offset to read is out of range; reading the bounds again");
        let partitions = std::mem::take(&mut self.partitions);
        for (partition, owned) in &partitions {
            if let Some(running) = &owned.running {
                self.request_position(*partition, owned, running.read_end());
            }
        }
        self.partitions = partitions;
    }

    /// The bounds of a partition that is read, and of which nothing from `read_end` on was read
    /// when they were requested: goes on where it was, or at the first record that is left.
    pub(super) fn on_bounds(
        &mut self,
        partition: PartitionId,
        read_end: Offset,
        bounds: &CommittedPosition,
    ) -> Result<(), WorkerLoopError> {
        let CommittedPosition { low, end, .. } = *bounds;
        if end < read_end {
            self.report_cut(partition, read_end, end);
            let end = self.end_after_cut(partition, end);
            let owned = self.partitions.get_mut(&partition);
            owned.into_iter().for_each(|owned| owned.cut_end = Some(end));
            return Ok(self.reader.stop(&self.config.topic, partition)?);
        }
        let owned = self.partitions.get_mut(&partition);
        let Some(owned) = owned.filter(|owned| owned.cut_end.is_none()) else { return Ok(()) };
        let running = owned.running.as_mut();
        let Some(position) = running.as_ref().and_then(|running| running.position()) else {
            return Ok(());
        };
        owned.unreserved.clear();
        let deleted = running
            .filter(|_| position < low)
            .map(|running| running.skip_deleted(position, (low, end)))
            .filter(|deleted| deleted.may_be_fires());
        if let Some(deleted) = deleted {
            tracing::error!(
                partition,
                read = position,
                first = low,
                known = deleted.known,
                unread = deleted.unread,
                "fires were deleted before they were read: the retention of {} is too short",
                self.config.topic
            );
        }
        Ok(self.reader.start(&self.config.topic, partition, position.max(low))?)
    }

    /// Starts new epochs of the partitions whose log was cut. No transaction is in progress: it
    /// would commit what the log does not have any more.
    pub(super) fn restart_cut_partitions(&mut self) {
        let cut = self.partitions.iter().filter_map(|(partition, owned)| {
            Some((*partition, owned.running.as_ref().and(owned.cut_end)?))
        });
        for (partition, end) in cut.collect::<Vec<_>>() {
            self.start_epoch(partition);
            let owned = self.partitions.get_mut(&partition);
            owned.into_iter().for_each(|owned| owned.cut_end = Some(end));
            self.report_readiness();
        }
    }

    /// The lowest end at which the log was seen since it was read; `end` is the last one.
    pub(super) fn end_after_cut(&self, partition: PartitionId, end: Offset) -> Offset {
        let cut_end = self.partitions.get(&partition).and_then(|owned| owned.cut_end);
        cut_end.map_or(end, |cut_end| cut_end.min(end))
    }

    pub(super) fn report_cut(&self, partition: PartitionId, read: Offset, end: Offset) {
        tracing::error!(
            partition,
            read,
            end,
            "{} is shorter than it was read: an unclean leader election has cut it, or it was \
             created again. The fires from its end on are lost if they were not delivered. What \
             is written there now is read from its end on; callbacks may be repeated",
            self.config.topic
        );
    }
}

#[cfg(test)]
#[path = "log_bounds/tests.rs"]
mod tests;
