//! One recipient: what gathers for it, and the message that is being sent to it.
//!
//! Invariant: pure, time is an argument. One message is being sent at a time, and stays the same
//! until it is delivered or given up; what happens meanwhile gathers. So however long an outage
//! lasts, little is kept.
//!
//! ```text
//!   events ─► gathering ──delay, then interval──► outgoing ──► delivered, refused or given up
//!                                                  │    ▲
//!                                                  └────┘ failed: again after a pause
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::digest::{Digest, SourcePartition, SourcePosition};
use super::notification::Notification;
use super::reported_state::{OpenCircuits, ReportedState};
use crate::model::dead_letter::DeadLetter;
use crate::model::outcome::{Circuit, CircuitState};
use crate::model::{Millis, Offset, Timestamp};

/// Pause after the first failure; each further one in a row doubles it.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Doublings of the pause: at most 256 s.
const DOUBLINGS_MAX: u32 = 8;
/// Hosts that are known to have an open circuit; beyond them each opening is reported.
const OPEN_CIRCUITS_MAX: usize = 1_000;
/// If nothing was received about a host for so long, its next opening is another outage: a worker
/// that dies does not say that its circuits have closed. While a host fails, each probe says
/// something.
const OUTAGE_GAP: Millis = 3_600_000;

/// When a message is sent.
#[derive(Clone, Copy, Debug)]
pub struct BatchWindow {
    /// How long events gather before a first message.
    pub batch_delay: Duration,
    /// The minimum time between the end of a message and the next one.
    pub interval: Duration,
}

impl BatchWindow {
    /// At once.
    pub const IMMEDIATE: Self = Self { batch_delay: Duration::ZERO, interval: Duration::ZERO };
}

/// Why a message was not delivered. The reason is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotificationSendError {
    /// Try again.
    Retryable(String),
    /// Do not try again.
    Permanent(String),
}

/// The status of a message after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationStatus {
    /// The recipient has it.
    Delivered,
    /// It is tried again.
    Failed,
    /// It was refused permanently.
    Refused,
    /// It was tried for long enough.
    GivenUp,
}

impl NotificationStatus {
    /// The label value of the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
        }
    }
}

/// A recipient.
#[derive(Debug, Default)]
pub struct Recipient {
    next_digest: Digest,
    /// Since when events gather.
    gathering_since: Option<Instant>,
    pending: Option<PendingNotification>,
    /// By the messages that have ended.
    reported: ReportedState,
    /// Hosts that have an open circuit, of any worker, by what was reported and has gathered.
    open_circuits: OpenCircuits,
}

#[derive(Debug)]
struct PendingNotification {
    message: Arc<Notification>,
    /// What is reported to be open when it has ended.
    open_circuits: OpenCircuits,
    first_sent: Instant,
    failures: u32,
    /// When it is sent again; `None` while it is being sent.
    retry_at: Option<Instant>,
}

impl Recipient {
    /// A recipient to which an earlier leader has reported this.
    #[must_use]
    pub fn restored(reported: ReportedState) -> Self {
        let open_circuits = reported.open_circuits.clone();
        Self { reported, open_circuits, ..Self::default() }
    }

    /// What was reported to it.
    #[must_use]
    pub fn reported(&self) -> &ReportedState {
        &self.reported
    }

    /// Adds a dead letter.
    pub fn add_dead_letter(&mut self, letter: &DeadLetter, position: SourcePosition, now: Instant) {
        self.next_digest.add_dead_letter(letter, position);
        self.gathering_since.get_or_insert(now);
    }

    /// Adds a change of a circuit at `at`, in ms since the epoch. Only the first opening and the
    /// closing are reported: while a host fails, each probe opens its circuit again.
    pub fn add_circuit_change(
        &mut self,
        circuit: &Circuit,
        at: Timestamp,
        position: SourcePosition,
        now: Instant,
    ) {
        let host = xxh3_64(circuit.host.as_str().as_bytes());
        let is_reported = match circuit.state {
            CircuitState::Open => self.begins_outage(host, at),
            CircuitState::Closed => self.open_circuits.remove(&host).is_some(),
            CircuitState::HalfOpen => false,
        };
        if circuit.state != CircuitState::Closed {
            self.record_sign(host, at);
        }
        if is_reported {
            self.next_digest.add_circuit_change(circuit, at, position);
            self.gathering_since.get_or_insert(now);
        }
    }

    /// Whether the opening of a circuit at `at` begins an outage.
    fn begins_outage(&mut self, host: u64, at: Timestamp) -> bool {
        let lasts = |last_sign: &Timestamp| at < last_sign.saturating_add(OUTAGE_GAP);
        if self.open_circuits.get(&host).is_some_and(lasts) {
            return false;
        }
        if self.open_circuits.len() >= OPEN_CIRCUITS_MAX {
            self.open_circuits.retain(|_, last_sign| lasts(last_sign));
        }
        if self.open_circuits.len() < OPEN_CIRCUITS_MAX {
            self.open_circuits.insert(host, at);
        }
        true
    }

    /// A circuit was open or half open at `at`.
    fn record_sign(&mut self, host: u64, at: Timestamp) {
        let pending = self.pending.iter_mut().map(|pending| &mut pending.open_circuits);
        let known = [&mut self.open_circuits, &mut self.reported.open_circuits];
        for last_sign in known.into_iter().chain(pending).filter_map(|open| open.get_mut(&host)) {
            *last_sign = at.max(*last_sign);
        }
    }

    /// The message to be sent now, if there is one: then [`record_result`](Self::record_result)
    /// follows. `write` makes a new one from what has gathered.
    pub fn next_notification(
        &mut self,
        window: BatchWindow,
        now: Instant,
        write: impl FnOnce(Digest) -> Notification,
    ) -> Option<Arc<Notification>> {
        if let Some(pending) = &mut self.pending {
            let _due = pending.retry_at.take_if(|next| *next <= now)?;
            return Some(Arc::clone(&pending.message));
        }
        let gathered = self.gathering_since? + window.batch_delay;
        let last_ended = self.reported.last_ended;
        let due = last_ended.map_or(gathered, |ended| gathered.max(ended + window.interval));
        if now < due {
            return None;
        }
        self.gathering_since = None;
        let message = Arc::new(write(std::mem::take(&mut self.next_digest)));
        let (first_sent, failures, retry_at) = (now, 0, None);
        self.pending = Some(PendingNotification {
            message: Arc::clone(&message),
            open_circuits: self.open_circuits.clone(),
            first_sent,
            failures,
            retry_at,
        });
        Some(message)
    }

    /// Records how an attempt ended; the message is retried for `give_up_after`.
    pub fn record_result(
        &mut self,
        result: &Result<(), NotificationSendError>,
        give_up_after: Duration,
        now: Instant,
    ) -> NotificationStatus {
        let pending = self.pending.as_mut();
        let first_sent = pending.as_ref().map_or(now, |pending| pending.first_sent);
        let status = match result {
            Ok(()) => NotificationStatus::Delivered,
            Err(NotificationSendError::Permanent(_)) => NotificationStatus::Refused,
            Err(NotificationSendError::Retryable(_)) if now - first_sent >= give_up_after => {
                NotificationStatus::GivenUp
            }
            Err(NotificationSendError::Retryable(_)) => NotificationStatus::Failed,
        };
        match pending {
            Some(pending) if status == NotificationStatus::Failed => {
                pending.retry_at =
                    Some(now + RETRY_PAUSE * 2_u32.pow(pending.failures.min(DOUBLINGS_MAX)));
                pending.failures += 1;
            }
            _ => {
                if let Some(ended) = self.pending.take() {
                    self.reported.open_circuits = ended.open_circuits;
                }
                self.reported.last_ended = Some(now);
            }
        }
        status
    }

    /// Whether there is something that was not delivered.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.gathering_since.is_some() || self.pending.is_some()
    }

    /// For each log, the first record that was not delivered.
    pub fn undelivered_offsets(&self) -> impl Iterator<Item = (SourcePartition, Offset)> {
        let pending =
            self.pending.iter().flat_map(|pending| pending.message.digest.first_offsets());
        pending.chain(self.next_digest.first_offsets())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::notifier::digest::samples::{FIRST_AT, circuit, position, record};

    const SECOND: Duration = Duration::from_secs(1);
    const PACE: BatchWindow =
        BatchWindow { batch_delay: Duration::from_secs(30), interval: Duration::from_secs(300) };
    const DAY: Duration = Duration::from_secs(86_400);
    const DOWN: Result<(), NotificationSendError> =
        Err(NotificationSendError::Retryable(String::new()));

    struct ManualClock(Instant);

    impl ManualClock {
        fn advance(&mut self, seconds: u32) -> Instant {
            self.0 += SECOND * seconds;
            self.0
        }
    }

    fn write(digest: Digest) -> Notification {
        Notification { id: String::new(), at: 0, caller: None, interval: PACE.interval, digest }
    }

    fn begin(recipient: &mut Recipient, now: Instant) -> Option<u64> {
        recipient.next_notification(PACE, now, write).map(|message| message.digest.dead_letters)
    }

    fn fail(recipient: &mut Recipient, offset: Offset, now: Instant) {
        recipient.add_dead_letter(&record("a", "b", FIRST_AT), position(offset), now);
    }

    #[test]
    fn an_outage_causes_one_message_after_gathering_and_then_one_each_interval() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        assert_eq!(begin(&mut recipient, clock.0), None);
        for offset in 0..500 {
            fail(&mut recipient, offset, clock.0);
        }
        assert_eq!(begin(&mut recipient, clock.advance(29)), None);
        assert_eq!(begin(&mut recipient, clock.advance(1)), Some(500));
        assert_eq!(begin(&mut recipient, clock.advance(1)), None, "it is being sent");
        assert_eq!(
            recipient.record_result(&Ok(()), DAY, clock.advance(1)),
            NotificationStatus::Delivered
        );
        assert!(!recipient.is_waiting());

        fail(&mut recipient, 500, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(299)), None, "within the interval");
        fail(&mut recipient, 501, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(1)), Some(2));
        assert_eq!(recipient.record_result(&Ok(()), DAY, clock.0), NotificationStatus::Delivered);

        fail(&mut recipient, 502, clock.advance(10_000));
        assert_eq!(begin(&mut recipient, clock.advance(29)), None, "a new outage gathers");
        assert_eq!(begin(&mut recipient, clock.advance(1)), Some(1));
    }

    #[test]
    fn a_failed_message_is_resent_unchanged_with_growing_pauses() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        fail(&mut recipient, 0, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(30)), Some(1));
        fail(&mut recipient, 1, clock.0);
        for pause in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert_eq!(recipient.record_result(&DOWN, DAY, clock.0), NotificationStatus::Failed);
            assert_eq!(begin(&mut recipient, clock.advance(pause) - SECOND / 2), None);
            assert_eq!(begin(&mut recipient, clock.0), Some(1), "after {pause} s, the same");
        }
        let undelivered: Vec<_> =
            recipient.undelivered_offsets().map(|(_, offset)| offset).collect();
        assert_eq!(undelivered, [0, 1]);
        assert_eq!(recipient.record_result(&Ok(()), DAY, clock.0), NotificationStatus::Delivered);
        assert_eq!(begin(&mut recipient, clock.advance(300)), Some(1));
    }

    #[test]
    fn a_refused_or_given_up_message_blocks_nothing() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        fail(&mut recipient, 0, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(30)), Some(1));
        let refused = Err(NotificationSendError::Permanent("no such user".to_owned()));
        assert_eq!(recipient.record_result(&refused, DAY, clock.0), NotificationStatus::Refused);
        assert_eq!(recipient.undelivered_offsets().count(), 0);

        fail(&mut recipient, 1, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(300)), Some(1));
        assert_eq!(
            recipient.record_result(&DOWN, DAY, clock.advance(86_399)),
            NotificationStatus::Failed
        );
        assert_eq!(begin(&mut recipient, clock.advance(1)), Some(1));
        assert_eq!(recipient.record_result(&DOWN, DAY, clock.0), NotificationStatus::GivenUp);
        assert!(!recipient.is_waiting());
    }

    #[test]
    fn only_messages_that_have_ended_have_reported_something() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        let has_open = |recipient: &Recipient| !recipient.reported().open_circuits.is_empty();
        change(&mut recipient, CircuitState::Open, 0, clock.0);
        assert_eq!(recipient.reported(), &ReportedState::default(), "it gathers");
        assert!(begin(&mut recipient, clock.advance(30)).is_some());
        change(&mut recipient, CircuitState::Closed, 1, clock.0);
        assert_eq!(recipient.reported(), &ReportedState::default(), "it is being sent");
        assert_eq!(recipient.record_result(&Ok(()), DAY, clock.0), NotificationStatus::Delivered);
        assert!(has_open(&recipient), "that it is closed is not reported yet");
        assert!(begin(&mut recipient, clock.advance(300)).is_some());
        assert_eq!(recipient.record_result(&DOWN, DAY, clock.0), NotificationStatus::Failed);
        assert!(has_open(&recipient));
        assert!(begin(&mut recipient, clock.advance(1)).is_some());
        assert_eq!(recipient.record_result(&Ok(()), DAY, clock.0), NotificationStatus::Delivered);
        assert!(!has_open(&recipient));
        assert_eq!(recipient.reported().last_ended, Some(clock.0));
    }

    #[test]
    fn a_restored_recipient_learns_of_the_end_of_an_outage_and_not_again_of_its_beginning() {
        let (mut clock, mut before) = (ManualClock(clock::monotonic()), Recipient::default());
        change(&mut before, CircuitState::Open, 0, clock.0);
        assert!(begin(&mut before, clock.advance(30)).is_some());
        assert_eq!(before.record_result(&Ok(()), DAY, clock.0), NotificationStatus::Delivered);

        let mut recipient = Recipient::restored(before.reported().clone());
        change(&mut recipient, CircuitState::Open, 1, clock.0);
        assert!(!recipient.is_waiting());
        change(&mut recipient, CircuitState::Closed, 2, clock.0);
        assert_eq!(begin(&mut recipient, clock.advance(299)), None, "within the interval");
        let message = recipient.next_notification(PACE, clock.advance(1), write).unwrap();
        let [summary] = &message.digest.circuits[..] else { panic!("{message:?}") };
        assert_eq!((summary.opened, summary.closed), (None, Some(FIRST_AT)));
    }

    /// A worker that dies does not say that its circuits have closed.
    #[test]
    fn an_opening_long_after_the_last_sign_of_a_host_is_reported_again() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        let mut at = FIRST_AT;
        let mut change = |recipient: &mut Recipient, state, after: Millis| {
            at += after;
            recipient.add_circuit_change(&circuit("h", state), at, position(0), clock.0);
            let message = recipient.next_notification(PACE, clock.advance(600), write);
            let message = message.map(|message| message.digest.circuits[0].clone());
            if message.is_some() {
                recipient.record_result(&Ok(()), DAY, clock.0);
            }
            message.map(|circuit| (circuit.opened == Some(at), circuit.closed == Some(at)))
        };
        assert_eq!(change(&mut recipient, CircuitState::Open, 0), Some((true, false)));
        let almost = OUTAGE_GAP - 1;
        for probed in [CircuitState::Open, CircuitState::HalfOpen, CircuitState::Open] {
            assert_eq!(change(&mut recipient, probed, almost), None, "the outage lasts");
        }
        let mut next = Recipient::restored(recipient.reported().clone());
        assert_eq!(change(&mut next, CircuitState::Open, almost), None, "the next leader knows");
        assert_eq!(change(&mut next, CircuitState::Open, OUTAGE_GAP), Some((true, false)));
        assert_eq!(change(&mut next, CircuitState::Closed, 3 * OUTAGE_GAP), Some((false, true)));
        assert_eq!(change(&mut next, CircuitState::Open, 0), Some((true, false)));
    }

    #[test]
    fn hosts_about_which_nothing_is_received_any_more_make_room_for_others() {
        let (mut recipient, now) = (Recipient::default(), clock::monotonic());
        let mut open = |host: usize, at| {
            let circuit = circuit(&host.to_string(), CircuitState::Open);
            recipient.add_circuit_change(&circuit, at, position(0), now);
            recipient.open_circuits.len()
        };
        for host in 0..=OPEN_CIRCUITS_MAX {
            assert!(open(host, FIRST_AT) <= OPEN_CIRCUITS_MAX);
        }
        assert_eq!(open(OPEN_CIRCUITS_MAX, FIRST_AT + OUTAGE_GAP), 1);
    }

    fn change(recipient: &mut Recipient, state: CircuitState, offset: Offset, now: Instant) {
        recipient.add_circuit_change(&circuit("h", state), FIRST_AT, position(offset), now);
    }

    #[test]
    fn a_circuit_that_reopens_after_each_probe_is_reported_once() {
        let (mut clock, mut recipient) = (ManualClock(clock::monotonic()), Recipient::default());
        let change = |recipient: &mut Recipient, state, offset, now| {
            recipient.add_circuit_change(&circuit("h", state), FIRST_AT, position(offset), now);
            recipient.next_notification(PACE, now + PACE.interval, write).map(|message| {
                assert_eq!(
                    recipient.record_result(&Ok(()), DAY, now),
                    NotificationStatus::Delivered
                );
                message.digest.circuits[0].clone()
            })
        };
        let message = change(&mut recipient, CircuitState::Open, 0, clock.0).unwrap();
        assert_eq!((message.opened, message.closed), (Some(FIRST_AT), None));
        for offset in 1..10 {
            let probed = if offset % 2 == 0 { CircuitState::Open } else { CircuitState::HalfOpen };
            assert_eq!(change(&mut recipient, probed, offset, clock.advance(600)), None);
        }
        let message = change(&mut recipient, CircuitState::Closed, 10, clock.advance(600)).unwrap();
        assert_eq!((message.opened, message.closed), (None, Some(FIRST_AT)));
        assert_eq!(change(&mut recipient, CircuitState::Closed, 11, clock.advance(600)), None);
    }
}
