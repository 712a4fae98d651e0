//! Triggers that wait for others, judged by what owners told each other.
//!
//! Invariant: one fires when all it waits for came off, or as its `onFailure` says; what it is told
//! is true, and whoever is waited for tells it.

use std::collections::BTreeMap;

use orloj_core::model::lifecycle::OnFailure;
use orloj_core::model::outcome::OutcomeKind;
use orloj_core::model::signal::{DependencySettled, Signal, Watch};
use orloj_core::model::text::Text;
use orloj_core::model::{Offset, Timestamp};

use super::course::SimulatedIdle;
use super::story::{Said, SimulatedEvent, Stories, TriggerHistory, What};
use crate::audit::Violation;
use crate::audit::report::Finding;
use crate::simulation::people::{Wanted, Wish};
use crate::simulation::run::SimulationRun;
use crate::simulation::site::{PARTITIONS, home};

/// An owner's clock may be so far ahead of the broker's, in ms.
const CLOCKS_APART: Timestamp = 200;

/// Who waits: its id and generation. For whom: an id.
type Wait = (String, Offset, String);

/// What owners told each other.
#[derive(Default)]
struct Talk<'a> {
    /// Who asked to be told, with the offset in the partition of the one that is waited for.
    watches: Vec<(Offset, &'a Watch)>,
    /// Who was told first what, and when.
    told: BTreeMap<Wait, (Timestamp, bool)>,
    /// By partition: how far signals were decided, by when, by the owner's clock.
    decided: [Vec<(Offset, Timestamp)>; PARTITIONS],
}

impl Talk<'_> {
    /// When a signal to the owner of a trigger had been heard, at the latest.
    fn heard(&self, trigger: &Text, offset: Offset) -> Option<Timestamp> {
        let decided = &self.decided[home(trigger.bytes())];
        decided.iter().filter(|(until, _)| *until > offset).map(|(_, clock)| *clock).min()
    }
}

pub(super) fn judge(
    run: &SimulationRun,
    stories: &Stories<'_>,
    rest: Option<SimulatedIdle>,
    findings: &mut Vec<Finding>,
) {
    let talk = listen(run);
    let mut find = |violation, trigger: &str, generation, why: String| {
        let trigger = trigger.to_owned();
        findings.push(Finding { violation, trigger, generation, command_offset: generation, why });
    };
    for (trigger, story) in stories.iter().filter(|(_, story)| !story.repeated) {
        for (generation, told) in &story.told {
            let Wish::Register(wanted) = told.wish else { continue };
            // What an operator has repeated of the others may have been told twice.
            let repeated = |id: &String| stories.get(id).is_some_and(|story| story.repeated);
            if wanted.after.is_empty() || wanted.after.iter().any(repeated) {
                continue;
            }
            let until = told.at + wanted.timeout;
            if let Some(why) = broken(trigger, *generation, story, wanted, until, &talk) {
                find(Violation::NotStopped, trigger, *generation, why);
            }
        }
    }
    for ((waits, generation, of), (at, ok)) in &talk.told {
        let Some(story) = stories.get(of).filter(|story| !story.repeated) else { continue };
        if !story.ends(*ok, *at, run.site.open_ttl) {
            let why = format!("was told that {of} came to {ok} at {at}, which it had not");
            find(Violation::Unexpected, waits, *generation, why);
        }
    }
    for (offset, watch) in talk.watches.iter().filter(|_| rest.is_some()) {
        let Watch { trigger, watcher, until } = watch;
        let Some(story) = stories.get(trigger.as_str()).filter(|story| !story.repeated) else {
            continue;
        };
        let (waits, of) = (watcher.trigger.as_str(), trigger.as_str());
        let wait = (waits.to_owned(), watcher.generation, of.to_owned());
        let lapsed = run.site.broker.now.saturating_sub(run.site.open_ttl);
        let told = story.must_tell(*offset, *until);
        let told = told.or_else(|| story.must_pass_on(*offset, *until, lapsed));
        let told = told.or_else(|| story.must_recall(talk.heard(trigger, *offset)?, *until));
        if let Some(when) = told
            && !talk.told.contains_key(&wait)
        {
            let why = format!("{of} ended at {when}, and it was not told");
            find(Violation::Lost, waits, watcher.generation, why);
        }
    }
}

fn listen(run: &SimulationRun) -> Talk<'_> {
    let broker = &run.site.broker;
    let mut talk = Talk::default();
    for p in 0..PARTITIONS {
        let outputs = [&broker.fires[p], &broker.others[p]];
        let sent = outputs.into_iter().flat_map(|log| log.committed(&broker.fates));
        talk.decided[p].extend(sent.map(|(_, _, sent)| (sent.before.signals, sent.clock)));
        for (offset, at, signal) in broker.signals[p].committed(&broker.fates) {
            match signal {
                Signal::Watch(watch) => {
                    assert_eq!(home(watch.trigger.as_str().as_bytes()), p, "{watch:?}");
                    talk.watches.push((offset, watch));
                }
                Signal::DependencySettled(DependencySettled { watcher, dependency: of, ok }) => {
                    let waits = watcher.trigger.as_str().to_owned();
                    let wait = (waits, watcher.generation, of.as_str().to_owned());
                    talk.told.entry(wait).or_insert((at, *ok));
                }
                Signal::Retry(_) | Signal::CallbackEnded(_) => {}
            }
        }
    }
    talk
}

/// What is wrong with when a trigger that waits for others fired or gave up, if anything is.
fn broken(
    trigger: &str,
    generation: Offset,
    story: &TriggerHistory<'_>,
    wanted: &Wanted,
    until: Timestamp,
    talk: &Talk<'_>,
) -> Option<String> {
    let mut freed = false;
    for event in &story.events {
        let told = |of: &String| {
            let wait = (trigger.to_owned(), generation, of.clone());
            talk.told.get(&wait).filter(|(at, _)| *at <= event.appended).map(|(_, ok)| *ok)
        };
        let (all_ok, one_failed) = (
            wanted.after.iter().all(|of| told(of) == Some(true)),
            wanted.after.iter().any(|of| told(of) == Some(false)),
        );
        match &event.what {
            What::Fired(shot) if shot.id.generation == generation && !freed && !all_ok => {
                return Some(format!("fired before all of {:?} came off", wanted.after));
            }
            What::Said(outcome) => match &outcome.kind {
                OutcomeKind::Called { generation: of, .. } => freed |= *of == generation,
                OutcomeKind::Unmet { generation: of, reason, .. } if *of == generation => {
                    freed = wanted.on_failure == OnFailure::Fire;
                    if !one_failed && event.clock < until {
                        return Some(format!("given up before its time: {reason}"));
                    }
                }
                _ => {}
            },
            What::Fired(_) => {}
        }
    }
    None
}

impl TriggerHistory<'_> {
    /// Whether by `at` something had happened to the trigger that counts as having come off, or
    /// not.
    fn ends(&self, ok: bool, at: Timestamp, open_ttl: Timestamp) -> bool {
        let said = self.settled.iter().any(|said| said.settled.ok == ok && said.appended <= at);
        let did = |event: &SimulatedEvent<'_>| match &event.what {
            What::Fired(shot) if ok => !shot.settles,
            What::Fired(shot) => shot.http && shot.decided + open_ttl <= at + CLOCKS_APART,
            What::Said(outcome) => match &outcome.kind {
                OutcomeKind::Cancelled { .. } | OutcomeKind::Expired { .. } => !ok,
                OutcomeKind::Unmet { then, .. } => match then {
                    OnFailure::Fire => false,
                    OnFailure::Skip => ok,
                    OnFailure::Fail => !ok,
                },
                _ => false,
            },
        };
        said || self.events.iter().any(|event| event.appended <= at && did(event))
    }

    /// When the trigger first ended after the watch at `offset` was heard, while who waits had not
    /// given up `until` then.
    fn must_tell(&self, offset: Offset, until: Timestamp) -> Option<Timestamp> {
        let heard =
            |event: &&SimulatedEvent<'_>| event.before.signals > offset && event.clock < until;
        let mut after = self.events.iter().filter(heard);
        after.find_map(|event| {
            let ends = match &event.what {
                What::Fired(shot) => !shot.http,
                What::Said(outcome) => match &outcome.kind {
                    OutcomeKind::Cancelled { generation } => self.stops(*generation, event.order),
                    OutcomeKind::Expired { .. } => true,
                    OutcomeKind::Unmet { then, .. } => *then != OnFailure::Fire,
                    _ => false,
                },
            };
            ends.then_some(event.clock)
        })
    }

    /// The same, where a worker said how its callback ended: if nobody can have stopped waiting for
    /// that word, because it fired after `lapsed`.
    fn must_pass_on(
        &self,
        offset: Offset,
        until: Timestamp,
        lapsed: Timestamp,
    ) -> Option<Timestamp> {
        let shots = self.events.iter().filter_map(|event| match &event.what {
            What::Fired(shot) => Some((event, shot)),
            What::Said(_) => None,
        });
        let mut asked = shots.filter(|(_, shot)| {
            shot.settles && shot.decided < until && shot.decided > lapsed + CLOCKS_APART
        });
        asked.find_map(|(event, shot)| {
            if self.was_called(shot.id.generation) {
                return None; // who is called late is remembered by nobody, but a worker tells of it
            }
            let of = |said: &&Said<'_>| said.settled.id.generation == shot.id.generation;
            let said = self.settled.iter().find(of)?;
            let replaced = self.events.iter().any(|later| {
                let answer = match &later.what {
                    What::Said(outcome) => &outcome.kind,
                    What::Fired(_) => return false,
                };
                later.order > event.order && matches!(answer, OutcomeKind::Accepted { .. })
            });
            (said.offset > offset && !replaced).then_some(said.appended)
        })
    }

    fn was_called(&self, generation: Offset) -> bool {
        self.events.iter().any(|event| match &event.what {
            What::Said(outcome) => match outcome.kind {
                OutcomeKind::Called { generation: of, .. } => of == generation,
                _ => false,
            },
            What::Fired(_) => false,
        })
    }

    /// The same, where it had fired before and was remembered, until after the watch was `heard`.
    fn must_recall(&self, heard: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let last = self.events.iter().rev().find_map(|event| match &event.what {
            What::Fired(shot) => Some(Err((event, shot))),
            What::Said(outcome) => match outcome.kind {
                OutcomeKind::Accepted { .. } => Some(Ok(())),
                _ => None,
            },
        });
        let (event, shot) = last?.err()?;
        let Wish::Register(wanted) = self.told.get(&shot.id.generation)?.wish else { return None };
        let forgotten = event.before.clock + wanted.retain?;
        (!shot.http && event.clock < until && heard < forgotten).then_some(event.clock)
    }

    /// Whether a generation had not fired when it was cancelled, or only then it is its end.
    fn stops(&self, generation: Offset, order: u64) -> bool {
        !self.events.iter().any(|event| match &event.what {
            What::Fired(shot) => shot.id.generation == generation && event.order < order,
            What::Said(_) => false,
        })
    }
}
