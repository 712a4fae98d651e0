//! What the logs say of triggers with a course, trigger by trigger: what was asked for, and in its
//! order what the owner said and did about it.
//!
//! Invariant: nothing is told that a `read_committed` reader could not see, but for the order in
//! which one owner's records in different topics were decided.

use std::collections::BTreeMap;

use orloj_core::codec::row;
use orloj_core::engine::step::Emit;
use orloj_core::model::definition::Definition;
use orloj_core::model::entry::{FireId, Row};
use orloj_core::model::outcome::Outcome;
use orloj_core::model::signal::{CallbackEnded, Signal};
use orloj_core::model::{Offset, Timestamp};

use super::course::{self, SimulatedIdle};
use super::{dependents, has_course, is_forwarded, text};
use crate::audit::report::Finding;
use crate::simulation::broker::{SimulatedDecidedOffsets, SimulatedSend};
use crate::simulation::people::{Meant, Wish, serial};
use crate::simulation::run::{RequestedReplay, SimulationRun};
use crate::simulation::site::{PARTITIONS, home};

/// All stories, by trigger.
pub(super) type Stories<'a> = BTreeMap<String, TriggerHistory<'a>>;

/// Of one trigger.
#[derive(Default)]
pub(super) struct TriggerHistory<'a> {
    /// What was asked for, by offset.
    pub(super) told: BTreeMap<Offset, SimulatedRequest<'a>>,
    /// In the order in which it was decided.
    pub(super) events: Vec<SimulatedEvent<'a>>,
    /// What workers said of how its callbacks ended, in the order in which it is read.
    pub(super) settled: Vec<Said<'a>>,
    /// Its events from there on were repeated for an operator, or may have been.
    pub(super) repeated: bool,
}

/// A record of `triggers`.
pub(super) struct SimulatedRequest<'a> {
    pub(super) wish: &'a Wish,
    /// What it counts from, in ms since the epoch: the timestamp of its first appearance.
    pub(super) at: Timestamp,
}

/// Something that an owner decided.
pub(super) struct SimulatedEvent<'a> {
    pub(super) order: u64,
    /// When it was written, by the broker's clock, in ms since the epoch.
    pub(super) appended: Timestamp,
    /// The latest time that the owner's clock had shown.
    pub(super) clock: Timestamp,
    /// What it showed when it committed that.
    pub(super) committed: Timestamp,
    /// What was decided before the step.
    pub(super) before: SimulatedDecidedOffsets,
    pub(super) what: What<'a>,
}

pub(super) enum What<'a> {
    Said(&'a Outcome),
    Fired(Shot),
}

/// The first attempt of an occurrence.
pub(super) struct Shot {
    pub(super) id: FireId,
    pub(super) scheduled: Timestamp,
    /// When the owner decided it, by its clock; of a callback only.
    pub(super) decided: Timestamp,
    pub(super) payload: Vec<u8>,
    pub(super) http: bool,
    /// Whether a worker says how it ends.
    pub(super) settles: bool,
}

/// What a worker said of how a callback ended.
pub(super) struct Said<'a> {
    pub(super) offset: Offset,
    pub(super) appended: Timestamp,
    pub(super) settled: &'a CallbackEnded,
}

/// Judges all triggers with a course; returns how often they fired.
pub(super) fn judge(
    run: &SimulationRun,
    at_rest: Option<bool>,
    findings: &mut Vec<Finding>,
) -> usize {
    let stories = hear(run);
    let rest = at_rest.map(|quiet| SimulatedIdle {
        quiet,
        // All that is due at the latest has had its time.
        until: run.users.last_due.max(run.site.broker.now.saturating_sub(1_000)),
    });
    for (trigger, story) in &stories {
        course::judge(trigger, story, rest, run.site.open_ttl, findings);
    }
    dependents::judge(run, &stories, rest, findings);
    let fired = |event: &&SimulatedEvent<'_>| matches!(event.what, What::Fired(_));
    stories.values().map(|story| story.events.iter().filter(fired).count()).sum()
}

fn hear(run: &SimulationRun) -> Stories<'_> {
    let mut stories = Stories::new();
    for p in 0..PARTITIONS {
        hear_inputs(run, p, &mut stories);
        hear_outputs(run, p, &mut stories);
    }
    for (trigger, story) in &mut stories {
        story.events.sort_by_key(|event| event.order);
        let Some(RequestedReplay { from, since }) = run.replayed[home(trigger.as_bytes())] else {
            continue;
        };
        if story.told.keys().any(|offset| *offset >= from) {
            story.repeated = true;
            story.events.retain(|event| event.order <= since);
        }
    }
    stories
}

fn hear_inputs<'a>(run: &'a SimulationRun, p: usize, stories: &mut Stories<'a>) {
    let broker = &run.site.broker;
    for (offset, appended, raw) in broker.triggers[p].committed(&broker.fates) {
        let Meant::Course(wish) = &run.users.meant[serial(raw)] else { continue };
        if home(&raw.key) != p && !is_forwarded(raw) {
            continue;
        }
        let at = run.site.reader.read(p, offset, appended, raw).timestamp;
        let story = stories.entry(text(&raw.key)).or_default();
        let _first = story.told.insert(offset, SimulatedRequest { wish, at });
    }
    for (offset, appended, signal) in broker.signals[p].committed(&broker.fates) {
        let Signal::CallbackEnded(settled) = signal else { continue };
        let trigger = settled.id.trigger.as_str();
        if has_course(trigger) {
            let story = stories.entry(trigger.to_owned()).or_default();
            story.settled.push(Said { offset, appended, settled });
        }
    }
}

fn hear_outputs<'a>(run: &'a SimulationRun, p: usize, stories: &mut Stories<'a>) {
    let broker = &run.site.broker;
    let outputs = [&broker.fires[p], &broker.others[p]];
    for (_, appended, sent) in outputs.into_iter().flat_map(|log| log.committed(&broker.fates)) {
        let Some((trigger, what)) = heard(sent) else { continue };
        if has_course(&trigger) {
            let SimulatedSend { order, clock, before, .. } = *sent;
            let committed = broker.committed_at(sent).unwrap_or(Timestamp::MAX);
            let event = SimulatedEvent { order, appended, clock, committed, before, what };
            stories.entry(trigger).or_default().events.push(event);
        }
    }
}

/// What an owner has sent about a trigger, if it tells of its course.
fn heard(sent: &SimulatedSend) -> Option<(String, What<'_>)> {
    let shot = |id: &FireId, (scheduled, decided), definition: &Definition, settles| Shot {
        id: id.clone(),
        scheduled,
        decided,
        payload: definition.payload.as_deref().unwrap_or_default().to_vec(),
        http: definition.target.is_http(),
        settles,
    };
    let shot = match &sent.emit {
        Emit::Outcome(outcome) if sent.tenure > 0 => {
            return Some((outcome.trigger.as_str().to_owned(), What::Said(outcome)));
        }
        Emit::ToWorker(fire) => {
            shot(&fire.id, (fire.scheduled, fire.fired), &fire.definition, fire.report_end)
        }
        Emit::ToTopic(fire) => match row::decode(&fire.row) {
            Ok(Row::Fire(row)) => shot(&row.id, (fire.scheduled, 0), &row.definition, false),
            other => panic!("no row to fire: {other:?}"),
        },
        _ => return None,
    };
    let first = shot.id.attempt == 1 && shot.id.deferral == 0;
    first.then(|| (shot.id.trigger.as_str().to_owned(), What::Fired(shot)))
}
