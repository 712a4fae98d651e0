//! On what was measured: figures of different machines say nothing about each other.
//!
//! Invariant: whatever could not be found out is said to be unknown.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// The machine, and the versions of what is measured on it.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    kafka: String,
    java: String,
    librdkafka: String,
    rustc: String,
    revision: String,
}

impl Machine {
    pub(crate) fn detect() -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_gib(),
            kernel: output_of(Command::new("uname").arg("-sr")),
            kafka: kafka(),
            java: output_of(Command::new("java").arg("--version")),
            librdkafka: rdkafka::util::get_rdkafka_version().1,
            rustc: output_of(Command::new("rustc").arg("-V")),
            revision: output_of(Command::new("git").args(["describe", "--always", "--dirty"])),
        }
    }

    /// Each part with its name.
    pub(crate) fn parts(&self) -> [(&'static str, String); 9] {
        [
            ("processor", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("memory", format!("{:.1} GiB", self.memory_gib)),
            ("kernel", self.kernel.clone()),
            ("Kafka", self.kafka.clone()),
            ("Java", self.java.clone()),
            ("librdkafka", self.librdkafka.clone()),
            ("Rust", self.rustc.clone()),
            ("Orloj", self.revision.clone()),
        ]
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts().map(|(name, value)| format!("{name} {value}"));
        write!(f, "{}", parts.join("; "))
    }
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':')).map_or_else(unknown, |(_, v)| v.trim().to_owned())
}

fn memory_gib() -> f64 {
    let total = field("/proc/meminfo", "MemTotal");
    total.trim_end_matches(" kB").parse::<f64>().map_or(0.0, |kib| kib / 1_048_576.0)
}

/// The version of the jars that the tests' broker runs.
fn kafka() -> String {
    let script = Path::new("scripts/kafka.sh");
    let libs = output_of(&mut Command::new(script));
    let files = fs::read_dir(libs).into_iter().flatten().filter_map(Result::ok);
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let version = |name: String| {
        let version = name.strip_prefix("kafka_2.13-")?.strip_suffix(".jar")?;
        Some(version.to_owned())
    };
    names.filter_map(version).next().unwrap_or_else(unknown)
}

/// The first line that a command prints.
fn output_of(command: &mut Command) -> String {
    let output = command.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.and_then(|text| Some(text.lines().next()?.to_owned())).unwrap_or_else(unknown)
}

fn unknown() -> String {
    "unknown".to_owned()
}
