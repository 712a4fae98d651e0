//! What users write of triggers with a course: recurring ones (ids `r…`), ones that commands are
//! about (`c…`), and ones that wait for others (`d…`).
//!
//! Invariant: each kind has ids of its own, so that what must hold of it can be decided. Half of
//! the runs have none of them.

use bytes::Bytes;
use orloj_core::model::lifecycle::{Command, OnFailure};
use orloj_core::model::{Millis, Timestamp};

use super::{Meant, SimulatedHeaders, SimulatedWrite};
use crate::simulation::site::SimulatedCluster;

/// What a record asked for.
#[derive(Clone, Debug)]
pub(in crate::simulation) enum Wish {
    Register(Wanted),
    Cancel,
    Command(Command),
}

/// A trigger as its user wants it.
#[derive(Clone, Debug, Default)]
pub(in crate::simulation) struct Wanted {
    /// When, in ms since the epoch; none if a schedule says, or if it is due with what it waits
    /// for.
    pub(in crate::simulation) due: Option<Timestamp>,
    /// A schedule as JSON.
    pub(in crate::simulation) schedule: Option<String>,
    /// Whether its executions are counted on from those of the one it replaces.
    pub(in crate::simulation) counts_on: bool,
    /// Whether it gives way to a pending one.
    pub(in crate::simulation) keeps: bool,
    pub(in crate::simulation) expire_after: Option<Millis>,
    pub(in crate::simulation) after: Vec<String>,
    pub(in crate::simulation) on_failure: OnFailure,
    pub(in crate::simulation) timeout: Millis,
    pub(in crate::simulation) retain: Option<Millis>,
    pub(in crate::simulation) payload: Vec<u8>,
}

/// Which kinds there are in a run, and how many ids of each.
pub(in crate::simulation) struct Menu {
    kinds: &'static [SimulatedTriggerKind],
    ids: u64,
}

/// A kind of trigger with a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedTriggerKind {
    Recurring,
    Commanded,
    Dependent,
}

impl Menu {
    pub(in crate::simulation) fn new(site: &mut SimulatedCluster) -> Self {
        use SimulatedTriggerKind::{Commanded, Dependent, Recurring};
        let kinds: &[SimulatedTriggerKind] = match site.dice.roll(8) {
            0..4 => &[],
            4 => &[Recurring],
            5 => &[Commanded],
            6 => &[Dependent],
            _ => &[Recurring, Commanded, Dependent],
        };
        // Of what recurs only every so much happens: time has to leap.
        site.leaps = kinds.contains(&Recurring);
        Self { kinds, ids: site.dice.pick(&[2, 6]) }
    }

    /// A record about a trigger with a course, for some of all records.
    pub(super) fn choose(
        &self,
        serial: usize,
        site: &mut SimulatedCluster,
        last_due: &mut Timestamp,
    ) -> Option<SimulatedWrite> {
        if self.kinds.is_empty() || site.dice.one_in(2) {
            return None;
        }
        let kind = site.dice.pick(self.kinds);
        let nth = site.dice.roll(self.ids);
        match kind {
            SimulatedTriggerKind::Recurring => recurring(format!("r{nth}"), serial, site, last_due),
            SimulatedTriggerKind::Commanded => {
                Some(commanded(format!("c{nth}"), serial, site, last_due))
            }
            SimulatedTriggerKind::Dependent => Some(self.dependent(nth, serial, site, last_due)),
        }
    }

    /// One that waits for others of its kind, or for nobody.
    fn dependent(
        &self,
        nth: u64,
        serial: usize,
        site: &mut SimulatedCluster,
        last_due: &mut Timestamp,
    ) -> SimulatedWrite {
        let id = format!("d{nth}");
        match site.dice.roll(20) {
            0..3 => return cancel(id),
            3 => return command(id, Command::FireNow),
            _ => {}
        }
        let now = site.broker.now;
        let mut wanted = Wanted { payload: payload(serial), ..Wanted::default() };
        let mut headers = target(site);
        if !site.dice.one_in(3) {
            let other = |site: &mut SimulatedCluster| match site.dice.roll(8) {
                0 => "nobody".to_owned(),
                _ => format!("d{}", (nth + 1 + site.dice.roll(self.ids - 1)) % self.ids),
            };
            wanted.after.push(other(site));
            let another = other(site);
            if site.dice.one_in(2) && another != wanted.after[0] {
                wanted.after.push(another);
            }
            wanted.timeout = site.dice.pick(&[20, 200, 800, 2_000]);
            let (on_failure, text) = site.dice.pick(&[
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
        if wanted.after.is_empty() || site.dice.one_in(3) {
            let due = now + site.dice.pick(&[0, 1, 10, 30, 60, 200, 600]);
            wanted.due = Some(due);
            *last_due = (*last_due).max(due);
            headers.push(("orloj-fire-at", due.to_string()));
        }
        if site.dice.one_in(3) {
            let retain = site.dice.pick(&[30, 300, 2_000]);
            wanted.retain = Some(retain);
            headers.push(("orloj-retain", format!("{retain}ms")));
        }
        register(id, wanted, headers)
    }
}

/// One that comes again and again, at full seconds, and is often told what to do.
fn recurring(
    id: String,
    serial: usize,
    site: &mut SimulatedCluster,
    last_due: &mut Timestamp,
) -> Option<SimulatedWrite> {
    match site.dice.roll(40) {
        0..5 => {}
        5 => return Some(cancel(id)),
        6..9 => return Some(command(id, Command::Pause)),
        9..14 => return Some(command(id, Command::Resume)),
        14..17 => return Some(command(id, Command::FireNow)),
        _ => return None,
    }
    let mut headers = target(site);
    let schedule = schedule(site, last_due);
    headers.push(("orloj-schedule", schedule.clone()));
    let mut wanted =
        Wanted { schedule: Some(schedule), payload: payload(serial), ..Wanted::default() };
    if site.dice.one_in(3) {
        wanted.counts_on = true;
        headers.push(("orloj-count", "keep".to_owned()));
    }
    if site.dice.one_in(4) {
        wanted.keeps = true;
        headers.push(("orloj-on-conflict", "keep".to_owned()));
    }
    Some(register(id, wanted, headers))
}

/// A schedule that ends within some seconds.
fn schedule(site: &mut SimulatedCluster, last_due: &mut Timestamp) -> String {
    let now = site.broker.now;
    let second = now / 1_000 * 1_000;
    let mut fields = match site.dice.roll(4) {
        0 => vec![r#""every":"PT1S""#.to_owned()],
        1 => vec![r#""every":"PT1S""#.to_owned(), format!(r#""start":{}"#, second + 1_000)],
        2 => vec![r#""every":"PT2S""#.to_owned(), format!(r#""start":{second}"#)],
        _ => vec![r#""cron":"* * * * * *""#.to_owned()],
    };
    let end = now + site.dice.pick(&[2_500, 4_000, 8_000]);
    fields.push(format!(r#""end":{end}"#));
    *last_due = (*last_due).max(end);
    if site.dice.one_in(3) {
        fields.push(format!(r#""maxExecutions":{}"#, site.dice.pick(&[1, 2, 4])));
    }
    if site.dice.one_in(3) {
        fields.push(r#""jitter":"PT0.2S""#.to_owned());
    }
    fields.push(
        site.dice
            .pick(&[
                r#""misfire":"skip""#,
                r#""misfire":"latest""#,
                r#""misfire":{"all":1}"#,
                r#""misfire":{"all":3}"#,
            ])
            .to_owned(),
    );
    fields.push(
        site.dice
            .pick(&[
                r#""overlap":"allow""#,
                r#""overlap":"skip""#,
                r#""overlap":"queue""#,
                r#""overlap":"queue""#,
            ])
            .to_owned(),
    );
    if site.dice.one_in(3) {
        fields.push(format!(r#""pauseAfter":{}"#, site.dice.pick(&[1, 2])));
    }
    format!("{{{}}}", fields.join(","))
}

/// One of one time that is told what to do.
fn commanded(
    id: String,
    serial: usize,
    site: &mut SimulatedCluster,
    last_due: &mut Timestamp,
) -> SimulatedWrite {
    match site.dice.roll(16) {
        0..7 => {}
        7..9 => return cancel(id),
        9..11 => return command(id, Command::Pause),
        11..13 => return command(id, Command::Resume),
        _ => return command(id, Command::FireNow),
    }
    let ahead = site.dice.pick(&[-5, 0, 3, 10, 25, 45, 50, 51, 70, 100, 200, 900]);
    let due = site.broker.now.saturating_add_signed(ahead);
    *last_due = (*last_due).max(due);
    let mut headers = target(site);
    headers.push(("orloj-fire-at", due.to_string()));
    let mut wanted = Wanted { due: Some(due), payload: payload(serial), ..Wanted::default() };
    if site.dice.one_in(5) {
        let span = site.dice.pick(&[1, 40, 300]);
        wanted.expire_after = Some(span);
        headers.push(("orloj-expire-after", format!("{span}ms")));
    }
    if site.dice.one_in(5) {
        wanted.keeps = true;
        headers.push(("orloj-on-conflict", "keep".to_owned()));
    }
    register(id, wanted, headers)
}

fn payload(serial: usize) -> Vec<u8> {
    format!("payload {serial}").into_bytes()
}

/// Where it fires, and how urgently.
fn target(site: &mut SimulatedCluster) -> SimulatedHeaders {
    let (name, target) = match site.dice.roll(6) {
        0..3 => ("orloj-callback-url", "https://example.com/".to_owned()),
        to => ("orloj-target-topic", format!("topic-{}", to - 1)),
    };
    let priority = site.dice.pick(&["7", "128", "128", "255"]).to_owned();
    vec![(name, target), ("orloj-priority", priority)]
}

fn register(id: String, wanted: Wanted, headers: SimulatedHeaders) -> SimulatedWrite {
    let value = Some(Bytes::from(wanted.payload.clone()));
    let meant = Meant::Course(Box::new(Wish::Register(wanted)));
    SimulatedWrite { id, meant, value, headers }
}

fn cancel(id: String) -> SimulatedWrite {
    SimulatedWrite {
        id,
        meant: Meant::Course(Box::new(Wish::Cancel)),
        value: None,
        headers: Vec::new(),
    }
}

fn command(id: String, command: Command) -> SimulatedWrite {
    let text = match command {
        Command::Pause => "pause",
        Command::Resume => "resume",
        Command::FireNow => "fire-now",
    };
    let headers = vec![("orloj-command", text.to_owned())];
    let meant = Meant::Course(Box::new(Wish::Command(command)));
    SimulatedWrite { id, meant, value: Some(Bytes::new()), headers }
}
