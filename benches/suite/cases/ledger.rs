//! Long triggers: each goes through the ledger.
//!
//! Law: a setting makes triggers of half a minute long ones. What is measured is what a trigger of
//! a month costs at both its ends: to be registered, and to be fired.

use orloj::clock;
use orloj::kafka::Names;
use orloj::model::Millis;

use super::burst::moment;
use crate::contender::Contender;
use crate::figures::Figure;
use crate::registrar::Registrar;
use crate::run::{Outcome, Run, say};
use crate::site::Site;
use crate::witness::Witness;

const SERIES: &str = "long";
/// Triggers.
const COUNT: u32 = 100_000;
/// What is due later is long.
const LONG: &str = "scheduler.ledger_after = '1s'";
/// To write and take in all of them, in ms.
const LEAD_MS: Millis = 30_000;

/// B8: registered and fired a second, and what the ledger has got for each.
pub(crate) fn long_triggers(run: &Run) -> Outcome {
    let count = run.count(COUNT);
    let rounds: Vec<_> = run.rounds().map(|number| round(run, number, count)).collect();
    let figure = |name: &str, unit, at: usize| {
        Figure::new(name, unit, rounds.iter().map(|round| round[at]).collect())
    };
    let figures = vec![
        figure("registered", "/s", 0),
        figure("fired", "/s", 1),
        figure("ledger records a trigger, markers included", "", 2),
    ];
    Outcome { figures, ..Outcome::default() }
}

fn round(run: &Run, number: u32, count: u32) -> [f64; 3] {
    let site = Site::prepare_with(run.bootstrap, LONG);
    let due = clock::now_ms() + LEAD_MS;
    let mut witness = Witness::open(&site, "scheduler");
    let mut registrar = Registrar::open(&site);
    let _rate = registrar.fill(SERIES, count, |_| due);
    let mark = registrar.mark();
    registrar.flush();
    let _scheduler = Contender::scheduler(&site);
    let begun = clock::monotonic();
    witness.until_marked(mark);
    let registered = f64::from(count) / (clock::monotonic() - begun).as_secs_f64();
    assert!(clock::now_ms() + 1_000 < due, "all must be taken in before their time");
    let begun = moment(due);
    let fired = f64::from(count) / (witness.count(SERIES, count) - begun).as_secs_f64();
    let ledger: i64 = site.ends(&Names::new(&site.settings.topics.prefix).ledger()).iter().sum();
    say(&format!("round {number}: registered {registered:.0}/s, fired {fired:.0}/s"));
    [registered, fired, ledger as f64 / f64::from(count)]
}
