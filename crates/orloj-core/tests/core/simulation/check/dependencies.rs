//! Checks triggers that wait for others against the signals between owners.
//!
//! Invariant: a trigger fires when all its dependencies succeeded, or as its `onFailure` says; each
//! signal is true, and every dependency that settled has sent one to each trigger that waited then.

use std::collections::BTreeMap;

use orloj_core::model::lifecycle::OnFailure;
use orloj_core::model::outcome::OutcomeKind;
use orloj_core::model::signal::{DependencySettled, Signal, Watch};
use orloj_core::model::text::Text;
use orloj_core::model::{Offset, Timestamp};

use super::history::{CallbackReport, EventKind, SimulatedEvent, TriggerHistories, TriggerHistory};
use super::lifecycle::SimulatedIdle;
use crate::audit::Violation;
use crate::audit::report::Finding;
use crate::simulation::clients::{RequestedTrigger, UserRequest};
use crate::simulation::cluster::{PARTITIONS, partition_of};
use crate::simulation::run::SimulationRun;

/// An owner's clock may be so far ahead of the broker's, in ms.
const CLOCKS_APART: Timestamp = 200;

/// The id and the generation of the waiting trigger, and the id of its dependency.
type Wait = (String, Offset, String);

/// The signals between owners.
#[derive(Default)]
struct DependencySignals<'a> {
    /// The watches, with their offset in the partition of the dependency.
    watches: Vec<(Offset, &'a Watch)>,
    /// The first result that each waiting trigger received, and when.
    settled: BTreeMap<Wait, (Timestamp, bool)>,
    /// By partition: how far signals were decided, and when, by the owner's clock.
    decided: [Vec<(Offset, Timestamp)>; PARTITIONS],
}

impl DependencySignals<'_> {
    /// When the owner of a trigger had processed a signal, at the latest.
    fn processed_at(&self, trigger: &Text, offset: Offset) -> Option<Timestamp> {
        let decided = &self.decided[partition_of(trigger.bytes())];
        decided.iter().filter(|(until, _)| *until > offset).map(|(_, clock)| *clock).min()
    }

    /// Whether the waiting trigger was registered again and waits for the same one, by a watch that
    /// lies below this offset.
    fn is_replaced(&self, watch: &Watch, known_until: Offset) -> bool {
        self.watches.iter().any(|(offset, newer)| {
            newer.trigger == watch.trigger
                && newer.watcher.trigger == watch.watcher.trigger
                && newer.watcher.generation > watch.watcher.generation
                && *offset < known_until
        })
    }
}

/// A dependency has ended: those that wait must receive a signal.
struct EndedDependency {
    at: Timestamp,
    /// Its owner knew the watches below this offset: the newest registration of each trigger that
    /// waits receives it.
    known_until: Offset,
}

pub(super) fn check_dependencies(
    run: &SimulationRun,
    histories: &TriggerHistories<'_>,
    rest: Option<SimulatedIdle>,
    findings: &mut Vec<Finding>,
) {
    let signals = collect(run);
    let mut find = |violation, trigger: &str, generation, why: String| {
        let trigger = trigger.to_owned();
        findings.push(Finding { violation, trigger, generation, command_offset: generation, why });
    };
    for (trigger, history) in histories.iter().filter(|(_, history)| !history.repeated) {
        for (generation, registered) in &history.requests {
            let UserRequest::Register(wanted) = registered.request else { continue };
            // If an operator replayed a dependency, it may have been reported twice.
            let repeated = |id: &String| histories.get(id).is_some_and(|history| history.repeated);
            if wanted.after.is_empty() || wanted.after.iter().any(repeated) {
                continue;
            }
            let until = registered.at + wanted.timeout;
            if let Some(why) = broken(trigger, *generation, history, wanted, until, &signals) {
                find(Violation::NotStopped, trigger, *generation, why);
            }
        }
    }
    for ((waits, generation, of), (at, ok)) in &signals.settled {
        let Some(history) = histories.get(of).filter(|history| !history.repeated) else { continue };
        if !history.ends(*ok, *at, run.cluster.callback_result_timeout) {
            let why = format!("received ok={ok} from {of} at {at}, which is not true");
            find(Violation::Unexpected, waits, *generation, why);
        }
    }
    for (offset, watch) in signals.watches.iter().filter(|_| rest.is_some()) {
        let Watch { trigger, watcher, until } = watch;
        let Some(history) = histories.get(trigger.as_str()).filter(|history| !history.repeated)
        else {
            continue;
        };
        let (waits, of) = (watcher.trigger.as_str(), trigger.as_str());
        let wait = (waits.to_owned(), watcher.generation, of.to_owned());
        let lapsed = run.cluster.broker.now.saturating_sub(run.cluster.callback_result_timeout);
        let settled = history.must_notify(*offset, *until);
        let settled = settled.or_else(|| history.must_notify_of_callback(*offset, *until, lapsed));
        let settled = settled.or_else(|| {
            history.must_notify_of_remembered(signals.processed_at(trigger, *offset)?, *until)
        });
        if let Some(EndedDependency { at, known_until }) = settled
            && !signals.settled.contains_key(&wait)
            && !signals.is_replaced(watch, known_until)
        {
            let why = format!("{of} ended at {at}, and it received no signal");
            find(Violation::Lost, waits, watcher.generation, why);
        }
    }
}

fn collect(run: &SimulationRun) -> DependencySignals<'_> {
    let broker = &run.cluster.broker;
    let mut signals = DependencySignals::default();
    for p in 0..PARTITIONS {
        let outputs = [&broker.fires[p], &broker.others[p]];
        let sent = outputs.into_iter().flat_map(|log| log.committed(&broker.transaction_states));
        signals.decided[p]
            .extend(sent.map(|(_, _, sent)| (broker.decided_before(p, sent).signals, sent.clock)));
        for (offset, at, signal) in broker.signals[p].committed(&broker.transaction_states) {
            match signal {
                Signal::Watch(watch) => {
                    assert_eq!(partition_of(watch.trigger.as_str().as_bytes()), p, "{watch:?}");
                    signals.watches.push((offset, watch));
                }
                Signal::DependencySettled(DependencySettled { watcher, dependency: of, ok }) => {
                    let waits = watcher.trigger.as_str().to_owned();
                    let wait = (waits, watcher.generation, of.as_str().to_owned());
                    signals.settled.entry(wait).or_insert((at, *ok));
                }
                Signal::Retry(_) | Signal::CallbackEnded(_) => {}
            }
        }
    }
    signals
}

/// What is wrong with when a trigger with dependencies fired or gave up, if anything.
fn broken(
    trigger: &str,
    generation: Offset,
    history: &TriggerHistory<'_>,
    wanted: &RequestedTrigger,
    until: Timestamp,
    signals: &DependencySignals<'_>,
) -> Option<String> {
    let mut freed = false;
    for event in &history.events {
        let result_of = |of: &String| {
            let wait = (trigger.to_owned(), generation, of.clone());
            signals.settled.get(&wait).filter(|(at, _)| *at <= event.appended).map(|(_, ok)| *ok)
        };
        let (all_ok, one_failed) = (
            wanted.after.iter().all(|of| result_of(of) == Some(true)),
            wanted.after.iter().any(|of| result_of(of) == Some(false)),
        );
        match &event.what {
            EventKind::Fired(attempt)
                if attempt.id.generation == generation && !freed && !all_ok =>
            {
                return Some(format!("fired before all of {:?} succeeded", wanted.after));
            }
            EventKind::Outcome(outcome) => match &outcome.kind {
                OutcomeKind::Called { generation: of, .. } => freed |= *of == generation,
                OutcomeKind::Unmet { generation: of, reason, .. } if *of == generation => {
                    freed = wanted.on_failure == OnFailure::Fire;
                    if !one_failed && event.clock < until {
                        return Some(format!("given up before its time: {reason}"));
                    }
                }
                _ => {}
            },
            EventKind::Fired(_) => {}
        }
    }
    None
}

impl TriggerHistory<'_> {
    /// Whether by `at` the trigger had succeeded (`ok`), or failed.
    fn ends(&self, ok: bool, at: Timestamp, callback_result_timeout: Timestamp) -> bool {
        let report =
            self.settled.iter().any(|report| report.settled.ok == ok && report.appended <= at);
        let did = |event: &SimulatedEvent<'_>| match &event.what {
            EventKind::Fired(attempt) if ok => !attempt.settles,
            EventKind::Fired(attempt) => {
                attempt.http && attempt.decided + callback_result_timeout <= at + CLOCKS_APART
            }
            EventKind::Outcome(outcome) => match &outcome.kind {
                OutcomeKind::Cancelled { .. } | OutcomeKind::Expired { .. } => !ok,
                OutcomeKind::Unmet { then, .. } => match then {
                    OnFailure::Fire => false,
                    OnFailure::Skip => ok,
                    OnFailure::Fail => !ok,
                },
                _ => false,
            },
        };
        report || self.events.iter().any(|event| event.appended <= at && did(event))
    }

    /// When the trigger first ended after the watch at `offset` was processed, if the waiting
    /// trigger had not given up by then (`until`).
    fn must_notify(&self, offset: Offset, until: Timestamp) -> Option<EndedDependency> {
        let received =
            |event: &&SimulatedEvent<'_>| event.before.signals > offset && event.clock < until;
        let mut after = self.events.iter().filter(received);
        after.find_map(|event| {
            let ends = match &event.what {
                EventKind::Fired(attempt) => !attempt.http,
                EventKind::Outcome(outcome) => match &outcome.kind {
                    OutcomeKind::Cancelled { generation } => self.stops(*generation, event.order),
                    OutcomeKind::Expired { .. } => true,
                    OutcomeKind::Unmet { then, .. } => *then != OnFailure::Fire,
                    _ => false,
                },
            };
            let ended = EndedDependency { at: event.clock, known_until: event.after.signals };
            ends.then_some(ended)
        })
    }

    /// The same, where a worker reported the end of its callback: if the owner cannot have stopped
    /// waiting for the report, because it fired after `lapsed`.
    fn must_notify_of_callback(
        &self,
        offset: Offset,
        until: Timestamp,
        lapsed: Timestamp,
    ) -> Option<EndedDependency> {
        let attempts = self.events.iter().filter_map(|event| match &event.what {
            EventKind::Fired(attempt) => Some((event, attempt)),
            EventKind::Outcome(_) => None,
        });
        let mut asked = attempts.filter(|(_, attempt)| {
            attempt.settles && attempt.decided < until && attempt.decided > lapsed + CLOCKS_APART
        });
        asked.find_map(|(event, attempt)| {
            if self.was_called(attempt.id.generation) {
                return None; // the owner does not remember a late one; its worker reports it
            }
            let of = |report: &&CallbackReport<'_>| {
                report.settled.id.generation == attempt.id.generation
            };
            let report = self.settled.iter().find(of)?;
            let replaced = self.events.iter().any(|later| {
                let answer = match &later.what {
                    EventKind::Outcome(outcome) => &outcome.kind,
                    EventKind::Fired(_) => return false,
                };
                later.order > event.order && matches!(answer, OutcomeKind::Accepted { .. })
            });
            let ended = EndedDependency { at: report.appended, known_until: report.offset };
            (report.offset > offset && !replaced).then_some(ended)
        })
    }

    fn was_called(&self, generation: Offset) -> bool {
        self.events.iter().any(|event| match &event.what {
            EventKind::Outcome(outcome) => match outcome.kind {
                OutcomeKind::Called { generation: of, .. } => of == generation,
                _ => false,
            },
            EventKind::Fired(_) => false,
        })
    }

    /// The same, where it had fired before and was still remembered when the watch was processed.
    fn must_notify_of_remembered(
        &self,
        received: Timestamp,
        until: Timestamp,
    ) -> Option<EndedDependency> {
        let last = self.events.iter().rev().find_map(|event| match &event.what {
            EventKind::Fired(attempt) => Some(Err((event, attempt))),
            EventKind::Outcome(outcome) => match outcome.kind {
                OutcomeKind::Accepted { .. } => Some(Ok(())),
                _ => None,
            },
        });
        let (event, attempt) = last?.err()?;
        let UserRequest::Register(wanted) = self.requests.get(&attempt.id.generation)?.request
        else {
            return None;
        };
        let forgotten = event.before.clock + wanted.retain?;
        // A watch that is received later is answered then.
        let ended = EndedDependency { at: event.clock, known_until: event.after.signals };
        (!attempt.http && event.clock < until && received < forgotten).then_some(ended)
    }

    /// Whether a generation had not fired when it was cancelled: only then the cancel is its end.
    fn stops(&self, generation: Offset, order: u64) -> bool {
        !self.events.iter().any(|event| match &event.what {
            EventKind::Fired(attempt) => attempt.id.generation == generation && event.order < order,
            EventKind::Outcome(_) => false,
        })
    }
}
