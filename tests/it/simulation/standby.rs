//! Following a partition that someone else owns: the production passes over a simulated store.
//!
//! Law: a pass is over before the ledger's newest records may be compacted.

use orloj::engine::cursor::Cursor;
use orloj::engine::follow::Pass;
use orloj::model::Timestamp;

use super::disk::Disk;
use super::lane::fresh;
use super::site::Site;

/// One pass over a followed partition. Says whether there was everything it needs.
pub(super) fn pass(
    id: usize,
    cursor: Cursor,
    disk: &mut Disk,
    clock: Timestamp,
    site: &Site,
) -> bool {
    let broker = &site.broker;
    let (ledger, triggers) = (&broker.ledger[id], &broker.triggers[id]);
    let local = fresh(disk, clock, site).map(|local| (local, disk.rows.skips.clone()));
    let mut pass = Pass::begin(local, cursor, ledger.high());
    let plan = pass.plan();
    if ledger.stable() < plan.ledger_until || plan.triggers_from < triggers.low {
        return false;
    }
    if pass.must_wipe() {
        disk.wipe();
    }
    let records = ledger.read(&broker.fates, plan.ledger_from, usize::MAX).records;
    let records = records.into_iter().map(|(offset, _, record)| (offset, record)).collect();
    let mut rows = pass.ledger(records, &disk.rows.index);
    disk.write(&rows);
    let mut records = triggers.read(&broker.fates, plan.triggers_from, usize::MAX).records;
    records.retain(|(offset, ..)| *offset < plan.triggers_until);
    let read = |(offset, at, raw)| site.reader.read(id, offset, at, &raw);
    rows = pass.triggers(records.into_iter().map(read).collect(), &disk.rows.index);
    disk.apply(&rows, pass.finish(), clock);
    true
}
