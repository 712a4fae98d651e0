//! Everything that is measured, as a table.
//!
//! Invariant: a case stands alone: it prepares what it needs, and can be run by its name.

mod api;
mod burst;
mod callbacks;
mod cancels;
mod lateness;
mod ledger;
mod memory;
mod peers;
mod records;
mod recurring;
mod sustained;
mod takeover;
mod throughput;

use crate::case::BenchCase;

const ALWAYS: &[&str] = &["quick", "full", "long"];
const IN_FULL: &[&str] = &["full", "long"];
const LATENESS: &[&str] = &["quick", "full", "long", "floor"];

pub(crate) const CASES: &[BenchCase] = &[
    BenchCase {
        name: "throughput",
        criterion: "a backlog is registered and fired at 0.6 of the pipe's pace",
        plans: ALWAYS,
        run: throughput::backlog,
    },
    BenchCase {
        name: "sustained",
        criterion: "with delays of 1 to 60 s it registers and fires for as long as one likes",
        plans: IN_FULL,
        run: sustained::steady_state,
    },
    BenchCase {
        name: "burst",
        criterion: "what is due in one millisecond is visible as soon as the pipe could move it",
        plans: IN_FULL,
        run: burst::one_millisecond,
    },
    BenchCase {
        name: "records",
        criterion: "a short trigger costs the cluster its own two records, and little else",
        plans: IN_FULL,
        run: records::of_short_triggers,
    },
    BenchCase {
        name: "cancels",
        criterion: "nine in ten are cancelled before their time, and the tenth fires",
        plans: IN_FULL,
        run: cancels::nine_in_ten,
    },
    BenchCase {
        name: "ledger",
        criterion: "what outlives the replay tail is registered and fired at full speed, too",
        plans: IN_FULL,
        run: ledger::long_triggers,
    },
    BenchCase {
        name: "recurring",
        criterion: "100,000 recurring triggers fire as punctually as one-time ones",
        plans: IN_FULL,
        run: recurring::beside_one_time,
    },
    BenchCase {
        name: "lateness",
        criterion: "whatever is pending, fires are as punctual as ready-made ones",
        plans: LATENESS,
        run: lateness::against_pending,
    },
    BenchCase {
        name: "memory",
        criterion: "memory does not grow with what is pending",
        plans: IN_FULL,
        run: memory::against_pending,
    },
    BenchCase {
        name: "takeover",
        criterion: "who takes over reads 300,000 pending triggers a second",
        plans: IN_FULL,
        run: takeover::against_pending,
    },
    BenchCase {
        name: "callbacks",
        criterion: "10,000 callbacks are under way at once, and memory does not grow with them",
        plans: IN_FULL,
        run: callbacks::ten_thousand_at_once,
    },
    BenchCase {
        name: "api",
        criterion: "a registration over HTTP is acknowledged by its owner in 3 times a fire's time",
        plans: IN_FULL,
        run: api::acknowledged,
    },
    BenchCase {
        name: "peers",
        criterion: "a burst is over in 0.4 of the time of a scheduler on Kafka Streams",
        plans: IN_FULL,
        run: peers::side_by_side,
    },
];
