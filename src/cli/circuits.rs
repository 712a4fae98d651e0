//! `orloj circuits`: the circuits of every worker, read from the outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::CliError;
use super::trigger::read_delay;
use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::outcome::{CIRCUIT_KEY_PREFIX, Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::text::Text;
use crate::model::time::format_time;
use crate::model::{Millis, Timestamp};

/// How long the broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

const HELP: &str = "\
A circuit that is not closed is reported again within twice `worker.circuit_open_duration` and the
time of an attempt: it is probed, or removed. One that was not reported for longer belongs to a
worker that died; that is why no more than the last while is read.

Examples:
  orloj circuits
  orloj circuits --json --within 1h";

/// The arguments of `orloj circuits`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct CircuitsArguments {
    /// How far back changes are read.
    #[arg(long, value_name = "DELAY", default_value = "10m", value_parser = read_delay)]
    within: Millis,
    /// One JSON array, for machines.
    #[arg(long)]
    json: bool,
}

/// The state of a circuit, and since when.
#[derive(Debug, Serialize)]
struct CircuitRow {
    #[serde(flatten)]
    circuit: Circuit,
    since: Timestamp,
}

impl CircuitsArguments {
    pub(super) fn run(&self, settings: &Settings) -> Result<(), CliError> {
        let lines = read(settings, clock::now_ms().saturating_sub(self.within))?;
        if self.json {
            let json = serde_json::to_string(&lines).expect("text and numbers make JSON");
            println!("{json}");
        } else {
            print!("{}", table(&lines));
        }
        Ok(())
    }
}

/// The newest state of every circuit that has changed since `from`, those that are not closed
/// first.
fn read(settings: &Settings, from: Timestamp) -> Result<Vec<CircuitRow>, CliError> {
    let topic = Names::new(&settings.topics.prefix).outcomes();
    let probe = KafkaAdminClient::open(settings, TIMEOUT)?;
    let Some(partitions) = probe.partitions(&topic)? else {
        return Err(CliError::Refused(format!(
            "there is no topic {topic}; see orloj topics apply"
        )));
    };
    let reader = LogReader::open(settings, &format!("{}.circuits", settings.topics.prefix))?;
    for partition in 0..partitions {
        reader.start(&topic, partition, probe.offset_for_time(&topic, partition, from)?)?;
    }
    let schemas = Schemas::new();
    let mut unread: BTreeSet<_> = (0..partitions).collect();
    let mut circuits = BTreeMap::<Text, CircuitRow>::new();
    while !unread.is_empty() {
        let record = match reader.poll(TIMEOUT)? {
            Some(ReadEvent::Record(record)) => record,
            Some(ReadEvent::PartitionEof(partition)) => {
                unread.remove(&partition);
                continue;
            }
            Some(ReadEvent::OutOfRange(reason)) => return Err(CliError::Refused(reason)),
            None => return Err(CliError::Refused(format!("{topic} cannot be read to its end"))),
        };
        if !record.key().is_some_and(|key| key.starts_with(CIRCUIT_KEY_PREFIX.as_bytes())) {
            continue;
        }
        let outcome = schemas.decode_outcome(record.value().unwrap_or_default());
        let outcome = outcome.map_err(|error| CliError::Refused(error.to_string()))?;
        if let Outcome { trigger, at, kind: OutcomeKind::Circuit(circuit), .. } = outcome {
            circuits.insert(trigger, CircuitRow { circuit, since: at });
        }
    }
    let mut lines: Vec<_> = circuits.into_values().collect();
    lines.sort_by_key(|line| (line.circuit.state == CircuitState::Closed, line.since));
    Ok(lines)
}

fn table(lines: &[CircuitRow]) -> String {
    if lines.is_empty() {
        return "no circuit has opened or closed lately\n".to_owned();
    }
    let titles = ["STATE", "CALLER", "HOST", "SINCE", "NEXT PROBE", "WORKER", "REASON"];
    let mut rows = vec![titles.map(str::to_owned)];
    rows.extend(lines.iter().map(|CircuitRow { circuit, since }| {
        let state = match circuit.state {
            CircuitState::Closed => "closed",
            CircuitState::Open => "open",
            CircuitState::HalfOpen => "half-open",
        };
        [
            state.to_owned(),
            circuit.caller.as_ref().map_or_else(|| "-".to_owned(), Text::to_string),
            circuit.host.to_string(),
            format_time(*since),
            circuit.probe_at.map_or_else(|| "-".to_owned(), format_time),
            circuit.worker.to_string(),
            circuit.reason.clone(),
        ]
    }));
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(caller: Option<&str>, state: CircuitState, probe_at: Option<Timestamp>) -> CircuitRow {
        let (worker, host) = ("orloj.worker.1".into(), "example.com".into());
        let reason = "20 of 20".to_owned();
        let caller = caller.map(Text::from);
        CircuitRow { circuit: Circuit { worker, caller, host, state, reason, probe_at }, since: 0 }
    }

    #[test]
    fn the_table_has_a_column_for_everything() {
        let lines = [
            row(Some("billing"), CircuitState::Open, Some(60_000)),
            row(None, CircuitState::HalfOpen, None),
        ];
        let (epoch, probe) = (format_time(0), format_time(60_000));
        let table = table(&lines);
        let rows: Vec<Vec<_>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1],
            ["open", "billing", "example.com", &epoch, &probe, "orloj.worker.1", "20", "of", "20"]
        );
        assert_eq!(rows[2][..5], ["half-open", "-", "example.com", &epoch, "-"]);
        let column = |row: &str, word: &str| row.find(word).unwrap();
        let mut rows = table.lines();
        let host = column(rows.next().unwrap(), "HOST");
        assert!(rows.all(|row| column(row, "example.com") == host), "{table}");
    }

    #[test]
    fn json_has_the_fields_of_a_circuit_and_since_when() {
        let json = serde_json::to_string(&row(None, CircuitState::HalfOpen, Some(7))).unwrap();
        let (route, state) = (
            r#""worker":"orloj.worker.1","caller":null,"host":"example.com""#,
            r#""state":"halfOpen","reason":"20 of 20","probeAt":7,"since":0"#,
        );
        assert_eq!(json, format!("{{{route},{state}}}"));
    }
}
