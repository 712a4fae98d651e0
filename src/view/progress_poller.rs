//! Polls the committed cursors of the schedulers and the ends of the logs, on a thread of its own.
//!
//! Invariant: first the committed cursor is read; then the end of the ledger, until every
//! transaction below it has ended; only then the ends of the other logs. So a reader that has read
//! up to those ends has everything that the cursor's owner wrote with it or before, and for each
//! entry of the ledger also the outcomes of its transaction.

use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::source::{SOURCE_COUNT, ViewSource};
use crate::clock;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::error::ClientResult;
use crate::kafka::reader::LogReader;
use crate::kafka::standby_client::StandbyClient;
use crate::model::{Offset, PartitionId, Timestamp};

/// How long the broker may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause while a transaction is open below an end.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The cursor and the ends of a partition at one moment.
#[derive(Clone, Debug)]
pub(super) struct PartitionEnds {
    pub(super) partition: PartitionId,
    /// When the poll started, in ms since the epoch.
    pub(super) at: Timestamp,
    /// The group's offset and metadata, if there are any.
    pub(super) cursor: Option<(Offset, String)>,
    /// The first and the end offset of each log.
    pub(super) low: [Offset; SOURCE_COUNT],
    pub(super) ends: [Offset; SOURCE_COUNT],
}

/// A poll that is not complete yet.
#[derive(Debug)]
enum PendingPoll {
    Ledger(PartitionEnds),
    All(PartitionEnds),
}

/// The thread.
pub(super) struct ProgressPoller {
    follower: StandbyClient,
    reader: LogReader,
    topics: [String; SOURCE_COUNT],
    polls: Vec<Option<PendingPoll>>,
    /// Ends below which no transaction is open: they need not be requested again.
    stable: Vec<[Offset; SOURCE_COUNT]>,
    interval: Duration,
    sender: Sender<PartitionEnds>,
}

impl ProgressPoller {
    /// Polls all partitions until `stop`, and sends the results to `sender`.
    pub(super) fn start(
        settings: &Settings,
        topics: [String; SOURCE_COUNT],
        sender: Sender<PartitionEnds>,
        stop: CancellationToken,
    ) -> ClientResult<()> {
        let names = Names::new(&settings.topics.prefix);
        let partitions = usize::from(settings.topics.partitions.get());
        let group = names.scheduler_group();
        let poller = Self {
            follower: StandbyClient::open(settings, &group, &names.triggers(), CALL_TIMEOUT)?,
            reader: LogReader::open(settings, &group)?,
            topics,
            polls: (0..partitions).map(|_| None).collect(),
            stable: vec![[0; SOURCE_COUNT]; partitions],
            interval: settings.gateway.view_poll_interval,
            sender,
        };
        let _detached = std::thread::spawn(move || poller.run(&stop));
        Ok(())
    }

    fn run(mut self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let started = clock::monotonic();
            for at in 0..self.polls.len() {
                match self.poll_partition(at) {
                    Ok(true) => {}
                    Ok(false) => return, // the receiver is closed
                    Err(error) => {
                        tracing::debug!(partition = at, %error, "progress poll failed; retrying")
                    }
                }
            }
            let pause = match self.polls.iter().any(Option::is_some) {
                true => RETRY_PAUSE,
                false => self.interval,
            };
            std::thread::sleep(pause.saturating_sub(clock::monotonic() - started).max(RETRY_PAUSE));
        }
    }

    /// Continues the poll of a partition; returns whether the receiver is open.
    fn poll_partition(&mut self, at: usize) -> ClientResult<bool> {
        let partition = PartitionId::try_from(at).expect("there are less than 2^31 partitions");
        let mut poll = match self.polls[at].take() {
            Some(poll) => poll,
            None => self.begin_poll(partition)?,
        };
        if let PendingPoll::Ledger(mut ends) = poll {
            if !self.is_stable(&ends, ViewSource::Ledger)? {
                self.polls[at] = Some(PendingPoll::Ledger(ends));
                return Ok(true);
            }
            for source in [ViewSource::Triggers, ViewSource::Outcomes, ViewSource::DeadLetters] {
                let topic = &self.topics[source as usize];
                let (low, end) = self.follower.bounds(topic, partition)?;
                (ends.low[source as usize], ends.ends[source as usize]) = (low, end);
            }
            poll = PendingPoll::All(ends);
        }
        let PendingPoll::All(ends) = poll else { return Ok(true) };
        for source in [ViewSource::Triggers, ViewSource::Outcomes, ViewSource::DeadLetters] {
            if !self.is_stable(&ends, source)? {
                self.polls[at] = Some(PendingPoll::All(ends));
                return Ok(true);
            }
        }
        Ok(self.sender.send(ends).is_ok())
    }

    fn begin_poll(&self, partition: PartitionId) -> ClientResult<PendingPoll> {
        let at = clock::now_ms();
        let cursor = self.follower.committed(partition)?;
        let ledger = &self.topics[ViewSource::Ledger as usize];
        let (low, end) = self.follower.bounds(ledger, partition)?;
        let mut ends = PartitionEnds {
            partition,
            at,
            cursor,
            low: [0; SOURCE_COUNT],
            ends: [0; SOURCE_COUNT],
        };
        (ends.low[ViewSource::Ledger as usize], ends.ends[ViewSource::Ledger as usize]) =
            (low, end);
        Ok(PendingPoll::Ledger(ends))
    }

    /// Whether every transaction below the polled end has ended.
    fn is_stable(&mut self, ends: &PartitionEnds, source: ViewSource) -> ClientResult<bool> {
        let (source, end) = (source as usize, ends.ends[source as usize]);
        let at = usize::try_from(ends.partition).unwrap_or(0);
        let known = &mut self.stable[at][source];
        if *known < end {
            let topic = &self.topics[source];
            *known = self.reader.last_stable_offset(topic, ends.partition, CALL_TIMEOUT)?;
        }
        Ok(*known >= end)
    }
}
