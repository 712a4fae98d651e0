//! The real program as a process of its own, started, ended and killed as an operator or a power
//! failure would.
//!
//! Invariant: nothing is left behind, not even when the test process is killed: a small shell kills
//! the program when its standard input closes. What the program said is shown when a test fails.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use orloj::telemetry;
use rustix::process::{Pid, Signal, kill_process};

use crate::kafka_server::free_ports;
use crate::wait::until;

/// A graceful end commits and leaves the group; a loaded machine needs long for both.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// How much of a log is shown on failure.
const LINES_SHOWN: usize = 60;

/// $1: the program's process id. It is killed when the test ends, unless the test says that it has
/// ended.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
read -r order
[ "$order" = ended ] || kill -9 "$1"
"#;

/// A configuration file in the making: full names and values, the last one wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessSettings {
    values: Vec<(String, toml::Value)>,
    environment: Vec<(String, String)>,
}

impl ProcessSettings {
    /// `name` as TOML writes it with its section: `scheduler.ledger_after`.
    pub(crate) fn set(mut self, name: &str, value: impl Into<toml::Value>) -> Self {
        self.values.retain(|(known, _)| known != name);
        self.values.push((name.to_owned(), value.into()));
        self
    }

    /// A variable of the program's environment.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs `orloj` with these settings until it ends, as a person at a terminal would; returns
    /// what it said and whether that was a success.
    pub(crate) fn run(&self, arguments: &[&str]) -> (String, bool) {
        let output = self.command(arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).unwrap(), output.status.success())
    }

    /// `orloj` with these settings and arguments, to be started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&[], &self.write("command"));
        command.args(arguments);
        command
    }

    /// Writes a file for the process called `name`.
    pub(crate) fn write(&self, name: &str) -> PathBuf {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("orloj");
        fs::create_dir_all(&folder).unwrap();
        let config = folder.join(format!("{}-{name}.toml", WRITTEN.fetch_add(1, Relaxed)));
        fs::write(&config, self.to_toml()).unwrap();
        config
    }

    fn to_toml(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.values {
            writeln!(text, "{name} = {value}").unwrap();
        }
        text
    }
}

/// `orloj` with this file, as the last argument of `tracer` if there is one.
fn command(tracer: &[&str], config: &Path) -> Command {
    let words = [tracer, &[env!("CARGO_BIN_EXE_orloj")]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("--config").arg(config).stdin(Stdio::null());
    command
}

/// A running `orloj`; killed when its value is dropped.
pub(crate) struct OrlojProcess {
    name: String,
    program: Child,
    watchdog: Child,
    port: u16,
    log: PathBuf,
}

/// What a process has in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    pub(crate) resident: u64,
    /// The most that was ever resident.
    pub(crate) peak: u64,
}

impl OrlojProcess {
    /// Starts `orloj <role>`, whose log is called after `name`, with the faults armed that
    /// `src/fault` reads from its environment.
    pub(crate) fn start(role: &str, name: &str, settings: &ProcessSettings, fault: &str) -> Self {
        Self::start_under(&[], role, name, settings, fault)
    }

    /// The same as the last argument of `tracer`, a command that leaves its own process to it.
    pub(crate) fn start_under(
        tracer: &[&str],
        role: &str,
        name: &str,
        settings: &ProcessSettings,
        fault: &str,
    ) -> Self {
        let [port] = free_ports();
        let listen = format!("127.0.0.1:{port}");
        let settings = settings.clone().set(&format!("{role}.listen"), listen);
        let config = settings.write(name);
        let mut program = command(tracer, &config);
        program.arg(role);
        program.envs(settings.environment.iter().map(|(name, value)| (name, value)));
        program.env("ORLOJ_FAULT", fault);
        Self::watched(name, program, port, config.with_extension("log"))
    }

    /// Starts `orloj dev`: every role, on the broker of the settings with `--bootstrap-servers`
    /// among the arguments, else on a broker of its own.
    pub(crate) fn start_dev(name: &str, settings: &ProcessSettings, arguments: &[&str]) -> Self {
        let [port] = free_ports();
        let settings = settings.clone().set("gateway.listen", format!("127.0.0.1:{port}"));
        let config = settings.write(name);
        let mut program = command(&[], &config);
        program.arg("dev").args(arguments);
        Self::watched(name, program, port, config.with_extension("log"))
    }

    /// Starts a command that becomes `orloj`, serves `port`, and whose words go to the file `log`.
    pub(crate) fn watched(name: &str, mut program: Command, port: u16, log: PathBuf) -> Self {
        let output = File::create(&log).unwrap();
        let program = program
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &program.id().to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { name: name.to_owned(), program, watchdog, port, log }
    }

    /// Where it serves: `127.0.0.1:<port>`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits until it says that it is ready.
    pub(crate) fn wait_until_ready(&mut self, deadline: Duration) {
        let (address, name) = (self.address(), self.name.clone());
        until(&format!("{name} to be ready"), deadline, || {
            let ended = self.program.try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended by itself: {}", ended.unwrap());
            is_ready(&address).then_some(())
        });
    }

    /// Whether it says now that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        is_ready(&self.address())
    }

    /// What it answers at `/readyz`; empty if it does not.
    pub(crate) fn readiness(&self) -> String {
        get(&self.address(), "/readyz").unwrap_or_default()
    }

    /// The same for each of its parts, those that are ready included.
    pub(crate) fn readiness_of_parts(&self) -> String {
        get(&self.address(), "/readyz?verbose").unwrap_or_default()
    }

    /// Sends it a signal, as an operator or the kernel would.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.program), signal).unwrap();
    }

    /// Whether a signal has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        state_of(self.program.id()) == Some('T')
    }

    /// Its memory now, in MiB.
    pub(crate) fn memory(&self) -> u64 {
        self.footprint().resident / (1_024 * 1_024)
    }

    /// For how many partitions it fires.
    pub(crate) fn owned_partitions(&self) -> usize {
        self.gauge(&format!("{}{{state=\"active\"}}", telemetry::OWNED)).unwrap_or(0)
    }

    /// What it says now of a metric whose values are counts; labels are part of the name.
    pub(crate) fn gauge(&self, name: &str) -> Option<usize> {
        let metrics = get(&self.address(), "/metrics").unwrap_or_default();
        metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// How often a histogram's value was above `bound`, a bucket's bound as it is written there.
    pub(crate) fn longer_than(&self, histogram: &str, bound: &str) -> usize {
        let metrics = get(&self.address(), "/metrics").unwrap();
        let (all, within) =
            (format!("{histogram}_count "), format!("{histogram}_bucket{{le=\"{bound}\"}} "));
        let count = |name: &str| -> usize {
            metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap()
        };
        count(&all) - count(&within)
    }

    /// The CPU time that it has used, of all its threads.
    pub(crate) fn cpu_time(&self) -> Duration {
        /// Linux reports in hundredths of a second.
        const TICK_MS: u64 = 10;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.program.id())).unwrap();
        // The name stands in parentheses, and fields 14 and 15 are user and system time.
        let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * TICK_MS)
    }

    /// What it has in memory.
    pub(crate) fn footprint(&self) -> Footprint {
        let bytes = |name: &str| {
            let kib: u64 = self.status(name).trim_end_matches(" kB").parse().unwrap();
            kib * 1_024
        };
        Footprint { resident: bytes("VmRSS"), peak: bytes("VmHWM") }
    }

    /// Whether the kernel may hand it memory in huge pages.
    pub(crate) fn has_huge_pages(&self) -> bool {
        self.status("THP_enabled") == "1"
    }

    /// What the kernel says of it, by name; see proc_pid_status(5).
    fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.program.id())).unwrap();
        let of = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        status.lines().find_map(of).unwrap()
    }

    /// How it ended, once it has.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.program.try_wait().unwrap()
    }

    /// How long each of its takeovers lasted, in ms.
    pub(crate) fn takeovers(&self) -> Vec<u64> {
        self.numbers("taken over", "took_ms")
    }

    /// The number called `name` in each line of its log that holds `words`.
    pub(crate) fn numbers(&self, words: &str, name: &str) -> Vec<u64> {
        let (said, name) = (self.log_text(), format!("{name}="));
        let lines = said.lines().filter(|line| line.contains(words));
        let numbers = lines.filter_map(|line| line.split_once(&name)?.1.split(' ').next());
        numbers.map(|number| number.parse().unwrap()).collect()
    }

    /// Ends it as a power failure would.
    pub(crate) fn kill(mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }

    /// Asks it to end and waits until it has; it must call that a success.
    pub(crate) fn terminate(mut self) {
        self.end();
    }

    /// The same, for one whose log is still read afterwards.
    pub(crate) fn end(&mut self) {
        self.signal(Signal::TERM);
        self.await_end();
    }

    /// Waits until one that was asked to end has ended; it must call that a success.
    pub(crate) fn await_end(&mut self) {
        let what = format!("{} to end", self.name);
        let status = until(&what, END_DEADLINE, || self.program.try_wait().unwrap());
        assert!(status.success(), "{}: {status}", self.name);
    }

    /// Whether a bug ended one of its threads.
    pub(crate) fn panicked(&self) -> bool {
        self.log_text().contains("panicked at")
    }

    /// Waits until it has taken a partition over: a member without any is ready, too.
    pub(crate) fn wait_until_owner(&self, deadline: Duration) {
        self.wait_for_log("taken over", deadline);
    }

    /// Waits until its log holds `words`.
    pub(crate) fn wait_for_log(&self, words: &str, deadline: Duration) {
        let what = format!("{} to say {words:?}", self.name);
        until(&what, deadline, || self.log_text().contains(words).then_some(()));
    }

    /// Its log so far.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for OrlojProcess {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        // Only now is its process id free to be another's.
        if let Some(mut orders) = self.watchdog.stdin.take() {
            let _ = orders.write_all(b"ended\n");
        }
        let _ = self.watchdog.wait();
        if std::thread::panicking() {
            let said = self.log_text();
            let lines: Vec<_> = said.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            eprintln!("{} ({}) said:\n{}", self.name, self.log.display(), shown.join("\n"));
        }
    }
}

/// The letter by which the kernel calls a process's state; `None` if there is no such process.
pub(crate) fn state_of(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in parentheses, the state after them.
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether what serves at `address` says that it is ready.
pub(crate) fn is_ready(address: &str) -> bool {
    get(address, "/readyz").is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
}

fn get(address: &str, path: &str) -> io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).map(|_| answer)
}
