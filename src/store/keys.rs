//! The keys of the store.
//!
//! Invariant: byte order equals struct order (big-endian, fixed width). A layout is never changed
//! after it was written; a new layout gets a new format number.

use crate::engine::index_row::IdHash;
use crate::model::Offset;
use crate::model::timeline::{Source, TimelineKey};

/// Length of a timeline key in bytes: `fire_at u64 | priority u8 | source u8 | offset u64`.
pub(super) const TIMELINE_KEY_BYTES: usize = 18;

/// Encodes a timeline key.
pub(super) fn timeline(key: TimelineKey) -> [u8; TIMELINE_KEY_BYTES] {
    let mut bytes = [0; TIMELINE_KEY_BYTES];
    bytes[..8].copy_from_slice(&key.due.to_be_bytes());
    bytes[8] = key.priority;
    bytes[9] = key.source as u8;
    bytes[10..].copy_from_slice(&key.offset.to_be_bytes());
    bytes
}

/// Decodes a timeline key; `None` if the bytes are not one.
pub(super) fn parse_timeline(bytes: &[u8]) -> Option<TimelineKey> {
    let bytes: &[u8; TIMELINE_KEY_BYTES] = bytes.try_into().ok()?;
    let source = match bytes[9] {
        0 => Source::Triggers,
        1 => Source::Signals,
        _ => return None,
    };
    Some(TimelineKey {
        due: u64::from_be_bytes(bytes[..8].try_into().ok()?),
        priority: bytes[8],
        source,
        offset: u64::from_be_bytes(bytes[10..].try_into().ok()?),
    })
}

/// Encodes the hash of an id.
pub(super) fn index(hash: IdHash) -> [u8; 16] {
    hash.0.to_be_bytes()
}

/// The first byte of the key of every skip mark.
pub(super) const SKIP_PREFIX: u8 = b's';

/// Encodes the key of a skip mark.
pub(super) fn skip(offset: Offset) -> [u8; 9] {
    let mut bytes = [SKIP_PREFIX; 9];
    bytes[1..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Decodes the key of a skip mark.
pub(super) fn parse_skip(bytes: &[u8]) -> Option<Offset> {
    let bytes: &[u8; 9] = bytes.try_into().ok()?;
    (bytes[0] == SKIP_PREFIX).then_some(())?;
    Some(u64::from_be_bytes(bytes[1..].try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn any_key()(
            due: u64, priority: u8, signals: bool, offset: u64,
        ) -> TimelineKey {
            let source = if signals { Source::Signals } else { Source::Triggers };
            TimelineKey { due, priority, source, offset }
        }
    }

    proptest! {
        #[test]
        fn byte_order_is_due_order(a in any_key(), b in any_key()) {
            prop_assert_eq!(timeline(a).cmp(&timeline(b)), a.cmp(&b));
            prop_assert_eq!(parse_timeline(&timeline(a)), Some(a));
        }

        #[test]
        fn the_successor_is_the_next_key(a in any_key(), b in any_key()) {
            prop_assume!(a.due < u64::MAX);
            prop_assert!(a.successor() > a);
            prop_assert!(b <= a || b >= a.successor());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = (parse_timeline(&bytes), parse_skip(&bytes));
        }
    }
}
