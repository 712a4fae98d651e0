//! Members of a group: what they are assigned and release, and the offsets that they commit.

use std::cell::RefCell;
use std::time::Duration;

use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::engine::assignment::AssignmentChange;
use orloj::environment::group::{GroupQueries as _, MemberMetadata as _};
use orloj::kafka::error::ClientError;
use orloj::kafka::member::{CommitMode, Member};
use orloj::kafka::orphaned_transactions::OrphanedTransactions;
use orloj::kafka::standby_client::StandbyClient;
use orloj::kafka::transaction::{OffsetCommit, TransactionError};
use orloj::model::PartitionId;

use super::setup::{
    DEADLINE, POLL, TIMEOUT, me, new_topic, offset_commit, proxied_broker, record, settings,
    settings_of, transactional, unreachable_settings,
};
use crate::faults::proxy::{HEARTBEAT, Proxy};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

/// How often a member is dropped in the middle of a rebalance.
const DROPS: u32 = 8;

/// So many heartbeats at `scheduler.heartbeat_interval`, 100 ms, take 2 s.
const HEARTBEATS: usize = 20;
const HEARTBEATS_MAX: Duration = Duration::from_secs(4);

/// From the release of a partition until its new member has it: a few heartbeats, and a round of
/// the group.
const ASSIGNED_MAX: Duration = Duration::from_millis(600);

/// A member, and what it was assigned so far.
struct Joined {
    member: Member,
    owned: RefCell<Vec<PartitionId>>,
}

impl Joined {
    fn of(member: Member) -> Self {
        Self { member, owned: RefCell::default() }
    }

    /// A static member of the group of the topic's name.
    fn as_instance(topic: &str, instance: &str) -> Self {
        Self::of(Member::join(&settings(), topic, topic, instance).unwrap())
    }

    /// Polls once, and releases at once what is revoked.
    fn poll(&self) {
        for change in self.member.poll(POLL).unwrap() {
            let mut owned = self.owned.borrow_mut();
            match change {
                AssignmentChange::Joined(_) => {}
                AssignmentChange::Assigned(partitions) => owned.extend(partitions),
                AssignmentChange::Revoked(partitions) | AssignmentChange::Lost(partitions) => {
                    owned.retain(|partition| !partitions.contains(partition));
                    self.member.release(&partitions).unwrap();
                }
            }
            owned.sort_unstable();
        }
    }

    fn owned(&self) -> Vec<PartitionId> {
        self.owned.borrow().clone()
    }
}

/// Polls all of them until their partitions are these.
fn poll_until_owned(members: &[(&Joined, usize)]) {
    until(&format!("{:?}", members.iter().map(|it| it.1).collect::<Vec<_>>()), DEADLINE, || {
        members.iter().for_each(|(joined, _)| joined.poll());
        members.iter().all(|(joined, count)| joined.owned().len() == *count).then_some(())
    });
}

/// A member that had both partitions of a topic and has just released one, and the new member that
/// it was released for.
fn released_one_of_two() -> (Joined, Joined) {
    let topic = new_topic(2, &[]);
    let first = Joined::as_instance(&topic, "first");
    poll_until_owned(&[(&first, 2)]);
    let second = Joined::of(Member::join_dynamic(&settings(), &topic, &topic).unwrap());
    until("the release", DEADLINE, || {
        second.poll();
        first.poll();
        (first.owned().len() == 1).then_some(())
    });
    (first, second)
}

/// A partition waits until each member has learnt by its heartbeat that the group assigns again.
/// The client had sent one only when it was busy, or when another of its timers expired.
#[test]
fn a_member_that_does_nothing_sends_its_heartbeats_at_their_interval() {
    let [listener, port] = free_ports();
    let proxied = Some([listener, port]);
    let server = KafkaServer::start(&Options { proxied, ..Options::default() });
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let topic = server.new_topic(1, &[]);
    let settings = settings_of(&format!("127.0.0.1:{port}"));
    let joined = Joined::of(Member::join(&settings, &topic, &topic, "idle").unwrap());
    poll_until_owned(&[(&joined, 1)]);
    let before = proxy.requests(HEARTBEAT);
    until("the heartbeats", HEARTBEATS_MAX, || {
        joined.poll();
        (proxy.requests(HEARTBEAT) >= before + HEARTBEATS).then_some(())
    });
}

/// The client joins again when it has accepted the assignment that follows a release. Its owner
/// flushes the local stores first, for 100 ms or more.
#[test]
fn what_is_released_moves_before_its_member_polls_again() {
    let _machine = exclusive_machine();
    let (_first, second) = released_one_of_two();
    poll_until_owned(&[(&second, 1)]);
}

/// One that has just joined learns from its next heartbeat that a partition was released for it.
#[test]
fn a_released_partition_is_assigned_to_a_new_member_at_once() {
    let _machine = exclusive_machine();
    let (first, second) = released_one_of_two();
    let released = clock::monotonic();
    poll_until_owned(&[(&first, 1), (&second, 1)]);
    let took = clock::monotonic() - released;
    assert!(took <= ASSIGNED_MAX, "{took:?}; {ASSIGNED_MAX:?} are allowed");
}

#[test]
fn partitions_move_between_members_when_they_are_released() {
    let topic = new_topic(4, &[]);
    let first = Joined::as_instance(&topic, "first");
    poll_until_owned(&[(&first, 4)]);
    assert_eq!(first.owned(), [0, 1, 2, 3]);
    let second = Joined::of(Member::join_dynamic(&settings(), &topic, &topic).unwrap());
    poll_until_owned(&[(&first, 2), (&second, 2)]);
    let mut all = [first.owned(), second.owned()].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
    let standby = StandbyClient::open(&settings(), &topic, &topic, TIMEOUT).unwrap();
    let members = standby.members().unwrap();
    let mut listed: Vec<_> = members.into_iter().map(|member| member.partitions).collect();
    listed.iter_mut().for_each(|partitions| partitions.sort_unstable());
    listed.sort_unstable();
    let mut owned = [first.owned(), second.owned()];
    owned.sort_unstable();
    assert_eq!(listed, owned);
    drop(second);
    poll_until_owned(&[(&first, 4)]);
}

#[test]
fn committed_offsets_are_read_with_their_metadata() {
    let topic = new_topic(3, &[]);
    let member = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&member, 3)]);
    let (member, offsets) = (&member.member, member.member.committed_offsets());
    assert_eq!(member.committed(&topic, 0, TIMEOUT).unwrap(), None);
    assert_eq!(offsets.committed(0, TIMEOUT).unwrap(), None);
    assert!(!offsets.is_assignment_lost());
    member.commit(&[offset_commit(&topic, 0, 7)], CommitMode::Sync).unwrap();
    assert_eq!(member.committed(&topic, 0, TIMEOUT).unwrap(), Some((7, String::new())));
    let commit = OffsetCommit { metadata: "step".to_owned(), ..offset_commit(&topic, 1, 8) };
    member.commit(&[commit], CommitMode::Async).unwrap();
    let of_1 = Some((8, "step".to_owned()));
    until("the commit", DEADLINE, || {
        let _changes = member.poll(POLL).unwrap();
        (offsets.committed(1, TIMEOUT).unwrap() == of_1).then_some(())
    });
    let standby = StandbyClient::open(&settings(), &topic, &topic, TIMEOUT).unwrap();
    assert_eq!(standby.committed(1).unwrap(), of_1);
    assert_eq!(standby.committed(2).unwrap(), None);
    assert_eq!(standby.bounds(&topic, 1).unwrap(), (0, 0));
    member.commit(&[offset_commit(&topic, 2, 9)], CommitMode::Sync).unwrap();
    assert_eq!(member.committed(&topic, 2, TIMEOUT).unwrap(), Some((9, String::new())));
}

#[test]
fn offsets_are_committed_with_a_transaction_of_the_current_generation_only() {
    let topic = new_topic(1, &[]);
    let joined = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&joined, 1)]);
    let commit = |offset| {
        let (partition, metadata) = (0, "step".to_owned());
        [OffsetCommit { topic: topic.clone(), partition, offset, metadata }]
    };
    let metadata = joined.member.group_metadata().unwrap();
    let producer = transactional(&topic);
    let step = |offset, metadata| {
        producer.begin().unwrap();
        producer.send(record(&topic, 0, "key")).unwrap();
        producer.commit_with_offsets(&commit(offset), metadata)
    };
    step(1, &metadata).unwrap();
    let offsets = joined.member.committed_offsets();
    assert_eq!(offsets.committed(0, TIMEOUT).unwrap(), Some((1, "step".to_owned())));
    let orphaned = OrphanedTransactions::open(&settings(), &topic, &topic, me(), TIMEOUT).unwrap();
    assert_eq!(orphaned.committed_metadata(0, TIMEOUT).unwrap(), "step");
    let other = Joined::of(Member::join_dynamic(&settings(), &topic, &topic).unwrap());
    until("a new generation", DEADLINE, || {
        joined.poll();
        other.poll();
        let now = joined.member.group_metadata().ok()?;
        (now.generation > metadata.generation).then_some(())
    });
    let stale = step(2, &metadata);
    assert!(matches!(&stale, Err(TransactionError::StaleGeneration(_))), "{stale:?}");
    producer.abort(TIMEOUT).unwrap();
    assert_eq!(offsets.committed(0, TIMEOUT).unwrap(), Some((1, "step".to_owned())));
}

/// A takeover waits for that.
#[test]
fn a_stable_offset_is_read_soon_after_the_transaction_that_hides_it_has_ended() {
    /// After each of these times, in ms, the transaction ends. A client that asks less and less
    /// often is late after the longer ones.
    const OPEN_MS: [u64; 2] = [800, 1_600];
    const LATE_MAX: u64 = 300;
    let topic = new_topic(1, &[]);
    let joined = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&joined, 1)]);
    let producer = transactional(&topic);
    for (offset, open) in (1..).zip(OPEN_MS) {
        let commit = OffsetCommit {
            topic: topic.clone(),
            partition: 0,
            offset,
            metadata: "step".to_owned(),
        };
        producer.begin().unwrap();
        producer.send(record(&topic, 0, "key")).unwrap();
        producer.flush(TIMEOUT).unwrap();
        let metadata = joined.member.group_metadata().unwrap();
        producer.send_offsets(&[commit], &metadata, TIMEOUT).unwrap();
        let offsets = joined.member.committed_offsets();
        let asked = clock::monotonic();
        let reader = std::thread::spawn(move || {
            let found = until("the stable offset", DEADLINE, || {
                offsets.committed(0, Duration::from_secs(2)).ok()
            });
            (found, clock::monotonic())
        });
        until("the time to be over", DEADLINE, || {
            (clock::monotonic() - asked >= Duration::from_millis(open)).then_some(())
        });
        producer.commit(TIMEOUT).unwrap();
        let ended = clock::monotonic();
        let (found, read) = reader.join().unwrap();
        assert_eq!(found, Some((offset, "step".to_owned())));
        let late = read.saturating_duration_since(ended).as_millis();
        assert!(late <= LATE_MAX.into(), "{late} ms after a transaction of {open} ms");
    }
}

#[test]
fn a_member_that_has_not_joined_has_no_metadata_for_a_transaction() {
    let member = Member::join_dynamic(&unreachable_settings(), "clients", "triggers").unwrap();
    assert!(member.group_metadata().is_err() && !member.is_member(""));
}

#[test]
fn a_member_that_has_left_gracefully_gets_its_partitions_back_when_it_starts_again() {
    let (topic, other_topic) = (new_topic(2, &[]), new_topic(1, &[]));
    let first = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&first, 2)]);
    assert!(!first.member.has_released_all());
    first.member.leave_gracefully(&other_topic, TIMEOUT).unwrap();
    until("the release of all partitions", DEADLINE, || {
        first.poll();
        first.member.has_released_all().then_some(())
    });
    assert!(first.owned().is_empty());
    drop(first);
    let again = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&again, 2)]);
}

/// librdkafka may not return from a call that is made while it closes and the group rebalances.
#[test]
fn a_member_is_dropped_in_time_while_the_group_rebalances() {
    let (topic, other_topic) = (new_topic(2, &[]), new_topic(1, &[]));
    for round in 0..DROPS {
        let joined = Joined::of(Member::join_dynamic(&settings(), &topic, &topic).unwrap());
        poll_until_owned(&[(&joined, 2)]);
        joined.member.leave_gracefully(&other_topic, TIMEOUT).unwrap();
        let _changes = joined.member.poll(POLL * (round % 4)).unwrap();
        let (dropped, is_dropped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            drop(joined);
            dropped.send(())
        });
        assert_eq!(is_dropped.recv_timeout(DEADLINE), Ok(()), "in round {round}");
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn a_fenced_member_joins_again_unless_it_is_fenced_again_and_again() {
    let topic = new_topic(2, &[]);
    let mut first = Joined::as_instance(&topic, "a");
    poll_until_owned(&[(&first, 2)]);
    for round in 0..6 {
        let other = Joined::as_instance(&topic, "a");
        poll_until_owned(&[(&other, 2)]);
        let fatal = until("the fencing", DEADLINE, || first.member.poll(POLL).err());
        let rejoined = first.member.rejoin(fatal);
        assert_eq!(rejoined.is_ok(), round < 5, "{round}: {rejoined:?}");
        if round < 5 {
            first.owned.borrow_mut().clear();
            poll_until_owned(&[(&first, 2)]);
        }
    }
}

/// It is a static member, and another one gets its partitions meanwhile.
#[test]
fn a_member_that_is_expelled_while_it_holds_revoked_partitions_has_another_id_and_no_loss() {
    let [listener, port] = free_ports();
    let server =
        KafkaServer::start(&Options { proxied: Some([listener, port]), ..Options::default() });
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let topic = server.new_topic(4, &[]);
    let settings = settings_of(&format!("127.0.0.1:{port}"));
    let mut first = Joined::of(Member::join(&settings, &topic, &topic, "a").unwrap());
    poll_until_owned(&[(&first, 4)]);
    let before = first.member.group_metadata().unwrap().member_id();
    let settings = settings_of(server.bootstrap());
    let second = Joined::of(Member::join_dynamic(&settings, &topic, &topic).unwrap());
    let revoked = until("the revocation", DEADLINE, || {
        second.poll();
        let changes = first.member.poll(POLL).unwrap();
        changes.into_iter().find_map(|change| match change {
            AssignmentChange::Revoked(partitions) => Some(partitions),
            _ => None,
        })
    });
    proxy.close();
    until("the end of the session", DEADLINE, || {
        second.poll();
        (second.owned().len() == 4).then_some(())
    });
    proxy.release();
    until("the end of the membership", DEADLINE, || {
        assert_eq!(first.member.poll(POLL).unwrap(), [], "nothing is reported");
        first.member.group_metadata().err()
    });
    first.member.release(&revoked).unwrap();
    let member_id = until("another id", DEADLINE, || {
        second.poll();
        first.member.poll(POLL).unwrap().into_iter().find_map(|change| match change {
            AssignmentChange::Joined(member_id) => Some(member_id),
            AssignmentChange::Lost(partitions) => panic!("{partitions:?} are reported as lost"),
            _ => None,
        })
    });
    assert_ne!(member_id, before);
    first.owned.borrow_mut().retain(|partition| !revoked.contains(partition));
    let kept = std::mem::take(&mut *first.owned.borrow_mut());
    first.member.release(&kept).unwrap();
    first.member.rejoin(ClientError::Expelled).unwrap();
    poll_until_owned(&[(&first, 2), (&second, 2)]);
}

/// Members of a group whose assignor revokes everything before it assigns again: one of them has
/// the only partition.
#[test]
fn an_expelled_member_of_an_eager_group_reports_a_loss_also_if_it_owned_nothing() {
    let (server, proxy, address) = proxied_broker();
    let topic = server.new_topic(1, &[]);
    let overrides = vec![
        format!("kafka.bootstrap.servers={address}"),
        "scheduler.session_timeout=1s".to_owned(),
        "scheduler.assignor=range".to_owned(),
    ];
    let eager = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
    let members = [(); 2].map(|()| Member::join_dynamic(&eager, &topic, &topic).unwrap());
    let mut owned = [None, None];
    until("both assignments", DEADLINE, || {
        for (member, owned) in members.iter().zip(&mut owned) {
            for change in member.poll(POLL).unwrap() {
                match change {
                    AssignmentChange::Joined(_) => {}
                    AssignmentChange::Assigned(partitions) => *owned = Some(partitions.len()),
                    AssignmentChange::Revoked(partitions) | AssignmentChange::Lost(partitions) => {
                        *owned = None;
                        member.release(&partitions).unwrap();
                    }
                }
            }
        }
        (owned.contains(&Some(0)) && owned.contains(&Some(1))).then_some(())
    });
    proxy.close();
    let direct = settings_of(server.bootstrap());
    let group = StandbyClient::open(&direct, &topic, &topic, TIMEOUT).unwrap();
    until("the end of the sessions", DEADLINE, || {
        group.members().unwrap().is_empty().then_some(())
    });
    proxy.release();
    let mut lost = Vec::new();
    until("both losses", DEADLINE, || {
        for member in &members {
            for change in member.poll(POLL).unwrap() {
                match change {
                    AssignmentChange::Revoked(partitions) => panic!("revoked: {partitions:?}"),
                    AssignmentChange::Lost(partitions) => {
                        member.release(&partitions).unwrap();
                        lost.push(partitions);
                    }
                    AssignmentChange::Joined(_) | AssignmentChange::Assigned(_) => {}
                }
            }
        }
        (lost.len() == members.len()).then_some(())
    });
    lost.sort_unstable();
    assert_eq!(lost, [vec![], vec![0]]);
}
