//! Which partitions a process holds, and what the end of a transaction means for them: the rules of
//! assignment, revocation, loss and unknown outcomes, as a state machine without I/O.
//!
//! Law: the group is heard only while no transaction is open, so that no partition leaves in the
//! middle of one. A transaction whose outcome is unknown takes everything decided since the last
//! committed one with it: the broker decides what became of it, and every partition is taken over
//! again.
//!
//! ```text
//!   free ──launched──► flying ──committed───────────► free: settle (and let go, after last words)
//!    ▲                   │ ▲ └─stale generation─────► send again, a few times
//!    │                   └─┘
//!    └──reopened── broken ◄──anything else: reopen, then take everything over again
//! ```

use std::collections::BTreeSet;

use crate::model::{Millis, PartitionId, Timestamp};

/// How often a transaction is sent again whose generation was refused: our client hears of a new
/// generation a moment after the broker has it.
const ATTEMPTS_MAX: u32 = 20;

/// A change of what is ours, in the order the group said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These are ours now.
    Assigned(Vec<PartitionId>),
    /// These shall go. They stay ours until we let go of them.
    Revoked(Vec<PartitionId>),
    /// These were taken away and may be someone else's already.
    Lost(Vec<PartitionId>),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of it is true.
    Committed,
    /// The group had moved on, and the broker refused the offsets: nothing of it is true.
    StaleGeneration,
    /// A timeout, a refusal, a newer producer of our name: nobody knows, or it failed for good.
    Unknown,
}

/// What the shell must do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Take the partition over, beginning with what its store holds.
    TakeOver(PartitionId),
    /// Commit what is decided about these, with the cursor marked clean. It counts as launched.
    LastWords(Vec<PartitionId>),
    /// Drop these with whatever is decided and not committed, and tell the group.
    LetGo(Vec<PartitionId>),
    /// What the transaction carried is true: spill it, answer for it.
    Settle,
    /// Abort, and send the same steps under the generation of now. Everything in them is still
    /// ours, because a partition leaves only when the group is heard.
    SendAgain,
    /// Drop the producer and open a new one of the same name, which makes the broker decide what
    /// the old one left open.
    Reopen,
}

/// What one process holds.
#[derive(Debug)]
pub struct Tenure {
    held: BTreeSet<PartitionId>,
    grace: Millis,
    parting: Option<Parting>,
    state: State,
}

/// Partitions on their way to someone else.
#[derive(Debug)]
struct Parting {
    partitions: Vec<PartitionId>,
    at: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// No transaction is open.
    Free,
    /// One is. `leaving`: the partitions whose last words it carries.
    Flying { attempts: u32, leaving: Vec<PartitionId> },
    /// The producer is being replaced.
    Broken,
}

impl Tenure {
    /// A process that holds nothing yet. Revoked partitions go on firing for `grace` ms before they
    /// are let go: nobody gets them before we have joined once more, and the client joins once in
    /// that time at most. 0 if the group stops everybody anyway.
    #[must_use]
    pub fn new(grace: Millis) -> Self {
        Self { held: BTreeSet::new(), grace, parting: None, state: State::Free }
    }

    /// Whether the group may be heard and a transaction be launched.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// What we hold, those on their way out included.
    #[must_use]
    pub fn held(&self) -> &BTreeSet<PartitionId> {
        &self.held
    }

    /// From now on revoked partitions go at once: who leaves has nothing to wait for.
    pub fn leave(&mut self) {
        self.grace = 0;
    }

    /// The group has spoken, at `now` (ms of any clock that never runs back).
    pub fn on_change(&mut self, change: Change, now: Timestamp) -> Vec<Order> {
        assert!(self.is_free(), "the group is heard only while no transaction is open");
        match change {
            Change::Assigned(partitions) => {
                self.held.extend(&partitions);
                partitions.into_iter().map(Order::TakeOver).collect()
            }
            Change::Revoked(partitions) => {
                let at = now + self.grace;
                let parting = self.parting.get_or_insert(Parting { partitions: Vec::new(), at });
                parting.partitions.extend(partitions);
                Vec::new()
            }
            // Whoever has them may have fired already: no last words, at once.
            Change::Lost(partitions) => {
                self.parting = None;
                self.let_go(partitions)
            }
        }
    }

    /// Time has passed: those on their way out may have to say their last words.
    pub fn on_time(&mut self, now: Timestamp) -> Vec<Order> {
        if !self.is_free() {
            return Vec::new();
        }
        let over = self.parting.take_if(|parting| now >= parting.at);
        over.map(|Parting { partitions, .. }| {
            self.state = State::Flying { attempts: 0, leaving: partitions.clone() };
            Order::LastWords(partitions)
        })
        .into_iter()
        .collect()
    }

    /// A transaction is under way.
    pub fn on_launch(&mut self) {
        assert!(self.is_free(), "one transaction at a time");
        self.state = State::Flying { attempts: 0, leaving: Vec::new() };
    }

    /// The transaction under way has ended; one that turned out to be empty was committed.
    pub fn on_ending(&mut self, ending: Ending) -> Vec<Order> {
        let State::Flying { attempts, leaving } = &mut self.state else {
            unreachable!("no transaction was under way");
        };
        match ending {
            Ending::Committed => {
                let leaving = std::mem::take(leaving);
                self.state = State::Free;
                let mut orders = vec![Order::Settle];
                orders.extend(self.let_go(leaving));
                orders
            }
            Ending::StaleGeneration if *attempts < ATTEMPTS_MAX => {
                *attempts += 1;
                vec![Order::SendAgain]
            }
            // Those that wanted to go need not be taken over to go.
            Ending::StaleGeneration | Ending::Unknown => {
                let leaving = std::mem::take(leaving);
                self.state = State::Broken;
                let mut orders = self.let_go(leaving);
                orders.push(Order::Reopen);
                orders
            }
        }
    }

    /// A new producer stands, and the broker has decided what the old one left open.
    pub fn on_reopened(&mut self) -> Vec<Order> {
        assert_eq!(self.state, State::Broken, "nobody asked for a new producer");
        self.state = State::Free;
        self.held.iter().copied().map(Order::TakeOver).collect()
    }

    fn let_go(&mut self, partitions: Vec<PartitionId>) -> Vec<Order> {
        self.held.retain(|held| !partitions.contains(held));
        if partitions.is_empty() { Vec::new() } else { vec![Order::LetGo(partitions)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(partitions: &[PartitionId]) -> Tenure {
        let mut tenure = Tenure::new(100);
        let orders = tenure.on_change(Change::Assigned(partitions.to_vec()), 0);
        let taken: Vec<_> = partitions.iter().copied().map(Order::TakeOver).collect();
        assert_eq!(orders, taken);
        tenure
    }

    #[test]
    fn what_is_revoked_fires_on_for_the_grace_and_goes_with_last_words() {
        let mut tenure = holding(&[1, 2]);
        assert_eq!(tenure.on_change(Change::Revoked(vec![1]), 1_000), []);
        assert_eq!(tenure.on_time(1_099), []);
        tenure.on_launch();
        assert_eq!(tenure.on_time(1_100), [], "not in the middle of a transaction");
        assert_eq!(tenure.on_ending(Ending::Committed), [Order::Settle]);
        assert_eq!(tenure.on_time(1_100), [Order::LastWords(vec![1])]);
        assert!(!tenure.is_free());
        let ended = tenure.on_ending(Ending::Committed);
        assert_eq!(ended, [Order::Settle, Order::LetGo(vec![1])]);
        assert_eq!(tenure.held(), &BTreeSet::from([2]));
    }

    #[test]
    fn who_leaves_lets_go_at_once() {
        let mut tenure = holding(&[1]);
        tenure.leave();
        assert_eq!(tenure.on_change(Change::Revoked(vec![1]), 1_000), []);
        assert_eq!(tenure.on_time(1_000), [Order::LastWords(vec![1])]);
    }

    #[test]
    fn what_is_lost_goes_without_a_word() {
        let mut tenure = holding(&[1, 2]);
        assert_eq!(tenure.on_change(Change::Revoked(vec![1]), 1_000), []);
        let lost = tenure.on_change(Change::Lost(vec![1, 2]), 1_001);
        assert_eq!(lost, [Order::LetGo(vec![1, 2])]);
        assert_eq!(tenure.on_time(9_999), [], "it is gone already");
    }

    #[test]
    fn a_refused_generation_is_sent_again_but_not_for_ever() {
        let mut tenure = holding(&[1]);
        tenure.on_launch();
        for _ in 0..ATTEMPTS_MAX {
            assert_eq!(tenure.on_ending(Ending::StaleGeneration), [Order::SendAgain]);
        }
        assert_eq!(tenure.on_ending(Ending::StaleGeneration), [Order::Reopen]);
    }

    #[test]
    fn an_unknown_outcome_takes_everything_over_again() {
        let mut tenure = holding(&[1, 2]);
        tenure.on_launch();
        assert_eq!(tenure.on_ending(Ending::Unknown), [Order::Reopen]);
        assert!(!tenure.is_free(), "nothing is launched, nobody heard meanwhile");
        assert_eq!(tenure.on_reopened(), [Order::TakeOver(1), Order::TakeOver(2)]);
    }

    #[test]
    fn last_words_that_fail_are_not_said_again() {
        let mut tenure = holding(&[1, 2]);
        assert_eq!(tenure.on_change(Change::Revoked(vec![2]), 0), []);
        assert_eq!(tenure.on_time(100), [Order::LastWords(vec![2])]);
        assert_eq!(tenure.on_ending(Ending::Unknown), [Order::LetGo(vec![2]), Order::Reopen]);
        assert_eq!(tenure.on_reopened(), [Order::TakeOver(1)]);
    }
}
