//! What a step sends to topics that take less at once than the client would send.
//!
//! Invariant: a step has a limited number of batches for each such topic, because each is awaited
//! before the next. What is beyond that waits for its turn, in the order in which it was due.

use std::collections::HashMap;

use crate::model::Millis;

/// How many batches a step has for such a topic.
const BATCHES_MAX: usize = 8;
/// How long a record waits for each step that is before its own, in ms.
const TURN: Millis = 100;

/// What was to be sent in a step so far, sent or not, in bytes.
#[derive(Debug, Default)]
pub(super) struct BatchRoom(HashMap<String, usize>);

impl BatchRoom {
    /// Takes room for a record of `bytes` to a topic that takes `bytes_max` at once, which is not
    /// less. An error: there is none, and the record waits for so many ms.
    pub(super) fn take(
        &mut self,
        topic: &str,
        bytes: usize,
        bytes_max: usize,
    ) -> Result<(), Millis> {
        if !self.0.contains_key(topic) {
            let _none = self.0.insert(topic.to_owned(), 0);
        }
        let wanted = self.0.get_mut(topic).expect("it was just inserted");
        *wanted = wanted.saturating_add(bytes);
        match *wanted / BATCHES_MAX.saturating_mul(bytes_max.max(1)) {
            0 => Ok(()),
            steps => Err(TURN * Millis::try_from(steps).unwrap_or(Millis::MAX / TURN)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_room_for_some_batches_and_what_is_beyond_waits_its_turn() {
        let mut room = BatchRoom::default();
        let waits: Vec<_> = (0..40).map(|_| room.take("a", 60, 100).err()).collect();
        // 800 bytes are 13 records, and 1,600 are 26.
        let turns = [(13, None), (13, Some(100)), (13, Some(200)), (1, Some(300))];
        let expected = turns.iter().flat_map(|(count, wait)| vec![*wait; *count]);
        assert_eq!(waits, expected.collect::<Vec<_>>());
        assert_eq!(room.take("b", 100, 100), Ok(()), "another topic");
    }

    #[test]
    fn the_first_record_always_has_room() {
        assert_eq!(BatchRoom::default().take("a", 1, 1), Ok(()));
        assert_eq!(BatchRoom::default().take("a", 0, 0), Ok(()));
    }
}
