//! How late fires are seen, next to the ticker's, against what is pending.
//!
//! Law: from the due time to being received by a read_committed reader in another process. The
//! ticker runs alone, at the same rate, in the same round; the pending triggers fire meanwhile into
//! the same topic and are not counted. Beside it stands the ticker *in company*: somebody registers
//! at the same rate and somebody reads that, as for every scheduler. What it loses by that is the
//! broker's and the processor's, whoever fires.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orloj::kafka::Names;
use orloj::kafka::reader::Reader;
use orloj::model::Millis;

use crate::chart::{Axes, Chart, Line};
use crate::contender::Contender;
use crate::figures::{Figure, Goal, amount};
use crate::registrar::Registrar;
use crate::run::{Outcome, Run, say};
use crate::site::{PARTITIONS, Site};
use crate::ticker;
use crate::witness::{Lateness, Witness};

/// From a registration to its time, in ms.
const LEAD_MS: Millis = 3_000;
/// Seconds of firing before lateness is measured.
pub(super) const WARM_UP_S: u32 = 2;
/// The rate at which lateness is judged, if the plan has several.
const JUDGED_RATE: u32 = 10_000;
/// When what is registered beside the ticker would be due, in ms from then.
const NEVER_MS: Millis = 24 * 3_600 * 1_000;
/// How long its reader waits for more at a time.
const POLL: Duration = Duration::from_millis(10);

/// What one round has measured: of the ticker by rate, of the scheduler by pending and rate.
struct Round {
    ticker: Vec<Lateness>,
    /// At the rate that is judged.
    in_company: Option<Lateness>,
    scheduler: Vec<Vec<Lateness>>,
}

/// A percentile, and where it stands.
type Percentile = (&'static str, fn(&Lateness) -> f64);

const PERCENTILES: [Percentile; 3] =
    [("p50", |l| l.p50_ms), ("p99", |l| l.p99_ms), ("p99.9", |l| l.p999_ms)];

/// B0 and B4.
pub(crate) fn against_pending(run: &Run) -> Outcome {
    let plan = &run.plan;
    let site = |&pending: &u32| run.stock.with_pending(run.bootstrap, pending);
    let sites: Vec<_> = plan.pending.iter().map(site).collect();
    let rounds: Vec<_> = run
        .rounds()
        .map(|number| Round {
            ticker: plan.rates.iter().map(|&rate| of_ticker(run, rate)).collect(),
            in_company: plan.rates.contains(&JUDGED_RATE).then(|| in_company(run, JUDGED_RATE)),
            scheduler: sites.iter().map(|site| at_all_rates(run, site, number)).collect(),
        })
        .collect();
    let mut outcome = Outcome::default();
    for percentile in PERCENTILES {
        let lines = (0..plan.rates.len())
            .flat_map(|at| judge(run, &rounds, percentile, at, &mut outcome.figures));
        let lines = lines.collect();
        let name = format!("lateness-{}", percentile.0.replace('.', ""));
        let title = format!("Lateness against pending triggers, {}", percentile.0);
        let axes = Axes { x: "pending", y: "ms", logarithmic: true };
        outcome.charts.push(Chart::lines(&name, &title, axes, lines));
    }
    outcome
}

pub(super) fn of_ticker(run: &Run, rate: u32) -> Lateness {
    let site = Site::prepare(run.bootstrap);
    let mut witness = Witness::open(&site, "ticker");
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let _ticker = Contender::ticker(&site, count, rate);
    let lateness = witness.lateness(ticker::SERIES, count, Millis::from(WARM_UP_S) * 1_000);
    say(&format!("ticker at {}/s: {lateness}", amount(rate.into())));
    lateness
}

/// The ticker, while somebody registers at the same rate and somebody reads it.
fn in_company(run: &Run, rate: u32) -> Lateness {
    let site = Site::prepare(run.bootstrap);
    let mut witness = Witness::open(&site, "ticker");
    let mut registrar = Registrar::open(&site);
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let is_over = AtomicBool::new(false);
    let lateness = std::thread::scope(|scope| {
        let _reader = scope.spawn(|| read_along(&site, &is_over));
        let _ticker = Contender::ticker(&site, count, rate);
        let _joined = scope.spawn(move || registrar.live("company", count, rate, NEVER_MS));
        let lateness = witness.lateness(ticker::SERIES, count, Millis::from(WARM_UP_S) * 1_000);
        is_over.store(true, Ordering::Relaxed);
        lateness
    });
    say(&format!("ticker in company at {}/s: {lateness}", amount(rate.into())));
    lateness
}

/// Reads what is registered as a scheduler does, and does nothing with it.
fn read_along(site: &Site, is_over: &AtomicBool) {
    let reader = Reader::open(&site.settings, "company").unwrap();
    let triggers = Names::new(&site.settings.topics.prefix).triggers();
    for partition in PARTITIONS {
        reader.start(&triggers, partition, 0).unwrap();
    }
    while !is_over.load(Ordering::Relaxed) {
        let _record = reader.poll(POLL).unwrap();
    }
}

/// One life of a scheduler, which is at rest when it begins.
fn at_all_rates(run: &Run, site: &Site, round: u32) -> Vec<Lateness> {
    let scheduler = Contender::scheduler(site);
    scheduler.rest();
    let measure = |&rate: &u32| {
        let lateness = of_scheduler(run, site, &format!("live{round}-{rate}"), rate);
        say(&format!("scheduler at {}/s: {lateness}", amount(rate.into())));
        lateness
    };
    let all = run.plan.rates.iter().map(measure).collect();
    scheduler.terminate();
    all
}

/// Of triggers that are registered meanwhile, with a running scheduler.
pub(super) fn of_scheduler(run: &Run, site: &Site, series: &str, rate: u32) -> Lateness {
    let mut witness = Witness::open(site, "scheduler");
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let mut registrar = Registrar::open(site);
    std::thread::scope(|scope| {
        let _joined = scope.spawn(move || registrar.live(series, count, rate, LEAD_MS));
        witness.lateness(series, count, Millis::from(WARM_UP_S) * 1_000)
    })
}

/// Adds what came of the `at`-th rate, and returns its lines in the chart.
fn judge(
    run: &Run,
    rounds: &[Round],
    (percentile, of): Percentile,
    at: usize,
    figures: &mut Vec<Figure>,
) -> [Line; 2] {
    let plan = &run.plan;
    let rate = amount(plan.rates[at].into());
    let figure = |name: String, lateness: &dyn Fn(&Round) -> Lateness| {
        let values = rounds.iter().map(|round| of(&lateness(round)));
        Figure::new(name, "ms", values.collect())
    };
    // The quick plan has one rate, and floors for one percentile.
    let is_judged = match plan.rates {
        [_] => percentile == "p99",
        rates => percentile != "p99.9" && rates[at] == JUDGED_RATE,
    };
    let ask = |figure: Figure, goal| if is_judged { figure.asked(goal) } else { figure };

    let ticker = figure(format!("{percentile} at {rate}/s, ticker"), &|round| round.ticker[at]);
    let ours: Vec<_> = (0..plan.pending.len())
        .map(|place| {
            let pending = amount(plan.pending[place].into());
            let name = format!("{percentile} at {rate}/s, {pending} pending");
            figure(name, &|round| round.scheduler[place][at])
        })
        .collect();
    for ours in &ours {
        let ratio = Figure::ratio(format!("{} ÷ ticker", ours.name), ours, &ticker);
        figures.push(ask(ratio, plan.of_ticker));
    }
    if let (JUDGED_RATE, Some(most)) = (plan.rates[at], ours.last()) {
        let beside = figure(format!("{percentile} at {rate}/s, ticker in company"), &|round| {
            round.in_company.expect("it is measured at this rate")
        });
        let name = format!("{} ÷ ticker in company", most.name);
        figures.push(Figure::ratio(name, most, &beside));
        figures.push(beside);
    }
    if let [none, .., most] = &ours[..]
        && percentile == "p99"
    {
        let growth = Figure::ratio(format!("{} ÷ none pending", most.name), most, none);
        figures.push(ask(growth, Goal::at_most(1.5)));
        let floor = Figure::ratio(format!("{} ÷ plain ticker", none.name), none, &ticker);
        figures.push(ask(floor, Goal::at_most(0.65)));
    }
    let line = |name, is_reference, value: &dyn Fn(usize) -> f64| Line {
        name,
        is_reference,
        points: (0..plan.pending.len()).map(|n| (plan.pending[n].into(), value(n))).collect(),
    };
    let lines = [
        line(format!("{rate}/s"), false, &|place| ours[place].median),
        line(format!("ticker at {rate}/s"), true, &|_| ticker.median),
    ];
    figures.extend(ours);
    figures.push(ticker);
    lines
}
