//! What the shell reads from a partition's local store, and the state that it writes beside the rows.
//!
//! Invariant: a state is valid only if it is of this cluster and younger than the life of the ledger's
//! tombstones; every other one is as good as none.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock;
use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::IndexRows;
use crate::model::{Offset, Timestamp};
use crate::store::{LocalState, PartitionStore, StoreError};

/// The index rows of `hashes` that the store has.
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

/// What a store holds, if it belongs to this cluster and is not older than `age_max`: an entry
/// whose tombstone the ledger has forgotten would otherwise live on here.
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

/// What is stored beside the rows.
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
