//! Those who write to the inputs: users, who register, replace and cancel, some of them badly; and
//! workers, who make callbacks and report what failed.
//!
//! Invariant: they know nothing of owners; what they meant is kept for the checker.

mod wishes;
mod workers;

use bytes::Bytes;
use orloj_core::model::Timestamp;
use orloj_core::model::definition::Header;

use super::broker::{Producer, SimulatedOutput, SimulatedRawRecord};
use super::calamity::Calamity;
use super::log::SimulatedTransactionState;
use super::site::{PARTITIONS, SimulatedCluster, home};
use crate::audit::CommandKind;
pub(super) use wishes::{Menu, Wanted, Wish};
pub(super) use workers::Workers;

/// The header that says which command a record is, wherever it is forwarded to.
const SERIAL: &str = "serial";
/// The producer of users, beside those of the nodes and the workers.
const USERS: usize = 90;

/// What a record was meant to do.
#[derive(Clone, Debug)]
pub(super) enum Meant {
    /// To a trigger of one time and nothing else.
    Plain(CommandKind),
    /// To one with a course.
    Course(Box<Wish>),
}

/// A record of `triggers` before it is written.
struct SimulatedWrite {
    id: String,
    meant: Meant,
    value: Option<Bytes>,
    headers: SimulatedHeaders,
}

/// Names and values.
type SimulatedHeaders = Vec<(&'static str, String)>;

/// Everyone who registers.
pub(super) struct Users {
    ids: u64,
    menu: Menu,
    /// What each record meant, by its serial number.
    pub(super) meant: Vec<Meant>,
    /// The latest due time of all, in ms since the epoch.
    pub(super) last_due: Timestamp,
    open: Option<(Producer, Timestamp)>,
}

impl Users {
    pub(super) fn new(site: &mut SimulatedCluster) -> Self {
        let ids = site.dice.pick(&[4, 12, 60]);
        Self { ids, menu: Menu::new(site), meant: Vec::new(), last_due: 0, open: None }
    }

    /// Writes a few records, perhaps in a transaction that stays open for a while.
    pub(super) fn write(&mut self, site: &mut SimulatedCluster) {
        let now = site.broker.now;
        self.end_transaction(site, |until| until <= now);
        if self.open.is_none() && site.dice.one_in(12) {
            let until = now + site.dice.pick(&[0, 5, 55]);
            self.open = Some((site.broker.init(USERS), until));
            site.counts.add(Calamity::ProducerHesitates);
        }
        for _ in 0..site.dice.pick(&[1, 1, 2, 5]) {
            self.write_one(site);
        }
    }

    /// Ends the open transaction if it is time to, one way or the other.
    pub(super) fn end_transaction(
        &mut self,
        site: &mut SimulatedCluster,
        is_time: impl Fn(Timestamp) -> bool,
    ) {
        let Some((producer, _)) = self.open.take_if(|(_, until)| is_time(*until)) else { return };
        let fate = site.dice.pick(&[
            SimulatedTransactionState::Committed,
            SimulatedTransactionState::Committed,
            SimulatedTransactionState::Aborted,
        ]);
        if fate == SimulatedTransactionState::Aborted {
            site.counts.add(Calamity::ProducerAborted);
        }
        // Too late is as good as aborted.
        let _late = site.broker.end(producer, fate);
    }

    fn write_one(&mut self, site: &mut SimulatedCluster) {
        let serial = self.meant.len();
        let more = self.menu.choose(serial, site, &mut self.last_due);
        let SimulatedWrite { id, meant, value, mut headers } =
            more.unwrap_or_else(|| self.plain(serial, site));
        headers.extend([(SERIAL, serial.to_string()), ("orloj-ack", "true".to_owned())]);
        self.meant.push(meant);
        let mut p = home(id.as_bytes());
        if site.dice.one_in(12) {
            p = (p + 1) % PARTITIONS;
            site.counts.add(Calamity::WrongPartition);
        }
        let header = |(name, value): (&str, String)| Header {
            name: name.into(),
            value: Some(Bytes::from(value)),
        };
        let headers = headers.into_iter().map(header).collect();
        let record = SimulatedOutput::Trigger(
            p,
            SimulatedRawRecord { key: Bytes::from(id), value, headers },
        );
        match self.open {
            Some((producer, _)) if site.dice.one_in(2) => {
                if site.broker.send(producer, record).is_err() {
                    self.open = None;
                }
            }
            _ => {
                let _offset = site.broker.write(record);
            }
        }
    }

    fn plain(&mut self, serial: usize, site: &mut SimulatedCluster) -> SimulatedWrite {
        let id = format!("t{}", site.dice.roll(self.ids));
        let (kind, value, headers) = self.command(serial, site);
        SimulatedWrite { id, meant: Meant::Plain(kind), value, headers }
    }

    fn command(
        &mut self,
        serial: usize,
        site: &mut SimulatedCluster,
    ) -> (CommandKind, Option<Bytes>, SimulatedHeaders) {
        if site.dice.one_in(4) {
            return (CommandKind::Cancel, None, Vec::new());
        }
        let payload = format!("payload {serial}");
        let value = Some(Bytes::from(payload.clone()));
        if site.dice.one_in(60) {
            site.counts.add(Calamity::Unreadable);
            return (CommandKind::Malformed, value, vec![("orloj-fire-at", "soon".to_owned())]);
        }
        if site.dice.one_in(12) {
            site.counts.add(Calamity::Idle);
            return idle(value, site);
        }
        let ahead = site.dice.pick(&[-5, 0, 1, 3, 10, 25, 45, 50, 51, 70, 100, 200, 900]);
        let due = site.broker.now.saturating_add_signed(ahead);
        self.last_due = self.last_due.max(due);
        let (name, target) = match site.dice.roll(5) {
            0 | 1 => ("orloj-callback-url", "https://example.com/".to_owned()),
            to => ("orloj-target-topic", format!("topic-{to}")),
        };
        let priority = site.dice.pick(&["7", "128", "128", "255"]).to_owned();
        let mut headers =
            vec![("orloj-fire-at", due.to_string()), (name, target), ("orloj-priority", priority)];
        let payload = payload.into_bytes();
        if site.dice.one_in(4) {
            headers.push(("orloj-on-conflict", "keep".to_owned()));
            return (CommandKind::Keep { due, payload }, value, headers);
        }
        (CommandKind::Register { due, payload }, value, headers)
    }
}

/// What must do nothing to anybody: see [`Kind::NoEffect`].
fn idle(
    value: Option<Bytes>,
    site: &mut SimulatedCluster,
) -> (CommandKind, Option<Bytes>, SimulatedHeaders) {
    if site.dice.one_in(2) {
        return (CommandKind::NoEffect, None, vec![("orloj-caller", "nobody".to_owned())]);
    }
    let headers = vec![
        ("orloj-delay", site.dice.pick(&["0", "10", "100"]).to_owned()),
        ("orloj-target-topic", "topic-2".to_owned()),
        ("orloj-if-generation", "999999999".to_owned()),
    ];
    (CommandKind::NoEffect, value, headers)
}

/// Which command a record is.
pub(super) fn serial(raw: &SimulatedRawRecord) -> usize {
    let header = raw.headers.iter().find(|header| header.name == *SERIAL);
    let value = header.and_then(|header| header.value.as_ref()).expect("every record has one");
    std::str::from_utf8(value).unwrap().parse().unwrap()
}
