//! The state of the notifier that leads: the offsets of each log, and what each recipient has
//! received and has yet to receive.
//!
//! Invariant: the committed offset of a log never passes a record that a recipient has not been
//! notified of. So the next leader sends it, perhaps again. It continues with what was reported.

use std::collections::BTreeMap;
use std::time::Instant;

use super::digest::{SourcePartition, SourcePosition};
use super::recipient::Recipient;
use super::reported_state::{RecipientId, ReportedState};
use super::subscribers::Subscriber;
use crate::model::dead_letter::DeadLetter;
use crate::model::outcome::Circuit;
use crate::model::{Offset, Timestamp};

/// One term as the leader.
#[derive(Debug)]
pub struct LeaderTerm {
    term: u64,
    /// The next record of each log.
    positions: BTreeMap<SourcePartition, Offset>,
    recipients: BTreeMap<Subscriber, Recipient>,
    /// What earlier leaders have reported to those for whom nothing was read in this term.
    restored: BTreeMap<RecipientId, ReportedState>,
}

impl LeaderTerm {
    /// Starts to lead at these positions, with what was reported before. No two terms of a process
    /// have the same number.
    #[must_use]
    pub fn new(
        term: u64,
        positions: BTreeMap<SourcePartition, Offset>,
        restored: BTreeMap<RecipientId, ReportedState>,
    ) -> Self {
        Self { term, positions, recipients: BTreeMap::new(), restored }
    }

    /// The number of the term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The offset of the next record of a log.
    #[must_use]
    pub fn position(&self, log: SourcePartition) -> Option<Offset> {
        self.positions.get(&log).copied()
    }

    /// The record at `position` was read.
    pub fn advance(&mut self, position: SourcePosition) {
        self.positions.insert(position.source_partition, position.offset + 1);
    }

    /// Adds a dead letter for each of `to`.
    pub fn add_dead_letter(
        &mut self,
        to: Vec<Subscriber>,
        letter: &DeadLetter,
        position: SourcePosition,
        now: Instant,
    ) {
        for subscriber in to {
            self.recipient(subscriber).add_dead_letter(letter, position, now);
        }
    }

    /// Adds a change of a circuit at `at`, in ms since the epoch, for each of `to`.
    pub fn add_circuit_change(
        &mut self,
        to: Vec<Subscriber>,
        circuit: &Circuit,
        at: Timestamp,
        position: SourcePosition,
        now: Instant,
    ) {
        for subscriber in to {
            self.recipient(subscriber).add_circuit_change(circuit, at, position, now);
        }
    }

    fn recipient(&mut self, subscriber: Subscriber) -> &mut Recipient {
        let Self { recipients, restored, .. } = self;
        recipients.entry(subscriber).or_insert_with_key(|subscriber| {
            Recipient::restored(restored.remove(&subscriber.id()).unwrap_or_default())
        })
    }

    /// Everyone who was notified in this term, or is to be.
    pub fn recipients(&mut self) -> &mut BTreeMap<Subscriber, Recipient> {
        &mut self.recipients
    }

    /// The offset up to which each log is read and delivered.
    #[must_use]
    pub fn delivered_offsets(&self) -> BTreeMap<SourcePartition, Offset> {
        let mut delivered = self.positions.clone();
        for (log, undelivered) in self.recipients.values().flat_map(Recipient::undelivered_offsets)
        {
            if let Some(offset) = delivered.get_mut(&log) {
                *offset = undelivered.min(*offset);
            }
        }
        delivered
    }

    /// What was reported to each recipient.
    #[must_use]
    pub fn reported(&self) -> BTreeMap<RecipientId, ReportedState> {
        let mut reported = self.restored.clone();
        let recipients = self.recipients.iter();
        reported.extend(
            recipients
                .map(|(subscriber, recipient)| (subscriber.id(), recipient.reported().clone())),
        );
        reported
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::model::outcome::CircuitState;
    use crate::notifier::digest::samples::{FIRST_AT, circuit, position, record};
    use crate::notifier::notification::Notification;
    use crate::notifier::recipient::BatchWindow;
    use crate::notifier::subscribers::Channel;

    fn subscriber(caller: &str) -> Subscriber {
        let channel = Channel::Mail("a@example.com".parse().unwrap());
        Subscriber { caller: caller.to_owned(), channel }
    }

    #[test]
    fn no_offset_is_committed_before_every_subscriber_received_the_notification() {
        let (log, now) = (position(0).source_partition, clock::monotonic());
        let mut leader = LeaderTerm::new(1, BTreeMap::from([(log, 5)]), BTreeMap::new());
        let delivered = |leader: &LeaderTerm| leader.delivered_offsets()[&log];
        assert_eq!(delivered(&leader), 5);
        for offset in 5..10 {
            leader.advance(position(offset));
            let who = if offset < 7 { "early" } else { "late" };
            let letter = record("a", "b", FIRST_AT);
            leader.add_dead_letter(vec![subscriber(who)], &letter, position(offset), now);
        }
        leader.advance(position(10));
        assert_eq!(delivered(&leader), 5);

        let write = |digest| {
            let (id, interval) = (String::new(), Duration::ZERO);
            Notification { id, at: 0, caller: None, interval, digest }
        };
        for (who, in_progress, after) in [("early", 5, 7), ("late", 7, 11)] {
            let recipient = leader.recipients().get_mut(&subscriber(who)).unwrap();
            assert!(recipient.next_notification(BatchWindow::IMMEDIATE, now, write).is_some());
            assert_eq!(delivered(&leader), in_progress, "sent is not delivered");
            let recipient = leader.recipients().get_mut(&subscriber(who)).unwrap();
            recipient.record_result(&Ok(()), Duration::ZERO, now);
            assert_eq!(delivered(&leader), after);
        }
    }

    #[test]
    fn what_earlier_leaders_have_reported_is_kept_and_continued() {
        let now = clock::monotonic();
        let state = |host: u64| ReportedState {
            last_ended: Some(now),
            open_circuits: [(host, FIRST_AT)].into_iter().collect(),
        };
        let (one, other) = (subscriber("one"), subscriber("other"));
        let restored = BTreeMap::from([(one.id(), state(1)), (other.id(), state(2))]);
        let mut leader = LeaderTerm::new(1, BTreeMap::new(), restored.clone());
        let open = circuit("h", CircuitState::Open);
        leader.add_circuit_change(vec![one.clone()], &open, FIRST_AT, position(0), now);
        assert_eq!(leader.reported(), restored, "what gathers is not reported");
        leader.recipients().retain(|subscriber, _| *subscriber != one);
        assert_eq!(leader.reported(), BTreeMap::from([(other.id(), state(2))]), "unsubscribed");
    }
}
