//! A process that is measured: the scheduler, or this program in another part.
//!
//! Invariant: it ends with its value, even if the measuring process is killed: a small shell kills
//! it when its standard input closes. What it logged is printed when a measurement fails.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orloj::clock;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench_cluster::{BenchCluster, PARTITIONS};
use crate::wait::{until, within};

/// Joining the group and taking over takes about a second; with many millions pending and an empty
/// disk, minutes.
const READY_DEADLINE: Duration = Duration::from_secs(1_800);
/// A graceful end commits, brings the stores to disk and leaves the group.
const END_DEADLINE: Duration = Duration::from_secs(120);
/// How long RocksDB may tidy up before we measure all the same.
const IDLE_DEADLINE: Duration = Duration::from_secs(240);
/// A process at rest takes less than this much processor time in [`IDLE_WINDOW`].
const IDLE_CPU_MAX: Duration = Duration::from_millis(600);
const IDLE_WINDOW: Duration = Duration::from_secs(2);
/// The kernel counts processor time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// $1: the process id. It is killed when the measuring process ends, unless that says that it has
/// ended.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
read -r order
[ "$order" = ended ] || kill -9 "$1"
"#;

/// A running process.
pub(crate) struct MeasuredProcess {
    process: Child,
    watchdog: Child,
    log: Option<PathBuf>,
}

/// What a process has in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMemory {
    /// Resident, files that are mapped included.
    pub(crate) resident: u64,
    /// Resident and of no file: what the process itself has asked for.
    pub(crate) anonymous: u64,
    /// The most that was ever resident.
    pub(crate) peak: u64,
}

impl MeasuredProcess {
    /// This program as the pipe of `cluster`: moves `count` records and is ready when this returns.
    pub(crate) fn pipe(cluster: &BenchCluster, count: i64, batch: Duration) -> Self {
        Self::start_part(cluster, &["pipe", &count.to_string(), &batch.as_millis().to_string()])
    }

    /// This program as the ticker of `cluster`: it begins to fire when this returns.
    pub(crate) fn ticker(cluster: &BenchCluster, count: u32, rate: u32) -> Self {
        Self::start_part(cluster, &["ticker", &count.to_string(), &rate.to_string()])
    }

    /// This program as a plain caller of `url`: it begins to call when this returns.
    pub(crate) fn caller(cluster: &BenchCluster, url: &str, count: u32, at_once: u32) -> Self {
        Self::start_part(cluster, &["caller", url, &count.to_string(), &at_once.to_string()])
    }

    /// A worker as users run it, when it has its partitions.
    pub(crate) fn worker(cluster: &BenchCluster) -> Self {
        let mut worker = Self::starting(cluster, "worker");
        let listen = cluster.settings.worker.listen;
        until("the worker to be ready", READY_DEADLINE, || {
            let ended = worker.process.try_wait().unwrap();
            assert!(ended.is_none(), "the worker ended by itself: {}", ended.unwrap());
            is_ready(listen).then_some(())
        });
        worker
    }

    /// A gateway as users run it, when it answers.
    pub(crate) fn gateway(cluster: &BenchCluster) -> Self {
        let mut gateway = Self::starting(cluster, "gateway");
        let listen = cluster.settings.gateway.listen;
        until("the gateway to be ready", READY_DEADLINE, || {
            let ended = gateway.process.try_wait().unwrap();
            assert!(ended.is_none(), "the gateway ended by itself: {}", ended.unwrap());
            is_ready(listen).then_some(())
        });
        gateway
    }

    /// The scheduler as users run it, started and not ready yet.
    pub(crate) fn starting_scheduler(cluster: &BenchCluster) -> Self {
        Self::starting(cluster, "scheduler")
    }

    fn starting(cluster: &BenchCluster, role: &str) -> Self {
        let log = cluster.log(role);
        let words = File::create(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_orloj"));
        command.args([role, "--config"]).arg(&cluster.config);
        Self::start(command.stdout(words.try_clone().unwrap()).stderr(words), Some(log))
    }

    /// The scheduler as users run it, when it has its partitions.
    pub(crate) fn scheduler(cluster: &BenchCluster) -> Self {
        let mut scheduler = Self::starting_scheduler(cluster);
        scheduler.wait_for_readyz(cluster.settings.scheduler.listen);
        scheduler
    }

    fn start_part(cluster: &BenchCluster, part: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(part[0]).arg(&cluster.config).args(&part[1..]);
        let mut part = Self::start(command.stdout(Stdio::piped()), None);
        part.wait_for_ready_line();
        part
    }

    fn start(command: &mut Command, log: Option<PathBuf>) -> Self {
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &process.id().to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, watchdog, log }
    }

    /// Waits for the line by which a part of this program says that it has its partitions.
    fn wait_for_ready_line(&mut self) {
        let mut line = String::new();
        let mut says = BufReader::new(self.process.stdout.take().unwrap());
        says.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the process ended before it was ready");
    }

    /// Waits until the scheduler says over HTTP that it has its partitions.
    pub(crate) fn wait_for_readyz(&mut self, listen: SocketAddr) {
        until("the scheduler to be ready", READY_DEADLINE, || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the scheduler ended by itself: {}", ended.unwrap());
            (is_ready(listen) && self.takeovers().len() >= PARTITIONS.len()).then_some(())
        });
    }

    /// How long the takeover of each partition lasted, from its assignment to being active, and
    /// how many records of the ledger and the log it read.
    pub(crate) fn takeovers(&self) -> Vec<(Duration, u64)> {
        let said = self.log.as_ref().map(|log| fs::read_to_string(log).unwrap_or_default());
        let said = said.unwrap_or_default();
        let taken = said.lines().filter(|line| line.contains("taken over"));
        let field = |line: &str, name| -> u64 {
            let value = line.split_once(name).unwrap().1.split(' ').next();
            value.unwrap().parse().unwrap()
        };
        let took = |line| (Duration::from_millis(field(line, "took_ms=")), field(line, "records="));
        taken.map(took).collect()
    }

    /// Waits until the process does almost nothing, so that what it did before does not count.
    pub(crate) fn wait_until_idle(&self) {
        let mut since = (clock::monotonic(), self.processor_time());
        let _or_not = within(IDLE_DEADLINE, || {
            let now = clock::monotonic();
            if now - since.0 < IDLE_WINDOW {
                return None;
            }
            let used = self.processor_time() - since.1;
            since = (now, self.processor_time());
            (used < IDLE_CPU_MAX).then_some(())
        });
    }

    /// Processor time that the process has used so far, in user and kernel.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name stands in parentheses; utime and stime are the 12th and 13th after it.
        let fields = stat.rsplit(") ").next().unwrap().split(' ');
        let ticks: u32 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap()).sum();
        TICK * ticks
    }

    /// What it has in memory now.
    pub(crate) fn memory(&self) -> ProcessMemory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let kib: u64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap();
            kib * 1_024
        };
        ProcessMemory {
            resident: bytes("VmRSS"),
            anonymous: bytes("RssAnon"),
            peak: bytes("VmHWM"),
        }
    }

    /// What the scheduler of `cluster` says its stores take up in memory: of what, and bytes.
    pub(crate) fn store_memory(cluster: &BenchCluster) -> Vec<(String, f64)> {
        let response = ask(cluster.settings.scheduler.listen, "/metrics").unwrap();
        let lines =
            response.lines().filter_map(|line| line.strip_prefix("orloj_store_memory_bytes{"));
        let parse = |line: &str| {
            let (label, bytes) = line.split_once("\"} ").unwrap();
            (label.trim_start_matches("of=\"").to_owned(), bytes.parse().unwrap())
        };
        lines.map(parse).collect()
    }

    /// Ends it as a power failure would.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status =
            until("the scheduler to end", END_DEADLINE, || self.process.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for MeasuredProcess {
    fn drop(&mut self) {
        let _killed = self.process.kill();
        let _ended = self.process.wait();
        // Only now may its process id become another's.
        if let Some(mut orders) = self.watchdog.stdin.take() {
            let _sent = orders.write_all(b"ended\n");
        }
        let _ended = self.watchdog.wait();
        if let Some(log) = self.log.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("it said:\n{}", fs::read_to_string(log).unwrap_or_default());
        }
    }
}

fn is_ready(listen: SocketAddr) -> bool {
    ask(listen, "/readyz").is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
}

fn ask(listen: SocketAddr, path: &str) -> io::Result<String> {
    let mut connection = TcpStream::connect(listen)?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).map(|_| answer)
}
