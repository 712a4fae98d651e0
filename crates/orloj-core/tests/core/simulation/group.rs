//! The consumer group: its members, its generation, and the owner of each partition.
//!
//! Invariant: a partition goes to its next owner when the last one has released it, or is expelled.
//! The coordinator refuses offsets from any process but a member of the current generation.

use std::collections::BTreeMap;

use orloj_core::environment::transaction::PRODUCERS_MAX;
use orloj_core::model::{Millis, Offset};

use super::rng::SimulationRng;

/// A process, by its place in the cluster.
pub(super) type NodeId = usize;

/// A process without a heartbeat for so long is no longer a member, in ms.
pub(super) const SESSION: Millis = 40;

/// What transactional ids begin with.
const ID_PREFIX: &str = "node-";

/// The transactional id of a node.
pub(super) fn transactional_id(node: NodeId) -> String {
    format!("{ID_PREFIX}{node}")
}

/// The producers with a number of a node: see `SimulatedProducer`.
pub(super) fn producer_ids(node: NodeId, number: usize) -> [usize; 2] {
    let first = 2 * (node * PRODUCERS_MAX + number);
    [first, first + 1]
}

/// The node that uses a transactional id.
pub(super) fn node_of(transactional_id: &str) -> Option<NodeId> {
    transactional_id.strip_prefix(ID_PREFIX)?.parse().ok()
}

/// What a commit of offsets sends to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) node: NodeId,
    /// Which of its memberships: an expelled node that joins again is another member.
    pub(super) session: u64,
    pub(super) generation: u64,
}

/// What a poll returns to a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GroupPoll {
    /// It is no longer a member.
    Expelled,
    /// Its newly assigned partitions, and those that it must release.
    Owns { assigned: Vec<usize>, revoked: Vec<usize> },
}

/// The group coordinator.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) generation: u64,
    members: BTreeMap<NodeId, u64>,
    sessions: u64,
    /// How often a static member has returned.
    pub(super) static_returns: u64,
    owner: Vec<Option<NodeId>>,
    target: Vec<Option<NodeId>>,
    /// Offset and metadata of each partition.
    pub(super) committed: Vec<Option<(Offset, String)>>,
}

impl Group {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            generation: 0,
            members: BTreeMap::new(),
            sessions: 0,
            static_returns: 0,
            owner: vec![None; partitions],
            target: vec![None; partitions],
            committed: vec![None; partitions],
        }
    }

    /// Joins, as a new member; an older membership of the same node ends.
    pub(super) fn join(&mut self, node: NodeId, rng: &mut SimulationRng) -> Membership {
        self.sessions += 1;
        if self.members.contains_key(&node) && rng.one_in(2) {
            // A static member returns with the same id: it keeps its partitions.
            self.static_returns += 1;
            self.members.insert(node, self.sessions);
            return Membership { node, session: self.sessions, generation: self.generation };
        }
        self.expel(node, rng);
        self.members.insert(node, self.sessions);
        self.rebalance(rng);
        Membership { node, session: self.sessions, generation: self.generation }
    }

    /// Removes a member that left or sent no heartbeat for too long. Returns whether it was one.
    pub(super) fn expel(&mut self, node: NodeId, rng: &mut SimulationRng) -> bool {
        let was = self.members.remove(&node).is_some();
        if was {
            for owner in self.owner.iter_mut().filter(|owner| **owner == Some(node)) {
                *owner = None;
            }
            self.rebalance(rng);
        }
        was
    }

    /// A new generation, in which partitions may be assigned to other members.
    pub(super) fn rebalance(&mut self, rng: &mut SimulationRng) {
        self.generation += 1;
        let members: Vec<NodeId> = self.members.keys().copied().collect();
        for (owner, target) in self.owner.iter_mut().zip(&mut self.target) {
            let stays = target.is_some_and(|node| members.contains(&node)) && !rng.one_in(3);
            if !stays {
                *target = (!members.is_empty()).then(|| rng.pick(&members));
            }
            *owner = owner.or(*target);
        }
    }

    /// A partition is assigned to no member.
    pub(super) fn take_away(&mut self, p: usize) {
        self.generation += 1;
        self.target[p] = None;
    }

    /// A poll of `member`, which owns `held`.
    pub(super) fn poll(&mut self, member: &mut Membership, held: &[usize]) -> GroupPoll {
        if !self.knows(member) {
            return GroupPoll::Expelled;
        }
        member.generation = self.generation;
        let node = Some(member.node);
        let all = 0..self.owner.len();
        // It need not release what it was assigned and never received.
        for p in all.clone().filter(|p| !held.contains(p)) {
            if self.owner[p] == node {
                self.owner[p] = self.target[p];
            }
        }
        let owns = |p: &usize| self.owner[*p] == node && self.target[*p] == node;
        let assigned = all.filter(|p| owns(p) && !held.contains(p)).collect();
        // A member that was expelled may still hold what another one owns now.
        let revoked = held.iter().copied().filter(|p| !owns(p)).collect();
        GroupPoll::Owns { assigned, revoked }
    }

    /// The response to a heartbeat: a member learns the new generation, or that it was expelled.
    pub(super) fn heartbeat(&self, member: &mut Membership) -> bool {
        if self.knows(member) {
            member.generation = self.generation;
        }
        self.knows(member)
    }

    /// A member has released a partition: it joins again, so there is a new generation.
    pub(super) fn release(&mut self, member: &Membership, partition: usize) {
        if self.knows(member) && self.owner[partition] == Some(member.node) {
            self.owner[partition] = self.target[partition];
            self.generation += 1;
        }
    }

    /// Whether the coordinator accepts offsets under this membership.
    pub(super) fn accepts(&self, member: &Membership) -> bool {
        self.knows(member) && member.generation == self.generation
    }

    pub(super) fn has_no_members(&self) -> bool {
        self.members.is_empty()
    }

    /// The members, their sessions and what they own.
    pub(super) fn members(&self) -> impl Iterator<Item = (NodeId, u64, Vec<usize>)> {
        self.members.iter().map(|(node, session)| {
            let owned = (0..self.owner.len()).filter(|p| self.owner[*p] == Some(*node));
            (*node, *session, owned.collect())
        })
    }

    fn knows(&self, member: &Membership) -> bool {
        self.members.get(&member.node) == Some(&member.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_moves_when_it_is_released_and_an_older_generation_is_refused() {
        let mut rng = SimulationRng::new(3);
        let mut group = Group::new(8);
        let mut first = group.join(0, &mut rng);
        let GroupPoll::Owns { assigned, .. } = group.poll(&mut first, &[]) else {
            panic!("a member")
        };
        assert_eq!(assigned.len(), 8);
        let mut second = group.join(1, &mut rng);
        assert!(!group.accepts(&first) && group.accepts(&second));
        assert_eq!(
            group.poll(&mut second, &[]),
            GroupPoll::Owns { assigned: vec![], revoked: vec![] },
            "no partition was released"
        );
        let revoked = loop {
            match group.poll(&mut first, &assigned) {
                GroupPoll::Owns { revoked, .. } if revoked.is_empty() => group.rebalance(&mut rng),
                GroupPoll::Owns { revoked, .. } => break revoked,
                GroupPoll::Expelled => panic!("a member"),
            }
        };
        assert!(group.accepts(&first));
        group.release(&first, revoked[0]);
        let GroupPoll::Owns { assigned, .. } = group.poll(&mut second, &[]) else {
            panic!("a member")
        };
        assert_eq!(assigned, revoked[..1]);
        assert!(group.expel(0, &mut rng));
        assert!(!group.heartbeat(&mut first) && !group.accepts(&first));
        assert_eq!(group.poll(&mut first, &[]), GroupPoll::Expelled);
    }
}
