//! What pipe and ticker have of the scheduler: a membership, a producer, and a thread that ends its
//! transactions.
//!
//! Invariant: the group is polled only while no transaction is open, and each transaction carries
//! the offsets of all partitions under the fence, as the scheduler's do. The pipe has all of the
//! scheduler's Kafka, two producers that take turns; the ticker is plain, with one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use orloj::config::Settings;
use orloj::engine::assignment::AssignmentChange;
use orloj::kafka::Names;
use orloj::kafka::group_metadata::GroupMetadata;
use orloj::kafka::member::Member;
use orloj::kafka::producer_pair::ProducerPair;
use orloj::kafka::transaction::{
    OffsetCommit, ProducerRecord, TransactionError, TransactionalProducer,
};
use orloj::model::{Offset, PartitionId};

use crate::bench_cluster::PARTITIONS;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

type PendingCommit = (Vec<OffsetCommit>, GroupMetadata);

/// What makes transactions.
pub(crate) enum BenchProducer {
    /// A producer.
    Single(TransactionalProducer),
    /// Two that take turns.
    Pair(Box<ProducerPair>),
}

impl BenchProducer {
    fn begin(&self) -> Result<(), TransactionError> {
        match self {
            Self::Single(transactor) => transactor.begin(),
            Self::Pair(relay) => relay.begin_at(0),
        }
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        match self {
            Self::Single(transactor) => transactor.send(record),
            Self::Pair(relay) => relay.send(record),
        }
    }

    fn commit(
        &self,
        progress: &[OffsetCommit],
        fence: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        match self {
            Self::Single(transactor) => transactor.commit_with_offsets(progress, fence),
            Self::Pair(relay) => relay.commit_with_offsets(progress, fence),
        }
    }
}

/// Opens what writes under a transactional id.
type OpenProducer = fn(&Settings, &str) -> Result<BenchProducer, TransactionError>;

/// As the scheduler writes.
pub(crate) const PRODUCER_PAIR: OpenProducer = |settings, id| {
    ProducerPair::open(settings, (id, 0), DEADLINE).map(|pair| BenchProducer::Pair(Box::new(pair)))
};
/// As anyone would.
pub(crate) const SINGLE_PRODUCER: OpenProducer =
    |settings, id| TransactionalProducer::open(settings, id, DEADLINE).map(BenchProducer::Single);

/// A way out into Kafka, one transaction at a time.
pub(crate) struct TransactionWriter {
    member: Member,
    input: String,
    writer: Arc<BenchProducer>,
    transactions: Sender<PendingCommit>,
    committed: Receiver<Result<(), TransactionError>>,
    is_committing: bool,
}

impl TransactionWriter {
    /// Joins a group named after `part` and returns when it has all partitions of the triggers.
    pub(crate) fn join(settings: &Settings, part: &str, open: OpenProducer) -> Self {
        let names = Names::new(&settings.topics.prefix);
        let input = names.triggers();
        let member = Member::join(settings, &names.worker_group(part), &input, part).unwrap();
        let all = PARTITIONS.len();
        until("all partitions to be assigned", DEADLINE, || {
            let changes = member.poll(Duration::from_millis(10)).unwrap();
            let is_all = |change: &AssignmentChange| {
                let AssignmentChange::Assigned(some) = change else { return false };
                some.len() == all
            };
            changes.iter().any(is_all).then_some(())
        });
        let id = names.transactional_id(part, part);
        let writer = Arc::new(open(settings, &id).unwrap());
        let (transactions, landed) = start_committer(Arc::clone(&writer));
        Self { member, input, writer, transactions, committed: landed, is_committing: false }
    }

    /// Whether no transaction is under way, after `wait` at most. A failed one ends the process.
    pub(crate) fn is_free(&mut self, wait: Duration) -> bool {
        if self.is_committing {
            match self.committed.recv_timeout(wait) {
                Ok(result) => result.unwrap(),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => panic!("the committing thread has ended"),
            }
            self.is_committing = false;
            self.serve_group(Duration::ZERO);
        }
        true
    }

    /// Serves the group for `wait` at most: a pause, while nothing is due.
    pub(crate) fn serve_group(&self, wait: Duration) {
        assert!(!self.is_committing, "the group is polled between transactions");
        let changes = self.member.poll(wait).unwrap();
        assert!(changes.is_empty(), "no other member is in the group: {changes:?}");
    }

    pub(crate) fn begin(&self) {
        self.writer.begin().unwrap();
    }

    pub(crate) fn send(&self, record: ProducerRecord<'_>) {
        self.writer.send(record).unwrap();
    }

    /// Ends the transaction on the other thread. `next` has the next offset of each partition.
    pub(crate) fn submit(&mut self, next: [Offset; PARTITIONS.len()]) {
        let progress = |(partition, offset): (PartitionId, Offset)| OffsetCommit {
            topic: self.input.clone(),
            partition,
            offset,
            metadata: String::new(),
        };
        let progress = PARTITIONS.into_iter().zip(next).map(progress).collect();
        self.transactions.send((progress, self.member.group_metadata().unwrap())).unwrap();
        self.is_committing = true;
    }
}

fn start_committer(
    writer: Arc<BenchProducer>,
) -> (Sender<PendingCommit>, Receiver<Result<(), TransactionError>>) {
    let (transactions, inbox) = channel::<PendingCommit>();
    let (outbox, landed) = channel();
    let _detached = std::thread::spawn(move || {
        for (progress, fence) in inbox {
            if outbox.send(writer.commit(&progress, &fence)).is_err() {
                break;
            }
        }
    });
    (transactions, landed)
}
