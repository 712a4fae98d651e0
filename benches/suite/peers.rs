//! Other schedulers, each behind a program of its own: `benches/peers/<name>/run`.
//!
//! Invariant: a peer is run with what we are run with, on the same machine and, if it needs one, on
//! the same broker. What it cannot do it says; what is missing here is said, too, never left out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::load_generator::PAYLOAD_BYTES;
use crate::wait::within;

/// In the order in which they are run.
pub(crate) const PEERS: [&str; 4] = ["kafka-streams", "etf1", "nats", "restate"];
/// Seconds that a peer has for a case.
const CASE_DEADLINE_S: u64 = 100;
/// Who is so late fires less than it is asked for, and falls back for as long as it is asked.
const LATENESS_MAX_MS: f64 = 5_000.0;
/// Fetching and building, which is done once a machine.
const PREPARE_DEADLINE: Duration = Duration::from_secs(900);
/// What a peer needs to start, and to clean up, beyond its case.
const MARGIN: Duration = Duration::from_secs(60);

/// The result of a case: the last line that a peer prints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PeerResult {
    /// Why it was not measured at all.
    pub(crate) skipped: Option<String>,
    /// Whether the deadline passed first; the other figures are of what was received until then.
    pub(crate) timed_out: bool,
    pub(crate) received: u64,
    /// What a reader must know.
    pub(crate) note: Option<String>,
    /// Until the last fire was received.
    pub(crate) seconds: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// The most memory that the server or scheduler has held, in MB.
    pub(crate) rss_mb: Option<f64>,
}

/// A peer that can be run here.
pub(crate) struct PeerScheduler {
    program: PathBuf,
    bootstrap: String,
}

impl PeerScheduler {
    /// Fetches and builds it, or says why it cannot be compared with.
    pub(crate) fn prepare(name: &str, bootstrap: &str) -> Result<Self, String> {
        let folder = Path::new("benches/peers").join(name);
        let peer = Self { program: folder.join("run"), bootstrap: bootstrap.to_owned() };
        if !peer.program.exists() {
            return Err(format!("benches/peers/{name}/run is missing"));
        }
        peer.run(&["prepare"], PREPARE_DEADLINE).map(|_said| peer)
    }

    /// Runs a case: its name and its own keys.
    pub(crate) fn measure(&self, case: &[&str]) -> PeerResult {
        let work = tempfile::tempdir().unwrap();
        let more = [
            format!("payload={PAYLOAD_BYTES}"),
            format!("bootstrap={}", self.bootstrap),
            format!("deadline={CASE_DEADLINE_S}"),
            format!("work={}", work.path().display()),
        ];
        let arguments: Vec<_> =
            case.iter().copied().chain(more.iter().map(String::as_str)).collect();
        let said = self.run(&arguments, Duration::from_secs(CASE_DEADLINE_S) + MARGIN);
        let read = |said: String| {
            let last = said.lines().last().unwrap_or_default();
            serde_json::from_str(last).map_err(|error| format!("it said {last:?}: {error}"))
        };
        said.and_then(read).unwrap_or_else(|why| PeerResult::skipped(&why))
    }

    /// What it has printed when it has ended well; or why it has not.
    fn run(&self, arguments: &[&str], deadline: Duration) -> Result<String, String> {
        let words = tempfile::tempdir().unwrap();
        let (printed, progress) = (words.path().join("printed"), words.path().join("progress"));
        let mut process = Command::new(&self.program)
            .args(arguments)
            // It ends, with all that it has started, when this is closed.
            .stdin(Stdio::piped())
            .stdout(File::create(&printed).unwrap())
            .stderr(File::create(&progress).unwrap())
            .spawn()
            .map_err(|error| error.to_string())?;
        let ended = within(deadline, || process.try_wait().unwrap());
        end(process);
        match ended {
            Some(status) if status.success() => Ok(fs::read_to_string(printed).unwrap()),
            Some(status) => {
                let said = fs::read_to_string(progress).unwrap_or_default();
                Err(format!("{status}: {}", said.lines().last().unwrap_or_default()))
            }
            None => Err(format!("no answer within {deadline:?}")),
        }
    }
}

impl PeerResult {
    pub(crate) fn skipped(why: &str) -> Self {
        Self { skipped: Some(why.to_owned()), ..Self::default() }
    }

    /// Whether there are figures, of all that was asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.skipped.is_none() && !self.timed_out
    }

    /// Whether it makes sense to ask for more of the same a second.
    pub(crate) fn keeps_up(&self) -> bool {
        self.p50_ms.is_none_or(|p50| self.is_whole() && p50 < LATENESS_MAX_MS)
    }

    /// For a table: seconds or percentiles, and memory.
    pub(crate) fn in_words(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("skipped: {why}");
        }
        if self.timed_out && self.received == 0 {
            return format!("nothing within {CASE_DEADLINE_S} s");
        }
        let mut words = Vec::new();
        match (self.seconds, self.p50_ms, self.p99_ms) {
            (None, Some(p50), Some(p99)) => words.push(format!("p50 {p50:.0} ms, p99 {p99:.0} ms")),
            (seconds, ..) => words.extend(seconds.map(|seconds| format!("{seconds:.2} s"))),
        }
        words.extend(self.rss_mb.map(|mb| format!("{mb:.0} MB")));
        if self.timed_out {
            words.push(format!("only {} within {CASE_DEADLINE_S} s", self.received));
        }
        words.extend(self.note.clone());
        words.join(", ")
    }
}

fn end(mut process: Child) {
    drop(process.stdin.take());
    let _ended = within(MARGIN, || process.try_wait().unwrap());
    let _killed = process.kill();
    let _ended = process.wait();
}
