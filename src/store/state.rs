//! The state of a store (how far it is), which is written with the rows in one atomic batch.
//!
//! Invariant: the state is never ahead of the rows. A state of an older format is ignored, so that
//! the store is rebuilt from Kafka. A store with a state of a newer format is not changed.

use serde::{Deserialize, Serialize};

use crate::environment::store::LocalState;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Offset, Timestamp};

/// The format that this program writes.
const FORMAT: u32 = 1;

/// The number of a format that only a newer Orloj can read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NewerFormat(pub(super) u32);

/// The field that every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The stored form of the state.
#[derive(Serialize, Deserialize)]
struct StoredState {
    format: u32,
    applied: Offset,
    step: u64,
    ledger_position: Offset,
    w: (Timestamp, u8, u8, Offset),
    cluster_id: String,
    caught_up_at: Timestamp,
}

pub(super) fn to_bytes(state: &LocalState) -> Vec<u8> {
    let fired_through = state.fired_through;
    let stored = StoredState {
        format: FORMAT,
        applied: state.applied,
        step: state.step,
        ledger_position: state.ledger_position,
        w: (
            fired_through.due,
            fired_through.priority,
            fired_through.source as u8,
            fired_through.offset,
        ),
        cluster_id: state.cluster_id.clone(),
        caught_up_at: state.caught_up_at,
    };
    serde_json::to_vec(&stored).expect("numbers and a string are always JSON")
}

/// Decodes a state. `None` if the bytes are corrupt or of an older format; an error if a newer
/// Orloj wrote them.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Option<LocalState>, NewerFormat> {
    // Only the number identifies a newer format; its other fields are unknown.
    match serde_json::from_slice(bytes) {
        Ok(Format { format }) if FORMAT < format => Err(NewerFormat(format)),
        _ => Ok(parse(bytes)),
    }
}

fn parse(bytes: &[u8]) -> Option<LocalState> {
    let stored: StoredState = serde_json::from_slice(bytes).ok()?;
    let (due, priority, source, offset) = stored.w;
    let source = match source {
        0 => Source::Triggers,
        1 => Source::Signals,
        _ => return None,
    };
    (stored.format == FORMAT).then_some(LocalState {
        applied: stored.applied,
        step: stored.step,
        ledger_position: stored.ledger_position,
        fired_through: TimelineKey { due, priority, source, offset },
        cluster_id: stored.cluster_id,
        caught_up_at: stored.caught_up_at,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_state_or_none(
            noise: Vec<u8>, cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        ) {
            let _read = from_bytes(&noise);
            let mut bytes = to_bytes(&state());
            let place = at.index(bytes.len());
            bytes[place] ^= noise.first().copied().unwrap_or(1);
            let _damaged = from_bytes(&bytes);
            let cut = &to_bytes(&state())[..cut.index(bytes.len())];
            prop_assert_eq!(from_bytes(cut), Ok(None));
        }
    }

    fn state() -> LocalState {
        LocalState {
            applied: 1,
            step: 2,
            ledger_position: 3,
            fired_through: TimelineKey::last_at(4),
            cluster_id: "c".to_owned(),
            caught_up_at: 5,
        }
    }

    #[test]
    fn an_encoded_state_decodes_to_the_same_state() {
        assert_eq!(from_bytes(&to_bytes(&state())), Ok(Some(state())));
    }

    #[test]
    fn corrupt_and_older_states_count_as_none_and_newer_ones_are_refused() {
        assert_eq!(from_bytes(b"{\"format\":1,"), Ok(None));
        assert_eq!(from_bytes(b"{\"format\":0}"), Ok(None));
        let newer = from_bytes(b"{\"format\":2,\"novelty\":[]}");
        assert_eq!(newer, Err(NewerFormat(2)));
    }
}
