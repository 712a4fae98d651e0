//! The membership of a process in the simulated group.

use std::time::Duration;

use orloj_core::engine::assignment::AssignmentChange;
use orloj_core::engine::cursor::Cursor;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::environment::group::{
    CommittedOffsets, GroupMember, GroupMembership, GroupMetadataError, GroupQueries,
    MemberMetadata,
};
use orloj_core::environment::transaction::{OffsetCommit, PRODUCERS_MAX};
use orloj_core::model::{Offset, PartitionId};

use super::{ProcessState, SimulatedProcess, ask, index};
use crate::simulation::cluster::{NODES, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::group::{
    GroupPoll, Membership, NodeId, node_of, producer_ids, transactional_id,
};

/// A member.
pub(in crate::simulation) struct SimulatedMember(pub(in crate::simulation) SimulatedProcess);

fn ids(partitions: impl IntoIterator<Item = usize>) -> Vec<PartitionId> {
    partitions.into_iter().map(|id| PartitionId::try_from(id).unwrap()).collect()
}

impl SimulatedMember {
    fn poll_group(
        cluster: &mut SimulatedCluster,
        state: &mut ProcessState,
    ) -> CallResult<Vec<AssignmentChange>> {
        if std::mem::take(&mut state.must_join) {
            state.membership = cluster.broker.group.join(state.id, &mut cluster.rng);
            state.is_lost = false;
        }
        if state.awaits_assignment && !cluster.rng.one_in(8) {
            return Ok(Vec::new());
        }
        state.awaits_assignment = false;
        let held: Vec<usize> = state.held.iter().copied().collect();
        let session = state.membership.session;
        match cluster.broker.group.poll(&mut state.membership, &held) {
            GroupPoll::Expelled => Self::on_expelled(cluster, state, held),
            GroupPoll::Owns { assigned, revoked } => {
                let mut changes = Vec::new();
                if state.reported_session.replace(session) != Some(session) {
                    changes.push(AssignmentChange::Joined(state.membership.member_id()));
                }
                // An eager group revokes everything before it assigns again.
                let is_eager = !revoked.is_empty() && cluster.rng.one_in(4);
                cluster.counts.add_many(FaultKind::RevokedAll, u64::from(is_eager));
                let revoked = if state.is_leaving || is_eager { held } else { revoked };
                let revoked: Vec<_> =
                    revoked.into_iter().filter(|id| state.revoked.insert(*id)).collect();
                if !revoked.is_empty() {
                    changes.push(AssignmentChange::Revoked(ids(revoked)));
                }
                if !state.is_leaving && !assigned.is_empty() {
                    state.held.extend(&assigned);
                    for p in &assigned {
                        state.assignments[*p] = (state.assignments[*p].0 + 1, cluster.broker.now);
                    }
                    changes.push(AssignmentChange::Assigned(ids(assigned)));
                }
                Ok(changes)
            }
        }
    }

    /// librdkafka reports no loss while it waits until revoked partitions are released, or joins
    /// again: it joins as another member, and keeps what it held until it has its assignment.
    fn on_expelled(
        cluster: &mut SimulatedCluster,
        state: &mut ProcessState,
        held: Vec<usize>,
    ) -> CallResult<Vec<AssignmentChange>> {
        if !state.is_leaving && !state.revoked.is_empty() {
            state.is_rebalancing = true;
            return Ok(Vec::new());
        }
        let is_rebalancing = std::mem::take(&mut state.is_rebalancing) || cluster.rng.one_in(4);
        if !state.is_leaving && is_rebalancing {
            let keeps = u64::from(!held.is_empty());
            cluster.counts.add_many(FaultKind::ExpelledUnreported, keeps);
            state.membership = cluster.broker.group.join(state.id, &mut cluster.rng);
            (state.is_lost, state.awaits_assignment) = (false, true);
            return Ok(Vec::new());
        }
        if cluster.rng.one_in(2) {
            return Err(CallError::new("fenced: the member is unknown"));
        }
        state.must_join = !state.is_leaving;
        Ok(vec![AssignmentChange::Lost(ids(held))])
    }
}

/// Member ids begin with the transactional id here.
fn member_id(node: NodeId, session: u64) -> String {
    format!("{}-{session}", transactional_id(node))
}

impl MemberMetadata for Membership {
    fn member_id(&self) -> String {
        member_id(self.node, self.session)
    }
}

impl GroupMembership for SimulatedMember {
    type Metadata = Membership;
    type Offsets = SimulatedOffsets;

    fn poll(&mut self, _timeout: Duration) -> CallResult<Vec<AssignmentChange>> {
        self.0.call(Self::poll_group)
    }

    fn rejoin(&mut self) -> CallResult<()> {
        self.0.call(|_, state| {
            state.must_join = !state.is_leaving;
            (state.is_rebalancing, state.awaits_assignment) = (false, false);
            // A new client has nothing of what the last changes of the old one were.
            state.held.clear();
            state.revoked.clear();
        });
        Ok(())
    }

    /// The client learns of a new generation by its heartbeats, later than the broker.
    fn metadata(&self) -> Result<Membership, GroupMetadataError> {
        self.0.call(|cluster, state| {
            if cluster.rng.one_in(2) {
                state.is_lost = !cluster.broker.group.heartbeat(&mut state.membership);
            }
            if state.is_lost || state.must_join {
                return Err(GroupMetadataError::NotMember);
            }
            Ok(state.membership)
        })
    }

    /// Not a call: it asks no broker, and does not act.
    fn is_member(&self, member_id: &str) -> bool {
        let state = self.0.state();
        !state.is_lost && !state.must_join && state.membership.member_id() == member_id
    }

    fn release(&self, partitions: &[PartitionId]) -> CallResult<()> {
        self.0.call(|cluster, state| {
            for p in partitions.iter().copied().map(index) {
                cluster.broker.group.release(&state.membership, p);
                state.held.remove(&p);
                state.revoked.remove(&p);
            }
        });
        Ok(())
    }

    fn committed_offsets(&self) -> SimulatedOffsets {
        SimulatedOffsets(self.0.clone())
    }

    fn commit_offsets(&self, _commits: &[OffsetCommit]) -> CallResult<()> {
        unreachable!("only a trial commits without a transaction")
    }

    fn leave_gracefully(&self) -> CallResult<()> {
        self.0.call(|_, state| state.is_leaving = true);
        Ok(())
    }

    fn has_released_all(&self) -> bool {
        self.0.call(|_, state| state.held.is_empty())
    }
}

/// Reads committed offsets.
pub(in crate::simulation) struct SimulatedOffsets(SimulatedProcess);

impl CommittedOffsets for SimulatedOffsets {
    fn stable(
        &self,
        partition: PartitionId,
        _timeout: Duration,
    ) -> CallResult<Option<(Offset, String)>> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            let p = index(partition);
            let Some(stable) = cluster.broker.stable_offset(p) else {
                cluster.counts.add(FaultKind::OffsetUnstable);
                return Err(CallError::new("a transaction is open"));
            };
            let committed = stable.committed;
            let is_parked = committed.as_ref().is_some_and(|(_, text)| text.contains(" parked="));
            cluster.counts.add_many(FaultKind::ParkedTakenOver, u64::from(is_parked));
            Ok(committed)
        })
    }

    fn latest_metadata(&self, partition: PartitionId) -> CallResult<String> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            let committed = cluster.broker.group.committed[index(partition)].clone();
            Ok(committed.map_or_else(String::new, |(_, metadata)| metadata))
        })
    }

    /// A producer with the same id ends what the earlier owner left open. It may take some time, or
    /// fail.
    fn fence_owner(&self, metadata: &str) {
        self.0.call(|cluster, state| {
            let owner = Cursor::active_owner(metadata).and_then(node_of);
            let Some(owner) = owner.filter(|owner| *owner != state.id) else { return };
            if cluster.rng.one_in(3) {
                cluster.counts.add(FaultKind::PredecessorEnded);
                end_transactions(cluster, owner);
            }
        });
    }

    /// The same for those that were not members when it has asked before. It may be wrong: one can
    /// have joined since.
    fn fence_absent_members(&self) {
        self.0.call(|cluster, state| {
            for node in std::mem::take(&mut state.absent) {
                cluster.counts.add(FaultKind::AbsentEnded);
                end_transactions(cluster, node);
            }
            let members: Vec<_> = cluster.broker.group.members().map(|(node, ..)| node).collect();
            if members.contains(&state.id) {
                let absent = (0..NODES).filter(|node| !members.contains(node));
                state.absent = absent.filter(|_| cluster.rng.one_in(2)).collect();
            }
        });
    }
}

/// New producers with the ids of a node end its transactions.
fn end_transactions(cluster: &mut SimulatedCluster, node: NodeId) {
    for id in (0..PRODUCERS_MAX).flat_map(|number| producer_ids(node, number)) {
        let _fenced = cluster.broker.init(id);
    }
}

/// Asks about the group.
pub(in crate::simulation) struct SimulatedGroup(pub(in crate::simulation) SimulatedProcess);

impl GroupQueries for SimulatedGroup {
    fn committed(&self, partition: PartitionId) -> CallResult<Option<(Offset, String)>> {
        self.0.call(|cluster, state| state.cursor_read_at = cluster.broker.now);
        SimulatedOffsets(self.0.clone()).stable(partition, Duration::ZERO)
    }

    fn members(&self) -> CallResult<Vec<GroupMember>> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            let members = cluster.broker.group.members();
            let described = members.map(|(node, session, owned)| GroupMember {
                member_id: member_id(node, session),
                partitions: ids(owned),
            });
            Ok(described.collect())
        })
    }
}
