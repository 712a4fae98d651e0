//! How far the schedulers are, and where the logs ended then: looked at again and again by a
//! thread of its own.
//!
//! Law: first the cursor, committed and stable; then where the ledger ends, until everything below
//! that is decided; only then where the other logs end. So whoever has read up to those ends has
//! all that the cursor's owner wrote with it or before, and of each word of the ledger also the
//! outcomes that its transaction had.

use std::sync::mpsc::Sender;
use std::time::Duration;

use rdkafka::error::KafkaResult;
use tokio_util::sync::CancellationToken;

use super::follow::{SOURCES, Source};
use crate::clock;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::follower::Follower;
use crate::kafka::reader::Reader;
use crate::model::{Offset, PartitionId, Timestamp};

/// How long the broker may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause while somebody's transaction is open below an end.
const AGAIN: Duration = Duration::from_millis(20);

/// What was seen of a partition at a moment.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) partition: PartitionId,
    /// When the look began, in ms since the epoch.
    pub(super) at: Timestamp,
    /// The group's offset and metadata, if there are any.
    pub(super) cursor: Option<(Offset, String)>,
    /// Where each log began, and ended.
    pub(super) low: [Offset; SOURCES],
    pub(super) ends: [Offset; SOURCES],
}

/// A look that is not complete yet.
#[derive(Debug)]
enum Look {
    Ledger(Seen),
    All(Seen),
}

/// The thread.
pub(super) struct Lookout {
    follower: Follower,
    reader: Reader,
    topics: [String; SOURCES],
    looks: Vec<Option<Look>>,
    /// Ends below which nothing is open: they need not be asked for again.
    stable: Vec<[Offset; SOURCES]>,
    interval: Duration,
    to: Sender<Seen>,
}

impl Lookout {
    /// Looks at all partitions until `stop`, and tells `to`.
    pub(super) fn start(
        settings: &Settings,
        topics: [String; SOURCES],
        to: Sender<Seen>,
        stop: CancellationToken,
    ) -> KafkaResult<()> {
        let names = Names::new(&settings.topics.prefix);
        let partitions = usize::from(settings.topics.partitions.get());
        let group = names.schedulers();
        let lookout = Self {
            follower: Follower::open(settings, &group, &names.triggers(), CALL_TIMEOUT)?,
            reader: Reader::open(settings, &group)?,
            topics,
            looks: (0..partitions).map(|_| None).collect(),
            stable: vec![[0; SOURCES]; partitions],
            interval: settings.gateway.view_look_interval,
            to,
        };
        let _detached = std::thread::spawn(move || lookout.run(&stop));
        Ok(())
    }

    fn run(mut self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let begun = clock::monotonic();
            for at in 0..self.looks.len() {
                match self.look(at) {
                    Ok(true) => {}
                    Ok(false) => return, // nobody listens any more
                    Err(error) => tracing::debug!(partition = at, %error, "the view looks again"),
                }
            }
            let pause = match self.looks.iter().any(Option::is_some) {
                true => AGAIN,
                false => self.interval,
            };
            std::thread::park_timeout(pause.saturating_sub(clock::monotonic() - begun).max(AGAIN));
        }
    }

    /// Looks on at a partition; says whether anyone listens.
    fn look(&mut self, at: usize) -> KafkaResult<bool> {
        let partition = PartitionId::try_from(at).expect("there are less than 2^31 partitions");
        let mut look = match self.looks[at].take() {
            Some(look) => look,
            None => self.begin(partition)?,
        };
        if let Look::Ledger(mut seen) = look {
            if !self.is_stable(&seen, Source::Ledger)? {
                self.looks[at] = Some(Look::Ledger(seen));
                return Ok(true);
            }
            for source in [Source::Triggers, Source::Outcomes, Source::DeadLetters] {
                let topic = &self.topics[source as usize];
                let (low, end) = self.follower.bounds(topic, partition)?;
                (seen.low[source as usize], seen.ends[source as usize]) = (low, end);
            }
            look = Look::All(seen);
        }
        let Look::All(seen) = look else { return Ok(true) };
        for source in [Source::Triggers, Source::Outcomes, Source::DeadLetters] {
            if !self.is_stable(&seen, source)? {
                self.looks[at] = Some(Look::All(seen));
                return Ok(true);
            }
        }
        Ok(self.to.send(seen).is_ok())
    }

    fn begin(&self, partition: PartitionId) -> KafkaResult<Look> {
        let at = clock::now_ms();
        let cursor = self.follower.committed(partition)?;
        let ledger = &self.topics[Source::Ledger as usize];
        let (low, end) = self.follower.bounds(ledger, partition)?;
        let mut seen = Seen { partition, at, cursor, low: [0; SOURCES], ends: [0; SOURCES] };
        (seen.low[Source::Ledger as usize], seen.ends[Source::Ledger as usize]) = (low, end);
        Ok(Look::Ledger(seen))
    }

    /// Whether everything below the end that was seen is decided.
    fn is_stable(&mut self, seen: &Seen, source: Source) -> KafkaResult<bool> {
        let (source, end) = (source as usize, seen.ends[source as usize]);
        let at = usize::try_from(seen.partition).unwrap_or(0);
        let known = &mut self.stable[at][source];
        if *known < end {
            let topic = &self.topics[source];
            *known = self.reader.stable_end(topic, seen.partition, CALL_TIMEOUT)?;
        }
        Ok(*known >= end)
    }
}
