//! Faults on a real Kafka: each is a named case with a criterion, run one after the other by
//! `make faults`; the short ones also by `make test`.
//!
//! Law: a case passes by the judge's verdict on what Kafka acknowledged and what readers saw, and
//! by processes that recover by themselves. A case that cannot run here says why.

mod broker;
mod cluster;
mod dice;
mod disk;
mod flow;
mod foreign;
mod held;
mod kills;
mod offsets;
mod poison;
mod processes;
mod proxy;
mod receiver;
mod report;
mod room;
mod skew;
mod takeover;
mod topics;
mod versions;
mod witness;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use orloj::clock;

use crate::audit::{self, Command};
use crate::client::Client;
use crate::kafka_server::KafkaServer;
use crate::load::MARGIN;
use crate::stage::{Stage, whole_machine};
use crate::wait::until;
use flow::Flow;
use report::{Ended, Verdict, closing_line, save};

/// From the end of a fault until everything has fired.
const SETTLE: Duration = Duration::from_secs(120);

/// A fault, and what must hold through it.
struct Case {
    name: &'static str,
    criterion: &'static str,
    run: fn(Scale) -> Verdict,
}

/// How much of a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scale {
    /// Within a minute, as part of `make test`.
    Short,
    /// Everything: `make faults`.
    Full,
    /// Until one is tired of it: `make faults-long`.
    Long,
}

const CASES: &[Case] = &[
    Case {
        name: "kill-scheduler",
        criterion: "SIGKILL at every named step loses, repeats and hurries nothing",
        run: kills::schedulers,
    },
    Case {
        name: "kill-worker",
        criterion: "SIGKILL at every named step repeats only what was under way at a kill",
        run: kills::workers,
    },
    Case {
        name: "stopped",
        criterion: "SIGSTOP in mid-transaction until others took over, then SIGCONT",
        run: processes::stopped,
    },
    Case {
        name: "restarted",
        criterion: "a process that ends and starts again has its share back",
        run: processes::restarted,
    },
    Case {
        name: "owner-followed",
        criterion: "who has followed the dead owner fires within a second of the assignment",
        run: takeover::followed,
    },
    Case {
        name: "owner-unfollowed",
        criterion: "who has not fires within five seconds, a million pending",
        run: takeover::cold,
    },
    Case {
        name: "storm",
        criterion: "four processes that come and go, or die, every few seconds",
        run: processes::storm,
    },
    Case {
        name: "namesakes",
        criterion: "of two processes of one name one gives up and says why",
        run: processes::namesakes,
    },
    Case {
        name: "broker-restarted",
        criterion: "what is due while the broker restarts fires once; /readyz says that it waits",
        run: broker::restarted,
    },
    Case {
        name: "broker-killed",
        criterion: "what is due while the broker is dead fires once; /readyz says that it waits",
        run: broker::killed,
    },
    Case {
        name: "poison",
        criterion: "each poisonous record becomes one dead letter, and its neighbours fire",
        run: poison::everywhere,
    },
    Case {
        name: "disk-damaged",
        criterion: "damaged files are noticed, or do no harm; what they held is rebuilt",
        run: disk::damaged,
    },
    Case {
        name: "disk-wiped",
        criterion: "a lost disk loses nothing, also under a running process",
        run: disk::wiped,
    },
    Case {
        name: "target-deleted",
        criterion: "each trigger for a deleted topic is one dead letter; others are not held up",
        run: topics::target_deleted,
    },
    Case {
        name: "foreign-partitioner",
        criterion: "records of another hash are forwarded once, whoever dies meanwhile",
        run: foreign::partitioner,
    },
    Case {
        name: "triggers-recreated",
        criterion: "new offsets under old cursors are refused, and accepted when told so",
        run: topics::recreated,
    },
    Case {
        name: "triggers-widened",
        criterion: "a changed number of partitions is noticed, and refused at a start",
        run: topics::widened,
    },
    Case {
        name: "offsets-moved",
        criterion: "what stands behind a moved offset fires again, and nothing else",
        run: offsets::moved,
    },
    Case {
        name: "offsets-deleted",
        criterion: "after a shutdown nothing is repeated; after a crash a person is asked",
        run: offsets::deleted,
    },
    Case {
        name: "offsets-hidden",
        criterion: "a mirror of the offsets behind an open transaction is waited for",
        run: offsets::hidden,
    },
    Case {
        name: "held-end",
        criterion: "an EndTxn that arrives late commits nothing",
        run: held::end,
    },
    Case {
        name: "held-offsets",
        criterion: "a TxnOffsetCommit that arrives late moves nothing",
        run: held::offsets,
    },
    Case {
        name: "coordinator-lost",
        criterion: "of three brokers each dies in turn, and fires go on meanwhile",
        run: cluster::coordinator_lost,
    },
    Case {
        name: "disk-full",
        criterion: "without room it says so; with room again it goes on by itself",
        run: room::full,
    },
    Case {
        name: "disk-old",
        criterion: "a disk older than the ledger's memory revives nothing",
        run: room::old,
    },
    Case { name: "disk-slow", criterion: "a slow fsync holds up nothing", run: room::slow },
    Case {
        name: "clock-set-back",
        criterion: "a clock that goes back makes nothing early, and whoever waits for it says so",
        run: skew::set_back,
    },
    Case {
        name: "versions",
        criterion: "what a newer version wrote is refused, and the rest goes on",
        run: versions::side_by_side,
    },
];

/// Of these a little is run by `make test`.
const SHORT: [&str; 4] = ["kill-scheduler", "kill-worker", "stopped", "owner-followed"];

#[test]
fn a_few_faults_harm_nothing() {
    let _machine = whole_machine();
    run_all(Scale::Short, |case| SHORT.contains(&case.name));
}

/// `CASES` names the ones to run, by a part of their names; `LONG` runs them for longer.
#[test]
#[ignore = "half an hour; `make faults` runs it"]
fn no_fault_harms_anything() {
    let _machine = whole_machine();
    let wanted = std::env::var("CASES").unwrap_or_default();
    let scale = if std::env::var_os("LONG").is_some() { Scale::Long } else { Scale::Full };
    run_all(scale, |case| {
        wanted.is_empty() || wanted.split(',').any(|part| case.name.contains(part))
    });
}

fn run_all(scale: Scale, wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<_> = CASES.iter().filter(|case| wanted(case)).collect();
    let mut ended = Vec::with_capacity(cases.len());
    for (place, case) in cases.iter().enumerate() {
        say(&format!("[{}/{}] {}: {}", place + 1, cases.len(), case.name, case.criterion));
        let begun = clock::monotonic();
        let verdict = catch_unwind(AssertUnwindSafe(|| (case.run)(scale)));
        let verdict = verdict.unwrap_or_else(|panic| Verdict::Failed(reason(&*panic)));
        let seconds = (clock::monotonic() - begun).as_secs();
        ended.push(Ended { case: case.name, criterion: case.criterion, seconds, verdict });
        say(&ended.last().expect("it was just pushed").line());
        save(&ended);
    }
    say(&closing_line(&ended));
    let failed = ended.iter().any(|ended| matches!(ended.verdict, Verdict::Failed(_)));
    assert!(!failed && !ended.is_empty(), "{}", closing_line(&ended));
}

/// Past the test harness, which would hide it when all is well.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

/// An installation with a user, under attack.
struct Scene {
    stage: Stage,
    client: Client,
}

impl Scene {
    /// On the broker that tests share.
    fn new(name: &str) -> Self {
        Self::of(Stage::new(name))
    }

    /// On a broker that the case may do to as it likes.
    fn on(name: &str, server: &KafkaServer) -> Self {
        Self::of(Stage::at(name, server))
    }

    /// A part of the load goes through the ledger.
    fn of(stage: Stage) -> Self {
        let stage = stage.set("scheduler.ledger_after", "2s");
        let client = stage.client();
        Self { stage, client }
    }

    /// What is pending is in the replay tail, not in the ledger.
    fn with_long_tail(stage: Stage) -> Self {
        let stage = stage.set("scheduler.ledger_after", "2h");
        let client = stage.client();
        Self { stage, client }
    }

    fn flow(&self) -> Flow<'_> {
        Flow { stage: &self.stage, client: &self.client, per_second: 100, callback: None }
    }

    fn settled(&self) -> audit::Report {
        settled(&self.stage, &self.client)
    }
}

/// Waits until everything is due and has fired, and judges: nothing may be wrong.
fn settled(stage: &Stage, client: &Client) -> audit::Report {
    let commands = client.acknowledged();
    let soon = clock::now_ms() + 60_000;
    let last =
        commands.values().flatten().filter_map(Command::registers).filter(|due| *due < soon).max();
    let last = last.unwrap_or_default();
    until("everything to be due", SETTLE, || (clock::now_ms() > last).then_some(()));
    let report = stage.settled(&commands, MARGIN, SETTLE);
    assert!(report.is_clean(), "{report}");
    report
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
