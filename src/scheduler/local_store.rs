//! What the scheduler reads from a partition's store, and the state that it writes with the rows.
//!
//! Invariant: a state is valid only if it belongs to this cluster and is younger than the retention
//! of the ledger's tombstones. Any other state is ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock;
use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::IndexRows;
use crate::model::{Offset, Timestamp};
use crate::store::{LocalState, PartitionStore, StoreError};

/// The index rows of `hashes` that exist in the store.
pub(super) fn fetch_index_rows(
    store: &PartitionStore,
    mut hashes: Vec<IdHash>,
) -> Result<IndexRows, StoreError> {
    hashes.sort_unstable();
    hashes.dedup();
    let rows = store.lookup(&hashes)?;
    let found = |(hash, known): (IdHash, Option<IndexRow>)| known.map(|known| (hash, known));
    Ok(hashes.into_iter().zip(rows).filter_map(found).collect())
}

/// The state of a store, if it belongs to this cluster and is younger than `age_max`. In an older
/// store, entries could remain whose tombstones the ledger has already removed.
pub(super) fn valid_state(
    store: &PartitionStore,
    cluster: &str,
    age_max: Duration,
) -> Result<Option<(LocalCheckpoint, BTreeSet<Offset>)>, StoreError> {
    let now = clock::now_ms();
    let valid = |state: &LocalState| {
        let age = u128::from(now.saturating_sub(state.caught_up_at));
        state.cluster_id == cluster && age < age_max.as_millis()
    };
    let Some(state) = store.state()?.filter(valid) else { return Ok(None) };
    let local = LocalCheckpoint {
        applied_until: state.applied,
        step: state.step,
        ledger_position: state.ledger_position,
        fired_through: state.fired_through,
    };
    Ok(Some((local, store.skip_marks()?)))
}

/// The state to write with the rows.
pub(super) fn local_state(
    local: LocalCheckpoint,
    cluster: &str,
    caught_up_at: Timestamp,
) -> LocalState {
    LocalState {
        applied: local.applied_until,
        step: local.step,
        ledger_position: local.ledger_position,
        fired_through: local.fired_through,
        cluster_id: cluster.to_owned(),
        caught_up_at,
    }
}
