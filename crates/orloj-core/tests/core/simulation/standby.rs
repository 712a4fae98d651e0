//! Standby of a partition that another node owns: the production catch-up pass over a simulated
//! store.
//!
//! Invariant: a pass is over before the ledger's newest records may be compacted.

use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::standby::CatchUpPass;
use orloj_core::model::Timestamp;
use orloj_core::scheduler::local_store::{fresh_checkpoint, local_state};

use super::cluster::SimulatedCluster;
use super::disk::SimulatedDisk;

/// What a pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedStandbyRead {
    Ledger,
    Triggers,
}

/// How a pass ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassEnd {
    /// There was not everything it needs; nothing has changed.
    Missing,
    /// It was aborted: rows that the state does not cover were written, and are on disk.
    Broken,
    /// The store is as far as the cursor.
    Whole,
}

/// One catch-up pass, aborted after the ledger or after the log if `breaks` says so.
pub(super) fn pass(
    id: usize,
    cursor: Cursor,
    disk: &mut SimulatedDisk,
    clock: Timestamp,
    cluster: &SimulatedCluster,
    breaks: Option<SimulatedStandbyRead>,
) -> PassEnd {
    let broker = &cluster.broker;
    let (ledger, triggers) = (&broker.ledger[id], &broker.triggers[id]);
    let age_max = std::time::Duration::from_millis(cluster.state_age_max());
    let local = fresh_checkpoint(disk.rows.state.clone(), "", age_max, clock);
    let local = local.map(|local| (local, disk.rows.skips.clone()));
    let mut pass = CatchUpPass::begin(local, cursor, ledger.high());
    let plan = pass.plan();
    if ledger.stable() < plan.ledger_until || plan.triggers_from < triggers.low {
        return PassEnd::Missing;
    }
    if pass.must_wipe() {
        disk.wipe();
    }
    let records = ledger.read(&broker.transaction_states, plan.ledger_from, usize::MAX).records;
    let records = records.into_iter().map(|(offset, _, record)| (offset, record));
    let records: Vec<_> = records.collect();
    let wanted = pass.ids_in_ledger(&records);
    let rows = pass.on_ledger(records, &disk.fetch(&wanted));
    disk.add(&rows);
    if breaks == Some(SimulatedStandbyRead::Ledger) {
        return PassEnd::Broken;
    }
    let mut records =
        triggers.read(&broker.transaction_states, plan.triggers_from, usize::MAX).records;
    records.retain(|(offset, ..)| *offset < plan.triggers_until && !pass.is_covered(*offset));
    let read = |(offset, at, raw)| cluster.reader.read(id, offset, at, &raw);
    let records: Vec<_> = records.into_iter().map(read).collect();
    let wanted = pass.ids_in_triggers(&records);
    let rows = pass.on_triggers(records, &disk.fetch(&wanted));
    disk.add(&rows);
    if breaks == Some(SimulatedStandbyRead::Triggers) {
        return PassEnd::Broken;
    }
    disk.apply(&[], local_state(pass.finish(), "", clock));
    PassEnd::Whole
}
