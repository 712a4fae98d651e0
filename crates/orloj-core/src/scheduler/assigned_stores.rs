//! The stores of partitions that are newly assigned: taken from the standby, or opened.
//!
//! Invariant: the loop does not wait while the standby is using a store. The takeover starts in a
//! later turn, and counts from the assignment.

use std::sync::Arc;

use super::standby_stores::TakenStore;
use super::{LoopError, Scheduler};
use crate::environment::store::StoreDirectory as _;
use crate::environment::{Clock as _, Environment};
use crate::model::PartitionId;

impl<E: Environment> Scheduler<E> {
    /// The store of a partition that is newly assigned; `None` if the standby is still using it:
    /// see [`Self::take_awaited_stores`].
    pub(super) fn take_store(
        &mut self,
        id: PartitionId,
    ) -> Result<Option<Arc<E::Store>>, LoopError> {
        let taken = self.standby.as_mut().map_or(TakenStore::Closed, |standby| standby.take(id));
        let _since = match taken {
            TakenStore::InUse => {
                let now = self.clock.monotonic();
                let _since = self.awaited_stores.entry(id).or_insert(now);
                return Ok(None);
            }
            TakenStore::Open(_) | TakenStore::Closed => self.awaited_stores.remove(&id),
        };
        match taken {
            TakenStore::Open(store) => Ok(Some(store)),
            _ => self.open_store(id).map(Some),
        }
    }

    /// Opens the store of a partition; creates it again if it cannot be opened.
    pub(super) fn open_store(&self, id: PartitionId) -> Result<Arc<E::Store>, LoopError> {
        match self.stores.open(id) {
            Ok(store) => Ok(store),
            Err(error) => {
                tracing::warn!(partition = id, %error, "the local store is rebuilt from Kafka");
                self.stores.wipe(id)?;
                Ok(self.stores.open(id)?)
            }
        }
    }

    /// Starts the takeovers whose stores the standby does not use any more.
    pub(super) fn take_awaited_stores(&mut self) -> Result<(), LoopError> {
        let awaited: Vec<_> = self.awaited_stores.iter().map(|(id, at)| (*id, *at)).collect();
        for (id, assigned_at) in awaited {
            if let Some(store) = self.take_store(id)? {
                self.start_takeover(id, store, assigned_at)?;
            }
        }
        Ok(())
    }

    /// The stores of these partitions are closed: the standby may use them.
    pub(super) fn give_back_stores(&mut self, partitions: &[PartitionId]) {
        for partition in partitions {
            let _since = self.awaited_stores.remove(partition);
            if let Some(standby) = &self.standby {
                standby.give_back(*partition);
            }
        }
    }
}
