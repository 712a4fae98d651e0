//! What pipe and ticker have of the scheduler: a membership, a producer, and a thread that ends its
//! transactions.
//!
//! Law: the group is polled only while no transaction is open, and each transaction carries the
//! offsets of all partitions under the fence, as the scheduler's do. The pipe has all of the
//! scheduler's Kafka, two producers that take turns; the ticker is plain, with one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use orloj::config::Settings;
use orloj::engine::tenure::Change;
use orloj::kafka::Names;
use orloj::kafka::fence::Fence;
use orloj::kafka::member::Member;
use orloj::kafka::relay::Relay;
use orloj::kafka::transaction::{Outgoing, Progress, TransactionError, Transactor};
use orloj::model::{Offset, PartitionId};

use crate::site::PARTITIONS;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

type Transaction = (Vec<Progress>, Fence);

/// What makes transactions.
pub(crate) enum Writer {
    /// A producer.
    Plain(Transactor),
    /// Two that take turns.
    Relay(Relay),
}

impl Writer {
    fn begin(&self) -> Result<(), TransactionError> {
        match self {
            Self::Plain(transactor) => transactor.begin(),
            Self::Relay(relay) => relay.begin_for(0),
        }
    }

    fn send(&self, record: Outgoing<'_>) -> Result<(), TransactionError> {
        match self {
            Self::Plain(transactor) => transactor.send(record),
            Self::Relay(relay) => relay.send(record),
        }
    }

    fn commit(&self, progress: &[Progress], fence: &Fence) -> Result<(), TransactionError> {
        match self {
            Self::Plain(transactor) => transactor.commit(progress, fence).map(drop),
            Self::Relay(relay) => relay.commit(progress, fence).map(drop),
        }
    }
}

/// Opens what writes under a transactional id.
type Open = fn(&Settings, &str) -> Result<Writer, TransactionError>;

/// As the scheduler writes.
pub(crate) const TAKING_TURNS: Open =
    |settings, id| Relay::open(settings, id, DEADLINE).map(Writer::Relay);
/// As anyone would.
pub(crate) const PLAIN: Open =
    |settings, id| Transactor::open(settings, id, DEADLINE).map(Writer::Plain);

/// A way out into Kafka, one transaction at a time.
pub(crate) struct Outlet {
    member: Member,
    input: String,
    writer: Arc<Writer>,
    transactions: Sender<Transaction>,
    landed: Receiver<Result<(), TransactionError>>,
    under_way: bool,
}

impl Outlet {
    /// Joins a group named after `part` and returns when it has all partitions of the triggers.
    pub(crate) fn join(settings: &Settings, part: &str, open: Open) -> Self {
        let names = Names::new(&settings.topics.prefix);
        let input = names.triggers();
        let member = Member::join(settings, &names.workers(part), &input, part).unwrap();
        let all = PARTITIONS.len();
        until("all partitions to be assigned", DEADLINE, || {
            let changes = member.poll(Duration::from_millis(10)).unwrap();
            let is_all = |c: &Change| matches!(c, Change::Assigned(some) if some.len() == all);
            changes.iter().any(is_all).then_some(())
        });
        let id = names.transactional_id(part, part);
        let writer = Arc::new(open(settings, &id).unwrap());
        let (transactions, landed) = start_committer(Arc::clone(&writer));
        Self { member, input, writer, transactions, landed, under_way: false }
    }

    /// Whether no transaction is under way, after `wait` at most. A failed one ends the process.
    pub(crate) fn is_free(&mut self, wait: Duration) -> bool {
        if self.under_way {
            match self.landed.recv_timeout(wait) {
                Ok(result) => result.unwrap(),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => panic!("the committing thread is gone"),
            }
            self.under_way = false;
            self.serve_group(Duration::ZERO);
        }
        true
    }

    /// Serves the group for `wait` at most: a pause, while nothing is due.
    pub(crate) fn serve_group(&self, wait: Duration) {
        assert!(!self.under_way, "the group is polled between transactions");
        let changes = self.member.poll(wait).unwrap();
        assert!(changes.is_empty(), "nobody else is in the group: {changes:?}");
    }

    pub(crate) fn begin(&self) {
        self.writer.begin().unwrap();
    }

    pub(crate) fn send(&self, record: Outgoing<'_>) {
        self.writer.send(record).unwrap();
    }

    /// Ends the transaction on the other thread. `next` has the next offset of each partition.
    pub(crate) fn submit(&mut self, next: [Offset; PARTITIONS.len()]) {
        let progress = |(partition, offset): (PartitionId, Offset)| Progress {
            topic: self.input.clone(),
            partition,
            offset,
            metadata: String::new(),
        };
        let progress = PARTITIONS.into_iter().zip(next).map(progress).collect();
        self.transactions.send((progress, self.member.fence().unwrap())).unwrap();
        self.under_way = true;
    }
}

fn start_committer(
    writer: Arc<Writer>,
) -> (Sender<Transaction>, Receiver<Result<(), TransactionError>>) {
    let (transactions, inbox) = channel::<Transaction>();
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
