//! Several brokers with three replicas of everything, and what each of them does now.
//!
//! Invariant: a broker is named by its place, which is its id less one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::metadata::{Metadata, MetadataPartition, MetadataTopic};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::command::run_to_end;
use crate::coordinators::CoordinatorWatch;
use crate::fencing::FencingWatch;
use crate::kafka_server::{KafkaServer, tool};
use crate::process::state_of;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

/// The ids of the brokers that have a replica of each partition of a topic, the one that is to lead
/// it first.
pub(crate) type ReplicaPlan = BTreeMap<(String, i32), [i32; 3]>;

/// Partitions of the topic of committed offsets, and of the topic of transactions.
const COORDINATOR_PARTITIONS: i32 = 4;

/// What a broker does for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerRole<'a> {
    /// It leads the first partition of this topic.
    Leader(&'a str),
    /// It coordinates this group.
    GroupCoordinator(&'a str),
    /// It coordinates transactions with this id.
    TransactionCoordinator(&'a str),
    /// It is the active controller.
    Controller,
}

/// The brokers of one cluster.
pub(crate) struct BrokerCluster<const N: usize> {
    nodes: [KafkaServer; N],
    /// Asks about them. A client for each question would load the machine while brokers start.
    observer: BaseConsumer,
}

/// Each has a replica of everything.
pub(crate) type ThreeBrokers = BrokerCluster<3>;

impl<const N: usize> BrokerCluster<N> {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more lines of their `server.properties`.
    pub(crate) fn start_with(more: &[(&'static str, &str)]) -> Self {
        let nodes = KafkaServer::cluster_with(more);
        let observer = client_of(&nodes).create().unwrap();
        Self { nodes, observer }
    }

    /// `host:port` of all, comma separated.
    pub(crate) fn bootstrap(&self) -> String {
        bootstrap_of(&self.nodes)
    }

    /// The base of a plain client's settings.
    pub(crate) fn client(&self) -> ClientConfig {
        client_of(&self.nodes)
    }

    /// An installation on them, with three replicas of every partition.
    pub(crate) fn installation(&self, test: &str) -> TestCluster {
        let kafka = [("bootstrap.servers", self.bootstrap())];
        TestCluster::with_replicas(test, self.client(), &kafka, 3)
    }

    /// Moves the replicas of each of these partitions to these brokers, the first of which leads it
    /// from then on, and waits until they are in sync.
    pub(crate) fn move_replicas(&self, replicas: &ReplicaPlan) {
        let partitions: Vec<_> = replicas
            .iter()
            .map(|((topic, partition), replicas)| {
                json!({"topic": topic, "partition": partition, "replicas": replicas})
            })
            .collect();
        let plan = tempfile::NamedTempFile::new().unwrap();
        let text = json!({"version": 1, "partitions": partitions}).to_string();
        std::fs::write(plan.path(), text).unwrap();
        let bootstrap = self.bootstrap();
        let mut reassign = tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand");
        reassign.args(["--bootstrap-server", &bootstrap, "--execute", "--reassignment-json-file"]);
        let _started = run_to_end(reassign.arg(plan.path()));
        until("the replicas to be where they should be", READY_DEADLINE, || {
            let metadata = self.metadata()?;
            let has_moved = |((topic, partition), wanted): (&(String, i32), &[i32; 3])| {
                find_partition(&metadata, topic, *partition)
                    .is_some_and(|found| is_whole(found) && found.replicas() == wanted)
            };
            replicas.iter().all(has_moved).then_some(())
        });
        let mut elect = tool("org.apache.kafka.tools.LeaderElectionCommand");
        elect.args(["--bootstrap-server", &bootstrap, "--election-type", "preferred"]);
        let _elected = run_to_end(elect.arg("--all-topic-partitions"));
        self.wait_until_in_sync();
    }

    /// The topics and their numbers of partitions.
    pub(crate) fn topics(&self) -> Vec<(String, i32)> {
        let metadata = until("the topics", READY_DEADLINE, || self.metadata());
        let topics = metadata.topics().iter();
        let count = |topic: &MetadataTopic| i32::try_from(topic.partitions().len()).unwrap();
        topics.map(|topic| (topic.name().to_owned(), count(topic))).collect()
    }

    /// The place of the broker that has this role now.
    pub(crate) fn place_of(&self, role: BrokerRole<'_>) -> usize {
        let id = match role {
            BrokerRole::Leader(topic) => self.leader(topic, 0),
            BrokerRole::GroupCoordinator(group) => {
                self.leader("__consumer_offsets", coordinator_partition(group))
            }
            BrokerRole::TransactionCoordinator(id) => {
                self.leader("__transaction_state", coordinator_partition(id))
            }
            BrokerRole::Controller => self.controller(),
        };
        usize::try_from(id - 1).unwrap()
    }

    /// The ids of the brokers that lead the partitions of this topic now, by partition.
    pub(crate) fn leaders(&self, topic: &str) -> BTreeMap<i32, i32> {
        until(&format!("the leaders of {topic}"), READY_DEADLINE, || {
            let metadata = self.metadata()?;
            let found = metadata.topics().iter().find(|it| it.name() == topic)?;
            Some(found.partitions().iter().map(|it| (it.id(), it.leader())).collect())
        })
    }

    /// Asks the other brokers from now on whether they name this one, which they do now.
    pub(crate) fn watch_fencing(&self, place: usize) -> FencingWatch {
        let id_of = |place: usize| i32::try_from(place + 1).unwrap();
        let addresses = self.addresses().enumerate();
        let others = addresses.filter(|(other, _)| *other != place);
        let others = others.map(|(other, address)| (id_of(other), address));
        FencingWatch::start(id_of(place), others)
    }

    /// Asks all brokers from now on whether they coordinate these transactional ids, of which each
    /// has a coordinator now.
    pub(crate) fn watch_coordinators(&self, ids: &[String]) -> CoordinatorWatch {
        CoordinatorWatch::start(ids, self.addresses())
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.nodes.iter().map(|node| node.bootstrap().parse().unwrap())
    }

    fn leader(&self, topic: &str, partition: i32) -> i32 {
        until(&format!("a leader of {topic}[{partition}]"), READY_DEADLINE, || {
            let metadata = self.metadata()?;
            let leader = find_partition(&metadata, topic, partition)?.leader();
            (leader > 0).then_some(leader)
        })
    }

    fn controller(&self) -> i32 {
        let mut quorum = tool("org.apache.kafka.tools.MetadataQuorumCommand");
        quorum.args(["--bootstrap-server", &self.bootstrap(), "describe", "--status"]);
        let status = run_to_end(&mut quorum);
        let leader = status.lines().find_map(|line| line.strip_prefix("LeaderId:"));
        leader.unwrap_or_else(|| panic!("no leader: {status}")).trim().parse().unwrap()
    }

    fn metadata(&self) -> Option<Metadata> {
        self.observer.fetch_metadata(None, READY_DEADLINE).ok()
    }

    /// Waits until every replica of every partition is in sync.
    pub(crate) fn wait_until_in_sync(&self) {
        self.nodes.iter().for_each(|node| node.wait_for_brokers(N));
        until("all replicas to be in sync", READY_DEADLINE, || {
            let metadata = self.metadata()?;
            let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            partitions.all(|it| it.leader() > 0 && is_whole(it)).then_some(())
        });
    }

    /// Kills a broker as a power failure would; its data stay.
    pub(crate) fn kill(&mut self, place: usize) {
        self.nodes[place].kill();
    }

    /// Asks a broker to end, and waits until it has.
    pub(crate) fn terminate(&mut self, place: usize) {
        let java = self.nodes[place].process_id();
        self.signal(place, Signal::TERM);
        // Its shell has not asked yet how it ended.
        until("the broker to end", READY_DEADLINE, || (state_of(java) == Some('Z')).then_some(()));
        self.nodes[place].kill();
    }

    pub(crate) fn signal(&self, place: usize, signal: Signal) {
        let java = self.nodes[place].process_id();
        kill_process(Pid::from_raw(java.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Starts a broker that has ended, on its data, and waits until it has caught up.
    pub(crate) fn start_again(&mut self, place: usize) {
        self.nodes[place].start_again();
        self.wait_until_in_sync();
    }

    /// The same with the processors that others leave, as if it were on a machine of its own.
    pub(crate) fn start_again_behind_others(&mut self, place: usize) {
        self.nodes[place].start_again_behind_others();
        self.wait_until_in_sync();
    }
}

fn bootstrap_of(nodes: &[KafkaServer]) -> String {
    nodes.iter().map(KafkaServer::bootstrap).collect::<Vec<_>>().join(",")
}

fn client_of(nodes: &[KafkaServer]) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", bootstrap_of(nodes));
    client
}

fn find_partition<'a>(
    metadata: &'a Metadata,
    topic: &str,
    partition: i32,
) -> Option<&'a MetadataPartition> {
    let topic = metadata.topics().iter().find(|it| it.name() == topic)?;
    topic.partitions().iter().find(|it| it.id() == partition)
}

/// Whether every replica is in sync.
fn is_whole(partition: &MetadataPartition) -> bool {
    partition.isr().len() == partition.replicas().len()
}

/// Which partition of the coordinators' topics has what belongs to this group or transactional id:
/// the absolute value of Java's hash of the text, and 0 where there is none.
pub(crate) fn coordinator_partition(id: &str) -> i32 {
    let hash =
        id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
    hash.checked_abs().unwrap_or(0) % COORDINATOR_PARTITIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_coordinator_is_that_of_java() {
        // Their hash codes in Java are Integer.MIN_VALUE, 96354 and -1008770331.
        assert_eq!(coordinator_partition("polygenelubricants"), 0);
        assert_eq!(coordinator_partition("abc"), 96_354 % COORDINATOR_PARTITIONS);
        assert_eq!(coordinator_partition("orders"), 1_008_770_331 % COORDINATOR_PARTITIONS);
    }
}
