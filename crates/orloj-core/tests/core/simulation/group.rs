//! The consumer group: who is a member, which generation it is, who owns what.
//!
//! Invariant: a partition goes to its next owner when the last one has let go of it, or is
//! expelled. The coordinator refuses offsets of anyone but a member who knows the generation.

use std::collections::BTreeMap;

use orloj_core::model::Offset;

use super::dice::SimulationRng;

/// A process, by its place in the cluster.
pub(super) type NodeId = usize;

/// What a commit of offsets shows the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) node: NodeId,
    /// Which of its memberships: an expelled node that comes back is another member.
    pub(super) session: u64,
    pub(super) generation: u64,
}

/// What a member hears when it polls.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is no member any more.
    Expelled,
    /// These are its partitions now, and of those it holds these shall go.
    Owns { assigned: Vec<usize>, revoked: Vec<usize> },
}

/// The group coordinator.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) generation: u64,
    members: BTreeMap<NodeId, u64>,
    sessions: u64,
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
            owner: vec![None; partitions],
            target: vec![None; partitions],
            committed: vec![None; partitions],
        }
    }

    /// Joins, as a new member; an older membership of the same node ends.
    pub(super) fn join(&mut self, node: NodeId, dice: &mut SimulationRng) -> Membership {
        self.expel(node, dice);
        self.sessions += 1;
        self.members.insert(node, self.sessions);
        self.rebalance(dice);
        Membership { node, session: self.sessions, generation: self.generation }
    }

    /// A member is gone: left, or silent for too long. Says whether it was one.
    pub(super) fn expel(&mut self, node: NodeId, dice: &mut SimulationRng) -> bool {
        let was = self.members.remove(&node).is_some();
        if was {
            for owner in self.owner.iter_mut().filter(|owner| **owner == Some(node)) {
                *owner = None;
            }
            self.rebalance(dice);
        }
        was
    }

    /// A new generation, in which partitions may be meant for others.
    pub(super) fn rebalance(&mut self, dice: &mut SimulationRng) {
        self.generation += 1;
        let members: Vec<NodeId> = self.members.keys().copied().collect();
        for (owner, target) in self.owner.iter_mut().zip(&mut self.target) {
            let stays = target.is_some_and(|node| members.contains(&node)) && !dice.one_in(3);
            if !stays {
                *target = (!members.is_empty()).then(|| dice.pick(&members));
            }
            *owner = owner.or(*target);
        }
    }

    /// What `member`, who holds `held`, is told.
    pub(super) fn poll(&mut self, member: &mut Membership, held: &[usize]) -> News {
        if !self.knows(member) {
            return News::Expelled;
        }
        member.generation = self.generation;
        let node = Some(member.node);
        let all = 0..self.owner.len();
        // What it was given and has never heard of, it need not let go of.
        for p in all.clone().filter(|p| !held.contains(p)) {
            if self.owner[p] == node {
                self.owner[p] = self.target[p];
            }
        }
        let owns = |p: &usize| self.owner[*p] == node && self.target[*p] == node;
        let assigned = all.filter(|p| owns(p) && !held.contains(p)).collect();
        let revoked = held.iter().copied().filter(|p| self.target[*p] != node).collect();
        News::Owns { assigned, revoked }
    }

    /// The heartbeat's answer: a member knows the generation a moment after the coordinator, one
    /// that was expelled knows that.
    pub(super) fn hear(&self, member: &mut Membership) -> bool {
        if self.knows(member) {
            member.generation = self.generation;
        }
        self.knows(member)
    }

    /// A member has let go of a partition: it joins again, so there is a new generation.
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

    pub(super) fn is_deserted(&self) -> bool {
        self.members.is_empty()
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
        let mut dice = SimulationRng::new(3);
        let mut group = Group::new(8);
        let mut first = group.join(0, &mut dice);
        let News::Owns { assigned, .. } = group.poll(&mut first, &[]) else { panic!("a member") };
        assert_eq!(assigned.len(), 8);
        let mut second = group.join(1, &mut dice);
        assert!(!group.accepts(&first) && group.accepts(&second));
        assert_eq!(
            group.poll(&mut second, &[]),
            News::Owns { assigned: vec![], revoked: vec![] },
            "nobody has let go of anything"
        );
        let revoked = loop {
            match group.poll(&mut first, &assigned) {
                News::Owns { revoked, .. } if revoked.is_empty() => group.rebalance(&mut dice),
                News::Owns { revoked, .. } => break revoked,
                News::Expelled => panic!("a member"),
            }
        };
        assert!(group.accepts(&first));
        group.release(&first, revoked[0]);
        let News::Owns { assigned, .. } = group.poll(&mut second, &[]) else { panic!("a member") };
        assert_eq!(assigned, revoked[..1]);
        assert!(group.expel(0, &mut dice));
        assert!(!group.hear(&mut first) && !group.accepts(&first));
        assert_eq!(group.poll(&mut first, &[]), News::Expelled);
    }
}
