//! A thousand triggers that wait for each other over twelve partitions, while callbacks fail and
//! owners change: each fires or ends as what it waits for says, and once.
//!
//! Law: what must become of each is computed here from the graph and from which callbacks fail,
//! before anything is registered.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::engine::step::Emit;
use orloj_core::model::course::{After, OnFailure};
use orloj_core::model::definition::{Definition, HttpTarget, Target};
use orloj_core::model::input::{
    Count, OnConflict, PRIORITY_DEFAULT, Registration, Request, TriggerRecord,
};
use orloj_core::model::outcome::Verdict;
use orloj_core::model::partitioner::Partitioner;
use orloj_core::model::signal::{Settled, Signal};
use orloj_core::model::{Millis, Timestamp};

use super::world::{Domain, rules};
use crate::simulation::Dice;

const NODES: usize = 1_000;
const PARTITIONS: i32 = 12;
const BEGIN: Timestamp = 1_760_000_000_000;
/// Nobody waits longer, in ms.
const TIMEOUT: Millis = 24 * 3_600_000;
/// Far longer than the graph takes.
const END: Timestamp = BEGIN + 4 * 3_600_000;

/// A trigger of the graph.
struct Node {
    after: Vec<usize>,
    on_failure: OnFailure,
    /// How its callback would end.
    delivered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    /// Its callback failed for good.
    GivenUp,
    /// It ended unfired; those who wait for it learn that it failed.
    Failed,
    /// It ended unfired; those who wait for it go on.
    Skipped,
}

#[test]
fn a_graph_of_a_thousand_settles_as_it_must_each_node_once() {
    for seed in 1..=5 {
        settle(seed);
    }
}

fn settle(seed: u64) {
    let mut dice = Dice::new(seed);
    let nodes = graph(&mut dice);
    let expected = fates(&nodes);
    let kinds: BTreeSet<_> = expected.iter().map(|fate| format!("{fate:?}")).collect();
    assert_eq!(kinds.len(), 4, "the graph shows too little: {kinds:?}");
    let mut world = World::new(dice);
    // A child may be registered before its parents: they are of different partitions.
    let mut order: Vec<_> = (0..NODES).collect();
    for place in (1..NODES).rev() {
        let other = world.dice.place(place + 1);
        order.swap(place, other);
    }
    for node in order {
        world.register(node, &nodes[node]);
    }
    world.live(&nodes);
    for (node, fate) in expected.iter().enumerate() {
        let fires = u32::from(matches!(fate, Fate::Delivered | Fate::GivenUp));
        assert_eq!(world.fired.get(&node).copied().unwrap_or(0), fires, "seed {seed}: {node}");
        let unmet = world.unmet.get(&node).copied();
        let ended = match fate {
            Fate::Failed => Some(OnFailure::Fail),
            Fate::Skipped => Some(OnFailure::Skip),
            _ => unmet.filter(|then| *then == OnFailure::Fire),
        };
        assert_eq!(unmet, ended, "seed {seed}: {node}");
    }
    let held: usize = world.domains.iter().map(Domain::held).sum();
    assert_eq!(held, 0, "seed {seed}: all are settled");
}

/// Each node waits for up to three of the fifty before it.
fn graph(dice: &mut Dice) -> Vec<Node> {
    let on_failure = [OnFailure::Fire, OnFailure::Skip, OnFailure::Fail];
    let node = |n: usize| {
        let parents = if n < 10 { 0 } else { dice.place(4) };
        let parent = |_| n - 1 - dice.place(n.min(50));
        let after: BTreeSet<_> = (0..parents).map(parent).collect();
        let after = after.into_iter().collect();
        Node { after, on_failure: dice.pick(&on_failure), delivered: !dice.one_in(12) }
    };
    (0..NODES).map(node).collect()
}

fn fates(nodes: &[Node]) -> Vec<Fate> {
    let mut fates: Vec<Fate> = Vec::new();
    for node in nodes {
        let failed = |parent: &usize| matches!(fates[*parent], Fate::Failed | Fate::GivenUp);
        let fate = match node.on_failure {
            OnFailure::Fail if node.after.iter().any(failed) => Fate::Failed,
            OnFailure::Skip if node.after.iter().any(failed) => Fate::Skipped,
            _ if node.delivered => Fate::Delivered,
            _ => Fate::GivenUp,
        };
        fates.push(fate);
    }
    fates
}

struct World {
    now: Timestamp,
    dice: Dice,
    domains: Vec<Domain>,
    fired: BTreeMap<usize, u32>,
    unmet: BTreeMap<usize, OnFailure>,
    /// What workers and owners have said that has not arrived, and when it will.
    on_its_way: BTreeMap<(Timestamp, u64), (usize, Signal)>,
    said: u64,
}

impl World {
    fn new(dice: Dice) -> Self {
        let domains = (0..PARTITIONS).map(|id| Domain::new(id, rules(PARTITIONS, 1_000)));
        Self {
            now: BEGIN,
            dice,
            domains: domains.collect(),
            fired: BTreeMap::new(),
            unmet: BTreeMap::new(),
            on_its_way: BTreeMap::new(),
            said: 0,
        }
    }

    fn register(&mut self, node: usize, told: &Node) {
        let id = name(node);
        let target = Target::from(HttpTarget::post("http://example.com/"));
        let (payload, headers, retry, caller) = (None, Vec::new(), None, None);
        let definition = Definition { target, payload, headers, retry, caller };
        let ids = told.after.iter().map(|parent| name(*parent).as_str().into()).collect();
        let after = After { ids, on_failure: told.on_failure, timeout: TIMEOUT };
        let registration = Registration {
            id: id.as_str().into(),
            fire_at: self.now + self.dice.roll(600_000),
            schedule: None,
            expire_after: None,
            after: (!told.after.is_empty()).then(|| Box::new(after)),
            // One that has settled before its children are known must be remembered.
            retain: Some(3_600_000),
            count: Count::Reset,
            priority: PRIORITY_DEFAULT,
            on_conflict: OnConflict::Replace,
            definition,
        };
        let (timestamp, request) = (self.now, Request::Register(registration));
        let place = home(&id);
        self.domains[place].write(TriggerRecord { offset: 0, timestamp, ack: false, request });
    }

    /// Two owners are replaced on the way, one of them without its disk.
    fn live(&mut self, nodes: &[Node]) {
        let mut takeovers = [BEGIN + 120_000, BEGIN + 400_000].into_iter().enumerate().peekable();
        while self.now < END {
            if let Some((number, _)) = takeovers.next_if(|(_, at)| *at <= self.now) {
                self.domains.iter_mut().for_each(|domain| domain.abandon(number == 0));
            }
            self.decide(nodes);
            let arrival = self.on_its_way.keys().next().map(|(at, _)| *at);
            let due = self.domains.iter().filter_map(Domain::next).min();
            let next = arrival.into_iter().chain(due).min().unwrap_or(END);
            self.now = next.clamp(self.now + 1, END);
            while let Some(entry) = self.on_its_way.first_entry()
                && entry.key().0 <= self.now
            {
                let (place, signal) = entry.remove();
                self.domains[place].tell(signal);
            }
        }
    }

    fn decide(&mut self, nodes: &[Node]) {
        for place in 0..self.domains.len() {
            let mut heard = Vec::new();
            self.domains[place].decide(self.now, &mut |emit| heard.push(emit.clone()));
            for emit in heard {
                self.hear(emit, nodes);
            }
        }
    }

    fn hear(&mut self, emit: Emit, nodes: &[Node]) {
        match emit {
            Emit::ToWorker(fire) => {
                let node = number(fire.id.trigger.as_str());
                *self.fired.entry(node).or_default() += 1;
                assert!(fire.settles, "somebody may wait for it");
                let settled = Settled { id: fire.id, ok: nodes[node].delivered };
                let took = self.dice.roll(5_000);
                self.send(took, home(&name(node)), Signal::Settled(settled));
            }
            Emit::Signal { partition, signal } => {
                let took = self.dice.pick(&[0, 0, 1, 50]);
                self.send(took, usize::try_from(partition).unwrap(), *signal);
            }
            Emit::Outcome(outcome) => {
                if let Verdict::Unmet { then, .. } = outcome.verdict {
                    let node = number(outcome.trigger.as_str());
                    assert_eq!(self.unmet.insert(node, then), None, "{node} ends twice");
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, took: Millis, place: usize, signal: Signal) {
        self.said += 1;
        let _none = self.on_its_way.insert((self.now + took, self.said), (place, signal));
    }
}

fn name(node: usize) -> String {
    format!("node-{node}")
}

fn number(name: &str) -> usize {
    name.strip_prefix("node-").unwrap().parse().unwrap()
}

fn home(id: &str) -> usize {
    let partition = Partitioner::Murmur2.partition(id.as_bytes(), PARTITIONS).unwrap();
    usize::try_from(partition).unwrap()
}
