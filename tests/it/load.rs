//! A load of triggers with cancels and replacements that race with the fires, the same in every
//! run: who is stopped, and when, follows from the trigger's number.

use std::time::Duration;

use orloj::clock;

use crate::test_cluster::TestCluster;
use crate::test_producer::{FiredRecord, TestProducer};
use crate::wait::until;

/// How many triggers the great scenarios have.
pub(crate) const TRIGGERS: u64 = 200_000;
/// Over how long they are due, in ms.
pub(crate) const WINDOW: u64 = 20_000;
/// A stop appended so long before the due time, in ms, must win.
pub(crate) const MARGIN: u64 = 1_000;

/// How long before the first is due they are written, in ms: enough to write them all.
const LEAD: u64 = 6_000;
/// One of so many is cancelled, one of so many replaced.
const CANCELLED: u64 = 10;
const REPLACED: u64 = 20;
/// Stops come from so long before the due time to so long after it, in ms.
const BEFORE: u64 = 3_000;
const AFTER: u64 = 300;
/// By how much a replacement is later, in ms.
const LATER: u64 = 1_500;

/// Keys that many triggers share.
const KEYS: u64 = 16;

const DEADLINE: Duration = Duration::from_secs(120);

/// `triggers` of them, due over [`WINDOW`].
#[derive(Clone, Copy)]
pub(crate) struct TriggerLoad {
    pub(crate) triggers: u64,
}

/// A cancel, or a replacement with its due time; all times in ms since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScheduledStop {
    pub(crate) at: u64,
    pub(crate) trigger: u64,
    pub(crate) replacement: Option<u64>,
}

impl TriggerLoad {
    /// Fires that there must be at least.
    pub(crate) fn fires_min(self) -> usize {
        usize::try_from(self.triggers - self.triggers / CANCELLED).unwrap()
    }

    /// Writes all of it, the stops at their time; returns when the last one is written.
    pub(crate) fn write(self, cluster: &TestCluster, client: &TestProducer) {
        let first = clock::now_ms() + LEAD;
        let mut stops = Vec::new();
        for trigger in 0..self.triggers {
            let due = first + trigger * WINDOW / self.triggers;
            register(cluster, client, trigger, due, false);
            stops.extend(stop(trigger, due));
        }
        stops.sort_unstable_by_key(|stop| stop.at);
        for stop in stops {
            until("the time of a stop", DEADLINE, || (clock::now_ms() >= stop.at).then_some(()));
            stop.write(cluster, client);
        }
    }
}

impl ScheduledStop {
    pub(crate) fn write(self, cluster: &TestCluster, client: &TestProducer) {
        match self.replacement {
            Some(due) => register(cluster, client, self.trigger, due, true),
            None => client.cancel(&id(self.trigger)),
        }
    }
}

fn id(trigger: u64) -> String {
    format!("trigger-{trigger:06}")
}

/// Writes a trigger whose payload says which it is. One of four fires under another key than its
/// id, one of three with headers, of which two have one name.
pub(crate) fn register(
    cluster: &TestCluster,
    client: &TestProducer,
    trigger: u64,
    due: u64,
    ack: bool,
) {
    let payload = format!("trigger {trigger} is due at {due}");
    let (key, number) = (format!("key-{}", trigger % KEYS), trigger.to_string());
    let headers = [("number", number.as_str()), ("other", ""), ("number", "again")];
    let fired = FiredRecord {
        key: (trigger % 4 == 1).then_some(&key),
        headers: if trigger.is_multiple_of(3) { &headers } else { &[] },
    };
    client.register_record(&id(trigger), due, cluster.target(), &payload, ack, fired);
}

/// Whether and when a trigger is stopped.
pub(crate) fn stop(trigger: u64, due: u64) -> Option<ScheduledStop> {
    // A prime spreads the stops of neighbours over the whole range.
    let at = due - BEFORE + trigger * 7_919 % (BEFORE + AFTER);
    if trigger % CANCELLED == 3 {
        Some(ScheduledStop { at, trigger, replacement: None })
    } else if trigger % REPLACED == 7 {
        Some(ScheduledStop { at, trigger, replacement: Some(due + LATER) })
    } else {
        None
    }
}
