//! From the log to callbacks under way: a partition's committed progress, its records, and what
//! comes back.
//!
//! Law: no more callbacks are under way than the setting says. While that many are, nothing is
//! read, and librdkafka stops fetching when its own buffer is full. One caller alone cannot bring
//! that about: see `dispatch`.

use std::time::Duration;

use bytes::Bytes;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::circuit::Route;
use super::dispatch::{Permit, Waiting};
use super::lane::{Admission, Lane, Running};
use super::report::Unreadable;
use super::verdict::Reply;
use super::{Worker, WorkerError};
use crate::clock;
use crate::codec::schemas::CodecError;
use crate::fault;
use crate::kafka::reader::{Read, Reader};
use crate::model::definition::Header;
use crate::model::entry::FireId;
use crate::model::fire::{Errand, Fire};
use crate::model::text::Text;
use crate::model::{Millis, Offset, PartitionId, Timestamp};
use crate::telemetry;

/// Records taken in one turn of the loop: the group and the results want their turn too.
const READ_MAX: usize = 1_000;
/// Pause before a broker that did not tell the committed progress is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What other threads tell the loop.
#[derive(Debug)]
pub(super) enum Event {
    /// Where a partition stands, or why that is not known yet.
    Position { partition: PartitionId, life: u64, position: KafkaResult<Position> },
    /// A callback ended.
    Ended(Ended, Permit),
}

/// Where a partition stands.
#[derive(Debug)]
pub(super) struct Position {
    committed: Option<(Offset, String)>,
    /// The first offset that is still there.
    low: Offset,
    /// The first that is not there yet.
    end: Offset,
}

/// A record of `fires` that is done with, once this is committed.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) partition: PartitionId,
    pub(super) life: u64,
    pub(super) offset: Offset,
    pub(super) at: Timestamp,
    pub(super) ending: Ending,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The attempt was made, or could not be; it took so many ms.
    Attempt(Box<Fire>, Reply, Millis),
    /// It goes back to its owner, until `due`; no attempt was made.
    Deferred { fire: Box<Fire>, due: Timestamp, reason: &'static str },
    /// It was cancelled before anybody had begun it.
    Withdrawn {
        /// Which one.
        id: FireId,
        /// Whether the owner wants to know.
        settles: bool,
    },
    /// It has withdrawn others.
    Heard,
    /// It is no fire.
    Unreadable(Unreadable),
}

impl Worker {
    /// Begins a new life of a partition: asks the broker where it stands. That may take until a
    /// dead worker's transaction is undone, so another thread waits for the answer.
    pub(super) fn begin_life(&mut self, partition: PartitionId) {
        self.lives += 1;
        self.forget_waiting(partition);
        self.lanes.insert(partition, Lane::new(self.lives));
        self.ask(partition, self.lives, Duration::ZERO);
    }

    fn ask(&self, partition: PartitionId, life: u64, pause: Duration) {
        let (offsets, probe) = (self.member.offsets(), self.probe.clone());
        let (topic, events) = (self.topic.clone(), self.events.0.clone());
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            let asked = tokio::task::spawn_blocking(move || {
                let (low, end) = probe.bounds(&topic, partition)?;
                let committed = offsets.committed(partition, super::CALL_TIMEOUT)?;
                Ok(Position { committed, low, end })
            });
            let position = asked.await.unwrap_or(Err(KafkaError::Canceled));
            // The loop has ended if nobody hears it.
            let _ = events.send(Event::Position { partition, life, position });
        });
    }

    /// Takes in what other threads have said.
    pub(super) fn hear(&mut self) -> Result<(), WorkerError> {
        while let Ok(event) = self.events.1.try_recv() {
            self.on_event(event)?;
        }
        Ok(())
    }

    pub(super) fn on_event(&mut self, event: Event) -> Result<(), WorkerError> {
        match event {
            Event::Position { partition, life, position } => {
                self.on_position(partition, life, position)?;
            }
            Event::Ended(ended, permit) => self.on_ended(ended, &permit),
        }
        Ok(())
    }

    fn on_position(
        &mut self,
        partition: PartitionId,
        life: u64,
        position: KafkaResult<Position>,
    ) -> Result<(), WorkerError> {
        let Some(lane) = self.lanes.get_mut(&partition).filter(|lane| lane.life == life) else {
            return Ok(());
        };
        let Position { committed, low, end } = match position {
            Ok(position) => position,
            Err(error) => {
                tracing::warn!(partition, %error, "the committed progress is not known yet");
                self.ask(partition, life, ASK_AGAIN);
                return Ok(());
            }
        };
        let (offset, metadata) = committed.unwrap_or((low, String::new()));
        let mut running = Running::restore(offset, &metadata, end)?;
        let known = running.progress.forget_below(low);
        if offset < low {
            tracing::error!(
                partition,
                committed = offset,
                first = low,
                known,
                "fires were deleted before they were delivered: the retention of {} is shorter \
                 than the time that no worker ran",
                self.topic
            );
        }
        self.reader.start(&self.topic, partition, running.progress.floor())?;
        lane.running = Some(running);
        self.report_readiness();
        Ok(())
    }

    /// Reads fires and begins their callbacks; waits at most `wait` for the first.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), WorkerError> {
        let mut wait = wait;
        for _ in 0..READ_MAX {
            if self.is_full() {
                // A callback's end is what makes room, so it is what to wait for.
                if let Ok(event) = self.events.1.recv_timeout(wait) {
                    self.on_event(event)?;
                }
                return Ok(());
            }
            let arrival = match self.reader.poll(wait) {
                Ok(None) => return Ok(()),
                Ok(Some(Read::End(_))) => continue,
                Ok(Some(Read::Record(record))) => Arrival::of(&record),
                Ok(Some(Read::OutOfRange(reason))) => {
                    tracing::error!(%reason, "the log no longer holds what was to be read");
                    return self.begin_again();
                }
                Err(error) => {
                    tracing::warn!(%error, "reading fires");
                    return Ok(());
                }
            };
            wait = Duration::ZERO;
            self.take(arrival)?;
        }
        Ok(())
    }

    fn take(&mut self, arrival: Arrival) -> Result<(), WorkerError> {
        let Arrival { partition, offset, .. } = arrival;
        self.reserve(partition, offset)?;
        let Some(lane) = self.lanes.get_mut(&partition) else { return Ok(()) };
        let life = lane.life;
        let Some(running) = &mut lane.running else { return Ok(()) };
        match running.admit(offset) {
            Admission::Ignore => return Ok(()),
            Admission::Stop => {
                self.make_room(partition);
                return Ok(self.reader.stop(&self.topic, partition)?);
            }
            Admission::Unreserved => return Ok(self.reader.stop(&self.topic, partition)?),
            Admission::Deliver => {}
        }
        match self.schemas.decode_errand(arrival.value.as_deref().unwrap_or_default()) {
            Ok(Errand::Call(fire)) => {
                let route = Route::of(&fire);
                self.offer(Waiting { partition, life, offset, route, fire });
            }
            Ok(Errand::Withdraw(withdrawal)) => {
                self.withdraw((partition, life, offset), &withdrawal);
            }
            Err(error @ CodecError::Newer { .. }) => return Err(error.into()),
            Err(error @ CodecError::Corrupt { .. }) => {
                let Arrival { key, value, headers, .. } = arrival;
                let unreadable = Unreadable { key, value, headers, reason: error.to_string() };
                let ending = Ending::Unreadable(unreadable);
                self.note(Ended { partition, life, offset, at: clock::now_ms(), ending });
            }
        }
        Ok(())
    }

    /// Before what is read at `offset` may be begun, a commit has to say so to whoever is next.
    fn reserve(&mut self, partition: PartitionId, offset: Offset) -> Result<(), WorkerError> {
        let running = self.lanes.get_mut(&partition).and_then(|lane| lane.running.as_mut());
        if running.is_none_or(|running| running.meet(offset)) { Ok(()) } else { self.commit() }
    }

    /// Begins a callback.
    pub(super) fn call(&mut self, waiting: Waiting, permit: Permit) {
        let Waiting { partition, life, offset, fire, .. } = waiting;
        let (caller, events) = (self.caller.clone(), self.events.0.clone());
        self.runtime.spawn(async move {
            fault::reached("worker.before_request");
            let begun = clock::monotonic();
            let reply = caller.call(&fire, clock::now_ms()).await;
            let took = clock::monotonic() - begun;
            fault::reached("worker.after_request");
            metrics::histogram!(telemetry::CALLBACK_DURATION).record(took.as_secs_f64());
            let took = Millis::try_from(took.as_millis()).unwrap_or(Millis::MAX);
            let ending = Ending::Attempt(fire, reply, took);
            let ended = Ended { partition, life, offset, at: clock::now_ms(), ending };
            // The loop has ended if nobody hears it.
            let _ = events.send(Event::Ended(ended, permit));
        });
    }

    pub(super) fn note(&mut self, ended: Ended) {
        self.oldest.get_or_insert_with(clock::monotonic);
        self.ended.push(ended);
    }
}

/// A record of `fires`, copied out of librdkafka's buffer.
struct Arrival {
    partition: PartitionId,
    offset: Offset,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<Header>,
}

impl Arrival {
    fn of(record: &BorrowedMessage<'_>) -> Self {
        let (_topic, partition, offset) = Reader::place(record);
        let headers = record.headers().into_iter().flat_map(Headers::iter);
        let headers = headers.map(|header| Header {
            name: Text::from(header.key),
            value: header.value.map(Bytes::copy_from_slice),
        });
        Self {
            partition,
            offset,
            key: record.key().map(Bytes::copy_from_slice),
            value: record.payload().map(Bytes::copy_from_slice),
            headers: headers.collect(),
        }
    }
}
