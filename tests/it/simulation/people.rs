//! Those who write to the inputs: users, who register, replace and cancel, some of them badly; and
//! workers, who make callbacks and report what failed.
//!
//! Law: they know nothing of owners; what they meant is kept for the checker.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use orloj::engine::step::Emit;
use orloj::fault::{Bug, planted};
use orloj::model::definition::Header;
use orloj::model::entry::FireId;
use orloj::model::fire::Fire;
use orloj::model::outcome::{Outcome, Verdict};
use orloj::model::signal::{RetryRequest, Signal};
use orloj::model::{Offset, Timestamp};

use super::broker::{Outgoing, Producer, Raw, Sent};
use super::calamity::Calamity;
use super::log::Fate;
use super::site::{PARTITIONS, Site, home};
use crate::audit::Kind;

/// The header that says which command a record is, wherever it is forwarded to.
const SERIAL: &str = "serial";
/// The producers of users and workers, beside those of the nodes.
const USERS: usize = 90;
const WORKERS: usize = 91;

/// Everyone who registers.
pub(super) struct Users {
    ids: u64,
    /// What each record meant, by its serial number.
    pub(super) meant: Vec<Kind>,
    /// The latest due time of all, in ms since the epoch.
    pub(super) last_due: Timestamp,
    open: Option<(Producer, Timestamp)>,
}

impl Users {
    pub(super) fn new(site: &mut Site) -> Self {
        let ids = site.dice.pick(&[4, 12, 60]);
        Self { ids, meant: Vec::new(), last_due: 0, open: None }
    }

    /// Writes a few records, perhaps in a transaction that stays open for a while.
    pub(super) fn write(&mut self, site: &mut Site) {
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
    pub(super) fn end_transaction(&mut self, site: &mut Site, is_time: impl Fn(Timestamp) -> bool) {
        let Some((producer, _)) = self.open.take_if(|(_, until)| is_time(*until)) else { return };
        let fate = site.dice.pick(&[Fate::Committed, Fate::Committed, Fate::Aborted]);
        if fate == Fate::Aborted {
            site.counts.add(Calamity::ProducerAborted);
        }
        // Too late is as good as aborted.
        let _late = site.broker.end(producer, fate);
    }

    fn write_one(&mut self, site: &mut Site) {
        let id = format!("t{}", site.dice.roll(self.ids));
        let serial = self.meant.len();
        let (kind, value, mut headers) = self.command(serial, site);
        headers.extend([(SERIAL, serial.to_string()), ("orloj-ack", "true".to_owned())]);
        self.meant.push(kind);
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
        let record = Outgoing::Trigger(p, Raw { key: Bytes::from(id), value, headers });
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

    fn command(
        &mut self,
        serial: usize,
        site: &mut Site,
    ) -> (Kind, Option<Bytes>, Vec<(&'static str, String)>) {
        if site.dice.one_in(4) {
            return (Kind::Cancel, None, Vec::new());
        }
        let payload = format!("payload {serial}");
        let value = Some(Bytes::from(payload.clone()));
        if site.dice.one_in(60) {
            site.counts.add(Calamity::Unreadable);
            return (Kind::Nonsense, value, vec![("orloj-fire-at", "soon".to_owned())]);
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
            return (Kind::Keep { due, payload }, value, headers);
        }
        (Kind::Register { due, payload }, value, headers)
    }
}

/// Which command a record is.
pub(super) fn serial(raw: &Raw) -> usize {
    let header = raw.headers.iter().find(|header| header.name == *SERIAL);
    let value = header.and_then(|header| header.value.as_ref()).expect("every record has one");
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Everyone who makes callbacks.
#[derive(Default)]
pub(super) struct Workers {
    /// Where the fires of each partition are read.
    next: [Offset; PARTITIONS],
    /// What was read there and not begun.
    waiting: [Vec<(Offset, Fire)>; PARTITIONS],
    /// What lies below may have been begun by one who died.
    doubtful: [Offset; PARTITIONS],
    /// Every fire that was ever begun, and every one that was withdrawn, by partition and offset.
    pub(super) requested: BTreeSet<(usize, Offset)>,
    pub(super) withdrawn: BTreeMap<(usize, Offset), FireId>,
    /// Reports that are on their way, and when they arrive.
    late: Vec<(Timestamp, usize, RetryRequest)>,
}

impl Workers {
    /// Makes some callbacks of one partition; many fail, and some are withdrawn.
    pub(super) fn work(&mut self, p: usize, site: &mut Site) {
        let max = site.batch();
        let batch = site.broker.fires[p].read(&site.broker.fates, self.next[p], max);
        let producer = site.broker.init(WORKERS);
        let (mut waiting, mut withdrawn) = (self.waiting[p].clone(), Vec::new());
        for (offset, _, sent) in batch.records {
            match sent.emit {
                Emit::ToWorker(fire) => waiting.push((offset, *fire)),
                Emit::Withdraw { withdrawal, .. } => {
                    let known = if planted(Bug::WithdrawBegun) { 0 } else { self.doubtful[p] };
                    let meant = |(offset, fire): &mut (Offset, Fire)| {
                        *offset >= known && withdrawal.means(&fire.id)
                    };
                    withdrawn.extend(waiting.extract_if(.., meant));
                }
                _ => {}
            }
        }
        for (_, fire) in &withdrawn {
            let _open = site.broker.send(producer, told(p, &fire.id, site.broker.now));
        }
        let begun = if site.calm { waiting.len() } else { site.dice.place(waiting.len() + 1) };
        let mut late = Vec::new();
        for (offset, fire) in waiting.drain(..begun) {
            self.requested.insert((p, offset));
            let Some(request) = report(&fire, site) else { continue };
            let delay = site.dice.pick(&[0, 0, 0, 8, 30, 200]);
            if delay == 0 {
                let _open =
                    site.broker.send(producer, Outgoing::Signal(p, Signal::Retry(request.clone())));
            } else {
                site.counts.add(Calamity::SignalLate);
                late.push((site.broker.now + delay, p, request.clone()));
            }
            if !site.calm && site.dice.one_in(10) {
                site.counts.add(Calamity::SignalDoubled);
                late.push((site.broker.now + site.dice.pick(&[1, 10, 60]), p, request));
            }
        }
        if !site.calm && site.dice.one_in(10) {
            // It died before it had committed: another one makes the same callbacks.
            site.counts.add(Calamity::WorkerAborted);
            let _ended = site.broker.end(producer, Fate::Aborted);
            self.doubtful[p] = self.doubtful[p].max(batch.next);
        } else {
            let _ended = site.broker.end(producer, Fate::Committed);
            site.counts.add_many(Calamity::Withdrawn, withdrawn.len() as u64);
            let withdrawn = withdrawn.into_iter().map(|(offset, fire)| ((p, offset), fire.id));
            self.withdrawn.extend(withdrawn);
            self.waiting[p] = waiting;
            self.next[p] = batch.next;
            self.late.append(&mut late);
        }
        let now = site.broker.now;
        for (_, p, request) in self.late.extract_if(.., |(at, ..)| *at <= now) {
            let _offset = site.broker.write(Outgoing::Signal(p, Signal::Retry(request)));
        }
    }

    /// Whether all fires are worked off and all reports written.
    pub(super) fn are_done(&self, site: &Site) -> bool {
        let done =
            |p: usize| site.broker.fires[p].high() == self.next[p] && self.waiting[p].is_empty();
        self.late.is_empty() && (0..PARTITIONS).all(done)
    }
}

/// What a worker says of a fire that it will not make.
fn told(p: usize, id: &FireId, now: Timestamp) -> Outgoing {
    let FireId { trigger, generation, occurrence, attempt, .. } = id.clone();
    let verdict = Verdict::Withdrawn { generation, occurrence, attempt };
    let emit = Emit::Outcome(Box::new(Outcome { trigger, answers: None, at: now, verdict }));
    Outgoing::Other(p, Sent { emit, tenure: 0, clock: now, decided: 0 })
}

/// What a worker asks for after a callback, if it has failed.
fn report(fire: &Fire, site: &mut Site) -> Option<RetryRequest> {
    let FireId { attempt, deferral, .. } = fire.id;
    let id = match site.dice.roll(10) {
        0..4 if attempt < 4 => FireId { attempt: attempt + 1, deferral: 0, ..fire.id.clone() },
        4 if deferral < 2 => FireId { deferral: deferral + 1, ..fire.id.clone() },
        _ => return None,
    };
    Some(RetryRequest {
        id,
        due: site.broker.now + site.dice.pick(&[0, 1, 5, 60, 120]),
        scheduled: fire.scheduled,
        reason: "500".to_owned(),
        definition: fire.definition.clone(),
        history: fire.history.clone(),
        settles: fire.settles,
        priority: fire.priority,
    })
}
