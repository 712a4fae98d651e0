//! Triggers of other kinds beside a steady load: recurring ones, ones that wait for others, and
//! ones that commands fire, pause and resume.
//!
//! Invariant: what each of them must do follows from its id. They fire into a topic of their own.

use std::collections::{BTreeMap, BTreeSet};
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
    /// When it was cancelled.
    stopped: Option<Timestamp>,
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
            written.recurring.push(Recurring { id, start, stopped: None });
        }
    }

    /// Registers triggers that others wait for, and triggers that commands fire, pause and resume.
    fn write(&self, ended: &AtomicBool) {
        let topic = &self.topic;
        let mut resumed: Option<String> = None;
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
            if let Some(earlier) = resumed.replace(paused.clone()) {
                self.client.post(&earlier, "", Some("resume"));
            }
            self.written().once.extend([parent, child, called, paused]);
        }
        if let Some(last) = resumed {
            self.client.post(&last, "", Some("resume"));
        }
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
    }

    /// All have fired as they must. Returns by how much each occurrence was late, in ms.
    pub(super) fn assert_fired(&self, cluster: &TestCluster) -> Vec<u64> {
        let mut fires = BTreeMap::<String, Vec<ObservedFire>>::new();
        for fire in cluster.fires_into(&self.topic) {
            fires.entry(fire.trigger.clone()).or_default().push(fire);
        }
        let mut written = self.written();
        for id in &written.once {
            let times = visible_times(&fires, id);
            assert_eq!(times.len(), 1, "{id} has fired at {times:?}");
            if let Some(number) = id.strip_prefix("child-") {
                let parent = visible_times(&fires, &format!("parent-{number}"));
                assert!(parent < times, "{id} has fired before its parent");
            }
        }
        let mut late = Vec::new();
        for recurring in &written.recurring {
            let fires = fires.get(&recurring.id).map_or(&[][..], Vec::as_slice);
            recurring.assert_fired(fires);
            late.extend(fires.iter().map(|fire| fire.visible.saturating_sub(fire.due)));
        }
        let known = written.once.len() + written.recurring.len();
        assert_eq!(fires.len(), known, "others have fired too");
        written.occurrences = late.len();
        late
    }

    /// Adds how many have fired.
    pub(super) fn count_in(&self, figures: FaultFigures) -> FaultFigures {
        let written = self.written();
        figures
            .with("dependent triggers and commands", written.once.len())
            .with("occurrences", written.occurrences)
    }
}

fn visible_times(fires: &BTreeMap<String, Vec<ObservedFire>>, id: &str) -> Vec<u64> {
    fires.get(id).into_iter().flatten().map(|fire| fire.visible).collect()
}

impl Recurring {
    /// It has fired every second until it was cancelled.
    fn assert_fired(&self, fires: &[ObservedFire]) {
        let Self { id, start, stopped } = self;
        assert!(!fires.is_empty(), "{id} has never fired");
        let mut fired: Vec<_> = fires.iter().map(|fire| (fire.occurrence, fire.due)).collect();
        fired.sort_unstable();
        let due = |occurrence: usize| start + occurrence as u64 * EVERY_MS;
        let expected: Vec<_> = (0..fired.len()).map(|n| (n as u32, due(n))).collect();
        assert_eq!(fired, expected, "{id}");
        assert!(fires.iter().all(|fire| fire.visible >= fire.due), "{id} was early: {fires:?}");
        let stopped = stopped.expect("settled before");
        let missed = stopped.saturating_sub(due(fired.len()));
        assert!(missed <= 2 * EVERY_MS, "{id} has not fired for {missed} ms before its end");
    }
}
