//! Following a partition that someone else owns: a store is kept nearly as far as the owner is, so
//! that a takeover replays seconds.
//!
//! Invariant: in passes, each exactly as far as one committed cursor: read the cursor, stable; then
//! where the ledger ends; of the ledger up to there what was written by steps up to the cursor's;
//! then the log up to its N, by the replay rule. A ledger that says more than the cursor would not
//! do: marks and entries that later steps have taken away decide how the log is replayed. So a pass
//! must be over before the ledger's newest records may be compacted (`min.compaction.lag.ms`). What
//! it leaves is a local state like an owner's: a takeover takes it or leaves it by the same rules.

use std::collections::BTreeSet;

use super::cursor::Cursor;
use super::index_row::IdHash;
use super::local_checkpoint::LocalCheckpoint;
use super::partition::IndexRows;
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
pub fn partitions_to_follow(
    members: &[(&str, &[PartitionId])],
    is_me: impl Fn(&str) -> bool,
    replicas: usize,
) -> BTreeSet<PartitionId> {
    let rank = |member: &str, partition: PartitionId| {
        xxhash_rust::xxh3::xxh3_64_with_seed(member.as_bytes(), u64::from(partition.unsigned_abs()))
    };
    let Some((me, _)) = members.iter().find(|(member, _)| is_me(member)) else {
        return BTreeSet::new();
    };
    let is_ours = |owner: &str, partition: PartitionId| {
        let before = members.iter().filter(|(other, _)| {
            *other != owner && *other != *me && rank(other, partition) > rank(me, partition)
        });
        before.count() < replicas
    };
    let others = members.iter().filter(|(member, _)| member != me);
    others
        .flat_map(|(owner, owned)| owned.iter().map(move |partition| (*owner, *partition)))
        .filter(|(owner, partition)| is_ours(owner, *partition))
        .map(|(_, partition)| partition)
        .collect()
}

/// What one pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// The first offset of the ledger to read.
    pub ledger_from: Offset,
    /// The first one not to read.
    pub ledger_until: Offset,
    /// The first offset of `triggers` to read.
    pub triggers_from: Offset,
    /// The first one not to read: N, or the first record that is parked.
    pub triggers_until: Offset,
}

/// One pass over a followed partition.
#[derive(Debug)]
pub struct CatchUpPass {
    cursor: Cursor,
    /// Whether the store is of no use and must be wiped first.
    must_wipe: bool,
    applied_step: u64,
    plan: ReadPlan,
    /// The first record of a later step than the cursor's.
    later_from: Option<Offset>,
    replay: Replay,
}

impl CatchUpPass {
    /// Begins a pass with what the store holds. `ledger_end` is where the ledger ended after the
    /// committed cursor was read.
    #[must_use]
    pub fn begin(
        local: Option<(LocalCheckpoint, BTreeSet<Offset>)>,
        cursor: Cursor,
        ledger_end: Offset,
    ) -> Self {
        let useful = local.filter(|(local, _)| local.agrees_with(&cursor, ledger_end));
        let must_wipe = useful.is_none();
        let fresh = LocalCheckpoint {
            applied_until: 0,
            step: 0,
            ledger_position: 0,
            fired_through: cursor.fired_through,
        };
        let (local, skips) = useful.unwrap_or((fresh, BTreeSet::new()));
        let plan = ReadPlan {
            ledger_from: local.ledger_position,
            ledger_until: ledger_end,
            triggers_from: cursor.replay_from.max(local.applied_until).min(cursor.decided_until()),
            triggers_until: cursor.decided_until(),
        };
        let log = plan.triggers_from..plan.triggers_until;
        let mut replay = Replay::new(cursor.fired_through, cursor.replay_horizon, log, skips);
        if must_wipe {
            let triggers = plan.triggers_until - plan.triggers_from;
            replay = replay.with_empty_store(ledger_end.saturating_add(triggers));
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
    pub fn plan(&self) -> ReadPlan {
        self.plan
    }

    /// The cursor's: see [`Cursor::registry_from`].
    #[must_use]
    pub fn registry_from(&self) -> Offset {
        self.cursor.registry_from
    }

    /// The ids whose index rows [`on_ledger`](Self::on_ledger) needs for these records.
    pub fn ids_in_ledger(&mut self, records: &[(Offset, LedgerRecord)]) -> Vec<IdHash> {
        self.replay.ids_in_ledger(records.iter().map(|(_, record)| record))
    }

    /// The ids whose index rows [`on_triggers`](Self::on_triggers) needs for these records.
    pub fn ids_in_triggers(&mut self, records: &[TriggerRecord]) -> Vec<IdHash> {
        self.replay.ids_in_triggers(records)
    }

    /// Records of the ledger and their offsets, in order; returns the rows to apply.
    pub fn on_ledger(
        &mut self,
        records: Vec<(Offset, LedgerRecord)>,
        fetched: &IndexRows,
    ) -> Vec<RowOp> {
        let mut new_records = Vec::with_capacity(records.len());
        for (offset, record) in records {
            if record.step > self.cursor.step {
                let _first = self.later_from.get_or_insert(offset);
            }
            // What an owner wrote here before has been applied by its own steps.
            if self.later_from.is_none() && record.step > self.applied_step {
                new_records.push(record);
            }
        }
        self.replay.apply_ledger(new_records, fetched)
    }

    /// Whether a record of a later step was met: everything before it has been read.
    #[must_use]
    pub fn is_ledger_read(&self) -> bool {
        self.later_from.is_some()
    }

    /// Whether the record of `triggers` at `offset` need not be given to
    /// [`on_triggers`](Self::on_triggers): the ledger, which is read, holds what it has registered.
    #[must_use]
    pub fn is_covered(&self, offset: Offset) -> bool {
        self.replay.is_covered(offset)
    }

    /// Records of `triggers` in order, once the ledger is read; returns the rows to apply.
    pub fn on_triggers(&mut self, records: Vec<TriggerRecord>, fetched: &IndexRows) -> Vec<RowOp> {
        assert!(records.iter().all(|record| record.offset < self.plan.triggers_until));
        self.replay.apply_triggers(records, fetched)
    }

    /// Everything is read and applied: how far the store is now.
    #[must_use]
    pub fn finish(self) -> LocalCheckpoint {
        LocalCheckpoint {
            applied_until: self.cursor.decided_until(),
            step: self.cursor.step,
            ledger_position: self.later_from.unwrap_or(self.plan.ledger_until),
            fired_through: self.cursor.fired_through,
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
        let members: Vec<_> = names.into_iter().zip(owned.iter().map(Vec::as_slice)).collect();
        for replicas in 0..5 {
            let follows =
                names.map(|me| partitions_to_follow(&members, |member| member == me, replicas));
            for partition in 0..40 {
                let followers = follows.iter().filter(|f| f.contains(&partition)).count();
                assert_eq!(followers, replicas.min(3));
                let owner = usize::try_from(partition / 10).unwrap();
                assert!(!follows[owner].contains(&partition));
            }
        }
        assert_eq!(partitions_to_follow(&members, |_| false, 3), BTreeSet::new(), "no member yet");
    }

    /// Members of different versions must agree.
    #[test]
    fn those_with_the_greatest_hash_of_both_follow_a_partition() {
        let members: [(&str, &[PartitionId]); 4] =
            [("a-1", &[0, 1, 2, 3, 4, 5, 6, 7]), ("b-2", &[]), ("c-3", &[]), ("d-4", &[])];
        let follows = ["b-2", "c-3", "d-4"]
            .map(|me| (me, partitions_to_follow(&members, |member| member == me, 1)));
        for partition in 0..8_u32 {
            let hash = |name: &str| {
                xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), u64::from(partition))
            };
            let greatest = follows.iter().max_by_key(|(name, _)| hash(name)).unwrap();
            assert!(greatest.1.contains(&partition.cast_signed()), "{partition}");
        }
    }
}
