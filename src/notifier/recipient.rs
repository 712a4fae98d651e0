//! One recipient: what gathers for it, and the message on its way to it.
//!
//! Law: pure; the time comes in. One message is on its way at a time, and stays the same until it
//! is told or given up; what happens meanwhile gathers. So whatever lasts, little is kept.
//!
//! ```text
//!   news ──► gathering ──gather, then interval──► outgoing ──► told, refused or given up
//!                                                  │    ▲
//!                                                  └────┘ failed: again after a pause
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::digest::{Digest, Log, Place};
use super::message::Message;
use crate::model::dead_letter::DeadLetter;
use crate::model::outcome::{Circuit, CircuitState};
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

/// Pause after the first failure; each further one in a row doubles it.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Doublings of the pause: at most 256 s.
const DOUBLINGS_MAX: u32 = 8;
/// Hosts that are known to be left alone; each opening of one beyond them counts as news.
const OPEN_MAX: usize = 1_000;

/// When a message begins.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long news gather before a first message.
    pub gather: Duration,
    /// Between the end of a message and the next one, at least.
    pub interval: Duration,
}

impl Pace {
    /// At once.
    pub const NOW: Self = Self { gather: Duration::ZERO, interval: Duration::ZERO };
}

/// Why a message did not arrive; for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Try again.
    Later(String),
    /// This message never will.
    Never(String),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The recipient has it.
    Told,
    /// It is tried again.
    Failed,
    /// It was refused for good.
    Refused,
    /// It was tried for long enough.
    GivenUp,
}

impl Fate {
    /// What metrics call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
        }
    }
}

/// One who is told.
#[derive(Debug, Default)]
pub struct Recipient {
    gathering: Digest,
    /// Since when something gathers.
    since: Option<Instant>,
    outgoing: Option<Outgoing>,
    /// When the last message ended.
    ended: Option<Instant>,
    /// Hosts that were told to be left alone. Whose circuit of several workers', does not matter.
    open: BTreeSet<Text>,
}

#[derive(Debug)]
struct Outgoing {
    message: Arc<Message>,
    begun: Instant,
    failures: u32,
    /// When it is sent again; `None` while it is under way.
    next: Option<Instant>,
}

impl Recipient {
    /// Takes in a dead letter.
    pub fn letter(&mut self, letter: &DeadLetter, place: Place, now: Instant) {
        self.gathering.letter(letter, place);
        self.since.get_or_insert(now);
    }

    /// Takes in a change of a circuit at `at`, in ms since the epoch. Only its opening and its
    /// closing are news: while a host fails, each probe opens its circuit anew.
    pub fn circuit(&mut self, circuit: &Circuit, at: Timestamp, place: Place, now: Instant) {
        let is_news = match circuit.state {
            CircuitState::Open => {
                self.open.len() >= OPEN_MAX || self.open.insert(circuit.host.clone())
            }
            CircuitState::Closed => self.open.remove(&circuit.host),
            CircuitState::HalfOpen => false,
        };
        if is_news {
            self.gathering.circuit(circuit, at, place);
            self.since.get_or_insert(now);
        }
    }

    /// The message to be sent now, if there is one: then [`end`](Self::end) follows. `write` makes
    /// a new one of what has gathered.
    pub fn begin(
        &mut self,
        pace: Pace,
        now: Instant,
        write: impl FnOnce(Digest) -> Message,
    ) -> Option<Arc<Message>> {
        if let Some(outgoing) = &mut self.outgoing {
            let _due = outgoing.next.take_if(|next| *next <= now)?;
            return Some(Arc::clone(&outgoing.message));
        }
        let gathered = self.since? + pace.gather;
        let due = self.ended.map_or(gathered, |ended| gathered.max(ended + pace.interval));
        if now < due {
            return None;
        }
        self.since = None;
        let message = Arc::new(write(std::mem::take(&mut self.gathering)));
        let (begun, failures, next) = (now, 0, None);
        self.outgoing = Some(Outgoing { message: Arc::clone(&message), begun, failures, next });
        Some(message)
    }

    /// Takes in how an attempt ended; the message is tried for `give_up_after`.
    pub fn end(
        &mut self,
        result: &Result<(), Failure>,
        give_up_after: Duration,
        now: Instant,
    ) -> Fate {
        let outgoing = self.outgoing.as_mut();
        let begun = outgoing.as_ref().map_or(now, |outgoing| outgoing.begun);
        let fate = match result {
            Ok(()) => Fate::Told,
            Err(Failure::Never(_)) => Fate::Refused,
            Err(Failure::Later(_)) if now - begun >= give_up_after => Fate::GivenUp,
            Err(Failure::Later(_)) => Fate::Failed,
        };
        match outgoing {
            Some(outgoing) if fate == Fate::Failed => {
                outgoing.next = Some(now + PAUSE * 2_u32.pow(outgoing.failures.min(DOUBLINGS_MAX)));
                outgoing.failures += 1;
            }
            _ => (self.outgoing, self.ended) = (None, Some(now)),
        }
        fate
    }

    /// Whether there is something that it has not been told.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since.is_some() || self.outgoing.is_some()
    }

    /// For each log, the first record of which it has not been told.
    pub fn untold(&self) -> impl Iterator<Item = (Log, Offset)> {
        let outgoing =
            self.outgoing.iter().flat_map(|outgoing| outgoing.message.digest.beginnings());
        outgoing.chain(self.gathering.beginnings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::notifier::digest::samples::{BEGUN, circuit, place, record};

    const SECOND: Duration = Duration::from_secs(1);
    const PACE: Pace = Pace { gather: Duration::from_secs(30), interval: Duration::from_secs(300) };
    const DAY: Duration = Duration::from_secs(86_400);
    const DOWN: Result<(), Failure> = Err(Failure::Later(String::new()));

    struct Clock(Instant);

    impl Clock {
        fn pass(&mut self, seconds: u32) -> Instant {
            self.0 += SECOND * seconds;
            self.0
        }
    }

    fn write(digest: Digest) -> Message {
        Message { id: String::new(), at: 0, caller: None, interval: PACE.interval, digest }
    }

    fn begin(recipient: &mut Recipient, now: Instant) -> Option<u64> {
        recipient.begin(PACE, now, write).map(|message| message.digest.dead_letters)
    }

    fn fail(recipient: &mut Recipient, offset: Offset, now: Instant) {
        recipient.letter(&record("a", "b", BEGUN), place(offset), now);
    }

    #[test]
    fn an_outage_is_a_message_after_gathering_and_then_one_an_interval() {
        let (mut clock, mut recipient) = (Clock(clock::monotonic()), Recipient::default());
        assert_eq!(begin(&mut recipient, clock.0), None);
        for offset in 0..500 {
            fail(&mut recipient, offset, clock.0);
        }
        assert_eq!(begin(&mut recipient, clock.pass(29)), None);
        assert_eq!(begin(&mut recipient, clock.pass(1)), Some(500));
        assert_eq!(begin(&mut recipient, clock.pass(1)), None, "it is under way");
        assert_eq!(recipient.end(&Ok(()), DAY, clock.pass(1)), Fate::Told);
        assert!(!recipient.is_waiting());

        fail(&mut recipient, 500, clock.0);
        assert_eq!(begin(&mut recipient, clock.pass(299)), None, "within the interval");
        fail(&mut recipient, 501, clock.0);
        assert_eq!(begin(&mut recipient, clock.pass(1)), Some(2));
        assert_eq!(recipient.end(&Ok(()), DAY, clock.0), Fate::Told);

        fail(&mut recipient, 502, clock.pass(10_000));
        assert_eq!(begin(&mut recipient, clock.pass(29)), None, "a new outage gathers");
        assert_eq!(begin(&mut recipient, clock.pass(1)), Some(1));
    }

    #[test]
    fn what_fails_is_sent_again_as_it_was_and_ever_more_rarely() {
        let (mut clock, mut recipient) = (Clock(clock::monotonic()), Recipient::default());
        fail(&mut recipient, 0, clock.0);
        assert_eq!(begin(&mut recipient, clock.pass(30)), Some(1));
        fail(&mut recipient, 1, clock.0);
        for pause in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert_eq!(recipient.end(&DOWN, DAY, clock.0), Fate::Failed);
            assert_eq!(begin(&mut recipient, clock.pass(pause) - SECOND / 2), None);
            assert_eq!(begin(&mut recipient, clock.0), Some(1), "after {pause} s, the same");
        }
        let untold: Vec<_> = recipient.untold().map(|(_, offset)| offset).collect();
        assert_eq!(untold, [0, 1]);
        assert_eq!(recipient.end(&Ok(()), DAY, clock.0), Fate::Told);
        assert_eq!(begin(&mut recipient, clock.pass(300)), Some(1));
    }

    #[test]
    fn what_is_refused_or_tried_for_too_long_holds_nothing_up() {
        let (mut clock, mut recipient) = (Clock(clock::monotonic()), Recipient::default());
        fail(&mut recipient, 0, clock.0);
        assert_eq!(begin(&mut recipient, clock.pass(30)), Some(1));
        let refused = Err(Failure::Never("no such user".to_owned()));
        assert_eq!(recipient.end(&refused, DAY, clock.0), Fate::Refused);
        assert_eq!(recipient.untold().count(), 0);

        fail(&mut recipient, 1, clock.0);
        assert_eq!(begin(&mut recipient, clock.pass(300)), Some(1));
        assert_eq!(recipient.end(&DOWN, DAY, clock.pass(86_399)), Fate::Failed);
        assert_eq!(begin(&mut recipient, clock.pass(1)), Some(1));
        assert_eq!(recipient.end(&DOWN, DAY, clock.0), Fate::GivenUp);
        assert!(!recipient.is_waiting());
    }

    #[test]
    fn a_circuit_that_opens_anew_after_each_probe_is_told_once() {
        let (mut clock, mut recipient) = (Clock(clock::monotonic()), Recipient::default());
        let change = |recipient: &mut Recipient, state, offset, now| {
            recipient.circuit(&circuit("h", state), BEGUN, place(offset), now);
            recipient.begin(PACE, now + PACE.interval, write).map(|message| {
                assert_eq!(recipient.end(&Ok(()), DAY, now), Fate::Told);
                message.digest.circuits[0].clone()
            })
        };
        let told = change(&mut recipient, CircuitState::Open, 0, clock.0).unwrap();
        assert_eq!((told.opened, told.closed), (Some(BEGUN), None));
        for offset in 1..10 {
            let probed = if offset % 2 == 0 { CircuitState::Open } else { CircuitState::HalfOpen };
            assert_eq!(change(&mut recipient, probed, offset, clock.pass(600)), None);
        }
        let told = change(&mut recipient, CircuitState::Closed, 10, clock.pass(600)).unwrap();
        assert_eq!((told.opened, told.closed), (None, Some(BEGUN)));
        assert_eq!(change(&mut recipient, CircuitState::Closed, 11, clock.pass(600)), None);
    }
}
