//! The stores that the loop and the standby pass to each other.
//!
//! Invariant: each store is open on one side only. The loop never waits: a store that the standby
//! is using is given to the loop a little later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::PartitionId;

/// The stores of followed partitions, shared by the loop and the standby.
#[derive(Debug)]
pub(super) struct StandbyStores<S>(Mutex<StoresOfBoth<S>>);

#[derive(Debug)]
struct StoresOfBoth<S> {
    /// The partitions whose stores the loop has, or waits for.
    taken: BTreeSet<PartitionId>,
    /// The stores of the standby; `None` while it uses, opens or deletes one.
    followed: BTreeMap<PartitionId, Option<Arc<S>>>,
    /// The loop has ended.
    is_closed: bool,
}

/// The answer to the loop, which takes the store of a partition.
#[derive(Debug)]
pub(super) enum TakenStore<S> {
    /// The partition was followed: this is its store.
    Open(Arc<S>),
    /// The partition was not followed: the loop opens its store.
    Closed,
    /// The standby is using the store: ask again in the next turn.
    InUse,
}

/// The answer to the standby, which begins to use the store of a partition.
#[derive(Debug)]
pub(super) enum FollowedStore<S> {
    /// It is open.
    Open(Arc<S>),
    /// The standby opens it.
    Closed,
    /// The loop has it.
    Taken,
}

impl<S> StandbyStores<S> {
    /// Without stores.
    pub(super) fn new() -> Self {
        let (taken, followed) = (BTreeSet::new(), BTreeMap::new());
        Self(Mutex::new(StoresOfBoth { taken, followed, is_closed: false }))
    }

    fn lock(&self) -> MutexGuard<'_, StoresOfBoth<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop takes the store of a partition that is assigned to it.
    pub(super) fn take(&self, partition: PartitionId) -> TakenStore<S> {
        let mut stores = self.lock();
        let _new = stores.taken.insert(partition);
        match stores.followed.get_mut(&partition).map(Option::take) {
            None => TakenStore::Closed,
            Some(None) => TakenStore::InUse,
            Some(Some(store)) => {
                let _entry = stores.followed.remove(&partition);
                TakenStore::Open(store)
            }
        }
    }

    /// The loop has closed the store, or does not want it any more.
    pub(super) fn give_back(&self, partition: PartitionId) {
        let _was = self.lock().taken.remove(&partition);
    }

    /// The loop ends.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Whether the loop wants the store of this partition.
    pub(super) fn is_taken(&self, partition: PartitionId) -> bool {
        self.lock().taken.contains(&partition)
    }

    /// The standby begins to use the store of a partition.
    pub(super) fn begin(&self, partition: PartitionId) -> FollowedStore<S> {
        let mut stores = self.lock();
        if stores.taken.contains(&partition) {
            return FollowedStore::Taken;
        }
        match stores.followed.entry(partition).or_default().take() {
            Some(store) => FollowedStore::Open(store),
            None => FollowedStore::Closed,
        }
    }

    /// The standby does not use the store for now. It has no other reference to it.
    pub(super) fn put(&self, partition: PartitionId, store: Arc<S>) {
        let _in_use = self.lock().followed.insert(partition, Some(store));
    }

    /// The standby has closed the store that it was using.
    pub(super) fn remove(&self, partition: PartitionId) {
        let _in_use = self.lock().followed.remove(&partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_on_one_side_and_the_loop_never_waits() {
        let stores = StandbyStores::new();
        assert!(matches!(stores.take(1), TakenStore::Closed));
        assert!(matches!(stores.begin(1), FollowedStore::Taken), "the loop has it");
        stores.give_back(1);
        assert!(matches!(stores.begin(1), FollowedStore::Closed));
        assert!(matches!(stores.take(1), TakenStore::InUse), "the standby is opening it");
        assert!(stores.is_taken(1));
        stores.put(1, Arc::new("store"));
        assert!(matches!(stores.take(1), TakenStore::Open(store) if *store == "store"));
        assert!(matches!(stores.take(1), TakenStore::Closed), "it was given once");
    }

    #[test]
    fn a_store_that_the_loop_has_asked_for_and_does_not_want_stays_with_the_standby() {
        let stores = StandbyStores::new();
        assert!(matches!(stores.begin(1), FollowedStore::Closed));
        assert!(matches!(stores.take(1), TakenStore::InUse));
        stores.give_back(1);
        assert!(!stores.is_taken(1));
        stores.put(1, Arc::new("store"));
        assert!(matches!(stores.begin(1), FollowedStore::Open(_)));
        stores.remove(1);
        assert!(matches!(stores.take(1), TakenStore::Closed));
    }
}
