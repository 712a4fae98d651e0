//! Writes dead letters and changes of circuits, as schedulers and workers do: those of a test, or
//! one after the other until it is dropped.
//!
//! Invariant: each reason and each host has a number of its own, so that what a message states can
//! be counted. Few of them are written before they are reported, so that a message names all that
//! it counts. At the end every circuit is closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;
use orloj::codec::schemas::Schemas;
use orloj::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::judge::{FactCounts, HOST, NotificationSinks, REASON};
use super::{DEADLINE, new_letter};
use crate::background_thread::BackgroundThread;
use crate::test_cluster::TestCluster;
use crate::wait::within;

/// Each letter and each change is written once for each of them.
const CALLERS: [&str; 2] = ["billing", "shop"];
/// Letters of one reason, at least.
const LETTERS: u64 = 30;
/// Pause between two letters.
const PAUSE: Duration = Duration::from_millis(20);
/// Circuits that are open at once.
const OPEN_MAX: usize = 2;
/// No new reason or host is written while so many reasons and one more are not reported.
const UNREPORTED_MAX: usize = 2;

/// Where failures are written.
pub(super) struct FailureLog {
    producer: BaseProducer,
    schemas: Schemas,
    dead_letters: String,
    outcomes: String,
}

/// Starts to write; `sinks` have what is reported.
pub(super) fn start(cluster: &TestCluster, sinks: Arc<NotificationSinks>) -> BackgroundThread {
    let log = FailureLog::open(cluster);
    BackgroundThread::start(move |ended| log.write_until(ended, &sinks))
}

impl FailureLog {
    pub(super) fn open(cluster: &TestCluster) -> Self {
        Self {
            producer: cluster.kafka().create().unwrap(),
            schemas: Schemas::new(),
            dead_letters: cluster.names.dead_letters(),
            outcomes: cluster.names.outcomes(),
        }
    }

    fn write_until(&self, ended: &AtomicBool, sinks: &NotificationSinks) {
        let mut written = FactCounts::new();
        let mut open: VecDeque<String> = VecDeque::new();
        for number in 0.. {
            if ended.load(Relaxed) {
                break;
            }
            if open.len() == OPEN_MAX {
                open.pop_front().iter().for_each(|host| self.write(host, CircuitState::Closed));
            }
            // A failed probe of those that stay open.
            for host in &open {
                self.write(host, CircuitState::HalfOpen);
                self.write(host, CircuitState::Open);
            }
            let host = format!("{HOST}{number}");
            self.write(&host, CircuitState::Open);
            open.push_back(host);
            let reason = format!("{REASON}{number}");
            loop {
                self.write_letters(&reason);
                *written.entry(reason.clone()).or_default() += LETTERS;
                if ended.load(Relaxed) || sinks.unreported(&written) <= UNREPORTED_MAX {
                    break;
                }
            }
        }
        open.iter().for_each(|host| self.write(host, CircuitState::Closed));
    }

    /// Writes letters of this reason, of each caller.
    pub(super) fn write_letters(&self, reason: &str) {
        for _ in 0..LETTERS {
            for caller in CALLERS {
                let letter = new_letter(caller, reason);
                let value = self.schemas.encode_dead_letter(&letter);
                self.send(BaseRecord::to(&self.dead_letters).payload(&value[..]));
            }
            let _pause: Option<()> = within(PAUSE, || None);
        }
    }

    /// Writes that a circuit of each caller is in this state now.
    pub(super) fn write(&self, host: &str, state: CircuitState) {
        for caller in CALLERS {
            let circuit = Circuit {
                worker: "worker-0".into(),
                caller: Some(caller.into()),
                host: host.into(),
                state,
                reason: "20 of 20 failed".to_owned(),
                probe_at: None,
            };
            let (trigger, at) = (circuit.key(), clock::now_ms());
            let kind = OutcomeKind::Circuit(circuit);
            let outcome = Outcome { trigger, answers: None, request: None, at, kind };
            let value = self.schemas.encode_outcome(&outcome);
            let record = BaseRecord::to(&self.outcomes).key(outcome.trigger.as_str());
            self.send(record.payload(&value[..]));
        }
    }

    fn send(&self, record: BaseRecord<'_, str, [u8]>) {
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(DEADLINE).unwrap();
    }
}
