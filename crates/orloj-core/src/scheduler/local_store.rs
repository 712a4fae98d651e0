//! What the scheduler reads from a partition's store, and the state that it writes with the rows.
//!
//! Invariant: a state is valid only if it belongs to this cluster and is younger than the retention
//! of the ledger's tombstones. Any other state is ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::IndexRows;
use crate::environment::store::{LocalState, RowStore, StoreError};
use crate::model::{Offset, Timestamp};

/// The index rows of `hashes` that exist in the store.
pub fn fetch_index_rows(
    store: &impl RowStore,
    mut hashes: Vec<IdHash>,
) -> Result<IndexRows, StoreError> {
    hashes.sort_unstable();
    hashes.dedup();
    let rows = store.lookup(&hashes)?;
    let found = |(hash, known): (IdHash, Option<IndexRow>)| known.map(|known| (hash, known));
    Ok(hashes.into_iter().zip(rows).filter_map(found).collect())
}

/// How far a store is, with its skip marks, if it can be resumed: see [`fresh_checkpoint`].
pub fn valid_state(
    store: &impl RowStore,
    cluster: &str,
    age_max: Duration,
    now: Timestamp,
) -> Result<Option<(LocalCheckpoint, BTreeSet<Offset>)>, StoreError> {
    let local = fresh_checkpoint(store.state()?, cluster, age_max, now);
    local.map(|local| Ok((local, store.skip_marks()?))).transpose()
}

/// How far a store with this state is, if it belongs to this cluster and is younger than `age_max`
/// at `now` (ms since the epoch). In an older store, entries could remain whose tombstones the
/// ledger has already removed.
#[must_use]
pub fn fresh_checkpoint(
    state: Option<LocalState>,
    cluster: &str,
    age_max: Duration,
    now: Timestamp,
) -> Option<LocalCheckpoint> {
    let state = state.filter(|state| {
        let age = u128::from(now.saturating_sub(state.caught_up_at));
        let is_young = age < age_max.as_millis();
        state.cluster_id == cluster && is_young
    })?;
    Some(LocalCheckpoint {
        applied_until: state.applied,
        step: state.step,
        ledger_position: state.ledger_position,
        fired_through: state.fired_through,
    })
}

/// The state to write with the rows.
pub fn local_state(local: LocalCheckpoint, cluster: &str, caught_up_at: Timestamp) -> LocalState {
    LocalState {
        applied: local.applied_until,
        step: local.step,
        ledger_position: local.ledger_position,
        fired_through: local.fired_through,
        cluster_id: cluster.to_owned(),
        caught_up_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::timeline::TimelineKey;
    use crate::test_environment::store::TestStore;

    #[test]
    fn the_index_rows_that_exist_are_found_whatever_the_order_of_their_ids() {
        let store = TestStore::default();
        let hashes = ["a", "b", "c", "d"].map(IdHash::of);
        let row = IndexRow::default();
        store.contents().index.extend(hashes[1..3].iter().map(|hash| (*hash, row.clone())));
        let [a, b, c, d] = hashes;
        let found = fetch_index_rows(&store, vec![d, b, c, a, b]).unwrap();
        assert_eq!(found, [(b, row.clone()), (c, row)].into_iter().collect());
    }

    const AGE_MAX: Duration = Duration::from_millis(1_000);

    #[test]
    fn a_store_is_resumed_if_it_is_of_this_cluster_and_young_enough() {
        let local = LocalCheckpoint {
            applied_until: 5,
            step: 6,
            ledger_position: 7,
            fired_through: TimelineKey::last_at(8),
        };
        let state = || Some(local_state(local, "here", 10_000));
        for (cluster, now, is_fresh) in [
            ("here", 10_000, true),
            ("here", 10_999, true),
            ("here", 11_000, false),
            ("here", 11_001, false),
            ("here", 9_000, true), // the clock was set back
            ("elsewhere", 10_000, false),
        ] {
            let fresh = fresh_checkpoint(state(), cluster, AGE_MAX, now);
            assert_eq!(fresh.is_some(), is_fresh, "{cluster} at {now}");
            let Some(fresh) = fresh else { continue };
            assert_eq!(local_state(fresh, "here", 10_000), state().unwrap(), "it is as written");
        }
        assert!(fresh_checkpoint(None, "here", AGE_MAX, 10_000).is_none());
    }
}
