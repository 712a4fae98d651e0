//! What operators do: stop all processes, move an offset, accept that a cursor is lost.
//!
//! Invariant: what has happened before a replay is checked before it.

use std::collections::BTreeSet;

use orloj_core::engine::cursor::Cursor;
use orloj_core::model::Offset;
use orloj_core::model::ledger::LedgerValue;

use super::cluster::{NODES, PARTITIONS, SimulatedCluster};
use super::fault_kinds::FaultKind;
use super::replay::RequestedReplay;
use super::run::{Process, SimulationRun};

impl SimulationRun {
    /// Every process is stopped, gracefully or not; then an operator moves an offset, or the broker
    /// loses one.
    pub(super) fn outage(&mut self) {
        self.stop_all();
        let p = self.cluster.rng.place(PARTITIONS);
        let Some(cursor) = self.cursor(p) else { return };
        let clean = self.mirror_is(p, &cursor);
        let SimulatedCluster { broker, rng, counts, .. } = &mut *self.cluster;
        match rng.below(3) {
            0 => {
                let low = broker.triggers[p].low.min(cursor.next_offset);
                let to = low + rng.below(cursor.next_offset - low + 1);
                counts.add(FaultKind::OffsetMoved);
                self.move_offset(p, to, clean);
            }
            1 if rng.one_in(3) => {
                broker.group.committed.fill(None);
                counts.add(FaultKind::AllOffsetsLost);
            }
            1 => {
                broker.group.committed[p] = None;
                counts.add(if clean {
                    FaultKind::OffsetLostMirrorClean
                } else {
                    FaultKind::OffsetLostMirrorUnclean
                });
            }
            _ => {}
        }
    }

    /// Moves the offset of a group without members. If the mirror is not what was committed last,
    /// more than what lies above is repeated.
    fn move_offset(&mut self, p: usize, to: Offset, exact: bool) {
        self.check_what_has_happened();
        self.cluster.broker.group.committed[p] = Some((to, String::new()));
        let from = if exact { to } else { 0 };
        let since = self.cluster.broker.sent;
        let until = self.cluster.broker.triggers[p].high();
        let new = RequestedReplay { from, until, since };
        let asked = self.replayed[p].get_or_insert(new);
        (asked.from, asked.until) = (asked.from.min(from), until);
    }

    fn check_what_has_happened(&mut self) {
        if self.found_before_replay.is_none() {
            self.found_before_replay = (self.check_before_replay)(self);
        }
    }

    /// Whether an operator has requested that a record of `triggers` be read again.
    pub(super) fn is_replayed(&self, p: usize, offset: Offset) -> bool {
        self.replayed[p].is_some_and(|asked| asked.repeats(offset))
    }

    /// Gracefully, or all killed at once.
    pub(super) fn stop_all(&mut self) {
        if self.cluster.rng.one_in(3) {
            (0..NODES).for_each(|id| self.crash(id));
        } else {
            for id in 0..NODES {
                self.with_node(id, |node, cluster| node.leave(cluster));
            }
            for _ in 0..200 {
                for id in 0..NODES {
                    if let Process::Running { node, paused_until } = &mut self.processes[id] {
                        *paused_until = None;
                        let turn = node.run_once(&mut self.cluster);
                        self.end_turn(id, turn);
                    }
                }
            }
            (0..NODES).for_each(|id| self.crash(id));
        }
        let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
        (0..NODES).for_each(|id| {
            broker.group.expel(id, rng);
        });
        assert!(broker.group.has_no_members(), "all are stopped");
        broker.now += broker.transaction_timeout;
        self.cluster.receive_late(true);
        self.expire();
        while self.cluster.broker.is_busy() {
            self.cluster.broker.now += 1;
            self.cluster.advance();
            self.expire();
        }
    }

    /// An operator accepts the offset that an error names, for partitions whose cursor is lost, and
    /// the end at which a log was cut.
    pub(super) fn accept_lost_cursors(&mut self) {
        let refusal = self.processes.iter().find_map(|process| match process {
            Process::Running { node, .. } => node.unexpected_refusal(|p| self.cut[p].end.is_some()),
            Process::Down { .. } => None,
        });
        self.unexpected_refusal = self.unexpected_refusal.take().or(refusal);
        let lost: BTreeSet<(usize, Offset)> = self
            .processes
            .iter()
            .flat_map(|process| match process {
                Process::Running { node, .. } => node.lost_cursors(),
                Process::Down { .. } => Vec::new(),
            })
            .collect();
        let cut: Vec<usize> = (0..PARTITIONS).filter(|p| self.is_refused_as_cut(*p)).collect();
        if lost.is_empty() && cut.is_empty() {
            return;
        }
        self.stop_all();
        for (p, offset) in lost {
            self.move_offset(p, offset, false);
        }
        for p in cut {
            let (Some(cursor), Some(end)) = (self.cursor(p), self.cut[p].end.take()) else {
                continue;
            };
            let clean = self.mirror_is(p, &cursor);
            self.cluster.counts.add(FaultKind::CutAccepted);
            self.move_offset(p, end, clean);
        }
    }

    /// Whether a process does not take over a partition because its log was cut, and it was, below
    /// the committed offset. If not, the end that was answered is old, and nothing is accepted.
    fn is_refused_as_cut(&self, p: usize) -> bool {
        let is_below = |end| self.cursor(p).is_some_and(|cursor| end < cursor.next_offset);
        self.cut[p].end.is_some_and(is_below)
            && self.processes.iter().any(|process| match process {
                Process::Running { node, .. } => node.is_refused_as_cut(p),
                Process::Down { .. } => false,
            })
    }

    /// Whether the ledger's mirror is exactly this cursor, written at a shutdown.
    fn mirror_is(&self, p: usize, cursor: &Cursor) -> bool {
        let broker = &self.cluster.broker;
        let ledger = broker.ledger[p].committed(&broker.transaction_states);
        let mirrors = ledger.filter_map(|(_, _, record)| match &record.value {
            Some(LedgerValue::Cursor { metadata, offset, clean }) => {
                Some((Cursor::from_metadata(*offset, metadata).unwrap().0, *clean))
            }
            _ => None,
        });
        mirrors.last() == Some((*cursor, true))
    }
}
