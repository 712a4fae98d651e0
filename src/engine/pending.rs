//! What stands on the timeline, in one of two forms: as it was decided, or as the store keeps it.
//!
//! Law: the form makes no difference to anyone; two are equal if the store would keep the same
//! bytes. So what fires before it is spilled is never encoded, and what is loaded long before its
//! time stays small.

use bytes::Bytes;

use crate::model::codec::row::{self, RowError};
use crate::model::entry::{FireRow, Row};

/// Bytes of an allocation besides what was asked for, as a guess.
const ALLOCATION_BYTES: usize = 16;

/// A row that waits for its time.
#[derive(Clone, Debug)]
pub enum Pending {
    /// Taken in by this process.
    Decided {
        /// The row.
        row: Row,
        /// The memory behind it: counted while it is at hand, because later it is not.
        heap_bytes: usize,
    },
    /// Read from the store.
    Stored(Bytes),
}

impl Pending {
    /// What the store keeps. `scratch` is overwritten.
    #[must_use]
    pub fn encoded<'a>(&'a self, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        match self {
            Self::Stored(bytes) => bytes,
            Self::Decided { row, .. } => {
                scratch.clear();
                row::encode(row, scratch);
                scratch
            }
        }
    }

    /// The row.
    pub fn into_row(self) -> Result<Row, RowError> {
        match self {
            Self::Decided { row, .. } => Ok(row),
            Self::Stored(bytes) => row::decode(&bytes),
        }
    }

    /// The memory behind it, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            // It has its place among others, in a block of the store's.
            Self::Stored(bytes) => bytes.len(),
            Self::Decided { heap_bytes, .. } => *heap_bytes,
        }
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.encoded(&mut Vec::new()) == other.encoded(&mut Vec::new())
    }
}

impl Eq for Pending {}

impl From<Row> for Pending {
    fn from(row: Row) -> Self {
        let heap_bytes = match &row {
            Row::Veto { trigger, .. } => trigger.bytes().len() + ALLOCATION_BYTES,
            Row::Fire(row) => fire_bytes(row),
        };
        Self::Decided { row, heap_bytes }
    }
}

impl From<Bytes> for Pending {
    fn from(bytes: Bytes) -> Self {
        Self::Stored(bytes)
    }
}

/// The row itself, and what it holds: id, target and payload each by themselves.
fn fire_bytes(row: &FireRow) -> usize {
    let definition = &row.definition;
    let payload = definition.payload.as_ref().map_or(0, Bytes::len);
    let header = |h: &crate::model::definition::Header| {
        h.name.bytes().len() + h.value.as_ref().map_or(0, Bytes::len) + size_of_val(h)
    };
    let headers: usize = definition.headers.iter().map(header).sum();
    let texts = row.id.trigger.bytes().len() + definition.target.place().bytes().len();
    size_of::<FireRow>() + payload + headers + texts + 4 * ALLOCATION_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::codec::samples::any_row;

    proptest! {
        #[test]
        fn both_forms_are_the_same(row in any_row()) {
            let decided = Pending::from(row.clone());
            let stored = Pending::from(Bytes::copy_from_slice(decided.encoded(&mut Vec::new())));
            prop_assert_eq!(&decided, &stored);
            prop_assert_eq!(stored.into_row(), Ok(row));
        }

        #[test]
        fn what_it_takes_in_memory_is_more_than_its_bytes(row in any_row()) {
            let decided = Pending::from(row);
            let encoded = decided.encoded(&mut Vec::new()).len();
            prop_assert!(decided.heap_bytes() + size_of::<Pending>() >= encoded);
        }
    }
}
