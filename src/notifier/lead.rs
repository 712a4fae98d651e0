//! What the notifier that leads knows: how far each log is read, and whom it has to tell what.
//!
//! Law: what is committed of a log never passes what somebody has not been told of it. So whoever
//! leads next tells it, perhaps again.

use std::collections::BTreeMap;
use std::time::Instant;

use super::audience::Subscriber;
use super::digest::{Log, Place};
use super::recipient::Recipient;
use crate::model::dead_letter::DeadLetter;
use crate::model::outcome::Circuit;
use crate::model::{Offset, Timestamp};

/// One term of leading.
#[derive(Debug)]
pub struct Lead {
    term: u64,
    /// The next record of each log.
    positions: BTreeMap<Log, Offset>,
    recipients: BTreeMap<Subscriber, Recipient>,
}

impl Lead {
    /// Begins to lead at these positions. No two terms of a process have the same number.
    #[must_use]
    pub fn new(term: u64, positions: BTreeMap<Log, Offset>) -> Self {
        Self { term, positions, recipients: BTreeMap::new() }
    }

    /// Which term it is.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The record at `place` was read.
    pub fn pass(&mut self, place: Place) {
        self.positions.insert(place.log, place.offset + 1);
    }

    /// Everyone of `to` shall hear of a dead letter.
    pub fn letter(&mut self, to: Vec<Subscriber>, letter: &DeadLetter, place: Place, now: Instant) {
        for subscriber in to {
            self.recipients.entry(subscriber).or_default().letter(letter, place, now);
        }
    }

    /// Everyone of `to` shall hear that a circuit changed at `at`, in ms since the epoch.
    pub fn circuit(
        &mut self,
        to: Vec<Subscriber>,
        circuit: &Circuit,
        at: Timestamp,
        place: Place,
        now: Instant,
    ) {
        for subscriber in to {
            self.recipients.entry(subscriber).or_default().circuit(circuit, at, place, now);
        }
    }

    /// Everyone who was ever told, or is to be.
    pub fn recipients(&mut self) -> &mut BTreeMap<Subscriber, Recipient> {
        &mut self.recipients
    }

    /// How far each log is read and told.
    #[must_use]
    pub fn told(&self) -> BTreeMap<Log, Offset> {
        let mut told = self.positions.clone();
        for (log, untold) in self.recipients.values().flat_map(Recipient::untold) {
            if let Some(offset) = told.get_mut(&log) {
                *offset = untold.min(*offset);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::notifier::audience::Channel;
    use crate::notifier::digest::samples::{BEGUN, place, record};
    use crate::notifier::message::Message;
    use crate::notifier::recipient::Pace;

    fn subscriber(caller: &str) -> Subscriber {
        let channel = Channel::Mail("a@example.com".parse().unwrap());
        Subscriber { caller: caller.to_owned(), channel }
    }

    #[test]
    fn nothing_is_committed_that_somebody_has_not_been_told() {
        let (log, now) = (place(0).log, clock::monotonic());
        let mut lead = Lead::new(1, BTreeMap::from([(log, 5)]));
        let told = |lead: &Lead| lead.told()[&log];
        assert_eq!(told(&lead), 5);
        for offset in 5..10 {
            lead.pass(place(offset));
            let who = if offset < 7 { "early" } else { "late" };
            let letter = record("a", "b", BEGUN);
            lead.letter(vec![subscriber(who)], &letter, place(offset), now);
        }
        lead.pass(place(10));
        assert_eq!(told(&lead), 5);

        let write = |digest| {
            let (id, interval) = (String::new(), Duration::ZERO);
            Message { id, at: 0, caller: None, interval, digest }
        };
        for (who, under_way, after) in [("early", 5, 7), ("late", 7, 11)] {
            let recipient = lead.recipients().get_mut(&subscriber(who)).unwrap();
            assert!(recipient.begin(Pace::NOW, now, write).is_some());
            assert_eq!(told(&lead), under_way, "being sent is not being told");
            let recipient = lead.recipients().get_mut(&subscriber(who)).unwrap();
            recipient.end(&Ok(()), Duration::ZERO, now);
            assert_eq!(told(&lead), after);
        }
    }
}
