//! Sites with millions of triggers pending, made once in a run and used by every case.
//!
//! Law: what is pending is due uniformly over the next 24 hours, in the partitions in which is
//! measured; it has been taken in by the scheduler, is in its ledger and on its disk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use orloj::clock;
use orloj::model::Millis;

use crate::contender::Contender;
use crate::registrar::{Registrar, scattered};
use crate::run::say;
use crate::site::Site;
use crate::witness::Witness;

/// Ids of pending triggers begin with this.
const SERIES: &str = "pending";
/// Over how long they are due.
const DAY_MS: Millis = 24 * 3_600 * 1_000;

/// The sites of a run.
#[derive(Default)]
pub(crate) struct Stock(RefCell<BTreeMap<u32, Rc<Site>>>);

impl Stock {
    /// A site with so many pending, its scheduler ended gracefully.
    pub(crate) fn with_pending(&self, bootstrap: &str, count: u32) -> Rc<Site> {
        let mut sites = self.0.borrow_mut();
        let site = sites.entry(count).or_insert_with(|| Rc::new(prepare(bootstrap, count, "")));
        Rc::clone(site)
    }
}

/// A new site with so many pending, its scheduler ended gracefully.
pub(crate) fn prepare(bootstrap: &str, count: u32, more: &str) -> Site {
    let site = Site::prepare_with(bootstrap, more);
    if count == 0 {
        return site;
    }
    let mut witness = Witness::open(&site, "scheduler");
    let begin = clock::now_ms();
    let mut registrar = Registrar::open(&site);
    let rate = registrar.fill(SERIES, count, |n| begin + scattered(n, DAY_MS));
    let mark = registrar.mark();
    registrar.flush();
    say(&format!("{count} pending: written at {rate:.0}/s"));
    let scheduler = Contender::scheduler(&site);
    let ready = clock::monotonic();
    witness.until_marked(mark);
    let rate = f64::from(count) / (clock::monotonic() - ready).as_secs_f64();
    say(&format!("{count} pending: taken in at {rate:.0}/s"));
    scheduler.rest();
    let rested = (clock::monotonic() - ready).as_secs();
    scheduler.terminate();
    say(&format!("{count} pending: at rest {rested} s after the start"));
    // What a process has written to the ledger is read by the next one, once.
    Contender::scheduler(&site).terminate();
    site
}
