//! Following a partition that someone else owns: a store is kept nearly as far as the owner is, so
//! that a takeover replays seconds.
//!
//! Law: in passes, each exactly as far as one committed cursor: read the cursor, stable; then
//! where the ledger ends; of the ledger up to there what was written by steps up to the cursor's;
//! then the log up to its N, by the replay rule. A ledger that says more than the cursor would not
//! do: marks and entries that later steps have taken away decide how the log is replayed. So a pass
//! must be over before the ledger's newest records may be compacted (`min.compaction.lag.ms`). What
//! it leaves is a local state like an owner's: a takeover takes it or leaves it by the same rules.

use std::collections::BTreeSet;

use super::cursor::Cursor;
use super::known::IdHash;
use super::local::Local;
use super::partition::Fetched;
use super::replay::Replay;
use super::step::RowOp;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId};

/// Which partitions a member follows: of each that others own, those `replicas` members beside
/// the owner that come first by a hash of both. `seats` are all members and what they own; `is_me`
/// knows ours.
///
/// Rendezvous hashing (Thaler and Ravishankar 1996): who comes or goes moves only its own share.
#[must_use]
pub fn chosen(
    seats: &[(&str, &[PartitionId])],
    is_me: impl Fn(&str) -> bool,
    replicas: usize,
) -> BTreeSet<PartitionId> {
    let rank = |member: &str, partition: PartitionId| {
        xxhash_rust::xxh3::xxh3_64_with_seed(member.as_bytes(), u64::from(partition.unsigned_abs()))
    };
    let Some((me, _)) = seats.iter().find(|(member, _)| is_me(member)) else {
        return BTreeSet::new();
    };
    let is_ours = |owner: &str, partition: PartitionId| {
        let before = seats.iter().filter(|(other, _)| {
            *other != owner && *other != *me && rank(other, partition) > rank(me, partition)
        });
        before.count() < replicas
    };
    let others = seats.iter().filter(|(member, _)| member != me);
    others
        .flat_map(|(owner, owned)| owned.iter().map(move |partition| (*owner, *partition)))
        .filter(|(owner, partition)| is_ours(owner, *partition))
        .map(|(_, partition)| partition)
        .collect()
}

/// What one pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first offset of the ledger to read.
    pub ledger_from: Offset,
    /// The first one not to read.
    pub ledger_until: Offset,
    /// The first offset of `triggers` to read.
    pub triggers_from: Offset,
    /// N: the first one not to read.
    pub triggers_until: Offset,
}

/// One pass over a followed partition.
#[derive(Debug)]
pub struct Pass {
    cursor: Cursor,
    /// Whether the store is of no use and must be wiped first.
    must_wipe: bool,
    applied_step: u64,
    plan: Plan,
    /// The first record of a later step than the cursor's.
    later_from: Option<Offset>,
    replay: Replay,
}

impl Pass {
    /// Begins a pass with what the store holds. `ledger_end` is where the ledger ended after the
    /// committed cursor was read.
    #[must_use]
    pub fn begin(
        local: Option<(Local, BTreeSet<Offset>)>,
        cursor: Cursor,
        ledger_end: Offset,
    ) -> Self {
        let useful = local.filter(|(local, _)| local.agrees_with(&cursor, ledger_end));
        let must_wipe = useful.is_none();
        let fresh = Local { applied: 0, step: 0, ledger_position: 0, w: cursor.w };
        let (local, skips) = useful.unwrap_or((fresh, BTreeSet::new()));
        let plan = Plan {
            ledger_from: local.ledger_position,
            ledger_until: ledger_end,
            triggers_from: cursor.low_water.max(local.applied).min(cursor.triggers),
            triggers_until: cursor.triggers,
        };
        let log = plan.triggers_from..plan.triggers_until;
        let mut replay = Replay::new(cursor.w, cursor.horizon, log, skips);
        if must_wipe {
            let triggers = plan.triggers_until - plan.triggers_from;
            replay = replay.of_empty_store(ledger_end.saturating_add(triggers));
        }
        Self { cursor, must_wipe, applied_step: local.step, plan, later_from: None, replay }
    }

    /// Whether the local store is of no use and must be wiped before it is written.
    #[must_use]
    pub fn must_wipe(&self) -> bool {
        self.must_wipe
    }

    /// What to read, the ledger first.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// The ids whose index rows [`ledger`](Self::ledger) needs for these records.
    pub fn ids_in_ledger(&mut self, records: &[(Offset, LedgerRecord)]) -> Vec<IdHash> {
        self.replay.ids_in_ledger(records.iter().map(|(_, record)| record))
    }

    /// The ids whose index rows [`triggers`](Self::triggers) needs for these records.
    pub fn ids_in_triggers(&mut self, records: &[TriggerRecord]) -> Vec<IdHash> {
        self.replay.ids_in_triggers(records)
    }

    /// Records of the ledger and their offsets, in order; returns the rows to apply.
    pub fn ledger(
        &mut self,
        records: Vec<(Offset, LedgerRecord)>,
        fetched: &Fetched,
    ) -> Vec<RowOp> {
        let mut news = Vec::with_capacity(records.len());
        for (offset, record) in records {
            if record.step > self.cursor.step {
                let _first = self.later_from.get_or_insert(offset);
            }
            // What an owner wrote here before has been applied by its own steps.
            if self.later_from.is_none() && record.step > self.applied_step {
                news.push(record);
            }
        }
        self.replay.ledger(news, fetched)
    }

    /// Whether a record of a later step was met: everything before it has been read.
    #[must_use]
    pub fn ledger_is_read(&self) -> bool {
        self.later_from.is_some()
    }

    /// Whether the record of `triggers` at `offset` need not be given to
    /// [`triggers`](Self::triggers): the ledger, which is read, holds what it has registered.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        self.replay.holds(offset)
    }

    /// Records of `triggers` in order, once the ledger is read; returns the rows to apply.
    pub fn triggers(&mut self, records: Vec<TriggerRecord>, fetched: &Fetched) -> Vec<RowOp> {
        assert!(records.iter().all(|record| record.offset < self.plan.triggers_until));
        self.replay.triggers(records, fetched)
    }

    /// Everything is read and applied: how far the store is now.
    #[must_use]
    pub fn finish(self) -> Local {
        Local {
            applied: self.cursor.triggers,
            step: self.cursor.step,
            ledger_position: self.later_from.unwrap_or(self.plan.ledger_until),
            w: self.cursor.w,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_as_many_followers_as_asked_for_and_never_its_owner() {
        let owned: [Vec<PartitionId>; 4] = [0, 1, 2, 3].map(|m| (m * 10..m * 10 + 10).collect());
        let names = ["a-1", "b-2", "c-3", "d-4"];
        let seats: Vec<_> = names.into_iter().zip(owned.iter().map(Vec::as_slice)).collect();
        for replicas in 0..5 {
            let follows = names.map(|me| chosen(&seats, |member| member == me, replicas));
            for partition in 0..40 {
                let followers = follows.iter().filter(|f| f.contains(&partition)).count();
                assert_eq!(followers, replicas.min(3));
                let owner = usize::try_from(partition / 10).unwrap();
                assert!(!follows[owner].contains(&partition));
            }
        }
        assert_eq!(chosen(&seats, |_| false, 3), BTreeSet::new(), "no member yet");
    }
}
