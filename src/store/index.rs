//! The stored bytes of an index row, which has all entries of one trigger id.
//!
//! Invariant: every format that was ever written stays readable. Layout, big-endian: `version u8`,
//! then for each entry `kind u8 | flags u8 | key 18 | generation u64`, for a retry also `occurrence
//! u32 | attempt u32 | deferral u32`, for a trigger with a caller also `claim u64`. Version 1 had
//! no callers: any caller may change such a trigger.

use smallvec::SmallVec;

use super::keys::{self, TIMELINE_KEY_BYTES};
use crate::engine::index_row::{IndexEntry, IndexEntryKind, IndexRow, TriggerCaller};
use crate::model::timeline::TimelineKey;

const VERSION: u8 = 2;
const VERSION_WITHOUT_CALLER: u8 = 1;
const MAIN: u8 = 0;
const RETRY: u8 = 1;
const VETO: u8 = 2;
const REMEMBERED: u8 = 3;
const IN_LEDGER: u8 = 1;
const HTTP: u8 = 2;
const LIFECYCLE: u8 = 4;
const HAS_CALLER: u8 = 8;
const NOT_A_TRIGGER: u8 = 16;

/// Encodes an index row.
pub(super) fn encode(row: &IndexRow) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + row.entries.len() * 40);
    bytes.push(VERSION);
    for entry in &row.entries {
        let kind = match entry.kind {
            IndexEntryKind::Main => MAIN,
            IndexEntryKind::Retry { .. } => RETRY,
            IndexEntryKind::Veto => VETO,
            IndexEntryKind::Remembered => REMEMBERED,
        };
        let in_ledger = if entry.in_ledger { IN_LEDGER } else { 0 };
        let http = if entry.is_http { HTTP } else { 0 };
        let lifecycle = if entry.has_lifecycle { LIFECYCLE } else { 0 };
        let caller = match entry.caller {
            TriggerCaller::NotATrigger => NOT_A_TRIGGER,
            TriggerCaller::Anonymous => 0,
            TriggerCaller::Caller(_) => HAS_CALLER,
        };
        bytes.extend([kind, in_ledger | http | lifecycle | caller]);
        bytes.extend(keys::timeline(entry.key));
        bytes.extend(entry.generation.to_be_bytes());
        if let IndexEntryKind::Retry { occurrence, attempt, deferral } = entry.kind {
            for number in [occurrence, attempt, deferral] {
                bytes.extend(number.to_be_bytes());
            }
        }
        if let TriggerCaller::Caller(hash) = entry.caller {
            bytes.extend(hash.to_be_bytes());
        }
    }
    bytes
}

/// Decodes a stored index row; `None` if it is corrupt or of a newer format.
pub(super) fn decode(bytes: &[u8]) -> Option<IndexRow> {
    let (&version, mut rest) = bytes.split_first()?;
    if !matches!(version, VERSION_WITHOUT_CALLER | VERSION) {
        return None;
    }
    let mut entries = SmallVec::new();
    while !rest.is_empty() {
        let [kind, flags] = take(&mut rest)?;
        let key = keys::parse_timeline(&take::<TIMELINE_KEY_BYTES>(&mut rest)?)?;
        let generation = u64::from_be_bytes(take(&mut rest)?);
        let kind = match kind {
            MAIN => IndexEntryKind::Main,
            RETRY => IndexEntryKind::Retry {
                occurrence: u32::from_be_bytes(take(&mut rest)?),
                attempt: u32::from_be_bytes(take(&mut rest)?),
                deferral: u32::from_be_bytes(take(&mut rest)?),
            },
            VETO => IndexEntryKind::Veto,
            REMEMBERED => IndexEntryKind::Remembered,
            _ => return None,
        };
        let (in_ledger, http) = (flags & IN_LEDGER != 0, flags & HTTP != 0);
        let lifecycle = flags & LIFECYCLE != 0;
        let caller = match (version, flags & HAS_CALLER != 0, flags & NOT_A_TRIGGER != 0) {
            (VERSION_WITHOUT_CALLER, ..) | (_, false, true) => TriggerCaller::NotATrigger,
            (_, false, false) => TriggerCaller::Anonymous,
            (_, true, _) => TriggerCaller::Caller(u64::from_be_bytes(take(&mut rest)?)),
        };
        entries.push(IndexEntry {
            key,
            kind,
            generation,
            in_ledger,
            is_http: http,
            has_lifecycle: lifecycle,
            caller,
        });
    }
    Some(IndexRow { entries })
}

/// The largest timeline key in a row. The row is not needed any more once everything up to that key
/// has fired.
pub(super) fn last_key(bytes: &[u8]) -> Option<TimelineKey> {
    decode(bytes)?.entries.iter().map(|entry| entry.key).max()
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::keys::tests::any_key;

    fn any_kind() -> impl Strategy<Value = IndexEntryKind> {
        prop_oneof![
            Just(IndexEntryKind::Main),
            Just(IndexEntryKind::Veto),
            Just(IndexEntryKind::Remembered),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
                |(occurrence, attempt, deferral)| {
                    IndexEntryKind::Retry { occurrence, attempt, deferral }
                }
            ),
        ]
    }

    fn any_caller() -> impl Strategy<Value = TriggerCaller> {
        let callers = any::<u64>().prop_map(TriggerCaller::Caller);
        prop_oneof![Just(TriggerCaller::NotATrigger), Just(TriggerCaller::Anonymous), callers]
    }

    prop_compose! {
        fn any_entry()(
            key in any_key(), kind in any_kind(), generation: u64, in_ledger: bool,
            is_http: bool, has_lifecycle: bool, caller in any_caller(),
        ) -> IndexEntry {
            IndexEntry { key, kind, generation, in_ledger, is_http, has_lifecycle, caller }
        }
    }

    proptest! {
        #[test]
        fn encoded_rows_decode_to_the_same_rows(
            entries in proptest::collection::vec(any_entry(), 0..5),
        ) {
            let row = IndexRow { entries: entries.into() };
            prop_assert_eq!(decode(&encode(&row)), Some(row));
        }

        #[test]
        fn rows_of_version_1_have_no_caller(entry in any_entry()) {
            let entry = IndexEntry { caller: TriggerCaller::NotATrigger, ..entry };
            let row = IndexRow { entries: SmallVec::from_iter([entry]) };
            let mut bytes = encode(&row);
            (bytes[0], bytes[2]) = (VERSION_WITHOUT_CALLER, bytes[2] & !NOT_A_TRIGGER);
            prop_assert_eq!(decode(&bytes), Some(row));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = decode(&bytes);
        }
    }
}
