//! `orloj tail`: the records of a topic as they arrive, for users without another tool; those of
//! Orloj's own topics as JSON.

use std::io::Write;
use std::time::Duration;

use clap::Args;

use super::CliError;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::reader::{LogReader, ReadEvent};

/// How long the broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The arguments of `orloj tail`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  orloj tail kitchen --from-beginning")]
pub(super) struct TailArguments {
    /// The topic.
    topic: String,
    /// Start with the oldest record there is.
    #[arg(long)]
    from_beginning: bool,
}

impl TailArguments {
    /// Prints until the process is interrupted or standard output is closed.
    pub(super) fn run(&self, settings: &Settings) -> Result<(), CliError> {
        let probe = KafkaAdminClient::open(settings, TIMEOUT)?;
        let Some(partitions) = probe.partitions(&self.topic)? else {
            return Err(CliError::Refused(format!("there is no topic {}", self.topic)));
        };
        let reader = LogReader::open(settings, &format!("{}.tail", settings.topics.prefix))?;
        for partition in 0..partitions {
            let (first, end) = probe.bounds(&self.topic, partition)?;
            reader.start(&self.topic, partition, if self.from_beginning { first } else { end })?;
        }
        let schemas = Schemas::new();
        let text = |bytes: Option<&[u8]>| match bytes {
            None => "null".to_owned(),
            Some(bytes) => schemas.to_debug_json(bytes).map_or_else(
                || String::from_utf8_lossy(bytes).into_owned(),
                |value| value.to_string(),
            ),
        };
        let mut out = std::io::stdout().lock();
        loop {
            if let Some(ReadEvent::Record(record)) = reader.poll(TIMEOUT)? {
                let (key, value) = (text(record.key()), text(record.value()));
                if writeln!(out, "{key}\t{value}").and_then(|()| out.flush()).is_err() {
                    return Ok(());
                }
            }
        }
    }
}
