//! What users write about triggers with a lifecycle: recurring ones (ids `r…`), ones with commands
//! (`c…`), and ones that wait for others (`d…`).
//!
//! Invariant: each kind has its own ids, so that the checker knows what must hold. Half of the runs
//! have none of them.

use bytes::Bytes;
use orloj_core::model::lifecycle::{Command, OnFailure};
use orloj_core::model::{Millis, Timestamp};

use super::{Intent, SimulatedHeaders, SimulatedWrite};
use crate::simulation::cluster::SimulatedCluster;

/// What a record requests.
#[derive(Clone, Debug)]
pub(in crate::simulation) enum UserRequest {
    Register(RequestedTrigger),
    Cancel,
    Command(Command),
    Change(RequestedChange),
}

/// A change of a pending trigger.
#[derive(Clone, Debug, Default)]
pub(in crate::simulation) struct RequestedChange {
    /// The payload, if that changes.
    pub(in crate::simulation) payload: Option<Vec<u8>>,
    /// When it is due instead, in ms since the epoch.
    pub(in crate::simulation) due: Option<Timestamp>,
    /// By which schedule instead, as JSON.
    pub(in crate::simulation) schedule: Option<String>,
    /// Whether the count of its executions goes on.
    pub(in crate::simulation) counts_on: bool,
    /// Of a one-time trigger, always.
    pub(in crate::simulation) expire_after: Option<Millis>,
    /// It was written for another revision: it changes nothing.
    pub(in crate::simulation) stale: bool,
}

/// A trigger as its user registers it.
#[derive(Clone, Debug, Default)]
pub(in crate::simulation) struct RequestedTrigger {
    /// When it is due, in ms since the epoch; none if a schedule decides it, or if it is due when
    /// its dependencies are settled.
    pub(in crate::simulation) due: Option<Timestamp>,
    /// A schedule as JSON.
    pub(in crate::simulation) schedule: Option<String>,
    /// Whether it continues the count of executions of the one that it replaces.
    pub(in crate::simulation) counts_on: bool,
    /// Whether it is ignored if one is pending.
    pub(in crate::simulation) keeps: bool,
    pub(in crate::simulation) expire_after: Option<Millis>,
    pub(in crate::simulation) after: Vec<String>,
    pub(in crate::simulation) on_failure: OnFailure,
    pub(in crate::simulation) timeout: Millis,
    pub(in crate::simulation) retain: Option<Millis>,
    pub(in crate::simulation) payload: Vec<u8>,
}

/// Which kinds there are in a run, and how many ids of each.
pub(in crate::simulation) struct RequestGenerator {
    kinds: &'static [SimulatedTriggerKind],
    ids: u64,
}

/// A kind of trigger with a lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedTriggerKind {
    Recurring,
    Commanded,
    Dependent,
}

impl RequestGenerator {
    pub(in crate::simulation) fn new(cluster: &mut SimulatedCluster) -> Self {
        use SimulatedTriggerKind::{Commanded, Dependent, Recurring};
        let kinds: &[SimulatedTriggerKind] = match cluster.rng.below(8) {
            0..4 => &[],
            4 => &[Recurring],
            5 => &[Commanded],
            6 => &[Dependent],
            _ => &[Recurring, Commanded, Dependent],
        };
        // Recurring triggers fire seldom: the time has to jump.
        cluster.time_jumps = kinds.contains(&Recurring);
        cluster.has_lifecycles = !kinds.is_empty();
        Self { kinds, ids: cluster.rng.pick(&[2, 6]) }
    }

    /// A record about a trigger with a lifecycle, or none.
    pub(super) fn choose(
        &self,
        serial: usize,
        cluster: &mut SimulatedCluster,
        last_due: &mut Timestamp,
    ) -> Option<SimulatedWrite> {
        if self.kinds.is_empty() || cluster.rng.one_in(2) {
            return None;
        }
        let kind = cluster.rng.pick(self.kinds);
        let nth = cluster.rng.below(self.ids);
        match kind {
            SimulatedTriggerKind::Recurring => {
                recurring(format!("r{nth}"), serial, cluster, last_due)
            }
            SimulatedTriggerKind::Commanded => {
                Some(commanded(format!("c{nth}"), serial, cluster, last_due))
            }
            SimulatedTriggerKind::Dependent => Some(self.dependent(nth, serial, cluster, last_due)),
        }
    }

    /// One that waits for others of its kind, for an unknown id, or for none.
    fn dependent(
        &self,
        nth: u64,
        serial: usize,
        cluster: &mut SimulatedCluster,
        last_due: &mut Timestamp,
    ) -> SimulatedWrite {
        let id = format!("d{nth}");
        match cluster.rng.below(20) {
            0..3 => return cancel(id),
            3 => return command(id, Command::FireNow),
            _ => {}
        }
        let now = cluster.broker.now;
        let mut wanted =
            RequestedTrigger { payload: payload(serial), ..RequestedTrigger::default() };
        let mut headers = target(cluster);
        if !cluster.rng.one_in(3) {
            let other = |cluster: &mut SimulatedCluster| match cluster.rng.below(8) {
                0 => "unknown".to_owned(),
                _ => format!("d{}", (nth + 1 + cluster.rng.below(self.ids - 1)) % self.ids),
            };
            wanted.after.push(other(cluster));
            let another = other(cluster);
            if cluster.rng.one_in(2) && another != wanted.after[0] {
                wanted.after.push(another);
            }
            wanted.timeout = cluster.rng.pick(&[20, 200, 800, 2_000]);
            let (on_failure, text) = cluster.rng.pick(&[
                (OnFailure::Fire, "fire"),
                (OnFailure::Skip, "skip"),
                (OnFailure::Fail, "fail"),
            ]);
            wanted.on_failure = on_failure;
            headers.push(("orloj-after", wanted.after.join(",")));
            headers.push(("orloj-after-timeout", format!("{}ms", wanted.timeout)));
            headers.push(("orloj-on-failure", text.to_owned()));
            *last_due = (*last_due).max(now + wanted.timeout);
        }
        if wanted.after.is_empty() || cluster.rng.one_in(3) {
            let due = now + cluster.rng.pick(&[0, 1, 10, 30, 60, 200, 600]);
            wanted.due = Some(due);
            *last_due = (*last_due).max(due);
            headers.push(("orloj-fire-at", due.to_string()));
        }
        if cluster.rng.one_in(3) {
            let retain = cluster.rng.pick(&[30, 300, 2_000]);
            wanted.retain = Some(retain);
            headers.push(("orloj-retain", format!("{retain}ms")));
        }
        register(id, wanted, headers)
    }
}

/// A recurring one, at full seconds, with frequent commands.
fn recurring(
    id: String,
    serial: usize,
    cluster: &mut SimulatedCluster,
    last_due: &mut Timestamp,
) -> Option<SimulatedWrite> {
    match cluster.rng.below(40) {
        0..5 => {}
        5 => return Some(cancel(id)),
        17..20 => return Some(change(id, serial, cluster, last_due)),
        6..9 => return Some(command(id, Command::Pause)),
        9..14 => return Some(command(id, Command::Resume)),
        14..17 => return Some(command(id, Command::FireNow)),
        _ => return None,
    }
    let mut headers = target(cluster);
    let schedule = schedule(cluster, last_due);
    headers.push(("orloj-schedule", schedule.clone()));
    let mut wanted = RequestedTrigger {
        schedule: Some(schedule),
        payload: payload(serial),
        ..RequestedTrigger::default()
    };
    if cluster.rng.one_in(3) {
        wanted.counts_on = true;
        headers.push(("orloj-count", "keep".to_owned()));
    }
    if cluster.rng.one_in(4) {
        wanted.keeps = true;
        headers.push(("orloj-on-conflict", "keep".to_owned()));
    }
    Some(register(id, wanted, headers))
}

/// A schedule that ends within some seconds.
fn schedule(cluster: &mut SimulatedCluster, last_due: &mut Timestamp) -> String {
    let now = cluster.broker.now;
    let second = now / 1_000 * 1_000;
    let mut fields = match cluster.rng.below(4) {
        0 => vec![r#""every":"PT1S""#.to_owned()],
        1 => vec![r#""every":"PT1S""#.to_owned(), format!(r#""start":{}"#, second + 1_000)],
        2 => vec![r#""every":"PT2S""#.to_owned(), format!(r#""start":{second}"#)],
        _ => vec![r#""cron":"* * * * * *""#.to_owned()],
    };
    let end = now + cluster.rng.pick(&[2_500, 4_000, 8_000]);
    fields.push(format!(r#""end":{end}"#));
    *last_due = (*last_due).max(end);
    if cluster.rng.one_in(3) {
        fields.push(format!(r#""maxExecutions":{}"#, cluster.rng.pick(&[1, 2, 4])));
    }
    if cluster.rng.one_in(3) {
        fields.push(r#""jitter":"PT0.2S""#.to_owned());
    }
    fields.push(
        cluster
            .rng
            .pick(&[
                r#""misfire":"skip""#,
                r#""misfire":"latest""#,
                r#""misfire":{"all":1}"#,
                r#""misfire":{"all":3}"#,
            ])
            .to_owned(),
    );
    fields.push(
        cluster
            .rng
            .pick(&[
                r#""overlap":"allow""#,
                r#""overlap":"skip""#,
                r#""overlap":"queue""#,
                r#""overlap":"queue""#,
            ])
            .to_owned(),
    );
    if cluster.rng.one_in(3) {
        fields.push(format!(r#""pauseAfter":{}"#, cluster.rng.pick(&[1, 2])));
    }
    format!("{{{}}}", fields.join(","))
}

/// One that fires once, with commands.
fn commanded(
    id: String,
    serial: usize,
    cluster: &mut SimulatedCluster,
    last_due: &mut Timestamp,
) -> SimulatedWrite {
    match cluster.rng.below(20) {
        0..7 => {}
        7..9 => return cancel(id),
        9..11 => return command(id, Command::Pause),
        11..13 => return command(id, Command::Resume),
        13..16 => return command(id, Command::FireNow),
        _ => return change(id, serial, cluster, last_due),
    }
    let ahead = cluster.rng.pick(&[-5, 0, 3, 10, 25, 45, 50, 51, 70, 100, 200, 900]);
    let due = cluster.broker.now.saturating_add_signed(ahead);
    *last_due = (*last_due).max(due);
    let mut headers = target(cluster);
    headers.push(("orloj-fire-at", due.to_string()));
    let mut wanted = RequestedTrigger {
        due: Some(due),
        payload: payload(serial),
        ..RequestedTrigger::default()
    };
    if cluster.rng.one_in(5) {
        let span = cluster.rng.pick(&[1, 40, 300]);
        wanted.expire_after = Some(span);
        headers.push(("orloj-expire-after", format!("{span}ms")));
    }
    if cluster.rng.one_in(5) {
        wanted.keeps = true;
        headers.push(("orloj-on-conflict", "keep".to_owned()));
    }
    register(id, wanted, headers)
}

fn payload(serial: usize) -> Vec<u8> {
    format!("payload {serial}").into_bytes()
}

/// Its target and its priority.
fn target(cluster: &mut SimulatedCluster) -> SimulatedHeaders {
    let (name, target) = match cluster.rng.below(6) {
        0..3 => ("orloj-callback-url", "https://example.com/".to_owned()),
        to => ("orloj-target-topic", format!("topic-{}", to - 1)),
    };
    let priority = cluster.rng.pick(&["7", "128", "128", "255"]).to_owned();
    vec![(name, target), ("orloj-priority", priority)]
}

fn register(id: String, wanted: RequestedTrigger, headers: SimulatedHeaders) -> SimulatedWrite {
    let value = Some(Bytes::from(wanted.payload.clone()));
    let intent = Intent::Lifecycle(Box::new(UserRequest::Register(wanted)));
    SimulatedWrite { id, intent, value, headers }
}

fn cancel(id: String) -> SimulatedWrite {
    SimulatedWrite {
        id,
        intent: Intent::Lifecycle(Box::new(UserRequest::Cancel)),
        value: None,
        headers: Vec::new(),
    }
}

/// A change of its payload, of its time or schedule, or of neither.
fn change(
    id: String,
    serial: usize,
    cluster: &mut SimulatedCluster,
    last_due: &mut Timestamp,
) -> SimulatedWrite {
    let mut asked = RequestedChange::default();
    let (mut headers, mut parts) = (target(cluster), Vec::new());
    if cluster.rng.one_in(2) {
        asked.payload = Some(payload(serial));
        parts.push("payload");
    }
    let changes_time = cluster.rng.one_in(2);
    if changes_time {
        parts.push("time");
    }
    if changes_time && id.starts_with('r') {
        let schedule = schedule(cluster, last_due);
        headers.push(("orloj-schedule", schedule.clone()));
        asked.schedule = Some(schedule);
        asked.counts_on = cluster.rng.one_in(2);
        let count = if asked.counts_on { "keep" } else { "reset" };
        headers.push(("orloj-count", count.to_owned()));
    } else {
        let ahead = cluster.rng.pick(&[-5, 0, 3, 10, 25, 45, 50, 51, 70, 100, 200, 900]);
        let due = cluster.broker.now.saturating_add_signed(ahead);
        headers.push(("orloj-fire-at", due.to_string()));
        asked.due = changes_time.then_some(due);
        *last_due = (*last_due).max(asked.due.unwrap_or(0));
    }
    if id.starts_with('c') && cluster.rng.one_in(5) {
        let span = cluster.rng.pick(&[1, 40, 300]);
        asked.expire_after = Some(span);
        headers.push(("orloj-expire-after", format!("{span}ms")));
    }
    if cluster.rng.one_in(8) {
        asked.stale = true;
        headers.push(("orloj-if-generation", "999999999".to_owned()));
    }
    headers.push(("orloj-command", "change".to_owned()));
    headers.push(("orloj-change", parts.join(",")));
    let value = Some(Bytes::from(asked.payload.clone().unwrap_or_default()));
    let intent = Intent::Lifecycle(Box::new(UserRequest::Change(asked)));
    SimulatedWrite { id, intent, value, headers }
}

fn command(id: String, command: Command) -> SimulatedWrite {
    let text = match command {
        Command::Pause => "pause",
        Command::Resume => "resume",
        Command::FireNow => "fire-now",
    };
    let headers = vec![("orloj-command", text.to_owned())];
    let intent = Intent::Lifecycle(Box::new(UserRequest::Command(command)));
    SimulatedWrite { id, intent, value: Some(Bytes::new()), headers }
}
