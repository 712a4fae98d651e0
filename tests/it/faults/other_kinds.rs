//! Triggers of other kinds beside a steady load: recurring ones, ones that wait for others, and
//! ones that commands fire, pause and resume.
//!
//! Invariant: what each of them must do follows from its id. They fire into a topic of their own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orloj::clock;
use orloj::model::Timestamp;
use orloj::model::outcome::OutcomeKind;
use serde_json::json;

use super::COMPLETION_DEADLINE;
use super::background::beside;
use super::report::FaultFigures;
use crate::audit::ObservedFire;
use crate::test_cluster::TestCluster;
use crate::test_producer::TestProducer;
use crate::wait::{until, within};

/// Recurring triggers, each of which fires every second.
const SCHEDULES: usize = 20;
const EVERY_MS: u64 = 1_000;
/// From the registration of a recurring trigger until its first occurrence, in ms.
const LEAD: u64 = 3_000;
/// Pause between two pairs of dependent triggers, and two commands.
const PAUSE: Duration = Duration::from_millis(250);
/// From a registration until it is due, in ms.
const DELAY: u64 = 1_000;
/// So many triggers are paused at a time, each for two seconds: it is due in the middle of that.
const PAUSED: usize = 8;
/// What is fired by a command is due after the end of the test, in ms.
const FAR: u64 = 3_600_000;

/// Who writes them, and what was written.
pub(super) struct OtherKinds {
    topic: String,
    client: TestProducer,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    recurring: Vec<Recurring>,
    /// The ids of triggers of which each must fire once.
    once: Vec<String>,
    /// How often the recurring ones have fired, once that is judged.
    occurrences: usize,
}

/// A trigger that fires every second; all times in ms since the epoch.
struct Recurring {
    id: String,
    start: Timestamp,
    /// When it was cancelled, and when that was known to be done.
    stopped: Option<Timestamp>,
    ended: Option<Timestamp>,
}

impl OtherKinds {
    /// Of this installation, with a topic of their own.
    pub(super) fn of(cluster: &TestCluster) -> Self {
        let (topic, client) = (cluster.new_target("other-kinds"), cluster.client());
        Self { topic, client, written: Mutex::default() }
    }

    /// Writes them for as long as `body` runs. Recurring ones go on until [`Self::settle`].
    pub(super) fn during<T>(&self, body: impl FnOnce() -> T) -> T {
        self.register_schedules();
        beside(|ended| self.write(ended), body).0
    }

    fn register_schedules(&self) {
        let start = clock::now_ms() / EVERY_MS * EVERY_MS + LEAD;
        let mut written = self.written();
        let first = written.recurring.len();
        for n in first..first + SCHEDULES {
            let schedule = json!({"every": "PT1S", "start": start, "misfire": {"all": 1_000}});
            let id = format!("recurring-{n}");
            self.post(&id, &json!({"topic": self.topic, "schedule": schedule}));
            written.recurring.push(Recurring { id, start, stopped: None, ended: None });
        }
    }

    /// Registers triggers that others wait for, and triggers that commands fire, pause and resume.
    fn write(&self, ended: &AtomicBool) {
        let topic = &self.topic;
        let mut all_paused = VecDeque::new();
        while within(PAUSE, || ended.load(Relaxed).then_some(())).is_none() {
            let number = self.written().once.len();
            let [parent, child, called, paused] =
                ["parent", "child", "called", "paused"].map(|kind| format!("{kind}-{number}"));
            let now = clock::now_ms();
            // The partition of the one that waits may learn of it after the other has fired.
            self.post(&child, &json!({"topic": topic, "after": [&parent]}));
            self.post(&parent, &json!({"topic": topic, "fireAt": now + DELAY, "retain": "1h"}));
            self.post(&called, &json!({"topic": topic, "fireAt": now + FAR}));
            self.client.post(&called, "", Some("fire-now"));
            self.post(&paused, &json!({"topic": topic, "fireAt": now + DELAY}));
            self.client.post(&paused, "", Some("pause"));
            all_paused.push_back(paused.clone());
            if all_paused.len() > PAUSED
                && let Some(earlier) = all_paused.pop_front()
            {
                self.client.post(&earlier, "", Some("resume"));
            }
            self.written().once.extend([parent, child, called, paused]);
        }
        all_paused.iter().for_each(|id| self.client.post(id, "", Some("resume")));
    }

    fn post(&self, id: &str, trigger: &serde_json::Value) {
        self.client.post(id, &trigger.to_string(), None);
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until each of those that fire once has fired, and ends the recurring ones.
    pub(super) fn settle(&self, cluster: &TestCluster) {
        let _all_are_written = self.client.acknowledged();
        let mut written = self.written();
        let mut missing = Vec::new();
        let _all = within(COMPLETION_DEADLINE, || {
            let fires = cluster.fires_into(&self.topic);
            let fired: BTreeSet<_> = fires.iter().map(|fire| fire.trigger.as_str()).collect();
            missing = written.once.iter().filter(|id| !fired.contains(id.as_str())).collect();
            missing.is_empty().then_some(())
        });
        assert!(missing.is_empty(), "these have not fired: {missing:?}");
        let mut running = BTreeSet::new();
        for recurring in written.recurring.iter_mut().filter(|it| it.stopped.is_none()) {
            recurring.stopped = Some(clock::now_ms());
            self.client.cancel(&recurring.id);
            running.insert(recurring.id.clone());
        }
        until("recurring triggers to be cancelled", COMPLETION_DEADLINE, || {
            for outcome in cluster.outcomes() {
                if matches!(outcome.kind, OutcomeKind::Cancelled { .. }) {
                    let _ended = running.remove(outcome.trigger.as_str());
                }
            }
            running.is_empty().then_some(())
        });
        for recurring in &mut written.recurring {
            let _earlier = recurring.ended.get_or_insert_with(clock::now_ms);
        }
    }

    /// All have fired as they must. Returns by how much each occurrence was late, in ms.
    pub(super) fn assert_fired(&self, cluster: &TestCluster) -> Vec<u64> {
        let (fires, resumed) = (cluster.fires_into(&self.topic), self.resumed(cluster));
        let mut written = self.written();
        let late = written.assert_fired(fires, &resumed);
        written.occurrences = late.len();
        late
    }

    /// When the resumption of each trigger was written that was paused before it fired, in ms since
    /// the epoch. A fault may hold the pause up for too long.
    fn resumed(&self, cluster: &TestCluster) -> BTreeMap<String, Timestamp> {
        let commands = self.client.acknowledged();
        let outcomes = cluster.outcomes().into_iter();
        let paused = outcomes.filter(|it| matches!(it.kind, OutcomeKind::Paused { .. }));
        let resumed = paused.filter_map(|outcome| {
            let id = outcome.trigger.as_str();
            let last = commands.get(id)?.last()?;
            Some((id.to_owned(), last.appended))
        });
        resumed.collect()
    }

    /// Adds how many have fired.
    pub(super) fn count_in(&self, figures: FaultFigures) -> FaultFigures {
        let written = self.written();
        figures
            .with("dependent triggers and commands", written.once.len())
            .with("occurrences", written.occurrences)
    }
}

impl Written {
    /// These are all fires. `resumed`: which triggers were paused, and when they were resumed.
    fn assert_fired(
        &self,
        fires: Vec<ObservedFire>,
        resumed: &BTreeMap<String, Timestamp>,
    ) -> Vec<u64> {
        assert!(!resumed.is_empty(), "none was paused before it fired");
        let mut fired = BTreeMap::<String, Vec<ObservedFire>>::new();
        for fire in fires {
            fired.entry(fire.trigger.clone()).or_default().push(fire);
        }
        for id in &self.once {
            let times = visible_times(&fired, id);
            assert_eq!(times.len(), 1, "{id} has fired at {times:?}");
            if let Some(number) = id.strip_prefix("child-") {
                let parent = visible_times(&fired, &format!("parent-{number}"));
                assert!(parent < times, "{id} has fired before its parent");
            }
            if let Some(resumed) = resumed.get(id) {
                assert!(times[0] >= *resumed, "{id} has fired before it was resumed");
            }
        }
        let mut late = Vec::new();
        for recurring in &self.recurring {
            let fires = fired.get(&recurring.id).map_or(&[][..], Vec::as_slice);
            recurring.assert_fired(fires);
            late.extend(fires.iter().map(|fire| fire.visible.saturating_sub(fire.due)));
        }
        let known = self.once.len() + self.recurring.len();
        assert_eq!(fired.len(), known, "others have fired too");
        late
    }
}

fn visible_times(fires: &BTreeMap<String, Vec<ObservedFire>>, id: &str) -> Vec<u64> {
    fires.get(id).into_iter().flatten().map(|fire| fire.visible).collect()
}

impl Recurring {
    /// It has fired every second until it was cancelled, and not since.
    fn assert_fired(&self, fires: &[ObservedFire]) {
        let Self { id, start, stopped, ended } = self;
        assert!(!fires.is_empty(), "{id} has never fired");
        let mut fired: Vec<_> = fires.iter().map(|fire| (fire.occurrence, fire.due)).collect();
        fired.sort_unstable();
        let due = |occurrence: usize| start + occurrence as u64 * EVERY_MS;
        let expected: Vec<_> = (0..fired.len()).map(|n| (n as u32, due(n))).collect();
        assert_eq!(fired, expected, "{id}");
        assert!(fires.iter().all(|fire| fire.visible >= fire.due), "{id} was early: {fires:?}");
        let (stopped, ended) = stopped.zip(*ended).expect("settled before");
        let last = due(fired.len() - 1);
        assert!(last <= ended, "{id} was due at {last} after it was cancelled, by {ended}");
        let missed = stopped.saturating_sub(due(fired.len()));
        assert!(missed <= 2 * EVERY_MS, "{id} has not fired for {missed} ms before its end");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::super::reason;
    use super::*;

    const START: Timestamp = 10_000;

    fn fire(trigger: &str, occurrence: u32, due: Timestamp, visible: Timestamp) -> ObservedFire {
        let (trigger, payload) = (trigger.to_owned(), Vec::new());
        ObservedFire { trigger, generation: 0, occurrence, due, visible, payload }
    }

    /// What fires if all is well.
    fn fires() -> Vec<ObservedFire> {
        let once = [("parent-0", 11), ("child-0", 12), ("called-0", 13), ("paused-0", 14)];
        let recurring = (0..4).map(|n| (n, START + u64::from(n) * EVERY_MS));
        let once = once.into_iter().map(|(id, visible)| fire(id, 0, 10, visible));
        once.chain(recurring.map(|(n, due)| fire("recurring-0", n, due, due + 5))).collect()
    }

    /// Judges these fires; says what is wrong.
    fn judge(fires: Vec<ObservedFire>, resumed: Option<Timestamp>) -> Result<Vec<u64>, String> {
        let [stopped, ended] = [START + 3_500, START + 3_600].map(Some);
        let recurring = Recurring { id: "recurring-0".to_owned(), start: START, stopped, ended };
        let once = ["parent-0", "child-0", "called-0", "paused-0"].map(str::to_owned).to_vec();
        let written = Written { recurring: vec![recurring], once, occurrences: 0 };
        let resumed = resumed.map(|at| ("paused-0".to_owned(), at)).into_iter().collect();
        catch_unwind(|| written.assert_fired(fires, &resumed)).map_err(|panic| reason(&*panic))
    }

    #[track_caller]
    fn assert_found(change: fn(&mut Vec<ObservedFire>), expected: &str) {
        let mut fires = fires();
        change(&mut fires);
        let found = judge(fires, Some(14)).expect_err(expected);
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn what_has_fired_as_it_must_is_right() {
        assert_eq!(judge(fires(), Some(14)), Ok(vec![5; 4]));
    }

    #[test]
    fn what_has_fired_in_another_way_is_found() {
        assert_found(|fires| drop(fires.remove(0)), "parent-0 has fired at []");
        assert_found(|fires| fires.push(fires[2].clone()), "called-0 has fired at [13, 13]");
        assert_found(|fires| fires[1].visible = 11, "child-0 has fired before its parent");
        assert_found(|fires| fires[3].visible = 13, "paused-0 has fired before it was resumed");
        assert_found(|fires| fires.push(fire("other", 0, 10, 10)), "others have fired too");
        assert_found(|fires| fires.truncate(4), "recurring-0 has never fired");
        assert_found(|fires| drop(fires.remove(5)), "recurring-0");
        assert_found(|fires| fires.push(fires[5].clone()), "recurring-0");
        assert_found(|fires| fires[6].visible = fires[6].due - 1, "recurring-0 was early");
        assert_found(|fires| fires.truncate(5), "has not fired for 2500 ms before its end");
        let due = |fires: &mut Vec<ObservedFire>| {
            let due = START + 4 * EVERY_MS;
            fires.push(fire("recurring-0", 4, due, due));
        };
        assert_found(due, "after it was cancelled");
        let found = judge(fires(), None).expect_err("a pause that was too late");
        assert!(found.contains("none was paused"), "{found}");
    }
}
